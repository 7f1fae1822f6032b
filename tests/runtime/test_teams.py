"""Tests both kinds of threads: OpenMP's, and the library's own thread pool."""

from __future__ import annotations

import os
import re
import sys

import pytest

import lnrnn
from networks import run_python, said

KINDS = lnrnn._core.team_list()
each_kind = pytest.mark.parametrize("kind", KINDS)
pool = pytest.mark.skipif("pthread" not in KINDS, reason="a system without POSIX threads")
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

BITS = """
import engine_switches, hashlib, lnrnn, test_runtime as t
engine_switches.set_barrier_mode("{mode}")
lnrnn.set_num_threads({threads})
print(lnrnn.cpu_info()["team"], hashlib.sha256(t.compute()).hexdigest(), *engine_switches.teams_had())
"""


@each_kind
def test_the_environment_chooses_the_kind(kind):
    assert said("import lnrnn; print(lnrnn.cpu_info()['team'])", LNRNN_TEAM=kind) == kind
    assert f"team: {kind}" in said("import lnrnn.cli as c; c.main(['info'])", LNRNN_TEAM=kind)


def test_the_default_is_the_first_of_the_list():
    assert said("import lnrnn; print(lnrnn.cpu_info()['team'])", LNRNN_TEAM="") == (KINDS or ["none"])[0]


@pytest.mark.parametrize("name", ["tbb", " pthread", "é"])
def test_an_unknown_kind_is_an_error(name):
    done = run_python("import lnrnn", LNRNN_TEAM=name)
    assert done.returncode and re.search(f"LNRNN_TEAM must be one of .*, got {name!r}", done.stderr)
    assert all(kind in done.stderr for kind in KINDS)
    with pytest.raises(ValueError, match="is not available here; available: "):
        lnrnn._core.use_team(name)


def test_all_kinds_and_sizes_give_the_same_bits():
    found = {
        tuple(said(BITS.format(threads=threads, mode=mode), LNRNN_TEAM=kind).split()[1:2])
        for kind in KINDS
        for threads, mode in ((2, "staggered"), (3, "slow"), (7, "together"))
    }
    assert len(found) == 1


@each_kind
def test_a_team_has_the_number_of_threads_that_is_set(kind):
    assert said(BITS.format(threads=3, mode="together"), LNRNN_TEAM=kind).split()[2:] == ["3", "3"]


# Defines workers(): (state, blocked signals) of all threads of this process that Python does not know.
WORKERS = """
import os, threading, time
def workers():
    known = {t.native_id for t in threading.enumerate()}
    found = []
    for task in os.listdir("/proc/self/task"):
        if int(task) in known:
            continue
        with open(f"/proc/self/task/{task}/status") as f:
            fields = dict(line.split(":", 1) for line in f)
        found.append((fields["State"].split()[0], int(fields["SigBlk"], 16)))
    return found
def asleep(n):
    until = time.monotonic() + 30
    while [state for state, _ in workers()] != ["S"] * n and time.monotonic() < until:
        time.sleep(0.01)
    return workers()
import numpy as np
x = np.random.default_rng(0).standard_normal((4096, 512)).astype(np.float32)
before = len(workers())                     # threads of NumPy's BLAS, if there are any
import engine_switches, lnrnn
engine_switches.set_barrier_mode("together")
lnrnn.set_num_threads(4)
"""


BOUND = (
    WORKERS
    + """
lnrnn.layer_norm(x, 512)
masks = set()
asleep(before + 3)
known = {t.native_id for t in threading.enumerate()}
for task in os.listdir("/proc/self/task"):
    if int(task) not in known:
        masks.add(tuple(sorted(os.sched_getaffinity(int(task)))))
print(*masks, sep=";")
"""
)


@pool
@linux
@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="one core"
)
@pytest.mark.parametrize("setting", [{}, {"OMP_PROC_BIND": "true"}, {"OMP_PLACES": "cores"}], ids=str)
def test_workers_may_run_on_every_core_of_the_process(setting):
    """When OpenMP is loaded, it binds the thread that starts the workers to one core."""
    masks = said(BOUND, LNRNN_TEAM="pthread", OPENBLAS_NUM_THREADS="1", **setting).split(";")
    assert masks == [str(tuple(sorted(os.sched_getaffinity(0))))]


@pool
def test_callers_do_not_wait_for_each_other():
    """Eight Python threads call at the same time, three times. Each call has a team of three threads."""
    code = """
import engine_switches, threading, lnrnn, test_runtime as t
engine_switches.set_barrier_mode("together")
lnrnn.set_num_threads(1)
want = t.compute()
lnrnn.set_num_threads(3)
teams, together = [], threading.Barrier(8)
def work():
    together.wait(60)
    engine_switches.teams_had()
    for _ in range(3):
        if t.compute() == want:
            teams.append(engine_switches.teams_had())
callers = [threading.Thread(target=work) for _ in range(8)]
for caller in callers: caller.start()
for caller in callers: caller.join()
print(set(teams), len(teams))
"""
    assert said(code, LNRNN_TEAM="pthread") == "{(3, 3)} 24"


@pool
@linux
def test_workers_start_with_the_first_call_that_needs_them_and_sleep_after_it():
    code = (
        WORKERS
        + """
counts = [len(workers()) - before]
lnrnn.layer_norm(x[:1], 512); counts.append(len(workers()) - before)
want = lnrnn.layer_norm(x, 512).tobytes(); counts.append(len(workers()) - before)
print(counts, {state for state, _ in asleep(before + 3)})
assert lnrnn.layer_norm(x, 512).tobytes() == want                   # they wake
print(len(workers()) - before, engine_switches.teams_had()[0])
"""
    )
    lines = said(code, LNRNN_TEAM="pthread", OPENBLAS_NUM_THREADS="1").splitlines()
    assert lines == ["[0, 0, 3] {'S'}", "3 4"]


@pool
@linux
def test_workers_take_no_signals():
    code = WORKERS + "lnrnn.layer_norm(x, 512)\nprint(*{hex(mask) for _, mask in asleep(before + 3)})"
    masks = said(code, LNRNN_TEAM="pthread", OPENBLAS_NUM_THREADS="1").split()
    # The mask has all signals but SIGKILL and SIGSTOP, which cannot be blocked, and the C library's own
    # signals 32 and 33.
    assert len(masks) == 1 and int(masks[0], 16) | 1 << 31 | 1 << 32 == (1 << 64) - 1 - (1 << 8) - (1 << 18)


@pool
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_starts_its_own_workers():
    """A thread forks while another computes."""
    code = """
import engine_switches, os, threading, warnings, lnrnn, test_runtime as t
warnings.simplefilter("ignore", DeprecationWarning)         # of forks with threads: that is the test
engine_switches.set_barrier_mode("together")
lnrnn.set_num_threads(3)
want = t.compute()
def in_child():
    pid = os.fork()
    if not pid:
        engine_switches.teams_had()
        right = t.compute() == want and engine_switches.teams_had() == (3, 3)
        os._exit(0 if right else 1)
    return os.waitpid(pid, 0)[1]
stop, codes = threading.Event(), []
def compute():
    while not stop.is_set():
        assert t.compute() == want
busy = threading.Thread(target=compute)
busy.start()
for _ in range(3):
    forker = threading.Thread(target=lambda: codes.append(in_child()))
    forker.start()
    forker.join()
stop.set()
busy.join()
print(codes, t.compute() == want)
"""
    assert said(code, LNRNN_TEAM="pthread").strip() == "[0, 0, 0] True"


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
    for _ in range(3):
        done = run_python(code, LNRNN_TEAM="pthread")
        assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
