"""Defines the operations of include/lnrnn/simd/simd.h in NumPy, and creates numbers that test them."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np

F32, F64, U16, U32 = np.float32, np.float64, np.uint16, np.uint32
BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def bits(x):
    return np.ascontiguousarray(x).view(BITS[x.dtype.itemsize])


def assert_bits(got, want):
    """Asserts equal bits, including signs of zero and the payloads of NaN."""
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(bits(got), bits(want))


def assert_values(got, want):
    """Asserts equal bits, but any NaN equals any other NaN."""
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    assert_bits(got[~np.isnan(got)], want[~np.isnan(want)])


def special(dtype):
    """Returns zeros, ends of ranges, quiet NaN with payloads, and numbers that need rounding."""
    info, one = np.finfo(dtype), dtype(1)
    least, below_one = info.smallest_subnormal, np.nextafter(one, dtype(0))
    above_one = np.nextafter(one, dtype(2))
    x = [0, least, 3 * least, info.tiny - least, info.tiny]
    x += [1 / 3, 0.5, below_one, 1, above_one, 1.5, 7, 2.0**info.nmant, info.max / 2, info.max, np.inf]
    x = np.array(x, dtype)
    nan = np.array([np.nan, np.nan], dtype)
    bits(nan)[1] |= 5
    return np.concatenate([x, -x, nan, -nan])


def any_bits(rng, n, dtype):
    """Returns numbers with random bits, including subnormal ones. Signalling NaN become quiet NaN."""
    x = rng.integers(0, 2 ** (8 * dtype().itemsize), n, BITS[dtype().itemsize], endpoint=False).view(dtype)
    return np.where(np.isnan(x), dtype(np.nan), x)


def operands(rng, dtype, count, random=3000):
    """Returns `count` arrays with special numbers in every combination, random numbers, and random bits."""
    values = special(dtype) if count < 3 else special(dtype)[[0, 1, 6, 8, 10, 14, 15, 16, 17, 24, 26, 31, 33]]
    combined = np.array(list(itertools.product(values, repeat=count)), dtype).T
    drawn = rng.standard_normal((count, random)).astype(dtype)
    return [
        np.concatenate([a, b, any_bits(rng, random, dtype)]) for a, b in zip(combined, drawn, strict=True)
    ]


def nearest(exact: Fraction, dtype):
    """Rounds a number that is not 0 to the nearest one of dtype, ties to even."""
    info = np.finfo(dtype)
    try:
        near = dtype(float(exact))
    except OverflowError:
        near = dtype(np.inf if exact > 0 else -np.inf)
    candidates = {near, np.nextafter(near, dtype(-np.inf)), np.nextafter(near, dtype(np.inf))}
    beyond = Fraction(2) ** info.maxexp  # stands for infinity

    def distance(x):
        value = Fraction(float(x)) if np.isfinite(x) else beyond * (1 if x > 0 else -1)
        return abs(value - exact), int(bits(np.array([x], dtype))[0]) & 1

    return min(candidates, key=distance)


def fused(a, b, c):
    """Returns a*b + c with a single rounding."""
    plain, dtype = a * b + c, a.dtype.type
    product = np.isfinite(a) & np.isfinite(b)
    plain = np.where(product & np.isinf(c), c, plain)  # even if a*b overflows
    for k in np.flatnonzero(product & np.isfinite(c)):
        exact = Fraction(float(a[k])) * Fraction(float(b[k])) + Fraction(float(c[k]))
        if exact:
            plain[k] = nearest(exact, dtype)
        elif c[k]:
            plain[k] = 0  # a*b is exactly -c, but the rounded a*b may differ
    return plain


def from_bf16(h):
    return (h.astype(U32) << 16).view(F32)


def to_bf16(x):
    """Rounds to the nearest bfloat16, ties to even. Infinity counts as the number after the largest."""
    low = (x.view(U32) >> 16).astype(U16)
    high = low + U16(1)

    def value(h):
        v = np.abs(from_bf16(h).astype(F64))
        return np.where(np.isinf(v), 2.0**128, v)

    down, up = np.abs(x).astype(F64) - value(low), value(high) - np.abs(x).astype(F64)
    chosen = np.where((up < down) | ((up == down) & (low & 1 == 1)), high, low)
    chosen = np.where(np.isinf(x), low, chosen)
    return np.where(np.isnan(x), U16(0x7FC0), chosen)


def from_f16(h):
    return h.view(np.float16).astype(F32)


def to_f16(x):
    return x.astype(np.float16).view(U16)


FROM = {"bf16": from_bf16, "f16": from_f16}
TO = {"bf16": to_bf16, "f16": to_f16}


def around_short_floats(rng, kind):
    """Returns all numbers of 16 bits, the midpoints between them, and the neighbouring floats of both. Also
    returns numbers that are too large, NaN whose payload is only in the removed bits, and random ones."""
    h = np.arange(0, 0x7F80 if kind == "bf16" else 0x7C00, dtype=U16)
    at = FROM[kind](h).astype(F64)
    largest = 2.0**128 if kind == "bf16" else 2.0**16
    half = (at + np.append(at[1:], largest)) / 2  # after the last midpoint numbers round to infinity
    half = half.astype(F32)
    x = np.concatenate(
        [at.astype(F32), half, np.nextafter(half, F32(0)), np.nextafter(half, F32(np.inf)), special(F32)]
    )
    payloads = np.array([0x7F800001, 0x7FBFFFFF, 0x7F80FFFF, 0x7FFFFFFF, 0x7FC00000], U32).view(F32)
    return np.concatenate([x, -x, payloads, -payloads, any_bits(rng, 5000, F32)])
