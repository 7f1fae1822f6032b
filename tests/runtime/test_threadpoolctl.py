"""What threadpoolctl sees and sets: of OpenMP's threads by itself, of the library's own by a controller."""

from __future__ import annotations

import pytest

import lnrnn
from networks import said

pytest.importorskip("threadpoolctl")

LIMITS = """
import os
import {first}, {second}
from threadpoolctl import ThreadpoolController, threadpool_info, threadpool_limits
rnn, x = lnrnn.RNN(7, 1200, seed=0), np.ones((4, 3, 7), np.float32)
lnrnn._core.set_barrier_mode("together")
def team():
    lnrnn._core.teams_had()
    rnn(x)
    return lnrnn.get_num_threads(), max(1, *lnrnn._core.teams_had())
found = [team()]
with threadpool_limits(1):
    found.append(team())
    with threadpool_limits(2):
        found.append(team())
    found.append(team())
    os.environ["OMP_NUM_THREADS"] = "3"
    found.append(team())
found.append(team())
lnrnn.set_num_threads(2)
with threadpool_limits(1):
    found.append(team())
print(*found)
"""
WANTED = "(3, 3) (1, 1) (2, 2) (1, 1) (1, 1) (3, 3) (2, 2)"


@pytest.mark.parametrize("team", lnrnn._core.team_list())
@pytest.mark.parametrize("order", [("lnrnn", "threadpoolctl"), ("threadpoolctl", "lnrnn")])
def test_limits_hold_until_somebody_sets_the_number(team, order):
    code = "import numpy as np\n" + LIMITS.format(first=order[0], second=order[1])
    assert said(code, LNRNN_TEAM=team, OMP_NUM_THREADS="3") == WANTED


def test_limits_of_the_pool_hold_in_other_threads_and_leave_nothing_behind():
    code = """
import threading, lnrnn
from threadpoolctl import threadpool_limits
seen = []
with threadpool_limits({"lnrnn": 1}):
    other = threading.Thread(target=lambda: seen.append(lnrnn.get_num_threads()))
    other.start()
    other.join()
print(seen, lnrnn.get_num_threads())
with threadpool_limits(0):
    print(lnrnn.get_num_threads())
"""
    assert said(code, LNRNN_TEAM="pthread", OMP_NUM_THREADS="5").split() == ["[1]", "5", "1"]


def test_information():
    code = """
import lnrnn, threadpoolctl
(one,) = (each for each in threadpoolctl.threadpool_info() if each["user_api"] == "lnrnn")
print(one["num_threads"] == lnrnn.get_num_threads(), one["version"] == lnrnn.__version__)
print(one["threading_layer"])
"""
    assert said(code, LNRNN_TEAM="pthread") == "True True\npthread"
    code = """
import lnrnn, threadpoolctl
print({each["user_api"] for each in threadpoolctl.threadpool_info()} & {"lnrnn"})
"""
    if "openmp" in lnrnn._core.team_list():
        assert said(code, LNRNN_TEAM="openmp") == "set()"


def test_without_threadpoolctl():
    code = "import sys; sys.modules['threadpoolctl'] = None\nimport lnrnn; print(lnrnn.get_num_threads() > 0)"
    assert said(code, LNRNN_TEAM="pthread") == "True"
