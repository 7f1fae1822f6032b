"""Converts the nodes of ONNX Runtime's and OpenVINO's own tests. tests/data/README.md has the source."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx_ir")
from onnx import helper  # noqa: E402

import lnrnn  # noqa: E402
from onnx_files import FLOAT, INT32, model  # noqa: E402

INPUTS = ["X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"]
WEIGHTS = {"W", "R", "B", "P"}
OUTPUTS = ["Y", "Y_h", "Y_c"]
DATA = Path(__file__).parents[1] / "data/runtime_rnn_tests.json.gz"
CASES = json.loads(gzip.decompress(DATA.read_bytes()))
# One number of each of these tests has an error in the source, whose own tests permit it.
WRONG = {
    "onnxruntime LSTMTest.ONNXRuntime_TestLSTMShorterSeqInMiddle": 7e-5,
    "onnxruntime LSTMTest.ONNXRuntime_TestLSTMZeroSeqInMiddle": 7e-5,
}


def array(name, tensor):
    dtype = np.int32 if name == "sequence_lens" else np.float32
    return np.array(tensor["values"].split(), np.float64).astype(dtype).reshape(tensor["shape"])


def half_digit(number):
    """Returns half a unit of the last digit of a number in text."""
    digits, _, exponent = number.partition("e")
    return 0.5 * 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))


def agree(case, got):
    """Asserts that outputs by name have all digits of a test, but for the rounding of float32 sums."""
    assert set(case["outputs"]) <= set(got)
    for name, tensor in case["outputs"].items():
        want = np.array(tensor["values"].split(), np.float64).reshape(tensor["shape"])
        last = np.array([half_digit(n) for n in tensor["values"].split()]).reshape(want.shape)
        assert got[name].shape == want.shape
        assert (np.abs(got[name] - want) <= last + 1e-6 + WRONG.get(case["name"], 0)).all()


def proto(case):
    """Returns a model of one node. Its weights are initializers, its other inputs are inputs."""
    given = {name: array(name, tensor) for name, tensor in case["inputs"].items()}
    states = 1 + (case["op"] == "LSTM")
    names = [name if name in given else "" for name in INPUTS[: 4 + 2 * states]]
    outputs = [name if name in case["outputs"] else "" for name in OUTPUTS[: 1 + states]]
    node = helper.make_node(case["op"], names, outputs, "node", **case["attributes"])
    weights = {name: a for name, a in given.items() if name in WEIGHTS}
    inputs = {
        name: (INT32 if name == "sequence_lens" else FLOAT, a.shape)
        for name, a in given.items()
        if name not in WEIGHTS
    }
    return model([node], inputs, list(case["outputs"]), weights, case["opset"])


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_network_has_the_result_of_the_other_runtime(case):
    if "refused" in case:
        named = "|".join(case["refused"])
        with pytest.raises(ValueError, match=f"'node'.*({named})"):
            lnrnn.from_onnx(proto(case))
        return
    rnn = lnrnn.from_onnx(proto(case), check=False)
    given = {name: array(name, tensor) for name, tensor in case["inputs"].items()}
    start = given.get("initial_h")
    if case["op"] == "LSTM" and start is not None:
        start = start, given.get("initial_c", np.zeros_like(start))
    y, state = rnn(given["X"], start, lengths=given.get("sequence_lens"))
    y = y.reshape(*y.shape[:2], 1 + rnn.bidirectional, rnn.hidden_size).swapaxes(1, 2)
    agree(case, dict(zip(OUTPUTS, (y, *(state if isinstance(state, tuple) else (state,))), strict=False)))
