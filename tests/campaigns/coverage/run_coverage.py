"""Finds lines and branches of Python, Cython and C that the suite never runs.

A copy of the sources is built with gcc's --coverage, and the whole suite runs in the copy. Processes that
tests start are measured too. html/ in the folder shows every line. If a line never runs, the campaign fails,
unless a marker gives the reason. The marker of Python is `# pragma: no cover - why`. In comments of C and
Cython it is `GCOVR_EXCL_LINE: why`, or `GCOVR_EXCL_START: why` and `GCOVR_EXCL_STOP`. A line of a header is
covered if it ran in one instruction set. Branches of Cython are not counted, because most of them look for
exceptions.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

from outcome import Missing, Wrong
from source_copy import build, copy_sources

NEVER = ("tests/campaigns/mutants", "tests/benchmarks")  # use another build, or run no further lines


def variables(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(folder),
        "COVERAGE_FILE": str(folder / "python/data"),
        "COVERAGE_RCFILE": str(folder / "pyproject.toml"),
    }


def measure(folder: Path, arguments: list[str]) -> int:
    """Runs the suite in the copy. Returns the exit status of pytest."""
    copy_sources(folder)
    build(folder, CC="gcc", CFLAGS="--coverage", LDFLAGS="--coverage", LNRNN_LINES="1")
    (folder / "python").mkdir(exist_ok=True)
    for old in (*folder.rglob("*.gcda"), *(folder / "python").iterdir()):
        old.unlink()
    command = [sys.executable, "-m", "coverage", "run", "-m", "pytest", "-q", "tests", *arguments]
    return subprocess.run(command, cwd=folder, env=variables(folder), check=False).returncode


def report(folder: Path) -> tuple[str, list[dict]]:
    """Writes html/. Returns the lines that never ran, as text, and for each file a dict as of gcovr."""

    def run(*command: str) -> str:
        words = [sys.executable, "-m", *command]
        free = dict(cwd=folder, env=variables(folder))
        return subprocess.run(words, check=True, text=True, stdout=PIPE, **free).stdout

    (folder / "html").mkdir(exist_ok=True)
    if not (folder / "python/data").exists():
        run("coverage", "combine", "-q")
    run("coverage", "html", "-q", "-d", "html/python")
    run("coverage", "json", "-q", "-o", "python.json")
    run(
        "gcovr", "-j", "2", "--merge-lines", "--html-nested", "html/c.html", "--txt", "c.txt",
        "--json-summary", "c.json", "build/objects",
    )  # fmt: skip
    python = json.loads((folder / "python.json").read_text())["totals"]
    whole = {
        "filename": "all.py", "line_covered": python["covered_lines"], "line_total": python["num_statements"],
        "branch_covered": python["covered_branches"], "branch_total": python["num_branches"],
    }  # fmt: skip
    files = json.loads((folder / "c.json").read_text())["files"]
    return run("coverage", "report", "-m", "--skip-covered") + (folder / "c.txt").read_text(), [whole, *files]


def part_of(name: str) -> str:
    if name.startswith("include/"):
        return "headers"
    return "Python" if name.endswith(".py") else "C" if name.endswith((".c", ".h")) else "Cython"


def covered(options: argparse.Namespace) -> dict[str, str]:
    absent = [name for name in ("coverage", "gcovr") if not importlib.util.find_spec(name)]
    if absent:
        raise Missing(f"needs the packages {' and '.join(absent)}")
    folder = options.folder
    if not options.only_report:
        arguments = [*(f"--ignore={name}" for name in NEVER), *options.pytest]
        # pytest's status 1 is allowed, because the measurement makes a few tests fail.
        if measure(folder, arguments) not in (0, 1):
            raise Wrong("the suite does not run")
    (never, files), figures = report(folder), {}
    if any(file["line_covered"] < file["line_total"] for file in files):
        raise Wrong(f"lines never run, without a marker:\n{never}")
    for part in ("Python", "Cython", "C", "headers"):
        for kind in ("line", "branch")[: 1 if part == "Cython" else 2]:
            ran, of = (
                sum(file[f"{kind}_{which}"] for file in files if part_of(file["filename"]) == part)
                for which in ("covered", "total")
            )
            figures[f"{kind} of {part}"] = f"{ran} of {of} ({100 * ran / max(of, 1):.1f} %)"
    return figures


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only-report", action="store_true", help="report an earlier measurement in the folder"
    )


PARTS = {"coverage": covered}
