"""What a call needs besides its arguments and results, packed weights and workspace, against the weights.

    python tests/benchmarks/memory.py           a few seconds; Linux

Each row is a process of its own. Its resident memory is read before a network's first call, its peak after
it; the results are taken off. The parameters as they were given are kept too; they are there before.
"""

from __future__ import annotations

import ctypes
import multiprocessing
from pathlib import Path

import numpy as np

import lnrnn

MIB = 1 << 20
PR_SET_THP_DISABLE = 41
SIZES = [(1, 128, 100), (1, 1024, 100), (1, 1024, 10_000), (8, 512, 1000), (64, 512, 100), (64, 1024, 100)]


def bound(weights: int) -> float:
    """What packed weights and workspace should take together at most."""
    return 1.1 * weights + 2 * MIB


def _resident(name: str) -> int:
    """Bytes: VmRSS, resident now, or VmHWM, the most since it was reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def _grown(call) -> int:
    """Bytes by which memory grew for a call at its peak, less its results."""
    ctypes.CDLL(None).malloc_trim(0)  # or the call is served from what others have given back
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _resident("VmRSS")
    y, h = call()
    return _resident("VmHWM") - before - sum(a.nbytes for a in (y, *(h if isinstance(h, tuple) else (h,))))


def measure(cell, batch, hidden, steps, dtype, threads) -> tuple[int, int, int]:
    """Bytes: of the weights, of the packed weights, and growth of the first call."""
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)  # huge pages count 2 MiB for the first byte used
    lnrnn.set_num_threads(threads)
    make = getattr(lnrnn, cell)
    x = np.random.default_rng(0).standard_normal((steps, batch, hidden), np.float32)
    make(8, 64)(np.ones((5, 70, 8), np.float32))  # what the first call of a process loads and starts
    model = make(hidden, hidden).to_dtype(dtype)
    grown = _grown(lambda: model(x))
    elements = model.weight_ih_l0.size + model.weight_hh_l0.size
    return elements * {"float32": 4, "bfloat16": 2, "int8": 1}[dtype], model.packed_bytes, grown


def main():
    line = "{:<5} {:<9} {:>3} {:>5} {:>6} {:>8}  {:>8} {:>8} {:>8} {:>8}  {}"
    print(line.format("cell", "weights", "B", "H", "T", "threads", "MiB", "packed", "call", "allowed", ""))
    worst = 0.0
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for cell in ("RNN", "LSTM", "GRU"):
            narrow = [(1, 1024, 100, dtype, 1) for dtype in ("bfloat16", "int8")]
            for case in [(*size, "float32", threads) for size in SIZES for threads in (1, 2)] + narrow:
                weights, packed, first = pool.apply(measure, (cell, *case))
                batch, hidden, steps, dtype, threads = case
                allowed = bound(weights)
                worst = max(worst, first / allowed)
                sizes = [f"{n / MIB:.2f}" for n in (weights, packed, first, allowed)]
                verdict = "" if first <= allowed else "TOO MUCH"
                print(line.format(cell, dtype, batch, hidden, steps, threads, *sizes, verdict), flush=True)
    print(
        f"packed weights + workspace should take at most 1.1 x the weights + 2 MiB: "
        f"{'they do' if worst <= 1 else 'THEY DO NOT'}, at most {worst:.2f} of that"
    )


if __name__ == "__main__":
    main()
