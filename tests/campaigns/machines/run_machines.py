"""Builds and runs lnrnn for other machines, compilers, C libraries and Pythons, as far as they are here.

neon: the C for aarch64 in an emulator, by gcc and clang. bits32: a build with pointers of 32 bits is refused.
musl: the C with another C library. compilers: the module by gcc and by clang, digests, tests. pythons: the
module in a new environment of each Python, tests. fresh-root, fresh-3.10, fresh-3.13: `make demo` and `make
test` in a new clone. --whole: whole folders of tests instead of selections. As a control, neon has to tell
the results of NEON from those of plain C.
"""

from __future__ import annotations

import argparse

from crossed import bits32, musl, neon
from fresh import root_below_0700, user_on_3_10, user_on_3_13
from modules import compilers, pythons

from pythons_here import VERSIONS

PARTS = {
    "neon": neon, "bits32": bits32, "musl": musl, "compilers": compilers, "pythons": pythons,
    "fresh-root": root_below_0700, "fresh-3.10": user_on_3_10, "fresh-3.13": user_on_3_13,
}  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--python", action="append", choices=VERSIONS, help="only this; may be given again")
