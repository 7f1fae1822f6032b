"""Tests the study ``pixels``: sequences, noise, initial values, updates."""

import numpy as np
import pytest
from pixels import HIDDEN, NOISE, NORMS, PERMUTED, sequences, updates_to
from recurrent import PixelLSTM
from study_data import PIXELS

UPDATES = np.array([64, 128, 192, 256])


def pixel_lstm(name, start, seed):
    return PixelLSTM(HIDDEN, NORMS[name], start, seed, NOISE)


def test_updates_to_a_level_are_interpolated():
    assert updates_to(0.5, np.array([0.4, 0.6, 0.3, 0.9]), UPDATES) == pytest.approx(96)
    assert updates_to(0.5, np.array([0.8, 0.9, 0.9, 0.9]), UPDATES) == pytest.approx(40)
    assert updates_to(0.6, np.array([0.4, 0.6, 0.3, 0.9]), UPDATES) == pytest.approx(128)
    assert updates_to(0.95, np.array([0.4, 0.6, 0.3, 0.9]), UPDATES) == 256


def test_sequences_are_the_pixels_one_by_one(rng):
    images = rng.standard_normal((3, PIXELS))
    in_order, permuted = sequences(images), sequences(images, PERMUTED)
    assert in_order.shape == permuted.shape == (PIXELS, 3, 1)
    np.testing.assert_array_equal(in_order[:, 1, 0], images[1])
    np.testing.assert_array_equal(np.sort(permuted, axis=0), np.sort(in_order, axis=0))
    assert not np.array_equal(permuted, in_order)


@pytest.mark.parametrize("name", NORMS)
def test_training_starts_from_noise_and_inference_from_zeros(name, rng):
    x = rng.standard_normal((PIXELS, 8, 1)).astype(np.float32)
    lstm = pixel_lstm(name, 1.0, 3)
    h0, c0 = lstm.forward_train(x)[2].start
    assert 0.05 < h0.std() < 0.15 and not c0.any()
    zeros = np.zeros((1, 8, HIDDEN), np.float32)
    np.testing.assert_array_equal(lstm(x)[0], lstm(x, (zeros, zeros))[0])


def test_calibration_uses_all_images_and_no_noise(rng):
    x = rng.standard_normal((PIXELS, 8, 1)).astype(np.float32)
    a, b = pixel_lstm("BN", 0.1, 0), pixel_lstm("BN", 0.1, 0)
    a.calibrate_noisily(x, 0)
    state = a.state_dict()
    product = x @ a.parameters()["weight_ih_l0"].T
    np.testing.assert_allclose(state["running_mean_ih_l0"], product.mean(axis=1), atol=1e-6)
    np.testing.assert_allclose(state["running_var_ih_l0"], product.var(axis=1), rtol=1e-4)
    np.testing.assert_array_equal(a.forward_train(x)[0], b.forward_train(x)[0])
