"""Tests that the scripts in examples/ run, and that their printed results are right."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

import lnrnn

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    """Returns a function that runs a script with arguments. Restores the number of threads afterwards."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads(), lnrnn.get_num_threads()

    def run(script, *words):
        monkeypatch.setattr(sys, "argv", [script, *words])
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")

    yield run
    torch.set_num_threads(threads[0])
    lnrnn.set_num_threads(threads[1])


def test_train_in_ten_lines_runs(example, capsys):
    example("train_in_ten_lines.py")
    engine, error, guess = re.fullmatch(
        r"engine (\w+); .*error (\S+), .*: (\S+)\n", capsys.readouterr().out
    ).groups()
    assert engine == "lnrnn" and float(error) < 0.1 * float(guess)


def test_recurrent_ppo_learns(example, capsys):
    """Episodes that end right by chance are 50 %. The call with resets= has the results of a loop."""
    example("recurrent_ppo.py", "--updates", "15")
    told = capsys.readouterr().out
    assert float(re.search(r"update 15: (\S+)% of", told)[1]) > 90
    assert float(re.search(r"one call or 64: relative difference (\S+);", told)[1]) < 1e-5


@pytest.mark.parametrize("cell, seeds", [("rnn", 2), ("lstm", 1), ("gru", 1)])
def test_train_with_torch_runs(example, capsys, cell, seeds):
    """The script ends with an error if torch and lnrnn disagree."""
    example("train_with_torch.py", "--cell", cell, "--epochs", "1", "--seeds", str(seeds))
    told = capsys.readouterr().out
    assert told.startswith(f"seed 0: trained {cell.upper()}(12, 64")
    assert float(re.search(r"difference of a hidden state (\S+);", told)[1]) <= 1e-5
    right = [int(text) for text in re.findall(r"lnrnn: (\d+) of 370", told)]
    assert len(set(right)) == seeds  # another seed gives another network
    if seeds > 1:
        mean, least, most = (f"{value / 370:.1%}" for value in (np.mean(right), min(right), max(right)))
        assert told.endswith(f"accuracy over {seeds} seeds: mean {mean}, from {least} to {most}\n")


def test_train_with_torch_notices_another_network(example, monkeypatch):
    def wrong(module):
        rnn = taken(module)
        rnn.bias_l0 = rnn.bias_l0 + np.float32(1e-3)
        return rnn

    taken = lnrnn.from_torch
    monkeypatch.setattr(lnrnn, "from_torch", wrong)
    with pytest.raises(SystemExit, match="should agree to 1e-05"):
        example("train_with_torch.py", "--cell", "rnn", "--epochs", "1")
