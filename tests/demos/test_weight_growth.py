"""The study of growing weights: gradients and Fisher information against finite differences, its verdict on
made-up numbers, and a quick run of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lnrnn import demos
from lnrnn.demos import weight_growth
from lnrnn.demos.normalised_regression import BATCH, LAYER, NONE, NORMS, WEIGHT, Regression, softmax
from lnrnn.demos.study import VERDICTS
from lnrnn.demos.training import Adam
from lnrnn.demos.weight_growth import FACTORS, JUDGED
from lnrnn.demos.weight_growth_experiment import (
    ADAM,
    NORMALISED,
    RATES,
    SGD,
    ByHand,
    Course,
    Images,
    PlainSgd,
    Results,
    angles,
    train,
    turned_at_once,
)

INPUTS, CLASSES, COUNT = 5, 4, 12


def made(norm, rng, eps=0.0):
    weight = rng.standard_normal((CLASSES, INPUTS))
    return Regression(norm, weight, rng.uniform(0.5, 2, CLASSES), rng.standard_normal(CLASSES), eps)


def divergence(model, other, x):
    """Mean over x of the Kullback-Leibler divergence of other's answers from model's."""
    p, q = softmax(model.logits(x)), softmax(other.logits(x))
    return float((p * np.log(p / q)).sum(axis=1).mean())


def curvature(model, x, name, direction, step=1e-3):
    """d' F d by second differences of the divergence, whose second derivative F is; two steps, extrapolated
    to none (Richardson)."""

    def difference(step):
        ends = [
            divergence(model, replace(model, **{name: getattr(model, name) + sign * step * direction}), x)
            for sign in (1, -1)
        ]
        return sum(ends) / step**2

    return (4 * difference(step / 2) - difference(step)) / 3


@pytest.fixture
def x(rng):
    return rng.standard_normal((COUNT, INPUTS))


@pytest.mark.parametrize("norm", NORMS)
def test_gradients_are_those_of_finite_differences(norm, rng, x):
    model, labels, step = made(norm, rng, eps=1e-5), rng.integers(CLASSES, size=COUNT), 1e-6
    _, gradients = model.loss_and_gradients(x, labels)
    for name, value in model.parameters().items():
        found = np.empty_like(value)
        for index in np.ndindex(value.shape):
            moved = [value.copy(), value.copy()]
            moved[0][index] += step
            moved[1][index] -= step
            high, low = (replace(model, **{name: v}).loss_and_gradients(x, labels)[0] for v in moved)
            found[index] = (high - low) / (2 * step)
        np.testing.assert_allclose(gradients[name], found, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("norm", NORMS)
def test_curvature_along_a_direction_is_that_of_the_divergence(norm, rng, x):
    model = made(norm, rng)
    direction = rng.standard_normal(model.weight.shape)
    assert model.along(x, direction) == pytest.approx(curvature(model, x, "weight", direction), rel=1e-7)


@pytest.mark.parametrize("norm", NORMS)
def test_the_mean_curvature_is_that_over_all_weights(norm, rng, x):
    model = made(norm, rng)
    each = [model.along(x, unit.reshape(model.weight.shape)) for unit in np.eye(model.weight.size)]
    assert model.weight_curvature(x) == pytest.approx(np.mean(each), rel=1e-12)


@pytest.mark.parametrize("norm", NORMS)
def test_the_gain_s_curvature_is_that_of_the_divergence(norm, rng, x):
    model = made(norm, rng)
    if norm == NONE:  # along the length of a row, its direction kept
        units = model.weight / model.lengths()[:, None]
        found = [curvature(model, x, "weight", units * e[:, None]) for e in np.eye(CLASSES)]
    else:
        found = [curvature(model, x, "gain", e) for e in np.eye(CLASSES)]
    assert model.gain_curvature(x) == pytest.approx(np.mean(found), rel=1e-7)


@pytest.mark.parametrize("norm", [BATCH, WEIGHT, NONE])
def test_blocks_are_those_of_the_whole_matrix(norm, rng, x):
    model, size = made(norm, rng), INPUTS
    basis = np.eye(2 * size, CLASSES * INPUTS).reshape(-1, CLASSES, INPUTS)

    def entry(i, j):  # by polarisation
        return (model.along(x, basis[i] + basis[j]) - model.along(x, basis[i] - basis[j])) / 4

    own = np.mean([model.along(x, basis[i]) for i in range(size)])
    cross = [[entry(i, size + j) for j in range(size)] for i in range(size)]
    np.testing.assert_allclose(model.blocks(x), (own, np.linalg.norm(cross)), rtol=1e-10)


@pytest.mark.parametrize("norm", NORMALISED)
def test_longer_weights_are_less_curved_and_not_at_all_along_themselves(norm, rng, x):
    model = made(norm, rng)
    longer = model.scaled(3.0)
    np.testing.assert_allclose(longer.logits(x), model.logits(x), atol=1e-13)
    assert model.weight_curvature(x) / longer.weight_curvature(x) == pytest.approx(9, rel=1e-10)
    assert model.along_itself(x) < 1e-25 < 1e-3 < model.weight_curvature(x)
    assert longer.gain_curvature(x) == pytest.approx(model.gain_curvature(x), rel=1e-10)
    if norm != WEIGHT:
        assert model.gain_curvature(7 * x) == pytest.approx(model.gain_curvature(x), rel=1e-10)


def test_under_layer_norm_one_row_s_own_direction_is_curved(rng, x):
    model = made(LAYER, rng)
    row = np.zeros_like(model.weight)
    row[0] = model.weight[0] / model.lengths()[0]
    assert model.along(x, row) > 1e-3


def test_batch_norm_answers_with_the_statistics_of_the_training_images(rng, x):
    model, learnt = made(BATCH, rng, eps=1e-5), rng.standard_normal((40, INPUTS))
    np.testing.assert_array_equal(model.predict(learnt, learnt), model.logits(learnt).argmax(axis=1))
    np.testing.assert_array_equal(model.predict(x[:1], learnt), model.predict(x, learnt)[:1])


# --- training -----------------------------------------------------------------------------------------------


def images(rng, updates=20):
    x, labels = rng.standard_normal((40, INPUTS)), rng.integers(CLASSES, size=40)
    order = np.stack([rng.permutation(40)[:16] for _ in range(updates)])
    return Images(x, labels, x[:20], labels[:20], order)


@pytest.mark.parametrize("norm", NORMALISED)
def test_under_sgd_lengths_grow_by_pythagoras(norm, rng):
    model, own = made(norm, rng), images(rng)
    course = train(model, own, PlainSgd(0.5))
    assert course.cosine < 1e-14
    # Each update is at right angles to the weights: it lengthens them by 1 / cos of the angle it turns them.
    one = train(model, replace(own, order=own.order[:1]), PlainSgd(0.5))
    old, new = (m.groups(m.weight) for m in (model, one.model))
    cosines = np.cos(angles(old, new))
    assert one.growth[-1] == pytest.approx(np.exp(-np.log(cosines).mean()), rel=1e-12)
    assert (np.diff(course.growth) > 0).all()


@pytest.mark.parametrize("norm", NORMALISED)
@pytest.mark.parametrize(("optimiser", "power"), [(PlainSgd, 2), (Adam, 1)])
def test_a_greater_length_is_a_lower_rate(norm, optimiser, power, rng):
    """Weights 10 times as long take updates that turn them 10**power times less."""
    model, own = made(norm, rng), images(rng)
    turned = [turned_at_once(model.scaled(factor), own, optimiser(1e-4)) for factor in (1, 10)]
    assert turned[0] / turned[1] == pytest.approx(10**power, rel=1e-2)


@pytest.mark.parametrize("norm", NORMALISED)
def test_held_lengths_stay_and_change_no_output(norm, rng):
    model, own = made(norm, rng), images(rng)
    held = train(model, own, PlainSgd(0.5), hold=True, watch_every=10)
    np.testing.assert_allclose(held.growth, 1, rtol=1e-12)
    assert held.curvature.shape == held.gain_curvature.shape == (3,)
    first = replace(own, order=own.order[:1])
    free, held = (train(model, first, PlainSgd(0.5), hold=hold).model for hold in (False, True))
    np.testing.assert_allclose(held.logits(own.x), free.logits(own.x), atol=1e-12)
    assert np.abs(held.weight - free.weight).max() > 1e-6


def test_small_angles_are_told_apart():
    a = np.array([[1.0, 0.0], [3.0, 0.0]])
    b = np.array([[2.0, 2e-9], [0.0, 0.5]])
    np.testing.assert_allclose(angles(a, b), [1e-9, np.pi / 2], rtol=1e-7)


# --- the verdict --------------------------------------------------------------------------------------------


def made_up(grown=None, fallen=None, power=-2.0, gain=0.0, along=1e-28):
    """Results of five seeds: growth and fall of 2 and 0.5, but for those given by optimiser."""
    results = Results(5, 8, 2)
    factors = np.array(FACTORS)
    noise = np.array([1.0, 1.001, 0.999, 1.002, 0.998])
    for norm in NORMS:
        for optimiser in RATES:
            results.grid[norm, optimiser] = np.full((5, 4), 0.9), np.full((5, 4), 2.0)
            results.rate[norm, optimiser] = 0.1
            size, turn = (grown or {}).get(optimiser, 2.0), (fallen or {}).get(optimiser, 0.5)
            model, ones = made(norm, np.random.default_rng(0)), np.ones(3)
            results.free[norm, optimiser] = [
                Course(model, 0.9, np.linspace(1, size * f, 9), np.full(8, turn * f), 1e-6, ones, ones)
                for f in noise
            ]
            if norm != NONE:
                results.held[norm, optimiser] = [
                    Course(model, 0.9, np.ones(9), np.ones(8), 1e-6, ones, ones) for _ in noise
                ]
        curved = factors**power
        results.hand[norm] = [
            ByHand(
                moved=np.full(7, 1e-14),
                weight=curved,
                itself=along * curved,
                gain=factors**gain,
                own=curved,
                cross=factors**-1.0,
                gain_data=factors ** (2.0 if norm == NONE else 0.0),
                turn={SGD: factors**-2.0, ADAM: factors**-1.0},
            )
            for _ in noise
        ]
    return results


@pytest.mark.parametrize(
    ("changes", "verdict", "depends_on"),
    [
        ({}, "confirmed", ""),
        ({"power": -1.0}, "not confirmed", ""),
        ({"gain": 0.5}, "not confirmed", ""),
        ({"along": 1e-3}, "not confirmed", ""),
        ({"grown": {SGD: 1.05}}, "depends", "the optimiser: it holds with Adam"),
        ({"fallen": {ADAM: 1.0}}, "depends", "the optimiser: it holds with SGD"),
        ({"grown": {SGD: 1.0}, "fallen": {ADAM: 0.95}}, "not confirmed", ""),
    ],
)
def test_the_verdict_follows_the_rule(changes, verdict, depends_on):
    found = weight_growth.report(made_up(**changes))
    assert (found.verdict, found.depends_on) == (verdict, depends_on)
    assert max(map(len, found.text.splitlines())) <= 80


def test_one_seed_confirms_nothing():
    results = made_up()
    for courses in (*results.free.values(), *results.held.values()):
        del courses[1:]
    assert weight_growth.report(results).verdict == "not confirmed"


def test_both_norms_have_to_learn_so():
    results = made_up()
    assert JUDGED == (LAYER, BATCH)
    results.free[BATCH, SGD] = results.held[BATCH, SGD]
    assert weight_growth.report(results).depends_on == "the optimiser: it holds with Adam"


def test_the_row_s_own_block_and_that_with_another_are_told():
    text = " ".join(weight_growth.report(made_up()).text.split())
    assert "its own block of F is 0.250 of what it was, its block with another row 0.500" in text


def test_a_quick_run(tmp_path, capsys):
    pytest.importorskip("sklearn")
    pytest.importorskip("tqdm")
    pytest.importorskip("matplotlib")
    report = demos.run("weight-growth", seeds=2, output_dir=tmp_path, quick=True)
    printed = capsys.readouterr().out
    assert (tmp_path / "weight_growth.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert report.verdict in VERDICTS and report.text in printed
    lines = printed.splitlines()
    assert max(len(line) for line in lines if not line.startswith("Figure: ")) <= 80
    again = demos.run("weight-growth", seeds=2, output_dir=tmp_path, quick=True, figure=False)
    assert again == report
