"""Compares the times of a step that the cost model predicts with measured ones: docs/thread_model.md.

    python tests/benchmarks/cost_model.py [--shapes 100] [--seed 0]

The shapes are random, so the constants of the model are not fitted to them. Each shape runs on one
thread and with each partition of two threads, in turns; a time is the least of all calls. 100 shapes
take two minutes.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

import lnrnn
from neighbours import BUSY, Watch, wait_for_calm

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import engine_switches

CELLS = {"RNN": (1, 1), "LSTM": (4, 2), "GRU": (3, 2)}  # gates, products that the cell reads with layer norm
ONE, SEQUENCES, UNITS, ROWS = "one", "two, sequences", "two, units", "two, units and rows"
WAYS = {ONE: (1, 1, False), SEQUENCES: (2, 1, False), UNITS: (1, 2, False), ROWS: (1, 2, True)}
DTYPES = "float32", "bfloat16", "int8"
ROUNDS, TURN, AGAIN = 5, 0.008, 4
FAR = 1.3  # a step of CLOSE takes this much longer if the host has moved a core to another L3
CLOSE = lnrnn.RNN(128, 128, seed=0), np.random.default_rng(0).standard_normal((300, 1, 128), np.float32)


def shapes(number: int, seed: int) -> list[tuple]:
    """Returns random (cell, norm, B, D, H, T) of 5 to 1500 million multiply-adds, enough for two threads."""
    random, drawn = np.random.default_rng(seed), []

    def size(low, high):
        return round(math.exp(random.uniform(math.log(low), math.log(high))))

    while len(drawn) < number:
        cell, norm = str(random.choice(list(CELLS))), (None, "layer")[random.integers(2)]
        B = 1 if random.random() < 0.25 else size(2, 160)
        H = size(48, 2000)
        D, T = H if random.random() < 0.3 else size(16, 2 * H), size(8, 400)
        if 5e6 < T * B * CELLS[cell][0] * H * (H + D) < 1.5e9:
            drawn.append((cell, norm, B, D, H, T))
    return drawn


def least_time(model, x: np.ndarray, way: tuple, seconds: float) -> float:
    """Returns the us of a step with this partition."""
    engine_switches.set_partition(*way)
    threads, times, until = way[0] * way[1], [], time.perf_counter() + seconds
    while len(times) < 2 or time.perf_counter() < until:
        engine_switches.set_back_off(0)  # after a call that lost its core, calls would use one thread
        start = time.perf_counter()
        model(x, threads=threads)
        times.append(time.perf_counter() - start)
    engine_switches.set_partition()
    return 1e6 * min(times) / len(x)


def measure(model, x: np.ndarray, ways: dict, close: list[float]) -> dict[str, float] | None:
    """Returns {way: us of a step}, or None if other processes or moved cores disturbed all tries.

    close: the least time of CLOSE until now, in us a step."""
    for _ in range(AGAIN):
        watch, took, near = Watch({0, 1}), dict.fromkeys(ways, math.inf), []
        for turn in range(ROUNDS):
            for name in ways:
                took[name] = min(took[name], least_time(model, x, WAYS[name], TURN))
            if turn in (0, ROUNDS - 1):
                near.append(least_time(*CLOSE, WAYS[UNITS], 0.002))
        close[0] = min(close[0], *near)
        if watch.others() < BUSY and max(near) < FAR * close[0]:
            return took
        wait_for_calm({0, 1}, 1)
    return None


def work_of(cell: str, norm: str | None, B: int, D: int, H: int, dtype: str) -> tuple:
    """Returns the arguments of engine_switches for a step."""
    gates, sides = CELLS[cell]
    return B, D, H, gates, 1 if cell == "LSTM" and norm is None else sides, dtype, norm == "layer"


def predict(way: str, *step) -> float:
    """Returns the us of a step."""
    return engine_switches.step_time(*WAYS[way], *work_of(*step)) / 1e3


def measured(options) -> tuple[list[tuple], dict[str, str]]:
    """Returns points (weights, way, measured us, predicted us), and figures of the choices."""
    points, over, left_out, close = [], [], 0, [math.inf]
    for cell, norm, B, D, H, T in shapes(options.shapes, options.seed):
        x = np.random.default_rng(0).standard_normal((T, B, D), np.float32)
        ways = [name for name, way in WAYS.items() if way[0] <= B and (B > 1 or name != ROWS)]
        for dtype in DTYPES:
            model = getattr(lnrnn, cell)(D, H, norm=norm, seed=0).to_dtype(dtype)
            took = measure(model, x, ways, close)
            if not took:
                left_out += 1
                continue
            predicted = {way: predict(way, cell, norm, B, D, H, dtype) for way in ways}
            points += [(dtype, way, took[way], predicted[way]) for way in ways]
            chosen = engine_switches.partition(2, *work_of(cell, norm, B, D, H, dtype))[:3]
            over += [took[way] / min(took.values()) for way in ways if WAYS[way] == chosen]
            shown = (f"{way}: {short(took[way])} ({short(predicted[way])})" for way in ways)
            print(f"{cell} {norm} B={B} D={D} H={H} T={T} {dtype}", *shown, sep="  ", flush=True)
    return points, {
        "choice over best": f"{math.exp(np.log(over).mean()):.3f}x",
        "choice over best, worst": f"{max(over):.2f}x",
        "choices 5 % over best": f"{100 * (np.array(over) > 1.05).mean():.0f} %",
        "shapes": str(options.shapes),
        "left out": str(left_out),
    }


def summary(points: list[tuple]) -> list[list]:
    """Returns a row of the table for each type of weights and way, and one for all."""
    logs = defaultdict(list)
    for dtype, way, took, predicted in points:
        for key in ((dtype, way), ("all", "all")):
            logs[key].append(math.log(predicted / took))
    rows = []
    for (dtype, way), found in logs.items():
        errors = np.abs(found)
        within, worst = (errors <= math.log(1.15)).mean(), found[int(errors.argmax())]
        ratios = f"{math.exp(np.mean(found)):.2f}", f"{math.exp(worst):.2f}"
        rows.append([dtype, way, len(found), f"{100 * within:.0f} %", *ratios])
    order = [*DTYPES, "all"]
    return sorted(rows, key=lambda row: order.index(row[0]))


def short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def main() -> None:
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=how)
    parser.add_argument("--shapes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    points, figures = measured(parser.parse_args())
    print("weights, threads, points, within 15 %, mean ratio, worst", *summary(points), sep="\n")
    print(*figures.items(), sep="\n")


if __name__ == "__main__":
    main()
