"""Tests the study ``invariances``: its measures on known cases."""

import invariances as study
import numpy as np
import pytest


@pytest.fixture
def layer(rng):
    return study.make_layer(rng.standard_normal((500, 12)).astype(np.float32), 0)


@pytest.fixture(scope="module")
def results():
    return study.measure([0, 1], None, True)


def test_the_table_is_that_of_the_paper():
    for change, norms in {
        "W scaled": ["BN", "weight norm", "LN"],
        "W shifted": ["LN"],
        "w scaled": ["BN", "weight norm"],
        "D scaled": ["BN", "LN"],
        "D shifted": ["BN"],
        "x scaled": ["LN"],
    }.items():
        column = study.CHANGES.index(change)
        assert [norm for norm in study.NORMS if study.TABLE[norm][column]] == norms


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
        for found, wanted in zip(study.changed(layer, change, 3), arrays, strict=True):
            np.testing.assert_array_equal(found, wanted)
    for name in ("W", "D"):
        assert np.square(shifts[name]).mean() == pytest.approx(np.square(layer[name]).mean())


def test_norms_equal_their_equations(layer):
    W, D, eps = layer["W"], layer["D"], 0.1
    a = D @ W.T
    before = (D - D.mean(1, keepdims=True)) / np.sqrt(D.var(1, keepdims=True) + eps)
    wanted = {
        study.batch_norm: (a - a.mean(0)) / np.sqrt(a.var(0) + eps),
        study.layer_norm: (a - a.mean(1, keepdims=True)) / np.sqrt(a.var(1, keepdims=True) + eps),
        study.weight_norm: a / np.sqrt((W**2).sum(1) + 12 * eps),
        study.layer_norm_before: before @ W.T,
    }
    for norm, y in wanted.items():
        np.testing.assert_allclose(norm(W, D, eps), y, rtol=0, atol=1e-12)
    stored, y = study.stored_batch_norm(layer), wanted[study.batch_norm]
    np.testing.assert_allclose(stored(W, D[:1], eps), y[:1], rtol=0, atol=1e-12)


def test_deviation_is_that_of_the_worst_case_or_unit():
    y = np.ones((4, 5))
    new = y.copy()
    assert study.deviation(new, y) == 0
    new[1] = 1.5  # one case differs
    assert study.deviation(new, y) == pytest.approx(0.5)
    new[:] = 1
    new[:, 2] = -2  # one unit differs
    assert study.deviation(new, y) == study.deviation(1e3 * new, 1e3 * y) == pytest.approx(3)


def test_bend_has_its_inverse_and_crossing():
    assert study.bend(np.array([3.0]), 16.0) == pytest.approx([1 - 3 / 5])
    assert study.scale_at(1 - 3 / 5, 16.0) == pytest.approx(3)
    scales = np.array([1.0, 10.0, 100.0])
    assert study.crossing(scales, scales**-2.0, 1e-3) == pytest.approx(10**1.5)


def test_eps_explains_the_deviation_of_the_float32_kernels(layer):
    _, _, scales, scaled, _, _ = study.measure_one(layer, np.logspace(-4, 4, 16))
    for norm in study.NORMS:  # measured 4e-7, the rounding of float32
        np.testing.assert_allclose(scaled[norm], study.bend(scales[norm], study.EPS), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("values", "answer"),
    [([0, 1e-10], True), ([1e-2, 5], False), ([0, 1.1e-10], None), ([0.99e-2, 5], None), ([0, np.nan], None)],
)
def test_an_answer_is_decided_by_its_margin(values, answer):
    assert study.decided(np.array([values])) is answer


def test_an_entry_that_differs_fails_a_check(results):
    assert all(check.holds for check in study.clauses(results))
    for key, value in {"LN, W scaled": 0.5, "BN, x scaled": 0.0, "LN before W, W shifted": 0.0}.items():
        entries = {**results["entries"], key: np.full_like(results["entries"][key], value)}
        assert [check.holds for check in study.clauses({**results, "entries": entries})].count(False) == 1
