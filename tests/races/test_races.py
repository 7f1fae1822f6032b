"""A quick part of `make races`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("run_races", Path(__file__).with_name("run.py"))
races = importlib.util.module_from_spec(spec)
spec.loader.exec_module(races)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks beside threads, as Linux has them")
@pytest.mark.parametrize("part", races.PARTS)
def test_races(part):
    pytest.importorskip("safetensors")
    assert not races.run(part, seed=1, seconds=1.5)
