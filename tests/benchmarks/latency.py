"""Measures how long single steps of a stream take, from C and from Python.

Blocks of steps and blocks of an empty loop take turns. A round of the empty loop takes as long as a step, so
its percentiles show the delays by the machine itself. The limits are measured between the blocks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import cycle, islice, product

import numpy as np

import lnrnn
from c_table import Handle, table
from cases_rnn import MOST, OURS_ROUND, ROUNDED, TOLERANCE
from cells import CELLS
from machine import DOT_INT8, FMA_F32, READ, READ_AHEAD, Loop, library
from neighbours import Watch
from race import no_garbage_collection

STEPS, SECONDS, LEAST = 1_000_000, 1.3, 2_000  # a measurement has STEPS, or as many as SECONDS permit
BLOCK, WARM = 0.02, 10  # seconds of a block of steps; steps before it
QUICK = 50  # --bench-quick divides the number of steps
ROWS, CHECKED = 64, 8  # different inputs, in turn; the answer of this step is checked
PERCENTILES = {"least": 0, "p50": 50, "p99": 99, "p99.9": 99.9, "largest": 100}
# {weights: arguments of to_dtype}, and how many dot products of int8 numbers multiply a weight
WEIGHTS = {
    "float32": ({}, 0),
    "bfloat16": ({"dtype": "bfloat16"}, 0),
    "int8, 14 bits": ({"dtype": "int8"}, 2),
    "int8, 8 bits": ({"dtype": "int8", "activation_bits": 8}, 1),
}
# us of a step on Vollo FPGAs, mean and 99th percentile (https://vollo.myrtle.ai/25.1.2/benchmark-lstm.html),
# with bfloat16 weights and a linear layer of 32 outputs. 3x960 ran on a V80, all others on an IA-840F.
FPGA = {
    "2x128": (1.9, 2.0), "3x256": (3.0, 3.1), "3x480": (4.2, 4.4), "6x320": (4.3, 4.5), "3x960": (8.5, 8.7),
}  # fmt: skip


def view(title: str, columns: str, **where) -> dict:
    return {"title": f"{title} (microseconds)", "columns": columns.split(", "), "where": where}


# The tables of the page (record.py). "busy" marks columns that are measured while another core is busy.
STACKED, SINGLE, SOME = "layers x units", "inputs to units", ["float32", "int8, 14 bits"]
VIEWS = [
    view(
        "One step of an LSTM of layers x units from C, on an idle core",
        "network, weights, blocks, steps, least, p50, p99, p99.9, largest, empty p99, empty p99.9, "
        "empty largest, p99.9 over empty, FPGA mean, FPGA p99",
        kind=[STACKED],
    ),
    view(
        "The limits of these steps: reading the packed weights once, and multiplying them",
        "network, weights, kB, p50, reading, arithmetic, p50 over reading, p50 over the longer",
        kind=[STACKED], blocks=["all"],
    ),
    view(
        "These steps from Python, and while another core copies memory",
        "network, weights, blocks, Python p50, Python p99.9, busy p50, busy p99, busy p99.9, "
        "busy largest, busy empty p99.9, Python busy p50, Python busy p99.9",
        kind=[STACKED], weights=SOME,
    ),
    view(
        "One step of RTNeural's sizes",
        "network, weights, steps, least, p50, p99, p99.9, largest, empty p99.9, Python p50, Python p99.9, "
        "busy p99.9",
        kind=[SINGLE], weights=SOME, blocks=["all"],
    ),
]  # fmt: skip

# Copies more memory than the shared cache holds, on the CPU of its argument.
NEIGHBOUR = """
import os, sys, numpy
os.sched_setaffinity(0, {int(sys.argv[1])})
(a, b), worker = numpy.zeros((2, 1 << 24)), os.getppid()
print(flush=True)
while os.getppid() == worker:
    a[:] = b
"""


@contextmanager
def neighbour(cpu: int):
    command = [sys.executable, "-c", NEIGHBOUR, str(cpu)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            yield
        finally:
            process.kill()


def from_c(handle, x, y, n: int, turns: int = 0, empty: bool = False) -> np.ndarray:
    """Returns the ns of each of n steps, or of n rounds of an empty loop that counts to `turns`."""
    step, took = None if empty else table().lnrnn_handle_step, np.empty(n, np.int64)
    arrays = x.ctypes.data, *x.shape, y.ctypes.data
    if wrong := library().machine_steps(step, handle.pointer, *arrays, turns, n, took.ctypes.data):
        raise RuntimeError(f"a step returned the status {wrong}")
    return took


def from_python(stream, rows, y, n: int) -> np.ndarray:
    clock = time.perf_counter_ns
    stamps = [clock()]
    for x in islice(cycle(rows), n):
        stream(x, out=y)
        stamps.append(clock())
    return np.diff(stamps)


def reference(cell, rnn, rounding, x):
    """Returns the reference's y (T, H) for x (T, D), with rounded weights."""
    y, p = x[:, None], rnn.parameters()
    for k in range(rnn.num_layers):
        layer = {name.removesuffix(f"_l{k}"): v for name, v in p.items() if name.endswith(f"_l{k}")}
        y = cell.answer({n: rounding(v) if v.ndim == 2 else v for n, v in layer.items()}, y, norm=None)
    return y[:, 0]


def measured(steps, empty, prefix: str, quick: bool, limits) -> dict[str, float]:
    """Returns {prefix + percentile: us} of steps and of the empty loop, the number of steps, and the us of
    each limit, a median. limits: {name: function that returns seconds}"""
    steps(WARM)
    step, call, long = (float(np.median(f(200))) for f in (steps, empty, partial(empty, turns=10_000)))
    turns = max(0, round((step - call) / (long - call) * 10_000))
    total = int(min(STEPS, max(LEAST, SECONDS * 1e9 / step))) // (QUICK if quick else 1)
    block = max(50, min(total, int(BLOCK * 1e9 / step)))
    took, of_empty, found = [], [], {name: [] for name in limits}
    with no_garbage_collection():
        for _ in range(-(-total // block)):
            steps(WARM)
            took.append(steps(block))
            of_empty.append(empty(block, turns=turns))
            for name, seconds in limits.items():
                found[name].append(seconds() * 1e6)
    found = {name: float(np.median(us)) for name, us in found.items()}
    for kind, times in (("", took), ("empty ", of_empty)):
        us = np.percentile(np.concatenate(times), [*PERCENTILES.values()]) / 1e3
        found |= {f"{prefix}{kind}{name}": float(v) for name, v in zip(PERCENTILES, us, strict=True)}
    return found | {f"{prefix}steps": len(took) * block}


def limits_of(rnn, dots: int):
    """Returns functions that measure the seconds of reading packed weights, and of multiplying them."""
    size, p = rnn.packed_bytes, rnn.parameters().values()
    operations = 2 * sum(np.count_nonzero(v) for v in p if v.ndim == 2)
    reads, turns = [Loop(READ, size), Loop(READ_AHEAD, size)], max(1, int(2e7 // size))
    products = {Loop(FMA_F32): 1} | ({Loop(DOT_INT8): dots} if dots else {})

    def reading():
        for loop in reads:  # into the caches, where steps leave the weights
            loop.turn(1)
        return min(loop.turn(turns) / turns for loop in reads)

    def arithmetic():
        took = {loop: loop.turn(20) for loop in products}  # also sets `work`, 0 without such an instruction
        each = [k * took[loop] / loop.work.value for loop, k in products.items() if loop.work.value]
        return operations * min(each)

    return {"reading": reading, "arithmetic": arithmetic}


def step(threads, kind, cell, layers, inputs, hidden, cpu, quick):
    """Measures single steps of a network on one lane, with each type of weights, dense and sparse.

    cpu: the CPU of the busy neighbour, or None. Returns a record without its head."""
    x = np.random.default_rng(7).standard_normal((ROWS, inputs), np.float32)
    y, rows = np.empty((1, hidden), np.float32), []
    name = f"{layers}x{hidden}" if kind == STACKED else f"{cell} {inputs} to {hidden}"
    networks = {"all": getattr(lnrnn, cell)(inputs, hidden, num_layers=layers, norm=None, seed=0)}
    with suppress(ValueError):  # if blocks of 8 by 4 do not divide these weights
        networks["1/3"] = lnrnn.sparsify(networks["all"], 1 / 3)
    for (weights, (options, dots)), (blocks, full) in product(WEIGHTS.items(), networks.items()):
        rnn = full.to_dtype(**options) if options else full
        answer = partial(reference, CELLS[cell.lower()], full, x=x[:CHECKED])
        want, allowed = answer(np.asarray), TOLERANCE
        if options:
            with np.errstate(all="ignore"):  # int8's scale of an output whose blocks are all 0
                rounded = answer(ROUNDED[rnn.dtype])
            allowed = min(OURS_ROUND * float(np.abs(rounded - want).max()), MOST)
        stream, watch = rnn.stream(1), Watch(os.sched_getaffinity(0))
        row = {"kind": kind, "network": name, "weights": weights, "blocks": blocks}
        row |= zip(("FPGA mean", "FPGA p99"), FPGA.get(name, (None, None)), strict=True)
        with Handle(stream, 1) as handle:
            c, python = partial(from_c, handle, x, y), partial(from_python, stream, [*x[:, None]], y)
            limits, empty = limits_of(rnn, dots), partial(c, empty=True)
            for steps in (c, python):
                stream.reset()
                steps(CHECKED)
                if not (wrong := np.abs(y - want[-1]).max()) <= allowed:
                    raise AssertionError(f"{name}, {weights}: wrong by {wrong:.3g}, not {allowed:.3g}")
            for busy in ("", "busy ")[: 1 if cpu is None else 2]:
                with neighbour(cpu) if busy else nullcontext():
                    for prefix, steps in ((busy, c), (f"Python {busy}", python)):
                        row |= measured(steps, empty, prefix, quick, {} if prefix else limits)
        row |= {"kB": rnn.packed_bytes / 1e3, "others": watch.others()}
        row["p99.9 over empty"] = row["p99.9"] / row["empty p99.9"]
        row["p50 over reading"] = row["p50"] / row["reading"]
        row["p50 over the longer"] = row["p50"] / max(row["reading"], row["arithmetic"])
        rows.append(row)
    return {"columns": [*rows[0]], "rows": [[*row.values()] for row in rows], "views": VIEWS}
