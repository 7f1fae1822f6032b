"""Runs the operations of include/lnrnn/simd/simd.h in a program for each instruction set.

If an operation reads past an array, only the program ends, and one test fails. A program also runs in an
emulator, and in wine if the campaign machines sets WINE_UNITS.
"""

from __future__ import annotations

import os
import platform
import subprocess

import numpy as np
import pytest

from compilers import (
    GCC_AARCH64,
    ISAS,
    NODE_WASI,
    QEMU,
    ROOT,
    ZIG_WASM,
    built,
    emulates_aarch64,
    native_compiler,
    runs_wasm,
)
from helpers import available_isas
from wine import WINE, built_for_windows

END = -1  # value of `place`: operands and results end at the end of a page of memory

EMULATED = {"emulated-neon": "neon", "emulated-scalar": "scalar", "emulated-wasm128": "wasm128"}


def unit_names() -> list[str]:
    """A set with a product of bfloat16 adds no operation to simd.h."""
    here = [name for name in available_isas() if "BF16" not in ISAS[name][1]]
    in_wine = [f"wine-{name}" for name in here if "WINE_UNITS" in os.environ]
    return [*here, *EMULATED, *in_wine]


class Unit:
    """The operations of one instruction set. lanes: the numbers of elements in v32, v64, v16 and vi32.
    operations: {name: sizes of the result and of each operand}. A size is (bytes, whether these are the bytes
    of one of n elements)."""

    def __init__(self, name: str) -> None:
        self.isa, emulator = EMULATED.get(name, name.removeprefix("wine-")), []
        macro = f"-DLNRNN_ISA_{self.isa.upper()}"
        source, flags = ROOT / "tests/simd/operations.c", [*ISAS[self.isa][2], macro]
        if self.isa == "wasm128":
            if not runs_wasm():
                pytest.skip("needs the package ziglang, and Node")
            machine, compiler, emulator = "wasm32", ZIG_WASM, NODE_WASI
        elif name in EMULATED:
            if not emulates_aarch64():
                pytest.skip(f"needs {GCC_AARCH64} and {QEMU}")
            machine, compiler, emulator = "aarch64", [GCC_AARCH64], [QEMU]
            flags.append("-static")
        else:
            machine, compiler = platform.machine(), native_compiler()
        if name.startswith("wine-"):
            self.command = [WINE, str(built_for_windows(f"simd-{name}", source, flags))]
        else:
            self.command = [*emulator, str(built(f"simd-{machine}-{self.isa}", compiler, source, flags))]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        lines = iter(self.process.stdout.readline, b"\n")
        v32, v64 = map(int, next(lines).split())
        self.lanes = {"v32": v32, "v64": v64, "v16": v32, "vi32": v32}
        self.operations = {}
        for name, *sizes in (line.decode().split() for line in lines):
            self.operations[name] = [(int(size.lstrip("n")), size.startswith("n")) for size in sizes]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def run(self, operation: str, *operands: np.ndarray, n: int = 0, place: int = 0, count: int = 1) -> bytes:
        """Runs an operation `count` times, on consecutive vectors, and returns the bytes of the results.
        place: the offset in bytes of each operand and result from the start of a page, or END."""
        result, *wanted = (size * n if per_n else size for size, per_n in self.operations[operation])
        sent = [np.ascontiguousarray(operand).tobytes() for operand in operands]
        assert [len(bytes_) for bytes_ in sent] == [count * size for size in wanted], operation
        self.process.stdin.write(f"{operation} {count} {n} {place}\n".encode() + b"".join(sent))
        self.process.stdin.flush()
        answer = self.process.stdout.readline().decode().strip()
        if not answer:
            self.close()
            answer = f"ended by signal {-self.process.returncode}: it read or wrote past its operands"
            self.start()
        assert answer == "ok", f"{operation}, n = {n}, place {place}: {answer}"
        return self.process.stdout.read(count * result)

    def map(self, operation: str, *operands: np.ndarray, dtype=None) -> np.ndarray:
        """Applies an operation to arrays of equal length, element by element. Returns an array of that
        length. dtype: of the result; default: the dtype of the first array."""
        (size, _), *_ = self.operations[operation]
        dtype = np.dtype(dtype or operands[0].dtype)
        lanes, length = size // dtype.itemsize, len(operands[0])
        padded = [np.concatenate([a, np.zeros(-length % lanes, a.dtype)]) for a in operands]
        return np.frombuffer(self.run(operation, *padded, count=len(padded[0]) // lanes), dtype)[:length]
