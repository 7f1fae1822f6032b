"""Tests the study ``step_statistics``: distances, errors, and losses by repeated steps, of known cases."""

import numpy as np
import pytest
import recurrent
import step_statistics as study

import lnrnn
from lnrnn.data import japanese_vowels


def of_one_unit(mean, deviation):
    return np.array([mean, deviation], float)[..., None]


def test_distances_are_relative_to_the_deviation_of_the_hidden_unit():
    a, b = of_one_unit([0, 3, 1], [1, 1, 5]), of_one_unit([0, 0, 1], [1, 5, 1])
    found = recurrent.statistics_distance(a, b, np.array([2.0]))
    np.testing.assert_allclose(found, [0, 5 / 2 / 2**0.5, 4 / 2 / 2**0.5])


def network_and_sequences(count, steps=3):
    rng = np.random.default_rng(0)
    rnn = lnrnn.RNN(2, 5, norm="batch", seed=0)
    x = rng.standard_normal((steps, count, 2), dtype=np.float32)
    return rnn, x, np.full(count, steps)


def test_the_error_is_that_of_statistics_of_all_sequences():
    """For values with deviation 1, the mean of N values has variance 1/N, and their deviation has 1/2N."""
    rnn, x, lengths = network_and_sequences(400)
    rnn.calibrate([(x, lengths)])
    before, count = recurrent.statistics(rnn)
    unit = recurrent.typical_deviation(before, count)
    error = recurrent.statistics_error(rnn, x, lengths, unit, np.random.default_rng(1))
    assert error[0] == pytest.approx((1.5 / 2 / 400) ** 0.5, rel=0.4)
    assert np.array_equal(recurrent.statistics(rnn)[0], before)


def test_keeping_steps_repeats_the_last_one():
    rnn, x, lengths = network_and_sequences(40, steps=6)
    rnn.calibrate([(x, lengths)])
    state = rnn.state_dict()
    recurrent.keep_steps(rnn, state, 2)
    assert rnn.known_steps == 2
    found, _ = rnn(x)
    rows = np.minimum(np.arange(6), 1)
    names = ("running_mean_l0", "running_var_l0", "count_l0")
    rnn.load_state_dict({**state, **{name: state[name][rows] for name in names}})
    repeated, _ = rnn(x)
    recurrent.keep_steps(rnn, state, 6)
    own, _ = rnn(x)
    assert np.array_equal(found, repeated)
    assert np.array_equal(found[:2], own[:2]) and not np.array_equal(found[2:], own[2:])


def test_the_loss_alone_is_that_of_longer_utterances():
    """Compares with the answers of name_speakers, which pads utterances and repeats statistics."""
    data, joined = japanese_vowels(), {"1": japanese_vowels().test.x}
    found = study.of_seed(data, joined, 0, 2)
    network = study.trained(data.train, "BN", 0, 2)
    own = network.name_speakers(data.test.x, "last") == data.test.labels
    assert found["accuracy"] == own.mean()
    recurrent.keep_steps(network.rnn, network.rnn.state_dict(), 12)
    cut = network.name_speakers(data.test.x, "last") == data.test.labels
    longer = data.test.lengths > 12
    assert found["alone"][11] == pytest.approx(cut[longer].mean() - own[longer].mean(), abs=1e-12)
    assert found["joined"]["1"][11] == cut.mean() - own.mean()
    # If the statistics of all steps are kept, no result changes.
    assert found["joined"]["1"][-1] == 0
