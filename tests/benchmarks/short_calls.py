"""Measures short calls of 64 units by part, on one thread, and prints two tables in microseconds.

    python tests/benchmarks/short_calls.py [--inputs 64]

step: called from Python. Its parts are the new array for y, and other work of Python and Cython. In C they
are the driver (a step of one unit), and products and gates. limit: the time to read all weights once from the
cache that holds them. The least time of many calls counts.

The second table has a GRU's call on one step of 8 sequences, and its backward. small: the same call with one
unit and one input: arrays, Python, the plan and the driver. limit: the time of the multiply-adds.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1]), str(HERE.parent / "support")]

import lnrnn  # noqa: E402
from c_table import Handle, table  # noqa: E402
from machine import FMA_F32, READ, Loop, library  # noqa: E402

UNITS, ROWS, CALLS, TRIES = 64, 8, 50, 4000
COLUMNS = ("step", "array", "Python", "driver", "products, gates", "limit")


def least(calls: Callable[[], object]) -> float:
    """Returns the microseconds of one call, if `calls` makes CALLS of them."""
    times = []
    for _ in range(TRIES):
        start = time.perf_counter()
        calls()
        times.append(time.perf_counter() - start)
    return min(times) / CALLS * 1e6


def measured(rnn: lnrnn.Network) -> tuple[float, float, float]:
    """Returns the microseconds of a step, of one with `out`, and of one called from C."""
    stream, x = rnn.stream(), np.random.default_rng(0).standard_normal(rnn.input_size, np.float32)
    y = stream(x)

    def fresh() -> None:
        for _ in range(CALLS):
            stream(x)

    def given() -> None:
        for _ in range(CALLS):
            stream(x, None, out=y)

    with Handle(stream, 1) as handle:
        step = ctypes.c_void_p(table().lnrnn_handle_step), ctypes.c_void_p(handle.pointer)
        pointers = ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data)
        return least(fresh), least(given), least(lambda: library().machine_steps(*step, *pointers, CALLS))


def forward_and_backward(rnn: lnrnn.Network) -> list[float]:
    """Returns the microseconds of a call on one step of ROWS sequences, and of its backward."""
    x, gy = (
        np.random.default_rng(seed).standard_normal((1, ROWS, width), np.float32)
        for seed, width in enumerate((rnn.input_size, rnn.hidden_size))
    )
    tape = rnn.forward_train(x)[2]

    def forward() -> None:
        for _ in range(CALLS):
            rnn(x)

    def backward() -> None:
        for _ in range(CALLS):
            rnn.backward(tape, gy)

    return [least(forward), least(backward)]


def print_calls(inputs: int) -> None:
    """Prints the second table."""
    print("\n| | call | small | products, gates | limit |")
    for norm in (None, "layer"):
        rnn = lnrnn.GRU(inputs, UNITS, norm=norm, seed=0)
        multiply_adds = ROWS * (rnn.weight_ih_l0.size + rnn.weight_hh_l0.size)
        small = forward_and_backward(lnrnn.GRU(1, 1, norm=norm, seed=0))
        for k, call in enumerate(forward_and_backward(rnn)):
            limit = 2 * multiply_adds * (1 + k) / Loop(FMA_F32).rate() * 1e6
            name = f"{'LN-' if norm else ''}GRU{', backward' if k else ''}"
            print(f"| {name} | {call:.2f} | {small[k]:.2f} | {call - small[k]:.2f} | {limit:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--inputs", type=int, default=64)
    inputs = parser.parse_args().inputs
    lnrnn.set_num_threads(1)
    print("| | " + " | ".join(COLUMNS) + " |")
    for norm in (None, "layer"):
        for cell in (lnrnn.RNN, lnrnn.GRU, lnrnn.LSTM):
            rnn = cell(inputs, UNITS, norm=norm, seed=0)
            size = rnn.weight_ih_l0.nbytes + rnn.weight_hh_l0.nbytes
            fresh, given, in_c = measured(rnn)
            driver = measured(cell(1, 1, norm=None, seed=0))[2]
            limit = size / Loop(READ, size).rate() * 1e6
            parts = fresh, fresh - given, given - in_c, driver, in_c - driver, limit
            name = f"{'LN-' if norm else ''}{cell.__name__}"
            print(f"| {name} | " + " | ".join(f"{part:.2f}" for part in parts) + " |")
    print_calls(inputs)


if __name__ == "__main__":
    main()
