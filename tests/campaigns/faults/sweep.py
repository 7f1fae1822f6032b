"""Runs an operation once for each of its requests for memory or files, and makes this request fail.

failing.c is preloaded. With PYTHONMALLOC=malloc every object of Python is a request. Otherwise only arrays
and large objects are requests, and leaks are measured. (Python itself leaks if it has no memory for a frame.)

A sweep reports other errors than those of memory or files, wrong results, and states that are neither the old
nor the new one. It also reports leaks of memory or file descriptors, and a wrong next call.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import itertools
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from operations import Operation, bits, operations

import lnrnn
from outcome import Wrong

MEMORY, FILES = 1, 2
ENOSPC, EIO, EINTR, SHORT = 28, 5, 4, 0
# How many consecutive requests fail. If every object of Python is a request, only one fails, because cleaning
# up needs objects: even the name of a file is one.
CONSECUTIVE = 1, 20
PATIENCE = 120  # seconds for all sweeps over an operation
LEAKS = 2  # number of allocated blocks that a sweep may add, because Python's lists may grow
SWEEPS = 4, 16  # sweeps that measure leaks; if memory grows in the first 4, it must stop growing within 16

lib = ctypes.PyDLL(None)  # has the functions of failing.c, which is preloaded


def find_functions() -> None:
    lib.faults_call.argtypes = [ctypes.py_object, ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_int]
    lib.faults_call.restype = ctypes.py_object
    for name in ("faults_blocks", "faults_mapped", "faults_requests", "faults_failed"):
        getattr(lib, name).restype = ctypes.c_long
    lib.faults_spare.argtypes = [ctypes.c_size_t, ctypes.c_size_t]


def spare_safetensors() -> None:
    """Excludes the requests of safetensors, because Rust ends the process if it gets no memory."""
    with open("/proc/self/maps") as maps:
        ranges = [line.split()[0].split("-") for line in maps if "safetensors" in line]
    if ranges:
        lib.faults_spare(min(int(a, 16) for a, _ in ranges), max(int(b, 16) for _, b in ranges))


def handler() -> str:
    """Returns the name of the allocator of NumPy's arrays."""
    core = getattr(np, "_core", None) or np.core
    name: str = core.multiarray.get_handler_name()
    return name


def descriptors() -> list[str]:
    paths = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return sorted(os.readlink(path) for path in paths if os.path.lexists(path))


unraised: list[str] = []

# Errors that Python and NumPy raise instead of MemoryError. They are counted and permitted.
OTHERS = {
    SystemError: (
        "without setting an",
        "without exception set",
        "with an exception set",
        "NULL object passed",
    ),  # fmt: skip
    RuntimeError: ("can't allocate",),  # Python's locks
    pickle.PicklingError: ("import of module",),
    TypeError: ("expected str, bytes or os.PathLike object, not PosixPath",),  # Python's os.fspath
}
PANIC = "PanicException"  # safetensors raises it if there is no memory for an object of Python


class Sweep:
    """A sweep over the requests of an operation. kind: MEMORY or FILES. count: how many consecutive requests
    fail. error: an errno, for FILES."""

    def __init__(self, operation: Operation, kind: int, count: int, error: int = 0) -> None:
        self.operation, self.arguments = operation, (kind, count, error)
        self.problems: list[str] = []
        self.others = 0  # how many errors of OTHERS occurred
        for _ in range(3):  # fill all caches
            operation.reset()
            self.old = operation.seen()
            self.want = bits(operation.call())
            self.new = operation.seen()

    def attempt(self, at: int) -> tuple[Any, BaseException | None]:
        kind, count, error = self.arguments
        try:
            return lib.faults_call(self.operation.call, kind, at, count, error), None
        except BaseException as problem:
            problem.__traceback__ = None
            return None, problem

    def expected(self, error: BaseException) -> bool:
        if self.arguments[0] == MEMORY:
            texts = OTHERS.get(type(error), ())
            if any(text in str(error) for text in texts) or type(error).__name__ == PANIC:
                self.others += 1
                return True
            return isinstance(error, MemoryError)
        # lnrnn.load raises ValueError for a file that it cannot read.
        return (isinstance(error, OSError) and error.errno == self.arguments[2]) or (
            isinstance(error, ValueError) and str(error).startswith("cannot load")
        )

    def check(self, at: int) -> bool:
        """Makes request `at` fail, and notes problems. Returns whether a request failed."""
        self.operation.reset()
        result, error = self.attempt(at)
        if not lib.faults_failed():
            return False
        seen = self.operation.seen()
        if error is not None and not self.expected(error):
            self.note(at, f"{type(error).__name__}: {error}")
        if error is None and (bits(result) != self.want or seen != self.new):
            self.note(at, "a wrong result")
        if error is not None and seen not in (self.old, self.new):
            self.note(at, f"after {type(error).__name__} the state is neither the old nor the new one")
        if handler() != "default_allocator":
            self.note(at, f"NumPy's arrays are allocated by {handler()}")
        if unraised:
            self.note(at, f"Python could not raise an error: {unraised.pop()}")
        result = error = None
        self.operation.reset()
        if bits(self.operation.call()) != self.want or self.operation.seen() != self.new:
            self.note(at, "the next call is wrong")
        return True

    def note(self, at: int, text: str) -> None:
        self.problems.append(f"request {at}: {text}")

    def run(self, every: int, report: Callable[[int], None]) -> int:
        """Makes every `every`-th request fail in turn. Returns how many failed."""
        at = 1
        report(at)
        while self.check(at):
            at += every
            report(at)
        if not os.environ.get("PYTHONMALLOC") and self.arguments[2] in (0, EIO):
            self.leaks(range(1, at, every))
        return len(range(1, at, every))

    def leaks(self, requests: range) -> None:
        open_before = descriptors()
        # `lost` allows for leaks of NumPy, which leaks if np.zeros fails, and if an array is unpickled.
        lost, n = self.operation.lost, len(requests)
        kinds = "blocks of memory", "blocks of Python's memory", "bytes of mappings"
        allowed = LEAKS + lost * n, LEAKS + (20 if lost else 2) * n, 0
        for sweeps in SWEEPS:
            levels = np.zeros((sweeps, 3), np.int64)  # allocate before the first sweep
            for level in levels:
                for at in requests:
                    self.operation.reset()
                    self.attempt(at)
                self.operation.reset()
                gc.collect()
                level[:] = lib.faults_blocks(), sys.getallocatedblocks(), lib.faults_mapped()
            leaking = np.diff(levels[1:], axis=0).min(axis=0) > allowed
            if not leaking.any():
                break
        for kind in np.flatnonzero(leaking):
            counts = levels[:, kind].tolist()
            self.problems.append(f"{kinds[kind]} after each sweep of {n} failures: {counts}")
        if descriptors() != open_before:
            self.problems.append(f"descriptors: {descriptors()}, before {open_before}")


def note_unraised(unraisable: Any) -> None:
    """Records an error that Python ignores, as in a destructor."""
    if "lnrnn" in repr(unraisable.object):
        unraised.append(f"{unraisable.exc_value!r} in {unraisable.object!r}")


def fail_all(options: argparse.Namespace, kind: int) -> dict[str, int]:
    """Sweeps over all operations whose names contain options.only. options.at: only this request fails."""
    find_functions()
    import safetensors.numpy  # noqa: F401

    spare_safetensors()
    lnrnn.set_num_threads(1)
    sys.unraisablehook = note_unraised
    # run.py prints the content of this file if the process crashes.
    progress = open(options.folder / "at", "w+b", buffering=0)  # noqa: SIM115
    gc.disable()
    total = wrong = others = 0
    every_object = bool(os.environ.get("PYTHONMALLOC"))
    errors = (0,) if kind == MEMORY else (ENOSPC, EIO, EINTR, SHORT)
    counts = CONSECUTIVE if kind == MEMORY and not every_object else CONSECUTIVE[:1]
    for name, operation in operations(options.folder / "files", kind == FILES):
        # Skip `load` here, because safetensors ends the process if there is no memory for an object.
        if options.only not in name or (every_object and name == "load"):
            continue
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        gc.collect()
        gc.freeze()
        for count, error in itertools.product(counts, errors):
            sweep = Sweep(operation, kind, count, error)
            if options.at:
                print(name, count, error, sweep.check(options.at), *sweep.problems)
                continue

            def report(at: int, name: str = name) -> None:
                progress.seek(0)
                progress.write(f"--only {name!r} --at {at}".ljust(200).encode())

            failed = sweep.run(options.every, report)
            total, wrong, others = total + failed, wrong + len(sweep.problems), others + sweep.others
            for problem in sweep.problems[:8]:
                print(f"{name} {count, error}, {failed} requests failed: WRONG {problem}", flush=True)
    faulthandler.cancel_dump_traceback_later()
    if wrong:
        raise Wrong(f"{wrong} problems after {total} failures")
    return {"requests failed": total, "errors of NumPy and Python": others}
