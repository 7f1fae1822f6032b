"""Fuzzes layer norm, RMS norm, batch norm and their gradients.

Compares results with the reference in long double. Equivalent calls must give the same bits.
"""

from __future__ import annotations

from functools import partial

import ml_dtypes
import numpy as np

import lnrnn
from fuzz_draw import STYLES, arranged, chance, pick, size, values
from helpers import SCALE, wide
from lnrnn import reference as ref

DTYPES = (np.float32, np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
EPS = (1e-5, 1e-5, 1e-3, 0.5, 1e-8)
# Tolerances relative to the largest value of a row, as in tests/norm. OUTLIER: for rows with one large value.
FORWARD, BACKWARD, OUTLIER = 5e-7, 1e-6, 2e-6


def layer(rng, judge) -> None:
    dtype, style = pick(rng, DTYPES), pick(rng, STYLES)
    rows = tuple(int(n) for n in rng.integers(1, 5, rng.integers(0, 4)))
    shape = (
        (size(rng),) if chance(rng, 0.8) else tuple(int(n) for n in rng.integers(1, 6, rng.integers(2, 4)))
    )
    if chance(rng, 0.03):
        rows = (*rows, 0)
    if chance(rng, 0.01):  # enough for several threads
        rows = (1 + 300_000 // int(np.prod(shape)),)
    x = values(rng, (*rows, int(np.prod(shape))), dtype, style).reshape(*rows, *shape)
    single = np.float64 if dtype is np.float64 else np.float32
    weight, bias = (rng.standard_normal(shape).astype(single) if chance(rng, 0.6) else None for _ in range(2))
    eps = pick(rng, EPS)
    given = pick(rng, (shape, shape, [*shape], shape[0] if len(shape) == 1 else shape))
    rms = chance(rng, 0.35)
    kind = "rms_norm" if rms else "layer_norm"
    label = f"{kind} of {np.dtype(dtype).name}{x.shape} over {shape}, {style}, eps {eps}"
    if rms:
        call = partial(lnrnn.rms_norm, normalized_shape=given, weight=weight, eps=eps)
    else:
        call = partial(lnrnn.layer_norm, normalized_shape=given, weight=weight, bias=bias, eps=eps)
    y = call(x)
    if dtype not in SCALE:  # results in 16 bits are rounded results of float32
        judge.same(kind, y, call(x.astype(np.float32)).astype(dtype), f"{label} by float32")
    exact = x.astype(np.float32) if dtype not in SCALE else x
    own = y if dtype in SCALE else call(exact)
    axes = tuple(range(-len(shape), 0))
    e = np.longdouble(eps)
    if rms:
        want = ref.rms_norm(*wide(exact), shape, *wide(weight), e)
        scale = np.abs(want)
    else:
        want = ref.layer_norm(*wide(exact), shape, *wide(weight, bias), e)
        plain = want if bias is None else ref.layer_norm(*wide(exact), shape, *wide(weight), None, e)
        scale = np.maximum(np.abs(want), np.abs(plain))
    bound = OUTLIER if style in ("outlier", "mixed") else 10 * FORWARD if style == "far" else FORWARD
    allowed = bound * SCALE[single] * scale.max(axes, keepdims=True, initial=0)
    judge.near(kind, own, want, allowed, label, f"{kind}, {'outlier' if bound == OUTLIER else style}")
    repeated(rng, judge, kind, call, x, y, label)
    for name, owner in (("weight", weight), ("bias", None if rms else bias)):
        if owner is not None and dtype in SCALE and x.shape == shape:
            place = owner.copy()
            call(x, **{name: place}, out=place)
            judge.same(kind, place, y, f"{label}, out={name}")
    if rows and rows[0] and x.size:
        for k in rng.permutation(rows[0])[:3]:
            judge.same(kind, call(x[k]), y[k], f"{label}, row {k} alone")


def repeated(rng, judge, kind, call, x, y, label) -> None:
    """Checks that calls with other memory layouts, outputs and threads give the same bits."""
    for name, other in arranged(rng, x, 5):
        judge.same(kind, call(other), y, f"{label}, {name}")
    lnrnn.set_num_threads(int(rng.integers(1, 4)))
    judge.same(kind, call(x), y, f"{label}, {lnrnn.get_num_threads()} threads")
    place = x.copy()
    judge.true(kind, call(place, out=place) is place, f"{label}: it does not return out")
    judge.same(kind, place, y, f"{label}, out=x")
    by, both = int(rng.integers(0, x.size + 1)), np.zeros(2 * x.size, x.dtype)
    place, out = both[: x.size].reshape(x.shape), both[by : by + x.size].reshape(x.shape)
    place[...] = x
    call(place, out=out)
    judge.same(kind, out, y, f"{label}, out begins {by} elements after x")
    for name, out in arranged(rng, np.zeros_like(x), 2):
        if not out.flags.writeable or out.dtype != x.dtype or not out.dtype.isnative:
            continue
        call(x, out=out)
        judge.same(kind, np.array(out), y, f"{label}, out {name}")


def layer_back(rng, judge) -> None:
    dtype = pick(rng, DTYPES)
    style = pick(rng, ("normal", "shifted", "whole", "scaled"))
    rows, n = int(rng.integers(1, 8)) if chance(rng, 0.9) else 70, size(rng)
    x, gy = values(rng, (rows, n), dtype, style), values(rng, (rows, n), dtype, "normal")
    single = np.float64 if dtype is np.float64 else np.float32
    weight, bias = (rng.standard_normal(n).astype(single) if chance(rng, 0.7) else None for _ in range(2))
    eps = pick(rng, EPS)
    kind = "layer_norm_backward"
    label = f"{kind} of {np.dtype(dtype).name}{x.shape}, {style}, eps {eps}"
    call = partial(lnrnn.layer_norm_backward, normalized_shape=n, weight=weight, bias=bias, eps=eps)
    got = call(gy, x)
    sx, sg = (x, gy) if dtype in SCALE else (x.astype(np.float32), gy.astype(np.float32))
    own = got if dtype in SCALE else call(sg, sx)
    want = ref.layer_norm_backward(*wide(sg, sx), n, *wide(weight, bias), np.longdouble(eps))
    # The bound is relative to u / sigma, the size of gx's terms. In a row of two values they cancel exactly.
    u = np.abs(sg.astype(np.longdouble) * (1 if weight is None else weight)).max(1, keepdims=True)
    most = BACKWARD * SCALE[single] * u / np.sqrt(wide(sx)[0].var(1, keepdims=True) + eps)
    judge.near(kind, own[0], want[0], most, label)
    if dtype not in SCALE:
        judge.same(kind, got[0], own[0].astype(dtype), f"{label} by float32")
    sums = BACKWARD * SCALE[single] * np.abs(sg.astype(float)).sum(0).max(initial=0)
    xhat = np.abs(ref.layer_norm(*wide(sx), n, None, None, np.longdouble(eps))).max(initial=1)
    for name, given, g, w in zip(("gweight", "gbias"), (weight, bias), own[1:], want[1:], strict=True):
        assert (g is None) == (given is None), f"{label}: {name} is {g}"
        if g is not None:
            judge.within(g, w, sums * xhat, f"{label}, {name}", f"{kind}, sums")
    for (name, ox), (_, og) in zip(arranged(rng, x, 3), arranged(rng, gy, 3), strict=True):
        agree(judge, kind, call(og, ox), got, f"{label}, {name}")
    lnrnn.set_num_threads(int(rng.integers(1, 4)))
    agree(judge, kind, call(gy, x), got, f"{label}, {lnrnn.get_num_threads()} threads")
    for k in rng.permutation(rows)[:2]:
        judge.same(kind, call(gy[k], x[k])[0], got[0][k], f"{label}, row {k} alone")


def agree(judge, kind, got, want, label) -> None:
    """Counts one execution, and asserts that all its results have equal bits."""
    judge.counts[kind] += 1
    for k, (g, w) in enumerate(zip(got, want, strict=True)):
        assert (g is None) == (w is None), label
        if g is not None and (g.shape != w.shape or g.dtype != w.dtype or g.tobytes() != w.tobytes()):
            np.testing.assert_array_equal(g, w, err_msg=f"{label}, result {k}")


def batch(rng, judge) -> None:
    dtype = pick(rng, DTYPES)
    style = pick(rng, ("normal", "shifted", "whole", "scaled"))
    shape = (int(rng.integers(1, 9)), size(rng), *(int(n) for n in rng.integers(1, 6, rng.integers(0, 3))))
    if chance(rng, 0.1):
        shape = (70, *shape[1:])
    channels = shape[1]
    training = chance(rng, 0.5)
    if training and np.prod(shape) == channels:
        shape = (2, *shape[1:])
    x, gy = values(rng, shape, dtype, style), values(rng, shape, dtype, "normal")
    single = np.float64 if dtype is np.float64 else np.float32
    drawn = (rng.standard_normal(channels).astype(single) if chance(rng, 0.6) else None for _ in range(2))
    weight, bias = drawn
    size_of_x = max(float(np.abs(x.astype(float)).max(initial=0)), 1e-30)
    mean = (rng.standard_normal(channels) * size_of_x).astype(single)
    var = (rng.uniform(0.5, 2, channels) * size_of_x**2).astype(single)
    eps, momentum = pick(rng, EPS), pick(rng, (0.1, 0.0, 1.0, 0.37))
    kind, mode = "batch_norm", "training" if training else "inference"
    label = f"{kind} of {np.dtype(dtype).name}{shape}, {style}, {mode}, eps {eps}"
    running = [mean.copy(), var.copy()]

    def call(x, out=None):
        given = (mean.copy(), var.copy()) if training else (mean, var)
        return lnrnn.batch_norm(x, *given, weight, bias, training, momentum, eps, out=out)

    y = lnrnn.batch_norm(x, *running, weight, bias, training, momentum, eps)
    sx, sg = (x, gy) if dtype in SCALE else (x.astype(np.float32), gy.astype(np.float32))
    own = y if dtype in SCALE else call(sx)
    e = np.longdouble(eps)
    want, want_mean, want_var = ref.batch_norm(
        *wide(sx, mean, var, weight, bias), training, np.longdouble(momentum), e
    )
    axes = (0, *range(2, len(shape)))
    plain = ref.batch_norm(*wide(sx, mean, var, weight, None), training, momentum, e)[0]
    scale = np.maximum(np.abs(want), np.abs(plain))
    by_channel = (1, -1, *[1] * (len(shape) - 2))
    gain = np.ones(channels) if weight is None else np.abs(weight).astype(float)
    largest = np.abs(wide(sx)[0]).max(axes)
    rstd = 1 / np.sqrt((wide(sx)[0].var(axes) if training else wide(var)[0]) + eps)
    most = FORWARD * SCALE[single] * scale.max(axes, keepdims=True, initial=0)
    # If x and the mean nearly cancel, the rounding error of the mean matters. A running mean has the type of
    # x, the mean of a batch is a double.
    rounding = 2.0**-53 if training else FORWARD * SCALE[single]
    most = most + (2 * rounding * (largest + np.abs(mean)) * gain * rstd).reshape(by_channel)
    judge.near(kind, own, want, most, label, f"{kind}, {mode}")
    if dtype not in SCALE:
        judge.same(kind, y, own.astype(dtype), f"{label} by float32")
    if training:
        seen = np.maximum(np.abs(want_mean), largest)
        judge.within(running[0], want_mean, 3e-7 * SCALE[single] * seen, f"{label}, mean", "running mean")
        # Very small results are rounded to subnormal numbers, so one such number is added to the bound.
        spread = 1e-6 * SCALE[single] * np.abs(want_var) + float(np.finfo(single).smallest_subnormal)
        judge.within(running[1], want_var, spread, f"{label}, var", "running var")
    elif running[0].tobytes() != mean.tobytes() or running[1].tobytes() != var.tobytes():
        raise AssertionError(f"{label}: inference changed the running statistics")
    repeated(rng, judge, kind, call, x, y, label)
    if not training:
        for k in rng.permutation(shape[0])[:3]:
            judge.same(kind, call(x[k : k + 1]), y[k : k + 1], f"{label}, sample {k} alone")
    kind = "batch_norm_backward"
    label = kind + label[10:]
    given = dict(running_mean=mean, running_var=var, weight=weight, training=training, eps=eps)
    back = partial(lnrnn.batch_norm_backward, **given)
    got = back(gy, x)
    own = got if dtype in SCALE else back(sg, sx)
    want = ref.batch_norm_backward(*wide(sg, sx, mean, var, weight), training, e)
    most = BACKWARD * SCALE[single] * (np.abs(sg.astype(float)).max(axes, initial=0) * gain * rstd)
    lost = 1 + (largest + np.abs(mean)) * rstd * (0 if training and single is np.float32 else 1)
    most = (most * lost).reshape(by_channel)
    judge.near(kind, own[0], want[0], most, label)
    sums = BACKWARD * SCALE[single] * np.abs(sg.astype(float)).sum(axes)
    if weight is not None:
        judge.within(own[1], want[1], sums * lost, f"{label}, gweight", f"{kind}, sums")
    judge.within(own[2], want[2], sums, f"{label}, gbias", f"{kind}, sums")
    for (name, ox), (_, og) in zip(arranged(rng, x, 3), arranged(rng, gy, 3), strict=True):
        agree(judge, kind, back(og, ox), got, f"{label}, {name}")
    lnrnn.set_num_threads(int(rng.integers(1, 4)))
    agree(judge, kind, back(gy, x), got, f"{label}, {lnrnn.get_num_threads()} threads")


def case(rng, judge) -> None:
    at = rng.random()
    (layer if at < 0.4 else layer_back if at < 0.6 else batch)(rng, judge)
