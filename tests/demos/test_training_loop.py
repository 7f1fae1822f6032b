"""The demos' training: the gradient, what is done with it, and the loop, with a model that writes down what
it is given."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import lnrnn
from lnrnn.data import pad_sequence
from lnrnn.demos import CELLS
from lnrnn.demos.cells import MODELS
from lnrnn.demos.classifier import SequenceClassifier
from lnrnn.demos.training import Adam, TrainingSettings, clip, train
from slopes import assert_slopes, mild


class Listener:
    """Stands for a model: keeps the batches that it is trained on, and learns nothing."""

    def __init__(self):
        self.seen = []

    def parameters(self):
        return {"w": np.zeros(1, np.float32)}

    def set_parameters(self, values):
        pass

    def loss_and_gradients(self, x, lengths, labels):
        self.seen.append(x.copy())
        return float(labels.mean()), {"w": np.zeros(1, np.float32)}


def listened(noise):
    """Five sequences in batches of three, twice."""
    model, settings = Listener(), TrainingSettings(2, 3, 0.1, 1.0, noise)
    x, lengths = np.zeros((4, 5, 2), np.float32), np.full(5, 4)
    return model.seen, train(model, x, lengths, np.arange(5.0), settings, np.random.default_rng(0))


def test_the_loss_of_an_epoch_is_the_mean_over_its_sequences():
    np.testing.assert_allclose(listened(0.0)[1], [2.0, 2.0], rtol=1e-12)


def test_noise_is_drawn_anew_for_every_epoch():
    seen, _ = listened(1.0)
    assert len(seen) == 4
    for first, second in zip(seen[:2], seen[2:], strict=True):
        assert not np.array_equal(first, second)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("norm", ["layer", "batch", None])
def test_the_gradient_is_the_slope_of_the_loss(cell, norm):
    rng = np.random.default_rng(5)
    model = SequenceClassifier(MODELS[cell](3, 8, norm=mild(cell, norm), seed=1), 4, rng)
    # Enough sequences at every step: batch norm over few of them bends too much for a difference to be the
    # slope.
    lengths = np.repeat([5, 4, 2], 10)
    x, lengths = pad_sequence([rng.standard_normal((steps, 3)) for steps in lengths])
    # Measured: 8e-4 off, curvature and float32 together.
    assert_slopes(model, (x, lengths, np.arange(30) % 4), rel=2e-3)


def test_the_answer_is_read_at_the_sequence_s_own_end():
    rng = np.random.default_rng(0)
    model = SequenceClassifier(lnrnn.RNN(3, 8, seed=1), 4, rng)
    sequences = [rng.standard_normal((steps, 3)) for steps in (9, 4, 6, 1)]
    x, lengths = pad_sequence(sequences)
    y, _ = model.rnn(x, lengths=lengths)
    ends = y[lengths - 1, np.arange(4)]
    assert model.predict(x, lengths).tolist() == model.logits(ends).argmax(axis=1).tolist()
    np.testing.assert_allclose(
        model.logits(ends), ends @ model.head_weight.T + model.head_bias, rtol=0, atol=1e-6
    )


def test_adam_takes_the_steps_of_the_paper():
    optimiser = Adam(0.1)
    value, first, second = np.float64(1.0), 0.0, 0.0
    parameters = {"w": np.array([1.0])}
    for step, gradient in enumerate([0.5, -2.0, 0.01], start=1):
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        value -= 0.1 * (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)) ** 0.5 + 1e-8)
        parameters = optimiser.step(parameters, {"w": np.array([gradient])})
        assert parameters["w"][0] == pytest.approx(value, rel=1e-12)


def test_clip_scales_all_gradients_by_one_factor():
    gradients = {"a": np.float32([3, 0]), "b": np.float32([[4]])}
    assert clip(gradients, 5.0) is gradients
    clipped = clip(gradients, 1.0)
    np.testing.assert_allclose(clipped["a"], [0.6, 0], rtol=1e-6)
    np.testing.assert_allclose(clipped["b"], [[0.8]], rtol=1e-6)


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_training_adds_noise_that_is_drawn_anew_for_every_batch(noise):
    x = np.full((50, 20, 12), 3, np.float32)
    settings = TrainingSettings(2, 10, 1e-2, 1.0, noise)
    model = Listener()
    train(model, x, np.full(20, 50), np.zeros(20, np.int64), settings, np.random.default_rng(0))
    assert len(model.seen) == 4 and (x == 3).all()
    for batch in model.seen:
        # 6000 values: five standard errors of their mean and of their standard deviation.
        assert abs(batch.mean() - 3) <= 5 * noise / 6000**0.5
        assert abs((batch - 3).std() - noise) <= 5 * noise / 12000**0.5
    if noise:
        apart = [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in pairwise(model.seen)]
        assert np.abs(apart).max() < 5 / 6000**0.5
