"""The LN-RNN: whole sequences over the grid, odd sizes, streams, narrow weights; and batch norm against layer
norm."""

from __future__ import annotations

import pytest

STEPS = 100
BATCHES, HIDDENS = [1, 8, 64], [128, 256, 512, 1024]
GRID = [(b, h) for b in BATCHES for h in HIDDENS]
ODD = [(1, 96), (1, 100), (1, 320), (1, 750), (8, 100), (8, 750), (3, 256), (17, 256), (48, 256)]
NARROW = [(1, 256), (1, 512), (1, 1024), (8, 512), (64, 512)]


def sizes(pairs):
    return pytest.mark.parametrize("batch, hidden", pairs, ids=[f"B{b}-H{h}" for b, h in pairs])


def race(compete, case, group, batch, hidden, threads, **more):
    size = {"batch": batch, "hidden": hidden, "steps": STEPS}
    compete(f"cases_rnn.{case}", group, f"B={batch} H={hidden}", threads, cell="rnn", **size, **more)


@sizes(GRID)
def test_whole(compete, batch, hidden, threads):
    race(compete, "whole", "LN-RNN, whole sequences", batch, hidden, threads)


@sizes(ODD)
def test_odd(compete, batch, hidden, threads):
    race(compete, "whole", "LN-RNN, odd sizes", batch, hidden, threads)


@sizes([(b, h) for b, h in GRID if b < 64])
def test_streamed(compete, batch, hidden, threads):
    race(compete, "streamed", "LN-RNN, streamed", batch, hidden, threads)


@sizes(GRID)
def test_bn_by_step(compete, batch, hidden, threads):
    race(compete, "batch_norm", "BN-RNN, whole sequences", batch, hidden, threads)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@sizes(NARROW)
def test_narrow(compete, batch, hidden, dtype, threads):
    race(compete, "narrow", f"LN-RNN, {dtype} weights", batch, hidden, threads, dtype=dtype)
