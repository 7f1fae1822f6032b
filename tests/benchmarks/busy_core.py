"""Measures calls on two threads while another process uses the second core.

    python tests/benchmarks/busy_core.py [--seconds 4] [--pattern LSTM] [--idle]

Each call follows a rest of 5 or 60 ms, in which the threads go to sleep. Calls on one and two threads take
turns. The columns are ms of a call: the median on one thread, then median and 90th percentile on two threads
of each kind of team. The ratio is the median of one thread divided by that of two; the goal is 0.95 or more.
The bits of answers are compared first. --idle: without the other process.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

import lnrnn

SHAPES = (("LSTM", 1, 512), ("LSTM", 17, 384), ("GRU", 48, 640), ("RNN", 8, 256))  # cell, batch, units
STEPS = 100
RESTS = 0.005, 0.06
SPIN = "import os\nos.sched_setaffinity(0, [{}])\nparent = os.getppid()\nwhile os.getppid() == parent: pass"


@contextmanager
def spinner(cpu: int) -> Iterator[None]:
    """Runs the body while another process uses all of this CPU that it gets."""
    process = subprocess.Popen([sys.executable, "-c", SPIN.format(cpu)], stdin=subprocess.DEVNULL)
    try:
        time.sleep(0.3)  # until the process has started
        yield
    finally:
        process.kill()
        process.wait()


def measure(model, x, rest: float, seconds: float) -> dict[str, list[float]]:
    """Returns the ms of each call, by the kind of team; "one" is one thread."""
    kinds = ("one", *lnrnn._core.team_list())
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for kind in kinds:
            if kind != "one":
                lnrnn._core.use_team(kind)
            time.sleep(rest)
            start = time.perf_counter()
            model(x, threads=1 if kind == "one" else 2)
            times[kind].append(1e3 * (time.perf_counter() - start))
    return times


def run(options) -> None:
    rng = np.random.default_rng(0)
    teams = lnrnn._core.team_list()
    print(f"{'':24s} {'one':>8s}", *(f"{t:>9s} {'90 %':>8s} {'ratio':>6s}" for t in teams))
    for cell, batch, units in SHAPES:
        name = f"{cell} {batch}x{units}"
        if options.pattern not in name:
            continue
        x = rng.standard_normal((STEPS, batch, units)).astype(np.float32)
        model = getattr(lnrnn, cell)(units, units, seed=0)
        want = model(x, threads=1)[0].tobytes()
        for team in teams:
            lnrnn._core.use_team(team)
            if any(model(x, threads=2)[0].tobytes() != want for _ in range(5)):
                raise SystemExit(f"{name}: the bits of {team} differ")
        for rest in RESTS:
            times = measure(model, x, rest, options.seconds)
            one = float(np.median(times["one"]))
            row = f"{name:12s} rest {1e3 * rest:3.0f} ms {one:8.2f}"
            for team in teams:
                middle, slow = np.quantile(times[team], [0.5, 0.9])
                row += f" {middle:9.2f} {slow:8.2f} {one / middle:6.2f}"
            print(row, flush=True)


def main() -> None:
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=how)
    parser.add_argument("--seconds", type=float, default=4, help="for each row (default: 4)")
    parser.add_argument("--pattern", default="", help="only rows whose name contains this")
    parser.add_argument("--idle", action="store_true")
    options = parser.parse_args()
    if options.idle:
        run(options)
    else:
        with spinner(sorted(os.sched_getaffinity(0))[-1]):
            run(options)


if __name__ == "__main__":
    main()
