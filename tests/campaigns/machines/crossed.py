"""The C of pyx/ without Python, for another machine, another C library, and for a machine that is refused."""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from digests import MAIN, Results, agree, native_program, results, same

from compilers import CFLAGS, GCC_AARCH64, ONCE, QEMU, ROOT, linked
from outcome import Missing, Wrong, done, needs

WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Werror")


def on_threads(command: list[str], isa: str, folder: Path) -> Results:
    """The results, the same with one thread and with two; and there were two, for tasks and for units."""
    one, two = (results(command, isa, threads, folder) for threads in (1, 2))
    same(one, two, f"{isa} with 1 and 2 threads")
    if (one.teams, two.teams) != ((0, 0), (2, 2)):
        raise Wrong(f"{isa}: teams of {one.teams} and {two.teams} threads")
    return two


def neon_quick(folder: Path) -> str:
    """By gcc; two threads on NEON beside one on plain C, whose bits must not be the same."""
    program = linked("aarch64", [GCC_AARCH64], "aarch64", MAIN, flags=("-O1",), link=("-static",))
    vectors, scalar = (results([QEMU, str(program)], *how, folder) for how in (("neon", 2), ("scalar", 1)))
    agree(vectors, scalar, "neon and scalar")
    try:
        same(vectors, scalar, "neon and scalar")
    except Wrong:
        return f"{len(vectors.lines)} arrays"
    raise Wrong("NEON and plain C give the same bits: it is not NEON")


def neon(options: argparse.Namespace) -> str:
    needs(GCC_AARCH64, QEMU)
    folder = options.folder
    quick = neon_quick(folder)
    if options.quick:
        return quick
    said, scalar = [], []
    for compiler in ([GCC_AARCH64], ["clang", "--target=aarch64-linux-gnu"]):
        name = compiler[0]
        if not shutil.which(name):
            said.append(f"{name} is not there")
            continue
        program = linked(f"aarch64-{name}", compiler, "aarch64", MAIN, link=("-static",), folder=folder)
        command = [QEMU, str(program)]
        found = on_threads(command, "neon", folder)
        same(found, results(command, "neondot", 1, folder), "int8 on NEON and by dot products")
        emulated = results(command, "neonbf16_emulated", 1, folder)
        for isa in ("neoni8mm", "neonbf16"):
            same(on_threads(command, isa, folder), emulated, f"{isa} and the emulation")
        scalar.append(on_threads(command, "scalar", folder))
        off = agree(found, scalar[-1], f"{name}, neon and scalar")
        said.append(f"{name}: {len(found.lines)} arrays, neon within {off:.2g} of the tolerance from scalar")
    if platform.machine() == "x86_64" and shutil.which("gcc"):
        scalar.append(results([str(native_program(folder))], "scalar", 1, folder))
        said.append("scalar has the bits of x86-64")
    for other in scalar[1:]:
        same(scalar[0], other, "scalar of two compilers or machines")
    tests = ["tests/simd", "-k", "aarch64 or emulated"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests]
    said.append(done(command, cwd=ROOT).splitlines()[-1])
    return "; ".join(said)


REFUSAL = "lnrnn needs a 64-bit build"
# Freestanding: the headers of these compilers' own, for C libraries of 32 bits are rarely installed.
FREESTANDING = ["-ffreestanding", "-fsyntax-only", f"-I{ROOT / 'include'}", "-x", "c", "-"]
NARROW = (
    ["gcc", "-m32"], ["gcc", "-mx32"], ["clang", "-m32"], ["clang", "--target=armv7-linux-gnueabihf"],
    ["arm-linux-gnueabihf-gcc"],
)  # fmt: skip


def refuses(compiler: list[str]) -> bool:
    """Whether a compiler refuses the C API's header, by our own message and no other error."""
    command = [*compiler, *FREESTANDING]
    ran = subprocess.run(command, input='#include "lnrnn.h"\n', text=True, capture_output=True)
    errors = [line for line in ran.stderr.splitlines() if "error:" in line]
    if not errors and not ran.returncode:
        return False
    if len(errors) != 1 or REFUSAL not in errors[0]:
        raise Wrong(f"{' '.join(compiler)}: {ran.stderr}")
    return True


def refused_by_setup() -> None:
    """setup.py, told that Python is one of 32 bits, ends with one line."""
    told = "import runpy, sys; sys.maxsize = 2**31 - 1; sys.argv = ['setup.py', 'build_ext']; "
    ran = subprocess.run(
        [sys.executable, "-c", told + "runpy.run_path('setup.py', run_name='__main__')"],
        cwd=ROOT, text=True, capture_output=True,
    )  # fmt: skip
    if ran.returncode == 0 or len(ran.stderr.splitlines()) != 1 or REFUSAL not in ran.stderr:
        raise Wrong(f"setup.py with a Python of 32 bits: {ran.stderr or ran.stdout or 'no word'}")


def bits32(options: argparse.Namespace) -> str:
    here = [compiler for compiler in NARROW if shutil.which(compiler[0]) and platform.machine() == "x86_64"]
    if not here:
        raise Missing("needs gcc or clang on x86-64")
    accepted = [" ".join(compiler) for compiler in here if not refuses(compiler)]
    if accepted:
        raise Wrong(f"not refused: {', '.join(accepted)}")
    if refuses([here[0][0]]):
        raise Wrong(f"{here[0][0]} for 64 bits is refused")
    refused_by_setup()
    return f"refused: {', '.join(' '.join(c) for c in here)}, and a Python of 32 bits in setup.py"


UNITS = {
    "x86_64": (
        "avx512amx", "avx512bf16", "avx512amx_emulated", "avx512bf16_emulated", "avx512vnni", "avxvnni",
        "avx512", "avx2", "sse2", "scalar",
    ),
    "aarch64": ("neoni8mm", "neonbf16", "neonbf16_emulated", "neondot", "neon", "scalar"),
}  # fmt: skip


def musl(options: argparse.Namespace) -> str:
    """The C with musl, beside glibc; quick: only whether musl has all that the common units need."""
    needs("musl-gcc", "gcc")
    folder, machine = options.folder, platform.machine()
    if options.quick:
        for name in ONCE:
            flags = [*CFLAGS, *WARNINGS, "-fsyntax-only", "-Iinclude", "-Ipyx"]
            done(["musl-gcc", *flags, f"pyx/{name}"], cwd=ROOT)
        return f"{len(ONCE)} files"
    program = linked("musl", ["musl-gcc"], machine, MAIN, flags=WARNINGS, link=("-static",), folder=folder)
    native = native_program(folder)
    said = []
    for isa in UNITS[machine]:
        if subprocess.run([program, isa, "1"], stdout=subprocess.DEVNULL).returncode == 2:
            continue  # this machine cannot run it
        of_musl, of_glibc = on_threads([str(program)], isa, folder), results([str(native)], isa, 1, folder)
        same(of_musl, of_glibc, f"musl and glibc, {isa}")
        said.append(isa)
    return f"all units without a warning; {', '.join(said)} have the bits of glibc, 1 and 2 threads"
