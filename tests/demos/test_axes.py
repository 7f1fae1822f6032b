"""The study ``axes``: what it finds out by calls is right, and its verdict follows from it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import lnrnn
from lnrnn import demos
from lnrnn.demos import axes
from lnrnn.demos.study import VERDICTS


@pytest.fixture(scope="module")
def results():
    return axes.measure(2, True, lambda done, text: None)


def index(norm, layout):
    return next(
        place for place, case in enumerate(axes.CLAIMED) if (case.norm, case.layout) == (norm, layout)
    )


def changed(results, norm, layout, **found):
    """The results with one case found otherwise, under every seed."""
    place = index(norm, layout)
    other = list(results)
    other[place] = [replace(one, **found) for one in results[place]]
    return other


def test_the_study_runs_and_repeats_itself(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    pytest.importorskip("tqdm")
    first = demos.run("axes", seeds=1, output_dir=tmp_path, quick=True)
    shown = capsys.readouterr().out
    assert max(len(line) for line in shown.splitlines() if not line.startswith("Figure: ")) <= 80
    assert first.verdict in VERDICTS and first.number in " ".join(shown.split())
    assert (tmp_path / "axes.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert demos.run("axes", seeds=1, output_dir=tmp_path, quick=True, figure=False) == first


# --- the measure, where the answer is known -----------------------------------------------------------------


def test_moved_sees_what_a_function_mixes():
    x = np.arange(6.0).reshape(2, 3)
    assert axes.moved(lambda x: 2 * x, x).tolist() == np.eye(6, dtype=bool).tolist()
    rows = axes.moved(lambda x: x - x.mean(1, keepdims=True), x)
    assert rows.tolist() == np.kron(np.eye(2), np.ones((3, 3))).astype(bool).tolist()
    assert not axes.moved(np.zeros_like, x).any()


def test_group_numbers_groups_and_notices_what_is_none():
    columns = np.array([[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]], bool)
    numbers, disjoint = axes.group(columns)
    assert numbers.tolist() == [0, 1, 0, 1] and disjoint
    _, disjoint = axes.group(np.tril(np.ones((4, 4), bool)))  # a cumulative sum: each moves all that follow
    assert not disjoint


@pytest.mark.parametrize(
    ("groups", "letters"),
    [([[0, 1, 2]] * 2, "A"), ([[0] * 3, [1] * 3], "B"), ([[0] * 3] * 2, "AB"), ([[0, 1, 2], [3, 4, 5]], "")],
)
def test_axes_of(groups, letters):
    assert axes.axes_of(np.array(groups), "AB") == letters


def test_standardise():
    x = np.array([[1.0, 10.0], [3.0, 30.0]])
    y, mean, sigma = axes.standardise(x, np.array([[0, 1], [0, 1]]), 0)
    assert y.tolist() == [[-1, -1], [1, 1]] and mean.tolist() == [2, 20] and sigma.tolist() == [1, 10]
    assert axes.standardise(x, np.zeros((2, 2), int), 0.5)[2] == pytest.approx([(x.var() + 0.5) ** 0.5])


@pytest.mark.parametrize(
    ("norm", "layout", "over", "statistics", "gains", "stored", "back"),
    [
        ("BN", "NC", "N", 3, 6, 7, 3),
        ("BN", "NCL", "NL", 3, 6, 7, 3),
        ("BN", "NCHW", "NHW", 3, 6, 7, 3),
        ("BN per step", "TBH", "B", 20, 10, 44, 5),
        ("BN, all steps", "TBH", "TB", 5, 10, 11, 5),
        ("LN", "NC", "C", 4, 6, 0, 1),
        ("LN", "NCL", "CL", 3, 24, 0, 1),
        ("LN", "NCHW", "CHW", 2, 24, 0, 1),
        ("LN", "TBH", "H", 12, 10, 0, 1),
    ],
)
def test_what_is_found(results, norm, layout, over, statistics, gains, stored, back):
    for found in results[index(norm, layout)]:
        assert found.disjoint and found.exact
        assert (found.over, found.statistics, found.gains, found.back) == (over, statistics, gains, back)
        assert sum(found.stored.values()) == stored
        assert found.infer == (over if norm == "LN" else "")


def test_another_norm_is_found_to_group_otherwise():
    shape = axes.SHAPES["NCL"]
    case = axes.CLAIMED[index("LN", "NCL")]
    found = axes.probe(replace(case, make=lambda: axes.batch(shape)), 0)
    assert found.over == "NL" and not axes.is_grouped(case, found) and not axes.is_stored(case, found)
    # Statistics per sample and channel, as instance norm takes them: neither of the two.
    alone = replace(
        axes.layer_over_all_but_the_first(shape),
        train=lambda x: lnrnn.layer_norm(x, shape[2]),
        infer=lambda x: lnrnn.layer_norm(x, shape[2]),
    )
    found = axes.probe(replace(case, make=lambda: alone), 0)
    assert found.over == "L" and found.statistics == 9 and not axes.is_grouped(case, found)


# --- the verdict --------------------------------------------------------------------------------------------


def test_all_as_claimed_is_confirmed(results):
    report = axes.report(results)
    assert report.verdict == "confirmed"
    assert report.number == (
        "As claimed: grouping in 9 of 9 cases, storage in 9 of 9 cases, giving back in 3 of 3 cases."
    )
    assert "5 of 5 cases" in " ".join(report.text.split())


@pytest.mark.parametrize(
    ("norm", "layout", "found", "part"),
    [
        ("LN", "NCHW", {"over": "C", "infer": "C"}, "grouping"),
        ("BN", "NC", {"disjoint": False}, "grouping"),
        ("BN", "NC", {"exact": False}, "grouping"),
        ("LN", "NC", {"stored": {"running_mean": 3}}, "storage"),
        ("LN", "NC", {"infer": ""}, "storage"),
        ("BN", "NCL", {"infer": "NL"}, "storage"),
        ("BN", "NCL", {"stored": {"running_mean": 3}}, "storage"),
        ("BN", "NCL", {"back": 2}, "giving back"),
    ],
)
def test_a_part_that_fails_is_named(results, norm, layout, found, part):
    other = changed(results, norm, layout, **found)
    report = axes.verdict(other)
    assert report.verdict == "depends" and report.depends_on == f"the part: {part} not as claimed"
    assert [name for name in axes.PARTS if not all(axes.holds(name, other))] == [part]


def test_what_is_not_claimed_is_not_judged(results):
    assert axes.verdict(changed(results, "LN", "NC", back=0)).verdict == "confirmed"


def test_all_parts_failing_is_not_confirmed(results):
    other = changed(results, "BN", "NC", over="C", stored={}, back=0)
    assert axes.verdict(other).verdict == "not confirmed"


def test_seeds_that_differ_are_no_confirmation(results):
    other = list(results)
    place = index("BN", "NC")
    other[place] = [results[place][0], replace(results[place][1], gains=5)]
    assert axes.verdict(other).verdict == "not confirmed"
