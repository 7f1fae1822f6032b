"""The demo statistics: distances, errors and steps on cases with known answers, the rule of its verdict."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from lnrnn import demos
from lnrnn.demos import step_statistics
from lnrnn.demos.length_experiment import StepStatistics
from lnrnn.demos.study import VERDICTS

NAN = float("nan")


def test_a_quick_run_gives_a_verdict_and_a_figure_twice_the_same(tmp_path, capsys):
    image = pytest.importorskip("matplotlib.image")
    report = demos.run("statistics", seeds=1, quick=True, output_dir=tmp_path)
    assert report.verdict in VERDICTS
    assert max(map(len, report.text.splitlines())) <= 80
    figure = tmp_path / "statistics.png"
    assert image.imread(figure).std() > 0.05
    assert max(map(len, capsys.readouterr().out.splitlines())) <= max(80, len(str(figure)) + 10)
    text = " ".join(report.text.split())
    assert "step 18 repeated, which 78 training utterances reach" in text
    assert "over these 78 alone" in text and "over 78 drawn from all" in text
    assert demos.run("statistics", seeds=1, quick=True, figure=False) == report


def test_a_curve_of_several_seeds_has_a_band():
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes, steps = figure.subplots(), np.arange(1, 5)
    values = np.array([[1.0, 2, 3, 4], [3, 2, 1, 6]])
    for seeds in (1, 2):
        step_statistics._band(axes, steps, values[:seeds], "black", "o", "error")
        assert len(axes.lines) == seeds and len(axes.collections) == seeds - 1
    assert axes.lines[1].get_ydata().tolist() == [2, 2, 2, 5]
    (path,) = axes.collections[0].get_paths()
    deviation = 2**0.5
    assert path.get_extents().extents == pytest.approx([1, 2 - deviation, 4, 5 + deviation])


def statistics(mean, deviation, count):
    """Of one unit."""
    mean, deviation = (np.array(values, float)[:, None] for values in (mean, deviation))
    return StepStatistics(mean, deviation**2, np.array(count))


def test_distances_are_of_mean_and_deviation_in_units_of_the_unit():
    a = statistics([0, 3, 1, 7], [1, 1, 5, 1], [9, 9, 9, 1])
    b = statistics([0, 0, 1], [1, 5, 1], [9, 9, 9])
    found = step_statistics.distances(a, b, np.array([2.0]))
    np.testing.assert_allclose(found, [0, 5 / 2 / 2**0.5, 4 / 2 / 2**0.5])
    np.testing.assert_allclose(step_statistics.changes(b, np.array([1.0])), [8**0.5, (17 / 2) ** 0.5])


def test_the_typical_deviation_weighs_steps_by_their_counts():
    found = step_statistics.typical_deviation(statistics([0, 0], [1, 3], [3, 1]))
    np.testing.assert_allclose(found, [3**0.5])


def network_and_sequences(count, steps=3):
    rng = np.random.default_rng(0)
    rnn = lnrnn.RNN(2, 5, norm="batch", seed=0)
    x = rng.standard_normal((steps, count, 2), dtype=np.float32)
    return rnn, x, np.full(count, steps)


def test_the_error_is_that_of_all_sequences():
    """A mean of N values has a variance of 1/N, their deviation half that, for a deviation of 1."""
    rnn, x, lengths = network_and_sequences(400)
    rnn.calibrate([(x, lengths)])
    before = StepStatistics.of(rnn)
    unit = step_statistics.typical_deviation(before)
    error = step_statistics.errors(rnn, x, lengths, unit, np.random.default_rng(1))
    expected = (1.5 / 2 / 400) ** 0.5
    assert error[0] == pytest.approx(expected, rel=0.4)
    after = StepStatistics.of(rnn)
    assert np.array_equal(before.mean, after.mean) and np.array_equal(before.var, after.var)


def test_there_is_no_error_where_a_half_has_no_statistics():
    rnn, x, lengths = network_and_sequences(10)
    lengths[1:] = 2
    error = step_statistics.errors(rnn, x, lengths, np.ones(5), np.random.default_rng(1))
    assert np.isfinite(error[:2]).all() and np.isnan(error[2])


@pytest.mark.parametrize(
    "change, error, expected",
    [
        ([0.5, 0.1, 0.1, 0.1, 0.9], [0.0, 0.0, 0.0, 0.0, 0.3, NAN], (3, 5)),
        ([0.1, 0.1, 0.1, 0.1, 0.9], [0.0, 0.0, 0.0, 0.0, 0.0, NAN], (1, 6)),
        ([0.1, 0.1, 0.5, 0.1], [0.0] * 5, (5, None)),
        ([0.5, 0.5, 0.5], [0.0] * 4, (None, None)),
        ([0.5, 0.5, 0.5], [0.0, 0.0, 0.0, 0.3], (None, 4)),
        ([0.1, 0.1], [0.3, 0.3, 0.3], (None, 1)),
    ],
)
def test_settled_lies_between_the_last_move_and_the_first_error(change, error, expected):
    assert step_statistics.settled(np.array(change), np.array(error)) == expected


def test_keeping_steps_repeats_the_last_of_them():
    rnn, x, lengths = network_and_sequences(40, steps=6)
    rnn.calibrate([(x, lengths)])
    state = rnn.state_dict()
    step_statistics.keep_steps(rnn, state, 2)
    assert rnn.known_steps == 2
    found, _ = rnn(x)
    step_statistics.keep_steps(rnn, state, 6)
    own, _ = rnn(x)
    rows = np.minimum(np.arange(6), 1)
    names = ("running_mean_l0", "running_var_l0", "count_l0")
    rnn.load_state_dict({**state, **{name: state[name][rows] for name in names}})
    repeated, _ = rnn(x)
    assert np.array_equal(found, repeated)
    assert np.array_equal(found[:2], own[:2]) and not np.array_equal(found[2:], own[2:])


def made_up(bad_alone=(), bad_joined=()):
    """Losses of four seeds and five steps, none but those that are named."""
    rng = np.random.default_rng(0)
    alone, joined = (0.001 * rng.standard_normal((4, steps)) for steps in (4, 5))
    alone[:, [step - 1 for step in bad_alone]] -= 0.1
    joined[:, [step - 1 for step in bad_joined]] -= 0.1
    return alone, joined, np.array([9, 9, 8, 4, 1])


def test_the_verdict_is_for_it_where_the_last_step_is_harmless():
    report = step_statistics.verdict(*made_up(bad_alone=(1,)), "")
    assert report.verdict == "confirmed"
    assert "repeating step 5 (count 1) changes" in report.number


def test_the_verdict_names_the_harmless_steps():
    report = step_statistics.verdict(*made_up(bad_alone=(1,), bad_joined=(4, 5)), "")
    assert report.told == "depends on the step: harmless for 2-3, which 8 or more reach"


def test_the_verdict_is_against_it_where_no_step_is_harmless():
    assert step_statistics.verdict(*made_up(bad_joined=range(1, 6)), "").verdict == "not confirmed"
    alone, joined, count = made_up()
    assert step_statistics.verdict(alone[:1], joined[:1], count, "").verdict == "not confirmed"


def test_harmless_is_within_the_margin_with_its_interval():
    losses = np.array([-0.019, -0.021, -0.020, -0.020])
    assert step_statistics.harmless(losses)
    assert not step_statistics.harmless(losses - 0.01)
    assert not step_statistics.harmless(np.array([0.0, -0.06, 0.02, -0.04]))


def test_step_ranges():
    assert step_statistics.step_ranges([1, 2, 3, 7, 9, 10]) == "1-3, 7, 9-10"
