"""Converts the models of the packages silero-vad, ddddocr and piper-tts. Skipped for those not installed.

piper-tts has a model of torch (tashkeel, for Arabic) and one of Keras (nakdimon, for Hebrew), and no voices.
support/onnx_packages.py says how to install the packages for these tests.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx_ir")
pytest.importorskip("onnxruntime")

import lnrnn  # noqa: E402
from lnrnn.onnx.parts import parts_of  # noqa: E402
from lnrnn.onnx.proof import prove  # noqa: E402
from lnrnn.onnx.reading import read  # noqa: E402
from onnx_packages import path_of  # noqa: E402

# (file, number of parts with different weights, kind, inputs, units, directions, paths of each part).
# The Loops of Keras have masks.
FILES = [
    ("silero_vad/data/silero_vad.onnx", 2, "LSTM", 128, 128, 1, 2),
    ("silero_vad/data/silero_vad_16k_op15.onnx", 1, "LSTM", 128, 128, 1, 2),
    ("silero_vad/data/silero_vad_half.onnx", 1, "LSTM", 128, 128, 1, 2),
    ("silero_vad/data/silero_vad_16k_sequence.onnx", 1, "LSTM", 128, 128, 1, 1),
    ("silero_vad/data/silero_vad_openvino_16k.onnx", 1, "LSTM", 128, 128, 1, 1),
    ("silero_vad/data/silero_vad_op18_ifless.onnx", 2, "LSTM step", 128, 128, 1, 1),
    ("ddddocr/common.onnx", 1, "LSTM", 512, 512, 2, 1),
    ("ddddocr/common_old.onnx", 1, "LSTM", 512, 512, 2, 1),
    ("piper/tashkeel/model.onnx", 9, "GRU", None, None, 2, 1),
    ("piper/hebrew/nakdimon.onnx", 4, "Loop of LSTM", None, 400, 1, 1),
]


@pytest.mark.parametrize(
    "name, count, kind, width, units, directions, paths", FILES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_parts_have_the_outputs_of_onnx_runtime(name, count, kind, width, units, directions, paths):
    model = read(path_of(name))
    every = parts_of(model)
    assert len(every) == count and {len(part.paths) for part in every} == {paths}
    for part in every:
        rnn = part.network
        assert (part.kind, 1 + rnn.bidirectional) == (kind, directions)
        assert width in (None, rnn.input_size) and units in (None, rnn.hidden_size)
        for each in (part, *part.same):  # branches have equal weights and their own nodes
            assert prove(each, model) == ""
    if "nakdimon" in name:
        assert [part.network.reverse for part in every] == [False, True] * 2


def test_a_whole_sequence_of_silero_has_the_outputs_of_its_steps(rng):
    """The file of one step and the file of a sequence have the same weights."""
    step = lnrnn.from_onnx(path_of("silero_vad/data/silero_vad_openvino_16k.onnx"))
    whole = lnrnn.from_onnx(path_of("silero_vad/data/silero_vad_16k_sequence.onnx"))
    x = rng.standard_normal((20, 2, 128), dtype=np.float32)
    np.testing.assert_allclose(step(x)[0], whole(x)[0], atol=1e-6)
