"""Converts the models of the packages silero-vad, ddddocr and piper-tts. Skipped for those not installed.

piper-tts has a model of torch (tashkeel, for Arabic) and one of Keras (nakdimon, for Hebrew), and no voices.
support/onnx_packages.py says how to install the packages for these tests.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx_ir")

import lnrnn  # noqa: E402
from lnrnn.onnx.extraction import extracted  # noqa: E402
from lnrnn.onnx.parts import parts_of  # noqa: E402
from lnrnn.onnx.reading import read  # noqa: E402
from onnx_packages import path_of  # noqa: E402
from onnx_runs import agree, outputs, run  # noqa: E402

# (file, number of parts with different weights, kind, inputs, units, directions, paths of each part)
FILES = [
    ("silero_vad/data/silero_vad.onnx", 2, "LSTM", 128, 128, 1, 2),
    ("silero_vad/data/silero_vad_16k_op15.onnx", 1, "LSTM", 128, 128, 1, 2),
    ("silero_vad/data/silero_vad_half.onnx", 1, "LSTM", 128, 128, 1, 2),
    ("silero_vad/data/silero_vad_16k_sequence.onnx", 1, "LSTM", 128, 128, 1, 1),
    ("silero_vad/data/silero_vad_openvino_16k.onnx", 1, "LSTM", 128, 128, 1, 1),
    ("ddddocr/common.onnx", 1, "LSTM", 512, 512, 2, 1),
    ("ddddocr/common_old.onnx", 1, "LSTM", 512, 512, 2, 1),
    ("piper/tashkeel/model.onnx", 9, "GRU", None, None, 2, 1),
]


@pytest.mark.parametrize(
    "name, count, kind, width, units, directions, paths", FILES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_parts_have_the_outputs_of_onnx_runtime(rng, name, count, kind, width, units, directions, paths):
    path = path_of(name)
    networks = lnrnn.from_onnx(path)
    ir = read(path)
    every = parts_of(ir)
    assert len(every) == count and {len(part.paths) for part in every} == {paths}
    networks = networks if count > 1 else {every[0].path: networks}
    for part in every:
        rnn = networks[part.path]
        assert (type(rnn).__name__, rnn.bidirectional) == (kind, directions == 2)
        assert width is None or (rnn.input_size, rnn.hidden_size) == (width, units)
        for each in (part, *part.same):  # branches have equal weights and their own nodes
            proto, _ = extracted(each, ir)
            x = rng.standard_normal((9, 4, rnn.input_size), dtype=np.float32)
            feed = {each.x.name: x.swapaxes(0, 1) if each.axes["x"] == "BTI" else x}
            lengths = None
            if each.lengths is not None:
                lengths = feed[each.lengths.name] = np.array([9, 1, 5, 9], np.int32)
            states = []
            for value in (*each.h0, *each.c0):
                if value is not None:
                    states.append(rng.uniform(-0.9, 0.9, (directions, 4, rnn.hidden_size)).astype(np.float32))
                    feed[value.name] = states[-1]
            assert len(states) in (0, 2)
            ours = outputs(rnn, x, *states, lengths=lengths)
            theirs = run(proto, feed)
            names = {
                v.name: key for v, key in ((each.h[0], "Y_h"), *((v, "Y_c") for v in each.c)) if v is not None
            }
            if each.y is not None:
                names[each.y.name] = "Y"
                y = ours["Y"].swapaxes(1, 2).reshape(9, 4, -1)
                ours["Y"] = {"TBH": y, "BTH": y.swapaxes(0, 1), "TDBH": ours["Y"]}[each.axes["y"]]
            agree(ours, {names[key]: value for key, value in theirs.items()}, 1e-5)


def test_a_whole_sequence_of_silero_has_the_outputs_of_its_steps(rng):
    """The file of one step and the file of a sequence have the same weights."""
    step = lnrnn.from_onnx(path_of("silero_vad/data/silero_vad_openvino_16k.onnx"))
    whole = lnrnn.from_onnx(path_of("silero_vad/data/silero_vad_16k_sequence.onnx"))
    x = rng.standard_normal((20, 2, 128), dtype=np.float32)
    np.testing.assert_allclose(step(x)[0], whole(x)[0], atol=1e-6)


def test_a_step_of_silero_in_plain_operators_has_the_outputs_of_onnx_runtime(rng):
    path = path_of("silero_vad/data/silero_vad_op18_ifless.onnx")
    ir, networks = read(path), lnrnn.from_onnx(path)
    every = parts_of(ir)
    assert [part.kind for part in every] == ["LSTM step"] * 2 and len(networks) == 2
    for part in every:
        x, h, c = rng.uniform(-0.9, 0.9, (3, 4, 128)).astype(np.float32)
        values = part.x, *part.h0, *part.c0
        theirs = run(extracted(part, ir)[0], {v.name: a for v, a in zip(values, (x, h, c), strict=True)})
        _, (h, c) = networks[part.path](x[None], (h[None], c[None]))
        agree({part.h[0].name: h[0], part.c[0].name: c[0]}, theirs, 1e-5)


def test_loops_of_keras_have_the_outputs_of_onnx_runtime(rng):
    """nakdimon has two bidirectional LSTMs of 400 units. Each direction is a Loop with a mask."""
    path = path_of("piper/hebrew/nakdimon.onnx")
    ir, networks = read(path), lnrnn.from_onnx(path)
    every = parts_of(ir)
    assert [part.kind for part in every] == ["Loop of LSTM"] * 4
    assert [networks[part.path].reverse for part in every] == [False, True] * 2
    lengths = np.array([9, 1, 5, 7], np.int32)
    inside = np.arange(9)[:, None] < lengths
    for part in every:
        x = rng.standard_normal((9, 4, 400), dtype=np.float32)
        mask = inside[:, :, None] if part.axes["mask"] == "TBI" else inside
        feed = {part.x.name: x if part.axes["x"] == "TBI" else x.swapaxes(0, 1), part.mask.name: mask}
        state = rng.uniform(-0.9, 0.9, (1, 4, 400)).astype(np.float32)
        assert part.h0[0] is part.c0[0]  # the file has one value for both, which is 0
        feed[part.h0[0].name] = state[0]
        theirs = run(extracted(part, ir)[0], feed)[part.y.name]
        theirs = theirs[::-1] if part.flipped else theirs
        y, _ = networks[part.path](x, (state, state), lengths)
        assert np.abs(np.where(inside[:, :, None], theirs, 0) - y).max() < 1e-5
