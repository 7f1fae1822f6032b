"""Runs mutants of the product's lines, and fails if the suite no longer notices one that it noticed before.

patches/ has a random sample, with a patch for each mutant. Its first line names the test that noticed it, or
says "no", with a verdict if the mutant changes no result. Each patch is applied to a copy of the sources. The
copy is built, and that test runs. If it passes, or there is none, the tests of the mutant's room run for
--limit seconds. A crash, and a test that takes HANGS seconds, notice a mutant too.

--new N first draws N mutants of universalmutator, and stores the patches of those that compile.
"""

from __future__ import annotations

import ast
import difflib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

from outcome import Missing, Wrong
from source_copy import ROOT, build, copy_sources

PATCHES = Path(__file__).parent / "patches"
FOLDERS, LANGUAGES = (
    ("include/lnrnn", "pyx", "lnrnn"),
    {".c": "c", ".h": "c", ".py": "python", ".pxi": "python"},
)
ROOMS = {
    "torch": "torch_engine", "recognise": "cases", "file": "files", "onnxruntime": "ort", "speakers": "data",
    "file_format": "files", "state_bytes": "sessions",
}  # fmt: skip
HANGS = 120
NEW, GONE = "not run", "gone"
ENOUGH = 0.95  # the campaign fails if a smaller share of the mutants that can change a result is noticed


def tests_of(file: str) -> list[str]:
    """Returns the folders of tests of a file, by its own name and its folders' names."""
    names = (Path(file).stem, *Path(file).parts[1:-1])
    rooms = [ROOMS.get(name, name) for name in names]
    found = [f"tests/{room}" for room in rooms if (ROOT / "tests" / room).is_dir()]
    return found or ["tests/rnn", "tests/norm"]


def noticed(copy: Path, tests: list[str], limit: float | None) -> str | None:
    """Returns the test or event that notices the mutant in the copy, or None after `limit` seconds."""
    quick = ["-o", f"faulthandler_timeout={HANGS}", "-o", "faulthandler_exit_on_timeout=true"]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:cacheprovider", *quick, *tests]
    process = subprocess.Popen(
        command, cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)}, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return None
    finally:  # tests start processes too
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode in (0, 4, 5):  # passed, or the test's name is no longer known
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (tests/\S+?::\w+(?:\[.*?\](?= - |: |$))?)", output, re.MULTILINE)
    return failed[1] if failed else f"exit status {process.returncode}"


def apply(patch: Path, copy: Path) -> Path | None:
    """Applies a patch to the copy. Returns the changed file, or None if its lines are gone."""
    free, command = {"GIT_CEILING_DIRECTORIES": str(copy.resolve().parent)}, ["git", "apply", "-C1", patch]
    if subprocess.run(command, cwd=copy, env=os.environ | free, capture_output=True).returncode:
        return None
    return copy / re.search(r"^\+\+\+ b/(.+)$", patch.read_text(), re.MULTILINE)[1]


def run(patch: Path, copy: Path, limit: float) -> str:
    """Runs one mutant. Returns the test that noticed it, "no", a verdict, or GONE. Restores the copy."""
    before = patch.read_text().partition("\n")[0].removeprefix("noticed: ")
    if not (path := apply(patch, copy)):
        return GONE
    try:
        if path.suffix != ".py":
            build(copy)
        known, room = [before] * before.startswith("tests/"), tests_of(str(path.relative_to(copy)))
        by = noticed(copy, known, None) if known else None
        by = by or noticed(copy, room, limit)
    except subprocess.CalledProcessError:  # it does not compile
        return GONE
    finally:
        path.write_bytes((ROOT / path.relative_to(copy)).read_bytes())
        if path.suffix != ".py":
            build(copy)
    return by or (before if before.startswith("no,") else "no")


def draw(seed: int, count: int) -> None:
    """Stores patches of random mutants of universalmutator, in random files of the product."""
    chance, files = random.Random(seed), []
    for folder in FOLDERS:
        files += sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in LANGUAGES)
    sizes = [path.stat().st_size for path in files]
    number = max(int(path.stem) for path in PATCHES.glob("*.patch"))
    last = number + count
    while number < last:
        (path,) = chance.choices(files, sizes)
        with tempfile.TemporaryDirectory() as folder:
            tool = [sys.executable, "-m", "universalmutator.genmutants", str(path), LANGUAGES[path.suffix]]
            if subprocess.run([*tool, "--noCheck", "--mutantDir", folder], capture_output=True).returncode:
                raise Missing("needs universalmutator")
            old, new = path.read_text(), chance.choice(sorted(Path(folder).iterdir())).read_text()
        if path.suffix == ".py" and code_of(new) in ("", code_of(old)):
            continue
        number, name = number + 1, path.relative_to(ROOT)
        rows = difflib.unified_diff(old.splitlines(True), new.splitlines(True), f"a/{name}", f"b/{name}")
        (PATCHES / f"{number:03}.patch").write_text(f"noticed: {NEW}\n{''.join(rows)}")


def code_of(source: str) -> str:
    """Returns a Python program without comments and the contents of docstrings, or "" if it is none."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = 0
    return ast.dump(tree)


def sample(options) -> dict[str, object]:
    if options.new:
        draw(options.seed, options.new)
    copy, lost, names = options.folder / "mutated", [], Counter[str]()
    copy_sources(copy)
    build(copy)
    for patch in sorted(PATCHES.glob("*.patch"))[:: 40 if options.quick else 1]:
        before, _, rest = patch.read_text().partition("\n")
        before, by = before.removeprefix("noticed: "), run(patch, copy, options.limit)
        print(f"{patch.name}: {by}", flush=True)
        if by == "no" and before not in ("no", NEW):
            lost.append(f"{patch.name}, noticed by {before}")
        elif by != GONE:
            patch.write_text(f"noticed: {by}\n{rest}")
        elif before == NEW:
            patch.unlink()
        names[by if by in (GONE, "no") else by.partition(":")[0] if by.startswith("no,") else "noticed"] += 1
    if lost:
        raise Wrong("\n".join(["mutants that no test notices any more:", *lost]))
    figures: dict[str, object] = {"stored": names.total(), **names}
    if not options.quick and names["noticed"] < ENOUGH * (names["noticed"] + names["no"]):
        raise Wrong(f"too few mutants are noticed: {figures}")
    return figures


def add_options(parser) -> None:
    parser.add_argument("--limit", type=float, default=90, help="seconds of tests of a mutant's room")
    parser.add_argument("--new", type=int, default=0, metavar="N", help="draw and store N mutants first")


PARTS = {"sample": sample}
