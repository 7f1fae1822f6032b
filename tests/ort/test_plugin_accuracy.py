"""Errors of the plug-in and of ONNX Runtime, both measured against float64, where rounding errors grow."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")

import lnrnn  # noqa: E402
from lnrnn import reference as ref  # noqa: E402
from plugin_runs import alone, called, plugged  # noqa: E402

T, B, D, H = 50, 8, 40, 256


def size(a):
    """Returns the root mean square."""
    return float(np.sqrt(np.mean(np.square(a, dtype=np.float64))))


def errors(seed):
    """Returns the errors of the plug-in, of the runtime, and of the steps. The latter is the error in float64
    if each step adds noise to h and c, as large as the runtime's error after one step."""
    rng, rnn = np.random.default_rng(seed), lnrnn.LSTM(D, H, seed=seed)
    proto = called(rnn)
    own = {name.removesuffix("_l0"): a for name, a in rnn.state_dict().items()}
    shapes = {"x": (T, B, D), "h0": (1, B, H), "c0": (1, B, H)}
    given = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    exact = h, c = given["h0"][0], given["c0"][0]
    x, theirs = given["x"], alone(proto)
    first = theirs.run(None, given | {"x": x[:1]})[1:]
    want, noisy, noise = [], [], None
    for t in range(T):
        exact = ref.lstm(x[t : t + 1], own, h0=exact[0], c0=exact[1])[1]
        h, c = ref.lstm(x[t : t + 1], own, h0=h, c0=c)[1]
        noise = noise or [size(a[0] - b) for a, b in zip(first, exact, strict=True)]
        h, c = (a + n * rng.standard_normal(a.shape) for a, n in zip((h, c), noise, strict=True))
        want.append(exact[0])
        noisy.append(h)
    results = plugged(proto).run(None, given)[0], theirs.run(None, given)[0], np.array(noisy)
    return [size(result - np.array(want)) for result in results]


def test_errors_that_grow_are_those_of_float32():
    """An LSTM with layer norm and initial weights amplifies the rounding of each step.

    The errors of one network differ by chance, so the geometric means of six networks are compared. They were
    1.19e-6, 1.15e-6 and 1.26e-6. A float32 result cannot be nearer than the errors of its steps permit.
    """
    each = np.array([errors(seed) for seed in range(6)])
    ours, theirs, of_steps = np.exp(np.log(each).mean(0))
    assert ours < 1.3 * theirs
    assert ours < 1.5 * of_steps and theirs < 1.5 * of_steps
