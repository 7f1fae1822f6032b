"""Tests the study ``step_statistics``: distances, errors, and losses by repeated steps, of known cases."""

from __future__ import annotations

import numpy as np
import pytest
import step_statistics as study
from common import interval

import lnrnn
from lnrnn.data import japanese_vowels


def of_one_unit(mean, deviation):
    return np.array([mean, deviation], float)[..., None]


def test_distances_are_relative_to_the_deviation_of_the_hidden_unit():
    a, b = of_one_unit([0, 3, 1], [1, 1, 5]), of_one_unit([0, 0, 1], [1, 5, 1])
    found = study.distance(a, b, np.array([2.0]))
    np.testing.assert_allclose(found, [0, 5 / 2 / 2**0.5, 4 / 2 / 2**0.5])


def test_the_typical_deviation_weights_steps_by_their_counts():
    found = study.typical_deviation(of_one_unit([0, 0], [1, 3]), np.array([3, 1]))
    np.testing.assert_allclose(found, [3**0.5])


def network_and_sequences(count, steps=3):
    rng = np.random.default_rng(0)
    rnn = lnrnn.RNN(2, 5, norm="batch", seed=0)
    x = rng.standard_normal((steps, count, 2), dtype=np.float32)
    return rnn, x, np.full(count, steps)


def test_the_error_is_that_of_statistics_of_all_sequences():
    """For values with deviation 1, the mean of N values has variance 1/N, and their deviation has 1/2N."""
    rnn, x, lengths = network_and_sequences(400)
    rnn.calibrate([(x, lengths)])
    before, count = study.statistics(rnn)
    unit = study.typical_deviation(before, count)
    error = study.errors(rnn, x, lengths, unit, np.random.default_rng(1))
    assert error[0] == pytest.approx((1.5 / 2 / 400) ** 0.5, rel=0.4)
    assert np.array_equal(study.statistics(rnn)[0], before)


def test_the_error_needs_statistics_of_both_halves():
    rnn, x, lengths = network_and_sequences(10)
    lengths[1:] = 2
    error = study.errors(rnn, x, lengths, np.ones(5), np.random.default_rng(1))
    assert len(error) == 2 and np.isfinite(error).all()


def test_keeping_steps_repeats_the_last_one():
    rnn, x, lengths = network_and_sequences(40, steps=6)
    rnn.calibrate([(x, lengths)])
    state = rnn.state_dict()
    study.keep_steps(rnn, state, 2)
    assert rnn.known_steps == 2
    found, _ = rnn(x)
    rows = np.minimum(np.arange(6), 1)
    names = ("running_mean_l0", "running_var_l0", "count_l0")
    rnn.load_state_dict({**state, **{name: state[name][rows] for name in names}})
    repeated, _ = rnn(x)
    study.keep_steps(rnn, state, 6)
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
    study.keep_steps(network.rnn, network.rnn.state_dict(), 12)
    cut = network.name_speakers(data.test.x, "last") == data.test.labels
    longer = data.test.lengths > 12
    assert found["alone"][11] == pytest.approx(cut[longer].mean() - own[longer].mean(), abs=1e-12)
    assert found["joined"]["1"][11] == cut.mean() - own.mean()
    # If the statistics of all steps are kept, no result changes.
    assert found["joined"]["1"][-1] == 0


def test_the_statements_of_the_page_hold():
    results = study.STUDY.results()
    found = {clause.text: clause for clause in study.clauses(results)}
    change = results["change"].mean(axis=0)
    assert change[:2].round(2).tolist() == [0.44, 0.11] and change[2:].max() < 0.115 and len(change) == 21
    for length in ("123", "2,610"):
        last, ten, thirteen = (
            found[f"repeating step {step} is harmless for {length} steps"] for step in (26, 10, 13)
        )
        for middle in (ten, thirteen):
            assert 1.65 < -100 * middle.values.mean() < 2.05
        assert round(100 * last.values.mean()) == -84
    assert change[12:].argmin() == 0 and round(change[12], 2) == 0.02 and round(change[20], 2) == 0.11
    # 78 utterances reach step 18, enough for an error of 0.06. So their number does not cause the loss.
    assert results["count"][17] == 78 and results["count"][25] == 1
    assert round(results["error"][:, 17].mean(), 2) == 0.06
    assert -11.05 < 100 * study.after(results, 18, 8).mean() < -10.35
    assert round(100 * results["long_only"].mean(), 1) == -3.0
    assert round(100 * results["drawn"].mean(), 1) == -2.9
    assert interval(results["alone"][:, 17])[0] > 0
    assert round(100 * results["accuracy"].mean(), 1) == 98.2
    # The figure: steps from 18 on lose more than 10 points, the last one most; steps 10 to 14 lose 1 to 2
    # points.
    for joined in results["joined"].values():
        mean = 100 * joined.mean(axis=0)
        assert mean[17:].max() < -10 and mean.argmin() == 25
        assert mean[9:14].min() > -2.1 and mean[9:14].max() < -0.75
    # The section "Try it yourself" begins at other steps.
    assert [round(100 * study.after(results, step, 8).mean()) for step in (12, 15)] == [-1, -5]
