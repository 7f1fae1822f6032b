"""Injects faults into operations: failures of memory and files. tests/files and tests/runtime test signals.

    memory     for every n, the n-th request for memory fails, or 20 requests from the n-th on;
               only arrays and large objects are requests
    objects    for every n, the n-th request fails; every object of Python is a request
    first      the n-th request of the first call in a new process fails, on one thread and on two
    files      the n-th call to the file system fails with ENOSPC, EIO or EINTR, or writes only half
    control    operations with planted faults, which `memory` must report

After a fault the state must be the old or the new one, and the next call must be right.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
from operations import Operation
from sweep import FILES, MEMORY, Sweep, fail_all, find_functions

from compilers import built, native_compiler, preloading
from outcome import Missing, Wrong, restart_with

HERE = Path(__file__).parent
# Makes each request of some functions of Python fail, which call nothing of lnrnn.
BARE = """
import json, sys; sys.path[:0] = {path!r}
import sweep
sweep.find_functions()
def inner(a=1):
    b = a
    return lambda c=b: (b, c)
for call in (inner, lambda: list(i for i in range(3)), lambda: json.JSONEncoder(indent=1).encode([1, {{}}])):
    for at in range(1, 100):
        try: sweep.lib.faults_call(call, sweep.MEMORY, at, 1, 0)
        except (MemoryError, SystemError): pass
"""
FIRST = """
import sys; sys.path[:0] = {path!r}
import sweep, numpy as np, lnrnn, engine_switches
sweep.find_functions()
engine_switches.set_barrier_mode("together")
lnrnn.set_num_threads({threads})
x, rnn = np.ones((40, 64, 16), np.float32), lnrnn.LSTM(16, 32, seed=0)
call = {{"call": lambda: rnn(x)[0], "norm": lambda: lnrnn.layer_norm(x.reshape(-1, 64), 64)}}[{name!r}]
try:
    result = sweep.lib.faults_call(call, sweep.MEMORY, {at}, 1, 0)
except MemoryError:
    result = None
failed = sweep.lib.faults_failed()
want = call()
assert result is None or np.array_equal(result, want)
lnrnn.set_num_threads(1)
assert np.array_equal(call(), want)
sys.exit(0 if failed else 9)
"""


def failing() -> dict[str, str]:
    """Returns the environment that preloads failing.c."""
    if platform.libc_ver()[0] != "glibc":
        raise Missing("needs Linux and glibc")
    flags = ["-shared", "-fPIC", "-fvisibility=default", "-fno-builtin"]
    library = built("faults", native_compiler(), HERE / "failing.c", flags)
    return {"RUST_BACKTRACE": "0", **preloading(library)}


def restart_preloaded(**more: str) -> None:
    if "LNRNN_PRELOADED" not in os.environ:
        restart_with({"LNRNN_PRELOADED": "1", **failing(), **more})


def memory(options: argparse.Namespace) -> dict[str, int]:
    restart_preloaded()
    options.every = options.every or (61 if options.quick else 1)
    return fail_all(options, MEMORY)


def objects(options: argparse.Namespace) -> dict[str, int] | str:
    restart_preloaded(PYTHONMALLOC="malloc")
    # CPython 3.12.1 and 3.13.0 crash if a generator or a function gets no memory.
    if subprocess.run([sys.executable, "-c", BARE.format(path=sys.path)], capture_output=True).returncode < 0:
        return f"not run: CPython {platform.python_version()} crashes without lnrnn"
    options.every = options.every or (901 if options.quick else 1)
    return fail_all(options, MEMORY)


def files(options: argparse.Namespace) -> dict[str, int]:
    restart_preloaded()
    options.every = options.every or 1
    return fail_all(options, FILES)


def first(options: argparse.Namespace) -> dict[str, int]:
    tried, ended = 0, []
    environment = {**os.environ, **failing()}
    for threads, name in [(threads, name) for threads in (1, 2) for name in ("call", "norm")]:
        status = 0
        for at in range(1, 1000):
            code = FIRST.format(path=sys.path, threads=threads, name=name, at=at)
            run = [sys.executable, "-c", code]
            done = subprocess.run(run, env=environment, text=True, capture_output=True)
            status = done.returncode
            if status == 9:  # the call makes fewer than `at` requests
                break
            tried += 1
            if status:
                ended.append(f"{name}, {threads} threads, request {at}: exit {status}, {done.stderr[-100:]}")
    print(*ended, sep="\n")
    # If there is no memory for a thread, glibc and libgomp end the process.
    wrong = [text for text in ended if "libgomp" not in text and "thread-local data" not in text]
    if wrong:
        raise Wrong(f"{len(wrong)} processes ended")
    return {"requests failed": tried, "processes ended by libgomp or glibc": len(ended)}


def control(options: argparse.Namespace) -> dict[str, int]:
    """Plants a fault of each kind in an operation. A sweep must report it."""
    restart_preloaded()
    find_functions()
    state, kept = np.zeros(1), []

    def changing():
        state[0] = 1
        np.ones(5000)
        state[0] = 2

    def leaking():
        try:
            np.ones(5000)
        except MemoryError:
            kept.extend(np.ones(5000) for _ in range(9))
            raise

    def wrong():
        try:
            return np.ones(5000)
        except MemoryError:
            return state

    planted = {
        "neither the old nor the new": Operation(changing, state.tobytes, partial(state.fill, 0)),
        "blocks of memory": Operation(leaking),
        "a wrong result": Operation(wrong),
    }
    for text, operation in planted.items():
        sweep = Sweep(operation, MEMORY, 1)
        sweep.run(1, bool)
        if not any(text in problem for problem in sweep.problems):
            raise Wrong(f"not reported: {text}; only {sweep.problems}")
    return {"planted faults, all reported": len(planted)}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", help="operations whose names contain this")
    parser.add_argument("--every", type=int, metavar="N", help="only every N-th request")
    parser.add_argument("--at", type=int, help="only this request, and print its problems")


PARTS = {
    "memory": memory, "objects": objects, "first": first, "files": files, "control": control,
}  # fmt: skip
