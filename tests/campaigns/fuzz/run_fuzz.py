"""Runs random cases, and compares them with the reference in double precision and with equivalent calls.

Error bounds are derived or measured. A wrong result, a warning, a crash, a hang or too much memory ends the
run. Then run.py prints the command that repeats the case: --case networks:SEED:NUMBER. An execution is a call
of lnrnn whose result was checked. fuzz_cases.py lists the kinds of cases. Each worker is a run with one
worker and a seed of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import fuzz_cases
import lnrnn
from fuzz_judge import Judge
from outcome import Wrong

RUN = Path(__file__).resolve().parents[1] / "run.py"
MEMORY = 2 << 30  # bytes of address space that cases may use


def limit_memory() -> None:
    """Limits memory, so that a case that needs more fails with a MemoryError."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))


def fuzz(options: argparse.Namespace) -> dict[str, int | str]:
    if options.workers > 1 and not options.case:
        return by_workers(options)
    warnings.simplefilter("error")
    judge, cases, turn = Judge(), 0, tuple(options.kinds.split(","))
    memory = "/dev/shm"  # on a disk, syncing files would take most of the time
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        tempfile.tempdir = folder
        for kind in turn:
            __import__(f"fuzz_{kind}")
        if sys.platform == "linux":
            limit_memory()
        if options.case:
            kind, seed, number = options.case.split(":")
            fuzz_cases.run(kind, int(seed), int(number), judge)
            return {f"executions on {fuzz_cases.isa_of(int(number))}": judge.counts.total()}
        end = time.monotonic() + options.seconds
        with (options.folder / "at").open("wb", buffering=0) as at:
            while time.monotonic() < end:
                kind = fuzz_cases.kind_of(cases, turn)
                at.seek(0)
                at.write(f"--case {kind}:{options.seed}:{cases}".ljust(80).encode())
                signal.setitimer(signal.ITIMER_REAL, options.patience)  # SIGALRM ends the process
                fuzz_cases.run(kind, options.seed, cases, judge)
                cases += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
    for kind, n in sorted(judge.counts.items()):
        print(f"{kind:40} {n:>12,}")
    total = judge.counts.total()
    nearest = max(((share, name) for name, share in judge.nearest.items()), default=(0.0, ""))
    return {
        "executions": total, "cases": cases,
        "executions in a second of one core": round(total / max(time.process_time(), 1)),
        "nearest to its bound": f"{nearest[1]} {nearest[0]:.2f}",
    }  # fmt: skip


def by_workers(options: argparse.Namespace) -> dict[str, int | str]:
    """Runs one process for each worker, and adds up their figures."""
    folders = [options.folder / f"worker{k}" for k in range(options.workers)]
    common = ["--workers", "1", "--seconds", str(options.seconds), "--kinds", options.kinds]
    running = [
        subprocess.Popen([sys.executable, RUN, "fuzz", *common, "--seed", str(seed), "--folder", folder])
        for seed, folder in enumerate(folders, options.seed)
    ]
    if failed := sum(process.wait() != 0 for process in running):
        raise Wrong(f"{failed} workers failed")
    found = [json.loads((folder / "fuzz/figures.json").read_text()) for folder in folders]
    last = max(figures["nearest to its bound"].split()[::-1] for figures in found)
    return {name: sum(figures[name] for figures in found) for name in ("executions", "cases")} | {
        "nearest to its bound": " ".join(last[::-1])
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=lnrnn.cpu_info()["cores"])
    parser.add_argument("--kinds", default=",".join(fuzz_cases.TURN), help="of those in fuzz_cases.py")
    parser.add_argument("--case", metavar="KIND:SEED:NUMBER", help="only this case")
    parser.add_argument("--patience", type=float, default=60, help="seconds that a case may take")


PARTS = {"fuzz": fuzz}
