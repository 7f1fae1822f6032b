"""A quick part of `make valgrind`."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest


@pytest.fixture
def checks():
    if not shutil.which("valgrind"):
        pytest.skip("needs valgrind")
    before = list(sys.path)
    path = Path(__file__).parents[1] / "memory_checks.py"
    spec = importlib.util.spec_from_file_location("memory_checks", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before


def test_nothing_reads_memory_that_nobody_has_written(checks):
    found, control = checks.errors("scalar", sizes=(3,))
    assert found == []
    assert control  # where something does, it is reported
