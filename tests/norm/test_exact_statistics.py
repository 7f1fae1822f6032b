"""Tests norms of inputs with exact mean and variance in every order of summation, as in oneDNN's benchdnn.

Tests every dtype and length on every instruction set. If var + eps is a power of 4, layer norm is exact and
compared without a tolerance. So the test notices a value left out, added twice or read past the end."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
import pytest

import lnrnn
from helpers import absolute_error, each_dtype, onnx_cases, wide
from lnrnn import reference as ref

DTYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
LENGTHS = (
    *range(2, 70), *range(71, 132, 4), 128, 255, 257, 511, 513, 1023, 1025, 2047, 2049, 4097, 8193, 16385,
)  # fmt: skip

each_type = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
each_length = pytest.mark.parametrize("lengths", [LENGTHS[::2], LENGTHS[1::2]], ids=lambda n: f"{n[0]}...")


@cache
def deviations(n):
    """Returns (integers (n) whose sum is 0, their variance, eps), where var + eps is 4, 16 or 64. There are n
    // 2 pairs d, -d, and a 0 if n is odd. d is 1, 2 or 3. The sum of the squares, n var, is an integer. var
    is 2 if that is possible."""
    for var in (2, 4, 6, 1, 14):
        pairs, total = n // 2, n * var
        if total % 2:
            continue
        for threes in range(min(pairs, total // 18) + 1):
            rest = total // 2 - 9 * threes
            for twos in range(min(pairs - threes, rest // 4) + 1):
                ones = rest - 4 * twos
                if threes + twos + ones <= pairs:
                    d = np.repeat([3, 2, 1, 0], [threes, twos, ones, pairs - threes - twos - ones])
                    d = np.concatenate([d, -d, np.zeros(n % 2, int)])
                    assert d.sum() == 0 and (d**2).sum() == n * var
                    eps = next(4.0**k for k in range(1, 4) if 4**k > var) - var
                    return d, var, eps
    raise AssertionError(n)


def rows(rng, count, n, dtype, centre=True):
    """Returns (x (count, n), its deviations, means, var, eps). Without `centre` the means are 0. The kernels
    sum differences from a pivot, a number near the mean that may be a multiple of 1/16. In units of 1/16,
    every partial sum of 2048 deviations or squares is below 2^24, so it is exact."""
    d, var, eps = deviations(n)
    d = rng.permuted(np.broadcast_to(d, (count, n)), axis=1)
    mean = rng.integers(-60, 61, (count, 1)) if centre else np.zeros((count, 1), int)
    return (mean + d).astype(dtype), d, mean, var, eps


def parameters(rng, n, dtype):
    """Returns weight (n) and bias (n), small integers with which products and sums are exact in every
    dtype."""
    kind = np.float64 if dtype == np.float64 else np.float32
    return rng.integers(-2, 3, n).astype(kind), rng.integers(-4, 5, n).astype(kind)


def equal(got, want, message):
    np.testing.assert_array_equal(np.asarray(got, np.float64), want, err_msg=message)


@each_type
@each_length
def test_layer_and_rms_norm_are_exact(family, rng, dtype, lengths):
    """Tests 1 to 9 rows, because kernels compute four at a time, and the last ones one by one."""
    for n in lengths:
        for count in (9, 1 + n % 8):
            x, d, _, var, eps = rows(rng, count, n, dtype)
            w, b = parameters(rng, n, dtype)
            true = d / np.sqrt(var + eps)
            for weight, bias in ((None, None), (w, None), (None, b), (w, b)):
                y = lnrnn.layer_norm(x, n, weight, bias, eps)
                assert y.dtype == dtype
                want = true * (1 if weight is None else w) + (0 if bias is None else b)
                equal(y, want, f"layer norm, {count} rows of {n}")
            y = lnrnn.rms_norm(d.astype(dtype), n, w, eps)
            equal(y, true * w, f"RMS norm, {count} rows of {n}")


@each_type
@each_length
def test_layer_norm_backward_is_exact(family, rng, dtype, lengths):
    """gy has the same value at both entries of a pair d, -d, and its sum is 0. So both means in the equation
    of the gradient are 0, and gx is gy weight / sqrt(var + eps)."""
    for n in lengths:
        if n < 4:
            continue
        d, var, eps = deviations(n)
        count, half = 1 + n % 8, n // 4
        gy = np.zeros((count, n), int)
        gy[:, :half] = rng.integers(-4, 5, (count, half))
        gy[:, half : 2 * half] = -gy[:, :half]  # so that the sum of gy is 0
        gy[:, n // 2 : n // 2 + 2 * half] = gy[:, : 2 * half]
        order = np.argsort(rng.random((count, n)), axis=1)
        d, gy = np.take_along_axis(np.broadcast_to(d, gy.shape), order, 1), np.take_along_axis(gy, order, 1)
        x = (rng.integers(-60, 61, (count, 1)) + d).astype(dtype)
        gx, gw, gb = lnrnn.layer_norm_backward(gy.astype(dtype), x, n, np.full(n, 2), np.zeros(n), eps)
        root = np.sqrt(var + eps)
        equal(gx, 2 * gy / root, f"gx, {count} rows of {n}")
        equal(gw, (gy * d / root).sum(0), f"weight, {count} rows of {n}")
        equal(gb, gy.sum(0), f"bias, {count} rows of {n}")


@each_type
@each_length
@pytest.mark.parametrize("shape", ["(N, C)", "(1, C, L)", "(N, C, L)"])
def test_batch_norm_is_exact(family, rng, dtype, lengths, shape):
    """Tests statistics over n values of each channel in training, and then inference with these statistics.
    The kernel's estimate of the mean need not be exact, and sums are multiplied by 1 / n, so the last digit
    may differ."""
    for n in lengths:
        channels = 1 + n % 19 if n < 3000 else 2
        x, d, mean, var, eps = rows(rng, channels, n, dtype)
        outer = 1 if shape == "(1, C, L)" else n if shape == "(N, C)" else 3 if n % 3 == 0 else 2 - n % 2

        def laid(a, outer=outer, n=n):
            """Returns a (C, n) in the shape (outer, C, n / outer), or (n, C) if outer is n."""
            a = a.reshape(len(a), outer, n // outer).swapaxes(0, 1)
            return np.ascontiguousarray(a[..., 0] if outer == n else a)

        w, b = parameters(rng, channels, dtype)
        kind, unit = w.dtype, 2 * np.finfo(w.dtype).eps
        moments = np.full((2, channels), 7, kind)
        want = laid(d / np.sqrt(var + eps) * w[:, None] + b[:, None])
        y = lnrnn.batch_norm(laid(x), *moments, w, b, training=True, momentum=1, eps=eps)
        np.testing.assert_allclose(np.asarray(y, np.float64), want, rtol=0, atol=unit, err_msg=str(n))
        np.testing.assert_allclose(moments[0], mean[:, 0], rtol=0, atol=unit)
        np.testing.assert_allclose(moments[1], n * var / (n - 1), rtol=unit, atol=0)
        given = mean[:, 0].astype(kind), np.full(channels, var, kind)
        equal(lnrnn.batch_norm(laid(x), *given, w, b, eps=eps), want, f"{shape} of {n} values")


# Only var + eps, the square root, 1 / root and the product are rounded. The largest measured error is 1.07
# ULP.
ROUNDINGS = 1.25


@each_dtype
def test_any_eps_leaves_four_roundings(family, rng, dtype):
    for n in LENGTHS[::3]:
        for eps in (1e-5, 1e-3, 0.37):
            x, d, *_ = rows(rng, 4, n, dtype)
            true = ref.layer_norm(*wide(x), n, None, None, np.longdouble(dtype(eps)))
            unit = np.spacing(np.abs(true.astype(dtype))).astype(np.longdouble)
            error = np.abs(lnrnn.layer_norm(x, n, eps=eps) - true) / unit
            assert error.max() <= ROUNDINGS, (n, eps)
            assert not np.any(lnrnn.layer_norm(x, n, eps=eps)[d == 0])


NORMS = {"LayerNormalization": lnrnn.layer_norm, "RMSNormalization": lnrnn.rms_norm}
ONNX = [case for op in (*NORMS, "BatchNormalization") for case in onnx_cases(op)]


@pytest.mark.parametrize("case", ONNX, ids=lambda case: case["name"].removeprefix("test_"))
def test_a_node_test_of_onnx(family, case):
    """ONNX's results have errors of up to 8.3e-7."""
    (x, *parameters), attributes = case["inputs"].values(), case["attributes"]
    eps = attributes.get("epsilon", 1e-5)
    want, *moments = case["outputs"].values()
    if case["op"] in NORMS:
        axis = attributes.get("axis", -1) % x.ndim
        y = NORMS[case["op"]](x, x.shape[axis:], *parameters, eps)
    else:
        w, b, *running = (array.copy() for array in parameters)
        training = bool(attributes.get("training_mode", 0))
        y = lnrnn.batch_norm(x, *running, w, b, training, 1 - attributes.get("momentum", 0.9), eps)
        assert not training or absolute_error(running[0], moments[0]) < 2e-7
    assert absolute_error(y, want) < 2e-6
