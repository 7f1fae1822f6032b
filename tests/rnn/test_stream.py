"""One step a call: the bits of whole sequences, a state that can be set, no allocation, many threads."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest

import lnrnn
from helpers import layouts, several_threads, together, using_threads
from networks import NORMS, network, normal, run_apart

T = 9


def streamed(stream, x):
    """All steps of x (T, B, D)."""
    return np.array([stream(row) for row in x])


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    "batch, hidden, layers", [(1, 1, 1), (1, 33, 3), (5, 48, 1), (13, 97, 2), (70, 17, 1)]
)
def test_a_stream_gives_the_bits_of_the_whole_sequence(family, rng, norm, batch, hidden, layers):
    rnn = network(3, hidden, norm=norm, num_layers=layers, trained=T)
    x = normal(rng, T, batch, 3)
    y, h = rnn(x)
    stream = rnn.stream(batch)
    np.testing.assert_array_equal(streamed(stream, x), y)
    np.testing.assert_array_equal(stream.state, h)
    assert (stream.step == T).all()


@pytest.mark.parametrize("overrun", ["last", "mean"])
@pytest.mark.parametrize("known", [1, 4])
def test_past_the_known_steps_a_stream_does_what_a_sequence_does(family, rng, overrun, known):
    rnn = network(3, 17, norm=lnrnn.BatchNormSpec(overrun=overrun), num_layers=2, trained=known)
    x = normal(rng, T, 5, 3)
    np.testing.assert_array_equal(streamed(rnn.stream(5), x), rnn(x)[0])


def batch_overrun():
    """Overrun "batch": the streams' own batch gives the statistics, all of it, whoever computes."""
    for threads in (1, 2, 3):
        for batch, hidden in ((1, 17), (2, 2000), (5, 97), (70, 33)):
            rnn = network(3, hidden, norm=lnrnn.BatchNormSpec(overrun="batch"), trained=2)
            x = normal(np.random.default_rng(hidden), 5, batch, 3)
            with using_threads(threads):
                for _ in range(3):
                    got = streamed(rnn.stream(batch), x)
                    whole = rnn(x)[0]
                    np.testing.assert_array_equal(got, whole, err_msg=f"{threads} threads, {batch} rows")


def test_past_the_known_steps_the_batch_itself():
    run_apart(batch_overrun)  # it wrote past its scratch once: not in the process of the suite


def test_overrun_raise_refuses_the_step_and_leaves_the_stream(rng):
    rnn = network(3, 17, norm="batch", trained=4)
    x = normal(rng, 5, 2, 3)
    stream = rnn.stream(2)
    streamed(stream, x[:4])
    before = stream.state
    with pytest.raises(lnrnn.SequenceTooLongError) as caught:
        stream(x[4])
    assert (caught.value.sequence, caught.value.length, caught.value.known_steps) == (0, 5, 4)
    np.testing.assert_array_equal(stream.state, before)
    assert (stream.step == 4).all()
    stream.reset()
    np.testing.assert_array_equal(streamed(stream, x[:4]), rnn(x[:4])[0])


def test_a_network_without_statistics_streams_nothing():
    with pytest.raises(lnrnn.SequenceTooLongError) as caught:
        network(3, 5, norm=lnrnn.BatchNormSpec(overrun="last")).stream()(np.zeros(3, np.float32))
    assert caught.value.known_steps == 0


@pytest.mark.parametrize("norm", NORMS)
def test_state_and_step_can_be_taken_and_set(rng, norm):
    """Stopped anywhere and taken up by another stream: the same bits."""
    rnn = network(3, 33, norm=norm, num_layers=2, trained=T)
    x = normal(rng, T, 4, 3)
    y, h = rnn(x)
    for cut in (0, 1, 5):
        first, second = rnn.stream(4), rnn.stream(4)
        streamed(first, x[:cut])
        second.state, second.step = first.state, first.step
        np.testing.assert_array_equal(streamed(second, x[cut:]), y[cut:])
        np.testing.assert_array_equal(second.state, h)


def test_h0_is_a_state(rng):
    rnn = network(3, 33, num_layers=2)
    x, h0 = normal(rng, T, 4, 3), normal(rng, 2, 4, 33)
    want = rnn(x, h0)[0]
    for layout, start in layouts(h0).items():
        stream = rnn.stream(4)
        stream.state = start
        np.testing.assert_array_equal(streamed(stream, x), want, err_msg=layout)


def test_the_state_is_a_copy(rng):
    rnn = network(3, 5)
    x = normal(rng, T, 2, 3)
    stream = rnn.stream(2)
    for row in x[:4]:
        stream(row)
        stream.state[...] = np.nan
    given = stream.state
    stream.state = given
    given[...] = np.nan
    np.testing.assert_array_equal(streamed(stream, x[4:]), rnn(x)[0][4:])


@pytest.mark.parametrize("norm", NORMS)
def test_reset(rng, norm):
    rnn = network(3, 5, norm=norm, trained=T)
    x = normal(rng, T, 2, 3)
    stream = rnn.stream(2)
    first = streamed(stream, x)
    stream.reset()
    assert (stream.step == 0).all() and not stream.state.any()
    np.testing.assert_array_equal(streamed(stream, x), first)


def test_each_result_is_an_array_of_its_own(rng):
    rnn, x = network(3, 5), normal(rng, T, 2, 3)
    y, stream = rnn(x)[0], rnn.stream(2)
    rows = [stream(row) for row in x]
    np.testing.assert_array_equal(rows, y)
    assert all(row.dtype == np.float32 and row.flags.owndata and row.flags.writeable for row in rows)
    for row in rows:
        row[...] = np.nan  # does the stream no harm
    stream.reset()
    np.testing.assert_array_equal([stream(row) for row in x], y)


def test_one_sequence_goes_without_a_batch_axis(rng):
    rnn = network(3, 17, num_layers=2)
    x = normal(rng, T, 3)
    flat, batch = rnn.stream(), rnn.stream(1)
    for row, want in zip(x, rnn(x)[0], strict=True):
        got = flat(row)
        assert got.shape == (17,)
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(batch(row[None]), want[None])


def test_input_of_every_kind(rng):
    rnn = network(3, 17)
    x = rng.integers(-3, 4, (2, 3)).astype(np.float32)  # every dtype below can hold it
    want = np.array(rnn.stream(2)(x))
    kinds = {**layouts(x), "list": x.tolist(), **{str(d): x.astype(d) for d in ("f8", "f2", "i1", "i8")}}
    for kind, row in kinds.items():
        np.testing.assert_array_equal(rnn.stream(2)(row), want, err_msg=kind)


def test_a_refused_input_is_no_step(rng):
    rnn = network(3, 17)
    x = normal(rng, T, 2, 3)
    stream = rnn.stream(2)
    got = []
    for row in x:
        for bad in (row[:1], row[0], row.T, "ab", row * 1j, None):
            with pytest.raises((ValueError, TypeError), match=r"\bx\b"):
                stream(bad)
        got.append(np.array(stream(row)))
    np.testing.assert_array_equal(got, rnn(x)[0])


def test_a_nan_stays_in_its_row(family, rng):
    rnn = network(3, 33, num_layers=2)
    x = normal(rng, T, 9, 3)
    clean = rnn(x)[0]
    for value in (np.nan, np.inf, -np.inf):
        y = x.copy()
        y[2, 4, 1] = value
        got = streamed(rnn.stream(9), y)
        np.testing.assert_array_equal(np.delete(got, 4, 1), np.delete(clean, 4, 1))
        assert np.isnan(got[2:, 4]).all()


@pytest.mark.parametrize("norm", NORMS)
def test_a_stream_keeps_the_network_it_was_made_from(rng, norm):
    rnn = network(3, 17, norm=norm, trained=T)
    x = normal(rng, T, 2, 3)
    y = rnn(x)[0]
    stream = rnn.stream(2)
    got = [np.array(stream(x[0]))]
    rnn.weight_hh_l0 = rng.uniform(-1, 1, (17, 17))
    if norm == "batch":
        rnn.calibrate([normal(rng, 2, 40, 3)])
        rnn.overrun = "mean"
    got += [np.array(stream(row)) for row in x[1:]]
    np.testing.assert_array_equal(got, y)
    assert (streamed(rnn.stream(2), x) != y).any()
    del rnn  # the stream is all that is left
    gc.collect()
    stream.reset()
    np.testing.assert_array_equal(streamed(stream, x), y)


@pytest.mark.parametrize("norm", NORMS)
def test_threads_may_change_between_steps(rng, norm):
    rnn = network(3, 450, norm=norm, trained=T)  # a step is worth four
    x = normal(rng, T, 70, 3)
    stream, got = rnn.stream(70), []
    for t, row in enumerate(x):
        with several_threads(1 + t % 4, divide="either"):
            got.append(np.array(stream(row)))
    np.testing.assert_array_equal(got, rnn(x)[0])


@pytest.mark.parametrize("norm", NORMS)
def test_streams_in_several_threads(rng, norm):
    """Four Python threads with a stream each, and one network that computes whole sequences beside them."""
    steps = 120
    rnn = network(3, 48, norm=norm, num_layers=2, trained=steps)
    x = normal(rng, 4, steps, 5, 3)
    want = [rnn(part)[0] for part in x]
    rnn.weight_ih_l0 = rnn.weight_ih_l0  # packed again, by whichever thread comes first
    got = [None] * 4

    def work(k):
        got[k] = streamed(rnn.stream(5), x[k])
        np.testing.assert_array_equal(rnn(x[k])[0], want[k])

    together(work, 4)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "norm, known, threads, hidden",
    [
        ("layer", 0, 1, 64),
        (None, 0, 1, 64),
        ("batch", 400, 1, 64),
        ("batch", 5, 1, 64),
        (lnrnn.BatchNormSpec(overrun="batch"), 5, 1, 64),
        ("layer", 0, 2, 1050),
    ],
)
def test_a_call_allocates_nothing(rng, norm, known, threads, hidden):
    """With `out`. NumPy tells tracemalloc of its buffers. What remains are a few Python integers of 32
    bytes."""
    batch = 4
    rnn = network(3, hidden, norm=norm, num_layers=2, trained=known)
    if norm == "batch":
        rnn.overrun = "last"
    stream, row = rnn.stream(batch), normal(rng, batch, 3)
    kept, most = [], []
    with several_threads(threads, divide="units"):
        for _ in range(20):
            stream(row)
        out = np.empty((batch, hidden), np.float32)
        # Three times, for another thread of the process, such as a progress bar's, may allocate beside one.
        for _ in range(3):
            gc.collect()
            tracemalloc.start()
            try:
                for _ in range(10):
                    stream(row, out=out)
                before, _ = tracemalloc.get_traced_memory()
                tracemalloc.reset_peak()
                for _ in range(120 // threads):
                    stream(row, out=out)
                after, peak = tracemalloc.get_traced_memory()
                made = np.empty(hidden, np.float32)  # would one row of one stream have been seen?
                assert tracemalloc.get_traced_memory()[0] - after >= made.nbytes
            finally:
                tracemalloc.stop()
            kept.append(after - before)
            most.append(peak - before)
    assert min(kept) <= 128
    assert min(most) < 512


def test_no_stream_reads_backwards():
    with pytest.raises(ValueError, match="bidirectional"):
        lnrnn.RNN(3, 5, bidirectional=True).stream()
