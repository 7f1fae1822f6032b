"""Rounding to bfloat16 and int8 in NumPy: the definitions for weights, and for rows of an int8 product."""

from __future__ import annotations

import numpy as np


def to_bfloat16(w):
    """Rounds to the nearest bfloat16, ties to even."""
    bits = w.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def flushed(v):
    """Rounds as the CPU's bfloat16 instructions do: subnormal numbers become 0."""
    return np.where(np.abs(v) < np.finfo(np.float32).tiny, np.float32(0) * v, v)


def largest_integer(row):
    """Returns the integer of a row's largest magnitude: 127, or the old one if weights were int8 before."""
    tops = np.array([127, 128, *range(126, 0, -1)])
    n = row / (np.abs(row).max().astype(np.float64) / tops[:, None])
    fits = (n.max(1) < 127.5) & (np.abs(n - np.rint(n)) <= np.abs(n) * 257 * 2.0**-31).all(1)
    return tops[fits.argmax()] if fits.any() else 127


def to_int8(w):
    """Rounds weights to int8. Returns the integers, and the scale of each output."""
    top = np.array([largest_integer(row) for row in w], np.float32)[:, None]
    scale = (np.abs(w).max(1, keepdims=True) / top).astype(np.float32)
    return np.rint(w * (np.float32(1) / scale)).astype(np.int64), scale


def to_bits(a, bits):
    """Rounds rows to 14 or 8 bits. Returns integers, and scales.

    14 bits: the scale is the largest magnitude / 8191. 8 bits: it is the range, which has 0, / 254, and the
    integers are at most 127 from a zero point, the middle of the range."""
    high, low = (
        np.maximum(0, s * a).max(-1, keepdims=True, initial=0) for s in (np.float32(1), np.float32(-1))
    )
    step = np.maximum(high, low) / np.float32(8191)
    if bits == 8:
        step = high / np.float32(254) + low / np.float32(254)
    inverse = np.divide(np.float32(1), step, out=np.zeros_like(step), where=step > 0)
    zero = np.rint((high - low) * inverse * np.float32(0.5)) * (bits == 8)
    most = 127 if bits == 8 else 8191
    return np.clip(np.rint(a * inverse - zero), -most, most) + zero, step


def int8_product(a, w, bits):
    """a (B, k), w (n, k). Returns the product (B, n), with w in int8 and a in 14 or 8 bits."""
    (q, scale), (p, step) = to_int8(w), to_bits(a, bits)
    return (p @ q.T) * step.astype(np.float64) * scale.T.astype(np.float64)
