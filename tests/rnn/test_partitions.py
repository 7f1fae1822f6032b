"""Tests that a call gives equal bits, however threads divide its work."""

from __future__ import annotations

import numpy as np
import pytest

import engine_switches
import lnrnn
from helpers import (
    available_isas,
    in_parts_of,
    several_threads,
    using_caches,
    using_isa,
    using_partition,
    using_threads,
)
from networks import drawn_state, equal, network, normal, spec

# (groups of sequences, threads per group, whether the threads of a group divide the rows).
GRIDS = (1, 2, False), (1, 2, True), (2, 2, True)
NETWORKS = {
    "RNN": dict(cell="RNN"),
    "LSTM": dict(cell="LSTM"),
    "LSTM joint": dict(cell="LSTM", norm=spec("joint", "carry", inner_bias=True)),
    "LSTM plain": dict(cell="LSTM", norm=None),
    "LSTM projected": dict(cell="LSTM", projected=True),
    "GRU": dict(cell="GRU", norm=spec("split", inner_bias=True)),
    "GRU reset before": dict(cell="GRU", reset_after=False),
    "SLSTM": dict(cell="SLSTM", num_heads=5),
}


def drawn(rng, name, batch=70, units=145, steps=24):
    """Returns (network, x, states, lengths); some lengths are 0."""
    rnn = network(33, units, trained=steps, **NETWORKS[name])
    ends = rng.integers(0, steps + 1, batch)
    ends[: batch // 2] = rng.integers(steps // 2, steps + 1, batch // 2)
    ends[0] = steps
    return rnn, normal(rng, steps, batch, 33), drawn_state(rng, rnn, batch), ends


needs_threads = pytest.mark.skipif(lnrnn.cpu_info()["team"] == "none", reason="built without threads")


# {instruction set: (hidden units, threads)}. The first panel is wider than a thread's share of the units.
NARROW = {"avx512": (145, 4), "avx2": (17, 2), "sse2": (9, 2)}


@needs_threads
@pytest.mark.parametrize("name", [name for name in NARROW if name in available_isas()])
def test_a_share_within_one_panel_gives_the_same_bits(rng, name):
    units, threads = NARROW[name]
    steps = 1 + threads * (4 << 20) // (70 * units * (33 + units))  # enough work for these threads
    with using_isa(name):
        rnn, x, h0, _ = drawn(rng, "RNN", 70, units, steps)
        with using_threads(1):
            want = rnn(x, h0)
        for rows in (False, True):
            with using_partition(1, threads, rows), several_threads(threads, "units"):
                equal(rnn, rnn(x, h0), want)


@needs_threads
@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("mode", ["slow", "staggered"])
def test_grids_with_slow_threads_give_the_same_bits(rng, name, mode):
    """slow: each wait counts as if a thread had lost its core. staggered: one thread leaves barriers late."""
    rnn, x, h0, ends = drawn(rng, name)
    with using_threads(1):
        want = rnn(x, h0, ends)
    for grid in GRIDS if mode == "slow" else GRIDS[:2]:
        # With these small caches, a chunk is one step. With None, chunks have several steps.
        caches = (1024, 4096, 4096) if mode == "slow" else None
        with using_caches(caches), using_partition(*grid), several_threads(grid[0] * grid[1], "units"):
            engine_switches.set_barrier_mode(mode)
            equal(rnn, rnn(x, h0, ends), want, f"{grid}")


def ends_at(barrier, call):
    """Returns the result of a call after whose barrier of this number thread 0 computes alone."""
    engine_switches.set_barrier_mode("slow")
    engine_switches.set_slow_from(barrier)
    try:
        return call()
    finally:
        engine_switches.set_slow_from(0)


@needs_threads
@pytest.mark.parametrize("divide_rows", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_team_that_ends_at_any_barrier_gives_the_same_bits(rng, name, divide_rows):
    """With the small caches, a chunk is one step."""
    rnn, x, h0, ends = drawn(rng, name)
    with using_threads(1):
        want = rnn(x, h0, ends)
    for caches in (None, (1024, 4096, 4096)):
        for barrier in range(12):
            with using_caches(caches), using_partition(2, 2, divide_rows), several_threads(4, "units"):
                got = ends_at(barrier, lambda: rnn(x, h0, ends))
            equal(rnn, got, want, f"barrier {barrier}, caches {caches}")


@needs_threads
def test_fewer_threads_than_planned_compute_all_groups(rng):
    """One thread computes a plan for six, as it does if other processes use the cores."""
    rnn, x, h0, ends = drawn(rng, "LSTM")
    with using_threads(1):
        want = rnn(x, h0, ends)
    with using_partition(3, 2, True), several_threads(6, "either", had=1):
        engine_switches.set_back_off(60)
        try:
            got = rnn(x, h0, ends)
        finally:
            engine_switches.set_back_off(0)
    equal(rnn, got, want)


# --- products with W_hh that compute W_ih x of later steps (kernels/ahead.h) --------------------------------

# Only with the second are rows computed ahead. Its L1 holds no weights.
PLAIN, AHEAD = ((1 << 12, 1 << 20, 1 << 30), False), ((1 << 12, 1 << 20, 1 << 30), True)
SHAPES = [(144, 144), (152, 152), (145, 145), (144, 152), (96, 96)]
STEPS = (1, 15, 16, 23, 24, 31, 32, 33, 50)


def drawn_row(rng, name, inputs, units, steps):
    rnn = network(inputs, units, trained=steps, **NETWORKS[name])
    return rnn, normal(rng, steps, 1, inputs), drawn_state(rng, rnn, 1)


@pytest.mark.parametrize("name", NETWORKS)
def test_rows_ahead_give_the_same_bits_on_one_thread(rng, name):
    """A call has all steps or half of them, parts, resets, or a tape."""

    def results(rnn, x, h0, resets):
        y, h, tape = rnn.forward_train(x, h0)
        yield y, h
        yield rnn.backward(tape, y)[:2]
        yield rnn(x, h0)
        yield rnn(x, h0, [len(x) // 2])
        yield rnn(x, h0, resets=resets)
        with in_parts_of(5e5):
            yield rnn(x.astype(np.float64), h0)

    for inputs, units in SHAPES:
        for steps in STEPS:
            rnn, *given = drawn_row(rng, name, inputs, units, steps)
            given.append(rng.random((steps, 1)) < 0.03)
            with using_threads(1):
                with using_caches(*PLAIN):
                    wants = list(results(rnn, *given))
                with using_caches(*AHEAD):
                    for got, want in zip(results(rnn, *given), wants, strict=True):
                        equal(rnn, got, want, f"{inputs}, {units}, {steps} steps")


@needs_threads
@pytest.mark.parametrize("name", NETWORKS)
def test_threads_with_rows_ahead_give_the_same_bits(rng, name):
    # With the first two, an RNN has only narrow panels, or its second thread has.
    for units in (64, 112, 144, 152):
        steps = 9 + (4 << 20) // units**2  # enough work for two threads
        rnn, x, h0 = drawn_row(rng, name, units, units, steps)
        with using_threads(1), using_caches(*PLAIN):
            want = rnn(x, h0)
        for rows in (False, True):
            with using_caches(*AHEAD), using_partition(1, 2, rows), several_threads(2, "units"):
                equal(rnn, rnn(x, h0), want, f"{units} units, divide rows {rows}")


@needs_threads
@pytest.mark.parametrize("name", ["RNN", "LSTM"])
def test_a_team_with_rows_ahead_may_end_at_any_barrier(rng, name):
    rnn, x, h0 = drawn_row(rng, name, 152, 152, 400)
    with using_threads(1), using_caches(*PLAIN):
        want = rnn(x, h0)
    for barrier in range(24):
        with using_caches(*AHEAD), using_partition(1, 2, False), several_threads(2, "units"):
            equal(rnn, ends_at(barrier, lambda: rnn(x, h0)), want, f"barrier {barrier}")
