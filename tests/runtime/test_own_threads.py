"""Tests the limits on threads by `threads=` of a call, by the context `num_threads`, and by threadpoolctl."""

from __future__ import annotations

import asyncio
import threading
from contextlib import nullcontext
from importlib.util import find_spec

import numpy as np
import pytest

import lnrnn
from helpers import several_threads, using_threads
from networks import network, normal, said


def test_num_threads_holds_inside_and_nests():
    with using_threads(3):
        with lnrnn.num_threads(2):
            assert lnrnn.get_num_threads() == 2
            with lnrnn.num_threads(5):
                assert lnrnn.get_num_threads() == 5
                lnrnn.set_num_threads(4)
                assert lnrnn.get_num_threads() == 5
            assert lnrnn.get_num_threads() == 2
        assert lnrnn.get_num_threads() == 4
        with pytest.raises(KeyError), lnrnn.num_threads(2):
            raise KeyError
        assert lnrnn.get_num_threads() == 4


def test_num_threads_does_not_affect_other_threads_and_tasks():
    seen = {}
    with using_threads(3), lnrnn.num_threads(2):
        thread = threading.Thread(target=lambda: seen.update(thread=lnrnn.get_num_threads()))
        thread.start()
        thread.join()

        async def own(n, turns):
            with lnrnn.num_threads(n):
                for _ in range(turns):
                    await asyncio.sleep(0)
                    assert lnrnn.get_num_threads() == n

        async def both():
            await asyncio.gather(own(1, 5), own(4, 7))
            return lnrnn.get_num_threads()

        assert asyncio.run(both()) == 2
    assert seen == {"thread": 3}


# (limit of the process, limit of num_threads, limit of the call, number of threads that the call uses)
ORDER = [(1, None, 2, 2), (2, None, 1, 1), (1, 2, None, 2), (2, 1, None, 1), (1, 1, 2, 2), (2, 2, 1, 1)]


@pytest.mark.parametrize("everybody, own, call, had", ORDER)
def test_the_innermost_number_of_threads_counts(rng, everybody, own, call, had):
    rnn = network(8, 200, num_layers=2)
    x = normal(rng, 10, 140, 8)
    flat = np.ascontiguousarray(x.swapaxes(0, 1)).reshape(-1, 8)
    stream = rnn.stream(140)
    calls = {
        "call": lambda: rnn(x, threads=call)[0],
        "ragged": lambda: rnn.ragged(flat, np.arange(0, len(flat) + 1, 10), threads=call)[0],
        "step": lambda: stream(x[0], threads=call),
        "chunk": lambda: stream(x, threads=call),
    }
    for one in calls.values():
        with (
            several_threads(everybody, "either", had=had),
            nullcontext() if own is None else lnrnn.num_threads(own),
        ):
            one()


def test_norms_use_num_threads(rng):
    x = normal(rng, 3000, 200)
    with several_threads(1, had=2), lnrnn.num_threads(2):
        want = lnrnn.layer_norm(x, 200)
    with using_threads(2), lnrnn.num_threads(1):
        np.testing.assert_array_equal(lnrnn.layer_norm(x, 200), want)


controlled = pytest.mark.skipif(not find_spec("threadpoolctl"), reason="needs threadpoolctl")

LIMITS = """
import os
import {first}, {second}
from threadpoolctl import ThreadpoolController, threadpool_info, threadpool_limits
import engine_switches
rnn, x = lnrnn.RNN(7, 1200, seed=0), np.ones((4, 3, 7), np.float32)
engine_switches.set_barrier_mode("together")
def team():
    engine_switches.teams_had()
    rnn(x)
    return lnrnn.get_num_threads(), max(1, *engine_switches.teams_had())
found = [team()]
with threadpool_limits(1):
    found.append(team())
    with threadpool_limits(2):
        found.append(team())
    found.append(team())
    os.environ["OMP_NUM_THREADS"] = "3"
    found.append(team())
    with lnrnn.num_threads(2):
        found.append(team())
found.append(team())
lnrnn.set_num_threads(2)
with threadpool_limits(1):
    found.append(team())
print(*found)
"""
WANTED = "(3, 3) (1, 1) (2, 2) (1, 1) (1, 1) (2, 2) (3, 3) (2, 2)"


@controlled
@pytest.mark.parametrize(
    "team, order",
    [(lnrnn._core.team_list()[0], ("lnrnn", "threadpoolctl")), ("pthread", ("threadpoolctl", "lnrnn"))],
)
def test_limits_hold_until_the_number_is_set(team, order):
    code = "import numpy as np\n" + LIMITS.format(first=order[0], second=order[1])
    assert said(code, LNRNN_TEAM=team, OMP_NUM_THREADS="3") == WANTED


@controlled
def test_limits_and_facts_of_the_pool():
    """A limit holds in other threads too, until it ends."""
    code = """
import threading, lnrnn
from threadpoolctl import threadpool_info, threadpool_limits
seen = []
with threadpool_limits({"lnrnn": 1}):
    other = threading.Thread(target=lambda: seen.append(lnrnn.get_num_threads()))
    other.start()
    other.join()
print(seen, lnrnn.get_num_threads())
with threadpool_limits(0):
    print(lnrnn.get_num_threads())
(one,) = (each for each in threadpool_info() if each["user_api"] == "lnrnn")
print(one["num_threads"], one["version"] == lnrnn.__version__, one["threading_layer"])
"""
    found = said(code, LNRNN_TEAM="pthread", OMP_NUM_THREADS="5").split()
    assert found == ["[1]", "5", "1", "5", "True", "pthread"]


@controlled
@pytest.mark.skipif("openmp" not in lnrnn._core.team_list(), reason="built without OpenMP")
def test_openmp_s_threads_are_not_registered():
    code = "import lnrnn, threadpoolctl as t; print('lnrnn' in {i['user_api'] for i in t.threadpool_info()})"
    assert said(code, LNRNN_TEAM="openmp") == "False"


def test_without_threadpoolctl():
    code = "import sys; sys.modules['threadpoolctl'] = None\nimport lnrnn; print(lnrnn.get_num_threads() > 0)"
    assert said(code, LNRNN_TEAM="pthread") == "True"
