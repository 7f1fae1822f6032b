"""step_all computes one step of several streams in one call, with the bits and errors of one call for each
stream.
"""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np

import lnrnn
from helpers import together
from networks import network, normal, run_apart, same

D, H = 3, 5


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

    calls(5000)  # Python 3.10 keeps frames and small objects until then
    tracemalloc.start()
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    calls(1000)
    gc.collect()
    assert tracemalloc.get_traced_memory()[0] - before < 10_000  # ten bytes a call, less than any object


def test_step_all_keeps_no_memory():
    run_apart(memory_of_steps)
