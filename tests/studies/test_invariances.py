"""Tests the study ``invariances``: its measures on known cases."""

import invariances as study
import measures
import numpy as np
import pytest


@pytest.fixture
def layer(rng):
    return measures.make_layer(rng.standard_normal((500, 12)).astype(np.float32), 64, 128, 0)


def test_changes_have_their_documented_effect(layer):
    W, D, shifts = layer["W"], layer["D"], layer["shifts"]
    one_unit, one_case = W.copy(), D.copy()
    one_unit[layer["unit"]] *= 3
    one_case[layer["case"]] *= 3
    expected = {
        "W scaled": (3 * W, D), "W shifted": (W + 3 * shifts["W"], D), "w scaled": (one_unit, D),
        "D scaled": (W, 3 * D), "D shifted": (W, D + 3 * shifts["D"]), "x scaled": (W, one_case),
    }  # fmt: skip
    assert W.shape == (64, 12) and D.shape == (128, 12) and tuple(expected) == study.CHANGES
    for change, arrays in expected.items():
        for found, wanted in zip(measures.changed(layer, change, 3), arrays, strict=True):
            np.testing.assert_array_equal(found, wanted)
    for name in ("W", "D"):
        assert np.square(shifts[name]).mean() == pytest.approx(np.square(layer[name]).mean())


def test_deviation_is_that_of_the_worst_case_or_unit():
    y = np.ones((4, 5))
    new = y.copy()
    assert measures.deviation(new, y) == 0
    new[1] = 1.5  # one case differs
    assert measures.deviation(new, y) == pytest.approx(0.5)
    new[:] = 1
    new[:, 2] = -2  # one unit differs
    assert measures.deviation(new, y) == measures.deviation(1e3 * new, 1e3 * y) == pytest.approx(3)


def test_bend_has_its_inverse_and_crossing():
    assert measures.bend(np.array([3.0]), 16.0) == pytest.approx([1 - 3 / 5])
    assert measures.scale_at(1 - 3 / 5, 16.0) == pytest.approx(3)
    scales = np.array([1.0, 10.0, 100.0])
    assert measures.crossing(scales, scales**-2.0, 1e-3) == pytest.approx(10**1.5)


def test_eps_explains_the_deviation_of_the_float32_kernels(layer):
    found = measures.measure_layer(layer, np.logspace(-4, 4, 16), (3.0,), (3.0,), study.EPS)
    scales, scaled = found["scales"], found["scaled"]
    for norm in study.NORMS:  # measured 4e-7, the rounding of float32
        np.testing.assert_allclose(scaled[norm], measures.bend(scales[norm], study.EPS), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("values", "answer"),
    [([0, 1e-10], True), ([1e-2, 5], False), ([0, 1.1e-10], None), ([0.99e-2, 5], None), ([0, np.nan], None)],
)
def test_an_answer_is_decided_by_its_margin(values, answer):
    assert study.decided(np.array([values])) is answer
