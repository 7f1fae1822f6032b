"""Converts the models of the packages silero-vad, ddddocr and piper-tts. Skipped for those not installed.

The packages are not imported. Their files may also be in the folder LNRNN_ONNX_MODELS.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx_ir")

import lnrnn  # noqa: E402
from lnrnn.onnx.extraction import extracted  # noqa: E402
from lnrnn.onnx.graph.reading import read  # noqa: E402
from lnrnn.onnx.parts import parts_of  # noqa: E402
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


def path_of(name):
    package, _, rest = name.partition("/")
    folders = [Path(p) for p in os.environ.get("LNRNN_ONNX_MODELS", "").split(os.pathsep) if p]
    spec = find_spec(package)
    folders += [Path(p).parent for p in spec.submodule_search_locations or ()] if spec else []
    path = next((p / name for p in folders if (p / name).is_file()), None)
    if path is None:
        pytest.skip(f"there is no {package} with {rest}")
    return path


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
            feed = {each.x.name: x}
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


def test_files_without_a_plain_node_have_no_plain_part():
    from lnrnn.onnx.nodes.plain import plain_parts

    for name in ("ddddocr/common_det.onnx", "piper/hebrew/nakdimon.onnx",
                 "silero_vad/data/silero_vad_op18_ifless.onnx"):  # fmt: skip
        assert plain_parts(read(path_of(name))) == []
