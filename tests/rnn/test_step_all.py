"""step_all computes one step of several streams in one call, with the bits and errors of one call for each
stream.
"""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest

import lnrnn
from helpers import layouts, together
from networks import network, normal, run_apart, same

D, H = 3, 5


def test_step_all_takes_any_layout(rng):
    rnn = network(D, H)
    x = normal(rng, 4, D)
    want = rnn.stream(4)(x)
    for given_x in layouts(x).values():
        same(lnrnn.step_all([(rnn.stream(4), given_x)])[0], want)
    same(lnrnn.step_all([[rnn.stream(4), x.tolist()]])[0], want)


def wrong_steps():
    """Returns arguments that step_all refuses, each with a part of the message.

    The step of the first stream is valid.
    """
    right, other = network(D, H).stream(2), network(D, H).stream(2)
    ended = network(D, H, norm="batch", trained=1).stream(2)
    ended(np.ones((2, D)))
    good = np.ones((2, D), np.float32)
    cases = [
        ([(right, good), (other, good[:1])], ValueError, r"steps\[1\]\[1\] must be of shape \(2, 3\), got"),
        ([(right, good), (other, good[None])], ValueError, r"steps\[1\]\[1\] must be of shape"),
        ([(right, good), (other, "x")], TypeError, r"steps\[1\]\[1\] must be an array of real numbers"),
        ([(right, good), (other, None)], TypeError, r"steps\[1\]\[1\] must be an array of real numbers"),
        ([(right, good), (right, good)], ValueError, r"steps\[1\]\[0\] must be a stream that no other"),
        ([(right, good), right], TypeError, r"steps\[1\] must be a pair \(stream, x\)"),
        ([(right, good), (right, good, good)], TypeError, r"steps\[1\] must be a pair \(stream, x\)"),
        ([(right, good), (network(D, H), good)], TypeError, r"steps\[1\] must be a pair \(stream, x\)"),
        ([(right, good), (ended, good)], lnrnn.SequenceTooLongError, r"steps\[1\]\[0\], lane 0 has 2 steps"),
        ([(right, good)], ValueError, "threads must be"),
    ]  # fmt: skip
    return right, cases


@pytest.mark.parametrize("case", range(10))
def test_a_refused_step_changes_no_lane(case):
    right, cases = wrong_steps()
    steps, error, match = cases[case]
    before = right.state
    with pytest.raises(error, match=match):
        lnrnn.step_all(steps, threads=0 if match.startswith("threads") else None)
    assert (right.step == 0).all()
    same(right.state, before)


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
