"""The norms' benchmarks: their inputs, our calls, the answer, and the traffic that the machine cannot avoid.

The functions below run in a worker process; the tests name them. Arguments: threads, then the size.
"""

from __future__ import annotations

from functools import partial

import numpy as np

import lnrnn
from case import Case, Unavailable, tolerances, traffic
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


def _ours(call, threads, **more) -> dict[str, Call]:
    """Our contenders: the call itself, `more` ways to make it, and on several threads also on one."""
    ours = {"lnrnn": Call(call), **{f"lnrnn {name}": Call(other) for name, other in more.items()}}
    if threads > 1:
        ours["lnrnn 1 thread"] = Call(
            call, enter=lambda: lnrnn.set_num_threads(1), leave=lambda: lnrnn.set_num_threads(threads)
        )
    return ours


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


def _both_ways(call, x, out, threads):
    """With a fresh output and with out=; `out` says which of them is judged. None: both, the fresh one
    judged."""
    bound = partial(call, out=np.empty_like(x))
    if out is None:
        return _ours(call, threads, **{"out=": bound})
    return _ours(bound if out else call, threads)


def _peers(found, out):
    """Peers with their output bound in advance race against out=, the others against fresh outputs; or all of
    them."""
    if out is None:
        return found
    other = "onnxruntime" if out else "onnxruntime bound"
    return {name: build for name, build in found.items() if name != other}


def layer_norm(threads, shape, out=None, dtype="float32"):
    _need("layer_norm")
    dtype = _dtype(dtype)
    x, (weight, bias), shape = _random(shape, dtype), _affine(shape[1], dtype), shape[1:]
    _need_type(lnrnn.layer_norm, x[:1], shape)
    want = (reference.layer_norm(x, shape, weight, bias, EPS),)
    call = partial(lnrnn.layer_norm, x, shape, weight, bias, EPS)
    found = builders("layer_norm", threads, x, weight, bias)
    return Case(
        _both_ways(call, x, out, threads),
        _peers(found, out),
        want,
        tolerances(want, dtype, UNITS),
        traffic(x.nbytes, threads),
    )


def layer_norm_layer(threads, shape):
    """The layer beside its function: what it adds to a short call."""
    _need("LayerNorm")
    x, (weight, bias), width = _random(shape, np.float32), _affine(shape[1], np.float32), shape[1]
    layer = lnrnn.LayerNorm(width, EPS)
    layer.weight, layer.bias = weight, bias
    want = (reference.layer_norm(x, (width,), weight, bias, EPS),)
    return Case(
        _ours(partial(layer, x), threads, function=partial(lnrnn.layer_norm, x, (width,), weight, bias, EPS)),
        builders("layer_norm", threads, x, weight, bias),
        want,
        tolerances(want, x.dtype, UNITS),
    )


def rms_norm(threads, shape, out=None):
    _need("rms_norm")
    x, (weight, _), shape = _random(shape, np.float32), _affine(shape[1], np.float32), shape[1:]
    want = (reference.rms_norm(x, shape, weight, EPS),)
    call = partial(lnrnn.rms_norm, x, shape, weight, EPS)
    found = builders("rms_norm", threads, x, weight)
    return Case(
        _both_ways(call, x, out, threads),
        _peers(found, out),
        want,
        tolerances(want, x.dtype, UNITS),
        traffic(x.nbytes, threads),
    )


def layer_norm_backward(threads, shape):
    """Reads x and gy, writes gx."""
    _need("layer_norm_backward")
    x, gy = _random(shape, np.float32), _random(shape, np.float32, 5)
    (weight, bias), shape = _affine(shape[1], np.float32), shape[1:]
    want = reference.layer_norm_backward(gy, x, shape, weight, bias, EPS)
    exact, loose = _units_of_sum(len(x))
    call = partial(lnrnn.layer_norm_backward, gy, x, shape, weight, bias, EPS)
    return Case(
        _ours(call, threads),
        builders("layer_norm_backward", threads, gy, x, weight, bias),
        want,
        tolerances(want, x.dtype, exact),
        traffic(x.nbytes, threads, reads=1),
        peers_tolerance=tolerances(want, x.dtype, loose),
    )


def batch_norm_inference(threads, shape, out=None):
    _need("batch_norm")
    x, (weight, bias) = _random(shape, np.float32), _affine(shape[1], np.float32)
    mean, var = _moments(shape[1])
    want = reference.batch_norm(x, mean, var, weight, bias, eps=EPS)[:1]
    call = partial(lnrnn.batch_norm, x, mean, var, weight, bias, False, 0.1, EPS)
    found = builders("batch_norm_inference", threads, x, mean, var, weight, bias)
    return Case(
        _both_ways(call, x, out, threads),
        _peers(found, out),
        want,
        tolerances(want, x.dtype, UNITS),
        traffic(x.nbytes, threads),
    )


def batch_norm_layer(threads, shape):
    """The layer beside its function: what it adds to a short call."""
    _need("BatchNorm")
    x, (weight, bias) = _random(shape, np.float32), _affine(shape[1], np.float32)
    mean, var = _moments(shape[1])
    layer = lnrnn.BatchNorm(shape[1], EPS).eval()
    layer.weight, layer.bias, layer.running_mean, layer.running_var = weight, bias, mean, var
    want = reference.batch_norm(x, mean, var, weight, bias, eps=EPS)[:1]
    function = partial(lnrnn.batch_norm, x, mean, var, weight, bias, False, 0.1, EPS)
    return Case(
        _ours(partial(layer, x), threads, function=function),
        builders("batch_norm_inference", threads, x, mean, var, weight, bias),
        want,
        tolerances(want, x.dtype, UNITS),
    )


def batch_norm_training(threads, shape, out=None):
    """Two passes at the least: statistics, then output. The running statistics, which move in place, are
    results."""
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
    ours = _ours(call, threads)
    for contender in ours.values():
        contender.answer = answer
    exact, loose = _units_of_sum(x.size // shape[1])
    return Case(
        ours,
        builders("batch_norm_training", threads, x, *moments, weight, bias),
        want,
        tolerances(want, x.dtype, exact),
        traffic(x.nbytes, threads, reads=1),
        peers_tolerance=tolerances(want, x.dtype, loose),
    )


def batch_norm_backward(threads, shape):
    """Two passes at the least, each over x and gy: sums, then gx."""
    _need("batch_norm_backward")
    x, gy = _random(shape, np.float32), _random(shape, np.float32, 5)
    (weight, bias), (mean, var) = _affine(shape[1], np.float32), _moments(shape[1])
    want = reference.batch_norm_backward(gy, x, mean, var, weight, True, EPS)
    call = partial(lnrnn.batch_norm_backward, gy, x, mean, var, weight, True, EPS)
    found = builders("batch_norm_backward", threads, gy, x, mean, var, weight, bias)
    exact, loose = _units_of_sum(x.size // shape[1])
    return Case(
        _ours(call, threads),
        found,
        want,
        tolerances(want, x.dtype, exact),
        traffic(x.nbytes, threads, reads=3),
        peers_tolerance=tolerances(want, x.dtype, loose),
    )


def elementwise(threads, name, shape, out=None):
    """name: "exp", "tanh" or "sigmoid"."""
    _need(name)
    x = _random(shape, np.float32)
    truth = {"exp": np.exp, "tanh": np.tanh, "sigmoid": reference.sigmoid}[name]
    want = (truth(x.astype(np.float64)),)
    return Case(
        _both_ways(partial(getattr(lnrnn, name), x), x, out, threads),
        _peers(builders("elementwise", threads, x, name), out),
        want,
        tolerances(want, x.dtype, UNITS),
        traffic(x.nbytes, threads),
    )
