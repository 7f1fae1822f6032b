"""Runs a campaign: a search for faults that takes too long for the suite. README.md lists all campaigns.

    python tests/campaigns/run.py NAME [PART ...] [options]; NAME --help shows the options

A PART is also the first word of the names of several parts: `fresh` is fresh-3.12, fresh-3.13.

A campaign is a module, NAME/run_NAME.py. Its PARTS are functions of the options. They return results {name:
number or text}, or a text. A part that fails raises an error, and a part without its tools raises Missing. A
module may have add_options(parser). Each part runs in a new process, and may write to options.folder. If a
part fails, run.py prints the command that repeats it, with more arguments from the file `at` in that folder.
With --keep the results are written to results/NAME.json, which the documentation shows.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NAMES = sorted(path.parent.name for path in HERE.glob("*/run_*.py"))
MISSING = 77  # exit status if a tool is not installed
PATIENCE = 300  # if a module has CAN_HANG, its parts may take these seconds and twice --seconds

sys.path[:0] = [str(ROOT), str(ROOT / "tests/support"), str(ROOT / "pyx")]

from outcome import Missing, Wrong  # noqa: E402


def load(name: str) -> ModuleType:
    sys.path.insert(0, str(HERE / name))
    return importlib.import_module(f"run_{name}")


def parser_of(name: str, module: ModuleType) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"run.py {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    listed = ", ".join(module.PARTS)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {listed}; default: all")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of random numbers")
    parser.add_argument("--seconds", type=float, default=30, help="for each part without a fixed end")
    parser.add_argument("--quick", action="store_true", help="a sample that takes seconds")
    parser.add_argument("--isa", action="append", help="only this instruction set; may be repeated")
    parser.add_argument("--pytest", type=shlex.split, default=[], help="arguments of pytest, in one word")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/campaigns" / name)
    parser.add_argument("--skip-missing", action="store_true", help="skip parts without their tools")
    parser.add_argument("--keep", action="store_true", help=f"write results/{name}.json")
    parser.add_argument("--note", action="append", default=[], help="a note for that file")
    parser.add_argument("--figures", type=Path, help=argparse.SUPPRESS)  # run one part, and write its figures
    getattr(module, "add_options", lambda parser: None)(parser)
    return parser


def run_here(module: ModuleType, options: argparse.Namespace) -> int:
    (part,) = options.parts
    options.folder.mkdir(parents=True, exist_ok=True)
    try:
        figures = module.PARTS[part](options)
    except Missing as missing:
        print(f"{part}: not run: {missing}", flush=True)
        return MISSING
    except Wrong as wrong:
        print(f"{part}: WRONG: {wrong}", flush=True)
        return 1
    figures = {part: figures} if isinstance(figures, str) else figures
    options.figures.write_text(json.dumps(figures))
    return 0


def run_part(part: str, words: list[str], options: argparse.Namespace, limit: float | None) -> dict | int:
    """Runs one part in a new process. Returns its results, or the exit status."""
    folder = options.folder.resolve() / part
    folder.mkdir(parents=True, exist_ok=True)
    figures, at = folder / "figures.json", folder / "at"
    for old in (figures, at):
        old.unlink(missing_ok=True)
    command = [sys.executable, str(Path(__file__)), *words, "--seed", str(options.seed)]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path}
    inner = [*command, "--folder", str(folder), "--figures", str(figures)]
    try:
        status: object = subprocess.run(inner, env=environment, timeout=limit).returncode
    except subprocess.TimeoutExpired:
        status = f"more than {limit} s"
    if status == 0:
        return dict(json.loads(figures.read_text()))
    if status != MISSING:
        where = at.read_text().strip() if at.exists() else ""
        print(f"{part}: FAILED, exit {status}; again: {shlex.join(command)} {where}", flush=True)
    return MISSING if status == MISSING else 1


def cpu() -> str:
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    named = re.search(r"^model name\s*: (.*)$", text, re.M)
    return f"{named[1] if named else platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def keep(name: str, words: list[str], notes: list[str], seconds: float, figures: dict, passed: bool) -> None:
    """Writes the results. If several parts ran, the names of results begin with the name of the part."""
    named = {
        (key if len(figures) == 1 or key == part else f"{part}: {key}"): value
        for part, of_part in figures.items()
        for key, value in of_part.items()
    }
    result = {
        "campaign": name, "date": datetime.date.today().isoformat(), "commit": commit(), "cpu": cpu(),
        "python": platform.python_version(), "seconds": round(seconds),
        "command": shlex.join(["run.py", *words]), "passed": passed, "figures": named, "notes": notes,
    }  # fmt: skip
    path = HERE / "results" / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"kept in {path}")


def main(words: list[str]) -> int:
    if not words or words[0] not in NAMES:
        print(__doc__, "Campaigns: ", ", ".join(NAMES), sep="")
        return 2 * (bool(words) and words[0] not in ("-h", "--help", "--list"))
    name, *rest = words
    # A job in the background ignores SIGINT, and so would the processes that parts start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    module = load(name)
    parser = parser_of(name, module)
    options = parser.parse_args(rest)
    chosen = []
    for word in options.parts:
        if not (named := [part for part in module.PARTS if word in (part, part.partition("-")[0])]):
            parser.error(f"no part {word!r}: there are {', '.join(module.PARTS)}")
        chosen += named
    if options.figures:
        return run_here(module, options)
    limit = PATIENCE + 2 * options.seconds if getattr(module, "CAN_HANG", False) else None
    given = [word for word in rest if word not in options.parts]
    begun, figures, failed = time.monotonic(), {}, 0
    for part in chosen or module.PARTS:
        since = time.monotonic()
        result = run_part(part, [name, part, *given], options, limit)
        if isinstance(result, dict):
            figures[part] = result
            summary = ", ".join(f"{key} {value}" for key, value in result.items())
            print(f"{part}: {summary} ({time.monotonic() - since:.0f} s)", flush=True)
        elif result != MISSING or not options.skip_missing:
            failed = 1 if 1 in (failed, result) else MISSING
    print(f"{name}: {'FAILED' if failed else 'passed'}, seed {options.seed}")
    if options.keep:
        keep(name, words, options.note, time.monotonic() - begun, figures, not failed)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
