"""The tool of mutants in a package of two modules: what it takes for noticed, and what survives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tree_sitter_c", reason="needs the extra campaigns")

HERE = Path(__file__).parent
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
    """The modules of the tool."""
    monkeypatch.syspath_prepend(str(HERE))
    import run_mutants

    return run_mutants


def test_a_sample_is_noticed_but_for_the_function_without_a_test(tool, tmp_path):
    for name, text in (("lnrnn/__init__.py", ""), ("lnrnn/toy.py", PYTHON), ("tests/test_toy.py", TEST)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    mutants = tool.Source("lnrnn/toy.py", PYTHON).mutants()
    drawn = tool.draw({"lnrnn/toy.py": tool.Source("lnrnn/toy.py", PYTHON)}, 3, 9, None)
    assert drawn == tool.draw({"lnrnn/toy.py": tool.Source("lnrnn/toy.py", PYTHON)}, 3, 9, None)
    assert len(drawn) == 2 and set(drawn) <= set(mutants)  # one for each line that has any
    negated = next(m for m in mutants if m.operator == "condition negated")
    plus = next(m for m in mutants if m.operator == "+ to -")
    tool.edit(tmp_path, {"lnrnn/toy.py": [tool.mutant_edit(negated, 1), tool.mutant_edit(plus, 2)]}, tmp_path)
    measure = type("", (), {"choose": lambda self, mutant: [tool.Chosen(1, ["tests/test_toy.py"])]})()
    campaign = tool.Campaign(tmp_path, tmp_path, measure, 60)
    for number, mutant in ((1, negated), (2, plus)):
        campaign.run(number, mutant)
    results = campaign.results
    assert results[negated.key]["by"] == "tests/test_toy.py::test_larger"
    assert results[plus.key]["by"] is None and not results[plus.key]["reached"]


def test_mutants_of_c_in_one_build(tool, tmp_path):
    mutants = tool.Source("toy.c", C).mutants()
    chosen = [
        m
        for m in mutants
        if m.operator in ("constant + 1", "< to <=", "index + 1") and "for" in m.near[0] + m.text
    ]
    assert len(chosen) == 3
    (tmp_path / "lnrnn").mkdir()
    (tmp_path / "toy.c").write_text(C)
    tool.edit(tmp_path, {"toy.c": [tool.mutant_edit(m, k) for k, m in enumerate(chosen, 1)]}, tmp_path)
    subprocess.run(["gcc", "-shared", "-fPIC", "toy.c", "-o", "toy.so"], cwd=tmp_path, check=True)
    call = "import ctypes; print(ctypes.CDLL('./toy.so').sum(2, (ctypes.c_int * 3)(1, 2, 4)))"
    found = {
        subprocess.run(
            [sys.executable, "-c", call], cwd=tmp_path, env={"LNRNN_FAULT": str(number)}, capture_output=True
        ).stdout.strip()
        for number in range(4)
    }
    assert found == {b"3", b"2", b"7", b"6"}


def test_places_of_cython(tool):
    source = tool.Source("pyx/toy.pxi", CYTHON)
    assert [name for name, _ in source.functions] == ["Row.find"]
    assert {(m.line, m.was, m.becomes) for m in source.mutants()} >= {
        (4, "1", "1 + 1"),
        (4, "n - 1", "n + 1"),
        (5, "self.note(&a[i])", "pass"),
        (5, "i", "(i) + 1"),
    }


def test_the_interval_of_a_rate(tool):
    low, high = tool.wilson(101, 106)
    assert (round(low, 3), round(high, 3)) == (0.894, 0.98)
