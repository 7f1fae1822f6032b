"""A quick part of `make valgrind`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from helpers import program


@pytest.fixture
def checks():
    if not shutil.which("valgrind"):
        pytest.skip("needs valgrind")
    before = list(sys.path)
    yield program(Path(__file__).with_name("memory_checks.py"))
    sys.path[:] = before


def test_nothing_reads_memory_that_nobody_has_written(checks):
    found, control = checks.errors("scalar", sizes=(3,))
    assert found == []
    assert control  # where something does, it is reported
