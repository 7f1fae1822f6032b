"""The study of initialisation: its arithmetic, its verdict on made-up numbers, and a quick run of it."""

from __future__ import annotations

import numpy as np
import pytest

from lnrnn import demos
from lnrnn.demos import initialisation
from lnrnn.demos.initialisation import NORMS, RATES, SCALES, Results
from lnrnn.demos.study import VERDICTS


def made_up(**trained: int) -> Results:
    """Results of 5 seeds in which so many (no_norm, LN, BN) of the 63 points of the grid train, one more or
    less from seed to seed."""
    accuracy = {}
    for name in NORMS:
        found = np.full((5, len(SCALES) * len(RATES)), 0.1)
        for seed, more in enumerate((0, 1, -1, 1, -1)):
            found[seed, : trained[name.replace(" ", "_")] + more] = 0.95
        accuracy[name] = found.reshape(5, len(SCALES), len(RATES))
    return Results(accuracy, SCALES, RATES)


@pytest.mark.parametrize(
    ("trained", "verdict", "depends_on"),
    [
        ((20, 40, 40), "confirmed", ""),
        ((20, 20, 20), "not confirmed", ""),
        ((40, 20, 20), "not confirmed", ""),
        ((20, 26, 26), "not confirmed", ""),  # 6 of 63: more, but within the margin
        ((20, 40, 20), "depends", "the norm: it holds for LN"),
        ((20, 20, 40), "depends", "the norm: it holds for BN"),
    ],
)
def test_the_verdict_follows_the_rule(trained, verdict, depends_on):
    results = made_up(**dict(zip(("no_norm", "LN", "BN"), trained, strict=True)))
    found = initialisation.report(results)
    assert (found.verdict, found.depends_on) == (verdict, depends_on)
    assert f"LN {100 * trained[1] / 63:.1f}±" in found.number


def test_the_share_counts_what_reaches_90_percent():
    accuracy = np.array([[[0.9, 0.899], [0.0, 1.0]], [[0.1, 0.1], [0.1, 0.95]]])
    results = Results(dict.fromkeys(NORMS, accuracy), (1.0, 2.0), (0.1, 0.2))
    np.testing.assert_array_equal(results.shares("LN"), [0.5, 0.25])
    by_scale = initialisation.share_table(results, "scale", results.scales, 2).splitlines()
    assert by_scale[0].split() == ["scale", "1", "2"] and by_scale[3].split() == ["LN", "25", "50"]
    by_rate = initialisation.share_table(results, "rate", results.rates, 1).splitlines()
    assert by_rate[0].split() == ["rate", "0.1", "0.2"] and by_rate[3].split() == ["LN", "25", "50"]


def test_where_nothing_trains_it_says_so():
    text = initialisation.report(made_up(no_norm=1, LN=20, BN=20)).text
    assert "no norm trains from" in text and max(map(len, text.splitlines())) <= 80
    results = Results(dict.fromkeys(NORMS, np.full((2, 1, 1), 0.1)), (1.0,), (0.1,))
    assert "no scale and rate trains" in initialisation.report_text(results)


def test_a_quick_run(tmp_path, capsys):
    pytest.importorskip("sklearn")
    pytest.importorskip("tqdm")
    pytest.importorskip("matplotlib")
    report = demos.run("initialisation", seeds=2, output_dir=tmp_path, quick=True)
    printed = capsys.readouterr().out
    assert (tmp_path / "initialisation.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert report.verdict in VERDICTS and report.text in printed
    lines = printed.splitlines()
    assert max(len(line) for line in lines if not line.startswith("Figure: ")) <= 80
    again = demos.run("initialisation", seeds=2, output_dir=tmp_path, quick=True, figure=False)
    assert again == report
