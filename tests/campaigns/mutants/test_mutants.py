"""Tests the campaign mutants on a small package."""

from __future__ import annotations

import difflib
import importlib
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

TOY = '''\
"""A module."""
import os


def larger(a, b):
    if a > b:
        return a
    return b


def untested(a):
    return a + 1
'''
TEST = """\
from lnrnn.norm.toy import larger


def test_larger():
    assert larger(1, 2) == 2
    assert larger(3, 2) == 3
"""
NAME = "tests/norm/test_toy.py::test_larger"
# (the first line of a patch, its old and new text, the first line after the campaign)
MUTANTS = [
    (NAME, "a > b", "a < b", NAME),
    ("tests/norm/test_toy.py::test_gone", "a > b", "a == b", NAME),
    ("not run", "return b", "os._exit(3)", "exit status 3"),
    ("no", "a + 1", "a - 1", "no"),
    ("no, message: It is not read.", "a + 1", "a - 2", "no, message: It is not read."),
]


@pytest.fixture
def tool(monkeypatch, tmp_path):
    """Returns the campaign's module, with a small package and its test as the repository."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    tool, root = importlib.import_module("run_mutants"), tmp_path / "root"
    files = {"lnrnn/__init__.py": "", "lnrnn/norm/__init__.py": "", "lnrnn/norm/toy.py": TOY}
    for name, text in {**files, "tests/norm/test_toy.py": TEST}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setattr(tool, "ROOT", root)
    monkeypatch.setattr(tool, "PATCHES", tmp_path / "patches")
    monkeypatch.setattr(tool, "copy_sources", lambda copy: shutil.copytree(root, copy, dirs_exist_ok=True))
    monkeypatch.setattr(tool, "build", lambda copy: None)
    tool.PATCHES.mkdir()
    return tool


def store(tool, number, first, old, new):
    name, rows = "lnrnn/norm/toy.py", [TOY.splitlines(True), TOY.replace(old, new).splitlines(True)]
    diff = "".join(difflib.unified_diff(*rows, f"a/{name}", f"b/{name}"))
    (tool.PATCHES / f"{number:03}.patch").write_text(f"noticed: {first}\n{diff}")


def firsts(tool):
    return [path.read_text().partition("\n")[0][9:] for path in sorted(tool.PATCHES.iterdir())]


def run(tool, tmp_path, **options):
    chosen = dict(folder=tmp_path, limit=60, quick=False, seed=0, new=0) | options
    return tool.sample(SimpleNamespace(**chosen))


def test_a_mutant_is_noticed_and_one_without_a_test_is_not(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "ENOUGH", 0.7)
    for number, (first, old, new, _) in enumerate(MUTANTS):
        store(tool, number, first, old, new)
    assert run(tool, tmp_path) == {"stored": 5, "noticed": 3, "no": 1, "no, message": 1}
    assert firsts(tool) == [after for *_, after in MUTANTS]
    assert (tmp_path / "mutated/lnrnn/norm/toy.py").read_text() == TOY


def test_a_mutant_that_was_noticed_before_is_lost_or_gone(tool, tmp_path):
    store(tool, 0, NAME, "a + 1", "a - 1")
    with pytest.raises(tool.Wrong, match=f"no test notices any more:\n000.patch, noticed by {NAME}"):
        run(tool, tmp_path)
    (tool.ROOT / "lnrnn/norm/toy.py").write_text(TOY.replace("a + 1", "a * 2"))
    assert run(tool, tmp_path) == {"stored": 1, "gone": 1}
    assert firsts(tool) == [NAME]


@pytest.mark.skipif(not importlib.util.find_spec("universalmutator"), reason="needs universalmutator")
def test_new_mutants_change_code_and_are_stored(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "ENOUGH", 0)
    store(tool, 7, *MUTANTS[0][:3])
    assert run(tool, tmp_path, new=4)["stored"] == 5
    assert sorted(path.name for path in tool.PATCHES.iterdir())[-1] == "011.patch"
    assert "not run" not in firsts(tool)
