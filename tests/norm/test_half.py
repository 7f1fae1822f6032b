"""Norms of float16 and bfloat16 are computed in float32 and rounded once, on every instruction set."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import lnrnn
from helpers import LENGTHS, normal
from lnrnn import reference as ref

ml_dtypes = pytest.importorskip("ml_dtypes")

HALVES = (np.float16, ml_dtypes.bfloat16)

each_half = pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.__name__)


def check(norm, x, *arguments):
    """Compares norm(x) with the norm of x in float32, rounded by NumPy or ml_dtypes. Returns norm(x)."""
    got = norm(x, *arguments)
    assert type(got) is np.ndarray and got.dtype == x.dtype and got.shape == x.shape
    np.testing.assert_array_equal(got, norm(x.astype(np.float32), *arguments).astype(x.dtype))
    return got


@each_half
def test_layer_and_rms_norm_at_every_length(family, dtype):
    rng = np.random.default_rng(0)
    unit = float(ml_dtypes.finfo(dtype).eps) / 2
    for n in LENGTHS:
        x, (weight, bias) = normal(rng, (5, n), dtype), normal(rng, (2, n), np.float32)
        for name, *parameters in (("layer_norm", weight, bias), ("rms_norm", weight)):
            got = check(getattr(lnrnn, name), x, n, *parameters)
            want = getattr(ref, name)(x, n, *parameters)
            assert (np.abs(got - want) <= unit * np.abs(want) + 5e-6 * np.abs(want).max()).all(), (name, n)
        check(lnrnn.layer_norm, x, n)


@each_half
def test_gradients_of_half_precision(family, dtype):
    """gx is rounded to x's dtype; gradients of parameters stay in float32."""
    rng = np.random.default_rng(2)
    for n in (1, 5, 16, 33, 300, 2048):
        x, gy, weight = normal(rng, (40, n), dtype), normal(rng, (40, n), dtype), normal(rng, n, np.float32)
        for backward, *arguments in (
            (lnrnn.layer_norm_backward, n, weight, weight),
            (lnrnn.batch_norm_backward, None, None, weight),
        ):
            got = backward(gy, x, *arguments)
            want = backward(gy.astype(np.float32), x.astype(np.float32), *arguments)
            np.testing.assert_array_equal(got[0], want[0].astype(dtype))
            for g, w in zip(got[1:], want[1:], strict=True):
                assert g.dtype == np.float32
                np.testing.assert_array_equal(g, w)


@each_half
def test_every_number_is_converted_correctly(family, dtype):
    """A norm that changes nothing reads all 65,536 numbers. Results are rounded to nearest even."""
    x = np.arange(65536, dtype=np.uint16).view(dtype).reshape(-1, 16)
    same = partial(lnrnn.batch_norm, running_mean=np.zeros(16), running_var=np.ones(16), eps=0.0)
    np.testing.assert_array_equal(same(x).astype(np.float32), x.astype(np.float32))
    bits = np.arange(0, 2**32, 4099, dtype=np.uint32)[: 2**20 - 16].view(np.float32)
    with np.errstate(all="ignore"):
        ones = np.ones((1, bits.size), dtype)
        y = lnrnn.batch_norm(ones, np.zeros(bits.size), np.ones(bits.size), bits, eps=0.0)
        np.testing.assert_array_equal(y[0].astype(np.float32), bits.astype(dtype).astype(np.float32))


@each_half
def test_parameters_of_the_same_dtype(family, dtype):
    rng = np.random.default_rng(3)
    x, p = normal(rng, (6, 9), dtype), normal(rng, 9, dtype)
    wide = p.astype(np.float32)
    np.testing.assert_array_equal(lnrnn.layer_norm(x, 9, p, p), lnrnn.layer_norm(x, 9, wide, wide))
    np.testing.assert_array_equal(lnrnn.rms_norm(x, 9, p), lnrnn.rms_norm(x, 9, wide))
    mean, var = np.zeros(9), np.ones(9)
    want = lnrnn.batch_norm(x, mean, var, wide, wide)
    np.testing.assert_array_equal(lnrnn.batch_norm(x, mean, var, p, p), want)


def test_half_precision_tensors_of_torch():
    torch = pytest.importorskip("torch")
    x = torch.randn(5, 9)
    for name, dtype in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
        half = x.to(getattr(torch, name))
        y = lnrnn.layer_norm(half, 9)
        assert y.dtype == dtype
        np.testing.assert_array_equal(y, lnrnn.layer_norm(half.float().numpy(), 9).astype(dtype))
    with pytest.raises(TypeError, match="x must be"):
        lnrnn.layer_norm(x.to(torch.bfloat16).requires_grad_(), 9)
