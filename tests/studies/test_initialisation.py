"""Tests the study ``initialisation``: its arithmetic."""

import initialisation
import numpy as np
from nets import Adam, FeedForward, Sgd, train
from study_data import load_digits


def test_an_update_of_sgd_is_the_rate_times_the_gradient():
    data, rate = load_digits(), 0.25
    networks, chosen = FeedForward([3], "layer"), np.arange(32)
    old = networks.values.copy()
    order = np.random.default_rng([1, 3]).permutation(chosen)[:, None]
    _, gradients, _ = networks.losses_and_gradients(data.train_x[order], data.train_labels[order])
    train(networks, data.train_x, data.train_labels, [chosen], [3], [rate], 32, 1, optimiser=Sgd)
    np.testing.assert_allclose(networks.values, old - rate * gradients, rtol=1e-6)
    adam = FeedForward([3], "layer")
    train(adam, data.train_x, data.train_labels, [chosen], [3], [rate], 32, 1, optimiser=Adam)
    assert np.abs(adam.values - networks.values).max() > 0.1


def test_updates_are_counted_until_the_first_above_the_target(monkeypatch):
    data = load_digits()
    x, labels = data.test_x[:200], data.test_labels[:200, None]
    monkeypatch.setattr(initialisation, "EPOCHS", 2)

    def updates(reached):
        monkeypatch.setattr(initialisation, "REACHED", reached)
        found, end = initialisation.updates_to_reach("LN", "Adam", [0, 1], [0.01] * 2, x, labels, False)
        return found, end

    everything, end = updates(1.01)
    np.testing.assert_array_equal(everything, 50)  # never reached: all updates count
    some, _ = updates(float(end.min()))
    assert (some <= 50).all() and (updates(0.3)[0] < some).all() and (updates(0.0)[0] == 1).all()
