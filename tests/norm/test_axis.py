"""Layer and RMS norm over other axes than the last ones."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from helpers import named

SHAPE = (2, 5, 3, 4)
NORMS = {
    "layer_norm": lambda x, size, w, b, **o: lnrnn.layer_norm(x, size, w, b, **o),
    "rms_norm": lambda x, size, w, b, **o: lnrnn.rms_norm(x, size, w, **o),
}
each = pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
axes = pytest.mark.parametrize("axis", [0, 1, -2, 3, (1,), (1, 3), (3, 1), (-1, 0, 2), (3, 2, 1, 0)])


def moved(array, axis):
    axis = axis if isinstance(axis, tuple) else (axis,)
    return np.moveaxis(array, axis, range(-len(axis), 0))


def sizes(axis):
    return tuple(SHAPE[n] for n in axis) if isinstance(axis, tuple) else SHAPE[axis]


def arguments(rng, axis, dtype=np.float32):
    x = rng.standard_normal(SHAPE).astype(dtype)
    w, b = rng.standard_normal((2, *np.atleast_1d(sizes(axis))))
    return x, sizes(axis), w, b


@each
@axes
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_the_same_bits_as_with_these_axes_last(norm, axis, dtype, rng):
    x, size, w, b = arguments(rng, axis, dtype)
    y = norm(x, size, w, b, axis=axis)
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    assert y.flags.c_contiguous
    np.testing.assert_array_equal(moved(y, axis), norm(moved(x, axis), size, w, b))


@each
def test_out_in_any_layout_also_x_itself(norm, rng):
    x, size, w, b = arguments(rng, 1)
    want = norm(x, size, w, b, axis=1)
    columns = np.empty(SHAPE[::-1], np.float32).T
    assert norm(x, size, w, b, axis=1, out=columns) is columns
    np.testing.assert_array_equal(columns, want)
    assert norm(x, size, w, b, axis=1, out=x) is x
    np.testing.assert_array_equal(x, want)


@axes
def test_gradients(axis, rng):
    x, size, w, b = arguments(rng, axis)
    gy = rng.standard_normal(SHAPE)
    found = lnrnn.layer_norm_backward(gy, x, size, w, b, axis=axis)
    want = lnrnn.layer_norm_backward(moved(gy, axis), moved(x, axis), size, w, b)
    np.testing.assert_array_equal(moved(found[0], axis), want[0])
    for one, other in zip(found[1:], want[1:], strict=True):
        np.testing.assert_array_equal(one, other)
    assert lnrnn.layer_norm_backward(gy, x, size, axis=axis)[1:] == (None, None)


@pytest.mark.parametrize("empty", [(0, 5, 3), (2, 5, 0)])
def test_empty(empty):
    assert lnrnn.layer_norm(np.zeros(empty), 5, axis=1).shape == empty


@pytest.mark.parametrize(("size", "axis", "error", "name"), [
    (5, 4, ValueError, "axis"), (5, -5, ValueError, "axis"),
    (5, True, TypeError, "axis"), (5, 1.0, TypeError, "axis"),
    (5, (1, 2), ValueError, "axis"), (5, (), ValueError, "axis"), ((5, 5), (1, -3), ValueError, "axis"),
    (4, 1, ValueError, "x"), ((3, 5), (1, 2), ValueError, "x"),
])  # fmt: skip
def test_a_wrong_axis_is_refused_by_name(size, axis, error, name, rng):
    x = rng.standard_normal(SHAPE)
    for call in (
        lnrnn.layer_norm,
        lnrnn.rms_norm,
        lambda x, size, axis: lnrnn.layer_norm_backward(x, x, size, axis=axis),
    ):
        with pytest.raises(error, match=named(name)):
            call(x, size, axis=axis)


def test_out_of_another_shape_is_refused():
    out = np.full((2, 3, 4, 5), 7.0)
    with pytest.raises(ValueError, match=named("out")):
        lnrnn.layer_norm(np.ones(SHAPE), 5, axis=1, out=out)
    assert (out == 7).all()


def test_channels_of_images_against_torch(rng):
    torch = pytest.importorskip("torch")
    x, size, w, b = arguments(rng, 1, np.float64)
    want = torch.nn.functional.layer_norm(
        torch.from_numpy(x).permute(0, 2, 3, 1), (size,), *map(torch.from_numpy, (w, b))
    )
    np.testing.assert_allclose(lnrnn.layer_norm(x, size, w, b, axis=1), want.permute(0, 3, 1, 2), rtol=1e-12)
