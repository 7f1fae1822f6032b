"""Measures the limits of this machine: arithmetic, reading, copying.

The module compiles machine.c for this CPU, by $CC or Python's own compiler. Its loops are contenders of a
race, so a limit is measured between the rounds of lnrnn, with the same clock and load."""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
import sysconfig
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

FMA_F32, DOT_BF16, DOT_INT8, COPY, READ, READ_AHEAD = range(6)
# Names of loops: multiply-adds of float32, dot products of two or four short numbers.
ARITHMETIC = {"f32 FMA": FMA_F32, "bf16 dot": DOT_BF16, "int8 dot": DOT_INT8}
# {type of weights: instructions that can multiply them}. FMA_F32 can multiply all, because every weight is
# exact in float32.
SUITED = {"float32": [FMA_F32], "bfloat16": [FMA_F32, DOT_BF16], "int8": [FMA_F32, DOT_INT8]}
LINE = 64


@cache
def library():
    source = Path(__file__).with_name("machine.c")
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    with tempfile.TemporaryDirectory(prefix="lnrnn-machine-") as folder:
        target = Path(folder) / "machine.so"
        flags = "-O3 -march=native -std=gnu11 -shared -fPIC -pthread -o"
        command = [*compiler, *flags.split(), str(target), str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
        loaded = ctypes.CDLL(str(target))  # remains loaded when the file is deleted
    loaded.machine_time.restype = ctypes.c_double
    loaded.machine_time.argtypes = [
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long, ctypes.c_int,
        ctypes.POINTER(ctypes.c_double),
    ]  # fmt: skip
    loaded.machine_steps.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p,
        ctypes.c_long, ctypes.c_size_t, ctypes.c_void_p,
    ]  # fmt: skip
    return loaded


def aligned(size: int) -> np.ndarray:
    """Returns `size` random bytes that start on a cache line."""
    block = np.empty(size + LINE, np.uint8)
    block = block[-block.ctypes.data % LINE :][:size]
    block[:] = np.resize(np.random.default_rng(0).integers(1, 256, 4096, np.uint8), size)
    return block


class Loop:
    """A loop of machine.c as a contender. `turn(n)` runs it n times and returns the seconds."""

    def __init__(self, kind: int, size: int = 0, threads: int = 1):
        self.kind, self.size, self.threads = kind, size, threads
        self.source = aligned(size) if size else None
        self.target = aligned(size) if kind == COPY else None
        self.work = ctypes.c_double(0.0)  # operations or bytes of the last turn

    def turn(self, n: int) -> float:
        def address(a):
            return None if a is None else a.ctypes.data

        seconds = library().machine_time(
            self.kind,
            address(self.target),
            address(self.source),
            self.size,
            n,
            self.threads,
            ctypes.byref(self.work),
        )
        if seconds < 0:
            raise RuntimeError(f"machine.c could not start {self.threads} threads")
        return seconds

    def rate(self, budget: float = 0.02, tries: int = 5) -> float:
        """Returns operations or bytes per second in the best of some tries, or 0 if the CPU cannot."""
        n = 1
        while (seconds := self.turn(n)) < budget / 2:
            if not self.work.value:
                return 0.0
            n = max(n * 2, int(n * budget / max(seconds, 1e-7)))
        return max(self.work.value / self.turn(n) for _ in range(tries))


@cache
def fastest_arithmetic(dtype: str, threads: int) -> int:
    """Returns the number of the loop with the fastest arithmetic on weights of a type."""
    return max(SUITED[dtype], key=lambda kind: Loop(kind, threads=threads).rate())


def cache_sizes() -> dict[str, int]:
    """Returns {level: bytes} of the first CPU's data caches, or {} if the system does not list them."""
    sizes = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        text = {name: (index / name).read_text().strip() for name in ("level", "type", "size")}
        if text["type"] != "Instruction":
            sizes[f"L{text['level']}"] = int(text["size"].rstrip("K")) * 1024
    return sizes


def limits(threads: int) -> dict[str, float]:
    """Returns {name: peak rate}: operations per second ("f32 FMA" ...), bytes per second ("read L1" ...)."""
    rates = {name: Loop(kind, threads=threads).rate() for name, kind in ARITHMETIC.items()}
    caches = cache_sizes()
    private = [level for level in caches if level in ("L1", "L2")]
    # Use half of a cache, because other data are in it too, and four times the last cache for memory.
    sizes = {level: caches[level] // 2 * (threads if level in private else 1) for level in caches}
    sizes["memory"] = max(256 << 20, 4 * max(caches.values(), default=0))
    for level, size in sizes.items():
        rates[f"read {level}"] = max(Loop(kind, size, threads).rate() for kind in (READ, READ_AHEAD))
    rates["copy memory"] = 2 * Loop(COPY, sizes["memory"], threads).rate()  # bytes read and bytes written
    return {name: rate for name, rate in rates.items() if rate}
