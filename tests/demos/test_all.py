"""``lnrnn demo all --quick``: every study, from the command line to the table at the end."""

from __future__ import annotations

import json

import pytest

from lnrnn import cli
from lnrnn.demos import every
from lnrnn.demos.registry import DEMOS, study_of
from lnrnn.demos.study import VERDICTS


def test_all_demos_run_and_end_in_one_table(tmp_path, capsys):
    for package in ("tqdm", "matplotlib", "sklearn"):
        pytest.importorskip(package)
    assert cli.main(["demo", "all", "--quick", "--seeds", "1", "--output-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
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
    lines = [line for line in shown.splitlines() if not line.startswith("Figure: ")]
    assert max(map(len, lines)) <= 80
    # Everything is known now: a second time nothing is run.
    assert cli.main(["demo", "all", "--quick", "--seeds", "1", "--output-dir", str(tmp_path)]) == 0
    again = capsys.readouterr().out
    assert "Took" not in again and again.count("known from an earlier run") == len(names)
    assert table.endswith(again[again.index("\n\naxes: ") + 2 :])
