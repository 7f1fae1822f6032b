"""The scripts in examples/ run, and say what they promise."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import lnrnn
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_train_with_torch(monkeypatch, capsys, cell):
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads(), lnrnn.get_num_threads()
    monkeypatch.setattr(sys, "argv", ["train_with_torch.py", "--cell", cell, "--epochs", "1"])
    try:
        runpy.run_path(str(EXAMPLES / "train_with_torch.py"), run_name="__main__")  # ends with an error if the two disagree
    finally:
        torch.set_num_threads(threads[0])
        lnrnn.set_num_threads(threads[1])
    told = capsys.readouterr().out
    assert told.startswith(f"trained {cell.upper()}(12, 64") and "different answers: 0" in told
