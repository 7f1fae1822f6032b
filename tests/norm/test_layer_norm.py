"""Compares layer_norm and layer_norm_backward with the reference.

Tests every instruction set, float32 and float64, every length, and odd addresses.
"""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from helpers import (
    FLOATS,
    LARGE_OUTPUT,
    LENGTHS,
    SCALE,
    absolute_error,
    each_dtype,
    normal,
    relative_error,
    several_threads,
    using_small_caches,
    using_threads,
    wide,
)
from lnrnn import reference as ref

# The tolerance of y, relative to the largest |y|, which is up to sqrt(n). The largest measured error is
# 2.8e-7. Kernels sum at most 32 terms in one float32.
FORWARD = 5e-7
# The tolerance of gx and of the sums over rows, relative to the largest value. The largest measured error is
# 5.6e-7.
BACKWARD = 1e-6


def true_layer_norm(x, shape, weight=None, bias=None, eps=1e-5):
    x, weight, bias = wide(x, weight, bias)
    return ref.layer_norm(x, shape, weight, bias, eps)


@each_dtype
@pytest.mark.parametrize("affine", ["", "weight", "bias", "weight bias"])
def test_forward_at_every_length(family, dtype, affine):
    rng = np.random.default_rng(0)
    for n in LENGTHS:
        x = normal(rng, (3, n), dtype) * dtype(3) + dtype(1)
        weight = normal(rng, n, dtype) if "weight" in affine else None
        bias = normal(rng, n, dtype) if "bias" in affine else None
        y = lnrnn.layer_norm(x, n, weight, bias)
        assert y.dtype == dtype
        assert relative_error(y, true_layer_norm(x, n, weight, bias)) < FORWARD * SCALE[dtype], n
        room = np.full(x.size + 32, 7, dtype)
        lnrnn.layer_norm(x, n, weight, bias, out=room[16:-16].reshape(x.shape))
        np.testing.assert_array_equal(room, np.pad(y.ravel(), 16, constant_values=7))


@each_dtype
@pytest.mark.parametrize("affine", [False, True])
def test_backward_at_every_length(family, dtype, affine):
    rng = np.random.default_rng(1)
    for n in LENGTHS:
        rows = 70 if n == 33 else 3  # more rows than are added in float32
        x, gy = normal(rng, (2, rows, n), dtype)
        weight, bias = normal(rng, (2, n), dtype) if affine else (None, None)
        got = lnrnn.layer_norm_backward(gy, x, n, weight, bias)
        want = ref.layer_norm_backward(*wide(gy, x), (n,), *wide(weight, bias))
        # In a row of one or two values, the terms of the gradient cancel almost entirely. So errors are
        # relative to the size of these terms.
        scale = np.abs(want[0]).max()
        if n < 3:
            scale = np.abs(gy * (1 if weight is None else weight)).max() / np.sqrt(x.var(1).min() + 1e-5)
        assert absolute_error(got[0], want[0]) < BACKWARD * SCALE[dtype] * scale, n
        assert got[0].dtype == dtype
        for g, w in zip(got[1:], want[1:], strict=True):
            if not affine:
                assert g is None
            else:
                assert g.dtype == dtype and g.shape == (n,)
                assert relative_error(g, w) < BACKWARD * SCALE[dtype], n


@each_dtype
def test_backward_of_many_rows_keeps_its_digits(family, dtype):
    """The kernel adds sums of blocks of rows in double. So sums over 5000 rows of gy, whose mean is 1, are as
    accurate as short sums."""
    rng = np.random.default_rng(16)
    for rows, n in ((400, 100), (5000, 100), (5000, 3)):
        x, gy = normal(rng, (2, rows, n), dtype)
        gy += dtype(1)
        weight, bias = normal(rng, (2, n), dtype)
        gx, *sums = lnrnn.layer_norm_backward(gy, x, n, weight, bias)
        want_gx, *want = ref.layer_norm_backward(*wide(gy, x), (n,), *wide(weight, bias))
        assert relative_error(gx, want_gx) < (BACKWARD if n > 3 else 20 * BACKWARD) * SCALE[dtype], (rows, n)
        for got, right in zip(sums, want, strict=True):
            assert relative_error(got, right) < FORWARD * SCALE[dtype], (rows, n)


@each_dtype
def test_rows_with_a_mean_far_from_zero(family, dtype):
    """Rows have mean 1e4 and standard deviation 1. float32 represents x to 5e-4, which limits the result. x -
    mean is exact to the last digit of x. So gradients are as accurate as those of rows with mean 0."""
    rng = np.random.default_rng(4)
    for n in (16, 17, 100, 128, 512, 1000, 4096):
        for mean in (1e4, -1e4):
            x = (mean + rng.standard_normal((16, n))).astype(dtype)
            assert absolute_error(lnrnn.layer_norm(x, n), true_layer_norm(x, n)) < 5e-6 * SCALE[dtype], n
            gy, (weight, bias) = normal(rng, x.shape, dtype), normal(rng, (2, n), dtype)
            got = lnrnn.layer_norm_backward(gy, x, n, weight, bias)
            want = ref.layer_norm_backward(*wide(gy, x), (n,), *wide(weight, bias))
            for g, w in zip(got, want, strict=True):
                assert relative_error(g, w) < BACKWARD * SCALE[dtype], (n, mean)


@each_dtype
def test_one_huge_value_in_a_row(family, dtype):
    """The value may have any index, even the first one. All other terms become equal, so adding each to the
    sum of squares is rounded in the same direction. 64 such roundings give relative errors of 64 * 2^-24 in
    the variance and half of that in y, so sums in float32 must have at most 64 terms."""
    rng = np.random.default_rng(5)
    for n in (5, 16, 33, 256, 1000):
        for at in (0, 1, n // 2, n - 1):
            x = normal(rng, (4, n), dtype)
            x[:, at] = [1e4, -1e6, 1e8, 1e15]
            error = relative_error(lnrnn.layer_norm(x, n), true_layer_norm(x, n))
            assert error < 2e-6 * SCALE[dtype], (n, at)


@each_dtype
def test_scaling_by_powers_of_two_changes_no_bit(family, dtype):
    x = normal(np.random.default_rng(7), (4, 37), dtype)
    y = lnrnn.layer_norm(x, 37, eps=0)
    for k in (-40, -3, 1, 50):
        np.testing.assert_array_equal(lnrnn.layer_norm(np.ldexp(x, k), 37, eps=0), y)


@each_dtype
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_stay_in_their_row(family, dtype, poison):
    rng = np.random.default_rng(10)
    for n in (*range(1, 36), 64, 100):
        x, gy = normal(rng, (2, 5, n), dtype)
        weight, bias = normal(rng, (2, n), dtype)
        y, gx = lnrnn.layer_norm(x, n, weight, bias), lnrnn.layer_norm_backward(gy, x, n, weight, bias)[0]
        for at in {0, n // 2, n - 1}:
            bad = x.copy()
            bad[2, at] = poison
            got = lnrnn.layer_norm(bad, n, weight, bias)
            got_gx = lnrnn.layer_norm_backward(gy, bad, n, weight, bias)[0]
            for g, clean in ((got, y), (got_gx, gx)):
                assert np.isnan(g[2]).all()
                np.testing.assert_array_equal(np.delete(g, 2, 0), np.delete(clean, 2, 0))


@each_dtype
def test_a_row_does_not_depend_on_its_batch_or_the_threads(family, dtype):
    rng = np.random.default_rng(11)
    for rows, n in ((4000, 37), (3, 70001), (100, 2501), (70001, 3)):
        x, gy = normal(rng, (2, rows, n), dtype)
        weight, bias = normal(rng, (2, n), dtype)
        results = []
        for threads in (1, 2, 3):
            with several_threads(threads):
                y = lnrnn.layer_norm(x, n, weight, bias)
            with several_threads(threads, had=None if rows > 32 else 1):  # a task has at least 32 rows
                results.append([y, *lnrnn.layer_norm_backward(gy, x, n, weight, bias)])
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                np.testing.assert_array_equal(a, b)
        for r in (0, rows // 2, rows - 1):
            np.testing.assert_array_equal(lnrnn.layer_norm(x[r], n, weight, bias), results[0][0][r])
            np.testing.assert_array_equal(
                lnrnn.layer_norm_backward(gy[r], x[r], n, weight)[0], results[0][1][r]
            )


@pytest.mark.parametrize("dtype", [*FLOATS, np.float16, "bfloat16"], ids=str)
@pytest.mark.parametrize("n", [250, 1009])
def test_outputs_larger_than_the_cache_have_the_same_bits(family, dtype, n):
    """Kernels may write large outputs by non-temporal stores, beginning at the first aligned vector. The bits
    do not depend on the address of `out`."""
    dtype = np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype)
    rng = np.random.default_rng(18)
    x = normal(rng, (3 * LARGE_OUTPUT // 2 // (n * dtype.itemsize), n), np.float32).astype(dtype)
    weight, bias = normal(rng, (2, n), np.float32).astype(dtype)
    room = np.empty(x.size + 64, dtype)
    parts = np.array_split(x, 2)
    calls = [
        lambda x, p=p, **k: lnrnn.layer_norm(x, n, *p, **k)
        for p in ((weight, bias), (weight, None), (None, bias), (None, None))
    ]
    calls += [lambda x, w=w, **k: lnrnn.rms_norm(x, n, w, **k) for w in (weight, None)]
    with using_small_caches():
        for call in calls:
            want = np.concatenate([call(part) for part in parts]).view(np.uint8)
            for skip, threads in ((0, 2), (1, 1)):
                room.fill(7)
                out = room[skip : skip + x.size].reshape(x.shape)
                with using_threads(threads):
                    call(x, out=out)
                np.testing.assert_array_equal(out.view(np.uint8), want)
                assert (room[:skip] == 7).all() and (room[skip + x.size :] == 7).all()


def test_a_huge_row_and_many_rows(family):
    x = (100 + np.random.default_rng(12).standard_normal((1, 300_003))).astype(np.float32)
    assert relative_error(lnrnn.layer_norm(x, x.size), true_layer_norm(x, x.size)) < FORWARD
    x = x[:, :-1].reshape(-1, 2)
    assert absolute_error(lnrnn.layer_norm(x, 2), true_layer_norm(x, 2)) < 2 * FORWARD


def test_gradients_of_no_rows_are_zeros():
    none, ones = np.zeros((0, 4), np.float32), np.ones(4, np.float32)
    gx, gweight, gbias = lnrnn.layer_norm_backward(none, none, 4, ones, ones)
    assert gx.shape == (0, 4)
    assert np.array_equal(gweight, 0 * ones) and np.array_equal(gbias, 0 * ones)
    assert lnrnn.layer_norm_backward(none, none, 4)[1:] == (None, None)
