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

from outcome import Missing, Wrong
from source_copy import build, copy_sources

NEVER = ("tests/campaigns/mutants", "tests/benchmarks")  # use another build, or run no further lines
PLAIN = "force=True,  # it goes by times"
WITH_LINES = "emit_linenums=True, " + PLAIN


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
    setup = folder / "setup.py"
    text = setup.read_text()
    if PLAIN not in text:
        raise Wrong("setup.py has changed: PLAIN and WITH_LINES must give Cython the option emit_linenums")
    setup.write_text(text.replace(PLAIN, WITH_LINES))
    build(folder, CC="gcc", CFLAGS="--coverage", LDFLAGS="--coverage")
    (folder / "python").mkdir(exist_ok=True)
    for old in (*folder.rglob("*.gcda"), *(folder / "python").iterdir()):
        old.unlink()
    command = [sys.executable, "-m", "coverage", "run", "-m", "pytest", "-q", "tests", *arguments]
    return subprocess.run(command, cwd=folder, env=variables(folder), check=False).returncode


def join(folder: Path) -> list[dict]:
    """Joins the measurements of Python and of C in a report of gcovr. Returns the report's files."""

    def run(*command: str) -> None:
        subprocess.run([sys.executable, "-m", *command], cwd=folder, env=variables(folder), check=True)

    if not (folder / "python/data").exists():
        run("coverage", "combine", "-q")
    run("coverage", "xml", "-q", "-o", "python.xml")
    run("gcovr", "-j", "2", "--json", "c.json", "build/objects")
    (folder / "html").mkdir(exist_ok=True)
    run(
        "gcovr", "--add-tracefile", "c.json", "--cobertura-add-tracefile", "python.xml",
        "--html-nested", "html/index.html", "--json", "both.json",
    )  # fmt: skip
    files: list[dict] = json.loads((folder / "both.json").read_text())["files"]
    return sorted(files, key=lambda file: file["file"])


def merged(file: dict) -> tuple[dict[int, bool], dict[tuple[int, int], bool]]:
    """Returns ({line: did it run?}, {(line, branch): was it taken?}) without excluded lines. A line can be in
    several functions, for different types and instruction sets: it ran if it ran in one."""
    lines: dict[int, bool] = {}
    branches: dict[tuple[int, int], bool] = {}
    for line in file["lines"]:
        number = line["line_number"]
        if line.get("gcovr/excluded"):
            continue
        lines[number] = lines.get(number, False) or line["count"] > 0
        for place, branch in enumerate(line["branches"]):
            branches[number, place] = branches.get((number, place), False) or branch["count"] > 0
    return lines, branches


def share(ran: list[bool]) -> str:
    return f"{sum(ran)} of {len(ran)} ({100 * sum(ran) / len(ran):.1f} %)" if ran else "-"


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
    parts: dict[str, tuple[list[bool], list[bool]]] = {}
    never = []
    for file in join(folder):
        name = file["file"]
        lines, branches = merged(file)
        counts = parts.setdefault(part_of(name), ([], []))
        counts[0].extend(lines.values())
        counts[1].extend(branches.values())
        source = (folder / name).read_text().splitlines()
        never += [f"{name}:{n}: {source[n - 1].strip()}" for n in sorted(lines) if not lines[n]]
    if never:
        raise Wrong("\n".join([f"{len(never)} lines never run, without a marker:", *never]))
    figures = {f"lines of {part}": share(lines) for part, (lines, _) in parts.items()}
    return figures | {f"branches of {part}": share(of) for part, (_, of) in parts.items() if part != "Cython"}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only-report", action="store_true", help="report an earlier measurement in the folder"
    )


PARTS = {"coverage": covered}
