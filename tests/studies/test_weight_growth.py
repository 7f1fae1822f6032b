"""Tests the study ``weight_growth``: gradients, Fisher information, growth."""

from dataclasses import replace

import fisher
import numpy as np
import pytest
from fisher import Images, Regression, angles, lengths, train
from nets import Sgd
from weight_growth import NORMALISED, NORMS

INPUTS, CLASSES, COUNT = 5, 4, 12


def made(norm, rng, eps=0.0):
    gain = np.ones(CLASSES) if norm == "no norm" else rng.uniform(0.5, 2, CLASSES)
    return Regression(norm, rng.standard_normal((CLASSES, INPUTS)), gain, rng.standard_normal(CLASSES), eps)


def along(model, x, direction):
    return (np.einsum("nkci,ci->nk", model.root(x), direction) ** 2).sum()


def curvature(model, x, name, direction, step=1e-3):
    """Returns d' F d (F: Fisher information) by second differences of the divergence, extrapolated."""

    def difference(step):
        moved = [replace(model, **{name: getattr(model, name) + sign * step * direction}) for sign in (1, -1)]
        return sum(fisher.divergence(model, end, x) for end in moved) / step**2

    return (4 * difference(step / 2) - difference(step)) / 3


@pytest.fixture
def x(rng):
    return rng.standard_normal((COUNT, INPUTS))


@pytest.mark.parametrize("norm", NORMS)
def test_gradients_equal_finite_differences(norm, rng, x):
    model, labels, step = made(norm, rng, eps=1e-5), rng.integers(CLASSES, size=COUNT), 1e-6
    gradients = model.gradients(x, labels)

    def loss(name, value):
        p = fisher.softmax(replace(model, **{name: value}).logits(x))
        return -np.log(p[np.arange(COUNT), labels]).mean()

    for name in ("weight", "gain", "bias")[:: 2 if norm == "no norm" else 1]:
        value = getattr(model, name)
        units = step * np.eye(value.size).reshape(-1, *value.shape)
        found = [(loss(name, value + unit) - loss(name, value - unit)) / (2 * step) for unit in units]
        np.testing.assert_allclose(gradients[name].ravel(), found, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("norm", NORMS)
def test_the_fisher_information_is_the_second_order_of_the_divergence(norm, rng, x):
    model = made(norm, rng)
    direction = rng.standard_normal(model.weight.shape)
    expected = curvature(model, x, "weight", direction)
    assert along(model, x, direction) == pytest.approx(expected, rel=1e-7)
    small = 1e-3 * direction
    assert fisher.second_difference(model, x, small) == pytest.approx(1e-6 * expected, rel=1e-3)
    if norm in ("LN", "no norm"):
        a = model.root(x).reshape(-1, model.weight.size)
        np.testing.assert_allclose(model.product_form(x), a.T @ a, atol=1e-13)


@pytest.mark.parametrize("norm", NORMS)
def test_the_fisher_information_of_a_gain_is_the_second_order_too(norm, rng, x):
    model = made(norm, rng)
    if norm == "no norm":  # changes only the length of a row
        rows = model.weight / lengths(model.weight)[:, None]
        found = [curvature(model, x, "weight", rows * e[:, None]) for e in np.eye(CLASSES)]
    else:
        found = [curvature(model, x, "gain", e) for e in np.eye(CLASSES)]
    assert model.gain_curvature(x) == pytest.approx(np.mean(found), rel=1e-7)


def images(rng, updates=20):
    x, labels = rng.standard_normal((40, INPUTS)), rng.integers(CLASSES, size=40)
    return Images(
        x, labels, x[:20], labels[:20], np.stack([rng.permutation(40)[:16] for _ in range(updates)])
    )


@pytest.mark.parametrize("norm", NORMALISED)
def test_with_sgd_lengths_grow_by_pythagoras(norm, rng):
    model, own = made(norm, rng), images(rng)
    _, growth, turn, cosine = train(model, own, Sgd(0.5))
    assert cosine < 1e-14 and (np.diff(growth) > 0).all()
    # Each update is orthogonal to the weights, so it multiplies their length by 1 / cos of the angle.
    moved, _ = fisher.updated(model, own, own.order[0], Sgd(0.5))
    turned = angles(model.groups(model.weight), model.groups(moved["weight"]))
    assert growth[1] == pytest.approx(-np.log(np.cos(turned)).mean(), rel=1e-12)
    assert turn[0] == turned.mean() == fisher.turned_at_once(model, own, Sgd(0.5))


def test_small_angles_are_accurate():
    a = np.array([[1.0, 0.0], [3.0, 0.0]])
    b = np.array([[2.0, 2e-9], [0.0, 0.5]])
    np.testing.assert_allclose(angles(a, b), [1e-9, np.pi / 2], rtol=1e-7)
