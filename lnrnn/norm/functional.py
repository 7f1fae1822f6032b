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
When such an array is deleted, lnrnn keeps the block for a later result: see docs/benchmarks.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from .. import _core
from ..arguments import check
from ..errors import real
from .arguments import axes_of, computed, input_array, of_channels, of_rows

Array = np.ndarray
Result = TypeVar("Result")


def _result(out: Array | None, x: Array, *others: Array | None) -> Array:
    """Returns an array for the kernels' result: the checked `out` if they can write to it, else a new array,
    which `_deliver` copies."""
    if out is None:
        return _core.empty_like(x)
    same = out.ctypes.data == x.ctypes.data and out.flags.c_contiguous
    clash = (not same and np.may_share_memory(out, x)) or any(
        other is not None and np.may_share_memory(out, other) for other in others
    )
    if clash or not (out.flags.c_contiguous and out.flags.aligned and type(out) is np.ndarray):
        return _core.empty_like(x)
    return out


def _done(result: Result | None) -> Result:
    """Returns a result of _core. Raises RuntimeError for None, by which _core refuses an argument."""
    if result is None:  # pragma: no cover - another thread changes x at this moment
        raise RuntimeError("an array was changed by another thread during the call")
    return result


def _deliver(y: Array, out: Array | None) -> Array:
    """Returns `out` with the values of y copied to it, or y if out is None."""
    if out is None or out is y:
        return y
    place = out if isinstance(out, np.ndarray) else real("out", out)  # shares memory with a tensor
    if place.ctypes.data != y.ctypes.data:
        place[...] = y
    return out


def _over_axes(
    norm: Callable[..., Array], x: ArrayLike, normalized_shape: Any, axis: Any, out: Any, *rest: Any
) -> Array:
    """Computes `norm`, layer_norm or rms_norm, over these axes. rest: arguments after normalized_shape."""
    x = input_array("x", x)
    shape, axes = axes_of(x, normalized_shape, axis)
    check("layer_norm", {"out": out}, {"x": x.shape, "dtype of x": x.dtype})
    last = tuple(range(-len(axes), 0))
    y = np.ascontiguousarray(np.moveaxis(norm(np.moveaxis(x, axes, last), shape, *rest), last, axes))
    return _deliver(y, out)


def _row_norm(function: str, given: dict[str, Any]) -> Array:
    """Computes layer_norm or rms_norm for arguments that need conversion, or raises an error."""
    x, shape, weight, eps, place, *more = of_rows(function, given)
    bias = more[0] if more else None
    y = _result(place, x, weight, bias)
    if x.size:
        _done(_core.layer_norm(x, shape, weight, bias, eps, y, bool(more)))
    return _deliver(y, given["out"])


def _row_gradients(function: str, given: dict[str, Any]) -> tuple[Array, Array | None, Array | None]:
    """Returns gx, gweight, gbias of _row_norm or _over_axes. given: arguments by name."""
    if given["axis"] is not None:
        x = input_array("x", given["x"])
        (gy,) = check(function, {"gy": given["gy"]}, {"x": x.shape})
        shape, axes = axes_of(x, given["normalized_shape"], given["axis"])
        last = tuple(range(-len(axes), 0))
        moved = {"gy": np.moveaxis(gy, axes, last), "x": np.moveaxis(x, axes, last)}
        gx, gweight, gbias = _row_gradients(
            function, given | moved | {"normalized_shape": shape, "axis": None}
        )
        return np.ascontiguousarray(np.moveaxis(gx, last, axes)), gweight, gbias
    x, shape, weight, eps, *more, gy = of_rows(function, given)
    bias = more[0] if more else None
    if x.size:
        return _done(_core.layer_norm_backward(gy, x, shape, weight, bias, eps, bool(more)))
    gweight, gbias = (None if p is None else np.zeros_like(p) for p in (weight, bias))
    return np.empty_like(x), gweight, gbias


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
    return _row_norm("layer_norm", locals()) if y is None else y


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
    return _row_norm("rms_norm", locals()) if y is None else y


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
    found = None
    if axis is None:
        found = _core.layer_norm_backward(gy, x, normalized_shape, weight, bias, eps)
    return _row_gradients("layer_norm_backward", locals()) if found is None else found


def rms_norm_backward(
    gy: ArrayLike,
    x: ArrayLike,
    normalized_shape: int | tuple[int, ...],
    weight: ArrayLike | None = None,
    eps: float | None = None,
    *,
    axis: int | tuple[int, ...] | None = None,
) -> tuple[Array, Array | None]:
    """Return the gradients of `rms_norm`.

    Parameters
    ----------
    gy : array_like of x's shape
        Gradient of y.
    x, normalized_shape, weight, eps, axis
        As in `rms_norm`.

    Returns
    -------
    gx : array of x's shape
        Gradient of x, computed in the dtype of x.
    gweight : array of shape normalized_shape, or None
        Gradient of weight, as from `layer_norm_backward`.

    Examples
    --------
    >>> import lnrnn
    >>> gx, gweight = lnrnn.rms_norm_backward([1.0, 0.0], [3.0, 4.0], 2, [1.0, 1.0], eps=0)
    >>> gweight.round(3)
    array([0.849, 0.   ])
    """
    found = None
    if axis is None:
        found = _core.layer_norm_backward(gy, x, normalized_shape, weight, None, eps, False)
    return (_row_gradients("rms_norm_backward", locals()) if found is None else found)[:2]


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
        Running statistics for inference. In training they are updated in place if they are arrays of floats,
        and may be None.
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
        For a wrong shape, eps or momentum, or if a channel has only one value in training.
    TypeError
        For other arguments than arrays of real numbers.

    Notes
    -----
    Algorithms 1 and 2 of Ioffe and Szegedy 2015, arXiv 1502.03167::

        y = (x - mean) / sqrt(var + eps) * weight + bias
        running = (1 - momentum) * running + momentum * batch        in training

    In training mean and var are the batch's; var is biased for y, and unbiased for running_var.

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
    a, *running, gain, training, eps, shift, momentum, place = of_channels("batch_norm", locals())
    y = _result(place, a, gain, shift, *running)
    if a.size:
        mean, var = plain = [None if r is None else np.array(r, np.float64) for r in running]
        _done(_core.batch_norm(a, mean, var, gain, shift, training, momentum, eps, y))
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
    (training,) = check("batch_norm_backward", {"training": training})
    if training:  # training ignores running statistics
        running_mean = running_var = None
    a, mean, var, gain, _, eps, g = of_channels("batch_norm_backward", locals())
    if a.size:
        return _done(_core.batch_norm_backward(g, a, mean, var, gain, training, eps))
    gweight = None if gain is None else np.zeros_like(gain)
    return np.empty_like(a), gweight, np.zeros(a.shape[1], computed(a))


# These are integers: looking up a member of an enumeration takes longer than computing a short
# array.
_EXP, _TANH, _SIGMOID = int(_core.Function.EXP), int(_core.Function.TANH), int(_core.Function.SIGMOID)


def _map(function: int, x: ArrayLike, out: Array | None) -> Array:
    """Computes a function of _core.Function for x or out that the kernel does not accept unconverted."""
    (a,) = check("exp", {"x": x}, {"computed": np.float32})
    (place,) = check("exp", {"out": out}, {"x": a.shape, "dtype of x": np.float32})
    y = _result(place, a)
    _done(_core.map_f32(function, a, y))
    return _deliver(y, out)


def exp(x: ArrayLike, *, out: Array | None = None) -> Array:
    """Return e^x in float32, within 2 ULP. Errors are as in `layer_norm`.

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

    Arguments, result and errors are as in `exp`.

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

    Arguments, result and errors are as in `exp`.

    Examples
    --------
    >>> import lnrnn
    >>> lnrnn.sigmoid([0.0, 1.0]).round(4)
    array([0.5   , 0.7311], dtype=float32)
    """
    y = _core.map_f32(_SIGMOID, x, out)
    return _map(_SIGMOID, x, out) if y is None else y
