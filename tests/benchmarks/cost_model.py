"""Compares the times of a step that the cost model predicts with measured ones: docs/thread_model.md.

    python tests/benchmarks/cost_model.py [--seconds 0.2] [--pattern "LSTM 17"] [--json FILE]
    python tests/benchmarks/cost_model.py --predict zen4 [--json FILE]      without measuring: 2 to 64 cores

A time is the least of all calls in this many seconds. With float32 weights all partitions of two threads are
measured, with others one thread and the chosen partition. All takes two minutes.
--json writes the record for results/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import sys
import time
from pathlib import Path

import numpy as np

import lnrnn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import engine_switches
from helpers import SLOW_L3, using_caches

CELLS = {"RNN": (1, 1), "LSTM": (4, 2), "GRU": (3, 2)}  # gates, products that the cell reads
SIZES = (  # batch, units
    (1, 128), (1, 384), (1, 1024), (3, 1024), (8, 256), (8, 384), (17, 384), (17, 1024), (17, 2048),
    (24, 640), (48, 640), (64, 256),
)  # fmt: skip
WAYS = {"1 x 1": (1, 1, False), "2 x 1": (2, 1, False), "1 x 2": (1, 2, False), "1 x 2 r": (1, 2, True)}
COLUMNS = ["cell, B, H", "one thread", "2 x 1", "1 x 2", "1 x 2 r", "chosen"]
NARROW = ["bfloat16", "bfloat16, two threads", "int8", "int8, two threads"]
PREDICTED = (1, 512), (1, 1024), (8, 1024), (17, 384), (24, 1536), (64, 640), (256, 512)
CORES = 2, 4, 8, 16, 32, 64


def least_time(model, x: np.ndarray, threads: int, seconds: float) -> float:
    """Returns the us of a step."""
    model(x, threads=threads)
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < until:
        engine_switches.set_back_off(0)  # after a call that lost its core, calls would use one thread
        start = time.perf_counter()
        model(x, threads=threads)
        times.append(time.perf_counter() - start)
    return 1e6 * min(times) / len(x)


def measure(cell: str, batch: int, units: int, seconds: float) -> tuple[dict, list[str]]:
    """Returns {(dtype, way): (measured, predicted)} in us of a step, and the ways that the model chooses."""
    steps = max(20, min(200, 10**8 // (batch * units * units * CELLS[cell][0])))
    x = np.random.default_rng(0).standard_normal((steps, batch, units)).astype(np.float32)
    times, choices = {}, []
    for dtype in ("float32", "bfloat16", "int8"):
        model = getattr(lnrnn, cell)(units, units, seed=0).to_dtype(dtype)
        shape = (batch, units, units, *CELLS[cell], dtype)
        chosen = engine_switches.partition(2, *shape)[:3]
        choices += [name for name, way in WAYS.items() if way == chosen]
        for name, way in WAYS.items():
            one = name == "1 x 1" or way == chosen
            if way[0] > batch or not (one or dtype == "float32") or (way[2] and batch == 1):
                continue
            engine_switches.set_partition(*way)
            took = least_time(model, x, way[0] * way[1], seconds)
            times[dtype, name] = took, engine_switches.step_time(*way, *shape) / 1e3
        engine_switches.set_partition()
    return times, choices


def short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def measured(options) -> dict:
    """Returns the record of measured and predicted times."""
    rows, ratios, over = [], [], []
    for cell in CELLS:
        for batch, units in SIZES:
            if options.pattern not in f"{cell} {batch}x{units}":
                continue
            times, choices = measure(cell, batch, units, options.seconds)
            asked = [("float32", name) for name in WAYS]
            for dtype, chosen in zip(("bfloat16", "int8"), choices[1:], strict=True):
                asked += [(dtype, "1 x 1"), (dtype, chosen)]
            cells = [f"{short(times[k][0])} ({short(times[k][1])})" if k in times else "-" for k in asked]
            rows.append([f"{cell}, {batch}, {units}", *cells[:4], choices[0], *cells[4:]])
            print(*rows[-1], sep="  ", flush=True)
            ratios += [predicted / took for took, predicted in times.values()]
            two = [times["float32", name][0] for name in list(WAYS)[1:] if ("float32", name) in times]
            over.append(times["float32", choices[0]][0] / min(two))
    logs = np.log(ratios)
    figures = {
        "choice over best": f"{math.exp(np.log(over).mean()):.3f}x",
        "choice over best, worst": f"{max(over):.2f}x",
        "predicted over measured": f"{math.exp(logs.mean()):.2f}",
        "error": f"{100 * (math.exp(np.abs(logs).mean()) - 1):.0f} %",
        "within 15 %": f"{100 * (np.abs(logs) <= math.log(1.15)).mean():.0f} %",
        "points": str(len(ratios)),
    }
    return {
        "title": "Measured (predicted) times of each partition, float32 weights if no other type is named",
        "unit": "microseconds a step",
        "figures": figures,
        "columns": [*COLUMNS, *NARROW],
        "rows": rows,
    }


def predicted(machine: str) -> dict:
    """Returns the record of predicted gains for more cores."""
    if machine == "xeon":
        engine_switches.set_cpu_model(engine_switches.CpuModel(**SLOW_L3[0]))
    rows = []
    with using_caches(SLOW_L3[1] if machine == "xeon" else None):
        for cell in ("RNN", "LSTM"):
            for batch, units in PREDICTED:
                shape = (batch, units, units, *CELLS[cell])
                one = engine_switches.step_time(1, 1, False, *shape)
                ways = [engine_switches.partition(n, *shape) for n in CORES]
                gains = [f"{one / took:.1f}x, {groups} x {team}" for groups, team, _, took in ways]
                rows.append([f"{cell}, B = {batch}, H = {units}", short(one / 1e3), *gains])
    return {
        "title": "Predicted gain over one thread, and groups x units, by cores",
        "columns": ["shape", "one, us a step", *map(str, CORES)],
        "rows": rows,
    }


def main() -> None:
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=how)
    parser.add_argument("--seconds", type=float, default=0.2, help="for each time")
    parser.add_argument("--pattern", default="", help="only rows whose name contains this")
    parser.add_argument("--predict", choices=("zen4", "xeon"), help="zen4: the model of this machine")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    record = predicted(options.predict) if options.predict else measured(options)
    print(*(record["rows"] if options.predict else record["figures"].items()), sep="\n")
    if options.json:
        whole = {"carried_over": True, "machine": "", "kernels": None, "commit": None, "versions": {}}
        whole |= {"date": datetime.date.today().isoformat(), **record}
        options.json.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
