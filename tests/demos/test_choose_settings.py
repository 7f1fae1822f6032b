"""How the settings of the speaker networks are chosen."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lnrnn.data import Utterances
from lnrnn.demos import choose_settings, speakers
from lnrnn.demos.cells import CELLS
from lnrnn.demos.choose_settings import CHOSEN, FOLDS, best, grid, held_out_accuracy, settings_for
from lnrnn.demos.speakers import NORMS, TRAININGS


def test_every_network_has_a_choice_of_the_declared_grid_and_every_norm_as_many_trials():
    assert set(CHOSEN) == set(itertools.product(CELLS, TRAININGS, NORMS))
    assert all(choice in grid(norm) for (_, _, norm), choice in CHOSEN.items())
    assert {len(set(grid(norm))) for norm in NORMS} == {9}
    settings = settings_for("lstm", "whole utterances", None)
    assert (settings.training.learning_rate, settings.gain) == CHOSEN["lstm", "whole utterances", None]
    assert settings.cell == "lstm" and settings.hidden_size == 32


def test_the_best_is_the_first_of_equals():
    assert best([(1.0, 1.0), (2.0, 1.0), (3.0, 1.0)], [0.5, 0.9, 0.9]) == (2.0, 1.0)


@pytest.mark.parametrize("norm", NORMS)
def test_gains_or_without_a_norm_weights_start_scaled(norm):
    seen = {}
    for gain in (0.25, 1.0):
        settings = speakers.Settings(hidden_size=4, gain=gain).with_epochs(0)
        data = Utterances([np.random.default_rng(0).standard_normal((5, 2), np.float32)] * 3, np.arange(3))
        network = speakers.SpeakerNetwork(data, norm, settings, seed=0)
        seen[gain] = network.classifier.rnn.parameters()
    scaled = "gain" if norm else "weight"
    for name, value in seen[1.0].items():
        factor = np.float32(0.25 if name.startswith(scaled) else 1)
        assert np.array_equal(seen[0.25][name], factor * value), name
        assert scaled != "gain" or not name.startswith("gain") or (value == 1).all()


def test_every_utterance_is_held_out_once_and_cut_as_the_training_is(monkeypatch):
    data = Utterances([np.full((5 + k, 1), k, np.float32) for k in range(8)], np.arange(8) % 9)
    asked = []

    class Network:
        def __init__(self, utterances, norm, settings, seed, max_steps):
            self.trained, self.seed = {int(x[0, 0]) for x in utterances.x}, seed
            assert max_steps == 6

        def name_speakers(self, sequences, overrun):
            held = [int(x[0, 0]) for x in sequences]
            assert not self.trained & set(held) and len(self.trained) + len(held) == 8
            assert all(k % FOLDS == self.seed for k in held) and overrun == "last"
            assert [len(x) for x in sequences] == [min(6, 5 + k) for k in held]
            asked.extend(held)
            return np.array([k if k != 3 else 0 for k in held])

    monkeypatch.setattr(choose_settings, "SpeakerNetwork", Network)
    assert held_out_accuracy(data, "batch", speakers.Settings(), 6) == 7 / 8
    assert sorted(asked) == list(range(8))
