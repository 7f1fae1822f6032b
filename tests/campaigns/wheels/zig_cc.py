"""zig's C compiler. Extensions of aarch64, which gcc and clang call otherwise, are translated for it. Units
with -O1, the Cython module and the kernels for old machines, are compiled for size: zig takes -O1 for -O2.
Clang makes no vectors of plain loops: the C has its own, and those would take an eighth of a wheel.

python tests/campaigns/wheels/zig_cc.py ARGUMENTS OF zig cc
"""

from __future__ import annotations

import os
import sys

NO_VECTORS = ["-fno-vectorize", "-fno-slp-vectorize"]
MARCH, MCPU = "-march=armv8.2-a", "-mcpu=generic+v8_2a"


def translated(word: str) -> str:
    if word == "-O1":
        return "-Os"
    return MCPU + word.removeprefix(MARCH) if word.startswith(MARCH) else word


if __name__ == "__main__":
    words = map(translated, sys.argv[1:])
    os.execv(sys.executable, [sys.executable, "-m", "ziglang", "cc", *words, *NO_VECTORS])
