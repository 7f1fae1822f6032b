"""A process that runs cases until its time is over: fuzz_worker.py SEED FIRST STEP SECONDS PLACE KINDS. The
campaign starts it, and reads what it says.

PLACE: a file of two int64, the case that runs now and when it began (monotonic nanoseconds): what is known of
a process that has crashed or hangs. On stdout a line of JSON a second, and one for each failure.
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

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the reference's products are small

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "support"), str(HERE.parents[2])]

import numpy as np  # noqa: E402

import fuzz_cases  # noqa: E402
from fuzz_judge import Judge  # noqa: E402

MEMORY = 2 << 30  # bytes of addresses beyond those of the process with all it imports
FAILURES = 10


def limit_memory() -> None:
    """What asks for more gets a MemoryError, which no case expects."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))


def say(**what) -> None:
    print(json.dumps(what), flush=True)


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
            say(failed=[kind, number], isa=fuzz_cases.isa_of(number), text=traceback.format_exc()[-3000:])
        done += 1
        number += step
        if time.monotonic() > next_report:
            next_report = time.monotonic() + 1
            say(counts=judge.counts, cases=done, nearest=judge.nearest, next=number)
            judge.counts.clear()
            done = 0
    say(counts=judge.counts, cases=done, nearest=judge.nearest, next=number)


if __name__ == "__main__":
    a = sys.argv
    main(int(a[1]), int(a[2]), int(a[3]), float(a[4]), a[5], a[6])
