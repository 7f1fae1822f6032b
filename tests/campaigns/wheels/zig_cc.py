"""Runs zig's C compiler with the options of gcc and clang.

    python tests/campaigns/wheels/zig_cc.py ARGUMENTS OF zig cc

zig has other names for the extensions of aarch64. -O1 becomes -Os, since zig treats -O1 as -O2; the Cython
module and the kernels for old machines have it. Plain loops are not vectorised, which would make a wheel
larger by an eighth.
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
