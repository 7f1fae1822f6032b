"""The norms' benchmarks: their inputs, our calls, the answer, and the traffic that the machine cannot avoid.

The functions below run in a worker process; the tests name them. Arguments: threads, then the size.
"""

from __future__ import annotations

from functools import partial

import numpy as np

import lnrnn
from case import Case, Unavailable, on_one_thread_too, tolerances, traffic
from lnrnn import reference
from peers_norm import EPS, builders
from race import Call

# Roundings of the largest value within which a right answer stays: twice what the worst library here needs
# for rows of 4096. A sum over n terms of either sign, such as a parameter's gradient, loses with the root of
# n where it is added up in float32 by parts, as ours may be; with n where the terms are added one after the
# other, as some peers do.
UNITS = 6


def _units_of_sum(n):
    """For ours and for peers."""
    return UNITS + n**0.5 / 16, UNITS + n / 16


def _random(shape, dtype, seed=0):
    """Mean 0.5, standard deviation 1: nothing about them is special."""
    return (np.random.default_rng(seed).standard_normal(shape, np.float32) + np.float32(0.5)).astype(dtype)


def _affine(width, dtype):
    return (1 + 0.1 * _random(width, dtype, 1)).astype(dtype), (0.1 * _random(width, dtype, 2)).astype(dtype)


def _moments(width):
    """Running statistics unlike those of the input."""
    return _random(width, np.float32, 3), 1 + _random(width, np.float32, 4) ** 2


def _need(*names):
    missing = [name for name in names if not hasattr(lnrnn, name)]
    if missing:
        raise Unavailable(f"this lnrnn has no {', '.join(missing)}")


def _need_type(function, x, *more):
    """The function must take x and give its dtype."""
    try:
        got = function(x, *more).dtype
    except TypeError as error:
        raise Unavailable(f"{function.__name__}: {error}") from None
    if got != x.dtype:
        raise Unavailable(f"{function.__name__} gives {got} for {x.dtype}")


def _dtype(name):
    if name == "bfloat16":
        from ml_dtypes import bfloat16

        return np.dtype(bfloat16)
    return np.dtype(name)


def _case(ours, peers, want, x, threads, reads=0, summed=None, limited=True) -> Case:
    """The limit is a copy of x and `reads` times reading it. summed: the terms in a parameter's gradient."""
    exact, loose = (UNITS, UNITS) if summed is None else _units_of_sum(summed)
    ours = ours if isinstance(ours, dict) else on_one_thread_too(Call(ours), threads)
    return Case(
        ours, peers, want, tolerances(want, x.dtype, exact),
        traffic(x.nbytes, threads, reads=reads) if limited else None,
        peers_tolerance=tolerances(want, x.dtype, loose),
    )  # fmt: skip


def _written(call, found, want, x, out, threads) -> Case:
    """A function that has out=. Peers with their output bound in advance race against out=, the others
    against fresh outputs. out None: all of them race, and both of ours; the fresh output is judged."""
    bound = partial(call, out=np.empty_like(x))
    ours = on_one_thread_too(Call(bound if out else call), threads)
    if out is None:
        ours = {"lnrnn": ours.pop("lnrnn"), "lnrnn out=": Call(bound), **ours}
    else:
        other = "onnxruntime" if out else "onnxruntime bound"
        found = {name: build for name, build in found.items() if name != other}
    return _case(ours, found, want, x, threads)


def _layer(layer, function, found, want, x, threads) -> Case:
    """The layer beside its function: what it adds to a short call."""
    ours = on_one_thread_too(Call(partial(layer, x)), threads)
    ours = {"lnrnn": ours.pop("lnrnn"), "lnrnn function": Call(function), **ours}
    return _case(ours, found, want, x, threads, limited=False)


def layer_norm(threads, shape, out=None, dtype="float32"):
    _need("layer_norm")
    dtype = _dtype(dtype)
    x, (weight, bias), shape = _random(shape, dtype), _affine(shape[1], dtype), shape[1:]
    _need_type(lnrnn.layer_norm, x[:1], shape)
    want = (reference.layer_norm(x, shape, weight, bias, EPS),)
    call = partial(lnrnn.layer_norm, x, shape, weight, bias, EPS)
    return _written(call, builders("layer_norm", threads, x, weight, bias), want, x, out, threads)


def layer_norm_layer(threads, shape):
    _need("LayerNorm")
    x, (weight, bias), width = _random(shape, np.float32), _affine(shape[1], np.float32), shape[1]
    layer = lnrnn.LayerNorm(width, EPS)
    layer.weight, layer.bias = weight, bias
    want = (reference.layer_norm(x, (width,), weight, bias, EPS),)
    function = partial(lnrnn.layer_norm, x, (width,), weight, bias, EPS)
    return _layer(layer, function, builders("layer_norm", threads, x, weight, bias), want, x, threads)


def rms_norm(threads, shape, out=None):
    _need("rms_norm")
    x, (weight, _), shape = _random(shape, np.float32), _affine(shape[1], np.float32), shape[1:]
    want = (reference.rms_norm(x, shape, weight, EPS),)
    call = partial(lnrnn.rms_norm, x, shape, weight, EPS)
    return _written(call, builders("rms_norm", threads, x, weight), want, x, out, threads)


def layer_norm_backward(threads, shape):
    """Reads x and gy, writes gx."""
    _need("layer_norm_backward")
    x, gy = _random(shape, np.float32), _random(shape, np.float32, 5)
    (weight, bias), shape = _affine(shape[1], np.float32), shape[1:]
    want = reference.layer_norm_backward(gy, x, shape, weight, bias, EPS)
    call = partial(lnrnn.layer_norm_backward, gy, x, shape, weight, bias, EPS)
    found = builders("layer_norm_backward", threads, gy, x, weight, bias)
    return _case(call, found, want, x, threads, reads=1, summed=len(x))


def batch_norm_inference(threads, shape, out=None):
    _need("batch_norm")
    x, given = _random(shape, np.float32), (*_moments(shape[1]), *_affine(shape[1], np.float32))
    want = reference.batch_norm(x, *given, eps=EPS)[:1]
    call = partial(lnrnn.batch_norm, x, *given, False, 0.1, EPS)
    return _written(call, builders("batch_norm_inference", threads, x, *given), want, x, out, threads)


def batch_norm_layer(threads, shape):
    _need("BatchNorm")
    x, given = _random(shape, np.float32), (*_moments(shape[1]), *_affine(shape[1], np.float32))
    layer = lnrnn.BatchNorm(shape[1], EPS).eval()
    layer.running_mean, layer.running_var, layer.weight, layer.bias = given
    want = reference.batch_norm(x, *given, eps=EPS)[:1]
    function = partial(lnrnn.batch_norm, x, *given, False, 0.1, EPS)
    return _layer(layer, function, builders("batch_norm_inference", threads, x, *given), want, x, threads)


def batch_norm_training(threads, shape, out=None):
    """Two passes at the least: statistics, then output. The running statistics are results too."""
    _need("batch_norm")
    x, (weight, bias), moments = _random(shape, np.float32), _affine(shape[1], np.float32), _moments(shape[1])
    want = reference.batch_norm(x, *moments, weight, bias, True, 0.1, EPS)
    y = np.empty_like(x) if out else None

    def call():
        return lnrnn.batch_norm(x, mean, var, weight, bias, True, 0.1, EPS, out=y), mean, var

    def answer():
        mean[:], var[:] = moments
        return call()

    mean, var = (m.copy() for m in moments)
    ours = on_one_thread_too(Call(call, answer=answer), threads)
    found = builders("batch_norm_training", threads, x, *moments, weight, bias)
    return _case(ours, found, want, x, threads, reads=1, summed=x.size // shape[1])


def batch_norm_backward(threads, shape):
    """Two passes at the least, each over x and gy: sums, then gx."""
    _need("batch_norm_backward")
    x, gy = _random(shape, np.float32), _random(shape, np.float32, 5)
    (weight, bias), (mean, var) = _affine(shape[1], np.float32), _moments(shape[1])
    want = reference.batch_norm_backward(gy, x, mean, var, weight, True, EPS)
    call = partial(lnrnn.batch_norm_backward, gy, x, mean, var, weight, True, EPS)
    found = builders("batch_norm_backward", threads, gy, x, mean, var, weight, bias)
    return _case(call, found, want, x, threads, reads=3, summed=x.size // shape[1])


def elementwise(threads, name, shape, out=None):
    """name: "exp", "tanh" or "sigmoid"."""
    _need(name)
    x = _random(shape, np.float32)
    truth = {"exp": np.exp, "tanh": np.tanh, "sigmoid": reference.sigmoid}[name]
    want = (truth(x.astype(np.float64)),)
    found = builders("elementwise", threads, x, name)
    return _written(partial(getattr(lnrnn, name), x), found, want, x, out, threads)
