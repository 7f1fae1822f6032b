"""Defines races of norms and elementwise functions. Each public function below returns a Case.

worker.py calls these functions with the number of threads and the size.
"""

from __future__ import annotations

from functools import partial

import numpy as np

import lnrnn
from case import Case, on_one_thread_too, tolerances, traffic
from lnrnn import reference
from peers_norm import EPS, builders
from race import Call

# The tolerance, as a multiple of the largest value's rounding error. In rows of 4096 values, the errors of
# all libraries are at most half of it.
ROUNDINGS = 6


def _roundings_of_sum(n):
    """Returns the tolerances of lnrnn and of peers for a sum of n terms, such as a parameter's gradient.

    lnrnn adds partial sums, so its error grows with the square root of n. Some peers add one term after
    another, so their error grows with n.
    """
    return ROUNDINGS + n**0.5 / 16, ROUNDINGS + n / 16


def _random(shape, dtype, seed=0):
    """Returns random numbers with mean 0.5 and standard deviation 1."""
    return (np.random.default_rng(seed).standard_normal(shape, np.float32) + np.float32(0.5)).astype(dtype)


def _affine(width, dtype):
    return (1 + 0.1 * _random(width, dtype, 1)).astype(dtype), (0.1 * _random(width, dtype, 2)).astype(dtype)


def _moments(width):
    """Returns running statistics that differ from the statistics of the input."""
    return _random(width, np.float32, 3), 1 + _random(width, np.float32, 4) ** 2


def _dtype(name):
    if name == "bfloat16":
        from ml_dtypes import bfloat16

        return np.dtype(bfloat16)
    return np.dtype(name)


def _case(ours, peers, want, x, threads, reads=0, summed=None) -> Case:
    """Returns a Case. Its limit is the time of a copy of x and `reads` reads. summed: the number of terms in
    a parameter's gradient."""
    exact, loose = (ROUNDINGS, ROUNDINGS) if summed is None else _roundings_of_sum(summed)
    ours = ours if isinstance(ours, dict) else on_one_thread_too(Call(ours), threads)
    return Case(
        ours, peers, want, tolerances(want, x.dtype, exact),
        traffic(x.nbytes, threads, reads=reads),
        peers_tolerance=tolerances(want, x.dtype, loose),
    )  # fmt: skip


def _written(call, peers, want, x, out, threads) -> Case:
    """Returns the case of a function with out=. out=True: lnrnn and peers write to given arrays. False: all
    allocate their results. None: both kinds race, and lnrnn's call without out= is judged."""
    bound = partial(call, out=np.empty_like(x))
    ours = on_one_thread_too(Call(bound if out else call), threads)
    if out is None:
        ours = {"lnrnn": ours.pop("lnrnn"), "lnrnn out=": Call(bound), **ours}
    else:
        other = "onnxruntime" if out else "onnxruntime bound"
        peers = {name: build for name, build in peers.items() if name != other}
    return _case(ours, peers, want, x, threads)


def layer_norm(threads, shape, out=None, dtype="float32"):
    dtype = _dtype(dtype)
    x, (weight, bias), shape = _random(shape, dtype), _affine(shape[1], dtype), shape[1:]
    want = (reference.layer_norm(x, shape, weight, bias, EPS),)
    call = partial(lnrnn.layer_norm, x, shape, weight, bias, EPS)
    return _written(call, builders("layer_norm", threads, x, weight, bias), want, x, out, threads)


def rms_norm(threads, shape, out=None):
    x, (weight, _), shape = _random(shape, np.float32), _affine(shape[1], np.float32), shape[1:]
    want = (reference.rms_norm(x, shape, weight, EPS),)
    call = partial(lnrnn.rms_norm, x, shape, weight, EPS)
    return _written(call, builders("rms_norm", threads, x, weight), want, x, out, threads)


def layer_norm_backward(threads, shape):
    """Races the gradient of layer norm, which reads x and gy, and writes gx."""
    x, gy = _random(shape, np.float32), _random(shape, np.float32, 5)
    (weight, bias), shape = _affine(shape[1], np.float32), shape[1:]
    want = reference.layer_norm_backward(gy, x, shape, weight, bias, EPS)
    call = partial(lnrnn.layer_norm_backward, gy, x, shape, weight, bias, EPS)
    peers = builders("layer_norm_backward", threads, gy, x, weight, bias)
    return _case(call, peers, want, x, threads, reads=1, summed=len(x))


def batch_norm_inference(threads, shape, out=None):
    x, given = _random(shape, np.float32), (*_moments(shape[1]), *_affine(shape[1], np.float32))
    want = reference.batch_norm(x, *given, eps=EPS)[:1]
    call = partial(lnrnn.batch_norm, x, *given, False, 0.1, EPS)
    return _written(call, builders("batch_norm_inference", threads, x, *given), want, x, out, threads)


def batch_norm_training(threads, shape, out=None):
    """Races batch norm in training, which reads x twice. The running statistics are results too."""
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
    peers = builders("batch_norm_training", threads, x, *moments, weight, bias)
    return _case(ours, peers, want, x, threads, reads=1, summed=x.size // shape[1])


def batch_norm_backward(threads, shape):
    """Races the gradient of batch norm, which reads x and gy twice."""
    x, gy = _random(shape, np.float32), _random(shape, np.float32, 5)
    (weight, bias), (mean, var) = _affine(shape[1], np.float32), _moments(shape[1])
    want = reference.batch_norm_backward(gy, x, mean, var, weight, True, EPS)
    call = partial(lnrnn.batch_norm_backward, gy, x, mean, var, weight, True, EPS)
    peers = builders("batch_norm_backward", threads, gy, x, mean, var, weight, bias)
    return _case(call, peers, want, x, threads, reads=3, summed=x.size // shape[1])


def elementwise(threads, name, shape, out=None):
    """Races an elementwise function. name: "exp", "tanh" or "sigmoid"."""
    x = _random(shape, np.float32)
    truth = {"exp": np.exp, "tanh": np.tanh, "sigmoid": reference.sigmoid}[name]
    want = (truth(x.astype(np.float64)),)
    peers = builders("elementwise", threads, x, name)
    return _written(partial(getattr(lnrnn, name), x), peers, want, x, out, threads)
