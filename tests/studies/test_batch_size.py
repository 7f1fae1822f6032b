"""Tests the study ``batch_size``: parts of its measurement."""

import batch_size
import numpy as np
import pytest
from nets import FeedForward
from study_data import load_digits


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


def test_accuracy_in_training_mode_counts_every_image_once():
    data, networks = load_digits(), FeedForward([0, 1], "batch")
    whole = (networks.logits(data.test_x, training=True).argmax(axis=2) == data.test_labels[:, None]).mean(0)
    np.testing.assert_array_equal(
        batch_size.accuracy_in_training_mode(networks, data, len(data.test_x)), whole
    )
    parts = batch_size.accuracy_in_training_mode(networks, data, 100) * len(data.test_x)
    np.testing.assert_allclose(parts, parts.round(), atol=1e-9)
