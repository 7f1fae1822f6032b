"""Weights in bfloat16 and int8, with and without layer norm in the cell, against peers in the same type."""

from __future__ import annotations

import pytest

from recurrent import sizes

CELLS = ["rnn", "lstm", "gru"]
TYPES = {"bf16": "bfloat16", "int8": "int8"}
GRID = [(b, h) for b in (1, 8, 32, 64, 256) for h in (256, 512, 1024)]


def steps(batch, hidden):
    """T = 100, and less where a call would take seconds."""
    work = batch * hidden * hidden
    return 100 if work < 2**23 else 20 if work < 2**26 else 10


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("norm", ["layer", None], ids=["LN", "plain"])
@pytest.mark.parametrize("kind", TYPES)
@sizes(GRID)
def test_narrow(compete, cell, norm, kind, batch, hidden, threads):
    name = f"{'LN-' if norm else 'plain '}{cell.upper()}"
    size = {"batch": batch, "hidden": hidden, "steps": steps(batch, hidden)}
    compete(
        "cases_rnn.narrow",
        f"{name}, {TYPES[kind]} weights",
        f"B={batch} H={hidden} T={size['steps']}",
        threads,
        cell=cell,
        norm=norm,
        dtype=TYPES[kind],
        **size,
    )
