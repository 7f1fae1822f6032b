"""Tests subtractions that lose most digits in float32.

They occur in slopes of saturated activations, and between a state and an unbounded candidate. They also occur
in norms of values whose mean is much larger than their differences. All inputs are exact in float32, so the
float64 reference gets the same numbers.
"""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from helpers import relative_error
from networks import calm, parts, reference_backward, reference_forward, spec

each_cell = pytest.mark.parametrize("cell", ["RNN", "LSTM", "GRU"])


def test_the_slope_of_a_saturated_tanh_is_accurate(family):
    """The slope is 1 - y^2. The test uses values of y as near to 1 as float32 allows."""
    units = 37
    rnn = lnrnn.RNN(1, units, norm=None, seed=0)
    rnn.weight_ih_l0, rnn.weight_hh_l0 = np.linspace(1, 8, units)[:, None], np.zeros((units, units))
    rnn.bias_ih_l0, rnn.bias_hh_l0 = np.zeros(units), np.zeros(units)
    y, _, tape = rnn.forward_train(np.ones((1, 1, 1), np.float32))
    gradients = rnn.backward(tape, np.ones_like(y))[2]
    slope = (1 - y[0, 0].astype(float)) * (1 + y[0, 0].astype(float))
    assert slope.min() < 1e-6
    # The tolerance is the largest error that two roundings of float32 can cause.
    np.testing.assert_allclose(gradients["bias_hh_l0"], slope, rtol=2**-23)


# Arguments of a gate z, candidates n, and old states h. z or 1 - z is 0 in float32, or nearly 0.
GATES, CANDIDATES, STATES = (-200, -87, -20, 0, 20, 40), (10, -1e4, 1e8, 2e38, np.inf), (0.123, -2e38)


@pytest.mark.parametrize("cell", ["LiGRU", "GRU", "GRU reset", "GRU hard"])
@pytest.mark.parametrize("nonlinearity", ["relu", "identity"])
def test_a_state_is_kept_beside_a_large_candidate(family, cell, nonlinearity):
    """Each unit has its own gate, candidate and state. It may have two ULP of z, and a rounding of h."""
    a, n, h = (v.ravel() for v in np.meshgrid(GATES, CANDIDATES, STATES))
    (name, _, form), first = cell.partition(" "), int(cell[0] == "G")  # first: of z and n
    options = {"reset": dict(reset_after=False), "hard": dict(gate_activation="hard_sigmoid")}.get(form, {})
    rnn = getattr(lnrnn, name)(1, len(a), norm=None, nonlinearity=nonlinearity, seed=0, **options)
    gates = np.concatenate([0 * a] * first + [a, n])[:, None]
    for name, value in rnn.parameters().items():
        setattr(rnn, name, gates if name == "weight_ih_l0" else 0 * value)
    x, h0, gy = np.ones((1, 1, 1)), h[None, None].astype(np.float32), np.ones((1, 1, len(a)))
    y, _, tape = rnn.forward_train(x, h0)
    slopes = rnn.backward(tape, gy)[2]["bias_ih_l0"]
    got = np.stack([y[0, 0], *slopes.reshape(-1, len(a))[first:]])
    with np.errstate(all="ignore"):
        want, _, tapes = reference_forward(rnn, x, h0)
        slopes = reference_backward(rnn, tapes, gy)[2]["bias_ih_l0"]
        want = np.stack([want[0, 0], *slopes.reshape(-1, len(a))[first:]])
        z, n = (v[0] for v in tapes["_l0"].steps[0].kept[first : first + 2])
        of_z = np.minimum(1 - z, 2 * np.spacing(z.astype(np.float32)))
        allowed = of_z * np.stack([abs(n - h), abs(n - h), np.ones(len(a))]) + 2.0**-22 * abs(want)
        np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
        assert (abs(got - want) <= allowed)[np.isfinite(want)].all()
    np.testing.assert_array_equal(rnn(x, h0)[0], y)


# Inputs are integers near FAR, whose mean is not exact in float32.
FAR = 10_000


def one_step(rnn, rng, batch):
    """Returns x (1, batch, inputs) with which all values of W_ih x are integers near FAR. W_hh h is 0."""
    rnn.weight_hh_l0 = np.zeros(rnn.weight_hh_l0.shape)
    rows = len(rnn.weight_ih_l0)
    rnn.weight_ih_l0 = np.concatenate([np.full((rows, 1), FAR), rng.integers(-3, 4, (rows, 4))], 1)
    x = rng.integers(-2, 3, (1, batch, 5)).astype(np.float32)
    x[..., 0] = 1
    return x


@each_cell
@pytest.mark.parametrize("batch", [7, 33])
def test_backward_of_batch_norm_far_from_zero(family, cell, batch):
    """The kernels round the mean, near 10,000, to float32. The gradient must not contain this error."""
    rng = np.random.default_rng(2)
    rnn = calm(5, 33, cell=cell, norm="batch")
    x, gy = one_step(rnn, rng, batch), rng.standard_normal((1, batch, 33)).astype(np.float32) + np.float32(2)
    _, _, tape = rnn.forward_train(x)
    gx, _, got = rnn.backward(tape, gy)
    _, _, tapes = reference_forward(rnn, x, training=True)
    want_x, _, want = reference_backward(rnn, tapes, gy)
    for name in ("gain_l0", "gain_ih_l0", "bias_l0", "bias_hh_l0", "weight_ih_l0"):
        if name in want:
            # Measured at most: 7e-7.
            assert relative_error(got[name], want[name]) < 2e-6, name


@pytest.mark.parametrize("placement", ["gate", "joint", "split"])
@pytest.mark.parametrize("size", [1, 2.0**80])  # the squares of values times 2^80 overflow
@each_cell
def test_backward_of_layer_norm_far_from_zero(family, cell, size, placement):
    rng = np.random.default_rng(3)
    rnn = calm(5, 33, cell=cell, norm=spec(placement))
    x = one_step(rnn, rng, 9) * np.float32(size)
    y, h = rnn(x)
    want_y, want_h, _ = reference_forward(rnn, x)
    for got, want in zip((y, *parts(rnn, h)), (want_y, *parts(rnn, want_h)), strict=True):
        # Measured at most: 5e-7.
        assert relative_error(got, want) < 1e-6
