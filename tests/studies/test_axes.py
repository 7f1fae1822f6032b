"""Tests the study ``axes``: its functions on cases with known answers."""

import measures
import numpy as np
import pytest


def test_moved_shows_which_elements_a_function_mixes():
    x = np.arange(6.0).reshape(2, 3)
    assert measures.moved(lambda x: 2 * x, x).tolist() == np.eye(6, dtype=bool).tolist()
    rows = measures.moved(lambda x: x - x.mean(1, keepdims=True), x)
    assert rows.tolist() == np.kron(np.eye(2), np.ones((3, 3))).astype(bool).tolist()
    assert not measures.moved(np.zeros_like, x).any()


def test_group_numbers_groups_and_refuses_other_patterns():
    columns = np.array([[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]], bool)
    numbers, disjoint = measures.group(columns)
    assert numbers.tolist() == [0, 1, 0, 1] and disjoint
    assert not measures.group(np.tril(np.ones((4, 4), bool)))[1]  # a cumulative sum


@pytest.mark.parametrize(
    ("groups", "letters"),
    [([[0, 1, 2]] * 2, "A"), ([[0] * 3, [1] * 3], "B"), ([[0] * 3] * 2, "AB"), ([[0, 1, 2], [3, 4, 5]], "")],
)
def test_axes_of_names_the_axes_of_groups(groups, letters):
    assert measures.axes_of(np.array(groups), "AB") == letters


def test_standardise_gives_mean_zero_and_variance_one():
    x = np.array([[1.0, 10.0], [3.0, 30.0]])
    y, mean, sigma = measures.standardise(x, np.array([0, 1, 0, 1]), 0)
    assert y.tolist() == [[-1, -1], [1, 1]] and mean.tolist() == [2, 20] and sigma.tolist() == [1, 10]
    assert measures.standardise(x, np.zeros(4, int), 0.5)[2] == pytest.approx([(x.var() + 0.5) ** 0.5])
