"""Tests the study ``definitions``: its measures on known cases."""

import measures
import numpy as np
import pytest
from definitions import SIZES
from nets import FeedForward, train


@pytest.fixture
def frames(rng):
    return (rng.standard_normal((500, 3)) * [1, 2, 3] + [1, 0, -2]).astype(np.float32)


def test_formulas_equal_results_by_hand(frames):
    found = measures.norms_by_hand(frames, 32, 0)
    assert found["LN alone"] == found["exchanged"] == 0
    assert all(value < 1e-10 for name, value in found.items() if name != "unbiased")
    assert found["unbiased"] < 1e-6


def test_both_definitions_of_momentum(frames):
    found = measures.momentum(frames, (0.0, 0.1, 0.9, 1.0, None), 32, 0, batches=5)
    torch, other = found["torch"], found["other"]
    assert torch["0.0"] == [0] * 5 == other["1.0"]
    assert torch["1.0"][-1] == pytest.approx(found["last"]) == other["0.0"][-1]
    assert torch["None"][-1] == pytest.approx(found["all"], rel=1e-5)
    np.testing.assert_allclose(torch["0.1"], other["0.9"], rtol=1e-5)


def test_errors_of_gaussian_numbers_decrease_with_the_root_of_the_size(frames):
    found = measures.statistics_errors(frames, SIZES, 0)
    np.testing.assert_allclose(found["mean"] * np.sqrt(SIZES), 1, atol=0.1)
    # The mean squared error of the biased variance of b Gaussian numbers is (2 b - 1) / b^2.
    sizes = np.array(SIZES)
    np.testing.assert_allclose(found["variance"], np.sqrt(2 * sizes - 1) / sizes, rtol=0.15)


def test_fixed_gains_and_biases_are_not_trained(rng):
    x = rng.standard_normal((64, 64)).astype(np.float32)
    labels = np.arange(64) % 10
    networks = [kind([0, 1], "batch", (64, 4, 4, 10)) for kind in (FeedForward, measures.Fixed)]
    before = networks[0].values.copy()
    for network in networks:
        train(network, x, labels, [np.arange(64)] * 2, [0, 1], [0.01] * 2, 16, 2)
    for network, fixed in zip(networks, (False, True), strict=True):
        *hidden, last = network.layers(network.values)
        for layer in hidden:
            assert ((layer.gain == 1).all() and (layer.bias == 0).all()) == fixed
        assert (last.bias != 0).all()
        moved = np.mean(network.values != before)
        assert moved > 0.9 if fixed else moved > 0.99


def test_shapes_of_gaussian_input(rng):
    """If x is Gaussian, the summed inputs are Gaussian in the first layer, but not after a ReLU."""
    networks = FeedForward([0, 1], "batch", (64, 200, 4, 10))
    found = measures.shapes(networks, rng.standard_normal((800, 64)).astype(np.float32), [0, 1])
    assert found["skewness"] == pytest.approx(found["of Gaussian numbers"], rel=0.15)
    assert found["change"].max() < 1e-4 and found["rejected"].max() < 0.1
    assert np.sum(found["share"] * np.diff(found["edges"])) == pytest.approx(1)


def test_multiply_adds_are_counted():
    networks = FeedForward([0], "batch")
    weights = [layer.weight.size for layer in networks.layers(networks.values)]
    assert measures.multiply_adds(8, 100, networks.sizes) == (3 * 8 * sum(weights), 100 * sum(weights[:2]))
