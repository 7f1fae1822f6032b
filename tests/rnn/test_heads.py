"""Heads are separate, also where they are rounded. tests/conformance compares with a dense W_hh."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from networks import network, normal, same
from short_weights import int8_product

CELLS = ("LSTM", "GRU")
each_cell = pytest.mark.parametrize("cell", CELLS)
# (units, heads). The units of a head are a multiple of every vector's width, or no multiple, or one unit.
SIZES = ((96, 3), (50, 2), (20, 5), (7, 7))


@each_cell
def test_a_head_does_not_see_another(family, rng, cell):
    """A NaN in the h of one head does not reach another head, even if one vector has values of both."""
    for hidden, heads in SIZES:
        rnn, units = network(3, hidden, cell=cell, norm=None, num_heads=heads), hidden // heads
        x, h0 = normal(rng, 5, 2, 3), normal(rng, 1, 2, hidden)
        with_nan = h0.copy()
        with_nan[0, 0, units - 1] = np.nan
        states = [(h, np.zeros_like(h)) if cell == "LSTM" else h for h in (h0, with_nan)]
        want, got = (rnn(x, state)[0] for state in states)
        assert np.isnan(got[:, 0, :units]).all()
        same(got[:, 0, units:], want[:, 0, units:])
        same(got[:, 1], want[:, 1])


@pytest.mark.parametrize("bits", [14, 8])
def test_int8_rounds_each_head_by_itself(family, rng, bits):
    """In a row of h, each head is rounded to int8 with its own scale."""
    for hidden, heads in SIZES:
        rnn, units = network(3, hidden, cell="GRU", norm=None, num_heads=heads), hidden // heads
        rnn.weight_ih_l0 = np.zeros((3 * hidden, 3))
        h0 = normal(rng, 1, 4, hidden)
        blocks = np.split(rnn.weight_hh_l0.reshape(3, heads, units, units), heads, axis=1)
        parts = [
            int8_product(h0[0, :, k * units : (k + 1) * units], block.reshape(-1, units), bits)
            for k, block in enumerate(blocks)
        ]
        a = np.stack([part.reshape(4, 3, units) for part in parts], axis=2).reshape(4, 3, hidden)
        a = a.astype(float) + rnn.bias_hh_l0.reshape(3, hidden)
        b = rnn.bias_ih_l0.reshape(3, hidden).astype(float)
        r, z = (1 / (1 + np.exp(-(a[:, k] + b[k]))) for k in range(2))
        want = (1 - z) * np.tanh(b[2] + r * a[:, 2]) + z * h0[0]
        got = rnn.to_dtype("int8", activation_bits=bits)(np.zeros((1, 4, 3)), h0)[0][0]
        assert np.abs(got - want).max() < 2e-6


@each_cell
def test_initial_values_of_heads_are_uniform(cell):
    """As in a dense network with H units, initial values are uniform from -1 / sqrt(H) to 1 / sqrt(H)."""
    rnn = getattr(lnrnn, cell)(3, 64, num_heads=4, seed=0)
    values = rnn.weight_hh_l0
    assert values.shape == ({"LSTM": 4, "GRU": 3}[cell] * 64, 16)
    assert 0.12 < np.abs(values).max() <= 0.125
