"""Builds and runs lnrnn for other machines, compilers, C libraries and Pythons that are installed.

neon: tests of the C code for aarch64 in an emulator, with all optimisations, by gcc and clang. riscv64: the
same with plain C, by gcc, whose results must have the bits of this machine. wine: the C code for Windows by
zig, with all instruction sets, in wine64, with the same bits, and the examples in C and C++. It includes the
tests of vectors and tiles, a DLL of another version, and a system that refuses threads, cores and files.
wasm: tests of the C code and of the package for JavaScript in Node, by zig. bits32: a build with 32-bit
pointers, or for a big-endian machine, must fail. musl: tests of the C code with another C library.
fresh-3.12, ...: `make demo` and `make test` in a new clone with that Python, without settings and variables
of this process. The name fresh runs all of these parts, and --pytest selects tests.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import lnrnn
from compilers import (
    GCC_AARCH64,
    NODE_WASI,
    QEMU,
    ROOT,
    ZIG_WASM,
    imported,
    library_name,
    link,
    link_plugin,
    linked,
    native_compiler,
    objects,
    plugin_name,
    plugin_units,
    runs_wasm,
    units,
)
from outcome import Missing, Wrong, done, needs, run_pytest
from pythons_here import python_of
from wine import WINE, ZIG_WINDOWS, runs_wine, wine_variables

GCC_RISCV64, QEMU_RISCV64 = "riscv64-linux-gnu-gcc", "qemu-riscv64"
LIBRARY = ROOT / "tests/capi/library.c"
FILES = sorted(map(str, (ROOT / "tests/data").glob("*.safetensors")))
# Prefixes of the environment variables that the clone gets.
KEPT = ("PATH", "LANG", "PIP_", "SSL_", "http_proxy", "https_proxy", "no_proxy")


def neon(options: argparse.Namespace) -> dict[str, str]:
    """tests/simd/test_aarch64.py has the control: NEON's bits differ from those of plain C."""
    needs(GCC_AARCH64, QEMU)
    figures, tests = {}, ["-m", "pytest", "-p", "no:cacheprovider", "tests/simd/test_aarch64.py"]
    for command in (GCC_AARCH64, "clang --target=aarch64-linux-gnu"):
        name, *more = command.split()
        if not shutil.which(name):
            figures[name] = "not installed"
            continue
        program = linked(f"aarch64-{name}", [name, *more], "aarch64", LIBRARY, link=("-static",))
        said = done([QEMU, str(program), *FILES]).strip()
        free = {**os.environ, "AARCH64_CC": command}
        figures[name] = f"{said}, {done([sys.executable, *tests], cwd=ROOT, env=free).splitlines()[-1]}"
    return figures


def outputs(isa: str, command: list[str], folder: Path) -> str:
    """Returns the hash of outputs that tests/capi/library.c prints at its end."""
    name, bits, passed = done([*command, "--isa", isa, *FILES], cwd=folder).split()
    if (name, passed) != (isa, "passed"):
        raise Wrong(f"{command}: {name} {passed}")
    return bits


def same_bits(isas: list[str], command: list[str], folder: Path) -> dict[str, str]:
    """Runs the tests of the C code by `command` and on this machine. Results must have the same bits in each
    instruction set, and other bits in another set, unless the sets differ only by integer products (VNNI)."""
    own, here = Path(lnrnn.get_library()), folder / "here"
    flags = ["-std=gnu11", f"-I{lnrnn.get_include()}", str(LIBRARY), str(own), f"-Wl,-rpath,{own.parent}"]
    done([*native_compiler(), *flags, "-pthread", "-o", str(here)])
    found = {isa: outputs(isa, command, folder) for isa in isas}
    wanted = {isa: outputs(isa, [str(here)], folder) for isa in isas}
    if found != wanted:
        raise Wrong(f"the bits are {found}, but here {wanted}")
    if len({*found.values()}) != len([isa for isa in isas if not isa.endswith("vnni")]):
        raise Wrong(f"sets that round differently have equal bits: {found}")
    return {f"bits of {isa}": bits for isa, bits in found.items()}


def riscv64(options: argparse.Namespace) -> dict[str, str]:
    needs(GCC_RISCV64, QEMU_RISCV64)
    made = linked("riscv64", [GCC_RISCV64], "riscv64", LIBRARY, link=("-static",))
    with tempfile.TemporaryDirectory() as folder:
        return same_bits(["scalar"], [QEMU_RISCV64, str(made)], Path(folder))


def windows(folder: Path) -> None:
    """Compiles the DLLs of the library and of the plug-in for Windows, library.exe and windows.exe."""
    system = "win32"
    shared, library = [*ZIG_WINDOWS, "-shared"], folder / library_name(system)
    link(shared, objects(ZIG_WINDOWS, units("x86_64", []), folder / "objects"), library, system, [])
    plugin = objects(ZIG_WINDOWS, plugin_units(), folder / "objects")
    link_plugin(shared, plugin, folder / plugin_name(system), system, library)
    for source in (LIBRARY, LIBRARY.with_name("windows.c")):
        words = ["-std=gnu11", f"-I{ROOT / 'include'}", str(source), str(imported(library))]
        done([*ZIG_WINDOWS, *words, "-o", str(folder / f"{source.stem}.exe")])


def same_examples(folder: Path) -> None:
    """Raises Wrong unless the examples in C and C++ have the same outputs in wine as on this machine."""
    own, file = Path(lnrnn.get_library()), FILES[0]
    given = "\n".join([" ".join(["0.5"] * lnrnn.load(file).input_size)] * 3 + [""])
    for source in (ROOT / "examples/c_program/c_program.c", ROOT / "examples/cpp_program/cpp_program.cpp"):
        text = [f"-I{ROOT / 'include'}", str(source)]
        there, here = folder / f"{source.stem}.exe", folder / source.stem
        library = str(imported(folder / library_name("win32")))
        done([*ZIG_WINDOWS, *text, "-lc++", library, "-o", str(there)])
        compiler = "c++" if source.suffix == ".cpp" else "cc"
        needs(compiler)
        done([compiler, *text, str(own), f"-Wl,-rpath,{own.parent}", "-o", str(here)])
        said = [done([*run, file], input=given).split() for run in ([WINE, str(there)], [str(here)])]
        if said[0] != said[1] or not said[0]:
            raise Wrong(f"{source.name} prints {said[0]} in wine, and {said[1]} here")


def refused_by_windows(folder: Path) -> None:
    """Runs windows.exe in a folder with a space and an umlaut. Its copy must not start with a library of
    another major version, and gets a status and a message of the system."""
    file, other = folder / "large.safetensors", folder / "mein Büro"
    lnrnn.LSTM(16, 64, seed=0).save(file)
    said = done([WINE, str(folder / "windows.exe"), file.name], cwd=folder).split()
    if said != ["passed"]:
        raise Wrong(f"windows.exe: {said}")
    shutil.rmtree(other, ignore_errors=True)
    other.mkdir()
    library = library_name("win32")
    program = shutil.copy(folder / "c_program.exe", other)
    for name, begins in ((library.replace("4", "3"), False), (library, True)):
        shutil.copy(folder / library, other / name)
        ran = subprocess.run(
            [WINE, program, FILES[0]], cwd=other, capture_output=True, text=True, input="",
            env={**os.environ, "WINEDEBUG": "err+module"},
        )  # fmt: skip
        if begins == (ran.returncode != 0) or begins == (f"{library} (which is needed by" in ran.stderr):
            raise Wrong(f"c_program.exe with {name}: status {ran.returncode}, {ran.stderr}")


def wine(options: argparse.Namespace) -> dict[str, str]:
    if not runs_wine():
        raise Missing("needs Debian's wine64 and the package ziglang")
    os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", str(options.folder.parent / "zig"))
    os.environ |= {**wine_variables(), "WINE_UNITS": "1"}
    folder = options.folder.resolve() / "windows"
    folder.mkdir(parents=True, exist_ok=True)
    windows(folder)
    done([WINE, "wineboot"])  # makes the folder of WINEPREFIX, and says so
    same_examples(folder)
    refused_by_windows(folder)
    names = lnrnn.cpu_info()["available"]
    figures = same_bits(names, [WINE, str(folder / "library.exe")], folder) | {"sets": ", ".join(names)}
    tests = [str(ROOT / "tests/simd/test_tiles.py"), "-k", "wine", *options.pytest]
    vectors = run_pytest(str(ROOT / "tests/simd/test_simd.py"), tests)
    return figures | {"vectors and tiles": vectors.splitlines()[-1]}


def wasm(options: argparse.Namespace) -> dict[str, str]:
    """test_web.py compares every setting with sse2, whose bits differ from those of other sets."""
    if not runs_wasm():
        raise Missing("needs Node, and ziglang: make .venv/.wheels")
    program = str(linked("wasm", ZIG_WASM, "wasm32", LIBRARY))
    figures = {"tests of liblnrnn": done([*NODE_WASI, program, *FILES]).strip()}
    tests = {
        "vectors": ["tests/simd/test_simd.py", "-k", "wasm128"],
        "networks": ["tests/conformance/test_web.py"],
    }
    os.environ["WASM_EVERY"] = "1"
    for name, (file, *more) in tests.items():
        figures[name] = run_pytest(str(ROOT / file), [*more, *options.pytest]).splitlines()[-1]
    return figures


REFUSAL, REFUSAL_BIG = "lnrnn needs a 64-bit build", "lnrnn needs a little-endian machine"
# Compile the header freestanding, because C libraries of 32 bits are rarely installed.
FREESTANDING = ["-ffreestanding", "-fsyntax-only", f"-I{ROOT / 'include'}", "-x", "c", "-"]
NARROW = (
    ["gcc", "-m32"], ["gcc", "-mx32"], ["clang", "-m32"], ["clang", "--target=armv7-linux-gnueabihf"],
    ["arm-linux-gnueabihf-gcc"],
)  # fmt: skip


BIG = (["clang", "--target=s390x-linux-gnu"], ["clang", "--target=aarch64_be-linux-gnu"])  # big-endian


def refuses(compiler: list[str]) -> bool:
    """Returns whether compiling the C API's header fails, with lnrnn's message as the only error."""
    command = [*compiler, *FREESTANDING]
    ran = subprocess.run(command, input='#include "lnrnn.h"\n', text=True, capture_output=True)
    errors = [line for line in ran.stderr.splitlines() if "error:" in line]
    if not errors and not ran.returncode:
        return False
    if len(errors) != 1 or (REFUSAL_BIG if compiler in BIG else REFUSAL) not in errors[0]:
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
    here = [
        compiler
        for compiler in (*NARROW, *BIG)
        if shutil.which(compiler[0]) and platform.machine() == "x86_64"
    ]
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
    needs("musl-gcc")
    program = linked("musl", ["musl-gcc"], platform.machine(), LIBRARY, link=("-static",))
    return f"tests of liblnrnn {done([str(program), *FILES]).strip()}"


def fresh(version: str, options: argparse.Namespace) -> dict[str, str]:
    """Clones into a folder with a space and an umlaut, and runs `make demo` and `make test` there."""
    needs("git", "make")
    if not (python := python_of(version)):
        raise Missing(f"needs Python {version}")
    with tempfile.TemporaryDirectory(prefix=f"lnrnn-{version}-") as folder:
        clone = Path(folder, "mein Büro/lnrnn")
        done(["git", "clone", "--quiet", str(ROOT), str(clone)])
        free = {name: value for name, value in os.environ.items() if name.startswith(KEPT)} | {"HOME": folder}
        make = ["make", f"PYTHON={python}"]
        done([*make, "demo"], cwd=clone, env=free)
        said = done([*make, "test", f"ARGS={shlex.join(options.pytest)}"], cwd=clone, env=free)
        info = done([str(clone / ".venv/bin/lnrnn"), "info"], env=free)
        if changes := done(["git", "status", "--short"], cwd=clone, env=free).strip():
            raise Wrong(f"make has changed the clone:\n{changes}")
    return {"Python": re.search(r"^python: (.*)$", info, re.M)[1], "tests": said.splitlines()[-1]}


PARTS = {
    "neon": neon, "riscv64": riscv64, "wine": wine, "wasm": wasm, "bits32": bits32, "musl": musl,
    **{f"fresh-{version}": partial(fresh, version) for version in ("3.12", "3.13")},
}  # fmt: skip
