"""Checks that no kernel reads or writes outside its arrays.

guard: NumPy allocates every array directly before a page without access, and in a second pass directly after
one. An access to that page ends the process. Every norm, function, dtype, instruction set and kind of network
runs with sizes from 1 to 200. Bits must be the same without these pages. New memory has NaN, which shows if a
kernel reads a value before writing it. control: a byte written outside an array must end the process, and a
byte written inside must not.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import importlib.util
import itertools
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import lnrnn
from compilers import native_compiler
from configurations import EDGES, TALL, digest, of_network, of_norm, rng_of
from helpers import available_isas, tested_isas, using_isa, using_threads
from networks import VARIANTS
from outcome import Missing, Wrong

SIZES = range(1, 201)
QUICK = (1, 3, 16, 31, 65)
DTYPES = (np.float32, np.float64, np.float16)
WEIGHTS = ("float32", "bfloat16", "int8")
MODES = {"after": 1, "before": 2}

Case = tuple[Callable[..., Iterator[np.ndarray]], tuple[object, ...]]


def guard_pages(folder: Path):
    """Returns the module guard_pages, and compiles it in `folder` if it is not there."""
    if not sys.platform.startswith("linux"):
        raise Missing("needs Linux: pages without access by mprotect")
    path = folder / f"guard_pages{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not path.exists():
        include = [f"-I{sysconfig.get_paths()['include']}", f"-I{np.get_include()}"]
        source = Path(__file__).with_name("guard_pages.c")
        command = [*native_compiler(), "-O1", "-fPIC", "-shared", *include, str(source), "-o", str(path)]
        subprocess.run(command, check=True)
    spec = importlib.util.spec_from_file_location("guard_pages", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def of_functions(n: int) -> Iterator[np.ndarray]:
    """Yields the results of elementwise functions of n values, with and without out=."""
    x = rng_of(n).standard_normal(n).astype(np.float32)
    for function in (lnrnn.exp, lnrnn.tanh, lnrnn.sigmoid):
        yield function(x)
        out = np.empty_like(x)
        yield function(x, out=out)


def of_planes(n: int, dtype: type) -> Iterator[np.ndarray]:
    """Yields the results of batch norm of planes of n values."""
    rng = rng_of(n, "planes")
    x, gy = (rng.standard_normal((3, 2, n)).astype(dtype) for _ in range(2))
    yield lnrnn.batch_norm(x, None, None, training=True)
    yield lnrnn.batch_norm(x, np.zeros(2), np.ones(2))
    yield from (g for g in lnrnn.batch_norm_backward(gy, x, None, None) if g is not None)


def cases(quick: bool) -> Iterator[Case]:
    """Yields (function, arguments). Each function returns arrays."""
    for rows, dtype in itertools.product(
        (4, 7), DTYPES
    ):  # rows of 4096 bytes; batch norm sums four rows at once
        yield of_norm, ((rows, 4096 // np.dtype(dtype).itemsize), dtype, True, True)
    for n in QUICK if quick else SIZES:
        yield of_functions, (n,)
        for rows, dtype in itertools.product((1, 6), DTYPES):
            yield of_norm, ((rows, n), dtype, n % 3 > 0, n % 2 > 0)
        for dtype in DTYPES:
            yield of_planes, (n, dtype)
        # n is the hidden size, or sometimes the input size. Other sizes depend on n.
        for k, variant in enumerate(VARIANTS):
            if quick and (k + n) % 5:
                continue
            weights = WEIGHTS[(k + n) % 3]
            yield of_network, (variant, (1 + (n + 7 * k) % 40, n), 1 + (n + k) % 6, weights, 1)
            if n % 4 == k % 4:
                yield of_network, (variant, (n, 1 + (n + 7 * k) % 40), 1 + (n + k) % 6, weights, 1 + k % 2)
    for k, (rows, n, weights) in enumerate(itertools.product(TALL, EDGES, WEIGHTS)):
        if not quick or k % 9 == 4:
            yield of_network, (list(VARIANTS)[5 * k % len(VARIANTS)], (7, n), rows, weights, 1)


def guarded(options: argparse.Namespace) -> dict[str, int]:
    faulthandler.enable()
    guard = guard_pages(options.folder)
    begun, count, wrong = guard.set(0), 0, []
    at = open(options.folder / "at", "w")  # noqa: SIM115
    isas = [*(tested_isas() if options.quick else available_isas()), *lnrnn.cpu_info()["emulated"]]
    for isa in options.isa or isas:
        with using_isa(isa), using_threads(1):
            for function, arguments in cases(options.quick):
                named = " ".join(getattr(a, "__name__", str(a)) for a in (isa, function, *arguments))
                want = digest(function(*arguments))
                for mode, number in MODES.items():
                    at.seek(0)
                    at.write(f"# {named} {mode}".ljust(150))
                    at.flush()
                    guard.set(number)
                    try:
                        got = digest(function(*arguments))
                    finally:
                        guard.set(0)
                    if got != want:
                        wrong.append(f"{named} {mode}")
                count += 1
    if wrong:
        raise Wrong(f"results differ with guards: {wrong}")
    return {"cases": count, "arrays with guards": guard.set(0) - begun}


def control(options: argparse.Namespace) -> dict[str, str]:
    guard = guard_pages(options.folder)
    for size, (mode, number) in itertools.product((5, 8192), MODES.items()):
        inside, outside = (size - 1, size) if mode == "after" else (0, -1)
        for offset, ends_by in ((inside, 0), (outside, -signal.SIGSEGV)):
            child = os.fork()
            if not child:
                guard.set(number)
                a = np.empty(size, np.uint8)
                ctypes.memset(a.ctypes.data + offset, 1, 1)
                os._exit(0)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if status != ends_by:
                raise Wrong(f"byte {offset} of {size}, guards {mode}: status {status}, not {ends_by}")
    return {"a touch": "ends the process"}


PARTS = {"control": control, "guard": guarded}
