"""rms_norm against the reference: every ISA, both dtypes, every length."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from helpers import FLOATS, absolute_error, layouts, onnx_cases, relative_error
from lnrnn import reference as ref

LENGTHS = (*range(1, 51), 63, 64, 65, 127, 129, 255, 257, 1000, 1023, 1024, 4099, 70_001)

# As for layer norm: a few roundings of the largest value, 2^29 times smaller in float64.
FORWARD = {np.float32: 5e-7, np.float64: 5e-7 * 2.0**-29}

each_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.__name__)


def normal(rng, shape, dtype):
    return rng.standard_normal(shape).astype(dtype)


def true_rms_norm(x, n, weight=None, eps=None):
    eps = np.finfo(x.dtype).eps if eps is None else eps
    weight = None if weight is None else weight.astype(np.longdouble)
    return ref.rms_norm(x.astype(np.longdouble), n, weight, eps)


@each_dtype
def test_every_length(family, dtype):
    rng = np.random.default_rng(0)
    for n in LENGTHS:
        x, weight = normal(rng, (6, n), dtype) + dtype(1), normal(rng, n, dtype)
        for w in (None, weight):
            y = lnrnn.rms_norm(x, n, w)
            assert y.dtype == dtype
            assert relative_error(y, true_rms_norm(x, n, w)) < FORWARD[dtype], n
        assert (
            relative_error(lnrnn.rms_norm(x, n, weight, 0.5), true_rms_norm(x, n, weight, 0.5))
            < FORWARD[dtype]
        ), n


@each_dtype
def test_a_row_does_not_depend_on_its_company(family, dtype):
    x = normal(np.random.default_rng(1), (9, 77), dtype)
    y = lnrnn.rms_norm(x, 77)
    for k in range(9):
        np.testing.assert_array_equal(lnrnn.rms_norm(x[k:], 77), y[k:])
        np.testing.assert_array_equal(lnrnn.rms_norm(x[k], 77), y[k])


@each_dtype
def test_layouts_and_out(family, dtype):
    x, weight = normal(np.random.default_rng(2), (5, 9), dtype), normal(np.random.default_rng(3), 9, dtype)
    y = lnrnn.rms_norm(x, 9, weight)
    for name, other in layouts(x).items():
        np.testing.assert_array_equal(lnrnn.rms_norm(other, 9, weight), y, err_msg=name)
    out = np.empty_like(x)
    assert lnrnn.rms_norm(x, (9,), weight, out=out) is out
    np.testing.assert_array_equal(out, y)
    np.testing.assert_array_equal(lnrnn.rms_norm(x, 9, weight, out=x), y)


@each_dtype
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_row(family, dtype, poison):
    """A NaN spoils its row; an infinity leaves 0 beside itself, as x / infinity is."""
    for n in (1, 5, 16, 40, 3000):
        x = normal(np.random.default_rng(5), (9, n), dtype)
        clean = lnrnn.rms_norm(x, n)
        for row in (2, 8):  # one of four, and one alone
            bad = x.copy()
            bad[row, n // 2] = poison
            y = lnrnn.rms_norm(bad, n)
            np.testing.assert_array_equal(np.delete(y, row, 0), np.delete(clean, row, 0))
            assert np.isnan(y[row, n // 2])
            others = np.delete(y[row], n // 2)
            assert np.isnan(others).all() if np.isnan(poison) else not others.any()


def test_small_values_and_no_values():
    x = np.full((2, 4), 2.0**-12, np.float32)
    for eps in (None, float(np.finfo(np.float32).eps)):  # the default is not to be seen as 0 or 1e-5
        np.testing.assert_allclose(
            lnrnn.rms_norm(x, 4, eps=eps), 2.0**-12 / np.sqrt(2.0**-24 + 2.0**-23), rtol=1e-6
        )
    np.testing.assert_array_equal(lnrnn.rms_norm(x, 4, eps=0), 1)
    np.testing.assert_array_equal(lnrnn.rms_norm(np.zeros((2, 4)), 4), 0)
    assert lnrnn.rms_norm(np.zeros((0, 4)), 4).shape == (0, 4)


@pytest.mark.parametrize(
    "error, name, change",
    [
        (ValueError, "x", {"normalized_shape": 5}),
        (ValueError, "weight", {"weight": np.ones(3)}),
        (ValueError, "eps", {"eps": -1.0}),
        (TypeError, "eps", {"eps": "1"}),
        (TypeError, "x", {"x": np.ones((3, 4), complex)}),
        (TypeError, "out", {"out": np.ones((3, 4), np.float32)}),
    ],
)
def test_bad_input_is_refused_by_name(error, name, change):
    with pytest.raises(error, match=f"^{name} must"):
        lnrnn.rms_norm(**{"x": np.ones((3, 4)), "normalized_shape": 4, **change})


def test_against_torch():
    torch = pytest.importorskip("torch")
    x = normal(np.random.default_rng(4), (5, 9), np.float32)
    want = torch.nn.functional.rms_norm(torch.from_numpy(x), (9,)).numpy()
    np.testing.assert_allclose(lnrnn.rms_norm(x, 9), want, rtol=1e-6)


ONNX = onnx_cases("RMSNormalization")


@pytest.mark.parametrize("case", ONNX, ids=[c["name"].removeprefix("test_") for c in ONNX])
def test_onnx(family, case):
    x, weight = case["inputs"].values()
    axis = case["attributes"].get("axis", -1) % x.ndim
    y = lnrnn.rms_norm(x, x.shape[axis:], weight, case["attributes"].get("epsilon", 1e-5))
    assert absolute_error(y, case["outputs"]["Y"]) < 1e-6  # of values up to 5
