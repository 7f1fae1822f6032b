"""Tests that W_ih x gets the same bits if products with W_hh compute it for later steps (kernels/ahead.h)."""

from __future__ import annotations

import numpy as np
import pytest
from test_partitions import needs_threads

import engine_switches
from helpers import in_parts_of, several_threads, using_caches, using_partition, using_threads
from networks import drawn_state, equal, network, normal, spec

NETWORKS = {
    "RNN": dict(cell="RNN"),
    "LSTM": dict(cell="LSTM"),
    "LSTM joint": dict(cell="LSTM", norm=spec("joint", "carry", inner_bias=True)),
    "GRU": dict(cell="GRU", norm=spec("split", inner_bias=True)),
    "LSTM plain": dict(cell="LSTM", norm=None),
    "LSTM projected": dict(cell="LSTM", projected=True),
    "GRU reset before": dict(cell="GRU", reset_after=False),
}
# Only with the second are rows computed ahead. Its L1 holds no weights.
PLAIN, AHEAD = ((1 << 12, 1 << 20, 1 << 30), False), ((1 << 12, 1 << 20, 1 << 30), True)
SHAPES = [(144, 144), (152, 152), (145, 145), (144, 152), (96, 96)]
STEPS = (1, 15, 16, 23, 24, 31, 32, 33, 50)


def drawn(rng, name, inputs, units, steps):
    rnn = network(inputs, units, trained=steps, **NETWORKS[name])
    return rnn, normal(rng, steps, 1, inputs), drawn_state(rng, rnn, 1)


@pytest.mark.parametrize("name", NETWORKS)
def test_rows_ahead_give_the_same_bits_on_one_thread(rng, name):
    for inputs, units in SHAPES:
        for steps in STEPS:
            rnn, x, h0 = drawn(rng, name, inputs, units, steps)
            with using_threads(1):
                with using_caches(*PLAIN):
                    want = rnn(x, h0), rnn(x, h0, [steps // 2])
                with using_caches(*AHEAD):
                    equal(rnn, rnn(x, h0), want[0], f"{inputs}, {units}, {steps} steps")
                    equal(rnn, rnn(x, h0, [steps // 2]), want[1], f"{steps} steps, half as long")


@pytest.mark.parametrize("name", ["RNN", "GRU"])
def test_rows_ahead_in_parts_and_with_resets_give_the_same_bits(rng, name):
    rnn, x, h0 = drawn(rng, name, 152, 152, 70)
    resets = rng.random((70, 1)) < 0.03
    with using_threads(1), using_caches(*PLAIN):
        want = rnn(x, h0), rnn(x, h0, resets=resets)
    with using_threads(1), using_caches(*AHEAD):
        equal(rnn, rnn(x, h0, resets=resets), want[1])
        for part in (1, 5e5, 2e6):
            with in_parts_of(part):
                equal(rnn, rnn(x.astype(np.float64), h0), want[0], f"parts of {part}")


@pytest.mark.parametrize("name", ["RNN", "LSTM"])
def test_a_tape_with_rows_ahead_has_the_same_bits(rng, name):
    rnn, x, h0 = drawn(rng, name, 144, 144, 40)
    got = []
    for caches in (PLAIN, AHEAD):
        with using_threads(1), using_caches(*caches):
            y, _, tape = rnn.forward_train(x, h0)
            got.append((y, rnn.backward(tape, y)[0]))
    for a, b in zip(*got, strict=True):
        np.testing.assert_array_equal(a, b)


@needs_threads
@pytest.mark.parametrize("name", NETWORKS)
def test_threads_with_rows_ahead_give_the_same_bits(rng, name):
    # With the first two, an RNN has only narrow panels, or its second thread has.
    for units in (64, 112, 144, 152):
        steps = 9 + (4 << 20) // units**2  # enough work for two threads
        rnn, x, h0 = drawn(rng, name, units, units, steps)
        with using_threads(1), using_caches(*PLAIN):
            want = rnn(x, h0)
        for rows in (False, True):
            with using_caches(*AHEAD), using_partition(1, 2, rows), several_threads(2, "units"):
                equal(rnn, rnn(x, h0), want, f"{units} units, divide rows {rows}")


@needs_threads
@pytest.mark.parametrize("name", ["RNN", "LSTM"])
def test_a_team_with_rows_ahead_may_end_at_any_barrier(rng, name):
    rnn, x, h0 = drawn(rng, name, 152, 152, 400)
    with using_threads(1), using_caches(*PLAIN):
        want = rnn(x, h0)
    for barrier in range(24):
        with using_caches(*AHEAD), using_partition(1, 2, False), several_threads(2, "units"):
            engine_switches.set_barrier_mode("slow")
            engine_switches.set_slow_from(barrier)
            try:
                got = rnn(x, h0)
            finally:
                engine_switches.set_slow_from(0)
        equal(rnn, got, want, f"barrier {barrier}")
