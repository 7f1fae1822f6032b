"""Cells with layer norm by threads: batches between one sequence and many, weights from those that L2 holds
to those that no cache holds. What pyx/rnn/cost_model.c chooses is judged here, against the peers and
against the limit of as many cores. With --bench-quick a corner of each kind."""

from __future__ import annotations

from recurrent import STEPS

BATCHES, HIDDENS = (1, 8, 17, 32, 48, 64, 128), (384, 512, 640, 1024, 2048)
# Where threads that divide the sequences are slower than the best peer on a Sapphire Rapids.
KNOWN = ((24, 1536),)
GRID = [(b, h) for h in HIDDENS for b in BATCHES] + list(KNOWN)
CORNERS = [(1, 512), (17, 384), (24, 1536), (64, 640)]

# Multiply-adds of a call: enough for the start of a call not to count, and few enough for all peers to race.
WORK = 2e9


def pytest_generate_tests(metafunc):
    if "batch" in metafunc.fixturenames:
        pairs = CORNERS if metafunc.config.getoption("bench_quick") else GRID
        metafunc.parametrize("cell", ["rnn", "lstm", "gru"])
        metafunc.parametrize("batch, hidden", pairs, ids=[f"B{b}-H{h}" for b, h in pairs])


def test_whole(compete, cell, batch, hidden, threads):
    gates = {"rnn": 1, "lstm": 4, "gru": 3}[cell]
    steps = min(STEPS, max(8, int(WORK / (2 * batch * gates * hidden**2))))
    compete(
        "cases_rnn.whole",
        f"LN-{cell.upper()}, by threads",
        f"B={batch} H={hidden}",
        threads,
        cell=cell,
        batch=batch,
        hidden=hidden,
        steps=steps,
    )
