"""Which lines and branches of Python, Cython and C the suite never runs.

A copy of the sources is built with gcc's --coverage and the whole suite runs in it, with all processes that
tests start. html/ in the folder shows every line; --report writes a table by file and every line that was
never run, with its reason from tests/never_run.txt. A line without a reason there is a failure; reasons
that were not needed are printed. Of a header that is compiled for several instruction sets, a line counts
as run if it ran in one of them. Branches of Cython, most of which look for exceptions, are not counted.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from outcome import Missing, Wrong
from source_copy import ROOT, build, copy_sources

# Other builds, programs of their own, and other people's tests, which run nothing new.
NEVER = ("tests/mutants", "tests/campaigns/mutants", "tests/benchmarks")
PLAIN = "force=True,  # it goes by times"
WITH_LINES = "emit_linenums=True, " + PLAIN
CONFIG = """\
[run]
branch = True
source = lnrnn
parallel = True
data_file = {folder}/python/data
patch = subprocess, _exit
concurrency = thread
[report]
exclude_also =
    if TYPE_CHECKING:
    @overload
"""


def measure(folder: Path, arguments: list[str]) -> int:
    """-> the status of pytest."""
    copy_sources(folder)
    setup = folder / "setup.py"
    text = setup.read_text()
    if PLAIN not in text:
        raise SystemExit(
            "setup.py has changed: say here how Cython is told to write the numbers of its lines"
        )
    setup.write_text(text.replace(PLAIN, WITH_LINES))
    build(folder, CC="gcc", CFLAGS="--coverage", LDFLAGS="--coverage")
    for old in folder.rglob("*.gcda"):
        old.unlink()
    (folder / "python").mkdir(exist_ok=True)
    for old in (folder / "python").iterdir():
        old.unlink()
    config = folder / "coveragerc"
    config.write_text(CONFIG.format(folder=folder))
    command = [
        sys.executable,
        "-m",
        "coverage",
        "run",
        f"--rcfile={config}",
        "-m",
        "pytest",
        "-q",
        *arguments,
    ]
    variables = {**os.environ, "PYTHONPATH": str(folder), "COVERAGE_RCFILE": str(config)}
    return subprocess.run(command, cwd=folder, env=variables, check=False).returncode


def join(folder: Path) -> list[dict]:
    """Both in one report of gcovr's, as a page for every file and as data: its files."""
    variables = {**os.environ, "COVERAGE_RCFILE": str(folder / "coveragerc")}
    data = folder / "python/data"
    if not data.exists():
        subprocess.run(
            [sys.executable, "-m", "coverage", "combine", "-q"], cwd=folder, env=variables, check=True
        )
    subprocess.run(
        [sys.executable, "-m", "coverage", "xml", "-q", "-o", "python.xml"],
        cwd=folder, env=variables, check=True,
    )  # fmt: skip
    gcovr = [sys.executable, "-m", "gcovr", "--root", ".", "-j", "2"]
    subprocess.run(
        [*gcovr, "--filter", "include/", "--filter", "pyx/", "--exclude", ".*_core[.]c$",
         # Cython's, whose names begin with two underscores.
         "--include-internal-functions",
         "--merge-mode-functions=separate", "--gcov-ignore-errors=all", "--gcov-ignore-parse-errors=all",
         "--json", "c.json", "build/objects"],
        cwd=folder, check=True,
    )  # fmt: skip
    (folder / "html").mkdir(exist_ok=True)
    subprocess.run(
        [*gcovr, "--add-tracefile", "c.json", "--cobertura-add-tracefile", "python.xml",
         "--html-nested", "html/index.html", "--json", "both.json"],
        cwd=folder, check=True,
    )  # fmt: skip
    found: list[dict] = json.loads((folder / "both.json").read_text())["files"]
    return sorted(found, key=lambda file: file["file"])


def reasons() -> list[tuple[str, str, str]]:
    """(file, the line's text, why it is never run), of which the text may have * and ?."""
    found = []
    for line in (ROOT / "tests" / "never_run.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            file, text, why = (part.strip() for part in line.split(" | "))
            found.append((file, text, why))
    return found


def merged(file: dict) -> tuple[dict[int, bool], dict[tuple[int, int], bool]]:
    """({line: did it run?}, {(line, branch): was it taken?}), where a line may stand in functions of many
    types and instruction sets."""
    lines: dict[int, bool] = {}
    branches: dict[tuple[int, int], bool] = {}
    for line in file["lines"]:
        number = line["line_number"]
        lines[number] = lines.get(number, False) or line["count"] > 0
        for place, branch in enumerate(line["branches"]):
            branches[number, place] = branches.get((number, place), False) or branch["count"] > 0
    return lines, branches


class Tally(NamedTuple):
    """counts: of a file, and of "all": lines run, lines, branches taken, branches. explained: file, number
    and text of a line that is never run, and why. unexplained: lines without a reason; unneeded: reasons
    without a line."""

    counts: dict[str, tuple[int, ...]]
    explained: list[tuple[str, int, str, str]]
    unexplained: list[str]
    unneeded: list[str]


def tallied(folder: Path, files: list[dict]) -> Tally:
    counts: dict[str, tuple[int, ...]] = {}
    unexplained, explained = [], []
    known, used = reasons(), set()
    for file in files:
        name = file["file"]
        source = (folder / name).read_text().splitlines()
        lines, branches = merged(file)
        taken = [] if name.endswith((".pyx", ".pxi", ".pxd")) else list(branches.values())
        counts[name] = sum(lines.values()), len(lines), sum(taken), len(taken)
        for number in sorted(number for number, ran in lines.items() if not ran):
            text = source[number - 1].strip()
            for k, (where, what, why) in enumerate(known):
                if fnmatch.fnmatch(name, where) and fnmatch.fnmatchcase(text, what):
                    used.add(k)
                    explained.append((name, number, text, why))
                    break
            else:
                unexplained.append(f"{name}:{number}: {text}")
    counts["all"] = tuple(map(sum, zip(*counts.values(), strict=True)))
    unneeded = [" | ".join(known[k]) for k in range(len(known)) if k not in used]
    return Tally(counts, explained, unexplained, unneeded)


def share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / whole:.1f} %)" if whole else "-"


def tables(tally: Tally) -> tuple[list[str], list[str]]:
    """The report in Markdown: a line for each file, and for each line that is never run."""
    files = ["| file | lines run | branches taken |", "|---|---|---|"]
    for name, counts in tally.counts.items():
        files.append(f"| {name} | {share(*counts[:2])} | {share(*counts[2:])} |")
    never = ["| never run | line | why |", "|---|---|---|"]
    for name, number, line, why in tally.explained:
        never.append(f"| {name}:{number} | `{line.replace('|', chr(92) + '|')}` | {why} |")
    return files, never


def covered(options: argparse.Namespace) -> dict[str, str | int]:
    absent = [name for name in ("coverage", "gcovr") if not importlib.util.find_spec(name)]
    if absent:
        raise Missing(f"needs the packages {' and '.join(absent)}")
    folder = options.folder
    if not options.only_report:
        tests = options.pytest or ["tests", *(f"--ignore={name}" for name in NEVER)]
        # 1: a few tests may fail under measurement, and pytest shows them.
        if measure(folder, tests) not in (0, 1):
            raise Wrong("the suite does not run")
    tally = tallied(folder, join(folder))
    files, never = tables(tally)
    if options.report:
        options.report.write_text("\n".join([*files, "", *never]) + "\n")
    for line in tally.unneeded:
        print(f"a reason that was not needed: {line}")
    if tally.unexplained:
        raise Wrong("\n".join(["never run, without a reason:", *tally.unexplained]))
    counts = tally.counts["all"]
    explained = len(tally.explained)
    return {"lines run": share(*counts[:2]), "branches taken": share(*counts[2:]), "explained": explained}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--report", type=Path)
    parser.add_argument("--only-report", action="store_true", help="of an earlier measurement in the folder")


PARTS = {"coverage": covered}
