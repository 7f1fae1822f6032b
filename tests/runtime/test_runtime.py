"""Tests environment variables, forks, and effects on the process."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import re
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

import engine_switches
import lnrnn
from compilers import ISAS
from helpers import available_isas, using_isa
from lnrnn import _core
from networks import FREE, run_apart, run_python, said

ROOT = Path(__file__).parents[2]
KINDS = _core.team_list()


@pytest.mark.parametrize("name", [available_isas()[-1], *lnrnn.cpu_info()["emulated"][-1:]])
def test_lnrnn_isa_selects_the_kernels(name):
    """The results also have the bits of this instruction set, so the test sees more than the name."""
    code = """
import lnrnn, numpy as np
rnn = lnrnn.RNN(7, 97, seed=3)
x = np.random.default_rng(0).standard_normal((20, 3, 7))
print(lnrnn.cpu_info()["isa"], *lnrnn.cpu_info()["available"], rnn(x)[0].tobytes().hex()[-4000:])
"""
    isa, *available, bits = said(code, LNRNN_ISA=name).split()
    assert isa == name and available == available_isas()
    rnn = lnrnn.RNN(7, 97, seed=3)
    x = np.random.default_rng(0).standard_normal((20, 3, 7))
    with using_isa(name):
        assert rnn(x)[0].tobytes().hex()[-4000:] == bits


@pytest.mark.parametrize("name", [*available_isas(), *lnrnn.cpu_info()["emulated"]])
def test_a_set_that_adds_a_unit_has_the_bits_of_its_family(name):
    """Norms, functions and float32 networks have the bits of the set without the unit for bfloat16 or int8,
    forward and backward. The fixture `family` relies on it."""
    family = next((f for f in ("avx512", "neon") if name.startswith(f)), name)
    x = np.random.default_rng(0).standard_normal((9, 11, 97))
    layers = [cell(97, 65, seed=1, norm=norm) for cell in (lnrnn.RNN, lnrnn.LSTM, lnrnn.GRU)
              for norm in ("layer", None)]  # fmt: skip
    found = []
    for isa in (family, name):
        with using_isa(isa):
            bits = [lnrnn.tanh(x.astype(np.float32)), lnrnn.exp(x.astype(np.float32))]
            for dtype in ("float16", "float32", "float64"):
                bits += [
                    lnrnn.layer_norm(x.astype(dtype), 97),
                    lnrnn.batch_norm(x.astype(dtype), None, None, training=True),
                ]
            for rnn in map(copy.copy, layers):
                y, _, tape = rnn.forward_train(x)
                bits += [y, rnn.backward(tape, y)[0]]
            found.append([array.tobytes() for array in bits])
    assert found[0] == found[1]


def test_cpu_info_names_openmp_if_it_is_available():
    assert lnrnn.cpu_info()["openmp"] == ("openmp" in KINDS)


def test_cpu_info_names_units():
    """The table of docs/how_it_is_built.md names the instructions that multiply bfloat16 and int8 weights."""
    page = (ROOT / "docs/how_it_is_built.md").read_text()
    rows = [line[3:].split(" | ") for line in page.splitlines() if line.startswith("| `")]
    named = {name[:-1]: cells for name, *cells in rows if name[:-1] in ISAS}
    partial = {name for name, (_, parts, _) in ISAS.items() if "NORM" not in parts}
    assert {*named} == {name for name in partial if not name.endswith("_emulated")}
    for name in available_isas():
        units = [re.match("`(.*?)`", cell) for cell in named.get(name, ("", ""))[:2]]
        with using_isa(name):
            assert [*lnrnn.cpu_info()["units"].values()] == [unit and unit[1] for unit in units]
    assert lnrnn.cpu_info()["amx"].startswith("usable") == ("avx512amx" in available_isas())
    assert set(lnrnn.cpu_info()["emulated"]).isdisjoint(available_isas())


def test_the_state_of_amx_says_what_has_run_its_kernels():
    """Until hardware has run them, the state and its documentation say so."""
    source = (ROOT / "pyx/runtime/cpu_x86.c").read_text()
    (usable,) = re.findall('#define AMX_USABLE "(.*)"', source)
    states = {usable, *re.findall('"(not [^"]*|refused [^"]*)"', source)}
    assert len(states) == 4 and lnrnn.cpu_info()["amx"] in states
    for text in (lnrnn.cpu_info.__doc__, (ROOT / "include/lnrnn.h").read_text()):
        words = " ".join(text.replace("\n *", "").split())  # a comment of C may wrap a state
        assert all(f'"{state}"' in words for state in states)
    emulated = "AMX kernels have run in an emulator only"
    assert ("emulator only" in usable) == (emulated in (ROOT / "docs/platforms.md").read_text())
    assert ("emulator only" in usable) == (emulated in (ROOT / "docs/benchmarks.md").read_text())


def test_without_values_the_defaults_are_chosen():
    """An empty variable counts as none. Other libraries read OMP_NUM_THREADS too, so lnrnn ignores the values
    that OpenMP ignores."""
    code = "import lnrnn as l; i = l.cpu_info(); print(i['isa'] == i['available'][0], i['team'], end=' ')"
    code += "; print(l.get_num_threads() == i['num_threads'] == i['cores'])"
    empty = dict.fromkeys(("LNRNN_ISA", "LNRNN_TEAM", "LNRNN_NUM_THREADS"), "")
    done = run_python(code, **{**FREE, **empty, "OMP_NUM_THREADS": "many"})
    assert done.stdout == f"True {(KINDS or ['none'])[0]} True\n", done.stderr


# Imports lnrnn with each of some (variable, value), and prints a list of the messages of ImportError.
REFUSED = """
import json, os
messages = []
for name, value in {cases!r}:
    os.environ[name] = value
    try:
        import lnrnn
    except ImportError as error:
        messages.append(str(error))
    del os.environ[name]
print(json.dumps(messages))
"""


def test_a_wrong_value_is_an_error_that_lists_the_right_ones():
    here = [*available_isas(), *lnrnn.cpu_info()["emulated"]]
    wrong = {
        "LNRNN_ISA": ["AVX2", " sse2", "scalar,sse2", "é", "x" * 1000, *sorted({*ISAS} - {*here})],
        "LNRNN_TEAM": ["tbb", " pthread", "é"],
        "LNRNN_NUM_THREADS": ["many", "0", "-1", "1.5", "1025", "9" * 5000, "３", " 3 ", "1_0"],
    }
    right = {"LNRNN_ISA": here, "LNRNN_TEAM": KINDS, "LNRNN_NUM_THREADS": ["1", "1024"]}
    cases = [(name, value) for name, values in wrong.items() for value in values]
    messages = json.loads(said(REFUSED.format(cases=cases)))
    for (name, value), text in zip(cases, messages, strict=True):
        assert text.startswith(f"{name} must be ") and all(each in text for each in right[name])
        assert len(value) > 9 or f"got {value!r}" in text
    for use, name in ((_core.use_isa, "LNRNN_ISA"), (_core.use_team, "LNRNN_TEAM")):
        for value in wrong[name]:
            with pytest.raises(ValueError, match="is not available here; available: "):
                use(value)


THREADS = "import lnrnn as l; print(l.get_num_threads(), l.cpu_info()['num_threads'])"


@pytest.mark.parametrize("environment, threads", [
    (dict(LNRNN_NUM_THREADS="1024"), 1024), (dict(LNRNN_NUM_THREADS="", OMP_NUM_THREADS="5,2"), 5),
    (dict(LNRNN_NUM_THREADS="3", OMP_NUM_THREADS="5"), 3),
])  # fmt: skip
def test_omp_num_threads_sets_the_number_of_threads(environment, threads):
    assert said(THREADS, **environment).split() == [str(threads)] * 2


def test_the_environment_may_change_after_the_import():
    """Ray's workers change OMP_NUM_THREADS, which counts until set_num_threads is called."""
    code = """
import os, lnrnn
found = [lnrnn.get_num_threads()]
for text in ("3", "1", "0", "1025", "2 ", " 2,1", "2x", "", "12", "16,2"):
    os.environ["OMP_NUM_THREADS"] = text
    found.append(lnrnn.get_num_threads())
del os.environ["OMP_NUM_THREADS"]
found.append(lnrnn.get_num_threads())
with lnrnn.num_threads(5):
    found.append(lnrnn.get_num_threads())
lnrnn.set_num_threads(4)
os.environ["OMP_NUM_THREADS"] = "1"
print(*found, lnrnn.get_num_threads())
"""
    cores = min(lnrnn.cpu_info()["cores"], 20)  # OpenMP has its number, 20, from before the import
    numbers = f"20 3 1 {cores} {cores} 2 2 {cores} {cores} 12 16 {cores} 5 4"
    assert said(code, OMP_NUM_THREADS="20") == numbers


def compute():
    """Computes with threads that divide sequences, units, and gradients. Returns the bits of all results."""
    x = np.random.default_rng(0).standard_normal((6, 130, 3)).astype(np.float32)
    many, few = lnrnn.RNN(3, 300, seed=0), lnrnn.RNN(3, 1200, seed=1)
    y, h, tape = many.forward_train(x)
    results = [many(x)[0], few(x[:, :2])[0], y, *many.backward(tape, y)[:2]]
    big = np.random.default_rng(1).standard_normal((2000, 300)).astype(np.float32)
    results += [
        lnrnn.layer_norm(big, 300),
        lnrnn.tanh(big),
        *lnrnn.layer_norm_backward(big, big, 300, big[0])[:2],
        lnrnn.batch_norm(big, None, None, training=True),
    ]
    return b"".join(a.tobytes() for a in results)


def forks():
    """A process forks while one of its threads computes. A forked child, its own child, and processes of
    multiprocessing, as in data loaders, compute the same bits and end. A child has threads of the pool, and
    none of OpenMP's."""
    warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of a fork with threads
    engine_switches.set_barrier_mode("together")
    lnrnn.set_num_threads(3)
    want, of_child = compute(), (3, 3) if _core.team() == "pthread" else (0, 0)
    stop, wrong = threading.Event(), []

    def is_same(team):
        engine_switches.teams_had()
        return compute() == want and engine_switches.teams_had() == team

    def child(then):
        pid = os.fork()
        if not pid:
            try:
                os._exit(0 if is_same(of_child) and then() else 1)
            finally:
                os._exit(2)
        return os.waitpid(pid, 0)[1] == 0

    def work():
        while not stop.is_set():
            wrong.extend([1] * (compute() != want))

    busy = threading.Thread(target=work)
    busy.start()
    assert child(lambda: child(lambda: True)) and child(lambda: True)
    stop.set()
    busy.join()
    assert not wrong and is_same((3, 3))  # the parent still uses threads
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.starmap(compute, [()] * 2, 1) == [want] * 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("kind", KINDS)
def test_a_fork_after_threads_were_used_does_not_hang(kind):
    run_apart(forks, LNRNN_TEAM=kind)


def test_the_import_loads_only_numpy():
    """`import lnrnn` loads no package of an extra, and no module that is slow to import."""
    heavy = "torch matplotlib tqdm safetensors scipy pytest hypothesis unittest setuptools Cython"
    heavy = {*heavy.split(), "multiprocessing", "asyncio"}
    code = f"""
import sys, numpy, numpy.random
before = set(sys.modules)
import lnrnn
new = {{name.split(".")[0] for name in set(sys.modules) - before}}
assert "lnrnn" in new
rnn = lnrnn.RNN(3, 5)
rnn(numpy.zeros((2, 1, 3)))
rnn.stream()(numpy.zeros(3))
lnrnn.cpu_info()
print(sorted({{name.split(".")[0] for name in set(sys.modules) - before}} & {heavy}))
"""
    assert said(code) == "[]"


def test_denormals_are_kept():
    """Neither the import nor calls switch a thread of Python or of a team to flush-to-zero."""
    code = """
import threading, numpy as np
tiny = np.array([1e-40, 5e-45], np.float32)
small = np.array([1e-310, 5e-324])
def denormals():
    assert ((tiny * np.float32(1)) > 0).all() and ((tiny + tiny) > tiny).all()
    assert ((small * 1.0) > 0).all() and ((small + small) > small).all()
    assert np.float32(2e-38) * np.float32(0.25) > 0
denormals()
import engine_switches, lnrnn, test_runtime as t
denormals()
engine_switches.set_barrier_mode("together")
lnrnn.set_num_threads(3)
x = np.full((400, 512), 1e-40, np.float32)
def work():
    t.compute()
    denormals()
    kept.append(kind)
for kind in t.KINDS:
    kept = []
    lnrnn._core.use_team(kind)
    work()
    engine_switches.teams_had()
    assert (lnrnn.tanh(x) == x).all()               # computed on threads, whose rounding mode is their own
    assert engine_switches.teams_had() == (3, 0)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert kept == [kind] * 2
"""
    assert said(code) == ""


def test_set_num_threads_does_not_change_openmp_s_setting():
    """omp_get_max_threads, which threadpoolctl controls, stays the same."""
    code = """
import ctypes, engine_switches, lnrnn
with open("/proc/self/maps") as f:
    maps = f.read().split()
path = next(p for p in maps if "libgomp" in p or "libomp" in p)
omp = ctypes.CDLL(path)
before = omp.omp_get_max_threads()
engine_switches.set_barrier_mode("together")
lnrnn.set_num_threads(before + 3)
import test_runtime as t
for kind in t.KINDS:
    lnrnn._core.use_team(kind)
    t.compute()
    assert max(engine_switches.teams_had()) > 1
    print(omp.omp_get_max_threads() - before)
"""
    if not sys.platform.startswith("linux") or not lnrnn.cpu_info()["openmp"]:
        pytest.skip("looks for the runtime in /proc")
    assert said(code).split() == ["0"] * len(KINDS)
