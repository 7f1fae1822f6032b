"""Tests the study ``long_sequences``: parts of its measurement."""

from dataclasses import replace

import common
import long_sequences as study
import numpy as np
import pytest
from study_data import join_utterances

from lnrnn import demo
from lnrnn.data import Utterances, japanese_vowels
from lnrnn.speakers import CELLS, one_thread

SETTINGS = {how: {norm: [0.01, 0.3] for norm in study.NORMS} for how in (*study.TRAININGS, "fastest")}
SEED = 7


@pytest.fixture(scope="module")
def data():
    """The training data, and a sixth of the test data."""
    whole = japanese_vowels()
    return replace(whole, test=Utterances(whole.test.x[::6], whole.test.labels[::6]))


@pytest.fixture(scope="module")
def results(data):
    with one_thread(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "japanese_vowels", lambda: data)
        patch.setattr(common, "side_by_side", lambda job, items, _: list(map(job, items)))
        return study.measure([SEED, 8], SETTINGS, True, "rnn")


def test_joined_utterances_are_of_one_speaker_and_each_comes_last_once():
    labels = np.array([0, 0, 0, 1, 1])
    test = Utterances([np.full((n + 1, 1), n, np.float32) for n in range(5)], labels)
    for index, sequence in enumerate(join_utterances(test, 4, np.random.default_rng(4))):
        assert (sequence[-(index + 1) :] == index).all()
        before = sequence[: -(index + 1), 0].astype(int)
        assert index not in before and (labels[before] == labels[index]).all()
    assert all(
        np.array_equal(a, b)
        for a, b in zip(join_utterances(test, 1, np.random.default_rng(1)), test.x, strict=True)
    )


def at_the_end(network, x):
    """Returns the network's answer at the end of one sequence x (T, channels)."""
    y, _ = network.rnn((x - network.mean)[:, None] / network.deviation)
    return network.classifier.logits(y[-1, 0]).argmax()


@pytest.mark.parametrize("training", study.TRAININGS)
def test_accuracies_are_those_of_one_sequence_at_a_time(data, results, training):
    tests = [join_utterances(data.test, count, np.random.default_rng(count)) for count in results["counts"]]
    known = study.TRAININGS[training] or 26
    too_long = [[len(x) > known for x in test] for test in tests]
    assert results["refused"][training].tolist() == 2 * [np.sum(too_long, axis=1).tolist()]
    for method, norm, policy in (
        ("LN", "LN", None), ("no norm", "no norm", None),
        ("BN last", "BN", "last"), ("BN mean", "BN", "mean"),
    ):  # fmt: skip
        network = study.trained("rnn", training, norm, (0.01, 0.3), SEED, 5, data.train)
        if policy:
            network.rnn.overrun = policy
        named = np.array([[at_the_end(network, x) for x in test] for test in tests])
        right = named == data.test.labels
        np.testing.assert_array_equal(results["accuracy"][f"{training}, {method}"][0], right.mean(axis=1))
        if method == "BN last":
            strict = (right & ~np.array(too_long)).mean(axis=1)
            np.testing.assert_array_equal(results["accuracy"][f"{training}, BN raise"][0], strict)
        if training == study.WHOLE and norm != "BN":
            assert results["epochs"][norm][0] == study.learnt(network.losses)
            cliff = demo.join(data.test)
            at_each = network.name_at_each_step(cliff.x) == cliff.labels
            name = {"LN": "layer norm"}.get(method, method)
            np.testing.assert_array_equal(results["right_by_step"][name][0], at_each.sum(axis=1))


def test_epochs_are_counted_from_one_to_the_first_loss_below_the_threshold():
    low, high = study.LEARNT - 0.01, study.LEARNT
    assert study.learnt([low, high]) == 1
    assert study.learnt([high, high, low, high, low]) == 3
    assert study.learnt([high, high]) == 3
    epochs = {"LN": np.array([30, 8]), "no norm": np.array([10, 10])}
    np.testing.assert_allclose(study.saved({"epochs": epochs}), [-2, 0.2])


@pytest.mark.parametrize("cell", CELLS)
def test_kept_settings_are_of_the_grid_and_those_of_the_demo(cell):
    settings = study.STUDY.kept(cell)["settings"]
    for chosen in settings.values():
        for norm, (rate, gain) in chosen.items():
            assert rate in study.RATES and gain in study.GAINS[norm]
    for name, norm in study.NORMS.items():
        assert demo.SETTINGS[cell, norm] == tuple(settings[study.WHOLE][name])
