"""Every request of an operation fails in turn: its first request for memory, in the next try its second, and
so on, until the operation makes fewer. failing.c is preloaded.

With PYTHONMALLOC=malloc every object of Python is a request too. Without it only large objects and arrays
are, and all memory has to be given back: Python itself loses some if there is no memory for a frame.

These are problems: an error that is none of memory or of the file system, a wrong result, a state between the
old one and the new, memory or a descriptor that is not given back, a wrong next call.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
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
# Of large requests also many in a row. If no object of Python is to be had either, nothing can be cleared up:
# not even the name of a file can be passed to the system.
ROWS = 1, 20
PATIENCE = 120  # seconds for an operation, all its sweeps together
LEAKS = 2  # blocks more after each sweep over an operation than after the one before: Python's lists may grow
SWEEPS = 4, 16  # to see that, and so many again if the first are not enough: a leak grows for ever

lib = ctypes.PyDLL(None)  # what is preloaded is found in the process itself


def find_functions() -> None:
    lib.faults_call.argtypes = [ctypes.py_object, ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_int]
    lib.faults_call.restype = ctypes.py_object
    for name in ("faults_blocks", "faults_mapped", "faults_requests", "faults_failed"):
        getattr(lib, name).restype = ctypes.c_long
    lib.faults_spare.argtypes = [ctypes.c_size_t, ctypes.c_size_t]


def spare_safetensors() -> None:
    """Rust ends the process where it gets no memory: what safetensors asks for is not failed."""
    with open("/proc/self/maps") as maps:
        found = [line.split()[0].split("-") for line in maps if "safetensors" in line]
    if found:
        lib.faults_spare(min(int(a, 16) for a, _ in found), max(int(b, 16) for _, b in found))


def handler() -> str:
    """Who allocates NumPy's arrays."""
    core = getattr(np, "_core", None) or np.core
    name: str = core.multiarray.get_handler_name()
    return name


def descriptors() -> list[str]:
    paths = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return sorted(os.readlink(path) for path in paths if os.path.lexists(path))


unraised: list[str] = []

# What others raise where they find no memory, instead of MemoryError: counted, and not held against lnrnn.
OTHERS = {
    # NumPy, and Python around it.
    SystemError: (
        "without setting an",
        "without exception set",
        "with an exception set",
        "NULL object passed",
    ),
    RuntimeError: ("can't allocate",),  # Python's locks
    pickle.PicklingError: ("import of module",),
    TypeError: ("expected str, bytes or os.PathLike object, not PosixPath",),  # Python's os.fspath
}
PANIC = "PanicException"  # safetensors, of an object that Python could not make


class Sweep:
    """kind: MEMORY or FILES. row: so many requests fail, one after the other. error: of FILES, an errno."""

    def __init__(self, operation: Operation, kind: int, row: int, error: int = 0) -> None:
        self.operation, self.arguments = operation, (kind, row, error)
        self.problems: list[str] = []
        self.others = 0  # errors of OTHERS
        for _ in range(3):  # what is made once and kept
            operation.reset()
            self.old = operation.seen()
            self.want = bits(operation.call())
            self.new = operation.seen()

    def attempt(self, at: int) -> tuple[Any, BaseException | None]:
        kind, row, error = self.arguments
        try:
            return lib.faults_call(self.operation.call, kind, at, row, error), None
        except BaseException as problem:
            problem.__traceback__ = None
            return None, problem

    def expected(self, error: BaseException) -> bool:
        if self.arguments[0] == MEMORY:
            said = OTHERS.get(type(error), ())
            if any(text in str(error) for text in said) or type(error).__name__ == PANIC:
                self.others += 1
                return True
            return isinstance(error, MemoryError)
        # A file that cannot be read is one that cannot be loaded.
        return (isinstance(error, OSError) and error.errno == self.arguments[2]) or (
            isinstance(error, ValueError) and str(error).startswith("cannot load")
        )

    def check(self, at: int) -> bool:
        """-> whether a request failed."""
        self.operation.reset()
        found, error = self.attempt(at)
        if not lib.faults_failed():
            return False
        seen = self.operation.seen()
        if error is not None and not self.expected(error):
            self.note(at, f"{type(error).__name__}: {error}")
        if error is None and (bits(found) != self.want or seen != self.new):
            self.note(at, "a wrong result")
        if error is not None and seen not in (self.old, self.new):
            self.note(at, f"after {type(error).__name__} what is there is neither the old nor the new")
        if handler() != "default_allocator":
            self.note(at, f"NumPy's arrays are allocated by {handler()}")
        if unraised:
            self.note(at, f"an error that nobody was told of: {unraised.pop()}")
        found = error = None
        self.operation.reset()
        if bits(self.operation.call()) != self.want or self.operation.seen() != self.new:
            self.note(at, "the next call is wrong")
        return True

    def note(self, at: int, text: str) -> None:
        self.problems.append(f"request {at}: {text}")

    def run(self, every: int, tell: Callable[[int], None]) -> int:
        """All requests, each `every`-th. -> how many failed."""
        at = 1
        tell(at)
        while self.check(at):
            at += every
            tell(at)
        if not os.environ.get("PYTHONMALLOC") and self.arguments[2] in (0, EIO):
            self.leaks(range(1, at, every))
        return len(range(1, at, every))

    def leaks(self, requests: range) -> None:
        open_before = descriptors()
        # NumPy loses an object where np.zeros fails, and more where an array is unpickled: "NumPy's copies".
        lost, n = self.operation.lost, len(requests)
        kinds = "blocks of memory", "blocks of Python's memory", "bytes of mappings"
        allowed = LEAKS + lost * n, LEAKS + (20 if lost else 2) * n, 0
        for sweeps in SWEEPS:
            levels = np.zeros((sweeps, 3), np.int64)  # no objects of its own
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
            found = levels[:, kind].tolist()
            self.problems.append(f"{kinds[kind]} after each sweep of {n} failures: {found}")
        if descriptors() != open_before:
            self.problems.append(f"descriptors: {descriptors()}, before {open_before}")


def hear(told: Any) -> None:
    """Of an error that Python can raise nowhere."""
    if "lnrnn" in repr(told.object):
        unraised.append(f"{told.exc_value!r} in {told.object!r}")


def fail_all(options: argparse.Namespace, kind: int) -> dict[str, int]:
    """Operations whose names contain options.only; each options.every-th request, or that of options.at."""
    find_functions()
    import safetensors.numpy  # noqa: F401

    spare_safetensors()
    lnrnn.set_num_threads(1)
    sys.unraisablehook = hear
    # Where it was, if the process ends.
    progress = open(options.folder / "at", "w+b", buffering=0)  # noqa: SIM115
    gc.disable()
    total = wrong = others = 0
    every_object = bool(os.environ.get("PYTHONMALLOC"))
    errors = (0,) if kind == MEMORY else (ENOSPC, EIO, EINTR, SHORT)
    rows = ROWS if kind == MEMORY and not every_object else ROWS[:1]
    for name, operation in operations(options.folder / "files", kind == FILES):
        # safetensors ends the process where Python makes no object for it
        if options.only not in name or (every_object and name == "load"):
            continue
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        gc.collect()
        gc.freeze()
        for row, error in [(row, error) for row in rows for error in errors]:
            sweep = Sweep(operation, kind, row, error)
            if options.at:
                print(name, row, error, sweep.check(options.at), *sweep.problems)
                continue

            def tell(at: int, name: str = name) -> None:
                progress.seek(0)
                progress.write(f"--only {name!r} --at {at}".ljust(200).encode())

            failed = sweep.run(options.every, tell)
            total, wrong, others = total + failed, wrong + len(sweep.problems), others + sweep.others
            for problem in sweep.problems[:8]:
                print(f"{name} {row, error}, {failed} requests failed: WRONG {problem}", flush=True)
    faulthandler.cancel_dump_traceback_later()
    if wrong:
        raise Wrong(f"{wrong} problems after {total} failures")
    return {"requests failed": total, "errors of NumPy and Python": others}
