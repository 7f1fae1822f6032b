"""step_all computes one step of several streams in one call, with the bits and errors of one call for each
stream.
"""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import lnrnn
from helpers import together, using_threads
from networks import VARIANTS, network, normal, parts, run_apart, same

D, H = 3, 5


@settings(max_examples=60)
@given(data=st.data())
def test_step_all_has_the_bits_of_single_calls(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    names = data.draw(st.lists(st.sampled_from(sorted(VARIANTS)), max_size=6))
    streams, alike, networks = [], [], []
    for name in names:
        rnn = network(D, data.draw(st.sampled_from([1, 5, 33])), trained=9, **VARIANTS[name])
        lanes = data.draw(st.sampled_from([1, 2, 70]))
        networks.append(rnn)
        streams.append(rnn.stream(lanes))
        alike.append(rnn.stream(lanes))
    with using_threads(data.draw(st.integers(1, 3))):
        for _ in range(4):
            xs = [normal(rng, len(s.step), D) for s in streams]
            if data.draw(st.booleans()):  # one lane needs no axis; float64 is converted
                xs = [np.float64(x[0]) if len(x) == 1 else x for x in xs]
            got = lnrnn.step_all(zip(streams, xs, strict=True))
            want = [s(x) for s, x in zip(alike, xs, strict=True)]
            assert len(got) == len(names)
            for y, expected in zip(got, want, strict=True):
                same(y, expected)
                assert y.dtype == np.float32 and y.flags.owndata and y.flags.writeable
    for rnn, stream, other in zip(networks, streams, alike, strict=True):
        same(stream.step, other.step)
        for a, b in zip(parts(rnn, stream.state), parts(rnn, other.state), strict=True):
            same(a, b)


def test_threads_step_lists_of_streams_of_their_own(rng):
    """Four threads call step_all, each with its own streams. The results have the bits of one thread."""
    rnn = network(D, H, cell="GRU", norm=None)
    x = normal(rng, 50, 3, D)
    alone = [rnn.stream() for _ in range(3)]
    want = [lnrnn.step_all(zip(alone, row, strict=True)) for row in x]

    def steps(_):
        streams = [rnn.stream() for _ in range(3)]
        same([lnrnn.step_all(zip(streams, row, strict=True)) for row in x], want)

    together(steps, 4)


def memory_of_steps():
    """Asserts that calls of step_all, including refused calls, free all memory that they allocate."""
    streams = [network(D, H).stream() for _ in range(5)]
    x = np.ones(D, np.float32)

    def calls(n):
        for _ in range(n):
            lnrnn.step_all([(s, x) for s in streams])
            try:
                lnrnn.step_all([(streams[0], x), (streams[1], x[:1])])
            except ValueError:
                continue
            raise AssertionError("an x that is too short was taken")

    calls(100)
    tracemalloc.start()
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    calls(1000)
    gc.collect()
    assert tracemalloc.get_traced_memory()[0] - before < 10_000  # ten bytes a call, less than any object


def test_step_all_keeps_no_memory():
    run_apart(memory_of_steps)
