"""Tests the study ``batch_size``: parts of its measurement, and the statements of its page."""

import batch_size
import numpy as np
import pytest
from common import load_digits
from nets import FeedForward


@pytest.mark.parametrize("norm", [None, "layer", "batch"])
def test_weights_choose_the_images_that_count(norm):
    data = load_digits()
    x, labels = data.train_x[:12, None], data.train_labels[:12, None]
    weights = np.zeros((12, 1), np.float32)
    weights[3:7] = 1 / 4
    found = FeedForward([0], norm).losses_and_gradients(x, labels, weights)
    if norm != "batch":  # batch norm's statistics are over all images, so its images are not independent
        part = FeedForward([0], norm).losses_and_gradients(x[3:7], labels[3:7])
        np.testing.assert_allclose(found[0], part[0], rtol=1e-5)
        np.testing.assert_allclose(found[1], part[1], atol=1e-6)
    equal = np.full((12, 1), 1 / 12, np.float32)
    weighted, plain = (FeedForward([0], norm).losses_and_gradients(x, labels, w) for w in (equal, None))
    np.testing.assert_allclose(weighted[1], plain[1], atol=1e-6)


def test_statistics_without_noise_do_not_depend_on_the_batch():
    networks = [FeedForward([0], "batch") for _ in range(2)]
    data = load_digits()
    x, labels = data.train_x[:40, None], data.train_labels[:40, None]
    for network, counted in zip(networks, (slice(0, 8), slice(8, 16)), strict=True):
        weights = np.zeros((40, 1), np.float32)
        weights[counted] = 1 / 8
        network.losses_and_gradients(x, labels, weights)
    for first, second in zip(*(network.running for network in networks), strict=True):
        np.testing.assert_array_equal(first[0], second[0])


def test_accuracy_in_training_mode_counts_every_image_once():
    data, networks = load_digits(), FeedForward([0, 1], "batch")
    whole = (networks.logits(data.test_x, training=True).argmax(axis=2) == data.test_labels[:, None]).mean(0)
    np.testing.assert_array_equal(
        batch_size.accuracy_in_training_mode(networks, data, len(data.test_x)), whole
    )
    parts = batch_size.accuracy_in_training_mode(networks, data, 100) * len(data.test_x)
    np.testing.assert_allclose(parts, parts.round(), atol=1e-9)


def test_the_statements_of_the_page_hold():
    results = batch_size.STUDY.results()
    settings = batch_size.STUDY.kept()["settings"]
    highest = [case for case, rate in settings.items() if rate == max(batch_size.RATES)]
    assert sorted(highest) == ["BN, 256", "LN, 32", "no norm, 256"]

    def change(name, size):
        return round(100 * batch_size.change(results, name, size).mean(), 1)

    assert [change("LN", 4), change("LN", 2)] == [0.7, 0.7]
    assert [change("no norm", 4), change("no norm", 2)] == [1.3, 0.8]
    assert [change("BN", 4), round(change("BN", 2))] == [-1.5, -24]
    behind = [100 * batch_size.difference(results, name, "no norm", 4).mean() for name in ("BN", "LN")]
    assert np.round(behind, 1).tolist() == [-1.5, 0.0]
    in_training = results["own statistics"]["BN, 8"] - results["accuracy"]["BN, 8"]
    assert round(100 * in_training.mean(), 1) == -5.5
    for name in ("no norm", "LN", "BN"):
        assert results["training"][f"{name}, 32"].mean() > 0.999
        assert round(100 * results["accuracy"][f"{name}, 32"].mean()) == 96
