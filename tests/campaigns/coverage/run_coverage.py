"""Finds lines and branches of Python, Cython and C that the suite never runs.

A copy of the sources is built with gcc's --coverage, and the whole suite runs in the copy. Processes that
tests start are measured too. html/ in the folder shows every line. If a line never runs, the campaign fails,
unless a marker gives the reason. The marker of Python is `# pragma: no cover - why`. In comments of C and
Cython it is `GCOVR_EXCL_LINE: why`, or `GCOVR_EXCL_START: why` and `GCOVR_EXCL_STOP`. A line of a header is
covered if it ran in one instruction set. Branches of Cython are not counted, because most of them look for
exceptions.

The part `branches` builds with clang. It fails if a branch of C is never taken, unless a marker gives the
reason: `GCOVR_EXCL_BR_LINE: why`, or `GCOVR_EXCL_BR_START: why` and `GCOVR_EXCL_BR_STOP`.
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

import branches

from outcome import Missing, Wrong
from source_copy import build, copy_sources

NEVER = ("tests/campaigns/mutants", "tests/benchmarks")  # use another build, or run no further lines
CHOSEN = [f"--ignore={name}" for name in NEVER]


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
    # pytest's status 1 is allowed, because the measurement makes a few tests fail.
    if not options.only_report and measure(folder, [*CHOSEN, *options.pytest]) not in (0, 1):
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


def branches_of_c(options: argparse.Namespace) -> dict[str, int]:
    folder = options.folder
    if not options.only_report and branches.run_suite(folder, [*CHOSEN, *options.pytest]) not in (0, 1):
        raise Wrong("the suite does not run")
    shared = [*(folder / "lnrnn").rglob("*.so"), *(folder / "lnrnn").rglob("*.so.?")]
    wrong, numbers = branches.judge(folder, branches.counts(folder, shared))
    if wrong:
        raise Wrong("\n".join(["branches never taken, without a marker:", *wrong]))
    return dict(numbers)


def control(options: argparse.Namespace) -> dict[str, int]:
    """Measures a small library. One branch is never taken, and another one has a reason."""
    branches.require_tools()
    folder = options.folder
    (folder / "toy.c").write_text(
        "int first(int x) { return x > 0 && x < 9 ? 1 : 2; }\n"
        "int second(int x) {\n    if (x)\n        return 1; /* GCOVR_EXCL_LINE: toy */\n    return 2;\n}\n"
    )
    calls = "toy.first(4), toy.second(0), os.kill(os.getpid(), 9)"
    call = f"import ctypes, os, sys; toy = ctypes.CDLL(sys.argv[1]); {calls}"
    library = folder / "toy.so"
    flags = [*branches.FLAGS.split(), "-shared", "-fPIC"]
    subprocess.run(["clang", *flags, "toy.c", "-o", library], cwd=folder, check=True)
    branches.run([sys.executable, "-c", call, library], folder)
    wrong, numbers = branches.judge(folder, branches.counts(folder, [library]))
    never = [f"toy.c:1:{at}: never" for at in (27, 36)]
    if len(wrong) != 2 or not all(map(str.startswith, wrong, never)):
        raise Wrong(f"a small library gives {wrong}")
    return dict(numbers)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only-report", action="store_true", help="report an earlier measurement in the folder"
    )


PARTS = {"control": control, "coverage": covered, "branches": branches_of_c}
