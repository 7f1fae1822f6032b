"""C that the tests compile for themselves: this machine's compiler, one for aarch64 and an emulator, and
programs that are kept until something they are made from changes."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

sys.path.insert(0, str(ROOT / "pyx"))
from build_flags import CFLAGS, ISAS  # noqa: E402

__all__ = ["CFLAGS", "GCC_AARCH64", "ISAS", "QEMU", "ROOT", "built", "emulates_aarch64", "native_compiler"]

GCC_AARCH64, QEMU = "aarch64-linux-gnu-gcc", "qemu-aarch64"


def native_compiler() -> list[str]:
    """The command of a C compiler for this machine; without one the test is skipped."""
    named = [
        shlex.split(os.environ.get("CC", "")),
        shlex.split(sysconfig.get_config_var("CC") or ""),
        ["cc"],
        ["gcc"],
        ["clang"],
    ]
    found = next((command for command in named if command and shutil.which(command[0])), None)
    return found or pytest.skip("needs a C compiler")


def emulates_aarch64() -> bool:
    """Whether code for aarch64 can be compiled and run here."""
    return bool(shutil.which(GCC_AARCH64) and shutil.which(QEMU))


def built(name: str, compiler: list[str], source: Path, flags: list[str]) -> Path:
    """The program that `source` and the headers in include/ make with these flags. It is kept in
    build/tests under a hash of the compiler, the flags and every text, so that a second run finds it
    there."""
    command = [*compiler, *CFLAGS, *flags, f"-I{ROOT / 'include'}"]
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True).stdout
    key = hashlib.sha256(repr((version, command)).encode())
    for path in (source, *sorted((ROOT / "include").rglob("*.h"))):
        key.update(path.read_bytes())
    program = ROOT / "build/tests" / f"{name}-{key.hexdigest()[:16]}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        for old in program.parent.glob(f"{name}-*"):
            old.unlink(missing_ok=True)
        unfinished = program.with_name(f"{program.name}.{os.getpid()}")
        subprocess.run([*command, str(source), "-lm", "-o", str(unfinished)], check=True)
        unfinished.replace(program)  # two runs at a time each see a whole program
    return program
