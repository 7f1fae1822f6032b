"""Tests the study ``pixels``: sequences, noise, initial values, updates."""

import numpy as np
import pytest
from common import PIXELS, load_digits
from pixels import HIDDEN, IN_ORDER, NORMS, PERMUTED, PixelLSTM, sequences, trained, updates_to

UPDATES = np.array([64, 128, 192, 256])


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
    lstm = PixelLSTM(name, 1.0, 3)
    h0, c0 = lstm.forward_train(x)[2].start
    assert 0.05 < h0.std() < 0.15 and not c0.any()
    zeros = np.zeros((1, 8, HIDDEN), np.float32)
    np.testing.assert_array_equal(lstm(x)[0], lstm(x, (zeros, zeros))[0])


@pytest.mark.parametrize("name", NORMS)
def test_only_the_forget_gates_have_a_bias_at_first(name):
    biases = [value for key, value in PixelLSTM(name, 1.0, 0).parameters().items() if key.startswith("bias")]
    forget = sum(bias[HIDDEN : 2 * HIDDEN] for bias in biases if len(bias) == 4 * HIDDEN)
    np.testing.assert_array_equal(forget, 1)
    assert sum(float(np.abs(bias).sum()) for bias in biases) == HIDDEN


def test_the_initial_scale_is_of_the_gains_or_without_norm_of_the_weights():
    for name in NORMS:
        one, three = (PixelLSTM(name, start, 0).parameters() for start in (1.0, 3.0))
        for key, value in one.items():
            scaled = key.startswith("gain" if NORMS[name] else "weight")
            np.testing.assert_allclose(three[key], (3 if scaled else 1) * value, rtol=1e-6)


def test_calibration_uses_all_images_and_no_noise(rng):
    x = rng.standard_normal((PIXELS, 8, 1)).astype(np.float32)
    a, b = PixelLSTM("BN", 0.1, 0), PixelLSTM("BN", 0.1, 0)
    a.calibrate_noisily(x, 0)
    state = a.state_dict()
    product = x @ a.parameters()["weight_ih_l0"].T
    np.testing.assert_allclose(state["running_mean_ih_l0"], product.mean(axis=1), atol=1e-6)
    np.testing.assert_allclose(state["running_var_ih_l0"], product.var(axis=1), rtol=1e-4)
    np.testing.assert_array_equal(a.forward_train(x)[0], b.forward_train(x)[0])


def test_layer_norm_of_one_input_keeps_only_its_sign(rng):
    """W_ih x has one input, a pixel. So the study normalises the sum W_ih x + W_hh h."""
    images = rng.uniform(50, 100, (6, PIXELS)) * rng.choice([-1, 1], (6, PIXELS))
    x, signs = (sequences(array).astype(np.float32) for array in (images, np.sign(images)))
    lstm = PixelLSTM("LN", 1.0, 0)
    assert np.abs(lstm(x)[0] - lstm(signs)[0]).max() > 0.1


def test_a_training_reports_accuracies_and_is_reproducible():
    data = load_digits()
    network, curve = trained(data, "BN", IN_ORDER, (0.01, 0.1), 0, epochs=3, images=60, every=2)
    again, _ = trained(data, "BN", IN_ORDER, (0.01, 0.1), 0, epochs=3, images=60, every=3)
    assert curve.shape == (2,)
    x = sequences(data.test_x[:50])
    np.testing.assert_array_equal(network.rnn(x)[0], again.rnn(x)[0])
