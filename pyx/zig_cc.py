"""Runs zig's C compiler with the options of gcc and clang.

    python pyx/zig_cc.py ARGUMENTS OF zig cc

zig has other names for the extensions of aarch64. zig treats -O1, the option of the Cython module, as -O2, so
-O1 becomes -Os. Plain loops are neither vectorised nor unrolled, because that would make a wheel larger by a
sixth. Tables for unwinding are left out for the same reason, but Windows requires them.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

PLAIN_LOOPS = ["-fno-vectorize", "-fno-slp-vectorize", "-fno-unroll-loops"]
NO_UNWINDING = ["-fno-unwind-tables", "-fno-asynchronous-unwind-tables"]
MARCH, MCPU = "-march=armv8.2-a", "-mcpu=generic+v8_2a"


def translated(word: str) -> str:
    if word == "-O1":
        return "-Os"
    return MCPU + word.removeprefix(MARCH) if word.startswith(MARCH) else word


def zig(target: str) -> str:
    """Returns a compiler command. target: zig's name, or setuptools' name of Windows ("win-amd64").

    Paths have slashes on Windows too, because setuptools takes a backslash for an escape."""
    names = {"win-amd64": "x86_64-windows-gnu", "win-arm64": "aarch64-windows-gnu"}
    words = [sys.executable, os.path.abspath(__file__), "-target", names.get(target, target)]
    return shlex.join(word.replace("\\", "/") for word in words)


if __name__ == "__main__":
    words = map(translated, sys.argv[1:])
    windows = any(word.endswith("-windows-gnu") for word in sys.argv)
    smaller = PLAIN_LOOPS if windows else [*PLAIN_LOOPS, *NO_UNWINDING]
    command = [sys.executable, "-m", "ziglang", "cc", *words, *smaller]
    if os.name == "nt":  # exec does not wait there
        sys.exit(subprocess.run(command).returncode)
    os.execv(sys.executable, command)
