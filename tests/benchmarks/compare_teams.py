"""Compares OpenMP's threads with lnrnn's own pool. Both take turns in one process.

    python tests/benchmarks/compare_teams.py [--threads 2] [--rounds 40] [--pattern LSTM]

All threads rest between two turns, because both kinds spin after a call. A turn is several calls ("close"),
or calls with pauses of 5 ms, in which threads go to sleep ("apart"). The bits of answers are compared first.
The columns are microseconds of a call, median and minimum, and the ratio of the pool's time to OpenMP's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

import lnrnn
from compare_builds import REST, difference

APART = 0.005
CALLS = {"close": 12, "apart": 4}


def cases() -> Iterator[tuple[str, Callable[[], object]]]:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    for rows, n in ((256, 256), (1024, 1024), (8192, 1024)):
        x = normal(rows, n)
        yield f"layer_norm {rows}x{n}", partial(lnrnn.layer_norm, x, n, out=np.empty_like(x))
    sizes = ("RNN", 1, 512), ("RNN", 1, 1024), ("LSTM", 1, 512), ("LSTM", 8, 256), ("GRU", 64, 256)
    for cell, batch, units in sizes:
        model = getattr(lnrnn, cell)(units, units, seed=0)
        yield f"{cell} T100 B{batch} H{units}", partial(model, normal(100, batch, units))
    stream = lnrnn.RNN(1024, 1024, seed=0).stream()
    yield "RNN stream H1024", partial(stream, normal(1, 1024))
    x = normal(20, 64, 256)
    model = lnrnn.LSTM(256, 256, seed=0)

    def train() -> tuple[np.ndarray, ...]:
        y, _, tape = model.forward_train(x)
        return model.backward(tape, y)[0], y

    yield "LSTM T20 B64 H256 training", train


def turn(call: Callable[[], object], how: str) -> list[float]:
    """Returns the seconds of each call of a turn, without the first."""
    times = []
    for _ in range(CALLS[how] + 1):
        if how == "apart":
            time.sleep(APART)
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times[1:]


def main() -> None:
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=how)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--pattern", default="", help="only rows whose name contains this")
    options = parser.parse_args()
    teams = lnrnn._core.team_list()
    if sorted(teams) != ["openmp", "pthread"]:
        raise SystemExit(f"this build has only {', '.join(teams) or 'one thread'}")
    lnrnn.set_num_threads(options.threads)
    print(" " * 34, *[f"{'openmp':>9s} {'pthread':>9s} {'ratio':>6s}"] * 2)
    for name, call in cases():
        if options.pattern not in name:
            continue
        answers = []
        for team in teams:
            lnrnn._core.use_team(team)
            if "stream" not in name:
                answers.append(call())
        if answers and difference(*answers):
            raise SystemExit(f"{name}: the answers differ")
        for how in CALLS:
            times: dict[str, list[float]] = {team: [] for team in teams}
            for number in range(options.rounds):
                for team in teams if number % 2 else teams[::-1]:
                    lnrnn._core.use_team(team)
                    time.sleep(REST)
                    times[team] += turn(call, how)
            row = f"{name:28s} {how:5s}"
            for q in (0.5, 0.0):
                openmp, pool = (1e6 * float(np.quantile(times[team], q)) for team in ("openmp", "pthread"))
                row += f" {openmp:9.1f} {pool:9.1f} {pool / openmp:6.2f}"
            print(row, flush=True)


if __name__ == "__main__":
    main()
