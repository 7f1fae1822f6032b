"""Measures how bfloat16 and int8 weights change times, outputs and decisions on a user's input.

Networks, ONNX Runtime sessions and accelerated torch models use this report.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from timeit import timeit
from typing import Any, TypeVar

import numpy as np

from .arguments import TAKES, Number, Optional, by_name
from .errors import bad_value, message

Array = np.ndarray
Result = TypeVar("Result")
INPUT = "give an input like the model's own"  # random numbers would give other differences
SECONDS = 0.05  # of timed calls, for each choice of parts
TAKES["check"] = {"tolerance": Optional(Number(0))}
THRESHOLD = Number(-1e38, 1e38)


@dataclass(frozen=True)
class Cost:
    """A call on the input `check`, compared with a call with float32 weights.

    Attributes
    ----------
    seconds : float
        The least time of several calls.
    largest, mean : float
        The largest and the mean difference of the numbers of all outputs.
    decisions : int
        How many decisions change. A row along the last axis of an output decides for the place of its largest
        number. Integers, booleans and texts are decisions themselves.
    sides : int
        How many numbers are on the other side of the threshold.
    """

    seconds: float
    largest: float = 0.0
    mean: float = 0.0
    decisions: int = 0
    sides: int = 0


@dataclass(frozen=True, repr=False)
class Rounding:
    """How bfloat16 or int8 weights change time and results on the input `check`: all parts, and each part.

    print() shows a table.

    Attributes
    ----------
    dtype : {"float32", "bfloat16", "int8"}
        The type of the weights.
    float32 : Cost
        All parts in float32, compared with the model without lnrnn; NaN if that model does not run. A network
        is compared with itself after each weight is moved to the next float32. Here and in `kept`, a
        DynamicQuantizeLSTM of ONNX Runtime has 14 bits for its inputs and states.
    whole : Cost
        All parts with weights of the dtype.
    parts : dict of str to Cost
        One part alone with weights of the dtype, by name.
    kept : tuple of str
        The parts that stay in float32, because the tolerance would not hold otherwise.
    result : Cost
        The parts in `kept` in float32, and the others with weights of the dtype.
    decisions, numbers : int
        The numbers of decisions, and of numbers, in all outputs.
    """

    dtype: str
    float32: Cost
    whole: Cost
    parts: dict[str, Cost]
    kept: tuple[str, ...]
    result: Cost
    decisions: int
    numbers: int

    def __repr__(self) -> str:
        costs = {"float32": self.float32, f"all {self.dtype}": self.whole}
        costs |= {f"{name} {self.dtype}": cost for name, cost in self.parts.items() if len(self.parts) > 1}
        costs |= {"result": self.result} if self.kept else {}
        rows = [("weights", "time", "largest", "mean", "decisions", "sides")]
        rows += [(name, f"{cost.seconds * 1e3:.3g} ms", f"{cost.largest:.2g}", f"{cost.mean:.2g}",
                  f"{cost.decisions} of {self.decisions}", f"{cost.sides} of {self.numbers}")
                 for name, cost in costs.items()]  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
        return "\n".join([*lines, *(f"float32: {name or 'the model'}" for name in self.kept)])


def options_of_check(check: Any, tolerance: Any, threshold: Any) -> dict[str, Any]:
    """Returns {"tolerance": ..., "threshold": ...}, checked. Both need `check`."""
    options = by_name("check", {"tolerance": tolerance})
    options["threshold"] = THRESHOLD.check("threshold", threshold)
    if check is None and options != {"tolerance": None, "threshold": 0}:
        raise bad_value("check", "given with tolerance or threshold", check, INPUT)
    return options


def timed(call: Callable[[], Result]) -> tuple[Result, float]:
    """Returns (result of a call, shortest time in seconds of further calls)."""
    result, times = call(), list[float]()
    while not times or (sum(times) < SECONDS and len(times) < 100):
        times.append(timeit(call, number=1))
    return result, min(times)


def compared(
    run: Callable[[Sequence[str]], tuple[Sequence[Any], float]], parts: Sequence[str], dtype: str,
    original: Sequence[Any] | None, tolerance: float | None, threshold: float, is_exact: bool = True,
) -> Rounding:  # fmt: skip
    """Returns the report. `kept` are the parts left in float32 for the tolerance, worst parts first.

    run(parts) returns (outputs, seconds) of a call on the input `check`. These parts have weights of
    `dtype`, other parts float32. original: outputs without lnrnn, or None. is_exact: `original` is as
    exact as float32, so that no tolerance may be below the difference.
    """
    given, seconds = run(())
    exact = [*map(_numbers, given)]
    for k, a in enumerate(exact):
        if a.dtype.kind == "f" and np.isnan(a).any():
            got = f"NaN in output {k} of {len(exact)}, with float32 weights"
            raise ValueError(message("check", "an input for which no output is NaN", got, INPUT))
    if not any(a.size for a in exact):
        raise ValueError(message("check", "an input with outputs that are not empty", "none", INPUT))
    float32 = Cost(seconds, math.nan, math.nan)
    if original is not None:
        float32 = _cost(exact, [*map(_numbers, original)], seconds, threshold, "float32")

    def of(short: Sequence[str]) -> Cost:
        outputs, seconds = run(short)
        return _cost(exact, [*map(_numbers, outputs)], seconds, threshold, dtype)

    if tolerance is not None and is_exact and float32.largest > tolerance:
        raise bad_value("tolerance", f"at least {float32.largest:.3g}, the difference in float32", tolerance)
    whole = result = of(parts)
    alone = {name: of([name]) if len(parts) > 1 else whole for name in parts}
    worst, some = sorted(parts, key=lambda name: -alone[name].largest), 0
    while tolerance is not None and result.largest > tolerance:
        some += 1
        result = of(worst[some:]) if some < len(parts) else Cost(seconds)
    if some and some == len(parts):
        text = f"with {dtype} weights every part exceeds tolerance={tolerance:g}, so all are in float32"
        warnings.warn(f"{text}:\nthe smallest difference is {alone[worst[-1]].largest:.3g}", stacklevel=4)
    numbers = sum(a.size for a in exact if a.dtype.kind == "f")
    decisions = sum(_decisions(a, a.dtype.kind == "f").size for a in exact)
    return Rounding(dtype, float32, whole, alone, tuple(worst[:some]), result, decisions, numbers)


def _numbers(output: Any) -> Array:
    """Returns an output as an array. Complex numbers become pairs on a new last axis."""
    a = np.asarray(output)
    return np.stack([a.real, a.imag], -1) if a.dtype.kind == "c" else a


def _decisions(a: Array, of_float: bool) -> Array:
    if not of_float:
        return a
    return a.argmax(-1) if a.ndim and a.shape[-1] > 1 else np.zeros(0)


def _cost(
    exact: Sequence[Array], other: Sequence[Array], seconds: float, threshold: float, dtype: str
) -> Cost:
    """Returns the Cost of outputs. Raises ValueError if shapes differ or numbers are no longer finite."""
    shapes = [[a.shape for a in outputs] for outputs in (exact, other)]
    if shapes[0] != shapes[1]:
        expected = f"one that keeps the shapes of the outputs on check, {shapes[0]}"
        raise ValueError(message("dtype", expected, f"{shapes[1]} with {dtype!r}"))
    largest, total, count, decisions, sides = 0.0, 0.0, 0, 0, 0
    for a, b in zip(exact, other, strict=True):
        of_float = a.dtype.kind == "f"
        decisions += int(np.count_nonzero(_decisions(a, of_float) != _decisions(b, of_float)))
        if not (of_float and a.size):
            continue
        difference = np.zeros(a.shape)
        np.subtract(a, b, difference, where=a != b, dtype=float)  # equal infinities differ by 0
        if not np.isfinite(difference).all():
            raise ValueError(
                message(
                    "dtype", "one that keeps the outputs on check finite", f"NaN or infinity with {dtype!r}"
                )
            )
        largest = max(largest, float(np.abs(difference).max()))
        total, count = total + float(np.abs(difference).sum()), count + a.size
        sides += int(np.count_nonzero((a > threshold) != (b > threshold)))
    return Cost(seconds, largest, total / max(count, 1), decisions, sides)
