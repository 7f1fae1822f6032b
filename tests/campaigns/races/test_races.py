"""A quick part of `make races`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from helpers import program

races = program(Path(__file__).with_name("run.py"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks beside threads, as Linux has them")
@pytest.mark.parametrize("part", races.PARTS)
def test_races(part):
    pytest.importorskip("safetensors")
    assert not races.run(part, seed=1, seconds=1.5)
