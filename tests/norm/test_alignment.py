"""Where an array begins within a line of the cache changes no bit of a norm's result, and nothing beside
it."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

import lnrnn
from helpers import normal

DTYPES = [np.float32, np.float64, np.float16]
try:
    from ml_dtypes import bfloat16

    DTYPES.append(bfloat16)
except ImportError:
    pass
# Rows of 2 KiB and more have a head of their own, up to where vectors are aligned.
SHAPES = [(9, 2048), (7, 1027), (5, 512)]


def placed(x, skip):
    """The values of x in memory that begins `skip` elements after the start of a line; and what lies around
    them."""
    room = np.full(x.nbytes + 256, 0xA5, np.uint8)
    at = -room.ctypes.data % 64 + 64 + skip * x.itemsize
    y = room[at : at + x.nbytes].view(x.dtype).reshape(x.shape)
    y[...] = x
    return y, [room[:at], room[at + x.nbytes :]]


def skips(dtype):
    line = 64 // np.dtype(dtype).itemsize
    return sorted({0, 1, line // 4, line // 2, line - 1})


def same(got, want):
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(np.asarray(g).view(np.uint8), np.asarray(w).view(np.uint8))


def untouched(around):
    return all(np.all(part == 0xA5) for part in around)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm(family, dtype, shape, rng):
    n = shape[1]
    x, gy = (normal(rng, shape, np.float32).astype(dtype) for _ in range(2))
    weight, bias = (normal(rng, n, np.float32).astype(dtype) for _ in range(2))
    want = [
        lnrnn.layer_norm(x, n, weight, bias),
        lnrnn.layer_norm(x, n, weight),
        lnrnn.rms_norm(x, n, weight),
    ]
    slopes = lnrnn.layer_norm_backward(gy, x, n, weight, bias)
    for skip in skips(dtype):
        here, _ = placed(x, skip)
        got, around = zip(*(placed(np.zeros_like(x), s) for s in (skip, 0, skip)), strict=True)
        lnrnn.layer_norm(here, n, weight, bias, out=got[0])
        lnrnn.layer_norm(here, n, weight, out=got[1])
        lnrnn.rms_norm(here, n, weight, out=got[2])
        same(got, want)
        assert all(map(untouched, around))
        same(lnrnn.layer_norm_backward(placed(gy, 1)[0], here, n, weight, bias), slopes)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(70, 1024), (70, 1027), (5, 3, 700)])
def test_batch_norm(family, dtype, shape, rng):
    C = shape[1]
    x, gy = (normal(rng, shape, np.float32).astype(dtype) for _ in range(2))
    weight, bias, mean = (normal(rng, C, np.float32) for _ in range(3))
    var = 1 + mean**2

    def results(x, gy, out):
        running = mean.copy(), var.copy()
        trained = lnrnn.batch_norm(x, *running, weight, bias, True, out=out).copy()
        given = lnrnn.batch_norm(x, mean, var, weight, bias, out=out).copy()
        slopes = (lnrnn.batch_norm_backward(gy, x, mean, var, weight, mode) for mode in (True, False))
        return [trained, *running, given, *chain(*slopes)]

    want = results(placed(x, 0)[0], placed(gy, 0)[0], placed(x, 0)[0])
    for skip in skips(dtype):
        out, around = placed(np.zeros_like(x), skip)
        same(results(placed(x, skip)[0], placed(gy, 1)[0], out), want)
        same(results(placed(x, 1)[0], placed(gy, skip)[0], out), want)
        assert untouched(around)
