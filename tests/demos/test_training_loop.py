"""The demos' training loop, with a model that writes down what it is given."""

from __future__ import annotations

import numpy as np

from lnrnn.demos.training import TrainingSettings, train


class Listener:
    def __init__(self):
        self.seen = []

    def parameters(self):
        return {"w": np.zeros(1, np.float32)}

    def set_parameters(self, values):
        pass

    def loss_and_gradients(self, x, lengths, labels):
        self.seen.append(x)
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
