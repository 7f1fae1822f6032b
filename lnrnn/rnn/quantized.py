"""Quantized weights w = (q - zero point) * scale, as arguments of load_state_dict and in importers.

A network stores w in float32, exact except for the rounding of this product. If `kept_by_int8` is
True, the packed weights of dtype "int8" are exactly the integers q - zero point.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..errors import bad_type, bad_value, message, real

Array = np.ndarray
Quantized = tuple[ArrayLike, ArrayLike, ArrayLike]  # q, scale, zero point
# int8 weights are -128 .. 127 times a scale. With more inputs per output, int32 sums of -128 could overflow.
LOWEST, HIGHEST, MOST_INPUTS = -128, 127, (2**31 - 1) // (127 * 128)
# Weights below 2^-100 would become 0 with dtype "int8", and 255 times a larger scale could overflow.
LEAST_SCALE, MOST_SCALE = 1e-30, 1e36


def kept_by_int8(integers: Array, inputs: int) -> bool:
    """Returns whether dtype "int8" keeps the integers q - zero point of all outputs unchanged."""
    lowest = LOWEST if inputs <= MOST_INPUTS else LOWEST + 1
    return bool(integers.min(initial=0) >= lowest and integers.max(initial=0) <= HIGHEST)


def dequantized(name: str, value: Any, dtype: str = "float32") -> Any:
    """Returns float32 weights for a triple (q, scale, zero_point), and all other values unchanged.

    q (n, k): int8 or uint8. scale, zero_point: a number, or (n,), one for each output. dtype: the
    network's dtype. Raises ValueError or TypeError for other triples, and for dtype "int8" if int8
    cannot hold q - zero_point.
    """
    if not (isinstance(value, tuple) and len(value) == 3 and getattr(value[0], "ndim", 0) == 2):
        return value
    q = real(f"q of {name}", value[0])
    if q.dtype not in (np.int8, np.uint8):
        raise bad_type(f"q of {name}", "an array of int8 or uint8", q)
    scale, zero = (
        _per_output(f"{what} of {name}", v, len(q))
        for what, v in zip(("scale", "zero_point"), value[1:], strict=True)
    )
    if not ((scale >= LEAST_SCALE) & (scale <= MOST_SCALE)).all():
        expected = f"from {LEAST_SCALE:g} to {MOST_SCALE:g}"
        raise ValueError(message(f"scale of {name}", expected, f"{value[1]!r}"[:60]))
    limits = np.iinfo(q.dtype)
    if zero.dtype.kind not in "iu":
        raise bad_type(f"zero_point of {name}", "an integer, or an array of integers", value[2])
    if zero.min(initial=0) < limits.min or zero.max(initial=0) > limits.max:
        expected = f"in the range of {q.dtype}, {limits.min} to {limits.max}"
        raise ValueError(message(f"zero_point of {name}", expected, f"{value[2]!r}"[:60]))
    integers = q.astype(np.int16) - zero.astype(np.int16)
    if dtype == "int8" and not kept_by_int8(integers, q.shape[1]):
        got = f"{integers.min()} to {integers.max()}"
        do = "a network of dtype 'float32' or 'bfloat16' takes these weights"
        raise ValueError(
            message(f"q - zero_point of {name}", "in the range of int8 with dtype 'int8'", got, do)
        )
    weights: Array = integers.astype(np.float32) * scale.astype(np.float32)
    return weights


def _per_output(name: str, value: Any, outputs: int) -> Array:
    """Returns a scale or zero point as an array (1, 1) or (outputs, 1)."""
    array = real(name, value)
    if array.shape not in ((), (outputs,)):
        raise bad_value(name, f"a number, or of shape ({outputs},), one for each output", array)
    return array.reshape(-1, 1)
