"""Arrays rounded as kernels round them, still as floats: what a type does to weights and to activations."""

from __future__ import annotations

import numpy as np


def bfloat16(a) -> np.ndarray:
    """To 8 significant bits, to nearest even; of finite values. float32."""
    bits = np.ascontiguousarray(a, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


def two_bfloat16(a) -> np.ndarray:
    """The sum of a's bfloat16 and the bfloat16 of what is left: some 16 significant bits."""
    a = np.asarray(a, np.float32)
    high = bfloat16(a)
    return high + bfloat16(a - high)


def whole(a, most: int) -> np.ndarray:
    """Whole numbers from -most to most times one scale for each row (..., n), the row's largest over most."""
    scale = np.abs(a).max(-1, keepdims=True) / most
    return np.rint(a / np.where(scale > 0, scale, 1)) * scale


def int8(a) -> np.ndarray:
    """A weight matrix (outputs, inputs): 8 bits and one scale for each output."""
    return whole(a, 127)
