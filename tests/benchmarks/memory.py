"""Measures memory: packed weights and workspace of a call, and the peak of a training step.

    python tests/benchmarks/memory.py           a few seconds; Linux

Each row is measured in a new process: the resident memory before a network's first call, and the peak after
it. For a call, the bytes of results are subtracted. The bound of a training step is a multiple of its tape
(`tape_bytes`), arguments and results. A training step with T = 1 runs before the measured one."""

from __future__ import annotations

import ctypes
import multiprocessing
from pathlib import Path

import numpy as np

import lnrnn

MIB = 1 << 20
PR_SET_THP_DISABLE = 41
CELLS = ("RNN", "LSTM", "GRU")
TRAINING = 1.1  # the bound of a training step, as a multiple of its tape, arguments and results
SIZES = [(1, 128, 100), (1, 1024, 100), (1, 1024, 10_000), (8, 512, 1000), (64, 512, 100), (64, 1024, 100)]

TRAINED = [(8, 256, 100), (32, 256, 1000), (64, 512, 100), (256, 512, 50)]


def bound(weights: int) -> float:
    """Returns the largest allowed size of packed weights and workspace together, in bytes."""
    return 1.1 * weights + 2 * MIB


def _resident(name: str) -> int:
    """Returns bytes of resident memory. name: "VmRSS" for now, "VmHWM" for the peak since it was reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def _bytes(result) -> int:
    if isinstance(result, np.ndarray):
        return result.nbytes
    return sum(map(_bytes, result.values() if isinstance(result, dict) else result))


def _grown(call) -> tuple[int, int]:
    """Returns by how many bytes memory grew at the peak of a call, and the bytes of its results."""
    ctypes.CDLL(None).malloc_trim(0)  # otherwise the call may reuse memory that is free but resident
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _resident("VmRSS")
    results = call()
    return _resident("VmHWM") - before, _bytes(results)


def _prepare(batch, hidden, steps, threads) -> np.ndarray:
    """Makes small calls, which load libraries and start threads. Returns x (T, B, H)."""
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)  # a huge page counts as 2 MiB from its first byte
    lnrnn.set_num_threads(threads)
    for cell in (lnrnn.RNN, lnrnn.LSTM, lnrnn.GRU):
        model, x = cell(8, 64), np.ones((5, 70, 8), np.float32)
        model(x)
        y, _, tape = model.forward_train(x)
        model.backward(tape, y)
    return np.random.default_rng(0).standard_normal((steps, batch, hidden), np.float32)


def measure(cell, batch, hidden, steps, dtype, threads) -> tuple[int, int, int]:
    """Returns three numbers of bytes: of the weights, of the packed weights, and of all memory that the first
    call needs without its results.
    """
    x = _prepare(batch, hidden, steps, threads)
    model = getattr(lnrnn, cell)(hidden, hidden).to_dtype(dtype)
    grown, results = _grown(lambda: model(x))
    elements = model.weight_ih_l0.size + model.weight_hh_l0.size
    weights = elements * {"float32": 4, "bfloat16": 2, "int8": 1}[dtype]
    return weights, model.packed_bytes, grown - results


def measure_training(cell, batch, hidden, steps, threads) -> tuple[int, int, int]:
    """Returns three numbers of bytes: of the tape, of arguments and results, and of a training step's peak
    with its arguments.
    """
    x = _prepare(batch, hidden, steps, threads)
    model = getattr(lnrnn, cell)(hidden, hidden)

    def step(x, gy):
        y, h, tape = model.forward_train(x)
        return y, h, *model.backward(tape, gy)

    step(x[:1], x[:1])
    gy = x.copy()
    arguments = _bytes((x, gy, model.parameters()))
    grown, results = _grown(lambda: step(x, gy))
    return model.tape_bytes(steps, batch), arguments + results, grown + arguments


def table(columns: str, rows) -> float:
    """Prints a row for each (cells, bytes measured ..., permitted). Returns max(measured / permitted)."""
    widths = [max(8, len(name)) for name in columns.split()]
    print(*map(str.rjust, columns.split(), widths))
    worst = 0.0
    for cells, *measured, allowed in rows:
        worst = max(worst, measured[-1] / allowed)
        shown = [*map(str, cells), *(f"{n / MIB:.2f}" for n in (*measured, allowed))]
        print(*map(str.rjust, shown, widths), "TOO MUCH" * (measured[-1] > allowed), flush=True)
    return worst


def calls(pool):
    narrow = [(1, 1024, 100, dtype, 1) for dtype in ("bfloat16", "int8")]
    every = [(*size, "float32", threads) for size in SIZES for threads in (1, 2)]
    for case in [(cell, *case) for cell in CELLS for case in every + narrow]:
        weights, packed, first = pool.apply(measure, case)
        yield case, weights, packed, first, bound(weights)


def steps(pool):
    for case in [(cell, *size, threads) for cell in CELLS for size in TRAINED for threads in (1, 2)]:
        tape, given, peak = pool.apply(measure_training, case)
        yield case, tape, given, peak, TRAINING * (tape + given)


def main():
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        of_calls = table("cell B H T weights threads MiB packed call allowed", calls(pool))
        of_steps = table("training B H T threads tape args+res peak allowed", steps(pool))
    print(f"packed weights + workspace, over 1.1 x the weights + 2 MiB: {of_calls:.2f} at most")
    print(f"a training step, over {TRAINING} x (tape + arguments + results): {of_steps:.2f} at most")


if __name__ == "__main__":
    main()
