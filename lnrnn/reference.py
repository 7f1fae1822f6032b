"""The readable truth: every equation of lnrnn in float64 NumPy, one short function each.

Slow on purpose, and independent of the rest of the package: the kernels are tested against this file, and
this file against finite differences, PyTorch and the ONNX node tests. Nothing here validates its input.

Symbols: T steps, B sequences, I input features, H hidden units; sequences are time-major, (T, B, features).
Numbers are float64, or longdouble where the caller passes longdouble (to judge the float64 kernels).

Sources. Layer norm: Ba, Kiros, Hinton 2016 (arXiv 1607.06450). Batch norm: Ioffe, Szegedy 2015 (arXiv
1502.03167). Batch norm by time step, and what to do beyond the last known one: Cooijmans et al. 2016 (arXiv
1603.09025).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


def real(x) -> np.ndarray:
    """x as an array of float64, or of longdouble if it is one."""
    x = np.asarray(x)
    return x.astype(np.result_type(x.dtype, np.float64), copy=False)


# --- activations: the function, and its derivative as a function of the output y = f(a) ---------------------


def sigmoid(a):
    """1 / (1 + exp(-a)), written so that exp never overflows."""
    a = real(a)
    z = np.exp(-np.abs(a))
    return np.where(a < 0, z, 1) / (1 + z)


ACTIVATIONS = {
    "tanh": (lambda a: np.tanh(real(a)), lambda y: 1 - y * y),
    "relu": (lambda a: np.maximum(real(a), 0), lambda y: (y > 0).astype(y.dtype)),
    "sigmoid": (sigmoid, lambda y: y * (1 - y)),
    "identity": (real, np.ones_like),
}


# --- norms --------------------------------------------------------------------------------------------------


def standardize(a, axis, eps):
    """(a - mu) / sigma with mu = mean(a), sigma = sqrt(mean((a - mu)^2) + eps), means over `axis`.

    Returns the standardised a, mu and the biased variance, the last two with `axis` kept as size 1.
    """
    mu = a.mean(axis, keepdims=True)
    var = ((a - mu) ** 2).mean(axis, keepdims=True)
    return (a - mu) / np.sqrt(var + eps), mu, var


def standardize_backward(g, ahat, var, axis, eps):
    """From the gradient g of ahat to that of `a`: (g - mean(g) - ahat mean(g ahat)) / sigma.

    axis None: mu and sigma were given numbers, not functions of a, and the gradient is g / sigma.
    """
    sigma = np.sqrt(var + eps)
    if axis is None:
        return g / sigma
    return (g - g.mean(axis, keepdims=True) - ahat * (g * ahat).mean(axis, keepdims=True)) / sigma


def _affine(ahat, weight, bias):
    """weight ahat + bias, each of them optional."""
    y = ahat if weight is None else ahat * weight
    return y if bias is None else y + bias


def _normalized_axes(normalized_shape) -> tuple[int, ...]:
    """The trailing axes that layer norm runs over, as negative numbers."""
    ndim = 1 if np.ndim(normalized_shape) == 0 else len(normalized_shape)
    return tuple(range(-ndim, 0))


def layer_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    """y = weight (x - mu) / sigma + bias; mu, sigma over the trailing axes, of shape normalized_shape."""
    xhat, _, _ = standardize(real(x), _normalized_axes(normalized_shape), eps)
    return _affine(xhat, weight, bias)


def rms_norm(x, normalized_shape, weight=None, eps=None):
    """y = weight x / sqrt(mean(x^2) + eps), the mean over the trailing axes; eps None: the epsilon of float64 for
    that, else of float32."""
    if eps is None:
        eps = np.finfo(np.float64 if np.asarray(x).dtype == np.float64 else np.float32).eps
    x = real(x)
    square = (x * x).mean(_normalized_axes(normalized_shape), keepdims=True)
    return _affine(x / np.sqrt(square + eps), weight, None)


def layer_norm_backward(gy, x, normalized_shape, weight=None, bias=None, eps=1e-5):
    """(gx, gweight, gbias); the last two are None where the parameter is."""
    gy, axes = real(gy), _normalized_axes(normalized_shape)
    rows = tuple(range(gy.ndim - len(axes)))
    xhat, _, var = standardize(real(x), axes, eps)
    gx = standardize_backward(_affine(gy, weight, None), xhat, var, axes, eps)
    gweight = None if weight is None else (gy * xhat).sum(rows)
    gbias = None if bias is None else gy.sum(rows)
    return gx, gweight, gbias


def _channels(v, ndim):
    """A vector of C entries (or None) shaped to broadcast along axis 1 of an array of that rank."""
    return None if v is None else real(v).reshape((1, -1) + (1,) * (ndim - 2))


def _not_channels(ndim) -> tuple[int, ...]:
    return (0, *range(2, ndim))


def batch_norm(
    x,
    running_mean=None,
    running_var=None,
    weight=None,
    bias=None,
    training=False,
    momentum=0.1,
    eps=1e-5,
    num_batches_tracked=0,
):
    """y = weight (x - mu) / sigma + bias per channel (axis 1); returns y, new running mean and variance.

    training: mu and the biased variance of this batch normalise, and new = (1 - momentum) old + momentum
    batch, where the batch's variance counts unbiased. momentum None: the mean over all batches, of which
    num_batches_tracked came before this one. Not training: the running statistics normalise and stay.
    """
    x = real(x)
    axes = _not_channels(x.ndim)
    if not training:
        xhat = (x - _channels(running_mean, x.ndim)) / np.sqrt(_channels(running_var, x.ndim) + eps)
    else:
        xhat, mu, var = standardize(x, axes, eps)
        if running_mean is not None:
            n = x.size // x.shape[1]
            m = 1 / (num_batches_tracked + 1) if momentum is None else momentum
            running_mean = (1 - m) * real(running_mean) + m * mu.ravel()
            running_var = (1 - m) * real(running_var) + m * var.ravel() * n / (n - 1)
    return _affine(xhat, _channels(weight, x.ndim), _channels(bias, x.ndim)), running_mean, running_var


def batch_norm_backward(gy, x, running_mean=None, running_var=None, weight=None, training=True, eps=1e-5):
    """(gx, gweight, gbias); gweight is None if weight is. In training mu and sigma are functions of x."""
    gy, x = real(gy), real(x)
    axes = _not_channels(x.ndim)
    if training:
        xhat, _, var = standardize(x, axes, eps)
    else:
        var = _channels(running_var, x.ndim)
        xhat = (x - _channels(running_mean, x.ndim)) / np.sqrt(var + eps)
    gxhat = _affine(gy, _channels(weight, x.ndim), None)
    gx = standardize_backward(gxhat, xhat, var, axes if training else None, eps)
    return gx, None if weight is None else (gy * xhat).sum(axes), gy.sum(axes)


# --- batch norm by time step --------------------------------------------------------------------------------


def statistics_at(t, statistics, overrun):
    """(mean, variance) of step t, each (H,); None where the living batch is to be used.

    statistics: (mean, var), each (known steps, H). Beyond the known steps `overrun` decides: "raise" refuses,
    "last" repeats the last known step, "mean" averages means and variances over the known steps, "batch" is
    None.
    """
    mean, var = statistics
    if t < len(mean):
        return mean[t], var[t]
    if overrun == "batch":
        return None
    if overrun == "raise" or len(mean) == 0:
        raise ValueError(f"step {t} has no statistics: {len(mean)} steps are known")
    return (mean[-1], var[-1]) if overrun == "last" else (mean.mean(0), var.mean(0))


def pool_statistics(mean_a, var_a, n_a, mean_b, var_b, n_b):
    """Mean, biased variance and count of the union of two samples of which these are known."""
    n = n_a + n_b
    mean = (n_a * mean_a + n_b * mean_b) / n
    var = (n_a * (var_a + (mean_a - mean) ** 2) + n_b * (var_b + (mean_b - mean) ** 2)) / n
    return mean, var, n


def update_step_statistics(old, batch, momentum):
    """Running (mean, var, count) per step after one training batch; arrays (S, H), (S, H), (S,).

    A step seen for the first time is copied; after that new = (1 - momentum) old + momentum batch, or, if
    momentum is None, the statistics of all sequences so far. The variance is biased throughout. The arrays
    grow as needed.
    """
    steps, hidden = max(len(old[0]), len(batch[0])), batch[0].shape[1]
    mean, var, count = np.zeros((steps, hidden)), np.zeros((steps, hidden)), np.zeros(steps, np.int64)
    for target, source in zip((mean, var, count), old):
        target[: len(source)] = source
    for t, (m, v, n) in enumerate(zip(*batch)):
        if count[t] == 0:
            mean[t], var[t] = m, v
        elif momentum is None:
            mean[t], var[t], _ = pool_statistics(mean[t], var[t], count[t], m, v, n)
        else:
            mean[t] += momentum * (m - mean[t])
            var[t] += momentum * (v - var[t])
        count[t] += n
    return mean, var, count


# --- sequences ----------------------------------------------------------------------------------------------


def reverse_sequences(x, lengths):
    """Each sequence of x (T, B, ...) back to front within its own length, 0 beyond; its own inverse."""
    y = np.zeros_like(x)
    for b, n in enumerate(lengths):
        y[:n, b] = x[:n, b][::-1]
    return y


@dataclass
class Step:
    """What one time step leaves for the way back. Rows are those of the living sequences only."""

    alive: np.ndarray  # (L,) which sequences are alive
    x: np.ndarray  # (L, I)
    h: np.ndarray  # (L, H) the state before the step
    ahat: np.ndarray  # (L, H) standardised pre-activation; the raw one without a norm
    var: np.ndarray | None  # variance that normalised it, broadcastable to (L, H)
    axis: int | None  # over which axis mean and variance were taken; None if they were given
    y: np.ndarray  # (L, H) the state after the step


@dataclass
class Tape:
    """Inputs of one run and its steps; under batch norm, the statistics of the living batch where used."""

    options: dict[str, Any]
    lengths: np.ndarray
    shape: tuple[int, ...]
    steps: list[Step] = field(default_factory=list)
    mean: np.ndarray | None = None  # (steps, H)
    var: np.ndarray | None = None  # (steps, H)
    count: np.ndarray | None = None  # (steps,)


def rnn_normalize(a, norm, eps, given=None):
    """The norm inside the cell, before gain and bias: returns ahat, mean, variance and the axis of Step.

    "layer": over the units of each row. "batch": over the rows, or with the `given` (mean, variance) of this
    step.
    """
    if norm is None:
        return a, None, None, None
    if norm == "batch" and given is not None:
        return (a - given[0]) / np.sqrt(given[1] + eps), *given, None
    axis = -1 if norm == "layer" else 0
    return *standardize(a, axis, eps), axis


def rnn(
    x,
    weight_ih,
    weight_hh,
    *,
    norm="layer",
    gain=None,
    bias=None,
    bias_ih=None,
    bias_hh=None,
    h0=None,
    lengths=None,
    nonlinearity="tanh",
    eps=1e-5,
    statistics=None,
    overrun="raise",
    reverse=False,
):
    """One layer, one direction: h_t = f(gain (a_t - mu) / sigma + bias), a_t = W_hh h_{t-1} + W_ih x_t.

    x (T, B, I), weight_ih (H, I), weight_hh (H, H), gain, bias (H,), h0 (B, H); lengths (B,) in 0..T.
    norm "layer" | "batch" | None; without a norm h_t = f(a_t + bias_ih + bias_hh) as in torch.nn.RNN.
    Batch norm: `statistics` None takes mean and biased variance of each step from the sequences alive at it
    (training); (mean, var), each (known steps, H), are used as given, beyond them as `overrun` says.
    reverse: each sequence from its own end; its k-th step from there uses the k-th statistics.

    Returns y (T, B, H), 0 past a length; h (B, H), the state at each sequence's own end; and the tape.
    """
    x, weight_ih, weight_hh = real(x), real(weight_ih), real(weight_hh)
    t_max, batch, hidden = x.shape[0], x.shape[1], weight_hh.shape[0]
    lengths = np.full(batch, t_max) if lengths is None else np.asarray(lengths)
    steps = int(lengths.max(initial=0))
    if norm == "batch" and statistics is not None:
        statistics = tuple(real(s) for s in statistics)
        if steps:
            statistics_at(steps - 1, statistics, overrun)  # "raise" refuses before anything is computed
    if norm is None:
        gain, bias = None, sum(real(b) for b in (bias_ih, bias_hh) if b is not None)

    f, _ = ACTIVATIONS[nonlinearity]
    tape = Tape(
        dict(
            weight_ih=weight_ih,
            weight_hh=weight_hh,
            norm=norm,
            gain=gain,
            bias=bias,
            bias_ih=bias_ih,
            bias_hh=bias_hh,
            nonlinearity=nonlinearity,
            eps=eps,
            reverse=reverse,
        ),
        lengths,
        x.shape,
    )
    if reverse:
        x = reverse_sequences(x, lengths)
    h = np.zeros((batch, hidden), x.dtype) if h0 is None else real(h0).copy()
    y = np.zeros((t_max, batch, hidden), x.dtype)
    seen = []
    for t in range(steps):
        alive = np.flatnonzero(lengths > t)
        a = h[alive] @ weight_hh.T + x[t, alive] @ weight_ih.T
        given = None if statistics is None else statistics_at(t, statistics, overrun)
        ahat, mean, var, axis = rnn_normalize(a, norm, eps, given)
        out = f(_affine(ahat, gain, bias))
        tape.steps.append(Step(alive, x[t, alive], h[alive], ahat, var, axis, out))
        if axis == 0:
            seen.append((mean[0], var[0], len(alive)))
        h[alive] = y[t, alive] = out
    if norm == "batch":
        tape.mean = np.array([m for m, _, _ in seen]).reshape(len(seen), hidden)
        tape.var = np.array([v for _, v, _ in seen]).reshape(len(seen), hidden)
        tape.count = np.array([n for _, _, n in seen], np.int64)
    return (reverse_sequences(y, lengths) if reverse else y), h, tape


def rnn_backward(tape, gy, gh=None):
    """Back-propagation through time: from gy (T, B, H) and gh (B, H) to gx, gh0 and a dict of gradients.

    The dict has weight_ih, weight_hh and, of gain, bias, bias_ih, bias_hh, those that the forward run was
    given. What gy holds past a sequence's length has no effect, for y is constant there.
    """
    o = tape.options
    _, df = ACTIVATIONS[o["nonlinearity"]]
    gy = real(gy)
    if o["reverse"]:
        gy = reverse_sequences(gy, tape.lengths)
    gx = np.zeros(tape.shape, gy.dtype)
    gh = np.zeros(gy.shape[1:], gy.dtype) if gh is None else real(gh).copy()
    gweight_ih, gweight_hh = np.zeros_like(o["weight_ih"]), np.zeros_like(o["weight_hh"])
    ggain, gbias = np.zeros(gy.shape[2], gy.dtype), np.zeros(gy.shape[2], gy.dtype)
    for t in reversed(range(len(tape.steps))):
        s = tape.steps[t]
        gz = (gh[s.alive] + gy[t, s.alive]) * df(s.y)  # z = gain ahat + bias, the argument of f
        ggain += (gz * s.ahat).sum(0)
        gbias += gz.sum(0)
        ga = _affine(gz, o["gain"], None)
        if o["norm"] is not None:
            ga = standardize_backward(ga, s.ahat, s.var, s.axis, o["eps"])
        gweight_ih += ga.T @ s.x
        gweight_hh += ga.T @ s.h
        gx[t, s.alive] = ga @ o["weight_ih"]
        gh[s.alive] = ga @ o["weight_hh"]
    grads = {"weight_ih": gweight_ih, "weight_hh": gweight_hh, "gain": ggain, "bias": gbias}
    if o["norm"] is None:
        grads |= {"bias_ih": gbias, "bias_hh": gbias}
        del grads["gain"], grads["bias"]
    grads = {name: g for name, g in grads.items() if o[name] is not None}
    return (reverse_sequences(gx, tape.lengths) if o["reverse"] else gx), gh, grads


def calibrate(batches, weight_ih, weight_hh, **options):
    """Population mean, biased variance and count per step, over all sequences of all batches alive at it.

    batches: pairs (x, lengths), lengths None for whole ones. All run together as one batch, each step
    normalised by the statistics over all living sequences, so how they were divided into batches has no
    effect.
    """
    batches = [(real(x), np.full(x.shape[1], x.shape[0]) if n is None else np.asarray(n)) for x, n in batches]
    t_max = max(x.shape[0] for x, _ in batches)
    x = np.concatenate([np.pad(x, ((0, t_max - x.shape[0]), (0, 0), (0, 0))) for x, _ in batches], axis=1)
    lengths = np.concatenate([n for _, n in batches])
    _, _, tape = rnn(x, weight_ih, weight_hh, norm="batch", lengths=lengths, **options)
    return tape.mean, tape.var, tape.count
