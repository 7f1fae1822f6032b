"""If other processes use the cores, short calls run on one thread for a while."""

from __future__ import annotations

import os

import numpy as np
import pytest
from test_teams import each_kind, using_teams

import engine_switches
import lnrnn
from helpers import using_threads
from networks import said

# Two threads on one core meet at a barrier in every step. Soon one of them must wait until the scheduler runs
# the other.
ONE_CORE = """
import os, time
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
import numpy as np, engine_switches, lnrnn
lnrnn.set_num_threads(2)
rnn, x = lnrnn.RNN(7, 1200, seed=0), np.ones((4, 3, 7), np.float32)
def team(call=lambda: rnn(x)[0]):
    engine_switches.teams_had()
    y = call().tobytes()
    return max(1, *engine_switches.teams_had()), y
def wait_until_alone():
    until = time.monotonic() + 30
    while time.monotonic() < until:
        size, y = team()
        assert y == want
        if size == 1:
            return True
"""

SHARED = (
    ONE_CORE
    + """
first, want = team()
alone = wait_until_alone()
time.sleep(1)                               # the longest back-off takes 0.8 s
print(first, alone, team()[0])
"""
)

# On one core the pool's worker cannot run while its caller computes, so the caller must do all the work.
WITHOUT = (
    ONE_CORE
    + """
first, want = team()
alone = wait_until_alone()
others = [np.ones((steps, 2, 7), np.float32) for steps in (1, 2, 3, 5, 9)]
wanted = [rnn(each, threads=1)[0] for each in others]
for _ in range(20):    # the worker must not do the work later, when another call uses the memory
    for other, y in zip(others, wanted):
        assert np.array_equal(rnn(other)[0], y)
        time.sleep(0.001)
engine_switches.set_barrier_mode("together")
print(alone, *team()[:1], team()[1] == want)
"""
)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs an affinity mask")
@pytest.mark.skipif("openmp" not in lnrnn._core.team_list(), reason="needs OpenMP")
def test_short_calls_run_on_one_thread_during_a_back_off():
    assert said(SHARED, LNRNN_TEAM="openmp") == "2 True 2"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs an affinity mask")
def test_the_pool_continues_without_a_late_worker():
    assert said(WITHOUT, LNRNN_TEAM="pthread") == "True 2 True"


@each_kind
def test_each_step_of_a_stream_asks_for_a_back_off(kind):
    """The number of threads is not fixed when the stream is created. In the mode "together" only the test
    starts a back-off, a time in which calls use one thread. A step of 1600 lanes has enough work for two."""
    rnn, frame = lnrnn.RNN(7, 128, seed=0), np.ones((1600, 7), np.float32)

    def team(stream):
        engine_switches.teams_had()
        stream(frame)
        return max(1, *engine_switches.teams_had())

    with using_threads(2), using_teams(kind):
        before = rnn.stream(1600)
        assert team(before) == 2
        engine_switches.set_back_off(1000)
        then = rnn.stream(1600)
        assert team(before) == team(then) == 1
        engine_switches.set_back_off(0)
        assert team(before) == team(then) == 2


# Each row in ms: length of the last back-off, time since its end, the wait, and length of the next
# back-off. A back-off of 4 ms counts until 4 * 4 + 500 ms after its end.
LENGTHS = [
    (0, 0, 0.2, 2), (0, 0, 0.4, 3.2), (0, 1000, 5, 40), (2, 0, 0.2, 4), (4, 516, 0.4, 8), (4, 517, 0.2, 2),
    (300, 1700, 0.4, 600), (300, 1701, 0.4, 3.2), (8, 1, 3, 24), (399, 1, 0.4, 798), (401, 1, 0.4, 800),
    (800, 3700, 0.4, 800), (0, 0, 101, 800),
]  # fmt: skip


@pytest.mark.parametrize("last, since, waited, length", LENGTHS)
def test_a_back_off_doubles_or_follows_the_wait_that_started_it(last, since, waited, length):
    ns = [round(1e6 * value) for value in (last, since, waited, length)]
    assert engine_switches.next_back_off(*ns[:3]) == ns[3]


# A wait (ms), the time since the team began, the number of barriers, and whether the wait is too long.
WAITS = [
    (0.3, 0.5, 10, False),  # a step takes microseconds
    (0.4, 0.5, 10, False),
    (0.401, 0.5, 10, True),
    (3.9, 4, 10, True),
    (0.5, 0, 1, True),  # the thread that says when the team began is late
    (1, 41, 10, False),  # a step takes 4 ms
    (4, 44, 10, False),
    (4.1, 44.1, 10, True),
    (30, 61, 1, False),  # the inputs of many steps come before the first barrier
    (32, 61, 1, True),
]


@pytest.mark.parametrize(("waited", "since", "barriers", "long"), WAITS)
def test_a_team_waits_as_long_as_its_threads_work(waited, since, barriers, long):
    found = engine_switches.waits_too_long(round(1e6 * waited), round(1e6 * since), barriers)
    assert bool(found) is long
