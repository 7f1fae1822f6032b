"""Tests the campaign mutants on small sources in Python, C and Cython."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("tree_sitter_c", reason="needs the extra campaigns")

PYTHON = '''"""A module."""
from __future__ import annotations


def larger(a, b):
    """Of two numbers."""
    if a > b:
        return a
    return b


def untested(a):
    return a + 1
'''
C = """\
int sum(int n, const int *a)
{
    int s = 0;
    for (int i = 0; i < n; i++)
        s += a[i];
    return s;
}
"""
CYTHON = """\
cdef class Row(Base):
    cdef int find(self, double *a,
                  int n) except -1:
        cdef Py_ssize_t i = <Py_ssize_t>n - 1
        self.note(&a[i])
        return i
"""
TEST = """\
from lnrnn.toy import larger


def test_larger():
    assert larger(1, 2) == 2
    assert larger(3, 2) == 3
"""


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return importlib.import_module("run_mutants")


def test_a_seed_gives_the_same_sample_with_one_mutant_per_line(tool):
    found = {"lnrnn/toy.py": tool.Source("lnrnn/toy.py", PYTHON)}
    drawn = tool.draw(found, 3, 9)
    assert [mutant.line for mutant in sorted(drawn, key=lambda mutant: mutant.line)] == [7, 13]
    assert drawn == tool.draw(found, 3, 9)


def test_a_mutant_is_noticed_and_one_without_a_test_survives(tool, tmp_path):
    for name, text in (("lnrnn/__init__.py", ""), ("lnrnn/toy.py", PYTHON), ("tests/test_toy.py", TEST)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    mutants = tool.Source("lnrnn/toy.py", PYTHON).mutants()
    pair = [next(m for m in mutants if m.operator == name) for name in ("condition negated", "+ to -")]
    edits = [tool.mutant_edit(mutant, number) for number, mutant in enumerate(pair, 1)]
    tool.edit(tmp_path, {"lnrnn/toy.py": edits}, tmp_path)
    measure = SimpleNamespace(choose=lambda mutant: [tool.Chosen(1, ["tests/test_toy.py"])])
    campaign = tool.Campaign(tmp_path, tmp_path, measure, 60)
    for number, mutant in enumerate(pair, 1):
        campaign.run(number, mutant)
    results = [campaign.results[mutant.key] for mutant in pair]
    assert [result["by"] for result in results] == ["tests/test_toy.py::test_larger", None]
    assert [result["reached"] for result in results] == [True, False]
    verdict = {pair[1].key: {"verdict": "equivalent"}}
    assert tool.figures_of(campaign.results, {})["rate"] == 0.5
    assert tool.figures_of(campaign.results, verdict)["rate"] == 1


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_one_build_of_c_runs_every_mutant(tool, tmp_path):
    wanted = ("constant + 1", "< to <=", "index + 1")
    mutants = [m for m in tool.Source("toy.c", C).mutants() if m.operator in wanted and m.line > 3]
    (tmp_path / "lnrnn").mkdir()
    (tmp_path / "toy.c").write_text(C)
    tool.edit(tmp_path, {"toy.c": [tool.mutant_edit(m, k) for k, m in enumerate(mutants, 1)]}, tmp_path)
    subprocess.run(["gcc", "-shared", "-fPIC", "toy.c", "-o", "toy.so"], cwd=tmp_path, check=True)
    call = "import ctypes; print(ctypes.CDLL('./toy.so').sum(2, (ctypes.c_int * 3)(1, 2, 4)))"
    sums = []
    for number in range(4):
        environment = {**os.environ, "LNRNN_FAULT": str(number)}
        sums.append(int(subprocess.check_output([sys.executable, "-c", call], cwd=tmp_path, env=environment)))
    assert sums[0] == 3 and sorted(sums[1:]) == [2, 6, 7]


def test_no_mutant_removes_a_macro_that_may_be_a_declaration(tool):
    body = "void f(void)\n{\n    DEFAULT_FLOATS;\n    g();\n}\n"
    assert [(m.operator, m.was) for m in tool.Source("toy.c", body).mutants()] == [
        ("statement left out", "g();")
    ]


def test_mutants_of_cython_have_the_positions_of_the_source(tool):
    source = tool.Source("pyx/toy.pxi", CYTHON)
    assert [name for name, _ in source.functions] == ["Row.find"]
    assert {(m.line, m.was, m.becomes) for m in source.mutants()} >= {
        (4, "1", "1 + 1"),
        (4, "n - 1", "n + 1"),
        (5, "self.note(&a[i])", "pass"),
        (5, "i", "(i) + 1"),
    }


def test_a_stored_patch_belongs_to_the_mutant_of_the_same_lines_when_code_moves(tool, tmp_path, monkeypatch):
    stored = tool.stored
    monkeypatch.setattr(stored, "FOLDER", tmp_path / "patches")
    folder, name = tmp_path / "lnrnn", "lnrnn/toy.py"
    folder.mkdir()
    (folder / "toy.py").write_text(PYTHON)
    found = {name: tool.Source(name, PYTHON)}
    drawn = tool.draw(found, 3, 9)
    stored.write(drawn, found)
    for patch in (read := stored.read()):
        subprocess.run(["git", "apply", "--check", str(patch.path)], cwd=tmp_path, check=True)
    ordered = sorted(drawn, key=lambda mutant: mutant.line)
    assert [mutant for _, mutant in stored.of_today(read, found)] == ordered
    moved = {
        "lnrnn/other.py": tool.Source("lnrnn/other.py", "N = 1\n\n\n" + PYTHON.replace("a + 1", "a + 2"))
    }
    pairs = stored.of_today(read, moved)
    assert [mutant and mutant.line for _, mutant in pairs] == [ordered[0].line + 3, None]
    by = {pairs[0][1].key: {"by": "tests/test_toy.py::test_larger"}}
    assert tool.compared(pairs, by) == {"stored": 2, "noticed": 1, "gone": 1}
    assert [patch.noticed for patch in stored.read()] == ["tests/test_toy.py::test_larger", "not run"]
    pairs = stored.of_today(stored.read(), moved)
    with pytest.raises(tool.Wrong, match="001.patch, noticed by tests/test_toy.py::test_larger"):
        tool.compared(pairs, {pairs[0][1].key: {"by": None}})
