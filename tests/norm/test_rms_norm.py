"""Compares rms_norm with the reference: every instruction set, float32 and float64, every length."""

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

# The tolerance is that of test_layer_norm.py: a few roundings of the largest value.
FORWARD = 5e-7


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
def test_a_row_does_not_depend_on_other_rows(family, dtype):
    x = normal(np.random.default_rng(1), (9, 77), dtype)
    y = lnrnn.rms_norm(x, 77)
    for k in range(9):
        np.testing.assert_array_equal(lnrnn.rms_norm(x[k:], 77), y[k:])
        np.testing.assert_array_equal(lnrnn.rms_norm(x[k], 77), y[k])


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
