"""The limits of this machine, measured in the run that they judge: arithmetic, reading, copying.

`machine.c` does the work; this file compiles it (with the C compiler that Python names, or $CC, for this very
CPU) into a directory of its own, and offers its loops as contenders of a race. A limit measured between the
rounds of the library it judges suffers from the same neighbours and the same clock.
"""

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

FMA_F32, DOT_BF16, DOT_INT8, TILE_BF16, TILE_INT8, COPY, READ, READ_AHEAD = range(8)
# Multiply-adds by name: float32, dot products of pairs and fours, AMX's tiles. `UNITS` says which of them can
# multiply weights of a type; float32 can, for weights are widened to it without loss.
ARITHMETIC = {
    "f32 FMA": FMA_F32,
    "bf16 dot": DOT_BF16,
    "int8 dot": DOT_INT8,
    "bf16 tiles": TILE_BF16,
    "int8 tiles": TILE_INT8,
}
UNITS = {
    "float32": [FMA_F32],
    "bfloat16": [FMA_F32, DOT_BF16, TILE_BF16],
    "int8": [FMA_F32, DOT_INT8, TILE_INT8],
}
LINE = 64


@cache
def _library():
    source = Path(__file__).with_name("machine.c")
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    with tempfile.TemporaryDirectory(prefix="lnrnn-machine-") as folder:
        target = Path(folder) / "machine.so"
        flags = "-O3 -march=native -std=gnu11 -shared -fPIC -pthread -o"
        command = [*compiler, *flags.split(), str(target), str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
        library = ctypes.CDLL(str(target))  # stays mapped after the file is gone
    library.machine_time.restype = ctypes.c_double
    library.machine_time.argtypes = [
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long, ctypes.c_int,
        ctypes.POINTER(ctypes.c_double),
    ]  # fmt: skip
    return library


def aligned(size: int) -> np.ndarray:
    """`size` bytes of random content, starting on a cache line, every page touched."""
    room = np.empty(size + LINE, np.uint8)
    room = room[-room.ctypes.data % LINE :][:size]
    room[:] = np.resize(np.random.default_rng(0).integers(1, 256, 4096, np.uint8), size)
    return room


class Loop:
    """One of machine.c's loops as a contender: `turn(n)` repeats it n times and gives the seconds it took."""

    def __init__(self, kind: int, size: int = 0, threads: int = 1):
        self.kind, self.size, self.threads = kind, size, threads
        self.source = aligned(size) if size else None
        self.target = aligned(size) if kind == COPY else None
        self.work = ctypes.c_double(0.0)  # of the last turn: operations, or bytes

    def turn(self, n: int) -> float:
        def address(a):
            return None if a is None else a.ctypes.data

        seconds = _library().machine_time(
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
        """The best of some tries of `budget` seconds: operations or bytes a second; 0 if the CPU cannot."""
        n = 1
        while (seconds := self.turn(n)) < budget / 2:
            if not self.work.value:
                return 0.0
            n = max(n * 2, int(n * budget / max(seconds, 1e-7)))
        return max(self.work.value / self.turn(n) for _ in range(tries))


@cache
def fastest_unit(dtype: str, threads: int) -> int:
    """The arithmetic that is fastest on weights of a type."""
    return max(UNITS[dtype], key=lambda kind: Loop(kind, threads=threads).rate())


def cache_sizes() -> dict[str, int]:
    """Bytes of the first CPU's data caches by level; empty where the system does not tell."""
    sizes = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        text = {name: (index / name).read_text().strip() for name in ("level", "type", "size")}
        if text["type"] != "Instruction":
            sizes[f"L{text['level']}"] = int(text["size"].rstrip("K")) * 1024
    return sizes


def limits(threads: int) -> dict[str, float]:
    """Peak rates by name: operations a second ("f32 FMA" ...) and bytes a second ("read L1" ...)."""
    found = {name: Loop(kind, threads=threads).rate() for name, kind in ARITHMETIC.items()}
    caches = cache_sizes()
    private = [level for level in caches if level in ("L1", "L2")]
    # Half of a cache, for something else is always in it; four times the last one to be out of all of them.
    sizes = {level: caches[level] // 2 * (threads if level in private else 1) for level in caches}
    sizes["memory"] = max(256 << 20, 4 * max(caches.values(), default=0))
    for level, size in sizes.items():
        found[f"read {level}"] = max(Loop(kind, size, threads).rate(tries=5) for kind in (READ, READ_AHEAD))
    found["copy memory"] = 2 * Loop(COPY, sizes["memory"], threads).rate()  # read and written
    return {name: rate for name, rate in found.items() if rate}
