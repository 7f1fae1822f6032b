"""Tests the number of threads of a call: cores, quotas, limits of the system, and kinds of teams."""

from __future__ import annotations

import os
import sys
import textwrap

import pytest

import engine_switches
import lnrnn
from helpers import several_threads, using_threads
from networks import FREE, network, normal, run_python, said

KINDS = lnrnn._core.team_list()
each_kind = pytest.mark.parametrize("kind", KINDS)
openmp = pytest.mark.skipif("openmp" not in KINDS, reason="built without OpenMP")
pool = pytest.mark.skipif("pthread" not in KINDS, reason="a system without POSIX threads")
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a limit or a file of Linux")
masks = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs an affinity mask")

COUNTS = "import lnrnn as l; i = l.cpu_info(); print(l.get_num_threads(), i['num_threads'], i['cores'])"


# --- cores: the affinity mask -------------------------------------------------------------------------------

# Has the effect of `taskset -c`. PINNED must run before OpenMP is loaded.
PINNED = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); "


@masks
def test_one_core_of_the_affinity_mask_is_one_core():
    assert said(PINNED + COUNTS) == "1 1 1"
    assert said(PINNED + COUNTS, LNRNN_NUM_THREADS="2") == "2 2 1"


@masks
@pytest.mark.parametrize("setting", [
    dict(OMP_PROC_BIND="spread"), dict(OMP_PROC_BIND="false"),
    dict(OMP_PLACES="cores"), dict(OMP_PLACES="threads", OMP_PROC_BIND="close"),
], ids=lambda s: " ".join(s.values()))  # fmt: skip
def test_cores_are_those_of_the_process_if_openmp_binds_threads(setting):
    """OpenMP binds the initial thread when it is loaded, so the thread's mask is too small."""
    cpus = len(os.sched_getaffinity(0))
    allowed = engine_switches.cores_of(cpus, "/proc/self/cgroup", "/sys/fs/cgroup")
    assert said(COUNTS, **setting).split() == [str(allowed)] * 3
    assert said(PINNED + COUNTS, **setting) == "1 1 1"


# --- cores: the quotas of control groups --------------------------------------------------------------------


@pytest.fixture
def cores(tmp_path):
    """Returns a function cores(groups, files, cpus=8). It returns the number of cores of a process whose
    cgroup file contains `groups`."""

    def count(groups, files, cpus=8):
        (tmp_path / "cgroup").write_text(groups)
        for name, text in files.items():
            file = tmp_path / "root" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return engine_switches.cores_of(cpus, tmp_path / "cgroup", tmp_path / "root")

    return count


@pytest.mark.parametrize("text, allowed", [
    ("200000 100000\n", 2), ("100000 100000\n", 1), ("150000 100000\n", 2), ("200001 100000\n", 3),
    ("1000 100000\n", 1), ("300000 50000\n", 6), ("50000 25000\n", 2),
    *((f"{text}\n", 8) for text in (
        "max 100000", "800000 100000", "900000 100000", "99999999999999999999 100000", "inf 100000",
        "nan 100000", "200000 nan", "200000 0", "0 100000", "-200000 100000", "200000 -100000", "200000", "",
        "two cores", "\x00\xff",
    )),
    ("", 8),
])  # fmt: skip
def test_a_quota_of_version_2(cores, text, allowed):
    """Quota and period are in microseconds. Fractions of a core are rounded up. Malformed text is ignored."""
    assert cores("0::/app\n", {"app/cpu.max": text}) == allowed


@pytest.mark.parametrize("quota, period, allowed", [
    ("200000", "100000", 2), ("250000", "100000", 3), ("50000", "100000", 1), ("60000", "20000", 3),
    ("-1", "100000", 8), ("0", "100000", 8), ("200000", "0", 8), ("200000", "", 8), ("", "100000", 8),
    ("x", "100000", 8), ("200000", None, 8), (None, "100000", 8),
])  # fmt: skip
@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct", "cpuacct,cpu"])
def test_a_quota_of_version_1(cores, controllers, quota, period, allowed):
    files = {"cpu/app/cpu.cfs_quota_us": quota, "cpu/app/cpu.cfs_period_us": period}
    files = {name: f"{text}\n" for name, text in files.items() if text is not None}
    assert cores(f"7:memory:/m\n4:{controllers}:/app\n0::/\n", files) == allowed


@pytest.mark.parametrize("controllers", ["cpuset", "cpuacct", "name=cpu", "memory"])
def test_other_controllers_have_groups_of_their_own(cores, controllers):
    files = {"cpu/app/cpu.cfs_quota_us": "200000", "cpu/app/cpu.cfs_period_us": "100000"}
    assert cores(f"5:{controllers}:/app\n", files) == 8


@pytest.mark.parametrize("where", ["a/b/c/", "a/b/", "a/", ""])
def test_the_quota_of_any_parent_group_holds(cores, where):
    for name in ("a/b/c", "a/b", "a"):
        assert cores("0::/a/b/c\n", {f"{name}/cpu.max": "max 100000\n"}) == 8
    assert cores("0::/a/b/c\n", {f"{where}cpu.max": "300000 100000\n"}) == 3


def test_the_quota_of_any_parent_group_holds_in_version_1(cores):
    files = {
        "cpu/a/cpu.cfs_quota_us": "300000",
        "cpu/a/cpu.cfs_period_us": "100000",
        "cpu/a/b/cpu.cfs_quota_us": "-1",
        "cpu/a/b/cpu.cfs_period_us": "100000",
    }
    assert cores("4:cpu:/a/b\n", files) == 3
    assert cores("4:cpu:/a/b\n", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "50000"}) == 2


def test_the_smallest_of_all_quotas_holds(cores):
    files = {"a/b/cpu.max": "500000 100000\n", "a/cpu.max": "200000 100000\n", "cpu.max": "300000 100000\n"}
    assert cores("0::/a/b\n", files) == 2
    assert cores("0::/a\n", files) == 2
    assert cores("0::/\n", files) == 3
    assert cores("0::/a/b\n", files, cpus=1) == 1  # the mask limits too
    version_1 = {"cpu/v/cpu.cfs_quota_us": "100000", "cpu/v/cpu.cfs_period_us": "100000"}
    assert cores("0::/a/b\n4:cpu:/v\n", files | version_1) == 1
    assert cores("4:cpu:/v\n0::/a/b\n", files) == 1


LISTS = ["", "\n", "0:\n", "0\n", "::\n", "0::\n", "no colons\n", "0::/" + "x" * 9000 + "\n", ":" * 5000]


@pytest.mark.parametrize("groups", LISTS)
def test_malformed_lines_of_groups_are_ignored(cores, groups):
    assert cores(groups, {"app/cpu.max": "200000 100000\n"}) == 8
    assert cores(groups + "\n0::/app\n", {}) == 2  # the next line is read


def test_groups_without_files_have_no_quota(cores, tmp_path):
    assert cores("0::/app\n4:cpu:/app\n", {}) == 8  # the root has no file either
    assert engine_switches.cores_of(5, tmp_path / "nowhere", tmp_path) == 5


@each_kind
@masks
@linux
def test_a_call_uses_at_most_eight_threads_for_each_core(kind):
    """Threads of the process stay when a call ends, so the test sees how many a call has started."""
    code = """
import lnrnn, numpy as np
rnn, rng = lnrnn.RNN(64, 256, seed=0), np.random.default_rng(0)
x, half = rng.standard_normal((30, 512, 64), np.float32), np.full((1 << 16, 512), 7, np.float16)
for n in (1, 8, 1024):
    lnrnn.set_num_threads(n)
    calls = lambda: rnn(x)[0], lambda: lnrnn.layer_norm(half, 512)
    results, threads = zip(*((call().tobytes(), len(os.listdir("/proc/self/task"))) for call in calls))
    want, before = (results, threads[0]) if n == 1 else (want, before)
    print(results == want, max(threads) - before + 1, end=" ")
"""
    assert said(PINNED + code, LNRNN_TEAM=kind) == "True 1 True 8 True 8"


# --- threads that the system does not start -----------------------------------------------------------------

# This program sets the limit after all modules are loaded, and compares results of several threads with those
# of one. It prints the largest team, and the number of warnings.
SHORTAGE = """
import os, resource, sys, threading, warnings
import engine_switches, lnrnn, numpy as np
from test_runtime import compute
x = np.random.default_rng(2).standard_normal((8192, 512)).astype(np.float32)
def results():
    return {all} and compute(), lnrnn.layer_norm(x, 512).tobytes()  # this layer norm has work for 256 threads
engine_switches.set_barrier_mode("together")
lnrnn.set_num_threads(1)
want = results()
warnings.simplefilter("always")
given = []
warnings.showwarning = lambda message, category, *_: given.append((category, str(message)))
{limit}
lnrnn.set_num_threads({threads})
assert results() == want
first = max(engine_switches.teams_had())
assert results() == want
{more}
assert all(category is RuntimeWarning and "threads" in message for category, message in given), given
print(first, len(given))
"""

# Sets a limit on processes. The process becomes an unused user first, because limits do not hold for root.
PROCESSES = """
if os.getuid() == 0:
    try:
        os.setuid(20000 + os.getpid() % 40000)
    except OSError:
        sys.exit("cannot be another user")
resource.setrlimit(resource.RLIMIT_NPROC, ({limit}, {limit}))
"""

# Limits the address space to `limit` MiB more than the present size of the process.
ADDRESSES = """
with open("/proc/self/statm") as f:
    size = int(f.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + ({limit} << 20), resource.RLIM_INFINITY))
"""


def with_limit(limit, threads, more="", kind="openmp", **environment):
    """Returns (largest team, warnings) of calls on up to `threads` threads under a limit. With more than 8
    threads the program makes only one kind of call, because a barrier of so many threads takes long on few
    cores."""
    environment["LNRNN_TEAM"] = kind
    limit = textwrap.dedent(limit)
    code = SHORTAGE.format(limit=limit, threads=threads, more=more, all=threads <= 8)
    done = run_python(code, **{**FREE, **environment})
    if "cannot be another user" in done.stderr:
        pytest.skip("root, but may not be another user")
    assert done.returncode == 0 and not done.stderr, f"exit {done.returncode}\n{done.stderr[:4000]}"
    return tuple(map(int, done.stdout.split()))


@each_kind
@linux
def test_without_permission_for_threads_calls_use_one(kind):
    assert with_limit(PROCESSES.format(limit=1), 8, kind=kind) == (1, 1)


alone = pytest.mark.skipif(
    not hasattr(os, "getuid") or os.getuid() != 0, reason="other processes of this user count as well"
)


@linux
@alone
@pytest.mark.parametrize("kind, limit, threads, found", [
    *(pytest.param("openmp", *case, marks=openmp)
      for case in [(15, 8, (8, 0)), (14, 8, (7, 1))]),
    *(pytest.param("pthread", *case, marks=pool)
      for case in [(8, 64, (8, 1)), (8, 8, (8, 0))]),
])  # fmt: skip
def test_a_limit_on_threads_gives_smaller_teams(kind, limit, threads, found):
    """OpenMP's teams use half of the permitted threads, the pool uses all."""
    assert with_limit(PROCESSES.format(limit=limit), threads, kind=kind) == found


@openmp
@linux
def test_a_limit_on_memory_gives_smaller_teams():
    team, warned = with_limit(ADDRESSES.format(limit=600), 16, OMP_STACKSIZE="65536")
    assert 2 <= team <= 8 and warned == 1  # there is no memory for more stacks of 64 MiB


@pool
@linux
def test_the_pool_s_stacks_use_half_of_the_remaining_address_space():
    team, warned = with_limit(ADDRESSES.format(limit=300), 1024, kind="pthread")
    assert 64 <= team <= 200 and warned == 1  # stacks of 1 MiB


@openmp
@linux
@pytest.mark.parametrize("name, size", [("OMP_STACKSIZE", " 64 "), ("GOMP_STACKSIZE", "64k")])
def test_the_probe_uses_the_size_of_openmp_s_stacks(name, size):
    """There is memory for many stacks of this size, but not for stacks of 8 MiB. The second environment
    variable is an older name in libgomp."""
    assert with_limit(ADDRESSES.format(limit=300), 64, **{name: size}) == (64, 0)


@openmp
@linux
def test_every_calling_thread_needs_its_own_openmp_team():
    """OpenMP keeps threads for each calling thread, so memory must suffice for all. There is one warning."""
    more = """
x, want = x[:1024], (want[0], want[1][: 1024 * 512 * 4])  # six results must fit into the rest
teams, together = [], threading.Barrier(6)
def work():
    try:
        for _ in range(2):
            assert results() == want
            teams.append(max(engine_switches.teams_had()))
            together.wait()                                         # all teams are alive
    except BaseException:
        together.abort()
        raise
callers = [threading.Thread(target=work) for _ in range(6)]
for caller in callers:
    caller.start()
for caller in callers:
    caller.join()
assert len(teams) == 12 and all(0 <= team <= 16 for team in teams), teams
"""
    memory = dict(OMP_STACKSIZE="32M", MALLOC_ARENA_MAX="1", OMP_WAIT_POLICY="passive")
    assert with_limit(ADDRESSES.format(limit=3600), 16, more, **memory) == (16, 1)


@linux
@pytest.mark.parametrize(
    "kind, limit, threads, environment",
    [
        pytest.param("pthread", 100, 64, {}, marks=pool),
        pytest.param("openmp", 600, 16, {"OMP_STACKSIZE": "64M"}, marks=openmp),
    ],
)
def test_set_num_threads_tries_again(kind, limit, threads, environment):
    more = f"""
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
engine_switches.teams_had()
assert results() == want
assert max(engine_switches.teams_had()) == first
lnrnn.set_num_threads({threads})
assert results() == want
assert max(engine_switches.teams_had()) == {threads}
"""
    team, warned = with_limit(ADDRESSES.format(limit=limit), threads, more, kind=kind, **environment)
    assert team < threads and warned == 1


@openmp
@linux
def test_larger_and_smaller_teams_in_turn_under_a_limit():
    """OpenMP starts new threads for larger teams before the unused ones of smaller teams are gone."""
    more = """
for n in (3, 16, 2, 16, 7, 15, 1, 16) * 2:
    lnrnn.set_num_threads(n)
    lnrnn.layer_norm(x[:600], 512)
"""
    team, warned = with_limit(ADDRESSES.format(limit=300), 16, more, OMP_STACKSIZE="16M")
    assert 2 <= team < 16 and warned == 1


@openmp
@linux
def test_a_warning_that_is_an_error_is_raised_by_the_call():
    code = (
        SHORTAGE.split("assert results")[0].format(limit=ADDRESSES.format(limit=300), threads=64, all=False)
        + """
warnings.simplefilter("error")
try:
    lnrnn.layer_norm(x, 512)
except RuntimeWarning as warning:
    print(warning)
assert results() == want
"""
    )
    assert "64 threads" in said(code, OMP_STACKSIZE="16M", LNRNN_TEAM="openmp")


@openmp
@pytest.mark.parametrize("team", [1, 3])
def test_openmp_s_own_limit_is_no_shortage(team):
    """No work is lost, and no thread waits for ever."""
    limit = dict(OMP_THREAD_LIMIT=str(team))
    code = SHORTAGE.format(limit="", threads=4, more="", all=True)
    assert said(code, LNRNN_TEAM="openmp", **limit) == f"{team} 0"
    assert with_limit(ADDRESSES.format(limit=300), 64, OMP_STACKSIZE="16M", **limit) == (team, 0)


# --- the switch teams_had -----------------------------------------------------------------------------------


@pytest.mark.skipif(not KINDS, reason="built without threads")
def test_the_tests_see_how_many_threads_a_call_had(rng):
    x = normal(rng, 1000, 512)
    with using_threads(3):
        engine_switches.set_barrier_mode("together")
        engine_switches.teams_had()
        try:
            lnrnn.layer_norm(x, 512)
            with using_threads(2):
                lnrnn.layer_norm(x, 512)
            assert engine_switches.teams_had() == (3, 0)  # the largest team of all calls
            assert engine_switches.teams_had() == (0, 0)
            network(7, 1200)(normal(rng, 4, 3, 7))
            assert engine_switches.teams_had() == (0, 3)
        finally:
            engine_switches.set_barrier_mode("normal")
    for wrong in (dict(n=4), dict(n=1), dict(n=3, divide="units"), dict(n=3, had=2), dict(n=3, had=1)):
        refused = pytest.raises(AssertionError, match="should divide")
        with refused, several_threads(**wrong), using_threads(3):
            lnrnn.layer_norm(x, 512)
    with several_threads(3, had=1):
        lnrnn.layer_norm(x[:10], 512)  # too little work
