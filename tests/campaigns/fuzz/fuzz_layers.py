"""Fuzzes LayerNorm and BatchNorm: calls in both modes, assignments, state dicts and copies.

Compares results with lnrnn.layer_norm and lnrnn.batch_norm, and running statistics with the reference.
"""

from __future__ import annotations

import copy

import numpy as np

import lnrnn
from fuzz_draw import arranged, chance, pick, size, values
from fuzz_networks import copy_of
from lnrnn import reference as ref


def layer_norm(rng, judge) -> None:
    shape = (size(rng),) if chance(rng, 0.7) else tuple(int(n) for n in rng.integers(1, 5, 2))
    layer = lnrnn.LayerNorm(shape, pick(rng, (1e-5, 0.1)), chance(rng, 0.8), chance(rng, 0.7))
    for number in range(int(rng.integers(2, 9))):
        label = f"{layer!r}, action {number}"
        for name in ("weight", "bias"):
            if getattr(layer, name) is not None and chance(rng, 0.3):
                setattr(layer, name, rng.standard_normal(shape).astype(pick(rng, (np.float32, np.float64))))
        layer = another(rng, judge, layer, label)
        x = values(rng, (int(rng.integers(1, 4)), *shape), pick(rng, (np.float32, np.float64)), "shifted")
        want = lnrnn.layer_norm(x, shape, layer.weight, layer.bias, layer.eps)
        judge.same("LayerNorm", layer.train(chance(rng, 0.5))(x), want, label)
        for name, other in arranged(rng, x, 2):
            judge.same("LayerNorm", layer(other), want, f"{label}, {name}")


def batch_norm(rng, judge) -> None:
    channels = size(rng)
    eps, momentum = pick(rng, (1e-5, 0.1)), pick(rng, (0.1, None, 0.0, 1.0))
    layer = lnrnn.BatchNorm(channels, eps, momentum, chance(rng, 0.8), chance(rng, 0.8))
    mean, var, seen = np.zeros(channels), np.ones(channels), 0
    for number in range(int(rng.integers(2, 12))):
        label = f"{layer!r}, action {number}"
        if layer.affine and chance(rng, 0.3):
            layer.weight = rng.standard_normal(channels).astype(np.float32)
        layer = another(rng, judge, layer, label)
        training = chance(rng, 0.6)
        layer.train() if training else layer.eval()
        shape = (int(rng.integers(2, 6)), channels, *(int(n) for n in rng.integers(1, 4, rng.integers(0, 3))))
        x = values(rng, shape, np.float32, "shifted")
        tracks = layer.track_running_stats
        own = training or not tracks
        before = (None, None) if own else (layer.running_mean, layer.running_var)
        want = lnrnn.batch_norm(x, *before, layer.weight, layer.bias, own, eps=eps)
        judge.same("BatchNorm", layer(x), want, label)
        if training and tracks:
            _, mean, var = ref.batch_norm(x, mean, var, None, None, True, momentum, eps, seen)
            seen += 1
        if tracks:
            tracked = layer.num_batches_tracked
            assert tracked == seen, f"{label}: {tracked} batches, not {seen}"
            # Each update adds a rounding to float32, and scales down earlier roundings with the earlier mean.
            for name, true in (("running_mean", mean), ("running_var", var)):
                allowed = 2e-7 * (1 + seen) * max(1.0, float(np.abs(true).max()), float(np.abs(x).max()) ** 2)
                judge.within(getattr(layer, name), true, allowed, f"{label}, {name}", f"BatchNorm, {name}")


def another(rng, judge, layer, label: str):
    """Returns the layer, or sometimes a copy, or a new layer with its state dict."""
    if chance(rng, 0.6):
        return layer
    if chance(rng, 0.25):
        kind, new = "state dict", copy.copy(layer)
        new.load_state_dict(layer.state_dict())
    else:
        kind, new = copy_of(rng, layer)
    old, now = layer.state_dict(), new.state_dict()
    same = list(old) == list(now) and all(old[n].tobytes() == now[n].tobytes() for n in old)
    judge.true(kind, same and repr(new) == repr(layer), f"{label}: {kind}")
    return new


def case(rng, judge) -> None:
    (layer_norm if chance(rng, 0.4) else batch_norm)(rng, judge)
