"""Tests both kinds of threads: OpenMP's, and the library's own thread pool."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager

import pytest
from test_runtime import KINDS, compute

import engine_switches
from helpers import at_once, using_threads
from lnrnn import _core
from networks import run_python, said

each_kind = pytest.mark.parametrize("kind", KINDS)
pool = pytest.mark.skipif("pthread" not in KINDS, reason="a system without POSIX threads")
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@contextmanager
def using_teams(kind, mode="together"):
    """Runs the body with threads of one kind, which wait for each other in one of BARRIER_MODES."""
    before = _core.team()
    _core.use_team(kind)
    engine_switches.set_barrier_mode(mode)
    engine_switches.teams_had()
    try:
        yield
    finally:
        engine_switches.set_barrier_mode("normal")
        _core.use_team(before)


@each_kind
def test_the_environment_chooses_the_kind(kind):
    code = "import lnrnn, lnrnn.cli as c; c.main(['info']); print(lnrnn.cpu_info()['team'])"
    _, *lines = said(code, LNRNN_TEAM=kind).splitlines()
    assert f"team: {kind}" in lines and lines[-1] == kind


def test_all_kinds_and_sizes_give_the_same_bits():
    with using_threads(1):
        want = compute()
    for kind in KINDS:
        for threads, mode in ((2, "staggered"), (3, "slow"), (7, "together")):
            with using_threads(threads), using_teams(kind, mode):
                assert compute() == want
                assert engine_switches.teams_had() == (threads, min(threads, 5))  # units repay only five


@pool
def test_callers_do_not_wait_for_each_other():
    """Four Python threads call at the same time, twice. Each call has a team of three threads."""
    with using_threads(1):
        want = compute()

    def work():
        engine_switches.teams_had()
        return compute() == want, engine_switches.teams_had()

    with using_threads(3), using_teams("pthread"):
        for _ in range(2):
            assert at_once([work] * 4) == [(True, (3, 3))] * 4


# Prints the number of the pool's workers before the import of lnrnn, after calls of one and of four threads,
# and after a further call. Then it prints the states of idle workers, their blocked signals, and the cores on
# which they may run.
WORKERS = """
import os, threading, time
def workers():
    # Returns (state, blocked signals, cores) of all threads of this process that Python does not know.
    known = {t.native_id for t in threading.enumerate()}
    found = []
    for task in map(int, os.listdir("/proc/self/task")):
        if task not in known:
            with open(f"/proc/self/task/{task}/status") as f:
                fields = dict(line.split(":", 1) for line in f)
            found.append((fields["State"].split()[0], fields["SigBlk"].strip(), *os.sched_getaffinity(task)))
    return found
import numpy as np
x = np.random.default_rng(0).standard_normal((4096, 512)).astype(np.float32)
counts = [len(workers())]
import engine_switches, lnrnn
engine_switches.set_barrier_mode("together")
lnrnn.set_num_threads(4)
lnrnn.layer_norm(x[:1], 512); counts.append(len(workers()))
want = lnrnn.layer_norm(x, 512).tobytes(); counts.append(len(workers()))
until = time.monotonic() + 30
while {state for state, *_ in workers()} != {"S"} and time.monotonic() < until:
    time.sleep(0.01)
idle = set(workers())
assert lnrnn.layer_norm(x, 512).tobytes() == want                   # they wake
print(*counts, len(workers()), engine_switches.teams_had()[0])
for one in idle:
    print(*one)
"""


@pool
@linux
@pytest.mark.parametrize("setting", [{}, {"OMP_PROC_BIND": "true"}, {"OMP_PLACES": "cores"}], ids=str)
def test_workers_start_with_the_first_call_that_needs_them(setting):
    """Idle workers sleep. They take no signals, and may run on every core of the process, even if OpenMP
    binds the thread that starts them to one core."""
    counts, *idle = said(WORKERS, LNRNN_TEAM="pthread", OPENBLAS_NUM_THREADS="1", **setting).splitlines()
    assert counts == "0 0 3 3 4"
    assert len(idle) == 1
    state, signals, *cores = idle[0].split()
    assert state == "S" and {*map(int, cores)} == os.sched_getaffinity(0)
    # The mask has all signals but SIGKILL and SIGSTOP, which cannot be blocked, and the C library's own
    # signals 32 and 33.
    assert int(signals, 16) | 1 << 31 | 1 << 32 == (1 << 64) - 1 - (1 << 8) - (1 << 18)


@pool
@linux
def test_a_process_can_end_while_workers_spin_or_compute():
    code = """
import engine_switches, threading, lnrnn, test_runtime as t
engine_switches.set_barrier_mode("together")
lnrnn.set_num_threads(3)
t.compute()
def for_ever():
    while True:
        t.compute()
threading.Thread(target=for_ever, daemon=True).start()
t.compute()
print("end")
"""
    for _ in range(2):
        done = run_python(code, LNRNN_TEAM="pthread")
        assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
