"""A process that runs cases for some seconds: fuzz_worker.py SEED FIRST STEP SECONDS CURRENT KINDS.

run_fuzz.py starts the process and reads its output: a line of JSON every second, and one for each failure.
The file CURRENT has two int64: the number of the running case, and its start in monotonic nanoseconds.
run_fuzz.py reads the file if the process crashes or hangs.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import sys
import time
import traceback
import warnings
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the reference's products are too small for threads

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "support"), str(HERE.parents[2])]

import numpy as np  # noqa: E402

import fuzz_cases  # noqa: E402
from fuzz_judge import Judge  # noqa: E402

MEMORY = 2 << 30  # bytes of address space that cases may use
FAILURES = 10


def limit_memory() -> None:
    """Limits memory, so that a case that needs more fails with a MemoryError."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))


def report(**entries) -> None:
    print(json.dumps(entries), flush=True)


def main(seed: int, first: int, step: int, seconds: float, place: str, kinds: str) -> None:
    faulthandler.enable()
    warnings.simplefilter("error")
    turn = tuple(kinds.split(","))
    for kind in turn:
        __import__(f"fuzz_{kind}")
    if sys.platform == "linux":
        limit_memory()
    current = np.memmap(place, np.int64, "r+", shape=2)
    end, next_report, number, failures, done = time.monotonic() + seconds, 0.0, first, 0, 0
    judge = Judge()
    while time.monotonic() < end and failures < FAILURES:
        kind = fuzz_cases.kind_of(number // step, turn)
        current[:] = number, time.monotonic_ns()
        try:
            fuzz_cases.run(kind, seed, number, judge)
        except Exception:
            failures += 1
            report(failed=[kind, number], isa=fuzz_cases.isa_of(number), text=traceback.format_exc()[-3000:])
        done += 1
        number += step
        if time.monotonic() > next_report:
            next_report = time.monotonic() + 1
            report(counts=judge.counts, cases=done, nearest=judge.nearest)
            judge.counts.clear()
            done = 0
    report(counts=judge.counts, cases=done, nearest=judge.nearest)


if __name__ == "__main__":
    a = sys.argv
    main(int(a[1]), int(a[2]), int(a[3]), float(a[4]), a[5], a[6])
