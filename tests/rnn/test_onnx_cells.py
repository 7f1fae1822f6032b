"""Runs ONNX's node tests of RNN, LSTM and GRU on every instruction set. Their source is in
tests/data/README.md.

"""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from helpers import absolute_error, onnx_cases
from networks import parts, whole

ORDERS = {"RNN": [0], "LSTM": [0, 2, 3, 1], "GRU": [1, 0, 2]}  # of our gates in ONNX's i, o, f, g and z, r, n
CASES = [case for op in ORDERS for case in onnx_cases(op)]
KINDS = {
    "LayerNormalization": 19, "RMSNormalization": 19, "BatchNormalization": 4, "RNN": 4, "LSTM": 4, "GRU": 4,
    "Exp": 2, "Tanh": 2, "Sigmoid": 2,
}  # fmt: skip


def test_the_data_has_all_node_tests():
    """tests/data has all node tests of ONNX 1.22 for these operators."""
    names = {op: [case["name"] for case in onnx_cases(op)] for op in KINDS}
    assert {op: len(set(found)) for op, found in names.items()} == KINDS


@pytest.mark.parametrize("case", CASES, ids=[c["name"].removeprefix("test_") for c in CASES])
def test_a_node_test_has_onnx_s_result(family, case):
    cell, inputs, batch_first = case["op"], case["inputs"], bool(case["attributes"].get("layout", 0))
    order, (_, rows, width) = ORDERS[cell], inputs["R"].shape

    def ours(a):
        return a.reshape(len(order), width, -1)[order].reshape(a.shape)

    b = inputs.get("B", np.zeros((1, 2 * rows), np.float32))[0]
    options = dict(reset_after=False) if cell == "GRU" else {}  # linear_before_reset is 0
    peepholes = {"peephole_l0": inputs["P"][0].reshape(3, width)[[0, 2, 1]].ravel()} if "P" in inputs else {}
    options |= dict(peepholes=True) if peepholes else {}
    rnn = getattr(lnrnn, cell)(inputs["X"].shape[-1], width, norm=None, batch_first=batch_first, **options)
    rnn.load_state_dict(
        {
            "weight_ih_l0": ours(inputs["W"][0]),
            "weight_hh_l0": ours(inputs["R"][0]),
            "bias_ih_l0": ours(b[:rows]),
            "bias_hh_l0": ours(b[rows:]),
            **peepholes,
        }
    )
    batch = inputs["X"].shape[0 if batch_first else 1]
    zeros = whole(rnn, [np.zeros((1, batch, width), np.float32) for _ in parts(rnn, None)])
    for h0 in (None, zeros):
        y, state = rnn(inputs["X"], h0)
        h = parts(rnn, state)[0]
        want = case["outputs"]["Y_h"]
        assert absolute_error(h.swapaxes(0, 1) if batch_first else h, want) < 3e-7
        if "Y" in case["outputs"]:
            assert absolute_error(y[:, :, None] if batch_first else y[:, None], case["outputs"]["Y"]) < 3e-7
