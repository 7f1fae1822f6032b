"""Converts the nodes of the tests of ONNX, ONNX Runtime and OpenVINO, and compares with their results.

The installed package onnx has tests of its own: 1.22 has 12, and 1.23 also has 6 of reverse and bidirectional
nodes. tests/data/README.md has the source of the others.
"""

from __future__ import annotations

import gzip
import importlib
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx_ir")
pytest.importorskip("onnxruntime")
from onnx import helper  # noqa: E402

import lnrnn  # noqa: E402
from onnx_files import FLOAT, INT32, model  # noqa: E402
from onnx_runs import outputs  # noqa: E402

INPUTS = ["X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"]
DATA = Path(__file__).parents[1] / "data/runtime_rnn_tests.json.gz"
# One number of each of these tests has an error in the source, whose own tests permit it.
WRONG = {
    "onnxruntime LSTMTest.ONNXRuntime_TestLSTMShorterSeqInMiddle": 7e-5,
    "onnxruntime LSTMTest.ONNXRuntime_TestLSTMZeroSeqInMiddle": 7e-5,
}


def half_digit(number):
    """Returns half a unit of the last digit of a number in text."""
    digits, _, exponent = number.partition("e")
    return 0.5 * 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))


def of_runtimes():
    """Yields (name, node, inputs, outputs, limits, opset, options that are refused) of each test."""
    for case in json.loads(gzip.decompress(DATA.read_bytes())):
        states = 1 + (case["op"] == "LSTM")
        names = [name if name in case["inputs"] else "" for name in INPUTS[: 4 + 2 * states]]
        ends = [name if name in case["outputs"] else "" for name in ["Y", "Y_h", "Y_c"][: 1 + states]]
        node = helper.make_node(case["op"], names, ends, "node", **case["attributes"])
        numbers, limits = {}, {}
        for name, tensor in (*case["inputs"].items(), *case["outputs"].items()):
            texts, shape = tensor["values"].split(), tensor["shape"]
            dtype = np.int32 if name == "sequence_lens" else np.float32 if name in names else np.float64
            numbers[name] = np.array(texts, np.float64).astype(dtype).reshape(shape)
            limits[name] = np.array([half_digit(n) for n in texts]).reshape(shape) + 1e-6
            limits[name] += WRONG.get(case["name"], 0)
        given, want = ({name: numbers[name] for name in case[key]} for key in ("inputs", "outputs"))
        yield case["name"], node, given, want, limits, case["opset"], case.get("refused")


def of_onnx():
    """Yields the same for the tests of the installed package."""
    found = {}
    for kind in ("rnn", "lstm", "gru"):
        module = importlib.import_module(f"onnx.backend.test.case.node.{kind}")
        original, module.expect = module.expect, lambda node, name, **more: found.update({name: (node, more)})
        for case in vars(module).values():
            for name in dir(case):
                if isinstance(case, type) and name.startswith("export"):
                    getattr(case, name)()
        module.expect = original
    assert len(found) >= 12
    for name, (node, case) in found.items():
        node.name = "node"
        given, want = (
            dict(zip([n for n in names if n], case[key], strict=True))
            for names, key in ((node.input, "inputs"), (node.output, "outputs"))
        )
        yield name, node, given, want, dict.fromkeys(want, 3e-7), 22, None


CASES = [*of_runtimes(), *of_onnx()]


@pytest.mark.parametrize("name, node, given, want, limits, opset, refused", CASES, ids=[c[0] for c in CASES])
def test_a_node_has_the_result_of_its_source(name, node, given, want, limits, opset, refused):
    weights = {key: a for key, a in given.items() if key in ("W", "R", "B", "P")}
    inputs = {key: (INT32 if key == "sequence_lens" else FLOAT, a.shape)
              for key, a in given.items() if key not in weights}  # fmt: skip
    proto = model([node], inputs, list(want), weights, opset)
    if refused:
        with pytest.raises(ValueError, match=f"'node'.*({'|'.join(refused)})"):
            lnrnn.from_onnx(proto)
        return
    rnn = lnrnn.from_onnx(proto, check=False)
    x, h0, c0 = (given.get(key) for key in ("X", "initial_h", "initial_c"))
    if rnn.batch_first:
        x, h0, c0 = (None if a is None else a.swapaxes(0, 1) for a in (x, h0, c0))
    if isinstance(rnn, lnrnn.LSTM) and h0 is not None and c0 is None:
        c0 = np.zeros_like(h0)
    got = outputs(rnn, x, h0, c0, given.get("sequence_lens"))
    if rnn.batch_first:
        got = {key: a.transpose(2, 0, 1, 3) if key == "Y" else a.swapaxes(0, 1) for key, a in got.items()}
    for key, right in want.items():
        assert got[key].shape == right.shape and (np.abs(got[key] - right) <= limits[key]).all()
