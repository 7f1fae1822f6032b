"""The layout of a norm's arrays changes no bit, and nothing is written around an output."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from helpers import FLOATS, each_dtype, layouts, normal

try:
    from ml_dtypes import bfloat16

    DTYPES = [*FLOATS, np.float16, bfloat16]
except ImportError:
    DTYPES = [*FLOATS, np.float16]

NORMS = ("layer_norm", "rms_norm", "batch_norm", "batch_norm training")
each_norm = pytest.mark.parametrize("norm", NORMS)
same = np.testing.assert_array_equal


def drawn(rng, norm, shape, dtype):
    """Returns the arrays of one call. Layer and RMS norm normalise all axes but the first."""
    own = shape[1:2] if norm.startswith("batch") else shape[1:]
    x, gy = normal(rng, (2, *shape), np.float32).astype(dtype)
    weight, bias, mean = normal(rng, (3, *own), np.float32).astype(dtype)
    arrays = dict(x=x, gy=gy, weight=weight, bias=bias)
    if norm.startswith("batch"):
        kind = np.float64 if dtype == np.float64 else np.float32
        arrays |= dict(mean=mean.astype(kind), var=1 + mean.astype(kind) ** 2)
    return arrays


def forward(norm, a, out=None):
    """Returns y, and the new statistics of batch norm in training, without changing the given ones."""
    x, weight, bias, over = a["x"], a["weight"], a["bias"], a["x"].shape[1:]
    if norm == "layer_norm":
        return [lnrnn.layer_norm(x, over, weight, bias, out=out)]
    if norm == "rms_norm":
        return [lnrnn.rms_norm(x, over, weight, out=out)]
    if norm == "batch_norm":
        return [lnrnn.batch_norm(x, a["mean"], a["var"], weight, bias, out=out)]
    running = a["mean"].copy(), a["var"].copy()
    return [lnrnn.batch_norm(x, *running, weight, bias, True, out=out), *running]


def backward(norm, a):
    if norm == "layer_norm":
        return lnrnn.layer_norm_backward(a["gy"], a["x"], a["x"].shape[1:], a["weight"], a["bias"])
    if norm == "rms_norm":
        return ()
    given = a["gy"], a["x"], a["mean"], a["var"], a["weight"]
    return lnrnn.batch_norm_backward(*given, norm.endswith("training"))


def equal(got, want, message=""):
    for g, w in zip(got, want, strict=True):
        same(np.asarray(g), np.asarray(w), err_msg=message)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@each_norm
@pytest.mark.parametrize("shape", [(5, 9), (3, 4, 9), (2, 3, 4, 5)])
def test_layouts_change_no_bit(family, norm, dtype, shape, rng):
    a = drawn(rng, norm, shape, dtype)
    y, slopes = forward(norm, a), backward(norm, a)
    laid = {key: layouts(value) for key, value in a.items()}
    for name in laid["x"]:
        other = {key: values[name] for key, values in laid.items()}
        equal(forward(norm, other), y, name)
        equal(backward(norm, other), slopes, name)
    for name, out in layouts(np.zeros_like(a["x"])).items():
        if out.flags.writeable and out.dtype.isnative:
            assert forward(norm, a, out)[0] is out
            same(out, y[0], err_msg=name)
    last = np.moveaxis(np.ascontiguousarray(np.moveaxis(a["x"], 1, -1)), -1, 1)
    equal(forward(norm, a | {"x": last}), y, "another order of axes")


@each_dtype
@each_norm
def test_out_may_be_x_and_may_overlap(family, norm, dtype, rng):
    n = 23
    a, room = drawn(rng, norm, (4, n), dtype), normal(rng, 10 * n, dtype)
    for shift in (-2 * n, -n, -7, -1, 0, 1, 7, n, 2 * n):
        r = room.copy()
        x, out = r[3 * n : 7 * n].reshape(4, n), r[3 * n + shift : 7 * n + shift].reshape(4, n)
        want = forward(norm, a | {"x": x.copy()})
        got = forward(norm, a | {"x": x}, out)
        assert got[0] is out
        equal(got, want, f"shift {shift}")
    a = drawn(rng, norm, (n, n), dtype)
    want = forward(norm, a | {"x": a["x"].copy()})
    equal(forward(norm, a, a["x"].T), want, "the same memory in another order")
    a = drawn(rng, norm, (9, n), dtype)  # more rows than the kernel writes at once
    want = forward(norm, a)
    for k, name in enumerate(a.keys() - {"x", "gy"}):
        out = np.empty((9, n), dtype)
        out[k] = a[name]
        equal(forward(norm, a | {name: out[k]}, out), want, f"{name} lies in the output")


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0), (2, 3, 0), (0, 3, 4), (2, 0, 4), (0, 1)])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("norm", NORMS[:3])
def test_arrays_of_size_zero(norm, dtype, shape, rng):
    a = drawn(rng, norm, shape, dtype)
    for out in (None, a["x"]):
        (y,) = forward(norm, a, out)
        assert y.shape == shape and y.dtype == dtype
    for gx, *sums in [backward(norm, a)] if norm != "rms_norm" else []:
        assert gx.shape == shape and all(g.shape == a["weight"].shape and not g.any() for g in sums)
        assert gx.dtype == dtype and {g.dtype.itemsize for g in sums} == {max(np.dtype(dtype).itemsize, 4)}


def placed(shape, dtype, skip):
    """Returns an array `skip` elements after the start of a cache line, and the memory around it."""
    itemsize = np.dtype(dtype).itemsize
    size = int(np.prod(shape)) * itemsize
    room = np.full(size + 256, 0xA5, np.uint8)
    at = -room.ctypes.data % 64 + 64 + skip * itemsize
    return room[at : at + size].view(dtype).reshape(shape), (room[:at], room[at + size :])


# In rows of 2 KiB and more, layer norm begins with a partial vector, so that the other vectors are aligned.
# Batch norm adds four rows at a time if a row fills whole pages of memory.
ALIGNED = {
    "layer_norm": [(9, 2048), (7, 1027), (5, 512)], "rms_norm": [(9, 2048), (7, 1027)],
    "batch_norm": [(70, 1024), (70, 1027), (5, 3, 700)],
    "batch_norm training": [(70, 1024), (70, 1027), (5, 3, 700)],
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("norm, shape", [(n, shape) for n, shapes in ALIGNED.items() for shape in shapes])
def test_alignment_changes_no_bit(family, norm, dtype, shape, rng):
    a = drawn(rng, norm, shape, dtype)
    y, slopes = forward(norm, a), backward(norm, a)
    line = 64 // np.dtype(dtype).itemsize
    for skip in sorted({0, 1, line // 4, line // 2, line - 1}):
        for x_skip, gy_skip, out_skip in ((skip, 1, skip), (1, skip, 0)):
            here = {"x": placed(shape, dtype, x_skip)[0], "gy": placed(shape, dtype, gy_skip)[0]}
            for name, array in here.items():
                array[...] = a[name]
            out, around = placed(shape, dtype, out_skip)
            equal(forward(norm, a | here, out), y)
            assert all((part == 0xA5).all() for part in around)
            equal(backward(norm, a | here), slopes)
