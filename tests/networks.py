"""What the tests of the recurrent network share: networks whose parameters are not the defaults, the
reference run through the same layers and directions, and code that runs in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import lnrnn
import numpy as np
from lnrnn import reference as ref

NORMS = ("layer", "batch", None)
NONLINEARITIES = ("tanh", "relu", "sigmoid", "identity")


def network(input_size, hidden_size, *, seed=0, trained=0, **options):
    """An RNN whose gains and biases are drawn too; batch norm has seen a batch of that many steps."""
    rnn = lnrnn.RNN(input_size, hidden_size, seed=seed, **options)
    rng = np.random.default_rng(seed + 1)
    for name, value in rnn.parameters().items():
        if name.startswith("gain"):
            setattr(rnn, name, rng.uniform(0.5, 1.5, value.shape))
        elif name.startswith("bias"):
            setattr(rnn, name, rng.uniform(-0.5, 0.5, value.shape))
    if trained:
        x = rng.standard_normal((trained, 16, input_size))
        rnn.forward_train(x.swapaxes(0, 1) if rnn.batch_first else x)
    return rnn


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def suffixes(rnn):
    """Of the parameters' names, layer by layer: [["_l0", "_l0_reverse"], ["_l1", ...]]."""
    ends = ("", "_reverse") if rnn.bidirectional else ("",)
    return [[f"_l{k}{end}" for end in ends] for k in range(rnn.num_layers)]


def reference_forward(rnn, x, h0=None, lengths=None, training=False):
    """(y, h, tapes) of the reference with rnn's parameters; x (T, B, D), time first. Tapes by suffix."""
    tapes, states = {}, []
    for layer in suffixes(rnn):
        outputs = []
        for suffix in layer:
            options = {name.removesuffix(suffix): value for name, value in rnn.parameters().items()
                       if name.endswith(suffix)}
            kind = None
            if rnn.norm is not None:
                kind = "layer" if isinstance(rnn.norm, lnrnn.LayerNormSpec) else "batch"
                options["eps"] = rnn.norm.eps
            if kind == "batch" and not training:
                known = rnn.known_steps
                options["statistics"] = [getattr(rnn, name + suffix)[:known]
                                         for name in ("running_mean", "running_var")]
                options["overrun"] = rnn.overrun
            y, h, tapes[suffix] = ref.rnn(x, norm=kind, nonlinearity=rnn.nonlinearity, lengths=lengths,
                                          h0=None if h0 is None else h0[len(states)],
                                          reverse=suffix.endswith("_reverse"), **options)
            outputs.append(y)
            states.append(h)
        x = np.concatenate(outputs, axis=-1)
    return x, np.array(states), tapes


def reference_backward(rnn, tapes, gy, gh=None):
    """(gx, gh0, gradients by parameter name) of the reference; gy (T, B, D * H), time first."""
    H, grads, gh0 = rnn.hidden_size, {}, []
    for layer in reversed(suffixes(rnn)):
        below, states = 0, []
        for d, suffix in enumerate(layer):
            index = [s for names in suffixes(rnn) for s in names].index(suffix)
            part = gy[..., d * H:(d + 1) * H]
            gx, g, found = ref.rnn_backward(tapes[suffix], part, None if gh is None else gh[index])
            below = below + gx
            states.append(g)
            grads |= {name + suffix: value for name, value in found.items()}
        gy, gh0 = below, states + gh0
    return gy, np.array(gh0), grads


def run_python(code, timeout=120, **environment):
    """Runs code in a new interpreter that finds what this one finds. None takes a variable away."""
    path = [str(Path(__file__).parent), *filter(None, sys.path), os.getcwd()]
    here = {"PYTHONPATH": os.pathsep.join(path)}
    env = {name: v for name, v in {**os.environ, **here, **environment}.items() if v is not None}
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True,
                          timeout=timeout, env=env)


def run_apart(function, **environment):
    """Calls a function of a test module in a process of its own: a crash there does not end the suite."""
    done = run_python(f"from {function.__module__} import {function.__name__} as f; f()", **environment)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def calm(input_size, hidden_size, *, seed=0, trained=0, **options):
    """A network through which a rounding error does not grow: every unit's sum of inputs has a variance near 1, beside
    which W_hh, of spectral radius 0.6, is small. Batch norm learns from sequences like `normal` draws."""
    rnn = network(input_size, hidden_size, seed=seed, **options)
    rng = np.random.default_rng(seed + 2)
    for name, value in rnn.parameters().items():
        if name.startswith("weight_ih"):
            setattr(rnn, name, rng.uniform(-1, 1, value.shape) * (3 / value.shape[1]) ** 0.5)
        elif name.startswith("gain"):
            setattr(rnn, name, rng.uniform(0.5, 1, value.shape))
    if trained:
        x = rng.standard_normal((trained, 64, input_size))
        rnn.forward_train(x.swapaxes(0, 1) if rnn.batch_first else x)
    return rnn


def rested():
    """Waits until several threads are used again: after a call that lost a core for long, the next 50 ms do without."""
    time.sleep(0.06)
