"""Activations and norms of lnrnn.reference.

Sources. Layer norm: Ba, Kiros, Hinton 2016 (arXiv 1607.06450). Batch norm: Ioffe, Szegedy 2015 (arXiv
1502.03167). Batch norm by time step, and policies for steps without statistics: Cooijmans et al. 2016 (arXiv
1603.09025).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

Array = np.ndarray
Moments = tuple[Array, Array]  # mean and biased variance
BY_ROW = ("layer", "rms")  # norms with statistics of each row
Activation = tuple[Callable[[Array], Array], Callable[[Array], Array]]


def real(x: ArrayLike) -> Array:
    """Return x as an array of float64, or of longdouble if x has that dtype."""
    array: Array = np.asarray(x)
    return array.astype(np.result_type(array.dtype, np.float64), copy=False)


# --- activations: (function, derivative as a function of the output y = f(a)) -------------------------------


def sigmoid(a: ArrayLike) -> Array:
    """Return 1 / (1 + exp(-a)), without an overflow of exp."""
    a = real(a)
    z = np.exp(-np.abs(a))
    return np.asarray(np.where(a < 0, z, 1) / (1 + z))


ACTIVATIONS: dict[str, Activation] = {
    "tanh": (lambda a: np.tanh(real(a)), lambda y: 1 - y * y),
    "relu": (lambda a: np.maximum(real(a), 0), lambda y: (y > 0).astype(y.dtype)),
    "sigmoid": (sigmoid, lambda y: y * (1 - y)),
    "identity": (real, np.ones_like),
}
GATE_ACTIVATIONS: dict[str, Activation] = {
    "sigmoid": ACTIVATIONS["sigmoid"],
    "hard_sigmoid": (lambda a: np.clip(real(a) / 6 + 0.5, 0, 1), lambda y: ((y > 0) & (y < 1)) / 6),
}


# --- norms --------------------------------------------------------------------------------------------------


def standardize(
    a: Array, axis: int | tuple[int, ...], eps: float, centred: bool = True
) -> tuple[Array, Array, Array]:
    """Return (a - mu) / sigma with mu = mean(a), sigma = sqrt(mean((a - mu)^2) + eps), means over `axis`.

    If not centred, mu is 0, as in RMS norm.

    Returns
    -------
    ahat : array of a's shape
        The result.
    mu, var : array
        The mean and the biased variance; `axis` has size 1.
    """
    mu = a.mean(axis, keepdims=True) * centred
    var = ((a - mu) ** 2).mean(axis, keepdims=True)
    return (a - mu) / np.sqrt(var + eps), mu, var


def standardize_backward(
    g: Array,
    ahat: Array,
    var: Array,
    axis: int | tuple[int, ...] | None,
    eps: float,
    centred: bool = True,
) -> Array:
    """Return the gradient of a from the gradient g of ahat: (g - mean(g) - ahat mean(g ahat)) / sigma.

    With axis None, mu and sigma are constants, and the gradient is g / sigma. If not centred, mu is 0, and
    mean(g) is left out.
    """
    sigma = np.sqrt(var + eps)
    if axis is None:
        return g / sigma
    if centred:
        g = g - g.mean(axis, keepdims=True)
    found: Array = (g - ahat * (g * ahat).mean(axis, keepdims=True)) / sigma
    return found


def affine(ahat: Array, weight: ArrayLike | None, bias: ArrayLike | None) -> Array:
    """Returns weight * ahat + bias. weight and bias may be None."""
    y: Array = ahat if weight is None else np.multiply(ahat, weight)
    return y if bias is None else np.add(y, bias)


def _normalized_axes(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    """Returns the last axes, of shape normalized_shape, as negative numbers."""
    ndim = np.size(normalized_shape)
    return tuple(range(-ndim, 0))


def layer_norm(
    x: ArrayLike,
    normalized_shape: int | Sequence[int],
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
) -> Array:
    """Return weight (x - mu) / sigma + bias; mu and sigma are over the last axes, of shape normalized_shape.

    Arguments and result are as in `lnrnn.layer_norm`, computed in float64.

    Notes
    -----
    Equation 3 of Ba, Kiros and Hinton 2016, arXiv 1607.06450.
    """
    xhat, _, _ = standardize(real(x), _normalized_axes(normalized_shape), eps)
    return affine(xhat, weight, bias)


def _rms_eps(x: ArrayLike, eps: float | None) -> float:
    double = np.asarray(x).dtype == np.float64
    return float(np.finfo(np.float64 if double else np.float32).eps) if eps is None else eps


def rms_norm(
    x: ArrayLike,
    normalized_shape: int | Sequence[int],
    weight: ArrayLike | None = None,
    eps: float | None = None,
) -> Array:
    """Return weight x / sqrt(mean(x^2) + eps); the mean is over the last axes, of shape normalized_shape.

    Arguments and result are as in `lnrnn.rms_norm`, computed in float64. If eps is None, it is the machine
    epsilon of float64 for x of float64, else of float32.

    Notes
    -----
    Equation 4 of Zhang and Sennrich 2019, arXiv 1910.07467.
    """
    xhat, _, _ = standardize(real(x), _normalized_axes(normalized_shape), _rms_eps(x, eps), centred=False)
    return affine(xhat, weight, None)


def layer_norm_backward(
    gy: ArrayLike,
    x: ArrayLike,
    normalized_shape: int | Sequence[int],
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
) -> tuple[Array, Array | None, Array | None]:
    """Return gx, gweight and gbias. Arguments and results are as in `lnrnn.layer_norm_backward`."""
    gy, axes = real(gy), _normalized_axes(normalized_shape)
    rows = tuple(range(gy.ndim - len(axes)))
    xhat, _, var = standardize(real(x), axes, eps)
    gx = standardize_backward(affine(gy, weight, None), xhat, var, axes, eps)
    gweight = None if weight is None else (gy * xhat).sum(rows)
    gbias = None if bias is None else gy.sum(rows)
    return gx, gweight, gbias


def rms_norm_backward(
    gy: ArrayLike,
    x: ArrayLike,
    normalized_shape: int | Sequence[int],
    weight: ArrayLike | None = None,
    eps: float | None = None,
) -> tuple[Array, Array | None]:
    """Return gx = (g - xhat mean(g xhat)) / sigma with g = weight gy, and gweight.

    Arguments and results are as in `lnrnn.rms_norm_backward`.
    """
    gy, axes, eps = real(gy), _normalized_axes(normalized_shape), _rms_eps(x, eps)
    xhat, _, var = standardize(real(x), axes, eps, centred=False)
    gx = standardize_backward(affine(gy, weight, None), xhat, var, axes, eps, centred=False)
    return gx, None if weight is None else (gy * xhat).sum(tuple(range(gy.ndim - len(axes))))


def _channels(v: Any, ndim: int) -> Any:
    """Reshapes a vector v (C,) to broadcast along axis 1 of an array with ndim axes. None stays None."""
    return None if v is None else real(v).reshape((1, -1) + (1,) * (ndim - 2))


def _not_channels(ndim: int) -> tuple[int, ...]:
    return (0, *range(2, ndim))


def batch_norm(
    x: ArrayLike,
    running_mean: ArrayLike | None = None,
    running_var: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    num_batches_tracked: int = 0,
) -> tuple[Array, Any, Any]:
    """Return y = weight (x - mu) / sigma + bias by channel (axis 1), new running mean and variance.

    In training mu and the biased variance are statistics of the batch. The running statistics become (1 -
    momentum) old + momentum batch, with the unbiased variance. At inference mu and the variance are the
    running statistics. Arguments are as in `lnrnn.batch_norm`, but no array is written to.

    Parameters
    ----------
    num_batches_tracked : int
        The number of earlier batches. With momentum None running statistics are the mean over all batches.

    Returns
    -------
    y, running_mean, running_var : array of float64, of the shape of x and (C,)
        The result, and the new running statistics.

    Notes
    -----
    Algorithms 1 and 2 of Ioffe and Szegedy 2015, arXiv 1502.03167.
    """
    x = real(x)
    axes = _not_channels(x.ndim)
    if not training:
        xhat = (x - _channels(running_mean, x.ndim)) / np.sqrt(_channels(running_var, x.ndim) + eps)
    else:
        xhat, mu, var = standardize(x, axes, eps)
        if running_mean is not None and running_var is not None:
            n = x.size // x.shape[1]
            m = 1 / (num_batches_tracked + 1) if momentum is None else momentum
            running_mean = (1 - m) * real(running_mean) + m * mu.ravel()
            running_var = (1 - m) * real(running_var) + m * var.ravel() * n / (n - 1)
    return affine(xhat, _channels(weight, x.ndim), _channels(bias, x.ndim)), running_mean, running_var


def batch_norm_backward(
    gy: ArrayLike,
    x: ArrayLike,
    running_mean: ArrayLike | None = None,
    running_var: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    training: bool = True,
    eps: float = 1e-5,
) -> tuple[Array, Array | None, Array]:
    """Return gx, gweight and gbias. Arguments and results are as in `lnrnn.batch_norm_backward`."""
    gy, x = real(gy), real(x)
    axes = _not_channels(x.ndim)
    if training:
        xhat, _, var = standardize(x, axes, eps)
    else:
        var = _channels(running_var, x.ndim)
        xhat = (x - _channels(running_mean, x.ndim)) / np.sqrt(var + eps)
    gxhat = affine(gy, _channels(weight, x.ndim), None)
    gx = standardize_backward(gxhat, xhat, var, axes if training else None, eps)
    return gx, None if weight is None else (gy * xhat).sum(axes), gy.sum(axes)


# --- batch norm by time step --------------------------------------------------------------------------------


def statistics_at(t: int, statistics: Moments, overrun: str) -> Moments | None:
    """Return mean and variance of step t, (H,) each, from statistics (mean, var), (known steps, H) each.

    Beyond the known steps, `overrun` decides. "raise" raises ValueError, "last" returns the statistics of the
    last known step, "mean" averages means and variances over the known steps. "batch" returns None: use the
    current batch.
    """
    mean, var = statistics
    if t < len(mean):
        return mean[t], var[t]
    if overrun == "batch":
        return None
    if overrun == "raise" or len(mean) == 0:
        raise ValueError(f"step {t} has no statistics: {len(mean)} steps are known")
    return (mean[-1], var[-1]) if overrun == "last" else (mean.mean(0), var.mean(0))


def pool_statistics(
    mean_a: Array, var_a: Array, n_a: int, mean_b: Array, var_b: Array, n_b: int
) -> tuple[Array, Array, int]:
    """Return mean, biased variance and count of the union of two samples, a and b."""
    n = n_a + n_b
    mean = (n_a * mean_a + n_b * mean_b) / n
    var = (n_a * (var_a + (mean_a - mean) ** 2) + n_b * (var_b + (mean_b - mean) ** 2)) / n
    return mean, var, n


def update_step_statistics(
    old: tuple[Array, Array, Array], batch: tuple[Array, Array, Array], momentum: float | None
) -> tuple[Array, Array, Array]:
    """Return running (mean, var, count) of each step after a training batch: arrays (S, H), (S, H), (S,).

    A step with count 0 gets the values of the batch. Other steps become (1 - momentum) old + momentum batch.
    If momentum is None, they become the statistics of all sequences so far. Variances are biased. If
    the batch has more steps than `old`, the result has as many as the batch.
    """
    steps, hidden = max(len(old[0]), len(batch[0])), batch[0].shape[1]
    mean, var, count = np.zeros((steps, hidden)), np.zeros((steps, hidden)), np.zeros(steps, np.int64)
    for target, source in zip((mean, var, count), old, strict=True):
        target[: len(source)] = source
    for t, (m, v, n) in enumerate(zip(*batch, strict=True)):
        if count[t] == 0:
            mean[t], var[t] = m, v
        elif momentum is None:
            mean[t], var[t], _ = pool_statistics(mean[t], var[t], count[t], m, v, n)
        else:
            mean[t] = (1 - momentum) * mean[t] + momentum * m
            var[t] = (1 - momentum) * var[t] + momentum * v
        count[t] += n
    return mean, var, count
