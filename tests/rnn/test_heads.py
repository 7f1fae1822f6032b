"""Networks with num_heads equal networks whose dense W_hh has zeros outside of the diagonal blocks."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from helpers import (
    absolute_error,
    available_isas,
    on_every_family,
    relative_error,
    using_isa,
)
from lnrnn.reference import block_diagonal, diagonal_blocks
from lnrnn.rnn.settings import snapshot
from networks import calm, drawn_run, equal, heads_of, network, normal, same, spec, trained
from short_weights import int8_product

CELLS = ("LSTM", "GRU")
each_cell = pytest.mark.parametrize("cell", CELLS)
NORMS = {"none": None, "layer": "layer", "batch": "batch"}
NORMS |= {place: spec(place, inner_bias=True) for place in ("split", "joint", "gate")}
# (units, heads). The units of a head are a multiple of every vector's width, or no multiple, or one unit.
SIZES = ((96, 3), (50, 2), (20, 5), (7, 7))


def dense(rnn):
    """Returns the same network with a dense W_hh."""
    names = ["input_size", "hidden_size", "num_layers", "norm", "bias", "bidirectional"]
    twin = type(rnn)(**{name: getattr(rnn, name) for name in names})
    state = rnn.state_dict()
    for name, value in state.items():
        if name.startswith("weight_hh"):
            state[name] = block_diagonal(value, rnn.num_heads)
    twin.load_state_dict(state)
    return twin


# A network with heads and the dense one add the terms of a gradient in different orders. The largest measured
# difference is 1.9e-6.
GRADIENT = 5e-6


@each_cell
@pytest.mark.parametrize("norm", [name for name in NORMS if name != "batch"])
def test_the_gradients_of_the_dense_network(rng, cell, norm):
    for hidden, heads in SIZES:
        options = dict(num_layers=2, bidirectional=True, norm=NORMS[norm], num_heads=heads)
        rnn = calm(3, hidden, cell=cell, **options)
        run = drawn_run(hidden, rnn, 9, [9, 4, 0, 9, 1])
        whole = trained(dense(rnn), *run)
        for isa, got in on_every_family(lambda rnn=rnn, run=run: trained(rnn, *run)).items():
            for name, g in got.items():
                blocks = name.startswith("weight_hh")
                want = diagonal_blocks(whole[name], heads) if blocks else whole[name]
                assert g.shape == want.shape and relative_error(g, want) < GRADIENT, (isa, name, hidden)


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


@pytest.mark.parametrize("name", available_isas())
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@each_cell
def test_rounded_weights_on_every_set(rng, name, dtype, cell):
    """Errors are about as large as those of a dense network."""
    with using_isa(name):
        for hidden, heads in SIZES:
            exact = calm(3, hidden, cell=cell, num_heads=heads)
            whole, rnn = dense(exact).to_dtype(dtype), exact.to_dtype(dtype)
            x = normal(rng, 9, 20, 3)
            error, usual = (absolute_error(r(x)[0], exact(x)[0]) for r in (rnn, whole))
            assert error < 3 * usual + 1e-6


@each_cell
def test_one_head_is_the_dense_network(rng, tmp_path, cell):
    """With num_heads=1 the files, repr and fingerprint of a network do not contain the argument."""
    pytest.importorskip("safetensors")
    made = getattr(lnrnn, cell)
    one, plain = made(3, 8, num_heads=1, seed=0), made(3, 8, seed=0)
    assert repr(one) == repr(plain) and "num_heads" not in repr(one)
    assert snapshot(one).fingerprint() == snapshot(plain).fingerprint()
    one.save(tmp_path / "one")
    assert b"num_heads" not in (tmp_path / "one").read_bytes()
    four = made(3, 8, num_heads=4, seed=0)
    four.save(tmp_path / "four")
    assert "num_heads=4" in repr(four) and snapshot(four).fingerprint() != snapshot(one).fingerprint()
    assert heads_of(lnrnn.load(tmp_path / "four")) == {"num_heads": 4}
    x = normal(rng, 5, 2, 3)
    equal(four, lnrnn.load(tmp_path / "four")(x), four(x))


@each_cell
def test_initial_values_of_heads_are_uniform(cell):
    """As in a dense network with H units, initial values are uniform from -1 / sqrt(H) to 1 / sqrt(H)."""
    rnn = getattr(lnrnn, cell)(3, 64, num_heads=4, seed=0)
    values = rnn.weight_hh_l0
    assert values.shape == ({"LSTM": 4, "GRU": 3}[cell] * 64, 16)
    assert 0.12 < np.abs(values).max() <= 0.125
