"""Tests that clusters of Dask and Ray give the bits of one process, even if a worker is killed."""

from pathlib import Path

from outcome import run_pytest

PROGRAM = str(Path(__file__).with_name("clusters.py"))
PARTS = {"clusters": lambda options: run_pytest(PROGRAM, options.pytest)}
