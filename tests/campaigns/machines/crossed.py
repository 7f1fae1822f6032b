"""Compiles lnrnn for aarch64, with musl, by clang, and for 32 bits, which must fail."""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from digests import MAIN, Results, agree, native_program, results, same

from compilers import GCC_AARCH64, ISAS, QEMU, ROOT, linked
from helpers import available_isas
from outcome import Missing, Wrong, done, needs
from pythons_here import environment
from source_copy import build, copy_sources

WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Werror")
# Tests of kernels that a compiler may miscompile: vectors, norms, products, forward and backward.
OF_KERNELS = [
    "tests/simd/test_simd.py", "tests/simd/test_vmath.py", "tests/norm/test_exact_statistics.py",
    "tests/norm/test_half.py", "tests/norm/test_magnitudes.py", "tests/norm/test_rms_norm.py",
    "tests/rnn/test_matmul.py", "tests/rnn/test_forward.py",
]  # fmt: skip


def on_threads(command: list[str], isa: str, folder: Path) -> Results:
    """Returns the results with two threads, which must both work and give the results of one thread."""
    one, two = (results(command, isa, threads, folder) for threads in (1, 2))
    same(one, two, f"{isa} with 1 and 2 threads")
    if (one.teams, two.teams) != ((0, 0), (2, 2)):
        raise Wrong(f"{isa}: teams of {one.teams} and {two.teams} threads")
    return two


def neon_quick(folder: Path) -> str:
    """Compiles by gcc for aarch64. NEON on two threads and plain C on one must have different bits, but
    agree up to roundings."""
    program = linked("aarch64", [GCC_AARCH64], "aarch64", MAIN, flags=("-O1",), link=("-static",))
    vectors, scalar = (results([QEMU, str(program)], *how, folder) for how in (("neon", 2), ("scalar", 1)))
    agree(vectors, scalar, "neon and scalar")
    try:
        same(vectors, scalar, "neon and scalar")
    except Wrong:
        return f"{len(vectors.lines)} arrays"
    raise Wrong("NEON and plain C give the same bits, so it is not NEON")


def neon(options: argparse.Namespace) -> str:
    needs(GCC_AARCH64, QEMU)
    folder = options.folder
    quick = neon_quick(folder)
    if options.quick:
        return quick
    summary, scalar = [], []
    for compiler in ([GCC_AARCH64], ["clang", "--target=aarch64-linux-gnu"]):
        name = compiler[0]
        if not shutil.which(name):
            summary.append(f"{name} is not installed")
            continue
        program = linked(f"aarch64-{name}", compiler, "aarch64", MAIN, link=("-static",), folder=folder)
        command = [QEMU, str(program)]
        vectors = on_threads(command, "neon", folder)
        same(vectors, results(command, "neondot", 1, folder), "int8 on NEON and by dot products")
        emulated = results(command, "neonbf16_emulated", 1, folder)
        for isa in ("neoni8mm", "neonbf16"):
            same(on_threads(command, isa, folder), emulated, f"{isa} and the emulation")
        scalar.append(on_threads(command, "scalar", folder))
        error = agree(vectors, scalar[-1], f"{name}, neon and scalar")
        summary.append(
            f"{name}: {len(vectors.lines)} arrays, neon within {error:.2g} of the tolerance from scalar"
        )
    if platform.machine() == "x86_64" and shutil.which("gcc"):
        scalar.append(results([str(native_program(folder))], "scalar", 1, folder))
        summary.append("scalar has the bits of x86-64")
    for other in scalar[1:]:
        same(scalar[0], other, "scalar of two compilers or machines")
    tests = ["tests/simd", "-k", "aarch64 or emulated"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests]
    summary.append(done(command, cwd=ROOT).splitlines()[-1])
    return "; ".join(summary)


REFUSAL = "lnrnn needs a 64-bit build"
# Compile the header freestanding, because C libraries of 32 bits are rarely installed.
FREESTANDING = ["-ffreestanding", "-fsyntax-only", f"-I{ROOT / 'include'}", "-x", "c", "-"]
NARROW = (
    ["gcc", "-m32"], ["gcc", "-mx32"], ["clang", "-m32"], ["clang", "--target=armv7-linux-gnueabihf"],
    ["arm-linux-gnueabihf-gcc"],
)  # fmt: skip


def refuses(compiler: list[str]) -> bool:
    """Returns whether compiling the C API's header fails, with lnrnn's message as the only error."""
    command = [*compiler, *FREESTANDING]
    ran = subprocess.run(command, input='#include "lnrnn.h"\n', text=True, capture_output=True)
    errors = [line for line in ran.stderr.splitlines() if "error:" in line]
    if not errors and not ran.returncode:
        return False
    if len(errors) != 1 or REFUSAL not in errors[0]:
        raise Wrong(f"{' '.join(compiler)}: {ran.stderr}")
    return True


def refused_by_setup() -> None:
    """Checks that setup.py prints one line and fails if sys.maxsize is that of a 32-bit Python."""
    code = "import runpy, sys; sys.maxsize = 2**31 - 1; sys.argv = ['setup.py', 'build_ext']; "
    ran = subprocess.run(
        [sys.executable, "-c", code + "runpy.run_path('setup.py', run_name='__main__')"],
        cwd=ROOT, text=True, capture_output=True,
    )  # fmt: skip
    if ran.returncode == 0 or len(ran.stderr.splitlines()) != 1 or REFUSAL not in ran.stderr:
        raise Wrong(f"setup.py with a Python of 32 bits: {ran.stderr or ran.stdout or 'no output'}")


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


def musl(options: argparse.Namespace) -> str:
    """Checks that the C code with musl gives the bits of glibc."""
    needs("musl-gcc", "gcc")
    folder, machine = options.folder, platform.machine()
    program = linked("musl", ["musl-gcc"], machine, MAIN, flags=WARNINGS, link=("-static",), folder=folder)
    native = native_program(folder)
    run = []
    for isa in (name for name, (machines, *_) in ISAS.items() if machine in machines):
        if subprocess.run([program, isa, "1"], stdout=subprocess.DEVNULL).returncode == 2:
            continue  # this machine cannot run it
        of_musl, of_glibc = on_threads([str(program)], isa, folder), results([str(native)], isa, 1, folder)
        same(of_musl, of_glibc, f"musl and glibc, {isa}")
        run.append(isa)
    return f"no warning; {', '.join(run)} have the bits of glibc, with 1 and 2 threads"


def clang(options: argparse.Namespace) -> str:
    """Checks that clang and gcc agree up to roundings, and that a module built by clang passes tests."""
    needs("gcc", "clang")
    folder, own = options.folder, options.folder / "source"
    programs = [str(native_program(folder, compiler)) for compiler in ("gcc", "clang")]
    summary = []
    for isa in available_isas():
        of_gcc, of_clang = (results([program], isa, 1, folder) for program in programs)
        agree(of_gcc, of_clang, f"gcc and clang, {isa}")
        equal = sum(map(str.__eq__, of_gcc.lines, of_clang.lines))
        summary.append(f"{isa}: {equal} of {len(of_gcc.lines)} arrays have the same bits")
    copy_sources(own)
    build(own, CC="clang")
    free = environment(own, CC="clang")
    file = done([sys.executable, "-c", "import lnrnn; print(lnrnn.__file__)"], cwd=own, env=free).strip()
    if not Path(file).is_relative_to(own):
        raise Wrong(f"{file} was imported, and not the module by clang")
    tests = ["tests/simd", "tests/norm", "tests/rnn"] if options.whole else OF_KERNELS
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests]
    return "; ".join([*summary, done(command, cwd=own, env=free).splitlines()[-1]])
