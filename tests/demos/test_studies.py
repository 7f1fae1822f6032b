"""What all studies have in common: reports, verdicts, `demo all` and `demo --list`."""

from __future__ import annotations

import json

import numpy as np
import pytest

import lnrnn
from lnrnn import cli, demos
from lnrnn.demos import every, findings, registry
from lnrnn.demos.study import VERDICTS, Report, Study


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
    assert "Verdict: confirmed. 3 of 3" in shown
    assert (tmp_path / "new/a_b.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a_b.png"]


@pytest.fixture
def two(monkeypatch):
    """Two studies in the place of all demos, and the calls that they get."""
    pytest.importorskip("tqdm")
    calls = []
    found = {name: registry.Demo(name, f"{name} is claimed") for name in ("one", "two")}
    monkeypatch.setattr(every, "DEMOS", found)

    def run_one(name, **options):
        return study(name, calls).run(**options)

    monkeypatch.setattr(every, "run_one", run_one)
    return calls, monkeypatch


def test_all_goes_on_where_it_was_interrupted(tmp_path, capsys, two):
    calls, monkeypatch = two
    usual = every.run_one

    def interrupted(name, **options):
        if name == "two":
            raise KeyboardInterrupt
        return usual(name, **options)

    monkeypatch.setattr(every, "run_one", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demos.run("all", seeds=2, output_dir=tmp_path, figure=False)
    monkeypatch.setattr(every, "run_one", usual)
    demos.run("all", seeds=2, output_dir=tmp_path, figure=False)
    shown = capsys.readouterr().out
    assert [name for name, *_ in calls] == ["one", "two"]
    assert "one: one is claimed\n    confirmed. 2 of 2\ntwo: two is claimed\n    confirmed. 2 of 2" in shown
    # Another number of seeds is another run; a damaged file is none.
    demos.run("all", seeds=3, output_dir=tmp_path, figure=False)
    assert len(calls) == 4
    (tmp_path / every.FILE).write_text("{")
    demos.run("all", seeds=3, output_dir=tmp_path, figure=False)
    assert len(calls) == 6
    assert json.loads((tmp_path / every.FILE).read_text())["reports"].keys() == {"one", "two"}


def test_the_list(capsys):
    assert cli.main(["demo", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for name, demo in registry.DEMOS.items():
        assert any(line.startswith(f"  {name}: ") for line in lines) and demo.claim in " ".join(
            " ".join(lines).split()
        )


@pytest.mark.parametrize(
    "layer, last, mean, verdict",
    [(0.9, 0.5, 0.5, "confirmed"), (0.9, 0.9, 0.5, "depends"), (0.2, 0.5, 0.5, "not confirmed")],
)
def test_the_verdict_on_long_sequences_follows_the_numbers(layer, last, mean, verdict):
    from lnrnn.data import Utterances
    from lnrnn.demos.length_experiment import BATCH_NORM, LAYER_NORM, TRAININGS, Results, StepStatistics
    from lnrnn.demos.outcomes import Outcome

    labels = np.zeros(100, np.int64)

    def outcome(accuracy):
        right = np.arange(100) >= round(100 * accuracy)
        return Outcome(np.stack([np.roll(right, k) for k in (0, 1, 0, 1)]).astype(np.int64), labels)

    test = Utterances([np.zeros((15, 1), np.float32)] * 100, labels)
    refused = layer if verdict == "not confirmed" else 0.3
    by_method = {
        LAYER_NORM: outcome(layer),
        BATCH_NORM["raise"]: outcome(refused),
        BATCH_NORM["last"]: outcome(last),
        BATCH_NORM["mean"]: outcome(mean),
    }
    training = next(iter(TRAININGS))
    statistics = StepStatistics(np.zeros((10, 3)), np.ones((10, 3)), np.full(10, 9))
    results = Results(test, 4, {training: by_method}, {}, {}, {training: statistics})
    report = findings.verdict(results, "text")
    assert report.verdict == verdict and "On the 100 longer utterances" in report.number
