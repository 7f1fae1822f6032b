"""The faults of `make mutants` still fit the sources, and what it takes for noticed was noticed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from helpers import program

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="module")
def mutants():
    before = list(sys.path)
    yield program(HERE / "run.py")
    sys.path[:] = before


def test_every_fault_fits(mutants, tmp_path):
    for folder in ("include", "pyx", "lnrnn"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.so", "_core.c"))
    faults = mutants.all_faults()
    assert len(faults) >= 200
    mutants.apply(faults, tmp_path)
    for fault in faults:
        assert (ROOT / fault.tests.split()[0].split("::")[0]).exists(), fault.name
        if fault.file.endswith(".py"):
            path = tmp_path / fault.file
            compile(path.read_text(), str(path), "exec")


SMALL = '''"""A module."""
from __future__ import annotations

def double(x):
    return 2 * x
'''


@pytest.fixture
def small(mutants, tmp_path):
    """What becomes of a fault in a package of one module and one test."""
    (tmp_path / "tests").mkdir()

    def run(becomes, test, **options):
        (tmp_path / "small.py").write_text(SMALL)
        (tmp_path / "tests/test_small.py").write_text(
            f"from small import double\n\n\ndef test():\n    {test}\n"
        )
        fault = mutants.Fault("a fault", "small.py", "2 * x", becomes, "tests/test_small.py", **options)
        mutants.apply([fault], tmp_path)
        assert mutants.pytest(tmp_path, ["tests"], 0, 60)[0] == 0  # nothing is wrong while it is not on
        return mutants.verdict(tmp_path, 1, fault, [], True)

    return run


def test_noticed(small):
    assert small("(3 if FAULT else 2) * x", "assert double(2) == 4")["by"] == "tests/test_small.py::test"


def test_not_noticed(small):
    found = small("(3 if FAULT else 2) * x", "assert double(0) == 0")
    assert found["by"] is None and found["part"] == "whole"


def test_a_crash_is_noticed(small):
    assert "ends" in small("__import__('os').abort() if FAULT else 2 * x", "assert double(2) == 4")["by"]


@pytest.mark.parametrize(
    "was, becomes, said",
    [
        ("3 * x", "FAULT", "0 times"),
        ("x", "FAULT", "2 times"),
        ("2 * x", "3 * x", "nothing switches it on"),
    ],
)
def test_a_fault_that_does_not_fit(mutants, tmp_path, was, becomes, said):
    (tmp_path / "small.py").write_text(SMALL)
    with pytest.raises(ValueError, match=said):
        mutants.apply([mutants.Fault("a fault", "small.py", was, becomes, "tests")], tmp_path)


def test_two_faults_in_one_place(mutants, tmp_path):
    (tmp_path / "small.py").write_text(SMALL)
    faults = [
        mutants.Fault("one", "small.py", "2 * x", "FAULT", "tests"),
        mutants.Fault("two", "small.py", "return 2", "return FAULT", "tests"),
    ]
    with pytest.raises(ValueError, match="the same text"):
        mutants.apply(faults, tmp_path)
