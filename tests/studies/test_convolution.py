"""Tests the study ``convolution``: gradients of its network, its measures."""

import measures
import numpy as np
import pytest
from common import NORMS
from nets import CHANNELS, SIDE, STRIDES, ConvolutionalNetwork, add_patches, patches

EVERY_NORM = pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)


def direct(x, weight, stride):
    """Returns the float64 convolution of x (B, side, side, inputs) and weight (outputs, 3, 3, inputs) by
    definition."""
    count, side = len(x), x.shape[1] // stride
    padded = np.zeros((count, x.shape[1] + 2, x.shape[2] + 2, x.shape[3]))
    padded[:, 1:-1, 1:-1] = x
    found = np.zeros((count, side, side, len(weight)))
    for row, column in np.ndindex(side, side):
        patch = padded[:, row * stride : row * stride + 3, column * stride : column * stride + 3]
        found[:, row, column] = np.tensordot(patch, weight, ([1, 2, 3], [1, 2, 3]))
    return found


@pytest.mark.parametrize("stride", [1, 2])
def test_patches_times_weights_equal_the_convolution(stride):
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((2, 8, 8, 2)), rng.standard_normal((3, 3, 3, 2))
    seen = patches(x, stride)
    product = np.tensordot(seen, weight, ([3, 4, 5], [1, 2, 3]))
    np.testing.assert_allclose(product, direct(x, weight, stride), atol=1e-12)
    # add_patches, which computes the gradient, must be the transpose of the convolution.
    g = rng.standard_normal(seen.shape)
    assert (add_patches(g, stride) * x).sum() == pytest.approx((g * seen).sum())


def varied(norm):
    network, rng = ConvolutionalNetwork(norm, 0), np.random.default_rng(5)
    for name, value in network.parameters().items():
        network.values[name] = value + 0.1 * rng.standard_normal(value.shape, dtype=np.float32)
    return network


def batch(count=12):
    rng = np.random.default_rng(1)
    return rng.uniform(0, 1, (count, SIDE**2)).astype(np.float32), rng.integers(0, 10, count)


def by_definition(network, x):
    """Returns the logits in training mode, in float64."""
    values = {name: value.astype(np.float64) for name, value in network.parameters().items()}
    h = x.reshape(-1, SIDE, SIDE, 1).astype(np.float64)
    over = {"batch": (0, 1, 2), "layer": (1, 2, 3)}
    for layer, (channels, stride) in enumerate(zip(CHANNELS, STRIDES, strict=True)):
        z = direct(h, values[f"weight_{layer}"].reshape(channels, 3, 3, -1), stride)
        if network.norm:
            mean, var = (f(z, axis=over[network.norm], keepdims=True) for f in (np.mean, np.var))
            z = values[f"gain_{layer}"] * (z - mean) / np.sqrt(var + 1e-5)
        h = np.maximum(z + values[f"bias_{layer}"], 0)
    return h.reshape(len(h), -1) @ values["head_weight"].T + values["head_bias"]


def loss_of(logits, labels):
    logits = logits - logits.max(axis=1, keepdims=True)
    log_probability = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return -log_probability[np.arange(len(labels)), labels].mean()


@EVERY_NORM
def test_the_gradient_is_the_slope_of_the_defined_loss(norm):
    x, labels = batch()
    network = varied(norm)
    loss, gradients = network.loss_and_gradients(x[None], np.ones(12, int), labels)
    assert loss == pytest.approx(loss_of(by_definition(network, x), labels), rel=1e-4)
    np.testing.assert_array_equal(network.right[0], by_definition(network, x).argmax(axis=1) == labels)
    start = network.parameters()
    assert gradients.keys() == start.keys()
    for name, gradient in gradients.items():
        assert gradient.shape == start[name].shape
        size = float(np.linalg.norm(gradient))
        assert size > 1e-3, name
        found = []
        for sign in (1, -1):
            network.values[name] = start[name].astype(np.float64) + sign * 1e-4 * gradient / size
            found.append(loss_of(by_definition(network, x), labels))
        network.values[name] = start[name]
        # The slope of the loss along the gradient equals the gradient's length. It may differ by 2 %, because
        # some ReLUs switch.
        assert (found[0] - found[1]) / 2e-4 == pytest.approx(size, rel=2e-2), name


@EVERY_NORM
def test_inference_equals_training_but_for_batch_norm(norm):
    x, labels = batch(64)
    network = varied(norm)
    if norm == "batch":
        before = network.logits(x)
        for _ in range(150):
            network.loss_and_gradients(x[None], np.ones(64, int), labels)
        assert np.abs(before - network.logits(x)).max() > 0.1
    tolerance = 0.02 if norm == "batch" else 1e-4  # because running variances are unbiased
    np.testing.assert_allclose(network.logits(x), by_definition(network, x), rtol=0, atol=tolerance)


def test_images_are_counted_until_the_first_window_above_the_target():
    right = np.zeros((3, 10), bool)
    right[0, 4:] = True
    right[1, [1, 2, 3, 6]] = True
    np.testing.assert_array_equal(measures.images_until(right, 1.0, 3), [7, 4, 10])
    np.testing.assert_array_equal(measures.images_until(right, 0.5, 4), [6, 4, 10])
    np.testing.assert_allclose(measures.running_share(right[:1], 5)[0], [0.2, 0.4, 0.6, 0.8, 1, 1])


def test_the_border_is_the_outermost_ring():
    on = np.zeros((2, SIDE, SIDE))
    on[1, 0], on[1, :, 7] = 0.28, 0.28
    border, inside = measures.border_and_inside(on)
    np.testing.assert_allclose(border, [0, 0.28 * 15 / 28])
    np.testing.assert_allclose(inside, 0)
