"""Builds and runs lnrnn for other machines, compilers, C libraries and Pythons that are installed.

neon: the C code for aarch64 in an emulator, by gcc and clang. bits32: a build with 32-bit pointers must fail.
musl: the C code with another C library. clang: the C code and the module by clang. fresh-root, fresh-3.10,
...: `make demo` and `make test` in a new clone, as root, or as another user with that Python. The name fresh
runs all of these parts, and --pytest selects tests. As a control, NEON and plain C must have different bits.
"""

from __future__ import annotations

from functools import partial

from crossed import bits32, clang, musl, neon
from fresh import as_root, as_user

PARTS = {
    "neon": neon, "bits32": bits32, "musl": musl, "clang": clang, "fresh-root": as_root,
    **{f"fresh-{version}": partial(as_user, version) for version in ("3.10", "3.12", "3.13")},
}  # fmt: skip
