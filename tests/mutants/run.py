"""``make mutants``: does the suite notice faults that were put in on purpose?

    python tests/mutants/run.py FOLDER [--only WORDS] [--list FILE] [--record FILE] [--first] [--check]

A copy of the sources in FOLDER gets every fault of tests/mutants/faults, each switched on by LNRNN_FAULT, and
is built once. As a control the whole suite runs with none switched on; tests that fail there, such as those
that read the sources, are left out from then on. Then for each fault the tests that should notice it run
and, where they do not, the whole suite. A crash and a test that does not end are noticed too. --first leaves out
the whole suite; --check only puts the faults in. Results are kept in FOLDER, so that what was interrupted
goes on; --record writes them as a table. Ends with 0 if at least 97 % of the faults that are not equivalent
were noticed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from fault import Fault, apply  # noqa: E402

SOURCES = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "docs", "examples", "include", "pyx", "lnrnn", "tests")  # fmt: skip
# Programs of their own, which are not for one fault: they take minutes.
NEVER = ("tests/mutants", "tests/benchmarks")
PATIENCE = 1800  # seconds for the whole suite; ten times what the first tests took without a fault, or 120
FLAGS = "-O1"  # many small branches more: -O3 takes minutes for them


def all_faults() -> list[Fault]:
    names = sorted(path.stem for path in (HERE / "faults").glob("*.py"))
    found = [fault for name in names for fault in importlib.import_module(f"faults.{name}").FAULTS]
    doubles = {fault.name for fault in found if sum(fault.name == other.name for other in found) > 1}
    if doubles:
        raise SystemExit(f"two faults have one name: {', '.join(sorted(doubles))}")
    return found


def copy(folder: Path) -> None:
    for name in SOURCES:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.so", "__pycache__", "_core.c"))
        else:
            shutil.copy2(source, target)


def build(folder: Path) -> None:
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=folder, env={**os.environ, "CFLAGS": FLAGS}, check=True)


def pytest(folder: Path, arguments: list[str], number: int, patience: float, **environment: str) -> tuple[int | None, str, float]:
    """(status, None if it did not end; output; seconds) of tests with fault `number`, 0 for none."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    variables = {**os.environ, "PYTHONPATH": str(folder), "LNRNN_FAULT": str(number), **environment}
    start = time.monotonic()
    process = subprocess.Popen(
        command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=patience)
        return process.returncode, output, time.monotonic() - start
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        return None, output, time.monotonic() - start


def failures(output: str) -> list[str]:
    return re.findall(r"^(?:FAILED|ERROR) (tests/\S+?\.py(?:::\S+)?)", output, re.MULTILINE)


def control(folder: Path, known: dict) -> list[str]:
    """Tests that fail with no fault switched on, as arguments that leave them out."""
    if "control" not in known:
        status, output, seconds = pytest(folder, ["tests", *(f"--ignore={name}" for name in NEVER), "-rfE"], 0, 2 * PATIENCE)  # fmt: skip
        if status not in (0, 1):
            raise SystemExit(f"the suite does not run without a fault: {output[-3000:]}")
        known["control"] = {"failed": failures(output), "seconds": round(seconds), "said": output.strip().split("\n")[-1]}
    return [f"--deselect={name.split('[')[0]}" for name in known["control"]["failed"]]


def verdict(folder: Path, number: int, fault: Fault, left_out: list[str], whole: bool) -> dict:
    """What became of one fault."""
    environment = {"LNRNN_ISA": fault.isa} if fault.isa else {}
    own = shlex.split(fault.tests)
    rest = ["tests", *(f"--ignore={name}" for name in NEVER)]
    seconds = 0.0
    for part, arguments, patience in (("first", own, 300.0), ("whole", rest, float(PATIENCE))):
        if part == "whole" and not whole:
            break
        status, output, took = pytest(folder, ["-x", "-rfE", *arguments, *left_out], number, patience, **environment)
        seconds += took
        if status is None:
            return {"noticed": "a test does not end", "part": part, "seconds": round(seconds)}
        if status == 1 or status < 0:
            by = (failures(output) or [f"the process ends with {status}"])[0]
            return {"noticed": by, "part": part, "seconds": round(seconds)}
        if status != 0:
            message = output.strip().split("\n")[-1][:200]
            # An error at the start, as when the package cannot be imported, is noticed; wrong arguments are not.
            if failures(output):
                return {"noticed": failures(output)[0], "part": part, "seconds": round(seconds)}
            raise SystemExit(f"{fault.name!r}: pytest cannot run {fault.tests!r}: {message}")
    return {"noticed": None, "part": "whole" if whole else "first", "seconds": round(seconds)}


def table(faults: list[Fault], results: dict) -> str:
    """The results, in Markdown."""
    lines = ["| file | fault | noticed by |", "|---|---|---|"]
    for fault in faults:
        found = results.get(fault.name)
        if found is None:
            by = "not run"
        elif found["noticed"]:
            by = found["noticed"]
        else:
            by = f"nothing: {fault.equivalent}" if fault.equivalent else "**nothing**"
            if found["part"] == "first" and not fault.equivalent:
                by = "not by the first tests"
        lines.append(f"| {fault.file} | {fault.name} | {by.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="faults whose name or file has these words")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--side-by-side", type=int, default=2)
    options = parser.parse_args()
    folder, faults = options.folder.resolve(), all_faults()
    folder.mkdir(parents=True, exist_ok=True)
    copy(folder)
    try:
        apply(faults, folder)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    print(f"{len(faults)} faults in {len({fault.file for fault in faults})} files", flush=True)
    if options.check:
        return 0
    build(folder)
    kept = folder / "results.json"
    known = json.loads(kept.read_text()) if kept.exists() else {}
    results = known.setdefault("faults", {})
    left_out = control(folder, known) if not options.first else []
    kept.write_text(json.dumps(known, indent=1))
    chosen = [
        (number, fault)
        for number, fault in enumerate(faults, 1)
        if options.only in fault.name + " " + fault.file
        and not (fault.name in results and (results[fault.name]["noticed"] or results[fault.name]["part"] == "whole" or options.first))
    ]  # fmt: skip

    def one(chosen: tuple[int, Fault]) -> None:
        number, fault = chosen
        results[fault.name] = found = verdict(folder, number, fault, left_out, not options.first and not fault.equivalent)
        kept.write_text(json.dumps(known, indent=1))
        print(f"{number} {fault.name}: {found['noticed'] or 'NOT NOTICED'} ({found['seconds']} s)", flush=True)

    with ThreadPoolExecutor(options.side_by_side) as pool:
        list(pool.map(one, chosen))
    if options.record:
        options.record.write_text(table(faults, results))
    counted = [fault for fault in faults if not fault.equivalent]
    noticed = sum(bool(results.get(fault.name, {}).get("noticed")) for fault in counted)
    wrong = [fault.name for fault in faults if fault.equivalent and results.get(fault.name, {}).get("noticed")]
    print(f"{noticed} of {len(counted)} noticed ({100 * noticed / max(1, len(counted)):.1f} %), {len(faults) - len(counted)} equivalent")
    if wrong:
        print(f"called equivalent, and noticed: {', '.join(wrong)}")
    return 0 if noticed >= 0.97 * len(counted) and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
