"""Finds the Pythons of this machine, and builds an environment for programs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

__all__ = ["VERSIONS", "environment", "python_of"]

VERSIONS = ("3.11", "3.12", "3.13")


def python_of(version: str) -> str | None:
    """Returns the path of the Python with this version, or None. "3.14t" is the build without global lock."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    there = sorted((root / "versions").glob(f"{version.rstrip('t')}.*/bin/python"))
    result = [*map(str, there), *filter(None, [shutil.which(f"python{version}")])]
    asked = ["-c", "import sys; print('%d.%d' % sys.version_info[:2] + getattr(sys, 'abiflags', ''))"]
    for python in reversed(result):
        ran = subprocess.run([python, *asked], capture_output=True, text=True)
        if ran.stdout.strip() == version:
            return python
    return None


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Returns the environment without variables that choose another module, compiler or instruction set."""
    mine = ("LNRNN_", "OMP_", "CFLAGS", "LDFLAGS", "CC", "PYTHON")
    free = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    return {**free, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(folder), **more}
