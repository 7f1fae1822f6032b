"""Tests hard sigmoids of LSTM and GRU: values beyond their limits, NaN, refused arguments."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from networks import network, normal

HARD = dict(norm=None, gate_activation="hard_sigmoid")
CELLS = {"LSTM": {}, "GRU": {}, "GRU reset before": dict(reset_after=False)}


@pytest.fixture(params=CELLS)
def rnn(request):
    return network(3, 21, cell=request.param.split()[0], **HARD, **CELLS[request.param])


def with_gates(rnn, value):
    """Returns the network with weights of 0, and biases that give all gates the argument `value`."""
    rnn.weight_ih_l0, rnn.weight_hh_l0 = 0 * rnn.weight_ih_l0, 0 * rnn.weight_hh_l0
    bias, H = np.full_like(rnn.bias_ih_l0, value), rnn.hidden_size
    bias[2 * H : 3 * H] = 0.5  # the candidate
    rnn.bias_ih_l0, rnn.bias_hh_l0 = bias, 0 * bias
    return rnn


@pytest.mark.parametrize(("value", "gate"), [(3, 1), (50, 1), (-3, 0), (-50, 0), (0, 0.5), (1.5, 0.75)])
def test_the_function_of_the_gates(isa, rnn, value, gate):
    h = np.full((1, 1, 21), 0.25, np.float32)
    state = (h, h) if isinstance(rnn, lnrnn.LSTM) else h
    y, _ = with_gates(rnn, value)(np.zeros((1, 1, 3)), state)
    if isinstance(rnn, lnrnn.LSTM):
        want = gate * np.tanh(gate * 0.25 + gate * np.tanh(0.5))
    else:
        want = gate * 0.25 + (1 - gate) * np.tanh(0.5)
    assert np.abs(y - want).max() < 2e-7


def test_slopes_are_0_beyond_the_limits(isa, rnn):
    x = normal(np.random.default_rng(0), 1, 2, 3)
    for value, moves in ((50, False), (-50, False), (0.5, True)):
        _, _, tape = with_gates(rnn, value).forward_train(x)
        grads = rnn.backward(tape, np.ones((1, 2, 21), np.float32))[2]
        bias, H = grads["bias_ih_l0"], rnn.hidden_size
        gates = np.concatenate([bias[:H], bias[-H:]]) if isinstance(rnn, lnrnn.LSTM) else bias[H : 2 * H]
        assert gates.any() == moves
