"""Runs zig's C compiler with the options of gcc and clang.

    python tests/campaigns/wheels/zig_cc.py ARGUMENTS OF zig cc

zig has other names for the extensions of aarch64. zig treats -O1, the option of the Cython module, as -O2, so
-O1 becomes -Os. Plain loops are neither vectorised nor unrolled, because
that would make a wheel larger by a sixth.
"""

from __future__ import annotations

import os
import sys

PLAIN_LOOPS = ["-fno-vectorize", "-fno-slp-vectorize", "-fno-unroll-loops"]
NO_UNWINDING = ["-fno-unwind-tables", "-fno-asynchronous-unwind-tables"]
MARCH, MCPU = "-march=armv8.2-a", "-mcpu=generic+v8_2a"


def translated(word: str) -> str:
    if word == "-O1":
        return "-Os"
    return MCPU + word.removeprefix(MARCH) if word.startswith(MARCH) else word


if __name__ == "__main__":
    words = map(translated, sys.argv[1:])
    os.execv(sys.executable, [sys.executable, "-m", "ziglang", "cc", *words, *PLAIN_LOOPS, *NO_UNWINDING])
