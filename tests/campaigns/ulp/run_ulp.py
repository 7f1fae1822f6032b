"""Computes exp, tanh and sigmoid of every float32, on every instruction set of this machine.

Prints the largest error of each function and instruction set, in units in the last place (ULP), and its
input. Also prints which instruction sets give the same bits. Fails if a limit in `broken` does not hold.
ulp_judge.c has the reference, its own error, and the definition of a ULP.
"""

from __future__ import annotations

import argparse
import ctypes
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import lnrnn
from compilers import ISAS, built, native_compiler
from helpers import available_isas, isa_families, using_isa, using_threads
from lnrnn import _core
from outcome import Wrong

HERE = Path(__file__).parent
FUNCTIONS = {"exp": _core.Function.EXP, "tanh": _core.Function.TANH, "sigmoid": _core.Function.SIGMOID}
BLOCK = 1 << 16
# {function: (largest error in ULP, least share of results that are the nearest float)}, measured on all
# floats and rounded up slightly. README.md promises 2 ULP.
LIMITS = {"exp": (1.2, 0.995), "tanh": (1.9, 0.996), "sigmoid": (2.0, 0.97)}
MANY = 1_000_000  # with fewer inputs, the share of nearest results is not judged
REFERENCE_LIMIT = 2.0**-22  # largest error of the reference in ULP: NEAR_TIE of ulp_judge.c
REFERENCE_EVERY = 4096  # for every 4096th input the reference is compared with long double

# Instruction sets without a fused multiply-add, which share their bits. All others share other bits.
NOT_FUSED = ("sse2", "scalar")


class Verdict(ctypes.Structure):
    """The struct `verdict` of ulp_judge.c."""

    COUNTS = (
        "inputs", "nearest", "near_ties", "nans", "nan_wrong", "infinity_wrong", "out_of_range",
        "special_wrong",
    )  # fmt: skip
    _fields_ = [
        ("largest", ctypes.c_double),
        ("input", ctypes.c_uint32),
        ("result", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in COUNTS),
    ]


@dataclass
class Swept:
    """The result of a sweep of one function."""

    verdicts: dict[str, Verdict]  # by instruction set
    differing: dict[tuple[str, str], int]  # {two instruction sets: how many inputs have different bits}
    reference_error: float = 0.0  # in ULP, against long double

    def same(self) -> list[list[str]]:
        """Returns groups of instruction sets whose results have the same bits."""
        groups: list[list[str]] = []
        for name in self.verdicts:
            group = next((g for g in groups if not self.differing[g[0], name]), None)
            if group is None:
                groups.append(group := [])
            group.append(name)
        return groups


def judge() -> ctypes.CDLL:
    """Compiles and loads ulp_judge.c for the best instruction set of this machine."""
    best = isa_families()[0]
    flags = ["-O3", "-fno-trapping-math", "-shared", "-fPIC", *ISAS[best][2]]
    path = built(f"ulp-judge-{platform.machine()}-{best}", native_compiler(), HERE / "ulp_judge.c", flags)
    library = ctypes.CDLL(str(path))
    library.judge_different.restype = ctypes.c_uint64
    library.judge_reference_error.restype = ctypes.c_double
    return library


Function = Callable[[str, np.ndarray, np.ndarray], None]  # (name of a function, x, y): y = function(x)


def native(isa: str) -> Function:
    """Returns a function that computes on an instruction set of this machine, and leaves it selected."""

    def run(function: str, x: np.ndarray, y: np.ndarray) -> None:
        _core.use_isa(isa)
        getattr(lnrnn, function)(x, out=y)

    return run


def address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def sweep(
    function: str, sets: dict[str, Function], step: int = 1, *, first: int = 0, last: int = 1 << 32
) -> Swept:
    """Judges `function` of the floats with the bits first, first + step, ... < last, on each of the sets."""
    library, number = judge(), int(FUNCTIONS[function])
    names = list(sets)
    swept = Swept({name: Verdict() for name in names}, {(a, b): 0 for a in names for b in names})
    count = -(-(last - first) // step)
    most = min(count, BLOCK)
    x, nearest = np.empty(most, np.float32), np.empty(most, np.float32)
    truth, per_ulp, errors = np.empty((3, most))
    tie = np.empty(most, np.uint8)
    results = {name: np.empty(most, np.float32) for name in names}
    reference = [address(a) for a in (x, truth, per_ulp, nearest, tie)]
    for start in range(0, count, BLOCK):
        n = min(BLOCK, count - start)
        size = ctypes.c_size_t(n)
        bits = ctypes.c_uint32(first + start * step)
        library.judge_inputs(bits, ctypes.c_uint32(step), size, reference[0])
        library.judge_reference(number, size, *reference)
        some = [np.ascontiguousarray(a[: n : max(1, REFERENCE_EVERY // step)]) for a in (x, truth, per_ulp)]
        error = library.judge_reference_error(number, ctypes.c_size_t(some[0].size), *map(address, some))
        swept.reference_error = max(swept.reference_error, error)
        blocks: dict[str, Verdict] = {}
        for k, name in enumerate(names):
            sets[name](function, x[:n], results[name][:n])
            for other in names[:k]:
                different = library.judge_different(size, address(results[other]), address(results[name]))
                swept.differing[other, name] += different
                swept.differing[name, other] += different
                if not different and name not in blocks:
                    blocks[name] = blocks[other]
            if name not in blocks:
                blocks[name] = Verdict()
                rest = address(results[name]), address(errors), ctypes.byref(blocks[name])
                library.judge_compare(number, size, *reference, *rest)
            library.judge_add(ctypes.byref(swept.verdicts[name]), ctypes.byref(blocks[name]))
    return swept


def broken(function: str, swept: Swept) -> list[str]:
    wrong = []
    if not swept.reference_error < REFERENCE_LIMIT:
        wrong.append(f"{function}: the reference is wrong by {swept.reference_error:.3g} ULP")
    for name, v in swept.verdicts.items():
        where = f"{function} on {name}"
        most, part = LIMITS[function]
        if not v.largest <= most:
            wrong.append(f"{where}: {v.largest:.4f} ULP; {reproducer(function, name, v.input)}")
        if v.inputs >= MANY and v.nearest + v.near_ties < part * v.inputs:
            wrong.append(f"{where}: only {v.nearest} of {v.inputs} results are the nearest float")
        for count, error in (
            (v.nan_wrong, "results are NaN of a number, or a number of NaN"),
            (v.infinity_wrong, "results are infinite where the nearest float is not, or the reverse"),
            (v.out_of_range, "results are out of range or have the wrong sign"),
            (v.special_wrong, "results of zeros, subnormal or infinite inputs are not the nearest float"),
        ):
            if count:
                wrong.append(f"{where}: {count} {error}")
    for (a, b), count in swept.differing.items():
        if a < b and count and (a.split()[0] in NOT_FUSED) == (b.split()[0] in NOT_FUSED):
            wrong.append(f"{function}: {a} and {b} differ on {count} inputs")
    return wrong


def reproducer(function: str, isa: str, bits: int) -> str:
    return (
        f"LNRNN_ISA={isa} python -c 'import lnrnn, numpy as np; "
        f'print(lnrnn.{function}(np.array([{bits:#010x}], "u4").view("f4")))\''
    )


def number(bits: int) -> str:
    return f"{np.array(bits, np.uint32).view(np.float32)[()]!s} ({bits:#010x})"


def report(function: str, swept: Swept) -> str:
    """Returns the lines to print. Instruction sets joined by = give the same bits."""
    lines = []
    groups = swept.same()
    for group in groups:
        v = swept.verdicts[group[0]]
        lines.append(
            f"{function} on {' = '.join(group)}: {v.inputs} numbers and {v.nans} NaN;"
            f" largest error {v.largest:.4f} ULP at {number(v.input)}, result {number(v.result)}"
        )
        lines.append(
            f"    the nearest float: {v.nearest} ({100 * v.nearest / (v.inputs - v.near_ties):.3f} %),"
            f" apart from {v.near_ties} too near to a tie"
        )
    for k, a in enumerate(groups):
        for b in groups[k + 1 :]:
            lines.append(f"{function}: {a[0]} and {b[0]} differ on {swept.differing[a[0], b[0]]} inputs")
    lines.append(f"{function}: the reference against long double: {swept.reference_error:.2g} ULP")
    return "\n".join(lines)


def here(options: argparse.Namespace) -> dict[str, str]:
    """Sweeps over the inputs of each function on all the sets. Returns {function: largest error}."""
    sets = {isa: native(isa) for isa in options.isa or available_isas()}
    step = 1_000_003 if options.quick else options.step
    wrong, figures = [], {}
    with using_threads(1), using_isa(available_isas()[0]):
        for function in options.function or FUNCTIONS:
            swept = sweep(function, sets, step)
            print(f"--- {function}, every float" if step == 1 else f"--- {function}, step {step}")
            print(report(function, swept), flush=True)
            wrong += broken(function, swept)
            worst = max(swept.verdicts.values(), key=lambda v: v.largest)
            figures[function] = f"{worst.largest:.4f} ULP at most, {worst.inputs} inputs"
    if wrong:
        raise Wrong("\n".join(wrong))
    return figures


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--step", type=int, default=1, metavar="N", help="every N-th float (default: all)")
    parser.add_argument("--function", choices=FUNCTIONS, action="append", help="only this; may be repeated")


PARTS = {"here": here}
