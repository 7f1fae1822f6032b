"""Compares batch_norm and batch_norm_backward with the reference.

Tests every instruction set, float32 and float64, every length, and odd addresses.
"""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from helpers import (
    LARGE_OUTPUT,
    LENGTHS,
    SCALE,
    absolute_error,
    each_dtype,
    normal,
    relative_error,
    several_threads,
    using_small_caches,
    wide,
)
from lnrnn import reference as ref

# The tolerances are those of test_layer_norm.py. The largest measured errors: forward 2.1e-7, backward
# 3.6e-7.
FORWARD = 5e-7
BACKWARD = 1e-6

each_mode = pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])


def statistics(rng, channels, dtype):
    return normal(rng, channels, dtype), rng.uniform(0.5, 2, channels).astype(dtype)


def shapes(n):
    """Returns shapes with n channels, with n values per channel and sample, and with n + 1 samples."""
    return [(5, n), (3, 2, n), (n + 1, 3)]


def check_forward(
    x, mean, var, weight, bias, training, eps=1e-5, momentum=0.1, forward=FORWARD, spread=FORWARD
):
    """Compares y (within `forward`) and the new running mean and variance (within `spread`) with the
    reference."""
    scale = SCALE[x.dtype.type]
    new_mean, new_var = mean.copy(), var.copy()
    y = lnrnn.batch_norm(x, new_mean, new_var, weight, bias, training, momentum, eps)
    want, want_mean, want_var = ref.batch_norm(*wide(x, mean, var, weight, bias), training, momentum, eps)
    assert y.dtype == x.dtype and y.shape == x.shape
    room = np.full(x.size + 32, 7, x.dtype)  # the test sees writes around the output
    out = room[16:-16].reshape(x.shape)
    lnrnn.batch_norm(x, mean.copy(), var.copy(), weight, bias, training, momentum, eps, out=out)
    np.testing.assert_array_equal(room, np.pad(y.ravel(), 16, constant_values=7))
    assert relative_error(y, want) < forward * scale, x.shape
    if training:
        typical = max(np.abs(want_mean).max(), np.abs(x).mean((0, *range(2, x.ndim))).max())
        assert absolute_error(new_mean, want_mean) < 2e-7 * scale * typical, x.shape
        assert relative_error(new_var, want_var) < spread * scale, x.shape
    else:
        np.testing.assert_array_equal(new_mean, mean)
        np.testing.assert_array_equal(new_var, var)


def check_backward(gy, x, mean, var, weight, training, eps=1e-5):
    scale = BACKWARD * SCALE[x.dtype.type]
    gx, gweight, gbias = lnrnn.batch_norm_backward(gy, x, mean, var, weight, training, eps)
    want = ref.batch_norm_backward(*wide(gy, x, mean, var, weight), training, eps)
    axes = (0, *range(2, x.ndim))
    # u is the size of the terms that cancel in gx. Errors are relative to u, because gx is nearly 0 with two
    # values per channel.
    gain = 1 if weight is None else weight.reshape(-1, *[1] * (x.ndim - 2))
    u = np.abs(gy.astype(np.float64) * gain)
    rstd = 1 / np.sqrt((x.astype(np.float64).var(axes) if training else var) + eps)
    assert gx.dtype == x.dtype and gbias.dtype == x.dtype
    assert absolute_error(gx, want[0]) < scale * (u.max(axes) * rstd).max(), x.shape
    assert (gweight is None) == (weight is None)
    if weight is not None:
        assert gweight.dtype == x.dtype
        assert absolute_error(gweight, want[1]) < scale * np.abs(gy).sum(axes).max(), x.shape
    assert absolute_error(gbias, want[2]) < scale * np.abs(gy).sum(axes).max(), x.shape


@each_dtype
@each_mode
@pytest.mark.parametrize("affine", ["", "weight", "bias"])
def test_forward_at_every_length(family, dtype, training, affine):
    """test_exact_statistics.py has both parameters."""
    rng = np.random.default_rng(0)
    for n in LENGTHS:
        for shape in shapes(n):
            x = normal(rng, shape, dtype) * dtype(3) + dtype(1)
            weight = normal(rng, shape[1], dtype) if "weight" in affine else None
            bias = normal(rng, shape[1], dtype) if "bias" in affine else None
            check_forward(x, *statistics(rng, shape[1], dtype), weight, bias, training)


@each_dtype
@each_mode
@pytest.mark.parametrize("affine", [False, True])
def test_backward_at_every_length(family, dtype, training, affine):
    rng = np.random.default_rng(1)
    for n in LENGTHS:
        for shape in shapes(n):
            x, gy = normal(rng, (2, *shape), dtype)
            weight = normal(rng, shape[1], dtype) if affine else None
            check_backward(gy, x, *statistics(rng, shape[1], dtype), weight, training)


@each_dtype
@each_mode
def test_rows_of_whole_pages_equal_the_reference(family, dtype, training):
    """The kernel adds four rows at a time if a row fills whole pages of memory, otherwise eight. A thread
    adds 128 such rows at a time."""
    rng = np.random.default_rng(9)
    page = 4096 // np.dtype(dtype).itemsize
    for shape in ((4, page), (7, page), (8, 2 * page), (600, page), (5, 5 * page), (9, page, 1)):
        x, gy = normal(rng, (2, *shape), dtype)
        weight, bias = normal(rng, (2, shape[1]), dtype)
        check_forward(x, *statistics(rng, shape[1], dtype), weight, bias, training)
        check_backward(gy, x, *statistics(rng, shape[1], dtype), weight, training)


@each_dtype
def test_channels_with_a_mean_far_from_zero(family, dtype):
    """Channels have mean 1e4 and standard deviation 1, in training and with given statistics."""
    rng = np.random.default_rng(4)
    for shape in ((300, 17), (16, 3, 100), (64, 5, 7, 7)):
        x = (1e4 + rng.standard_normal(shape)).astype(dtype)
        axes = (0, *range(2, len(shape)))
        mean, var = (f(axes, dtype=np.longdouble).astype(np.float64) for f in (x.mean, x.var))
        want = ref.batch_norm(*wide(x), training=True)[0]
        # For float64, rounding of the mean to double limits the accuracy. A given mean of 1e4 has an error of
        # 9e-13, half a unit in its last place. In training each of up to 64 blocks adds such an error
        # (6e-12 measured).
        single = dtype is np.float32
        trained = lnrnn.batch_norm(x, None, None, training=True)
        assert absolute_error(trained, want) < (5e-6 if single else 2e-11)
        assert absolute_error(lnrnn.batch_norm(x, mean, var), want) < (5e-6 if single else 4e-12)
        if dtype is np.float32:
            check_backward(normal(rng, shape, dtype), x, mean, var, None, True)


@each_dtype
def test_one_huge_value_in_a_channel(family, dtype):
    """As in test_layer_norm.py, up to 64 roundings in one direction add up in the variance. The relative
    error of y is half that of the variance."""
    rng = np.random.default_rng(5)
    for shape in ((6, 19), (200, 5), (4, 3, 100)):
        for at in (0, -1):
            for huge in (1e4, -1e6, 1e8):
                x = normal(rng, shape, dtype)
                x[at].flat[at] = huge
                moments = statistics(rng, shape[1], dtype)
                check_forward(x, *moments, None, None, True, forward=2e-6, spread=4e-6)


@each_dtype
def test_outliers_among_the_first_values(family, dtype):
    """Statistics are sums of differences from the mean of a few values. If these are outliers, the sums must
    be computed again: the error of the variance is then 1e-7 instead of 2e-5."""
    rng = np.random.default_rng(16)
    for shape in ((16000, 5), (16000, 5, 2)):
        x = normal(rng, shape, dtype)
        x[::1000] += 1e4
        mean, var = np.zeros(5), np.zeros(5)
        lnrnn.batch_norm(x, mean, var, training=True, momentum=1.0)
        _, want_mean, want_var = ref.batch_norm(*wide(x, mean, var), training=True, momentum=1)
        assert relative_error(mean, want_mean) < FORWARD * SCALE[dtype]
        assert relative_error(var, want_var) < FORWARD * SCALE[dtype]


@each_dtype
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_nan_stays_in_its_channel_and_in_inference_at_its_index(family, dtype, poison):
    rng = np.random.default_rng(7)
    for shape in ((5, 37), (3, 5, 9), (70, 3)):
        x = normal(rng, shape, dtype)
        mean, var = statistics(rng, shape[1], dtype)
        bad = x.copy()
        bad[1, 2].flat[-1:] = poison
        if x.ndim == 2:
            bad[1, 2] = poison
        hit = bad != x
        clean = lnrnn.batch_norm(x, mean, var)
        got = lnrnn.batch_norm(bad, mean, var)
        np.testing.assert_array_equal(got[~hit], clean[~hit])
        assert not np.isfinite(got[hit]).any()
        clean = lnrnn.batch_norm(x, None, None, training=True)
        new_mean, new_var = mean.copy(), var.copy()
        got = lnrnn.batch_norm(bad, new_mean, new_var, training=True)
        assert np.isnan(got[:, 2]).all() and not np.isfinite(new_mean[2]) and np.isnan(new_var[2])
        np.testing.assert_array_equal(np.delete(got, 2, 1), np.delete(clean, 2, 1))
        assert np.isfinite(np.delete(new_mean, 2)).all() and np.isfinite(np.delete(new_var, 2)).all()


@each_dtype
def test_threads_change_no_bit(family, dtype):
    rng = np.random.default_rng(8)
    for shape in ((6000, 37), (70001, 3), (3, 60000), (4, 5, 20000)):
        x, gy = normal(rng, (2, *shape), dtype)
        mean, var = statistics(rng, shape[1], dtype)
        results = []
        for threads in (1, 2, 3):
            m, v, found = mean.copy(), var.copy(), []
            for compute, *arguments in (
                (lnrnn.batch_norm, x, m, v, None, None, True),
                (lnrnn.batch_norm, x, mean, var),
                (lnrnn.batch_norm_backward, gy, x, mean, var, mean),
                (lnrnn.batch_norm_backward, gy, x, mean, var, mean, False),
            ):
                with several_threads(threads):
                    got = compute(*arguments)
                found += got if isinstance(got, tuple) else [got]
            results.append([*found, m, v])
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                np.testing.assert_array_equal(a, b)


@each_dtype
def test_outputs_larger_than_the_cache_have_the_same_bits(family, dtype):
    """Kernels may write large outputs by non-temporal stores. Tests every alignment of `out`."""
    rng = np.random.default_rng(15)
    size = 3 * LARGE_OUTPUT // dtype().itemsize
    room = np.empty(size + 64, dtype)
    for c, plane in ((250, 1), (256, 1), (37, 1009), (16, 1024)):
        shape = (size // (c * plane), c) if plane == 1 else (size // (c * plane), c, plane)
        sample = np.arange(shape[0], dtype=dtype).reshape(-1, *[1] * (len(shape) - 1))
        x = sample + normal(rng, (1, *shape[1:]), dtype)
        mean, var = statistics(rng, c, dtype)
        with using_small_caches():
            want = np.concatenate([lnrnn.batch_norm(part, mean, var) for part in np.array_split(x, 4)])
            for skip in (0, 1):
                room.fill(7)
                out = room[skip : skip + x.size].reshape(shape)
                np.testing.assert_array_equal(lnrnn.batch_norm(x, mean, var, out=out), want)
                assert (room[:skip] == 7).all() and (room[skip + x.size :] == 7).all()


def test_long_channels_keep_their_digits(family):
    """A channel has 300,000 values: 100,000 contiguous ones in each sample, or one column."""
    x = (100 + np.random.default_rng(9).standard_normal((3, 2, 100_000))).astype(np.float32)
    gy = np.random.default_rng(10).standard_normal(x.shape).astype(np.float32)
    for a, g in ((x, gy), (x.swapaxes(1, 2).reshape(-1, 2), gy.swapaxes(1, 2).reshape(-1, 2))):
        check_forward(a, np.zeros(2, np.float32), np.ones(2, np.float32), None, None, True)
        check_backward(g, a, None, None, np.ones(2, np.float32), True)


@each_dtype
def test_running_statistics_equal_the_reference(family, dtype):
    x = normal(np.random.default_rng(11), (6, 5, 3), dtype)
    for momentum in (0, 0.1, 0.5, 1):
        check_forward(x, np.full(5, 2, dtype), np.full(5, 3, dtype), None, None, True, momentum=momentum)
    mean, var = np.full(5, 2, dtype), np.full(5, 3, dtype)
    lnrnn.batch_norm(x, mean, var, training=True, momentum=0)
    assert (mean == 2).all() and (var == 3).all()
    lnrnn.batch_norm(x, mean, None, training=True, momentum=1)  # mean or var alone is allowed
    lnrnn.batch_norm(x, None, var, training=True, momentum=1)
    assert relative_error(mean, x.mean((0, 2), dtype=np.float64)) < 2e-7 * SCALE[dtype]
    assert relative_error(var, x.var((0, 2), ddof=1, dtype=np.float64)) < FORWARD * SCALE[dtype]


def test_running_statistics_keep_their_own_dtype_and_memory():
    x = np.random.default_rng(12).standard_normal((6, 5)).astype(np.float32)
    table = np.zeros((5, 4))
    mean, var = table[:, 0], table[:, 2]
    lnrnn.batch_norm(x, mean, var, training=True, momentum=1)
    assert absolute_error(table[:, 0], x.astype(np.float64).mean(0)) < 1e-7
    assert absolute_error(table[:, 2], x.astype(np.float64).var(0, ddof=1)) < 5e-7
    assert not table[:, 1::2].any()


@each_dtype
def test_running_statistics_may_overlap(family, dtype):
    """The new mean and the new variance are both computed before one of them is written."""
    x = normal(np.random.default_rng(17), (6, 5), dtype) + dtype(3)
    room = np.arange(1, 7, dtype=dtype)
    mean, var = room[:5].copy(), room[1:].copy()
    want = lnrnn.batch_norm(x, mean, var, training=True)
    expected = np.concatenate([mean[:1], var])
    np.testing.assert_array_equal(lnrnn.batch_norm(x, room[:5], room[1:], training=True), want)
    np.testing.assert_array_equal(room, expected)
