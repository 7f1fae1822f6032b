"""Compares norms of values of every magnitude with the reference, even if their squares overflow or
underflow.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import lnrnn
from helpers import SCALE, absolute_error, each_dtype, normal, relative_error, using_small_caches, wide
from lnrnn import reference as ref
from networks import (
    VARIANTS,
    calm,
    equal,
    named_gradients,
    network,
    parts,
    reference_backward,
    reference_forward,
    whole,
)
from networks import normal as normal32

same = np.testing.assert_array_equal
LENGTHS = (2, 3, 8, 16, 17, 33, 100, 1000, 5000)
# Tolerances of test_layer_norm.py, relative to the largest value of a row.
FORWARD, BACKWARD = 5e-7, 1e-6


def extremes(rng, n, dtype):
    """Returns rows (7, n). The squares of row 0 overflow, and those of row 3 underflow. Row 1 has the largest
    number, 2 is ordinary, 4 is subnormal, 5 and 6 deviate by 2^-20 from a large and a small mean."""
    info = np.finfo(dtype)
    large, small = (1e19, 1e-23) if dtype is np.float32 else (1e155, 1e-165)
    rows = [
        normal(rng, n, np.float64) * large,
        rng.uniform(-1, 1, n) * info.max,
        normal(rng, n, np.float64),
        normal(rng, n, np.float64) * small,
        rng.integers(-1000, 1000, n) * info.smallest_subnormal,
        large * 1e10 * (1 + rng.integers(-8, 8, n) * 2.0**-20),
        small * 1e-5 * (1 + rng.integers(-8, 8, n) * 2.0**-20),
    ]
    rows[1][0] = info.max
    for row in rows[2:]:
        row[0] *= 1.5  # so that no row is constant
    return np.array(rows).astype(dtype)


def rows_agree(got, want, most):
    for k, (g, w) in enumerate(zip(got, want, strict=True)):
        assert relative_error(g, w) < most, k


@each_dtype
@pytest.mark.parametrize("affine", [False, True])
def test_layer_and_rms_norm_of_every_magnitude(family, dtype, affine):
    """Results agree with the reference, and a row of ordinary values has the same bits as alone."""
    rng = np.random.default_rng(1)
    for n in LENGTHS:
        x = extremes(rng, n, dtype)
        weight, bias = normal(rng, (2, n), dtype) if affine else (None, None)
        y, r = lnrnn.layer_norm(x, n, weight, bias, 0), lnrnn.rms_norm(x, n, weight, 0)
        rows_agree(y, ref.layer_norm(*wide(x), n, *wide(weight, bias), 0), FORWARD * SCALE[dtype])
        rows_agree(r, ref.rms_norm(*wide(x), n, *wide(weight), 0), FORWARD * SCALE[dtype])
        for k, row in enumerate(x):
            same(lnrnn.layer_norm(row, n, weight, bias, 0), y[k])
            same(lnrnn.rms_norm(row, n, weight, 0), r[k])
        same(lnrnn.layer_norm(x, n, weight, bias, 0, out=x), y)


@each_dtype
def test_layer_norm_backward_of_every_magnitude(family, dtype):
    rng = np.random.default_rng(2)
    for n in LENGTHS[1:]:
        x = np.delete(extremes(rng, n, dtype), 4, 0)  # row 4 has gradients beyond the largest number
        gy, (weight, bias) = normal(rng, x.shape, dtype), normal(rng, (2, n), dtype)
        got = lnrnn.layer_norm_backward(gy, x, n, weight, bias, 0)
        want = ref.layer_norm_backward(*wide(gy, x), (n,), *wide(weight, bias), 0)
        rstd = 1 / wide(x)[0].std(1)
        for k, u in enumerate(np.abs(gy * weight).max(1)):
            # a subnormal gradient is also rounded to a multiple of the smallest subnormal number
            most = BACKWARD * SCALE[dtype] * u * rstd[k] + float(np.finfo(dtype).smallest_subnormal)
            assert np.abs(got[0][k].astype(np.longdouble) - want[0][k]).max() <= most, (n, k)
        for g, w in zip(got[1:], want[1:], strict=True):
            assert absolute_error(g, w) < BACKWARD * SCALE[dtype] * np.abs(gy).sum(0).max(), n


def test_bfloat16_of_every_magnitude(family):
    """bfloat16 has the range of float32, in which it is computed."""
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    rng = np.random.default_rng(3)
    for n in LENGTHS:
        x = extremes(rng, n, np.float32)[:5]
        x[1] /= 2  # the largest float32 is too large for bfloat16
        x, gy = x.astype(bfloat16), normal(rng, x.shape, np.float32).astype(bfloat16)
        single, gs = x.astype(np.float32), gy.astype(np.float32)
        weight = normal(rng, n, np.float32)
        for call in (
            lambda x, gy, n=n, w=weight: lnrnn.layer_norm(x, n, w, eps=0),
            lambda x, gy, n=n, w=weight: lnrnn.rms_norm(x, n, w, 0),
            lambda x, gy, n=n, w=weight: lnrnn.layer_norm_backward(gy, x, n, w, eps=0)[0],
            lambda x, gy, w=weight: lnrnn.batch_norm(x, None, None, w, None, True, eps=0.0),
        ):
            narrow, wider = call(x, gy), call(single, gs)
            same(narrow.astype(np.float32), wider.astype(bfloat16).astype(np.float32))


@each_dtype
def test_large_outputs_of_every_magnitude(family, dtype):
    rng = np.random.default_rng(4)
    few = extremes(rng, 1009, dtype)
    x, (weight, bias) = np.tile(few, (100, 1)), normal(rng, (2, 1009), dtype)
    for norm, *arguments in ((lnrnn.layer_norm, weight, bias, 0), (lnrnn.rms_norm, weight, 0)):
        want = np.tile(norm(few, 1009, *arguments), (100, 1))
        with using_small_caches():
            same(norm(x, 1009, *arguments), want)


@each_dtype
def test_constant_rows_and_a_tiny_eps(family, dtype):
    """A row of equal values has variance 0. So the result is the bias or, if eps is 0, NaN (0 / 0)."""
    eps = 1e-40 if dtype is np.float32 else 1e-320
    info = np.finfo(dtype)
    values = [0, -0.0, 1e-40, 1e-30, 0.1, -1 / 3, 1, 1e4 + 0.1, 16777217, -1e30, 3e38, info.max, info.tiny]
    values = np.array(values, dtype)
    for n in (1, 2, 3, 5, 7, 16, 33, 64, 65, 100, 1000):
        x, bias = np.repeat(values[:, None], n, axis=1), normal(np.random.default_rng(5), n, dtype)
        for e in (eps, 1e-5):
            same(lnrnn.layer_norm(x, n, bias, bias, e), np.broadcast_to(bias, x.shape))
        assert np.isnan(lnrnn.layer_norm(x, n, None, bias, 0)).all()
        for y in (x.T, x[None]):
            same(lnrnn.batch_norm(y, None, None, training=True, eps=eps), 0) if n > 1 else None
    # The rounded mean of several equal values is usually not exactly this value. The kernel subtracts such a
    # mean, and the variance must be 0 nevertheless.
    values = (info.max * np.random.default_rng(6).uniform(0.01, 1, 200)).astype(dtype)
    for shape in ((7, 200), (3, 200, 5)):
        x = np.broadcast_to(values.reshape(200, *[1] * (len(shape) - 2)), shape)
        same(lnrnn.batch_norm(x, None, None, training=True, eps=eps), 0)


@each_dtype
def test_nan_and_infinity_of_every_kind(family, dtype):
    rng = np.random.default_rng(6)
    for n in (5, 16, 100):
        for poison in (np.nan, np.inf, -np.inf):
            x, gy = extremes(rng, n, dtype), normal(rng, (7, n), dtype)
            x[:, n // 2] = poison
            assert np.isnan(lnrnn.layer_norm(x, n)).all()
            assert np.isnan(lnrnn.layer_norm_backward(gy, x, n)[0]).all()
            r = lnrnn.rms_norm(x, n)
            assert np.isnan(r[:, n // 2]).all()
            assert np.isnan(r).all() if np.isnan(poison) else not np.delete(r, n // 2, 1).any()


@each_dtype
def test_an_eps_of_the_size_of_the_variance(family, dtype):
    """Both eps and the variance may be too small or too large for the dtype."""
    rng = np.random.default_rng(11)
    small, large = (1e-23, 1e25) if dtype is np.float32 else (1e-155, 1e150)
    for n in (5, 16, 100):
        for size in (small, large):
            x, gy, eps = normal(rng, (7, n), dtype) * dtype(size), normal(rng, (7, n), dtype), size * size
            rows_agree(lnrnn.layer_norm(x, n, eps=eps), ref.layer_norm(*wide(x), n, eps=eps), FORWARD)
            rows_agree(lnrnn.rms_norm(x, n, eps=eps), ref.rms_norm(*wide(x), n, None, eps), FORWARD)
            got = lnrnn.layer_norm_backward(gy, x, n, eps=eps)[0]
            rows_agree(got, ref.layer_norm_backward(*wide(gy, x), (n,), None, None, eps)[0], BACKWARD)


@each_dtype
def test_one_extreme_row_changes_no_other_row(family, dtype):
    """Rows are computed four at a time. Any of the four may need scaling or a second pass."""
    rng = np.random.default_rng(10)
    for n in (5, 17, 100):
        far = normal(rng, (1, n), dtype)
        far[0, : min(n, 8)] += dtype(1e4)  # the pivot is the mean of these values
        gain, bias = normal(rng, (2, n), dtype)
        for row in np.concatenate([extremes(rng, n, dtype), far]):
            for place in range(5):
                x, gy = normal(rng, (2, 5, n), dtype)
                x[place] = row
                for eps in (0.0, 1e-5):
                    rows = [slice(k, k + 1) for k in range(5)]
                    for call in (
                        lambda r: lnrnn.layer_norm(x[r], n, gain, bias, eps),  # noqa: B023
                        lambda r: lnrnn.rms_norm(x[r], n, gain, eps),  # noqa: B023
                        lambda r: lnrnn.layer_norm_backward(gy[r], x[r], n, gain, bias, eps)[0],  # noqa: B023
                    ):
                        same(call(slice(None)), np.concatenate([call(r) for r in rows]), f"{n}, {place}")


@each_dtype
def test_batch_norm_in_training_of_every_magnitude(family, dtype):
    rng = np.random.default_rng(7)
    for n in (3, 17, 100, 2000):
        columns = extremes(rng, n, dtype)
        weight, bias = normal(rng, (2, 7), dtype)
        both = np.stack([columns, columns[:, ::-1]])
        for x in (np.ascontiguousarray(columns.T), columns[None].copy(), both):
            axes = (0, *range(2, x.ndim))
            mean, var = np.zeros(7), np.zeros(7)
            y = lnrnn.batch_norm(x, mean, var, weight, bias, True, 1.0, 0.0)
            given = wide(x, np.zeros(7), np.zeros(7), weight, bias)
            want, want_mean, want_var = ref.batch_norm(*given, True, 1, 0)
            rows_agree(np.moveaxis(y, 1, 0), np.moveaxis(want, 1, 0), FORWARD * SCALE[dtype])
            size = np.abs(wide(x)[0]).max(axes)
            unit = np.longdouble(np.finfo(np.float64).smallest_subnormal)
            assert (np.abs(mean - want_mean) <= 2e-7 * SCALE[dtype] * size + unit).all()
            held = (want_var < np.finfo(np.float64).max) & (want_var > np.finfo(np.float64).tiny)
            # the tolerance of var is twice that of y, because var is the square of y's denominator
            assert (np.abs(var - want_var)[held] <= 2 * FORWARD * SCALE[dtype] * want_var[held]).all()
            assert np.isinf(var[want_var > np.finfo(np.float64).max]).all()
            alone = np.ascontiguousarray(x[:, 2:3])
            same(lnrnn.batch_norm(alone, None, None, weight[2:3], bias[2:3], True, 1.0, 0.0), y[:, 2:3])
            gy = normal(rng, x.shape, dtype)
            got = lnrnn.batch_norm_backward(gy, x, None, None, weight, True, 0.0)
            slopes = ref.batch_norm_backward(*wide(gy, x, None, None, weight), True, 0)
            rstd = 1 / wide(x)[0].std(axes)
            for c in (0, 1, 2, 3, 5, 6):  # channel 4 has gradients beyond the largest number
                # for float64 the mean has no more digits than x, so x - mean loses some
                lost = 2.0**-53 * size[c] * rstd[c] if dtype is np.float64 else 0
                most = (BACKWARD * SCALE[dtype] + lost) * np.abs(gy[:, c] * weight[c]).max() * rstd[c]
                most += 2 * float(np.finfo(dtype).smallest_subnormal) * (1 + np.abs(gy[:, c]).max())
                assert (np.abs(got[0][:, c] - slopes[0][:, c]) <= most).all(), (n, c)
            assert absolute_error(got[1], slopes[1]) < BACKWARD * SCALE[dtype] * np.abs(gy).sum(axes).max()


def test_batch_norm_in_training_of_large_channels_with_eps(family, rng):
    """The kernel scales large channels down, and eps with them, so that eps stays negligible."""
    x = normal32(rng, 50, 5) * np.array([3e18, 1e19, 1e20, 1e21, 1e22], np.float32)
    y = lnrnn.batch_norm(x, None, None, training=True, eps=1e-5)
    want = ref.batch_norm(*wide(x, None, None), training=True, eps=1e-5)[0]
    rows_agree(y.T, want.T, FORWARD)


@pytest.mark.parametrize("name", [name for name in VARIANTS if "none" not in name and "batch" not in name])
def test_layer_norm_inside_a_cell_of_every_magnitude(family, name):
    """Results are accurate while sums are below 1e38 (docstring of lnrnn.RNN). Infinities give NaN."""
    rng = np.random.default_rng(8)
    rnn = calm(5, 33, **VARIANTS[name])
    for size in (1e20, 1e30, 1e37):
        x = normal32(rng, 4, 3, 5)
        x[1, 0] *= size
        x[2] *= size
        as_the_reference(rnn, x)
    y = rnn(np.full((1, 1, 5), np.inf, np.float32))[0]
    assert np.isnan(y).all()
    # The squares of these values are below the smallest normal number, and eps is as small as they are.
    norm = replace(VARIANTS[name].get("norm", lnrnn.LayerNormSpec()), eps=2.0**-130)
    rnn = calm(5, 33, **VARIANTS[name] | {"norm": norm})
    as_the_reference(rnn, normal32(rng, 1, 3, 5) * np.float32(2.0**-65))


FEW = ["RNN", "LSTM split carry", "GRU split sigmoid", "GRU gate relu", "GRU reset split", "LiGRU joint"]
BY_ROW = {name: model for name, model in VARIANTS.items() if name in FEW or "rms" in name}
# The sizes of rows, and gains that repeat over the units.
SIZES = np.array([0, 2.0**-140, 2.0**-75, 1, 2.0**100])
UNIT = 4e-6  # the tolerance for a unit; the largest measured error is 1.9e-6
GAINS = {"0": (1, 0, -0.5), "large": (1e30, -1, 0), "subnormal": (1e-40, -1), "infinite": (np.inf, 1)}


@pytest.mark.parametrize("hidden", [1, 5, 33])
@pytest.mark.parametrize("gains", GAINS)
@pytest.mark.parametrize("name", BY_ROW)
def test_units_of_a_cell_with_extreme_gains(family, name, gains, hidden):
    """Weights select inputs, so the products are exact, and each unit agrees with the reference. If eps is 0,
    subnormal rows give NaN, as rows of zeros do. A stream gives the same bits as a call."""
    norm = BY_ROW[name].get("norm", lnrnn.LayerNormSpec())
    for eps in (1e-5, 0) + (None,) * isinstance(norm, lnrnn.RMSNormSpec):
        rng = np.random.default_rng(12)
        gates = len(network(1, 1, **BY_ROW[name]).weight_ih_l0)
        rnn = network(gates * hidden, hidden, **BY_ROW[name] | {"norm": replace(norm, eps=eps)})
        for key, value in rnn.parameters().items():
            if key.startswith("weight"):
                setattr(rnn, key, np.resize(np.eye(value.shape[1]), value.shape))
            elif key.startswith("gain"):
                setattr(rnn, key, np.resize(GAINS[gains], value.shape))
        x = np.float32(rng.integers(-50, 50, (1, 5, gates * hidden)) * 2 + 1) * np.float32(SIZES[:, None])
        h0 = [np.float32(rng.integers(-50, 50, (1, 5, hidden)) / 8 + 1 / 16) for _ in parts(rnn, None)]
        h0 = whole(rnn, [s * np.float32(np.minimum(SIZES, 1))[:, None] for s in h0])
        y, state, tape = rnn.forward_train(x, h0)
        got = {"y": y, **named_gradients(rnn, rnn.backward(tape, np.ones_like(y)))}
        stream = rnn.stream(5)
        stream.state = h0
        equal(rnn, (stream(x[0]), stream.state), (y[0], state))
        if eps == 0:
            x[:, 1], h0 = 0, whole(rnn, [s * (SIZES != 2.0**-140)[:, None] for s in parts(rnn, h0)])
        with np.errstate(all="ignore"):
            want_y, _, tapes = reference_forward(rnn, x, h0, training=True)
            want = {"y": want_y, **named_gradients(rnn, reference_backward(rnn, tapes, np.ones_like(y)))}
            steps = tapes["_l0"].steps[0].norms.at.values()
            rstd = sum(1 / np.sqrt(a.var + rnn.norm.eps).reshape(5, -1).min(1, keepdims=True) for a in steps)
            # A norm over one unit has gradients whose terms cancel.
            terms = (UNIT * 8 * (hidden == 1) + 2 * np.finfo(np.float32).smallest_subnormal) * rstd
        names = ["y"] if gains == "large" else [key for key in want if not key.startswith("weight")]
        for key in names:  # products with gradients of 1e30 overflow
            right, left = want[key].astype(np.float32), got[key]
            finite = np.isfinite(right)
            same(left[~finite], right[~finite], err_msg=key)
            left, right = np.where(finite, left, 0), np.where(finite, right, 0)
            most = UNIT * np.maximum(1, abs(right))
            if key != "y":
                most = UNIT * abs(right).max(-1, keepdims=True) + (terms.max() if right.ndim == 1 else terms)
            assert not (abs(left - right) > most).any(), (key, eps)


def as_the_reference(rnn, x):
    y, state = rnn(x)
    want, want_state, _ = reference_forward(rnn, x)
    for got, right in zip((y, *parts(rnn, state)), (want, *parts(rnn, want_state)), strict=True):
        largest = abs(right).max() if isinstance(rnn, lnrnn.SLSTM) else 1  # m is as large as the sums
        assert absolute_error(got, right) < 3e-6 * max(1, largest)


def test_batch_norm_by_step_of_every_magnitude(family):
    rng = np.random.default_rng(9)
    rnn = calm(5, 33, norm="batch")
    for size in (1e20, 1e30, 1e37):
        x = normal32(rng, 3, 9, 5)
        x[1] *= size
        y = rnn.forward_train(x)[0]
        assert absolute_error(y, reference_forward(rnn, x, training=True)[0]) < 3e-6
