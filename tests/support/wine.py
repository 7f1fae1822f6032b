"""Compiles programs for Windows by zig, and runs them in Debian's wine64."""

from __future__ import annotations

import functools
import importlib.util
import os
import shlex
import tempfile
from pathlib import Path

from compilers import CFLAGS, KEPT, Unit, objects, zig
from outcome import done

__all__ = ["WINE", "ZIG_WINDOWS", "built_for_windows", "runs_wine", "wine_variables"]

WINE = "/usr/lib/wine/wine64"  # Debian's package wine64 puts it outside of PATH
ZIG_WINDOWS = shlex.split(zig("win-amd64"))


def runs_wine() -> bool:
    """Returns whether this machine can compile and run code for Windows."""
    return os.path.exists(WINE) and bool(importlib.util.find_spec("ziglang"))


def built_for_windows(name: str, source: Path, flags: list[str]) -> Path:
    """Compiles `source` as compilers.built does. Links without these flags, because zig compiles its C
    library anew for each choice of instructions."""
    (made,) = objects(ZIG_WINDOWS, [Unit(name, str(source), [*CFLAGS, *flags], ["include"])], KEPT)
    program = KEPT / f"{name}.exe"
    done([*ZIG_WINDOWS, made, "-o", str(program)])
    return program


@functools.cache
def _prefix() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="lnrnn-wine-", ignore_cleanup_errors=True)


def wine_variables() -> dict[str, str]:
    """Returns environment variables for wine. Its folder exists until this process ends. It has a link to /,
    so it must not stand among sources: setuptools would list all files of the machine."""
    return {"WINEPREFIX": _prefix().name, "WINEDEBUG": "-all"}
