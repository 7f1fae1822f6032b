"""Counts how many random mutations of the product's lines the suite notices.

All mutants of a sample are built into one copy of the sources. For each mutant, the fastest tests that call
its function run first, then the others, for about --limit seconds. A mutant is also noticed if a test crashes
or does not end. Results are stored in the folder, so an interrupted run continues if sources and tests have
not changed. judged.json has verdicts on mutants that no test noticed, by the content of their lines.

--stored runs the sample of the folder patches instead of a new one, and fails if a mutant is not noticed that
was noticed before. It draws and stores a sample if there is none.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scipy.stats import binomtest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE), str(ROOT / "tests/support"), str(ROOT / "pyx")]

import stored  # noqa: E402
from build_flags import units  # noqa: E402
from choice import Chosen, Measure, pytest  # noqa: E402
from sources import Mutant, Source, sources  # noqa: E402
from switched import SIZE, edit, mutant_edit  # noqa: E402

from outcome import Wrong  # noqa: E402
from source_copy import copy_sources  # noqa: E402

JUDGED = HERE / "judged.json"
CHANGES_NOTHING = (
    "equivalent",
    "performance",
    "message",
    "unreachable here",
)  # the other verdict is "hole"
ENOUGH = 0.95  # the campaign fails if a smaller share of the mutants that can change a result is noticed
FIRST = 20  # the tests that run first take this many seconds
NO_TESTS = 5  # pytest's exit status if no test has the name


def draw(found: dict[str, Source], seed: int, count: int) -> list[Mutant]:
    """Draws random lines, an operator for each line, and one of its positions. No two mutants overlap."""
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    for mutant in (mutant for source in found.values() for mutant in source.mutants()):
        by_line.setdefault((mutant.file, mutant.line), []).append(mutant)
    chance = random.Random(seed)
    drawn: list[Mutant] = []
    for line in chance.sample(sorted(by_line), len(by_line)):
        operator = chance.choice(sorted({mutant.operator for mutant in by_line[line]}))
        new = chance.choice([mutant for mutant in by_line[line] if mutant.operator == operator])
        overlaps = any(old.file == new.file and old.start < new.end and new.start < old.end for old in drawn)
        if len(drawn) < count and not overlaps:
            drawn.append(new)
    return drawn


def built(folder: Path, drawn: list[Mutant]) -> dict[int, Mutant]:
    """Builds a copy with all mutants. Returns {number: mutant} without mutants that do not compile.

    Compilers quote the line of an error, and the line contains the number of its mutant."""
    copy_sources(folder)
    found = dict(enumerate(drawn, 1))
    checks = [
        [sys.executable, "-m", "cython", "-3", "-I", "pyx", "-I", ".", "pyx/_core.pyx", "-o", "check.c"]
    ]
    for unit in units("x86_64", ["-fopenmp"]):
        headers = [f"-I{path}" for path in unit.include]
        checks.append(["gcc", "-fsyntax-only", "-w", *unit.flags, *headers, unit.source])
    checks.append([sys.executable, "setup.py", "-q", "build_ext", "--inplace"])
    put_in(folder, found)
    for command in checks:
        while (ran := subprocess.run(command, cwd=folder, capture_output=True, text=True)).returncode:
            said = ran.stdout + ran.stderr
            wrong = {int(number) for number in re.findall(r"LNRNN_FAULT\((\d+)\)", said)} & found.keys()
            if not wrong:
                raise Wrong(f"the copy does not build: {said[-3000:]}")
            found = {number: mutant for number, mutant in found.items() if number not in wrong}
            put_in(folder, found)
    records = (folder / "build/objects").rglob("*.json")
    compiled = {name for path in records for name in json.loads(path.read_text())["files"]}
    return {k: m for k, m in found.items() if m.file in compiled or not m.file.endswith((".c", ".h"))}


def put_in(folder: Path, mutants: dict[int, Mutant]) -> None:
    edits: dict[str, list[tuple[int, int, str]]] = {mutant.file: [] for mutant in mutants.values()}
    for number, mutant in mutants.items():
        edits[mutant.file].append(mutant_edit(mutant, number))
    edit(folder, edits, ROOT)


def tree() -> str:
    state = hashlib.sha256()
    for path in sorted(
        path for name in ("include", "pyx", "lnrnn", "tests") for path in (ROOT / name).rglob("*.*")
    ):
        if path.suffix in (".c", ".h", ".py", ".pyx", ".pxi") and path.name != "_core.c":
            state.update(path.read_bytes())
    return state.hexdigest()[:12]


class Campaign:
    """Runs the mutants of a copy, and stores their results."""

    def __init__(self, folder: Path, copy: Path, measure: Measure, limit: float) -> None:
        self.folder, self.copy, self.measure, self.limit = folder, copy, measure, limit
        self.kept, self.lock = folder / f"results-{tree()}.json", threading.Lock()
        self.results = json.loads(self.kept.read_text()) if self.kept.exists() else {}

    def run(self, number: int, mutant: Mutant) -> None:
        start, marks, by = time.monotonic(), self.folder / f"{number}.marks", None
        marks.write_bytes(bytes(SIZE))
        plan, parts, ran = self.measure.choose(mutant), ([], []), 0.0
        for file in plan:
            if ran < self.limit:
                ran += file.seconds
                parts[ran > FIRST and bool(parts[0])].append(file)
        for part in filter(None, parts):
            by = by or self.noticed(number, part, marks)
        result = {
            "file": mutant.file, "line": mutant.line, "function": mutant.function, "text": mutant.text,
            "operator": mutant.operator, "was": mutant.was, "becomes": mutant.becomes, "by": by,
            "reached": bool(marks.read_bytes()[0]), "seconds": round(time.monotonic() - start),
            "seconds of tests": round(ran), "of": round(sum(file.seconds for file in plan)),
        }  # fmt: skip
        marks.unlink()
        with self.lock:
            self.results[mutant.key] = result
            self.kept.write_text(json.dumps(self.results, indent=1) + "\n")
        print(f"{number} {mutant.file}:{mutant.line} {mutant.operator}: {by or 'NOT NOTICED'}", flush=True)

    def noticed(self, number: int, files: list[Chosen], marks: Path) -> str | None:
        """Returns the test or event that notices a mutant, or None. Ignores tests that fail without the
        mutant."""
        listed, patience = self.folder / f"{number}.tests", 120 + 10 * sum(file.seconds for file in files)
        words = ["-x", *(test for file in files for test in file.tests)]
        while True:
            listed.write_text("\n".join(words))
            on = {"LNRNN_FAULT": str(number), "LNRNN_REACHED": str(marks)}
            status, output = pytest(self.copy, [f"@{listed}"], patience, **on)
            if status in (0, NO_TESTS):
                return None
            summary = output.rpartition(" short test summary info ")[2]
            failed = re.findall(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", summary, re.MULTILINE)
            if status is None or not failed:
                return "a test does not end" if status is None else f"exit status {status}"
            if pytest(self.copy, [failed[0]], patience)[0] != 1:
                return str(failed[0])
            words.append(f"--deselect={failed[0]}")


def figures_of(results: dict[str, dict], judged: dict[str, dict]) -> dict[str, object]:
    verdicts = {
        key: judged.get(key, {}).get("verdict", "not judged") for key in results if not results[key]["by"]
    }
    for key, verdict in verdicts.items():
        if verdict == "not judged":
            print(json.dumps({key: results[key]}, indent=1))
    listed, noticed = list(verdicts.values()), len(results) - len(verdicts)
    figures: dict[str, object] = {"tried": len(results), "noticed": noticed}
    figures |= {f"survived: {verdict}": listed.count(verdict) for verdict in sorted(set(listed))}
    whole = len(results) - sum(verdict in CHANGES_NOTHING for verdict in listed)
    if whole:
        low, high = binomtest(noticed, whole).proportion_ci(method="wilson")
        figures |= {"rate": round(noticed / whole, 3), "95 % interval": f"{low:.3f} to {high:.3f}"}
    return figures


def sample(options) -> dict[str, object]:
    found, judged = sources(ROOT), json.loads(JUDGED.read_text())
    stale = judged.keys() - {mutant.key for source in found.values() for mutant in source.mutants()}
    print(
        f"{len(judged)} survivors are judged, {len(stale)} of them are no longer in the sources",
        flush=True,
    )
    if options.prune:
        JUDGED.write_text(json.dumps({k: v for k, v in judged.items() if k not in stale}, indent=1) + "\n")
        return {"dropped": len(stale)}
    drawn = draw(found, options.seed, options.count)
    if options.stored:
        patches = stored.of_today(stored.read() or stored.write(drawn, found), found)
        drawn = [mutant for _, mutant in patches if mutant]
    measure = Measure(options.folder, ROOT)
    measure.complete(options.side_by_side, options.patience)
    mutants = built(options.folder / "mutated", drawn)
    print(f"{len(mutants)} mutants, and {len(drawn) - len(mutants)} that do not compile here", flush=True)
    campaign = Campaign(options.folder, options.folder / "mutated", measure, options.limit)
    todo = [(number, mutant) for number, mutant in mutants.items() if mutant.key not in campaign.results]
    with ThreadPoolExecutor(options.side_by_side) as pool:
        list(pool.map(lambda pair: campaign.run(*pair), todo))
    results = {mutant.key: campaign.results[mutant.key] for mutant in mutants.values()}
    figures = {"seed": options.seed, **figures_of(results, judged)}
    if options.stored:
        figures = compared(patches, results)
    if figures.get("rate", 1) < ENOUGH:
        raise Wrong(f"too few mutants are noticed: {figures}")
    return figures


def compared(
    patches: list[tuple[stored.Patch, Mutant | None]], results: dict[str, dict]
) -> dict[str, object]:
    """Stores in each patch which test noticed it. Raises Wrong if only an earlier run noticed a mutant."""
    lost, names = [], Counter[str]()
    for patch, mutant in patches:
        by = results[mutant.key]["by"] if mutant and mutant.key in results else "gone"
        if not by and patch.noticed not in ("no", stored.NEW):
            lost.append(f"{patch.path.name}, noticed by {patch.noticed}")
        elif by != "gone":
            patch.noticed = by or "no"
            patch.write()
        names["gone" if by == "gone" else "noticed" if by else "not noticed"] += 1
    if lost:
        raise Wrong("\n".join(["mutants that no test notices any more:", *lost]))
    return {"stored": len(patches), **names}


def add_options(parser) -> None:
    parser.add_argument("--count", type=int, default=300, help="mutants in the sample")
    parser.add_argument("--limit", type=float, default=300, help="seconds of tests for one mutant")
    parser.add_argument("--patience", type=float, default=600, help="seconds to measure one file of tests")
    parser.add_argument("--side-by-side", type=int, default=2, help="mutants that run at once")
    parser.add_argument("--stored", action="store_true", help="run the mutants of the folder patches")
    parser.add_argument("--prune", action="store_true", help="remove verdicts on lines that no longer exist")


PARTS = {"sample": sample}
