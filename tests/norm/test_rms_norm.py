"""Compares rms_norm and its gradients with the reference: every instruction set, dtype and length."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from helpers import (
    LENGTHS,
    SCALE,
    each_dtype,
    normal,
    relative_error,
    wide,
)
from lnrnn import reference as ref

# The tolerances of test_layer_norm.py: a few roundings of the largest value.
FORWARD, BACKWARD = 5e-7, 1e-6


@each_dtype
def test_every_length_equals_the_reference(family, dtype):
    rng = np.random.default_rng(0)
    for n in (*LENGTHS, 70_001):
        x, weight = normal(rng, (6, n), dtype) + dtype(1), normal(rng, n, dtype)
        for w, eps in ((None, None), (weight, None), (weight, 0.5)):
            y = lnrnn.rms_norm(x, n, w, eps)
            assert y.dtype == dtype
            want = ref.rms_norm(*wide(x), n, *wide(w), np.finfo(dtype).eps if eps is None else eps)
            assert relative_error(y, want) < FORWARD * SCALE[dtype], n


@each_dtype
def test_gradients_at_every_length_equal_the_reference(family, dtype):
    rng = np.random.default_rng(2)
    for n in (*LENGTHS, 70_001):
        x, gy = normal(rng, (2, 70 if n == 33 else 6, n), dtype) + dtype(1)
        weight = normal(rng, n, dtype)
        for w, eps in ((None, None), (weight, None), (weight, 0.5)):
            gx, gweight = lnrnn.rms_norm_backward(gy, x, n, w, eps)
            assert gx.dtype == dtype and (gweight is None) == (w is None)
            e = np.finfo(dtype).eps if eps is None else eps
            want = ref.rms_norm_backward(*wide(gy, x), n, *wide(w), e)
            # One value cancels almost entirely, so its error is relative to the terms of the gradient.
            scale = np.abs(want[0]).max() if n > 1 else np.abs(gy * (1 if w is None else w) / x).max()
            assert np.abs(gx - want[0]).max() < BACKWARD * SCALE[dtype] * scale, n
            assert w is None or relative_error(gweight, want[1]) < BACKWARD * SCALE[dtype], n


@each_dtype
def test_gradients_of_every_magnitude(family, dtype):
    """A power of two as a factor of x divides gx by it, to the last bit, and leaves gweight."""
    rng, largest = np.random.default_rng(3), 120 if dtype == np.float32 else 1000
    x, gy = normal(rng, (2, 6, 40), dtype)
    weight = normal(rng, 40, dtype)
    gx, gweight = lnrnn.rms_norm_backward(gy, x, 40, weight, 0)
    for power in (-largest, -70, 70, largest):
        scaled = lnrnn.rms_norm_backward(np.ldexp(gy, power // 2), np.ldexp(x, power), 40, weight, 0)
        same_bits = np.ldexp(scaled[0], power - power // 2), np.ldexp(scaled[1], -(power // 2))
        for got, want in zip(same_bits, (gx, gweight), strict=True):
            np.testing.assert_array_equal(got, want)


@each_dtype
def test_a_row_does_not_depend_on_other_rows(family, dtype):
    x = normal(np.random.default_rng(1), (9, 77), dtype)
    y, gx = lnrnn.rms_norm(x, 77), lnrnn.rms_norm_backward(x[::-1], x, 77)[0]
    for k in range(9):
        np.testing.assert_array_equal(lnrnn.rms_norm(x[k:], 77), y[k:])
        np.testing.assert_array_equal(lnrnn.rms_norm(x[k], 77), y[k])
        np.testing.assert_array_equal(lnrnn.rms_norm_backward(x[8 - k], x[k], 77)[0], gx[k])


def test_gradients_take_axes_and_other_arguments_as_those_of_layer_norm():
    x, gy = normal(np.random.default_rng(4), (2, 3, 5, 4), np.float32)
    weight = np.arange(1, 6)
    gx, gweight = lnrnn.rms_norm_backward(gy, x, 5, weight, axis=1)
    want = lnrnn.rms_norm_backward(gy.swapaxes(1, 2), x.swapaxes(1, 2), (5,), weight.astype(np.float32))
    np.testing.assert_array_equal(gx, want[0].swapaxes(1, 2))
    np.testing.assert_array_equal(gweight, want[1])
    assert lnrnn.rms_norm_backward(gy, x, 4)[1] is None
    assert lnrnn.rms_norm_backward(gy[:0], x[:0], 4, np.ones(4))[1].tolist() == [0] * 4
    half = [a.astype(np.float16) for a in (gy, x)]
    got = lnrnn.rms_norm_backward(*half, 4)[0]
    np.testing.assert_array_equal(got, lnrnn.rms_norm_backward(*wide(*half), 4, eps=2.0**-23)[0].astype("e"))
    with pytest.raises(ValueError, match=r"gy must be of shape \(3, 5, 4\)"):
        lnrnn.rms_norm_backward(gy[0], x, 4)


@each_dtype
def test_the_layer_is_the_function(family, dtype):
    x = normal(np.random.default_rng(6), (3, 5), dtype)
    layer = lnrnn.RMSNorm(5)
    assert repr(layer) == "RMSNorm((5,), eps=None, elementwise_affine=True)"
    layer.load_state_dict({"weight": np.arange(5.0)})
    np.testing.assert_array_equal(layer(x), lnrnn.rms_norm(x, 5, np.arange(5.0)))
    np.testing.assert_array_equal(layer(x.tolist()), layer(x.astype(np.float64)))
    layer.eps = 0.5
    out = np.empty_like(x)
    assert layer(x, out=out) is out
    np.testing.assert_array_equal(out, lnrnn.rms_norm(x, 5, np.arange(5.0), 0.5))
    bare = lnrnn.RMSNorm(5, elementwise_affine=False)
    assert bare.state_dict() == {} and bare.weight is None
    np.testing.assert_array_equal(bare(x), lnrnn.rms_norm(x, 5))
    for name, value in (("eps", -1), ("weight", np.ones(4)), ("bias", np.ones(5))):
        with pytest.raises((ValueError, AttributeError), match=name):
            setattr(layer, name, value)


@each_dtype
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_nan_and_infinity_stay_in_their_row(family, dtype, poison):
    """A NaN makes its row NaN. An infinity makes the other values 0, because x / infinity is 0."""
    for n in (1, 5, 16, 40, 3000):
        x = normal(np.random.default_rng(5), (9, n), dtype)
        clean = lnrnn.rms_norm(x, n)
        for row in (2, 8):  # the kernel computes rows in fours: row 2 is in a group, row 8 is alone
            bad = x.copy()
            bad[row, n // 2] = poison
            y = lnrnn.rms_norm(bad, n)
            np.testing.assert_array_equal(np.delete(y, row, 0), np.delete(clean, row, 0))
            assert np.isnan(y[row, n // 2])
            others = np.delete(y[row], n // 2)
            assert np.isnan(others).all() if np.isnan(poison) else not others.any()


def test_tiny_values_and_empty_rows():
    x = np.full((2, 4), 2.0**-12, np.float32)
    for eps in (None, float(np.finfo(np.float32).eps)):  # the default eps must not be 0 or 1e-5
        y = lnrnn.rms_norm(x, 4, eps=eps)
        np.testing.assert_allclose(y, 2.0**-12 / np.sqrt(2.0**-24 + 2.0**-23), rtol=1e-6)
    for dtype in (np.float32, np.float64):  # their default eps differ
        y = lnrnn.rms_norm(x.astype(dtype), 4)
        np.testing.assert_allclose(y, ref.rms_norm(x.astype(dtype), 4), rtol=1e-6)
    np.testing.assert_array_equal(lnrnn.rms_norm(x, 4, eps=0), 1)
    np.testing.assert_array_equal(lnrnn.rms_norm(np.zeros((2, 4)), 4), 0)
    assert lnrnn.rms_norm(np.zeros((0, 4)), 4).shape == (0, 4)
