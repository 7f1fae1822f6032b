"""Tests the study ``dynamics``: sizes, drifts and gradients of known cases."""

import numpy as np
import pytest
import recurrent

import lnrnn


def small_run(nonlinearity, gain, steps=40):
    rng = np.random.default_rng(0)
    rnn = recurrent.bare_rnn(nonlinearity, 0.9, gain, recurrent.recurrent_weights(rng, 8), np.zeros((8, 2)))
    h0, gradient = (rng.standard_normal((1, 3, 8), dtype=np.float32) for _ in range(2))
    return rnn, np.zeros((steps, 3, 2), np.float32), h0, gradient


def scaled_identity(scale):
    rnn = lnrnn.RNN(2, 8, norm=None, bias=False, nonlinearity="identity", seed=0)
    rnn.weight_hh_l0 = scale * np.eye(8, dtype=np.float32)
    return rnn


def test_sizes_stay_within_the_range_of_float32():
    assert recurrent.log_size(np.array([[3.0, 4.0]])) == pytest.approx(np.log10(12.5**0.5))
    assert recurrent.log_size(np.array([[10.0, 10.0], [0.1, 0.1]])) == pytest.approx(0)
    assert recurrent.log_size(np.zeros((1, 2))) == recurrent.SMALLEST
    assert recurrent.log_size(np.array([[np.inf, 1.0]])) == recurrent.LARGEST
    assert recurrent.log_size(np.array([[np.nan, 1.0]])) == recurrent.LARGEST


@pytest.mark.parametrize("nonlinearity", ["identity", "tanh"])
@pytest.mark.parametrize("gain", [None, 1.0])
def test_the_gradient_in_parts_equals_the_whole(nonlinearity, gain):
    rnn, x, h0, gradient = small_run(nonlinearity, gain)
    (states, gradients), _ = recurrent.run(rnn, x, h0, gradient)
    unit = gradient / np.linalg.norm(gradient, axis=-1, keepdims=True)
    for place, steps in enumerate((10, 20, 30, 40)):
        h = rnn.forward_train(x[: len(x) - steps], h0)[1] if steps < len(x) else h0
        tape = rnn.forward_train(x[len(x) - steps :], h)[2]
        size = np.log10(np.linalg.norm(rnn.backward(tape, None, unit)[1][0], axis=-1)).mean()
        assert gradients[place] == pytest.approx(size, abs=1e-4)
    end = rnn(x, h0)[1]
    assert states[-1] == pytest.approx(np.log10(np.sqrt((end[0] ** 2).mean(axis=-1))).mean(), abs=1e-5)


def test_a_scaled_identity_drifts_by_its_radius():
    _, x, h0, gradient = small_run("identity", None)
    paths, _ = recurrent.run(scaled_identity(0.5), x, h0, gradient)
    np.testing.assert_allclose(paths[:, -1] - paths[:, 0], 30 * np.log10(0.5), atol=1e-5)


def test_gradients_do_not_overflow():
    _, x, h0, gradient = small_run("identity", None, steps=2000)
    (states, gradients), _ = recurrent.run(scaled_identity(2), x, h0, gradient)
    assert states[-1] == recurrent.LARGEST
    assert gradients[-1] == pytest.approx(2000 * np.log10(2), abs=1e-3)


def test_units_are_saturated_if_the_slope_is_below_a_tenth():
    rnn, _, _, gradient = small_run("tanh", None)
    rnn.weight_hh_l0 = 1e-3 * np.eye(8, dtype=np.float32)
    rnn.weight_ih_l0 = np.repeat([[1.0, 0], [2.0, 0]], 4, axis=0)  # tanh 1 = 0.76, tanh 2 = 0.96
    x = np.ones((120, 3, 2), np.float32)
    assert recurrent.run(rnn, x, np.zeros((1, 3, 8), np.float32), gradient)[1] == 0.5
