"""Compares lnrnn with PyTorch on PyTorch's own test inputs of norms and recurrent modules."""

from pathlib import Path

from outcome import run_pytest

PROGRAM = str(Path(__file__).with_name("samples.py"))
PARTS = {"samples": lambda options: run_pytest(PROGRAM, options.pytest)}
