"""Streams and step_all compute one step per call. Tests allocations, threads, and the memory of `out`."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest

import lnrnn
from helpers import several_threads, together, using_threads
from networks import VARIANTS, each_norm, network, normal, run_apart, same

T = 9


def streamed(stream, x):
    """Calls the stream once for each step of x (T, B, D). Returns all outputs."""
    return np.array([stream(row) for row in x])


def batch_overrun():
    """Asserts that with overrun "batch", statistics are computed over all lanes, on any number of threads."""
    for threads in (1, 2, 3):
        for batch, hidden in ((1, 17), (2, 2000), (5, 97), (70, 33)):
            rnn = network(3, hidden, norm=lnrnn.BatchNormSpec(overrun="batch"), trained=2)
            x = normal(np.random.default_rng(hidden), 5, batch, 3)
            with using_threads(threads):
                for _ in range(3):
                    got = streamed(rnn.stream(batch), x)
                    whole = rnn(x)[0]
                    same(got, whole, err_msg=f"{threads} threads, {batch} rows")
                    same(rnn.stream(batch)(x), whole)


def test_a_stream_with_overrun_batch_uses_the_batch():
    run_apart(batch_overrun)  # in another process, since a defect here can write past memory


@each_norm
def test_a_stream_ignores_later_changes_of_its_network(rng, norm):
    rnn = network(3, 17, norm=norm, trained=T)
    x = normal(rng, T, 2, 3)
    y = rnn(x)[0]
    stream = rnn.stream(2)
    got = [stream(x[0])]
    assert got[0].flags.owndata
    rnn.weight_hh_l0 = rng.uniform(-1, 1, (17, 17))
    rnn.zoneout = 0.5
    if norm == "batch":
        rnn.calibrate([normal(rng, 2, 40, 3)])
        rnn.overrun = "mean"
    got += [stream(row) for row in x[1:]]
    same(got, y)
    assert (streamed(rnn.stream(2), x) != y).any()
    for row in got:
        row[...] = np.nan  # must not change the stream
    del rnn  # the stream has the last reference
    gc.collect()
    stream.reset()
    same(streamed(stream, x), y)


@pytest.mark.parametrize("variant", ["RNN batch", "LSTM split out"])
def test_the_number_of_threads_may_change_between_steps(rng, variant):
    """So many hidden units make a step faster on four threads."""
    rnn, x = network(3, 450, trained=T, **VARIANTS[variant]), normal(rng, T, 70, 3)
    stream, got = rnn.stream(70), []
    for t, row in enumerate(x):
        with several_threads(1 + t % 4, divide="either"):
            got.append(np.array(stream(row)))
    same(got, rnn(x)[0])


# (norm, known steps, threads, hidden units, lanes). A call steps four lanes; with 0 the stream has no others.
LAST = lnrnn.BatchNormSpec(overrun="last")
CALLS = [
    ("layer", 0, 1, 64, 0), (None, 0, 1, 64, 0), (LAST, 400, 1, 64, 0), (LAST, 5, 1, 64, 0),
    (lnrnn.BatchNormSpec(overrun="batch"), 5, 1, 64, 0), ("layer", 0, 2, 1050, 0),
    ("layer", 0, 1, 64, 40), (LAST, 6, 1, 64, 40),
]  # fmt: skip


def memory_of_calls():
    """Asserts that calls with `out` allocate nothing. tracemalloc sees memory of Python and NumPy. It may see
    only a few Python integers of 32 bytes."""
    rng, batch = np.random.default_rng(0), 4
    for case in CALLS:
        norm, known, threads, hidden, lanes = case
        rnn = network(3, hidden, norm=norm, num_layers=2, trained=known)
        stream, row, options = rnn.stream(lanes or batch), normal(rng, batch, 3), {}
        if lanes:
            options = dict(lanes=rng.permutation(lanes)[:batch], resets=np.zeros(batch, bool))
            stream.steps_done = np.arange(lanes) % 9
        out = np.empty((batch, hidden), np.float32)
        with several_threads(threads, divide="units"):
            tracemalloc.start()
            for _ in range(10):
                stream(row, out=out, **options)
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            for _ in range(120 // threads**2):
                stream(row, out=out, **options)
            after, peak = tracemalloc.get_traced_memory()
            made = np.empty(hidden, np.float32)  # the allocation that the test must be able to see
            assert tracemalloc.get_traced_memory()[0] - after >= made.nbytes
            tracemalloc.stop()
        assert after - before <= 128 and peak - before < 512, (case, after - before, peak - before)


def test_a_call_allocates_nothing():
    run_apart(memory_of_calls)  # in a process without other threads, whose memory tracemalloc would see


def test_out_without_a_batch_axis_and_over_the_input(rng):
    rnn = network(5, 5)
    x = normal(rng, T, 5)
    y, stream, row = rnn(x)[0], rnn.stream(), np.zeros(5, np.float32)
    wide = np.zeros(10, np.float32)
    for given, want in zip(x, y, strict=True):
        state, step = stream.state, stream.steps_done.copy()
        row[...] = given
        assert stream(row, out=row) is row
        same(row, want)
        stream.state, stream.steps_done = state, step
        wide[::2] = given
        same(stream(wide[::2], out=wide[::2]), want)
    row[...] = np.nan  # must not change the stream
    assert np.isfinite(stream(x[0])).all()


@each_norm
@pytest.mark.parametrize("batch, hidden, layers", [(1, 1, 1), (1, 33, 2), (5, 48, 1), (70, 17, 3)])
def test_out_within_a_larger_array(family, rng, norm, batch, hidden, layers):
    """The call writes the same bits into `out` as into a new array, and changes no other memory."""
    rnn = network(3, hidden, norm=norm, num_layers=layers, trained=T)
    x = normal(rng, T, batch, 3)
    y = rnn(x)[0]
    around = np.full((batch + 2, hidden + 2), 7, np.float32)
    stream = rnn.stream(batch)
    for row, want in zip(x, y, strict=True):
        stream(row, out=around[1:-1, 1:-1])
        same(around[1:-1, 1:-1], want)
    around[1:-1, 1:-1] = 7
    assert (around == 7).all()


# --- step_all -----------------------------------------------------------------------------------------------


def test_threads_step_lists_of_streams_of_their_own(rng):
    """Four threads call step_all, each with its own streams. The results have the bits of one thread."""
    rnn = network(3, 5, cell="GRU", norm=None)
    x = normal(rng, 50, 3, 3)
    alone = [rnn.stream() for _ in range(3)]
    want = [lnrnn.step_all(zip(alone, row, strict=True)) for row in x]

    def steps(_):
        streams = [rnn.stream() for _ in range(3)]
        same([lnrnn.step_all(zip(streams, row, strict=True)) for row in x], want)

    together(steps, 4)


def memory_of_steps():
    """Asserts that calls of step_all, including refused calls, free all memory that they allocate."""
    streams = [network(3, 5).stream() for _ in range(5)]
    x = np.ones(3, np.float32)

    def calls(n):
        for _ in range(n):
            lnrnn.step_all([(s, x) for s in streams])
            try:
                lnrnn.step_all([(streams[0], x), (streams[1], x[:1])])
            except ValueError:
                continue
            raise AssertionError("an x that is too short was taken")

    calls(5000)  # Python keeps frames and small objects until then
    tracemalloc.start()
    more = []
    for _ in range(3):  # Python may keep an object of its own once
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        calls(1000)
        gc.collect()
        more.append(tracemalloc.get_traced_memory()[0] - before)
    assert min(more) < 10_000, more  # ten bytes a call, less than any object


def test_step_all_keeps_no_memory():
    run_apart(memory_of_steps)
