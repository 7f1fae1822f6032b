"""What pytest prints of a test that fails: tests/conftest.py names it at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest

@pytest.fixture
def broken():
    raise OSError("no fixture")

def test_first(): assert 1 + 1 == 3, "arithmetic"
def test_second(broken): pass
@pytest.mark.xfail
def test_third(): assert 0
def test_last(): assert 1
"""


@pytest.mark.parametrize("processes", [[], ["-n", "1"]], ids=" ".join)
def test_a_failing_test_is_named_when_it_fails(tmp_path, processes):
    if processes:
        pytest.importorskip("xdist")
    conftest = Path(__file__).parents[1] / "conftest.py"
    (tmp_path / "conftest.py").write_text(conftest.read_text())
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", ".", *processes]
    path = os.pathsep.join(sys.path)
    ran = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    first = "FAILED test_it.py::test_first: AssertionError: arithmetic\n"
    progress = f"{first}\nERROR test_it.py::test_second: OSError: no fixture\nx."
    assert progress in ran.stdout.partition("= ERRORS =")[0], ran.stdout + ran.stderr
    assert "1 failed, 1 passed, 1 xfailed, 1 error" in ran.stdout and ran.returncode == 1
