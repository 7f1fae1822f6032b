"""Finds branches of C that no test takes.

clang's source-based coverage counts how often each condition of the source is true and false. It counts in
every process that tests start, even if a signal kills it. The copies of a header's condition in instruction
sets and inlined functions count as one.
"""

from __future__ import annotations

import bisect
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from outcome import Missing
from source_copy import build, copy_sources

FLAGS = "-fprofile-instr-generate -fcoverage-mapping -mllvm -runtime-counter-relocation"
TOOLS = ("clang", "llvm-profdata", "llvm-cov")
REASON = re.compile(r"GCOVR_EXCL_(?:BR_)?LINE: \w")
START, STOP = re.compile(r"GCOVR_EXCL_(?:BR_)?START: \w"), re.compile(r"GCOVR_EXCL_(?:BR_)?STOP")


def require_tools() -> None:
    absent = [name for name in TOOLS if not shutil.which(name)]
    if absent:
        raise Missing(f"needs {' and '.join(absent)}")


def run(command: list, folder: Path) -> int:
    """Runs a command. It and the processes that it starts write profiles/ in the folder."""
    (folder / "profiles").mkdir(exist_ok=True)
    free = {"LLVM_PROFILE_FILE": f"{folder}/profiles/%m-%p%c.profraw", "PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, env={**os.environ, **free}, check=False).returncode


def run_suite(folder: Path, arguments: list[str]) -> int:
    """Builds a copy of the sources, and runs the suite in it. Returns the exit status of pytest."""
    require_tools()
    copy_sources(folder)
    shutil.rmtree(folder / "profiles", ignore_errors=True)
    build(folder, CC="clang", CFLAGS=FLAGS, LDFLAGS="-fprofile-instr-generate")
    return run([sys.executable, "-m", "pytest", "-q", "tests", *arguments], folder)


def explained(lines: list[str]) -> set[int]:
    """Returns the numbers of the lines, from 1, whose markers give a reason for branches there.

    A comment of its own is for the next line. Another marker is for its line and the line before, because
    an `if` may stand above the statement that never runs.
    """
    numbers, inside = set(), False
    for number, line in enumerate(lines, 1):
        inside = (inside or bool(START.search(line))) and not STOP.search(line)
        if inside:
            numbers.add(number)
        elif REASON.search(line):
            numbers |= {number, number + 1 if line.lstrip().startswith("/*") else number - 1}
    return numbers


def counts(folder: Path, libraries: list[Path]) -> dict[tuple[str, int, int], list[int]]:
    """Returns for (file, line, column) of each condition how often it was true, and how often false.

    Conditions that the compiler knows, as `sizeof(real) == 4`, are left out. clang counts neither result of
    them, though their line runs.
    """
    merged, listed = folder / "profiles/all", folder / "profiles/list"
    listed.write_text("\n".join(map(str, (folder / "profiles").glob("*.profraw"))))
    # A process that was killed while it began may leave a damaged profile.
    merge = ["llvm-profdata", "merge", "-sparse", "-failure-mode=all", "-f", listed, "-o", merged]
    subprocess.run(merge, check=True, stderr=subprocess.DEVNULL)
    found: dict[tuple[str, int, int], list[int]] = {}
    for library in libraries:
        command = ["llvm-cov", "export", f"-instr-profile={merged}", str(library)]
        exported = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        for file in exported["data"][0]["files"]:
            path = Path(file["filename"])
            if not path.is_relative_to(folder) or path.name == "_core.c":
                continue
            starts = [(line, column) for line, column, *_ in file["segments"]]
            for line, column, _, _, true, false, *_ in file["branches"]:
                before = file["segments"][bisect.bisect(starts, (line, column)) - 1]
                if not true and not false and before[2]:
                    continue
                count = found.setdefault((str(path.relative_to(folder)), line, column), [0, 0])
                count[0], count[1] = count[0] + true, count[1] + false
    return found


def judge(folder: Path, found: dict[tuple[str, int, int], list[int]]) -> tuple[list[str], Counter[str]]:
    """Returns the branches that no test takes and no marker explains, and numbers of all kinds."""
    lines = {name: (folder / name).read_text().splitlines() for name, *_ in found}
    reasons = {name: explained(text) for name, text in lines.items()}
    wrong, numbers = [], Counter[str]()
    for (name, line, column), count in sorted(found.items()):
        for times, word in zip(count, ("true", "false"), strict=True):
            kind = "taken" if times else "explained" if line in reasons[name] else "not explained"
            numbers[kind] += 1
            if kind == "not explained":
                wrong.append(f"{name}:{line}:{column}: never {word}: {lines[name][line - 1].strip()}")
    return wrong, numbers
