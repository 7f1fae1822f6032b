"""Benchmarks of recurrent cells: sequences, streams, ragged batches, short weights, threads."""

from __future__ import annotations

import pytest

GATES = {"rnn": 1, "lstm": 4, "gru": 3}
STEPS = 100
GRID = [(b, h) for b in (1, 8, 64) for h in (128, 256, 512, 1024)]
NARROW = [(b, h) for b in (1, 8, 32, 64, 256) for h in (256, 512, 1024)]
THREADS = [(b, h) for h in (384, 512, 640, 1024, 2048) for b in (1, 8, 17, 32, 48, 64, 128)] + [(24, 1536)]
CORNERS = [(1, 512), (17, 384), (24, 1536), (64, 640)]  # the sizes of THREADS that --bench-quick runs

# table: (case of cases_rnn or of another module, cells, (batch, units))
RACES = {
    "LN-{}, whole sequences": ("whole", GATES, GRID),
    "plain {}, whole sequences": ("plain", GATES, GRID),
    "LN-{}, lengths uniform in 1..T": ("ragged", GATES, [(64, 256), (64, 512)]),
    "LN-{}, odd sizes": (
        "whole",
        ["rnn"],
        [(1, 96), (1, 100), (1, 320), (1, 750), (8, 100), (8, 750), (3, 256), (17, 256), (48, 256)],
    ),
    "LN-{}, streamed": ("streamed", ["rnn"], [(b, h) for b, h in GRID if b < 64]),
    "plain {}, a step of 14 small networks": (
        "cases_small.small",
        GATES,
        [(1, 4), (1, 16), (1, 32), (33, 16)],
    ),
    "LN-{}, by threads": ("whole", GATES, THREADS),
}
for norm, word in (("layer", "LN-"), (None, "plain ")):
    for dtype in ("bfloat16", "int8"):
        RACES[f"{word}{{}}, {dtype} weights"] = ("narrow", GATES, NARROW, {"norm": norm, "dtype": dtype})


def steps(table, cell, batch, hidden):
    """Returns T, the number of steps.

    T is so large that the start of a call takes little of its time. It is so small that the slowest peer ends
    within seconds.
    """
    work = batch * hidden * hidden
    if "by threads" in table:
        return min(STEPS, max(8, int(1e9 / (work * GATES[cell]))))
    if "small" in table:
        return 20
    if "weights" in table:
        return 100 if work < 2**23 else 20 if work < 2**26 else 10
    return STEPS


def pytest_generate_tests(metafunc):
    quick = metafunc.config.getoption("bench_quick")
    cases = [
        pytest.param(table, cell, batch, hidden, id=f"{table.format(cell)}-B{batch}-H{hidden}")
        for table, (_, cells, grid, *_) in RACES.items()
        for cell in cells
        for batch, hidden in (CORNERS if quick and grid is THREADS else grid)
    ]
    metafunc.parametrize("table, cell, batch, hidden", cases)


def test_cell(compete, table, cell, batch, hidden, threads):
    case, _, _, *more = RACES[table]
    size = {"batch": batch, "hidden": hidden, "steps": steps(table, cell, batch, hidden)}
    shown = f"B={batch} H={hidden}" + (f" T={size['steps']}" if "weights" in table else "")
    arguments = {"cell": cell, **size, **(more[0] if more else {})}
    compete(
        case if "." in case else f"cases_rnn.{case}", table.format(cell.upper()), shown, threads, **arguments
    )
