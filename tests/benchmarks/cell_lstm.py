"""The LN-LSTM of Ba, Kiros and Hinton, written for each library that races (cell_rnn.py says how):

    i, f, g, o = LN(W_hh h_{t-1}) + LN(W_ih x_t), each over all 4H
    c_t = sig(f) c_{t-1} + sig(i) tanh(g),    h_t = sig(o) tanh(LN(c_t))

The libraries get the gates in the order i, f, o, g, for then one call makes all three sigmoids; a norm over
all gates does not mind their order. What does not depend on h is done for all steps at once, norm included.
"""

from __future__ import annotations

import numpy as np

EPS = 1e-5
NAME = "LSTM"
GATES = 4
STATES = 2
ONNX_GATES = [0, 3, 1, 2]  # i, o, f, g
ONNX_OPTIONS = {}


def parameters(inputs: int, hidden: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights of variance 1 / columns; gains about 1 and biases about 0, as in cell_rnn.py, but for the gain
    of the recurrent side, 1/2: with 1 rounding errors grow a hundredfold in 100 steps."""
    random, tenth = np.random.default_rng(seed), np.float32(0.1)

    def normal(*shape):
        return random.standard_normal(shape, np.float32)

    gain, bias = lambda n: 1 + tenth * normal(n), lambda n: tenth * normal(n)
    return {
        "weight_ih": normal(4 * hidden, inputs) / np.float32(inputs**0.5),
        "weight_hh": normal(4 * hidden, hidden) / np.float32(hidden**0.5),
        "gain_ih": gain(4 * hidden),
        "bias_ih": bias(4 * hidden),
        "gain_hh": gain(4 * hidden) / 2,
        "bias_hh": bias(4 * hidden),
        "gain_c": gain(hidden),
        "bias_c": bias(hidden),
    }


def for_peers(p):
    """The gates in the order i, f, o, g."""

    def sorted_(v):
        i, f, g, o = np.split(v, 4)
        return np.concatenate([i, f, o, g])

    return {name: v if name.endswith("_c") else sorted_(v) for name, v in p.items()}


def answer(reference, p, x, **options):
    """y (T, B, H) in float64."""
    return reference.lstm(x, p, eps=EPS, **options)[0]


def plain_answer(reference, p, x):
    """The same of the cell without a norm."""
    return reference.lstm(x, p, norm=None)[0]


def forward(reference, p, x, states, **options):
    """y (T, B, H) from these states on, and the tape; norm=None for the plain cell."""
    y, _, tape = reference.lstm(x, p, eps=EPS, h0=states[0], c0=states[1], **options)
    return y, tape


def backward(reference, tape, gy):
    """The gradients of x, of the states as a tuple, and of the parameters by name."""
    return reference.lstm_backward(tape, gy)


# --- torch, inside a traced function ------------------------------------------------------------------------


def torch_project(torch, p, x):
    f = torch.nn.functional
    a = f.linear(x, p["weight_ih"])
    return (f.layer_norm(a, a.shape[-1:], p["gain_ih"], p["bias_ih"], EPS),)


def torch_step(torch, p, projected, state):
    f = torch.nn.functional
    a = f.linear(state[0], p["weight_hh"])
    a = f.layer_norm(a, a.shape[-1:], p["gain_hh"], p["bias_hh"], EPS) + projected[0]
    hidden = state[0].shape[-1]
    i, forget, o = a[:, : 3 * hidden].sigmoid().chunk(3, -1)
    c = forget * state[1] + i * a[:, 3 * hidden :].tanh()
    return o * f.layer_norm(c, c.shape[-1:], p["gain_c"], p["bias_c"], EPS).tanh(), c


# --- jax, inside a jitted function; matrices come transposed ------------------------------------------------


def _jax_norm(jax, a, gain, bias):
    mean = a.mean(-1, keepdims=True)
    rstd = jax.lax.rsqrt(((a - mean) ** 2).mean(-1, keepdims=True) + EPS)
    return (a - mean) * rstd * gain + bias


def jax_project(jax, p, x):
    return (_jax_norm(jax, x @ p["weight_ih"], p["gain_ih"], p["bias_ih"]),)


def jax_step(jax, p, projected, state):
    a = projected[0] + _jax_norm(jax, state[0] @ p["weight_hh"], p["gain_hh"], p["bias_hh"])
    i, f, o, g = jax.numpy.split(a, 4, -1)
    sigmoid, tanh = jax.nn.sigmoid, jax.numpy.tanh
    c = sigmoid(f) * state[1] + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(_jax_norm(jax, c, p["gain_c"], p["bias_c"])), c


def jax_plain_project(jax, p, x):
    return (x @ p["weight_ih"] + (p["bias_ih"] + p["bias_hh"]),)


def jax_plain_step(jax, p, projected, state):
    i, f, g, o = jax.numpy.split(projected[0] + state[0] @ p["weight_hh"], 4, -1)
    sigmoid, tanh = jax.nn.sigmoid, jax.numpy.tanh
    c = sigmoid(f) * state[1] + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


# --- ONNX: nodes as (operator, inputs, outputs, attributes); parameters by name, matrices transposed --------

NORM = {"axis": -1, "epsilon": EPS}


def onnx_project(hidden):
    return [
        ("MatMul", ["x", "weight_ih"], ["product_ih"], {}),
        ("LayerNormalization", ["product_ih", "gain_ih", "bias_ih"], ["p0"], NORM),
    ], [4]


def onnx_step(hidden):
    widths = {"value_ints": [3 * hidden, hidden]}
    return [
        ("MatMul", ["s0", "weight_hh"], ["product"], {}),
        ("LayerNormalization", ["product", "gain_hh", "bias_hh"], ["normal"], NORM),
        ("Add", ["normal", "p0"], ["a"], {}),
        ("Constant", [], ["widths"], widths),
        ("Split", ["a", "widths"], ["ifo", "g"], {"axis": -1}),
        ("Sigmoid", ["ifo"], ["sig_ifo"], {}),
        ("Tanh", ["g"], ["tanh_g"], {}),
        ("Split", ["sig_ifo"], ["i", "f", "o"], {"axis": -1, "num_outputs": 3}),
        ("Mul", ["f", "s1"], ["kept"], {}),
        ("Mul", ["i", "tanh_g"], ["written"], {}),
        ("Add", ["kept", "written"], ["n1"], {}),
        ("LayerNormalization", ["n1", "gain_c", "bias_c"], ["normal_c"], NORM),
        ("Tanh", ["normal_c"], ["tanh_c"], {}),
        ("Mul", ["o", "tanh_c"], ["n0"], {}),
    ]
