"""``make mutants``: does the suite notice faults that were put in on purpose?

    python tests/mutants/run.py FOLDER [--only WORDS] [--record FILE] [--first] [--check]

A copy of the sources in FOLDER gets every fault of tests/mutants/faults, each switched on by LNRNN_FAULT, and
is built once. As a control the whole suite runs with none switched on; tests that fail there, such as those
that read the sources, are left out from then on. Then for each fault the tests that should notice it run
and, where they do not, the whole suite. A crash and a test that does not end are noticed too. --first leaves
the whole suite out, and the control; --check only puts the faults in. What was found is kept in FOLDER, so
that an interrupted run goes on; --record writes it as a table. Ends with 0 if at least 97 % of the faults
that are not equivalent were noticed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests/support")]

from fault import Fault, apply  # noqa: E402

from source_copy import build, copy_sources  # noqa: E402

# The whole suite, without these programs and without timings.
SUITE = ["tests", "--ignore=tests/mutants", "--ignore=tests/benchmarks"]
PATIENCE = {"first": 300, "whole": 3600}  # seconds until tests count as hanging
ENOUGH = 0.97
NO_TESTS = 5  # pytest's status where no test has such a name: those of an instruction set that is not here


def all_faults() -> list[Fault]:
    modules = sorted(path.stem for path in (HERE / "faults").glob("[!_]*.py"))
    found = [fault for name in modules for fault in importlib.import_module(f"faults.{name}").FAULTS]
    names = [fault.name for fault in found]
    doubles = sorted({name for name in names if names.count(name) > 1})
    if doubles:
        raise SystemExit(f"two faults have one name: {', '.join(doubles)}")
    return found


def pytest(folder: Path, arguments: list[str], number: int, patience: float, **environment: str):
    """(status, None if it did not end; output; seconds) of tests with fault `number`, 0 for none."""
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", *arguments]
    variables = {**os.environ, "PYTHONPATH": str(folder), "LNRNN_FAULT": str(number), **environment}
    start = time.monotonic()
    process = subprocess.Popen(
        command, cwd=folder, env=variables, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=patience)
        status = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        status = None
    if number:
        end_what_is_left(number)
    return status, output, time.monotonic() - start


def end_what_is_left(number: int) -> None:
    """Processes that tests started, which a fault let outlive them."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"LNRNN_FAULT={number}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
        except OSError:  # another's, or gone by now
            pass


def failures(output: str) -> list[str]:
    return re.findall(r"^(?:FAILED|ERROR) (tests/\S+?\.py(?:::\S+)?)", output, re.MULTILINE)


class Campaign:
    """All faults, in one copy of the sources that has them, and what is known of them by now."""

    def __init__(self, folder: Path, faults: list[Fault], whole: bool) -> None:
        self.folder, self.faults, self.whole = folder, faults, whole
        self.kept, self.lock = folder / "found.json", threading.Lock()
        self.known = json.loads(self.kept.read_text()) if self.kept.exists() else {"faults": {}}

    def keep(self) -> None:
        self.kept.write_text(json.dumps(self.known, indent=1))

    def found(self, fault: Fault) -> dict | None:
        """What became of it, if it was tried as it is now."""
        result = self.known["faults"].get(fault.name)
        return result if result and result["fault"] == fingerprint(fault) else None

    def settled(self, fault: Fault) -> bool:
        result = self.found(fault)
        return bool(result) and (bool(result["by"]) or result["part"] == "whole" or bool(fault.equivalent))

    def control(self) -> None:
        """Notes the tests that fail with no fault switched on."""
        if "control" in self.known:
            return
        status, output, seconds = pytest(self.folder, SUITE, 0, PATIENCE["whole"])
        if status not in (0, 1):
            raise SystemExit(f"the suite does not run without a fault: {output[-3000:]}")
        said = output.strip().split("\n")[-1]
        print(f"control: {said}", flush=True)
        self.known["control"] = {"failed": failures(output), "seconds": round(seconds), "said": said}
        self.keep()

    def left_out(self) -> list[str]:
        return [
            f"--deselect={name.split('[')[0]}" for name in self.known.get("control", {}).get("failed", ())
        ]

    def run(self, number: int, fault: Fault) -> None:
        result = verdict(self.folder, number, fault, self.left_out(), self.whole and not fault.equivalent)
        with self.lock:  # two may be ready at once
            self.known["faults"][fault.name] = {"fault": fingerprint(fault), **result}
            self.keep()
        said = result["by"] or ("NOT NOTICED" if result["ran"] else "NO SUCH TEST HERE")
        print(f"{number} {fault.name}: {said} ({result['seconds']} s)", flush=True)

    def table(self) -> str:
        """In Markdown."""
        lines = ["| file | fault | noticed by |", "|---|---|---|"]
        for fault in self.faults:
            result = self.found(fault)
            if result is None:
                by = "not run"
            elif result["by"]:
                by = result["by"]
            elif fault.equivalent:
                by = f"nothing: {fault.equivalent}"
            else:
                by = "**nothing**" if result["part"] == "whole" else "**not by the first tests**"
            lines.append(
                "| " + " | ".join(c.replace("|", "\\|") for c in (fault.file, fault.name, by)) + " |"
            )
        return "\n".join(lines) + "\n"

    def summary(self) -> bool:
        """Prints it. -> whether enough were noticed."""
        noticed = {fault.name for fault in self.faults if (self.found(fault) or {}).get("by")}
        equivalent = {fault.name for fault in self.faults if fault.equivalent}
        count = len(self.faults) - len(equivalent)
        share = len(noticed - equivalent) / max(1, count)
        print(
            f"{len(noticed - equivalent)} of {count} noticed ({share:.1%}); {len(equivalent)} are equivalent"
        )
        for name in sorted(noticed & equivalent):
            print(f"called equivalent, and noticed: {name}")
        return share >= ENOUGH and not noticed & equivalent


def fingerprint(fault: Fault) -> str:
    return hashlib.sha256(repr((fault.file, fault.was, fault.becomes, fault.isa)).encode()).hexdigest()[:16]


def verdict(folder: Path, number: int, fault: Fault, left_out: list[str], whole: bool) -> dict:
    """What became of one fault. by: what noticed it, or None."""
    environment = {"LNRNN_ISA": fault.isa} if fault.isa else {}
    parts = {"first": shlex.split(fault.tests), "whole": SUITE}
    seconds, by, ran = 0.0, None, 0
    for part in ("first", "whole") if whole else ("first",):
        arguments = ["-x", *parts[part], *left_out]
        status, output, took = pytest(folder, arguments, number, PATIENCE[part], **environment)
        seconds += took
        ran += status != NO_TESTS
        if status is None:
            by = "a test does not end"
        elif failures(output):  # of imports too
            by = failures(output)[0]
        elif status < 0 or status == 1:
            by = f"the process ends with {status}"
        elif status not in (0, NO_TESTS):
            raise SystemExit(f"{fault.name!r}: pytest cannot run {shlex.join(arguments)}: {output[-500:]}")
        if by:
            break
    return {"by": by, "part": part, "ran": ran, "seconds": round(seconds)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="faults whose name or file has these words")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--side-by-side", type=int, default=2)
    options = parser.parse_args()
    folder, faults = options.folder.resolve(), all_faults()
    copy_sources(folder)
    try:
        apply(faults, folder)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    print(f"{len(faults)} faults in {len({fault.file for fault in faults})} files", flush=True)
    if options.check:
        return 0
    campaign = Campaign(folder, faults, not options.first)
    build(folder)
    if campaign.whole:
        campaign.control()
    chosen = [
        (number, fault)
        for number, fault in enumerate(faults, 1)
        if options.only in f"{fault.name} {fault.file}" and not campaign.settled(fault)
    ]
    with ThreadPoolExecutor(options.side_by_side) as pool:
        list(pool.map(lambda pair: campaign.run(*pair), chosen))
    if options.record:
        options.record.write_text(campaign.table())
    return 0 if campaign.summary() else 1


if __name__ == "__main__":
    sys.exit(main())
