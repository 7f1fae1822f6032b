"""Compares the reference's masks and zoneout with results by hand, loops and central differences."""

from __future__ import annotations

from functools import partial
from math import tanh

import numpy as np
import pytest

from helpers import absolute_error
from lnrnn import reference as ref
from reference_cells import CELLS, PER_STEP, assert_gradients, backward, draw, forward, statistics_of

SAME = 1e-14

each_cell = pytest.mark.parametrize("name", CELLS)


def masks_of(name, rng, t, b, h, kinds):
    """Returns {argument: masks or rates}. kinds: "states" for masks of states, "mask" or "rate" for
    zoneout."""
    found = {}
    if "states" in kinds:
        found["states_mask"] = (rng.random((b, h)) < 0.6) / 0.6
    if "mask" in kinds or "rate" in kinds:
        drawn = [
            (rng.random((t, b, h)) < 0.4).astype(float) if "mask" in kinds else 0.1 + 0.3 * k
            for k in range(2)
        ]
        found["zoneout"] = tuple(drawn) if name.startswith("lstm") else drawn[0]
    return found


def test_a_mask_of_states_by_hand():
    """h1 = tanh(x + W (m h0)), with a mask m of one of two hidden units. Zoneout keeps h0, not m h0."""
    w = np.array([[0.5, 2], [0.25, -1]])
    x, h0 = np.array([[[1.0, -1]]]), np.array([[0.5, 0.75]])
    made = [tanh(1 + 0.5 * 2 * 0.5), tanh(-1 + 0.25 * 2 * 0.5)]
    options = dict(norm=None, h0=h0, states_mask=[[2, 0]])
    y, _, _ = ref.rnn(x, np.eye(2), w, **options)
    np.testing.assert_allclose(y[0, 0], made, rtol=1e-15)
    y, h, _ = ref.rnn(x, np.eye(2), w, zoneout=[[[1.0, 0]]], **options)
    np.testing.assert_allclose(y[0, 0], [0.5, made[1]], rtol=1e-15)
    np.testing.assert_array_equal(h, y[0])
    y, _, _ = ref.rnn(x, np.eye(2), w, zoneout=0.25, **options)
    np.testing.assert_allclose(y[0, 0], [0.125 + 0.75 * made[0], 0.1875 + 0.75 * made[1]], rtol=1e-15)


@pytest.mark.parametrize("cell", ["out", "carry"])
def test_zoneout_of_an_lstm_equals_a_loop_of_its_equations(cell):
    rng = np.random.default_rng(1)
    v, _ = draw("lstm split", rng, inner=False)
    masks = masks_of("lstm split", rng, 5, 4, 4, "mask")
    dh, dc = masks["zoneout"]
    y, (hn, cn), _ = forward("lstm split", v, cell=cell, eps=0.1, **masks)
    h, c = v["h0"], v["c0"]
    for t in range(5):
        a = ref.layer_norm(v["x"][t] @ v["weight_ih"].T, 16, v["gain_ih"], v["bias_ih"], 0.1)
        a = a + ref.layer_norm(h @ v["weight_hh"].T, 16, v["gain_hh"], v["bias_hh"], 0.1)
        i, f, g, o = np.split(a, 4, axis=1)
        raw = ref.sigmoid(f) * c + ref.sigmoid(i) * np.tanh(g)
        seen = ref.layer_norm(raw, 4, v["gain_c"], v["bias_c"], 0.1)
        h = dh[t] * h + (1 - dh[t]) * ref.sigmoid(o) * np.tanh(seen)
        c = dc[t] * c + (1 - dc[t]) * (seen if cell == "carry" else raw)
        assert absolute_error(y[t], h) < SAME
    assert absolute_error(hn, h) < SAME
    assert absolute_error(cn, c) < SAME


def test_a_mask_of_a_gru_does_not_affect_z_h():
    """A mask of zeros removes the product W_hh h from a GRU's step, but not the term z h."""
    rng = np.random.default_rng(2)
    v, _ = draw("gru plain", rng)
    y, _, _ = forward("gru plain", v, states_mask=np.zeros((4, 4)))
    h = v["h0"]
    for t in range(5):
        xr, xz, xn = np.split(v["x"][t] @ v["weight_ih"].T + v["bias_ih"], 3, axis=1)
        hr, hz, hn = np.split(v["bias_hh"], 3)
        z = ref.sigmoid(xz + hz)
        h = (1 - z) * np.tanh(xn + ref.sigmoid(xr + hr) * hn) + z * h
        assert absolute_error(y[t], h) < SAME


@each_cell
def test_masks_of_ones_and_zoneout_of_zero_change_nothing(name):
    v, lengths = draw(name, np.random.default_rng(3))
    pair = (lambda d: (d, d)) if name.startswith("lstm") else (lambda d: d)
    want, state, _ = forward(name, v, lengths=lengths)
    for zoneout in (pair(0.0), pair(np.zeros((5, 4, 4)))):
        y, end, _ = forward(name, v, lengths=lengths, states_mask=np.ones((4, 4)), zoneout=zoneout)
        np.testing.assert_array_equal(y, want)
        np.testing.assert_array_equal(end, state)
    if name not in PER_STEP:  # zoneout of all units: the state never changes
        y, end, _ = forward(name, v, zoneout=pair(1.0))
        np.testing.assert_array_equal(y, np.broadcast_to(v["h0"], y.shape))
        np.testing.assert_array_equal(end, [v[k] for k in ("h0", "c0") if k in v])


@each_cell
def test_masks_are_indexed_as_x_in_both_directions(name):
    """A reverse run with lengths equals a forward run of reversed sequences and masks."""
    rng = np.random.default_rng(4)
    v, lengths = draw(name, rng)
    masks = masks_of(name, rng, 5, 4, 4, ("states", "mask"))
    zoneout = masks.pop("zoneout")
    turn = lambda a: ref.reverse_sequences(a, lengths)  # noqa: E731
    turned = tuple(map(turn, zoneout)) if name.startswith("lstm") else turn(zoneout)
    y, state, _ = forward(name, v, lengths=lengths, reverse=True, zoneout=zoneout, **masks)
    want, end, _ = forward(name, v | {"x": turn(v["x"])}, lengths=lengths, zoneout=turned, **masks)
    np.testing.assert_array_equal(y, turn(want))
    np.testing.assert_array_equal(state, end)


@pytest.mark.parametrize("kinds, reverse", [(("rate",), False), (("states", "mask"), True)], ids=str)
@pytest.mark.parametrize("name", [*CELLS, *(f"{n} given" for n in PER_STEP)])
def test_gradients_with_masks_equal_central_differences(name, kinds, reverse):
    name, given = name.removesuffix(" given"), name.endswith(" given")
    rng = np.random.default_rng(5)
    v, lengths = draw(name, rng, t=4, i=2, h=3)
    options = dict(reverse=reverse, lengths=lengths, eps=1e-2) | masks_of(name, rng, 4, 4, 3, kinds)
    if given:
        options |= dict(statistics=statistics_of(name, rng, 4, h=3))
    assert_gradients(rng, lambda values: forward(name, values, **options), partial(backward, name), v)
