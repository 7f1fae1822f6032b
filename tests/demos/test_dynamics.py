"""The demo dynamics: sizes, drifts and gradients on cases with known answers, and the rule of its verdict."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from lnrnn import demos
from lnrnn.demos import dynamics, outcomes
from lnrnn.demos.dynamics import LAYER, LAYER_SMALL, PLAIN, Comparison, Setting, compare_sizes
from lnrnn.demos.study import VERDICTS


def test_a_quick_run_gives_a_verdict_and_a_figure_twice_the_same(tmp_path, capsys):
    image = pytest.importorskip("matplotlib.image")
    report = demos.run("dynamics", seeds=1, quick=True, output_dir=tmp_path)
    figure = tmp_path / "dynamics.png"
    assert report.verdict in VERDICTS
    assert max(map(len, report.text.splitlines())) <= 80
    assert image.imread(figure).std() > 0.05
    assert max(map(len, capsys.readouterr().out.splitlines())) <= max(80, len(str(figure)) + 10)
    assert demos.run("dynamics", seeds=1, quick=True, figure=False) == report


def small_run(setting, radius, kind, steps=40):
    rng = np.random.default_rng(0)
    weights = dynamics.recurrent_weights(rng, 8)
    rnn = dynamics.make_network((setting, radius, kind), weights, np.zeros((8, 2)))
    h0, gradient = (rng.standard_normal((1, 3, 8), dtype=np.float32) for _ in range(2))
    x = np.zeros((steps, 3, 2), np.float32)
    return rnn, x, h0, gradient


def test_the_recurrent_weights_have_radius_one():
    weights = dynamics.recurrent_weights(np.random.default_rng(3))
    assert np.abs(np.linalg.eigvals(weights)).max() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("kind, gain", [(PLAIN, None), (LAYER, 1.0), (LAYER_SMALL, 0.1)])
def test_the_network_is_what_the_case_says(kind, gain):
    weights, inputs = np.eye(4), np.ones((4, 2))
    rnn = dynamics.make_network((Setting("tanh", True), 0.5, kind), weights, inputs)
    assert rnn.nonlinearity == "tanh" and (rnn.weight_hh_l0 == 0.5 * weights).all()
    assert (rnn.weight_ih_l0 == inputs).all()
    assert (rnn.norm is None) == (gain is None)
    assert gain is None or (rnn.gain_l0 == np.float32(gain)).all()


def test_sizes_stay_within_the_range_of_float32():
    assert dynamics.log_size(np.array([[3.0, 4.0]])) == pytest.approx(np.log10(12.5**0.5))
    assert dynamics.log_size(np.array([[10.0, 10.0], [0.1, 0.1]])) == pytest.approx(0)
    assert dynamics.log_size(np.zeros((1, 2))) == dynamics.SMALLEST
    assert dynamics.log_size(np.array([[np.inf, 1.0]])) == dynamics.LARGEST
    assert dynamics.log_size(np.array([[np.nan, 1.0]])) == dynamics.LARGEST


@pytest.mark.parametrize("setting", [Setting("identity", False), Setting("tanh", False)])
@pytest.mark.parametrize("kind", [PLAIN, LAYER])
def test_the_gradient_in_pieces_is_the_gradient(setting, kind):
    rnn, x, h0, gradient = small_run(setting, 0.9, kind)
    path = dynamics.run_network(rnn, x, h0, gradient)
    unit = gradient / np.linalg.norm(gradient, axis=-1, keepdims=True)
    for place, steps in enumerate((10, 20, 30, 40)):
        _, h, _ = rnn.forward_train(x[: len(x) - steps], h0) if steps < len(x) else (None, h0, None)
        _, _, tape = rnn.forward_train(x[len(x) - steps :], h)
        _, whole, _ = rnn.backward(tape, None, unit)
        size = np.log10(np.linalg.norm(whole[0], axis=-1)).mean()
        assert path.gradient[place] == pytest.approx(size, abs=1e-4)
    _, end = rnn(x, h0)
    assert path.state[-1] == pytest.approx(np.log10(np.sqrt((end[0] ** 2).mean(axis=-1))).mean(), abs=1e-5)


def test_a_scaled_identity_drifts_by_its_radius():
    rnn = lnrnn.RNN(2, 8, norm=None, bias=False, nonlinearity="identity", seed=0)
    rnn.weight_hh_l0 = 0.5 * np.eye(8, dtype=np.float32)
    _, x, h0, gradient = small_run(Setting("identity", False), 1, PLAIN)
    path = dynamics.run_network(rnn, x, h0, gradient)
    for quantity in dynamics.QUANTITIES:
        assert path.drift(quantity) == pytest.approx(30 * np.log10(0.5), abs=1e-5)


def test_gradients_have_no_range_to_leave():
    rnn = lnrnn.RNN(2, 8, norm=None, bias=False, nonlinearity="identity", seed=0)
    rnn.weight_hh_l0 = 2 * np.eye(8, dtype=np.float32)
    _, x, h0, gradient = small_run(Setting("identity", False), 1, PLAIN, steps=2000)
    path = dynamics.run_network(rnn, x, h0, gradient)
    assert path.state[-1] == dynamics.LARGEST
    assert path.gradient[-1] == pytest.approx(2000 * np.log10(2), abs=1e-3)


def test_units_are_saturated_where_the_slope_is_below_a_tenth():
    rnn, _, _, gradient = small_run(Setting("tanh", True), 1, PLAIN)
    rnn.weight_hh_l0 = 1e-3 * np.eye(8, dtype=np.float32)
    rnn.weight_ih_l0 = np.repeat([[1.0, 0], [2.0, 0]], 4, axis=0)  # tanh 1 = 0.76, tanh 2 = 0.96
    x = np.ones((120, 3, 2), np.float32)
    path = dynamics.run_network(rnn, x, np.zeros((1, 3, 8), np.float32), gradient)
    assert path.saturated == 0.5


def test_compare_sizes_takes_sizes_a_margin_and_an_interval():
    far = np.array([-40.0, 41.0, 39.0])
    assert compare_sizes("state", far, far / 100) == Comparison("state", True, True, True)
    assert compare_sizes("state", far, 0.6 * far) == Comparison("state", True, False, False)
    assert compare_sizes("state", far, np.array([0.0, 0, 60.0])) == Comparison("state", True, False, False)
    assert compare_sizes("state", far / 100, far) == Comparison("state", False, False, False)
    assert compare_sizes("state", far[:1], far[:1] / 100) == Comparison("state", True, False, True)


@pytest.mark.parametrize(
    "gradients, verdict",
    [
        ([(True, True, True)], "confirmed"),
        ([(True, True, False), (False, False, True)], "confirmed"),
        ([(True, False, True)], "depends"),
        ([(True, True, True), (False, False, False)], "depends"),
    ],
)
def test_the_verdict_follows_the_cases(gradients, verdict):
    states = [Comparison("state", True, True, True)]
    found = states + [Comparison("gradient", *case) for case in gradients]
    report = dynamics.verdict(found, "")
    assert report.verdict == verdict
    assert "States: LN much more stable in 1 of the 1 cases" in report.number


def test_the_verdict_is_against_it_where_nothing_is_more_stable():
    found = [Comparison(quantity, True, False, False) for quantity in dynamics.QUANTITIES]
    assert dynamics.verdict(found, "").verdict == "not confirmed"


def test_decades():
    assert dynamics.decades(-456.71, 0.24) == "-457±0.2"
    assert dynamics.decades(0.04) == "+0.0"
    assert dynamics.decades(-35.94, 64.2) == "-35.9±64"


def test_the_interval_is_student_s():
    # n = 4: mean 2.5, standard deviation 1.2910, quantile 3.182
    assert outcomes.interval(np.array([1.0, 2, 3, 4])) == pytest.approx((0.446, 4.554), abs=1e-3)
    assert outcomes.interval(np.array([1.0])) is None
    low, high = outcomes.interval(np.tile([0.0, 1.0], 50))
    assert (high - low) / 2 == pytest.approx(2.042 * 0.50252 / 10, abs=1e-4)
