"""What all studies have in common: reports, verdicts, `demo all` and `demo --list`."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import lnrnn
from lnrnn import cli, demos
from lnrnn.data import Utterances
from lnrnn.demos import every, findings, registry
from lnrnn.demos.length_experiment import BATCH_NORM, LAYER_NORM, Results
from lnrnn.demos.outcomes import Outcome
from lnrnn.demos.speakers import TRAININGS
from lnrnn.demos.study import BAR, VERDICTS, Report, Study


@pytest.mark.parametrize("verdict, depends_on", [("yes", ""), ("confirmed", "luck"), ("depends", "")])
def test_a_verdict_is_one_of_three(verdict, depends_on):
    with pytest.raises(ValueError, match="a verdict is one of"):
        Report(verdict, "1 of 2", "", depends_on)


def test_a_report_tells_its_verdict():
    assert [Report(v, "", "", "x" if v == "depends" else "").told for v in VERDICTS] == [
        "confirmed",
        "not confirmed",
        "depends on x",
    ]


def study(name, calls, progress_to=1.0):
    def measure(seeds, quick, progress):
        calls.append((name, seeds, quick, lnrnn.get_num_threads()))
        progress(progress_to, "half way")
        return np.arange(seeds)

    return Study(
        name=name,
        claim=f"{name} is claimed",
        source="somebody, somewhere",
        how=lambda seeds, quick: f"{seeds} seeds",
        measure=measure,
        report=lambda results: Report("confirmed", f"{len(results)} of {len(results)}", f"text of {name}"),
        draw=lambda results, figure: figure.subplots().plot(results),
    )


def test_a_study_measures_on_one_thread_prints_and_draws(tmp_path, capsys):
    pytest.importorskip("tqdm")
    pytest.importorskip("matplotlib")
    calls, threads = [], lnrnn.get_num_threads()
    report = study("a-b", calls, 0.5).run(seeds=3, output_dir=tmp_path / "new", quick=True, figure=True)
    shown = capsys.readouterr().out
    assert calls == [("a-b", 3, True, 1)] and lnrnn.get_num_threads() == threads
    assert (report.verdict, report.number) == ("confirmed", "3 of 3")
    for text in ("a-b is claimed (somebody, somewhere)", "3 seeds", "A quick run", "text of a-b"):
        assert text in shown
    assert "\n\nVerdict: confirmed. 3 of 3\n\ntext of a-b\n\nFigure: " in shown
    assert (tmp_path / "new/a_b.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a_b.png"]


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("elapsed", [5, 4000])
def test_the_progress_bar_has_room_whatever_is_said(columns, elapsed):
    tqdm = pytest.importorskip("tqdm").tqdm
    words = "the first 10 steps, no norm, seed 0"
    bar = tqdm.format_meter(50, 100, elapsed, ncols=columns, ascii=" #", bar_format=BAR, prefix=words)
    assert len(bar) <= columns and bar.startswith(f" 50%|{10 * '#'}{10 * ' '}| ")
    assert words[:10] in bar and (columns == 60 or bar.endswith("  " + words))


@pytest.fixture
def two(monkeypatch):
    """Two studies in the place of all demos, and the calls that they get."""
    pytest.importorskip("tqdm")
    calls = []
    found = {name: registry.Demo(name, f"{name} is claimed", name == "two") for name in ("one", "two")}
    monkeypatch.setattr(every, "DEMOS", found)
    monkeypatch.setattr(every, "CELLS", ("a", "b"))
    monkeypatch.setattr(every, "study_of", lambda name, cell: study(name + (cell or ""), calls))
    return calls, monkeypatch


def test_all_goes_on_where_it_was_interrupted(tmp_path, capsys, two):
    calls, monkeypatch = two
    usual = every.study_of

    def measure(*_):
        raise KeyboardInterrupt

    def interrupted(name, cell):
        found = usual(name, cell)
        return replace(found, measure=measure) if cell == "a" else found

    monkeypatch.setattr(every, "study_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demos.run("all", seeds=2, output_dir=tmp_path, figure=False)
    monkeypatch.setattr(every, "study_of", usual)
    demos.run("all", seeds=2, output_dir=tmp_path, figure=False)
    shown = capsys.readouterr().out
    assert [name for name, *_ in calls] == ["one", "twoa", "twob"]
    assert "one: one is claimed\n    confirmed. 2 of 2\ntwoa: two is claimed\n    confirmed. 2 of 2" in shown
    # Another number of seeds is another run; a damaged file is none.
    demos.run("all", seeds=3, output_dir=tmp_path, figure=False)
    assert len(calls) == 6
    (tmp_path / every.FILE).write_text("{")
    demos.run("all", seeds=3, output_dir=tmp_path, figure=False)
    assert len(calls) == 9
    assert json.loads((tmp_path / every.FILE).read_text())["reports"].keys() == {"one", "twoa", "twob"}


def test_reports_that_cannot_be_kept_are_told_before_any_training(tmp_path, two):
    calls, _ = two
    (tmp_path / every.FILE).mkdir()
    with pytest.raises(IsADirectoryError, match=every.FILE):
        demos.run("all", output_dir=tmp_path, figure=False)
    assert not calls


def test_the_list(capsys):
    assert cli.main(["demo", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for name, demo in registry.DEMOS.items():
        assert any(line.startswith(f"  {name}: ") for line in lines) and demo.claim in " ".join(
            " ".join(lines).split()
        )


# Changes of accuracy in percent under the two trainings, by method, and what follows.
FAILS, HOLDS, UNCLEAR = -20, 0, -3
CASES = [
    ("confirmed", "", {"LN": (HOLDS, HOLDS), "last": (FAILS, FAILS), "mean": (FAILS, FAILS)}),
    (
        "depends",
        "the training; what BN does past the steps it knows",
        {"LN": (HOLDS, HOLDS), "last": (HOLDS, FAILS), "mean": (HOLDS, FAILS)},
    ),
    (
        "depends",
        "what BN does past the steps it knows",
        {"LN": (HOLDS, HOLDS), "last": (FAILS, FAILS), "mean": (HOLDS, HOLDS)},
    ),
    (
        "depends",
        "chance: LN's change is not clear of the margin",
        {"LN": (HOLDS, UNCLEAR), "last": (FAILS, FAILS), "mean": (FAILS, FAILS)},
    ),
    ("not confirmed", "", {"LN": (HOLDS, FAILS), "last": (FAILS, FAILS), "mean": (FAILS, FAILS)}),
    ("not confirmed", "", {"LN": (HOLDS, HOLDS), "last": (HOLDS, UNCLEAR), "mean": (HOLDS, HOLDS)}),
]


@pytest.mark.parametrize("verdict, depends_on, changes", CASES)
def test_the_verdict_on_long_sequences_follows_the_numbers(verdict, depends_on, changes):
    labels = np.zeros(200, np.int64)

    def outcome(percent):
        # Seeds differ by half a point: the interval reaches about 0.8 points to either side.
        right = (round(2 * percent) + shift for shift in (-1, 0, 1, 0))
        return Outcome(np.stack([np.arange(200) >= number for number in right]).astype(np.int64), labels)

    results = Results(Utterances([np.zeros((15, 1), np.float32)] * 200, labels), 4)
    results.joined_lengths = {1: np.full(200, 15), 9: np.full(200, 135)}
    steady = outcome(90)
    for place, training in enumerate(TRAININGS):
        end = {
            LAYER_NORM: changes["LN"],
            BATCH_NORM["raise"]: (-90, -90),
            BATCH_NORM["last"]: changes["last"],
            BATCH_NORM["mean"]: changes["mean"],
        }
        results.joined[training] = {
            1: dict.fromkeys(end, Outcome(np.tile(steady.named[1], (4, 1)), labels)),
            9: {method: outcome(90 + change[place]) for method, change in end.items()},
        }
    report = findings.verdict(results, "text")
    assert (report.verdict, report.depends_on) == (verdict, depends_on)
    assert "single to joined utterances (135 steps): trained on the first 10 steps: LN " in report.number


def test_a_single_seed_has_no_verdict():
    assert findings.fate(np.array([-0.5])) == "unclear"
    assert findings.fate(np.array([-0.5, -0.5])) == "fails"
