"""Compiles C programs for tests, for this machine or for aarch64 with an emulator."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

sys.path.insert(0, str(ROOT / "pyx"))
from build_flags import CFLAGS, ISAS, Unit, plugin_units, units  # noqa: E402
from library import imported, library_name, link, link_plugin, plugin_name  # noqa: E402
from zig_cc import zig  # noqa: E402

from outcome import done  # noqa: E402

__all__ = [
    "CFLAGS", "GCC_AARCH64", "ISAS", "NODE_WASI", "QEMU", "ROOT", "Unit", "ZIG_WASM", "built",
    "emulates_aarch64", "imported", "library_name", "link", "link_plugin", "linked", "native_compiler",
    "objects", "plugin_name", "plugin_units", "preloading", "runs_wasm", "units", "zig",
]  # fmt: skip

KEPT = ROOT / "build/tests"
GCC_AARCH64, QEMU = "aarch64-linux-gnu-gcc", "qemu-aarch64"
ZIG_WASM = [sys.executable, "-m", "ziglang", "cc", "-target", "wasm32-wasi"]
NODE_WASI = ["node", "--no-warnings", str(ROOT / "tests/support/wasi.mjs")]


def native_compiler() -> list[str]:
    """Returns the command of a C compiler for this machine, or skips the test without one."""
    named = [shlex.split(words or "") for words in (os.environ.get("CC"), sysconfig.get_config_var("CC"))]
    named += [["cc"], ["gcc"], ["clang"]]
    result = next((command for command in named if command and shutil.which(command[0])), None)
    return result or pytest.skip("needs a C compiler")


def emulates_aarch64() -> bool:
    """Returns whether this machine can compile and run code for aarch64."""
    return bool(shutil.which(GCC_AARCH64) and shutil.which(QEMU))


def runs_wasm() -> bool:
    """Returns whether this machine can compile and run WebAssembly."""
    return bool(importlib.util.find_spec("ziglang") and shutil.which("node"))


def built(name: str, compiler: list[str], source: Path, flags: list[str]) -> Path:
    """Compiles `source` with these flags and the headers in include/. Returns the program's path.

    The program is stored in build/tests under a hash of compiler, flags, sources and headers, and used again.
    """
    words = [*CFLAGS, *flags, f"-I{ROOT / 'include'}", str(source), "-lm"]
    return _kept(name, compiler, words, [source, *(ROOT / "include").rglob("*.h")], KEPT)


def objects(compiler: list[str], chosen: Iterable[Unit], folder: Path, *flags: str) -> list[str]:
    """Compiles translation units in parallel. Returns the paths of their objects in the folder."""

    def compiled(unit: Unit) -> str:
        target, include = str(folder / f"{unit.name}.o"), [f"-I{ROOT / path}" for path in unit.include]
        done([*compiler, *unit.flags, *flags, *include, "-c", str(ROOT / unit.source), "-o", target])
        return target

    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        return list(pool.map(compiled, chosen))


def preloading(library: Path) -> dict[str, str]:
    """Returns the environment variables that load a library before all others.

    LD_PRELOAD cannot contain spaces, so it has only the file's name, and LD_LIBRARY_PATH has the folder."""
    folders = [str(library.parent), os.environ.get("LD_LIBRARY_PATH", "")]
    return {"LD_PRELOAD": library.name, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders))}


def linked(
    name: str,
    compiler: list[str],
    machine: str,
    main: Path,
    *,
    flags: tuple[str, ...] = (),
    link: tuple[str, ...] = (),
    folder: Path = KEPT,
) -> Path:
    """Compiles `main` with all C of pyx/, for a machine ("aarch64", "x86_64"), without OpenMP.

    Stores the program and its objects as `built` does, and returns the program's path. flags: for the
    compiler, after the flags of build_flags.py. link: flags for the linker."""
    headers = [header for folder in ("include", "pyx") for header in (ROOT / folder).rglob("*.h")]
    named = Unit(main.stem, str(main), CFLAGS, ["include", "pyx"])

    def compiled(unit: Unit) -> str:
        include = [f"-I{ROOT / path}" for path in unit.include]
        source = ROOT / unit.source
        words = [*unit.flags, *flags, *include, "-c", str(source)]
        return str(_kept(f"{name}.{unit.name}", compiler, words, [source, *headers], folder, ".o"))

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        objects = list(pool.map(compiled, [*units(machine, []), named]))
    return _kept(f"{name}-{main.stem}", compiler, [*objects, *link, "-lm"], [], folder)


def _kept(
    name: str, compiler: list[str], words: list[str], texts: list[Path], folder: Path, suffix: str = ""
) -> Path:
    """Returns the path of the compiler's output. Compiles only if compiler, words or texts have changed.

    suffix: of the output. Zig links only objects that end with .o."""
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True).stdout
    key = hashlib.sha256(repr((version, [*compiler, *words])).encode())
    for path in sorted(texts):
        key.update(path.read_bytes())
    program = folder / f"{name}-{key.hexdigest()[:16]}{suffix}"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"{name}-*"):
            old.unlink(missing_ok=True)
        unfinished = program.with_name(f"{program.name}.{os.getpid()}")
        subprocess.run([*compiler, *words, "-o", str(unfinished)], check=True)
        unfinished.replace(program)  # atomic, because another run may use the program
    return program
