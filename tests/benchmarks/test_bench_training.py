"""Training steps, forward and backward: layer-normalised cells over the grid, ragged batches, plain cells;
what setting parameters costs, lnrnn.torch, and an example from end to end."""

from __future__ import annotations

import pytest

from recurrent import sizes

CELLS = ["rnn", "lstm", "gru"]
GRID = [(b, h) for b in (8, 32, 64, 256) for h in (128, 256, 512, 1024)]
SOME = [(8, 256), (32, 256), (64, 512)]
COMPILED = (32, 256)

each_cell = pytest.mark.parametrize("cell", CELLS)


def steps(batch, hidden):
    """T = 50, and less where a call would take seconds."""
    work = batch * hidden * hidden
    return 50 if work < 2**25 else 20 if work < 2**28 else 10


def train(compete, case, group, cell, batch, hidden, threads, **more):
    size = {"batch": batch, "hidden": hidden, "steps": steps(batch, hidden)} | more
    compete(
        f"cases_training.{case}",
        group.format(cell.upper()),
        f"B={batch} H={hidden} T={size['steps']}",
        threads,
        cell=cell,
        **size,
    )


@each_cell
@sizes(GRID)
def test_whole(compete, cell, batch, hidden, threads):
    compiled = (batch, hidden) == COMPILED
    group = "LN-{}, training, whole batches"
    train(compete, "normalised", group, cell, batch, hidden, threads, compiled=compiled)


@each_cell
@sizes([(32, 256), (64, 512)])
def test_ragged(compete, cell, batch, hidden, threads):
    group = "LN-{}, training, lengths uniform in 1..T"
    train(compete, "normalised", group, cell, batch, hidden, threads, ragged=True)


@each_cell
@sizes(SOME)
def test_plain(compete, cell, batch, hidden, threads):
    train(compete, "plain", "plain {}, training, whole batches", cell, batch, hidden, threads)


@each_cell
@sizes([(32, 256)])
def test_plain_ragged(compete, cell, batch, hidden, threads):
    group = "plain {}, training, lengths uniform in 1..T"
    train(compete, "plain", group, cell, batch, hidden, threads, ragged=True)


@sizes([(8, 256)])
def test_repacking(compete, batch, hidden, threads):
    group = "LN-{}, training, parameters set before each step"
    train(compete, "repacking", group, "lstm", batch, hidden, threads, steps=20)


@each_cell
@sizes([(8, 256), (64, 512)])
def test_torch(compete, cell, batch, hidden, threads):
    train(compete, "torch_modules", "LN-{}, training with lnrnn.torch", cell, batch, hidden, threads)


@pytest.mark.parametrize("hidden", [128, 256], ids=["H128", "H256"])
def test_characters(compete, hidden, threads):
    """A training from end to end: windows of 100 characters."""
    size = f"B=32 H={hidden} T=100"
    group, case = "LN-LSTM, training a model of characters", "cases_characters.characters"
    compete(case, group, size, threads, cell="lstm", batch=32, hidden=hidden, steps=100)
