"""``lnrnn demo all --quick``: all studies, from the command line to the table at the end; three widths."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace

import pytest

from lnrnn import cli
from lnrnn.demos import every
from lnrnn.demos.registry import DEMOS, study_of
from lnrnn.demos.study import VERDICTS


@pytest.fixture(scope="module")
def measured():
    """Results of the quick studies by name: every study measures once."""
    for package in ("tqdm", "matplotlib", "sklearn"):
        pytest.importorskip(package)
    return {}


@pytest.fixture
def run_all(measured, monkeypatch, capfd, tmp_path):
    """Runs `demo all --quick` in a terminal of so many columns; returns what it prints to stdout, stderr."""

    def remembering(*pair):
        found = study_of(*pair)

        def measure(*arguments):
            if found.name not in measured:
                measured[found.name] = found.measure(*arguments)
            return measured[found.name]

        return replace(found, measure=measure)

    def run(columns, *arguments):
        monkeypatch.delenv("COLUMNS")
        monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((columns, 25)))
        command = ["demo", "all", "--quick", "--seeds", "1", "--output-dir", str(tmp_path), *arguments]
        assert cli.main(command) == 0
        return capfd.readouterr()

    monkeypatch.setattr(every, "study_of", remembering)
    return run


def test_all_demos_run_and_end_in_one_table(tmp_path, run_all, monkeypatch):
    shown, _ = run_all(80)
    names = list(every.parts())
    assert list(dict.fromkeys(demo for demo, _ in every.parts().values())) == list(DEMOS)
    reports = json.loads((tmp_path / every.FILE).read_text())["reports"]
    assert list(reports) == names and {report["verdict"] for report in reports.values()} <= set(VERDICTS)
    figures = {study_of(*pair).file for pair in every.parts().values()}
    assert {path.name for path in tmp_path.iterdir()} == {every.FILE, *figures}
    table = shown[shown.rindex("Took ") :]
    for place, name in enumerate(names, 1):
        assert f"--- {place} of {len(names)}: {name} -" in shown
        assert f"\n{name}: " in table and reports[name]["number"][:20] in " ".join(table.split())
    # Everything is known now: a second time nothing is run.
    monkeypatch.setenv("COLUMNS", "80")
    again, _ = run_all(80)
    assert "Took" not in again and again.count("known from an earlier run") == len(names)
    assert table.endswith(again[again.index("\n\naxes: ") + 2 :])


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_every_demo_fits_the_terminal_findings_first(columns, run_all):
    shown, progress = run_all(columns, "--no-figure")
    assert columns - 20 < max(map(len, shown.splitlines())) <= columns
    studies = re.split(r"(?m)^--- \d+ of \d+: ", shown)[1:]
    assert len(studies) == len(every.parts())
    for text in studies:
        text = text[: text.index("\nTook ")]
        verdict, rule = text.index("\nVerdict: "), re.search(r"(?m)^----+$", text).start()
        findings = [match.start() for match in re.finditer(r"(?m)^- ", text)]
        assert verdict < findings[0] and findings[-1] < rule, text
    bars = [line for line in re.split(r"[\r\n]", progress) if "%|" in line]
    assert len(bars) >= len(studies)
    for bar in bars:
        assert len(bar) <= columns and len(bar.split("|")[1]) >= 20
