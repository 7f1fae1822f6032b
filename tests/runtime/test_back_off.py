"""Threads that have to share their cores with others: short calls go on with one for a while."""

from __future__ import annotations

import os

import pytest

import lnrnn
from networks import said

# Two threads that meet at every step, on one core: sooner or later one waits for the other's time slice.
SHARED = """
import os, time
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
import numpy as np, lnrnn
lnrnn.set_num_threads(2)
rnn, x = lnrnn.RNN(7, 1200, seed=0), np.ones((4, 3, 7), np.float32)
def team():
    lnrnn._core.teams_had()
    y = rnn(x)[0].tobytes()
    return max(1, *lnrnn._core.teams_had()), y
first, want = team()
until, alone = time.monotonic() + 30, False
while not alone and time.monotonic() < until:
    size, y = team()
    alone = size == 1
    assert y == want
time.sleep(1)                               # the longest back-off takes 0.4 s
print(first, alone, team()[0])
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs an affinity mask")
@pytest.mark.parametrize("kind", lnrnn._core.team_list())
def test_short_calls_have_one_thread_for_a_while(kind):
    assert said(SHARED, LNRNN_TEAM=kind) == "2 True 2"
