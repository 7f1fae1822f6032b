"""The study ``invariances``: its measures on cases with known answers, and its verdict on made-up numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lnrnn import demos
from lnrnn.demos import invariance_experiment as experiment
from lnrnn.demos import invariances
from lnrnn.demos.study import VERDICTS

EXACT = np.float64, 0.0


@pytest.fixture(scope="module")
def results():
    return experiment.measure(2, True, lambda done, text: None)


@pytest.fixture
def layer(rng):
    return experiment.make_layer(rng.standard_normal((500, 12)).astype(np.float32), 0)


def with_entry(results, norm, change, value):
    entries = {**results.entries, (norm, change): np.full_like(results.entries[norm, change], value)}
    return replace(results, entries=entries)


def test_the_study_runs_and_repeats_itself(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    pytest.importorskip("tqdm")
    first = demos.run("invariances", seeds=2, output_dir=tmp_path, quick=True)
    shown = capsys.readouterr().out
    assert max(len(line) for line in shown.splitlines() if not line.startswith("Figure: ")) <= 80
    assert first.verdict in VERDICTS and first.number in " ".join(shown.split())
    assert (tmp_path / "invariances.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert demos.run("invariances", seeds=2, output_dir=tmp_path, quick=True, figure=False) == first


# --- the table ----------------------------------------------------------------------------------------------


def test_the_table_is_the_paper_s():
    told = [sum(row.values()) for row in experiment.TABLE.values()]
    assert told == [4, 2, 4] and [len(row) for row in experiment.TABLE.values()] == [6, 6, 6]
    for change, norms in {
        "W scaled": ["batch norm", "weight norm", "layer norm"],
        "W recentred": ["layer norm"],
        "w scaled": ["batch norm", "weight norm"],
        "D scaled": ["batch norm", "layer norm"],
        "D recentred": ["batch norm"],
        "x scaled": ["layer norm"],
    }.items():
        assert [norm for norm, row in experiment.TABLE.items() if row[change]] == norms


def test_changes_change_what_they_say(layer):
    W, X = layer.weights, layer.cases
    assert W.shape == (64, 12) and X.shape == (128, 12)
    expected = {
        "W scaled": (3 * W, X), "W recentred": (W + 3 * layer.weight_shift, X),
        "D scaled": (W, 3 * X), "D recentred": (W, X + 3 * layer.case_shift),
    }  # fmt: skip
    for change, arrays in expected.items():
        for found, wanted in zip(experiment.CHANGES[change](layer, 3), arrays, strict=True):
            np.testing.assert_array_equal(found, wanted)
    for change, place, which in (("w scaled", 0, layer.unit), ("x scaled", 1, layer.case)):
        found = experiment.CHANGES[change](layer, 3)
        before = (W, X)
        ratio = found[place] / before[place]
        np.testing.assert_allclose(ratio, np.where(np.arange(len(ratio)) == which, 3, 1)[:, None] + 0 * ratio)
        assert found[1 - place] is before[1 - place]
    for shift, like in ((layer.weight_shift, W), (layer.case_shift, X)):
        assert np.square(shift).mean() == pytest.approx(np.square(like).mean())


def test_norms_are_what_their_equations_say(layer):
    W, X, eps = layer.weights, layer.cases, 0.1
    a = X @ W.T
    wanted = {
        "batch norm": (a - a.mean(0)) / np.sqrt(a.var(0) + eps),
        "layer norm": (a - a.mean(1, keepdims=True)) / np.sqrt(a.var(1, keepdims=True) + eps),
        "weight norm": a / np.sqrt((W**2).sum(1) + 12 * eps),
    }
    for name, y in wanted.items():
        np.testing.assert_allclose(experiment.NORMS[name](W, X, eps), y, rtol=0, atol=1e-12)
    stored = experiment.stored_batch_norm(layer)
    np.testing.assert_allclose(stored(W, X, eps), wanted["batch norm"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(stored(W, X[:1], eps), wanted["batch norm"][:1], rtol=0, atol=1e-12)


def test_deviation_is_that_of_the_worst_case_or_unit():
    y = np.ones((4, 5))
    one = y.copy()
    assert experiment.deviation(one, y) == 0
    one[1] = 1.5  # one case
    assert experiment.deviation(one, y) == pytest.approx(0.5)
    one[:] = 1
    one[:, 2] = -2  # one unit
    assert experiment.deviation(one, y) == pytest.approx(3)
    assert experiment.deviation(1e3 * one, 1e3 * y) == pytest.approx(3)


@pytest.mark.parametrize("norm", [*experiment.TABLE])
@pytest.mark.parametrize("change", [*experiment.CHANGES])
def test_every_entry_holds_for_other_data_too(layer, norm, change):
    found = experiment.deviations(experiment.NORMS[norm], layer, change, *EXACT)
    assert invariances.decide(found) is experiment.TABLE[norm][change]


def test_weight_norm_passes_the_scale_of_data_on(layer, results):
    y, changed = (
        experiment.output(experiment.weight_norm, layer.weights, factor * layer.cases, *EXACT)
        for factor in (1, 100)
    )
    # Measured: 3e-14, the rounding of sums of twelve products of up to 400.
    np.testing.assert_allclose(changed, 100 * y, rtol=0, atol=1e-12)
    assert results.multiplied.max() < 1e-14
    assert results.entries["weight norm", "D scaled"].mean(0) == pytest.approx([0.99, 0.7, 2, 99])


def test_a_negative_factor_turns_the_sign(results):
    assert len(results.mirrored) == 8 and max(values.max() for values in results.mirrored.values()) < 1e-14


# --- eps ----------------------------------------------------------------------------------------------------


def test_bend_and_its_inverse():
    assert experiment.bend(np.array([3.0]), 16.0) == pytest.approx([1 - 3 / 5])
    assert experiment.scale_at(1 - 3 / 5, 16.0) == pytest.approx(3)
    assert experiment.scale_at(0.01, 1e-5) == pytest.approx(0.0222, abs=5e-5)


def test_crossing_interpolates_in_logarithms():
    scales = np.array([1.0, 10.0, 100.0])
    assert experiment.crossing(scales, scales**-2.0, 1e-3) == pytest.approx(10**1.5)


def test_eps_accounts_for_what_the_shipped_kernels_do(results):
    for norm in experiment.NORMS:
        expected = experiment.bend(results.scales[norm], experiment.EPS)
        shipped, rounding, exact = results.scaled[norm]
        # Measured: 4e-7, the rounding of float32, which eps has no part in.
        np.testing.assert_allclose(shipped, expected, rtol=0, atol=1e-6)
        assert rounding.max() < 1e-6 and exact.max() < 2e-15
        assert results.crossings(norm) == pytest.approx(experiment.scale_at(0.01, experiment.EPS), rel=0.1)


def test_rounding_grows_with_the_shift(results):
    for shipped, rounding, exact in results.shifted.values():
        for values, most in ((rounding, 1.0), (exact, 1e-8)):
            assert (values[:, -1] > 1e4 * values[:, 0]).all() and values.max() < most
        assert shipped.shape == (2, len(results.sizes))


# --- the verdict --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        ([0, 1e-10], True), ([1e-2, 5], False), ([0, 1.1e-10], None), ([0.99e-2, 5], None), ([0, 1], None),
        ([np.nan, 1], None), ([0, np.nan], None),
    ],
)  # fmt: skip
def test_decide(values, answer):
    assert invariances.decide(np.array([values])) is answer


def test_all_as_in_the_table_is_confirmed(results):
    report = invariances.report(results)
    assert report.verdict == "confirmed" and report.number.startswith("18 of 18 entries as in the table")
    text = " ".join(report.text.split())
    assert "the table is right and the text wrong" in text
    assert "invariant to 0 of the 6 changes" in text


def test_one_entry_the_other_way_is_not_confirmed(results):
    report = invariances.report(with_entry(results, "weight norm", "D scaled", 0.0))
    assert report.verdict == "not confirmed"
    assert report.number == "17 of 18 entries as in the table; the other way: D scaled under weight norm."
    assert "the text is right and the table wrong" in " ".join(report.text.split())


def test_an_undecided_entry_makes_it_depend(results):
    undecided = with_entry(results, "layer norm", "W scaled", 1e-5)
    report = invariances.report(undecided)
    assert report.verdict == "depends" and report.number == "17 of 18 entries as in the table."
    assert report.depends_on == "the seed or the amount in W scaled under layer norm"
    both = with_entry(undecided, "batch norm", "x scaled", 0.0)
    assert invariances.verdict(both).verdict == "not confirmed"


def test_stored_statistics_have_no_part_in_the_verdict(results):
    report = invariances.report(with_entry(results, experiment.STORED, "x scaled", 0.0))
    assert report.verdict == "confirmed"
    assert "invariant to 1 of the 6 changes" in " ".join(report.text.split())
