"""Layer norm, batch norm and activations as functions of arrays, with their gradients.

Dtypes of the norms: arguments are array-likes of real numbers. x of float32 or float64 is computed in its own
dtype. float16 and bfloat16 (arrays of ml_dtypes.bfloat16, or torch tensors on the CPU) are computed in
float32, and rounded to nearest even at the end. bool and integers become `np.result_type(x, np.float32)`.
Results have the dtype of x, gradients of parameters have the dtype of the computation. Weights and biases are
converted to the dtype of the computation. A non-contiguous array is copied once.

Magnitudes: if squares in a row overflow or underflow, the row is scaled by a power of two. Batch norm in
training scales channels in the same way. So the norm and the gradients of every finite row are correct, from
the smallest subnormal number to the largest number. Results beyond the range of the dtype are infinite:
gradients of very small x, and variances beyond 3.4e38 in a float32 running_var. Sums of gradients must not
overflow in the dtype of the computation. If batch norm uses given statistics, sums of gradients times x, and
x - running_mean, must not overflow either.

Memory: on Linux, results of 256 KiB and more are in memory blocks that lnrnn manages, unless `out` is given.
When such an array is deleted, lnrnn keeps the block for a later result: see docs/benchmarks_norms.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from .. import _core
from ..errors import bad_type, bad_value, flag, integer, number, output, real, shaped

Array = np.ndarray
Result = TypeVar("Result")
# The most elements of a parameter, checked because NumPy's MemoryError would not name the argument.
LARGEST = 2**40


def input_array(name: str, value: ArrayLike) -> Array:
    """Returns value as a C-contiguous, aligned array in a dtype that the kernels support."""
    array = real(name, value)
    # Test dtype.char first, because dtype.name takes longer than the conversion of a short array.
    if array.dtype.char not in "ef" and array.dtype.name != "bfloat16":
        array = np.asarray(array, np.result_type(array.dtype, np.float32))
        array = array if array.dtype == np.float32 else array.astype(np.float64, copy=False)
    return np.require(array, array.dtype.newbyteorder("="), ["C", "A"])


def _computed(x: Array) -> np.dtype:
    return np.dtype(np.float64 if x.dtype == np.float64 else np.float32)


def checked_shape(normalized_shape: int | tuple[int, ...]) -> tuple[int, ...]:
    one = isinstance(normalized_shape, str) or getattr(normalized_shape, "ndim", 1) == 0
    if one or not hasattr(normalized_shape, "__len__"):
        return (integer("normalized_shape", normalized_shape, 0, LARGEST),)
    shape = tuple(integer("normalized_shape", n, 0, LARGEST) for n in normalized_shape)  # type: ignore[union-attr]
    if not shape or math.prod(shape) > LARGEST:
        raise bad_value(
            "normalized_shape",
            "an integer or a tuple of at least one, of at most 2**40 elements",
            normalized_shape,
        )
    return shape


def _row_shape(x: Array, normalized_shape: int | tuple[int, ...]) -> tuple[int, ...]:
    """Returns normalized_shape as a tuple. Raises ValueError unless the last axes of x have this shape."""
    shape = checked_shape(normalized_shape)
    if x.shape[-len(shape) :] != shape:
        raise bad_value("x", f"an array whose last axes are normalized_shape {shape}", x)
    return shape


def _result(out: Array | None, x: Array, *others: Array | None) -> Array:
    """Returns the array for the kernels' result: `out` if possible, else a new array for `_deliver` to
    copy."""
    if out is None:
        return _core.empty_like(x)
    out = output("out", out, x.shape, x.dtype)
    same = out.ctypes.data == x.ctypes.data and out.flags.c_contiguous
    clash = (not same and np.may_share_memory(out, x)) or any(
        other is not None and np.may_share_memory(out, other) for other in others
    )
    if clash or not (out.flags.c_contiguous and out.flags.aligned and type(out) is np.ndarray):
        return _core.empty_like(x)
    return out


def _done(result: Result | None) -> Result:
    """Returns the result of a function of _core. Raises an error for None, which means a refused argument."""
    if result is None:  # pragma: no cover - another thread changes x at this moment
        raise RuntimeError("an array was changed by another thread during the call")
    return result


def _deliver(y: Array, out: Array | None) -> Array:
    """Returns `out` with the values of y, or y if out is None."""
    if out is None or out is y:
        return y
    place = out if isinstance(out, np.ndarray) else real("out", out)  # the memory of a tensor
    if place.ctypes.data != y.ctypes.data:
        place[...] = y
    return out


def _axes(x: Array, normalized_shape: Any, axis: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns normalized_shape as a tuple, and the axes of x with these sizes, counted from 0."""
    shape = checked_shape(normalized_shape)
    given = axis if isinstance(axis, (tuple, list)) else (axis,)
    if len(given) != len(shape):
        raise bad_value("axis", f"one axis for each size of normalized_shape {shape}", axis)
    axes = tuple(integer("axis", n, -x.ndim, x.ndim - 1) % x.ndim for n in given)
    if len(set(axes)) != len(axes):
        raise bad_value("axis", "different axes of x", axis)
    if tuple(x.shape[n] for n in axes) != shape:
        raise bad_value("x", f"an array whose axes {axes} are normalized_shape {shape}", x)
    return shape, axes


def _over_axes(
    norm: Callable[..., Array], x: ArrayLike, normalized_shape: Any, axis: Any, out: Any, *rest: Any
) -> Array:
    """Computes `norm`, layer_norm or rms_norm, over axes of x. rest: the arguments after normalized_shape."""
    x = input_array("x", x)
    shape, axes = _axes(x, normalized_shape, axis)
    if out is not None:
        output("out", out, x.shape, x.dtype)
    last = tuple(range(-len(axes), 0))
    y = np.ascontiguousarray(np.moveaxis(norm(np.moveaxis(x, axes, last), shape, *rest), last, axes))
    return _deliver(y, out)


def layer_norm(
    x: ArrayLike,
    normalized_shape: int | tuple[int, ...],
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
    *,
    axis: int | tuple[int, ...] | None = None,
    out: Array | None = None,
) -> Array:
    """Layer norm over the last axes, or over `axis`, as torch.nn.functional.layer_norm.

    Parameters
    ----------
    x : array_like of shape (*, *normalized_shape)
        Real numbers of any dtype.
    normalized_shape : int or tuple of int
        Sizes of the normalised axes.
    weight, bias : array_like of shape normalized_shape, optional
        Gain and bias; 1 and 0 by default.
    eps : float
        Added to the variance; at least 0.
    axis : int or tuple of int, optional
        The axes to normalise, as in normalized_shape; by default the last axes. Others need two copies of x.
    out : array of x's shape, optional
        An array for y, with the result's dtype. It may be x, or a torch tensor on the CPU without gradient.

    Returns
    -------
    y : array of x's shape
        The result, or `out`. It has the dtype of x; integers become floats.

    Raises
    ------
    ValueError
        For a wrong shape or eps.
    TypeError
        For other arguments than arrays of real numbers.

    Notes
    -----
    Equation 3 of Ba, Kiros and Hinton 2016, arXiv 1607.06450::

        y = (x - mean) / sqrt(var + eps) * weight + bias

    mean and the biased variance var are over the normalised axes.

    Examples
    --------
    >>> import numpy as np
    >>> import lnrnn
    >>> lnrnn.layer_norm([1.0, 2.0, 3.0], 3, eps=0).round(3)
    array([-1.225,  0.   ,  1.225])
    >>> images = np.ones((2, 3, 8, 8), np.float32)
    >>> lnrnn.layer_norm(images, 3, axis=1).shape  # over the channels of each pixel
    (2, 3, 8, 8)
    """
    if axis is not None:
        return _over_axes(layer_norm, x, normalized_shape, axis, out, weight, bias, eps)
    y = _core.layer_norm(x, normalized_shape, weight, bias, eps, out)
    if y is not None:
        return y
    x = input_array("x", x)
    shape = _row_shape(x, normalized_shape)
    weight = None if weight is None else shaped("weight", weight, shape, _computed(x))
    bias = None if bias is None else shaped("bias", bias, shape, _computed(x))
    eps = number("eps", eps, 0)
    y = _result(out, x, weight, bias)
    if x.size:
        _done(_core.layer_norm(x, shape, weight, bias, eps, y))
    return _deliver(y, out)


def rms_norm(
    x: ArrayLike,
    normalized_shape: int | tuple[int, ...],
    weight: ArrayLike | None = None,
    eps: float | None = None,
    *,
    axis: int | tuple[int, ...] | None = None,
    out: Array | None = None,
) -> Array:
    """RMS norm over the last axes, or over `axis`, as torch.nn.functional.rms_norm.

    Parameters
    ----------
    x, normalized_shape, weight, axis, out
        As in `layer_norm`.
    eps : float or None
        Added to the mean square; at least 0. None is the machine epsilon of the computed dtype.

    Returns
    -------
    y : array of x's shape
        As from `layer_norm`, with the same errors.

    Notes
    -----
    Equation 4 of Zhang and Sennrich 2019, arXiv 1910.07467::

        y = x / sqrt(mean(x^2) + eps) * weight

    Examples
    --------
    >>> import lnrnn
    >>> lnrnn.rms_norm([3.0, 4.0], 2, eps=0).round(3)
    array([0.849, 1.131])
    """
    if axis is not None:
        return _over_axes(rms_norm, x, normalized_shape, axis, out, weight, eps)
    y = _core.layer_norm(x, normalized_shape, weight, None, eps, out, False)
    if y is not None:
        return y
    x = input_array("x", x)
    shape = _row_shape(x, normalized_shape)
    weight = None if weight is None else shaped("weight", weight, shape, _computed(x))
    eps = float(np.finfo(_computed(x)).eps) if eps is None else number("eps", eps, 0)
    y = _result(out, x, weight)
    if x.size:
        _done(_core.layer_norm(x, shape, weight, None, eps, y, False))
    return _deliver(y, out)


def layer_norm_backward(
    gy: ArrayLike,
    x: ArrayLike,
    normalized_shape: int | tuple[int, ...],
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
    *,
    axis: int | tuple[int, ...] | None = None,
) -> tuple[Array, Array | None, Array | None]:
    """Return the gradients of `layer_norm`.

    Parameters
    ----------
    gy : array_like of x's shape
        Gradient of y.
    x, normalized_shape, weight, bias, eps, axis
        As in `layer_norm`.

    Returns
    -------
    gx : array of x's shape
        Gradient of x, computed in the dtype of x.
    gweight, gbias : array of shape normalized_shape, or None
        Gradients of weight and bias; None if weight or bias is None. They are summed in double precision, and
        do not depend on the number of threads.

    Examples
    --------
    >>> import numpy as np
    >>> import lnrnn
    >>> x = np.arange(6.0).reshape(2, 3)
    >>> gx, gweight, gbias = lnrnn.layer_norm_backward(np.ones((2, 3)), x, 3, np.ones(3), np.zeros(3))
    >>> gbias
    array([2., 2., 2.])
    """
    if axis is not None:
        x, gy = input_array("x", x), real("gy", gy)
        if gy.shape != x.shape:
            raise bad_value("gy", f"of x's shape {x.shape}", gy)
        shape, axes = _axes(x, normalized_shape, axis)
        last = tuple(range(-len(axes), 0))
        gy, x = np.moveaxis(gy, axes, last), np.moveaxis(x, axes, last)
        gx, gweight, gbias = layer_norm_backward(gy, x, shape, weight, bias, eps)
        return np.ascontiguousarray(np.moveaxis(gx, last, axes)), gweight, gbias
    found = _core.layer_norm_backward(gy, x, normalized_shape, weight, bias, eps)
    if found is not None:
        return found
    x = input_array("x", x)
    shape = _row_shape(x, normalized_shape)
    gy = shaped("gy", gy, x.shape, x.dtype)
    weight = None if weight is None else shaped("weight", weight, shape, _computed(x))
    bias = None if bias is None else shaped("bias", bias, shape, _computed(x))
    eps = number("eps", eps, 0)
    if x.size:
        return _done(_core.layer_norm_backward(gy, x, shape, weight, bias, eps))
    gweight, gbias = (None if p is None else np.zeros_like(p) for p in (weight, bias))
    return np.empty_like(x), gweight, gbias


def _channels(x: Array) -> int:
    if x.ndim < 2:
        raise bad_value("x", "of rank 2 or more, (N, C, *)", x)
    return int(x.shape[1])


def _enough(x: Array) -> None:
    if x.shape[1] and x.size // x.shape[1] < 2:
        raise bad_value("x", "of more than 1 value per channel in training", x)


def _running(name: str, value: Any, channels: int, training: bool) -> Array | None:
    """Returns a running statistic (C,) or None. In training it is `value` itself, to be updated in place."""
    if value is None:
        if not training:
            raise bad_value(name, f"an array of shape ({channels},) unless training", None)
        return None
    if not training:
        return shaped(name, value, (channels,), np.float64)
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        raise bad_type(name, "a numpy array of floats", value, "training updates it in place")
    return output(name, value, (channels,), value.dtype)


def batch_norm(
    x: ArrayLike,
    running_mean: ArrayLike | None,
    running_var: ArrayLike | None,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    out: Array | None = None,
) -> Array:
    """Batch norm for each channel, as torch.nn.functional.batch_norm.

    Parameters
    ----------
    x : array_like of shape (N, C, *)
        Real numbers of any dtype; axis 1 has the channels.
    running_mean, running_var : array_like of shape (C,), or None
        Running statistics for inference. In training None, or arrays of floats, which are updated in place.
    weight, bias : array_like of shape (C,), optional
        Gain and bias; 1 and 0 by default.
    training : bool
        Whether to normalise with the statistics of the batch.
    momentum : float
        Weight of the batch in the new running statistics, in [0, 1].
    eps : float
        Added to the variance; at least 0.
    out : array of x's shape, optional
        As in `layer_norm`.

    Returns
    -------
    y : array of x's shape
        The result, or `out`. It has the dtype of x; integers become floats.

    Raises
    ------
    ValueError
        For a wrong shape, eps or momentum, or one value per channel in training.
    TypeError
        For other arguments than arrays of real numbers.

    Notes
    -----
    Algorithms 1 and 2 of Ioffe and Szegedy 2015, arXiv 1502.03167::

        y = (x - mean) / sqrt(var + eps) * weight + bias
        running = (1 - momentum) * running + momentum * batch        in training

    In training mean and var are those of the batch; var is biased for y, and unbiased for running_var.

    Examples
    --------
    >>> import numpy as np
    >>> import lnrnn
    >>> mean, var = np.zeros(2), np.ones(2)
    >>> y = lnrnn.batch_norm([[1.0, 5.0], [3.0, 9.0]], mean, var, training=True, eps=0)
    >>> y
    array([[-1., -1.],
           [ 1.,  1.]])
    >>> mean
    array([0.2, 0.7])
    """
    y = _core.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps, out)
    if y is not None:
        return y
    x = input_array("x", x)
    C = _channels(x)
    training = flag("training", training)
    running = [_running(name, value, C, training) for name, value in
               (("running_mean", running_mean), ("running_var", running_var))]  # fmt: skip
    weight = None if weight is None else shaped("weight", weight, (C,), _computed(x))
    bias = None if bias is None else shaped("bias", bias, (C,), _computed(x))
    momentum, eps = number("momentum", momentum, 0, 1), number("eps", eps, 0)
    if training:
        _enough(x)
    y = _result(out, x, weight, bias, *running)
    if x.size:
        mean, var = plain = [None if r is None else np.array(r, np.float64) for r in running]
        _done(_core.batch_norm(x, mean, var, weight, bias, training, momentum, eps, y))
        if training:
            for old, new in zip(running, plain, strict=True):
                if old is not None and new is not None:
                    old[...] = new
    return _deliver(y, out)


def batch_norm_backward(
    gy: ArrayLike,
    x: ArrayLike,
    running_mean: ArrayLike | None = None,
    running_var: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    training: bool = True,
    eps: float = 1e-5,
) -> tuple[Array, Array | None, Array]:
    """Return the gradients of `batch_norm`.

    Parameters
    ----------
    gy : array_like of x's shape
        Gradient of y.
    x, running_mean, running_var, weight, eps
        As in `batch_norm`. The running statistics are used at inference only.
    training : bool
        Whether mean and variance are statistics of the batch, which depend on x, as in training.

    Returns
    -------
    gx : array of x's shape
        Gradient of x, computed in the dtype of x.
    gweight : array of shape (C,), or None
        Gradient of weight, None if weight is None. It is summed in double precision.
    gbias : array of shape (C,)
        Gradient of bias.

    Examples
    --------
    >>> import numpy as np
    >>> import lnrnn
    >>> gx, gweight, gbias = lnrnn.batch_norm_backward(np.ones((3, 2)), np.eye(3, 2))
    >>> gbias
    array([3., 3.])
    """
    found = _core.batch_norm_backward(gy, x, running_mean, running_var, weight, training, eps)
    if found is not None:
        return found
    x = input_array("x", x)
    C = _channels(x)
    gy = shaped("gy", gy, x.shape, x.dtype)
    training = flag("training", training)
    weight = None if weight is None else shaped("weight", weight, (C,), _computed(x))
    eps = number("eps", eps, 0)
    if training:
        _enough(x)
    else:
        running_mean = shaped("running_mean", running_mean, (C,), np.float64)
        running_var = shaped("running_var", running_var, (C,), np.float64)
    if x.size:
        return _done(_core.batch_norm_backward(gy, x, running_mean, running_var, weight, training, eps))
    return np.empty_like(x), None if weight is None else np.zeros_like(weight), np.zeros(C, _computed(x))


# These are integers, because looking up a member of an enumeration takes longer than the function of a short
# array.
_EXP, _TANH, _SIGMOID = int(_core.Function.EXP), int(_core.Function.TANH), int(_core.Function.SIGMOID)


def _map(function: int, x: ArrayLike, out: Array | None) -> Array:
    """Computes the function if the kernel does not accept x or out without a conversion."""
    x = np.require(real("x", x), np.float32, ["C", "A"])
    y = _result(out, x)
    _done(_core.map_f32(function, x, y))
    return _deliver(y, out)


def exp(x: ArrayLike, *, out: Array | None = None) -> Array:
    """Return e^x in float32, within 2 ULP.

    Parameters
    ----------
    x : array_like
        Real numbers of any shape, converted to float32.
    out : array of float32 of x's shape, optional
        An array for the result. It may be x.

    Returns
    -------
    y : array of float32 of x's shape
        The result, or `out`.

    Examples
    --------
    >>> import lnrnn
    >>> lnrnn.exp([0.0, 1.0]).round(4)
    array([1.    , 2.7183], dtype=float32)
    """
    y = _core.map_f32(_EXP, x, out)
    return _map(_EXP, x, out) if y is None else y


def tanh(x: ArrayLike, *, out: Array | None = None) -> Array:
    """Return tanh(x) in float32, within 2 ULP.

    Arguments and result are as in `exp`.

    Examples
    --------
    >>> import lnrnn
    >>> lnrnn.tanh([0.0, 1.0]).round(4)
    array([0.    , 0.7616], dtype=float32)
    """
    y = _core.map_f32(_TANH, x, out)
    return _map(_TANH, x, out) if y is None else y


def sigmoid(x: ArrayLike, *, out: Array | None = None) -> Array:
    """Return 1 / (1 + e^-x) in float32, within 2 ULP.

    Arguments and result are as in `exp`.

    Examples
    --------
    >>> import lnrnn
    >>> lnrnn.sigmoid([0.0, 1.0]).round(4)
    array([0.5   , 0.7311], dtype=float32)
    """
    y = _core.map_f32(_SIGMOID, x, out)
    return _map(_SIGMOID, x, out) if y is None else y
