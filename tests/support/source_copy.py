"""Copies the sources to another folder, and builds them there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = (
    "setup.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff",
    "Makefile", "MANIFEST.in", "docs", "examples", "include", "pyx", "lnrnn", "tests",
)  # fmt: skip


def copy_sources(folder: Path) -> None:
    """Copies all files that builds and tests need. Keeps the folder's objects of an earlier build."""
    folder.mkdir(parents=True, exist_ok=True)
    ignored = shutil.ignore_patterns("*.so", "*.so.*", "*.dylib", "__pycache__", "_core.c")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.rmtree(folder / name, ignore_errors=True)
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy2(ROOT / name, folder / name)


def build(folder: Path, **environment: str) -> None:
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=folder, env={**os.environ, **environment}, check=True)
