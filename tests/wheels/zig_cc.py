"""zig's C compiler, with gcc's and clang's words for extensions of aarch64, which it calls otherwise, and
without the vectors that clang makes of plain loops: the C has its own, and those take an eighth of a wheel.

python tests/wheels/zig_cc.py ARGUMENTS OF zig cc
"""

from __future__ import annotations

import os
import sys

NO_VECTORS = ["-fno-vectorize", "-fno-slp-vectorize"]
MARCH, MCPU = "-march=armv8.2-a", "-mcpu=generic+v8_2a"

if __name__ == "__main__":
    words = [MCPU + word.removeprefix(MARCH) if word.startswith(MARCH) else word for word in sys.argv[1:]]
    os.execv(sys.executable, [sys.executable, "-m", "ziglang", "cc", *words, *NO_VECTORS])
