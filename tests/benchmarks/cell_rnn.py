"""The LN-RNN, h_t = tanh(LN(W_hh h_{t-1} + W_ih x_t)), written for each library that races. A cell is a
module like this one: peers_*.py and cases_rnn.py know no equation, and CELLS in cases_rnn.py lists the
cells.

p is a dict of parameters under lnrnn's names without the layer's suffix, in the library's own arrays; G
gates, and a state is a tuple of arrays (B, H). The projections of all steps are made at once, the steps one
by one.
"""

from __future__ import annotations

import numpy as np

EPS = 1e-5
NAME = "RNN"  # of the class in lnrnn and torch.nn, and of the operator in ONNX
GATES = 1
STATES = 1
ONNX_GATES = [0]  # which of our gates ONNX has first, second ...
ONNX_OPTIONS = {}


def parameters(inputs: int, hidden: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights of variance 1 / columns; gain about 1 and bias about 0. With them rounding errors fade from
    step to step, so that a right answer stays near the reference for any number of steps."""
    random, tenth = np.random.default_rng(seed), np.float32(0.1)

    def normal(*shape):
        return random.standard_normal(shape, np.float32)

    return {
        "weight_ih": normal(hidden, inputs) / np.float32(inputs**0.5),
        "weight_hh": normal(hidden, hidden) / np.float32(hidden**0.5),
        "gain": 1 + tenth * normal(hidden),
        "bias": tenth * normal(hidden),
    }


def for_peers(p):
    """The parameters as the loops below want them: here, as they are."""
    return p


def answer(reference, p, x, **options):
    """y (T, B, H) in float64."""
    return reference.rnn(x, **p, eps=EPS, **options)[0]


def plain_answer(reference, p, x):
    """The same of the cell without a norm."""
    return reference.rnn(x, **p, norm=None)[0]


def forward(reference, p, x, states, **options):
    """y (T, B, H) from these states on, and the tape; norm=None for the plain cell."""
    y, _, tape = reference.rnn(x, **p, eps=EPS, h0=states[0], **options)
    return y, tape


def backward(reference, tape, gy):
    """The gradients of x, of the states as a tuple, and of the parameters by name."""
    gx, gh0, grads = reference.rnn_backward(tape, gy)
    return gx, (gh0,), grads


# --- torch, inside a traced function ------------------------------------------------------------------------


def torch_project(torch, p, x):
    return (torch.nn.functional.linear(x, p["weight_ih"]),)


def torch_step(torch, p, projected, state):
    f = torch.nn.functional
    a = f.linear(state[0], p["weight_hh"]) + projected[0]
    return (torch.tanh(f.layer_norm(a, a.shape[-1:], p["gain"], p["bias"], EPS)),)


# --- jax, inside a jitted function; matrices come transposed, which XLA multiplies faster -------------------


def jax_project(jax, p, x):
    return (x @ p["weight_ih"],)


def jax_step(jax, p, projected, state):
    a = projected[0] + state[0] @ p["weight_hh"]
    mean = a.mean(-1, keepdims=True)
    rstd = jax.lax.rsqrt(((a - mean) ** 2).mean(-1, keepdims=True) + EPS)
    return (jax.numpy.tanh((a - mean) * rstd * p["gain"] + p["bias"]),)


def jax_plain_project(jax, p, x):
    return (x @ p["weight_ih"] + (p["bias_ih"] + p["bias_hh"]),)


def jax_plain_step(jax, p, projected, state):
    return (jax.numpy.tanh(projected[0] + state[0] @ p["weight_hh"]),)


# --- ONNX: nodes as (operator, inputs, outputs, attributes); parameters by name, matrices transposed --------


def onnx_project(hidden):
    """From x to the projections p0, p1 ..., and the width of each in units of H."""
    return [("MatMul", ["x", "weight_ih"], ["p0"], {})], [1]


def onnx_step(hidden):
    """From the states s0, s1 ... and projections p0, p1 ... of one step to the states n0, n1 ...; n0 is the
    output."""
    return [
        ("MatMul", ["s0", "weight_hh"], ["product"], {}),
        ("Add", ["product", "p0"], ["a"], {}),
        ("LayerNormalization", ["a", "gain", "bias"], ["normal"], {"axis": -1, "epsilon": EPS}),
        ("Tanh", ["normal"], ["n0"], {}),
    ]
