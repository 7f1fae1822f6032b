"""Checks that bits do not depend on threads: runs digest.py in processes with different settings.

Settings are the number of threads (1 to 7), OpenMP's threads or lnrnn's, the cores of the affinity mask,
OpenMP's environment, and the sizes of caches. As a control, some instruction sets must have other digests.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import lnrnn
from helpers import available_isas
from outcome import Wrong

ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {},
    {"OMP_PROC_BIND": "true"},
    {"OMP_PROC_BIND": "spread", "OMP_PLACES": "cores"},
    {"OMP_WAIT_POLICY": "passive"},
    {"OMP_WAIT_POLICY": "active"},
    {"OMP_DYNAMIC": "true"},
    {"OMP_THREAD_LIMIT": "2"},
    {"OMP_SCHEDULE": "dynamic,1", "OMP_NESTED": "true"},
)
CACHES = (("16384", "262144", "1048576"), ("65536", "4194304", "67108864"))
# Code that runs digest.py on one core, because not every system has taskset.
PINNED = "import os, runpy, sys; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); "
PINNED += "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


def settings(quick: bool) -> list[tuple[str, list[str], dict[str, str], list[str]]]:
    """Returns settings: (name, words before the script's name, environment, words after it).

    The first setting has one thread.
    """
    few = ["--every", "100"] if quick else []
    every: list[tuple[str, list[str], dict[str, str], list[str]]] = [("1 thread", [], {}, ["--threads", "1"])]
    for team in lnrnn._core.team_list():
        kind = {"LNRNN_TEAM": team}
        for threads in (3,) if quick else range(2, 8):
            every.append((f"{team}, {threads} threads", [], kind, ["--threads", str(threads)]))
        if quick:
            continue
        for environment in ENVIRONMENTS[1:]:
            named = " ".join(f"{name}={value}" for name, value in environment.items())
            every.append((f"{team}, 3 threads, {named}", [], {**kind, **environment}, ["--threads", "3"]))
        if hasattr(os, "sched_setaffinity"):
            every.append((f"{team}, 3 threads, one core", ["-c", PINNED], kind, ["--threads", "3"]))
        for caches in CACHES:
            words = ["--threads", "2", "--caches", *caches]
            every.append((f"{team}, 2 threads, caches {' '.join(caches)}", [], kind, words))
    return [(name, before, environment, [*after, *few]) for name, before, environment, after in every]


def digests(
    isas: list[str], before: list[str], environment: dict[str, str], after: list[str]
) -> dict[str, list[str]]:
    """Returns the lines of digest.py for each instruction set."""
    chosen = [word for isa in isas for word in ("--isa", isa)]
    command = [sys.executable, *before, str(Path(__file__).with_name("digest.py")), *chosen, *after]
    free = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "LNRNN_"))}
    done = subprocess.run(command, env={**free, **environment}, stdout=subprocess.PIPE, text=True, check=True)
    lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
    return {isa: [rest for name, rest in lines if name == isa] for isa in isas}


def digested(options: argparse.Namespace) -> dict[str, int | str]:
    isas, wrong = options.isa or available_isas(), []
    (_, *first), *others = settings(options.quick)
    want = digests(isas, *first)
    for name, *setting in others:
        got = digests(isas, *setting)
        wrong += [
            f"{name}: {isa} {a}" for isa in isas for a, b in zip(got[isa], want[isa], strict=True) if a != b
        ]
    if wrong:
        raise Wrong("\n".join(wrong))
    of_isa = {isa: hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] for isa, lines in want.items()}
    if len(isas) > 1 and len(set(of_isa.values())) == 1:
        raise Wrong("the digests of all instruction sets are equal, though they round differently")
    return {"settings": 1 + len(others), "configurations": len(want[isas[0]])} | of_isa


PARTS = {"digest": digested}
