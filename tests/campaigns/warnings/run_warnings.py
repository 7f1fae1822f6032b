"""Checks that no installed compiler warns about a C file of pyx/, for any instruction set. As a control,
compilers must report a conversion that loses a sign. --quick: clang for this machine, gcc for the other.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from outcome import Missing, Wrong
from source_copy import ROOT

sys.path.insert(0, str(ROOT / "pyx"))

from build_flags import plugin_units, units  # noqa: E402

WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-fsyntax-only"]


def compilers(quick: bool) -> list[tuple[str, list[str]]]:
    """Returns (machine, command) of gcc and clang for each machine that lnrnn supports, or if quick is True,
    of one for each. `warned` skips compilers that are not installed, or have no C library for the machine."""
    if sys.platform == "darwin":
        return [(platform.machine(), ["clang"])]
    every = [] if quick else [(platform.machine(), ["musl-gcc"])]  # another C library
    for machine in ("x86_64", "aarch64"):
        native = machine == platform.machine()
        both = (["gcc" if native else f"{machine}-linux-gnu-gcc"], ["clang", f"--target={machine}-linux-gnu"])
        every += [(machine, command) for command in (both[native : native + 1] if quick else both)]
    return every


def accepts(command: list[str], header: str) -> bool:
    if not shutil.which(command[0]):
        return False
    run = [*command, "-fsyntax-only", "-x", "c", "-"]
    return subprocess.run(run, input=f"#include <{header}>\n", text=True, capture_output=True).returncode == 0


def check(command: list[str], machine: str) -> list[str]:
    """Returns the warnings of all translation units, without repetitions."""
    openmp = ["-fopenmp"] if accepts([*command, "-fopenmp"], "omp.h") else []

    def complaints(unit):
        include = [f"-I{folder}" for folder in unit.include]
        run = [*command, *unit.flags, *WARNINGS, *include, unit.source]
        done = subprocess.run(run, cwd=ROOT, text=True, capture_output=True)
        lines = re.findall(r"^\S+:\d+(?::\d+)?: (?:warning|error|fatal error): .*$", done.stderr, re.M)
        return lines or ([done.stderr] if done.returncode else [])

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        of_units = pool.map(complaints, [*units(machine, openmp), *plugin_units()])
    return list(dict.fromkeys(line for lines in of_units for line in lines))


def warned(options: argparse.Namespace) -> dict[str, int]:
    figures, wrong = {}, []
    for machine, command in compilers(options.quick):
        # Skip compilers without the machine's C library, to which <stdlib.h> belongs.
        if not accepts(command, "stdlib.h"):
            continue
        lossy = "unsigned f(int x); unsigned f(int x) { return x; }"
        run = [*command, *WARNINGS, "-Wsign-conversion", "-x", "c", "-"]
        if "warning:" not in subprocess.run(run, input=lossy, text=True, capture_output=True).stderr:
            wrong.append(f"{' '.join(command)} does not report a lost sign")
        warnings = check(command, machine)
        print(*warnings, sep="\n")
        wrong += warnings
        figures[" ".join(command)] = len(warnings)
    if not figures:
        raise Missing("needs gcc or clang")
    if wrong:
        raise Wrong(f"{len(wrong)} warnings: {wrong[0]}")
    return figures


PARTS = {"warnings": warned}
