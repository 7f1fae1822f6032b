"""Both directions of a layer, or stacked layers one chunk of steps apart, are computed at the same time.

The bits equal those of one layer after the other on one thread.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import engine_switches
import lnrnn
from helpers import in_parts_of, on_machine, several_threads, using_caches, using_network_way, using_threads
from lnrnn import _core
from networks import drawn_state, network, normal, parts, said

needs_threads = pytest.mark.skipif(lnrnn.cpu_info()["team"] == "none", reason="built without threads")
D, H = 7, 33


def drawn(rng, rnn, T, B, ragged=False):
    """Returns x, h0 and lengths, some of them 0."""
    x = normal(rng, *((B, T, rnn.input_size) if rnn.batch_first else (T, B, rnn.input_size)))
    return x, drawn_state(rng, rnn, B), rng.integers(0, T + 1, B) if ragged else None


def result(rnn, *arguments, **named):
    y, h = rnn(*arguments, **named)
    return [y, *parts(rnn, h)]


def in_turn(rnn, *arguments, **named):
    with using_network_way("in turn"), using_threads(1):
        return result(rnn, *arguments, **named)


def same(got, want, message=""):
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=message)


@needs_threads
@pytest.mark.parametrize("mode", ["slow", "staggered"])
@pytest.mark.parametrize("layers, both", [(2, False), (3, False), (5, False), (2, True)])
def test_late_threads_give_the_same_bits(rng, layers, both, mode):
    """`mode` makes one thread after the other late at barriers."""
    rnn = network(D, H, cell="LSTM", num_layers=layers, bidirectional=both)
    x, h0, ends = drawn(rng, rnn, 200, 2, True)
    want = in_turn(rnn, x, h0, ends)
    for n in (2, 3):
        with using_network_way("side by side"), several_threads(n, "either", min(n, 2 if both else layers)):
            engine_switches.set_barrier_mode(mode)
            same(result(rnn, x, h0, ends, threads=n), want, f"{n} threads")


@needs_threads
@pytest.mark.parametrize("cell, threads", [("RNN", 5), ("LSTM", 4), ("GRU", 5), ("LiGRU", 4)])
def test_half_of_the_threads_for_each_direction(rng, cell, threads):
    """Each half of the threads divides the hidden units of few sequences, or the groups of many sequences."""
    rnn = network(97, 193, cell=cell, num_layers=2, bidirectional=True)
    for B, T, divide in ((1, 400, "units"), (384, 10, "tasks")):
        steps = T if cell == "RNN" else T // 3
        x, h0, ends = drawn(rng, rnn, steps, B, True)
        ends[0] = steps
        want = in_turn(rnn, x, h0, ends)
        assert steps * B * len(rnn.weight_hh_l0) * 290 > 2 * 2**22
        for size in (0, 2e6):
            with using_network_way("side by side"), several_threads(threads, divide), in_parts_of(size):
                got = result(rnn, x.astype(np.float64), h0, ends)
            same(got, want, f"{B} sequences, parts of {size}")


class Interrupted(Exception):
    pass


@needs_threads
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no setitimer")
@pytest.mark.parametrize("both", [False, True])
def test_an_interrupt_ends_a_call_and_the_next_one_is_right(rng, both):
    rnn = network(64, 128, cell="LSTM", num_layers=3, bidirectional=both)
    x, h0, _ = drawn(rng, rnn, 600, 4)
    want = in_turn(rnn, x, h0)

    def raise_it(*_):
        raise Interrupted

    before = signal.signal(signal.SIGALRM, raise_it)
    try:
        with using_network_way("side by side"), using_threads(2), in_parts_of(2e6):
            with pytest.raises(Interrupted):
                signal.setitimer(signal.ITIMER_REAL, 0.003)
                while True:
                    result(rnn, x, h0)
            same(result(rnn, x, h0), want)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


SUPPORT = str(Path(__file__).parents[1] / "support")

# This program has more threads than cores, and forks a child, in which OpenMP has no team.
APART = """
import os, sys
sys.path.insert(0, os.environ["SUPPORT"])
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
import engine_switches, numpy as np, lnrnn
rng = np.random.default_rng(0)
nets = [lnrnn.LSTM(20, 150, 4, seed=0), lnrnn.GRU(20, 150, 2, bidirectional=True, seed=0)]
x = rng.standard_normal((60, 2, 20)).astype(np.float32)
engine_switches.set_network_way("in turn")
want = [rnn(x, threads=1)[0] for rnn in nets]
engine_switches.set_network_way("side by side")
def right():
    tries = [(rnn, y, n) for rnn, y in zip(nets, want) for n in (2, 3, 7)] * 5
    return all(np.array_equal(rnn(x, threads=n)[0], y) for rnn, y, n in tries)
print(right(), end=" ", flush=True)
child = os.fork()
if not child:
    os._exit(0 if right() else 1)
print(os.waitpid(child, 0)[1], right())
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="needs an affinity mask, and forks beside threads"
)
@pytest.mark.parametrize("kind", _core.team_list())
def test_parallel_layers_on_one_core_and_in_a_fork(kind):
    assert said(APART, LNRNN_TEAM=kind, SUPPORT=SUPPORT) == "True 0 True"


@needs_threads
@pytest.mark.parametrize("cell, hidden, layers, both, B, T, l3, beside", [
    ("LSTM", 128, 4, False, 1, 200, None, True),
    ("LSTM", 256, 4, False, 1, 200, None, False),  # half of the weights fit into L2
    ("GRU", 256, 2, True, 4, 200, None, True),
    ("LSTM", 512, 2, False, 1, 20, None, False),  # half of the weights fit into a faster cache
    ("LSTM", 256, 4, False, 1, 8, None, False),  # the last layer would begin after the first has ended
    ("LSTM", 256, 1, False, 1, 200, None, False),
    ("LSTM", 320, 4, False, 1, 200, None, True),
    # In parallel a layer would wait for a chunk of the layer below, and each chunk would read W_ih again.
    ("LSTM", 320, 4, False, 1, 20, None, False),
    # Each W_hh has 256 KiB. Two of them must fit into L3.
    *(("LSTM", 128, layers, both, 1, 200, l3, l3 > 1 << 20)
      for layers, both in ((2, False), (1, True)) for l3 in (1 << 21, 1 << 19)),
])  # fmt: skip
def test_layers_run_in_parallel_if_that_is_faster(rng, cell, hidden, layers, both, B, T, l3, beside):
    """Where layers do not run in parallel, two threads divide the hidden units of each layer."""
    rnn = network(hidden, hidden, cell=cell, num_layers=layers, bidirectional=both)
    x, caches = normal(rng, T, B, hidden), l3 and (1 << 15, 1 << 16, l3)
    with (
        on_machine("fast L3"), using_caches(caches),
        several_threads(2, "tasks" if beside else "units"),
    ):  # fmt: skip
        engine_switches.teams_had()
        got = result(rnn, x)
    same(got, in_turn(rnn, x))


def test_memory_is_not_shared_with_the_caller(rng):
    rnn = network(D, H, cell="LSTM", num_layers=3)
    x, h0, _ = drawn(rng, rnn, 20, 2)
    kept = [a.copy() for a in h0]
    with using_network_way("side by side"), using_threads(2):
        first, second = (result(rnn, x, h0, threads=2) for _ in range(2))
    same(first, second)
    same(h0, kept)
    for k, a in enumerate(first):
        assert not any(np.shares_memory(a, b) for b in (*first[k + 1 :], *second, x, *h0))
