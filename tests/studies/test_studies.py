"""Every study runs, its kept results are those that its page needs, and its figure is readable."""

import ast
import importlib
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from common import FOLDER, SEEDS
from matplotlib import pyplot
from matplotlib.text import Text
from sklearn.datasets import load_digits

import lnrnn
from lnrnn import studies

NAMES = [path.stem for path in studies.studies().values()]
SMALLEST, WIDEST = 9, 10  # points of text; inches


def check_a_quick_run(name, folder, printed):
    assert "A quick run" in printed
    assert not any(word in printed for word in ("confirmed", "refuted", "unclear"))
    written = sorted(path.name for path in (folder / "out put").iterdir())
    assert written == [f"{name}.json", f"{name}.png"]
    results = json.loads((folder / "out put" / f"{name}.json").read_text())
    assert results["quick"] and results["results"] and results["clauses"] == []
    assert (folder / "out put" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    assert not Path(folder, f"{name}.json").exists()


QUICK_RUN = ["--quick", "--tune", "--output-dir", "out put"]


# The names at the axes of a quick figure are long.
@pytest.mark.filterwarnings("ignore:constrained_layout not applied:UserWarning")
@pytest.mark.parametrize("name", [name for name in NAMES if name != "axes"])  # the next test runs that
def test_a_quick_run_works_from_another_folder(name, tmp_path, monkeypatch, capsys):
    """All run in this process, because the imports of a new one take longer than a quick run."""
    whole = load_digits()
    few = SimpleNamespace(data=whole.data[:720], target=whole.target[:720])
    monkeypatch.setattr("sklearn.datasets.load_digits", lambda: few)
    monkeypatch.setattr("common.QUICK_SEEDS", SEEDS[:1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *QUICK_RUN])
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    check_a_quick_run(name, tmp_path, capsys.readouterr().out)


def test_a_study_is_a_program(tmp_path):
    root = str(Path(lnrnn.__file__).parents[1])
    found = subprocess.run(
        [sys.executable, str(FOLDER / "axes.py"), *QUICK_RUN],
        cwd=tmp_path, capture_output=True, text=True, timeout=280,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    check_a_quick_run("axes", tmp_path, found.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_the_kept_verdicts_follow_from_the_kept_results_of_twenty_seeds(name):
    study = importlib.import_module(name).STUDY
    assert study.name == name and study.draw.__name__ == "draw"
    for option in study.options or (None,):
        kept, rows = study.kept(option), [clause.row() for clause in study.clauses(study.results(option))]
        assert kept["clauses"] == rows and not kept["quick"] and kept["seeds"] == list(SEEDS)
        path = FOLDER / "results" / study.file(option)
        assert path.stat().st_size < 300_000


def check_a_figure(figure):
    """Asserts that the texts of a figure are large enough, and that its edges cut nothing off."""
    figure.canvas.draw()
    texts = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    assert texts and not {t.get_text(): t for t in texts if t.get_fontsize() < SMALLEST}
    titles = [axes.get_title(loc="left") + axes.get_title() for axes in figure.axes]
    assert any(titles) or figure.get_suptitle()
    drawn, inches = figure.get_tightbbox(), figure.get_size_inches()
    assert inches[0] <= WIDEST and min(drawn.x0, drawn.y0) >= -0.02
    assert drawn.x1 <= inches[0] + 0.02 and drawn.y1 <= inches[1] + 0.02


@pytest.mark.parametrize("name", NAMES)
def test_a_page_draws_and_prints_the_kept_results(name, monkeypatch, capsys):
    """The file runs as in sphinx-gallery and notebooks, from the first cell to the last."""
    pyplot.switch_backend("agg")
    study, text = importlib.import_module(name).STUDY, (FOLDER / f"{name}.py").read_text("utf-8")
    title = (ast.get_docstring(ast.parse(text)) or "").splitlines()
    assert title and set(title[1]) == {"="} and len(title[1]) == len(title[0])
    assert re.search(rf'^show\("{name}", draw\b', text, re.MULTILINE)
    monkeypatch.setattr("common.in_page", lambda: True)
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    check_a_figure(pyplot.figure(pyplot.get_fignums()[0]))
    for option in study.options[1:]:
        study.draw(study.results(option), figure := pyplot.figure(figsize=study.size, layout="constrained"))
        check_a_figure(figure)
    pyplot.close("all")
    printed = capsys.readouterr().out
    assert any(word in printed for word in ("confirmed", "refuted", "holds"))
