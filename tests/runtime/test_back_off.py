"""Threads that have to share their cores with others: short calls go on with one for a while."""

from __future__ import annotations

import os

import pytest

import lnrnn
from networks import said

# Two threads that meet at every step, on one core: sooner or later one waits for the other's time slice.
ONE_CORE = """
import os, time
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
import numpy as np, lnrnn
lnrnn.set_num_threads(2)
rnn, x = lnrnn.RNN(7, 1200, seed=0), np.ones((4, 3, 7), np.float32)
def team(call=lambda: rnn(x)[0]):
    lnrnn._core.teams_had()
    y = call().tobytes()
    return max(1, *lnrnn._core.teams_had()), y
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
time.sleep(1)                               # the longest back-off takes 0.4 s
print(first, alone, team()[0])
"""
)

# A stream is made while calls are alone, and steps afterwards; and the other way round. 1600 lanes: two
# threads' work, but brief. It takes a while to make one, longer than a back-off may: tried a few times.
STREAMS = (
    ONE_CORE
    + """
small, frame = lnrnn.RNN(7, 128, seed=0), np.ones((1600, 7), np.float32)
first, want = team()
before = small.stream(1600)
found = set()
for _ in range(40):
    wait_until_alone()
    found.add(("made before", team(lambda: before(frame))[0]))
    made = small.stream(1600)
    alone = team()[0] == 1
    time.sleep(1)
    if alone:
        found.add(("made then", team(lambda: made(frame))[0]))
    if found >= {("made before", 1), ("made then", 2)}:
        break
print(first, sorted(found & {("made before", 1), ("made then", 2), ("made then", 1)}))
"""
)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs an affinity mask")
@pytest.mark.parametrize("kind", lnrnn._core.team_list())
def test_short_calls_have_one_thread_for_a_while(kind):
    assert said(SHARED, LNRNN_TEAM=kind) == "2 True 2"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs an affinity mask")
@pytest.mark.parametrize("kind", lnrnn._core.team_list())
def test_a_stream_has_as_many_threads_as_the_moment_allows(kind):
    """Not as many as the moment allowed in which it was made."""
    assert said(STREAMS, LNRNN_TEAM=kind) == "2 [('made before', 1), ('made then', 2)]"
