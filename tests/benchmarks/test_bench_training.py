"""Benchmarks of training steps."""

from __future__ import annotations

import pytest

CELLS = ["rnn", "lstm", "gru"]
GRID = [(b, h) for b in (8, 32, 64, 256) for h in (128, 256, 512, 1024)]

# {table: (case, cells, [(batch, units)], more arguments)}
RACES = {
    "LN-{}, training, whole batches": ("normalised", CELLS, GRID, {}),
    "LN-{}, training, lengths uniform in 1..T":
        ("normalised", CELLS, [(32, 256), (64, 512)], {"ragged": True}),
    "plain {}, training, whole batches": ("plain", CELLS, [(8, 256), (32, 256), (64, 512)], {}),
    "plain {}, training, lengths uniform in 1..T": ("plain", CELLS, [(32, 256)], {"ragged": True}),
    "LN-{}, training, parameters set before each step":
        ("repacking", ["lstm"], [(8, 256)], {"steps": 20}),
    "LN-{}, training with lnrnn.torch": ("torch_modules", CELLS, [(8, 256), (64, 512)], {}),
}  # fmt: skip


def steps(batch, hidden):
    """Returns T: 50, or fewer if a call would take seconds."""
    work = batch * hidden * hidden
    return 50 if work < 2**25 else 20 if work < 2**28 else 10


@pytest.mark.parametrize(
    "table, cell, batch, hidden",
    [
        pytest.param(table, cell, batch, hidden, id=f"{table.format(cell)}-B{batch}-H{hidden}")
        for table, (_, cells, grid, _) in RACES.items()
        for cell in cells
        for batch, hidden in grid
    ],
)
def test_training(compete, table, cell, batch, hidden, threads):
    case, _, _, more = RACES[table]
    size = {"batch": batch, "hidden": hidden, "steps": steps(batch, hidden), **more}
    shown = f"B={batch} H={hidden} T={size['steps']}"
    compete(f"cases_training.{case}", table.format(cell.upper()), shown, threads, cell=cell, **size)
