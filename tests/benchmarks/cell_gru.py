"""The LN-GRU of Ba, Kiros and Hinton, written for each library that races (cell_rnn.py says how):

    r, z = sig(LN(W_hh h_{t-1})[r, z] + LN(W_ih x_t)[r, z]), each LN over 2H
    n = tanh(LN(W_ih x_t)[n] + r LN(W_hh h_{t-1})[n]), each LN over H;    h_t = (1 - z) n + z h_{t-1}

The libraries get the parameters of r, z and of n apart: two products need no copy to be split.
"""

from __future__ import annotations

import numpy as np

EPS = 1e-5
NAME = "GRU"
GATES = 3
STATES = 1
ONNX_GATES = [1, 0, 2]  # z, r, n
ONNX_OPTIONS = {"linear_before_reset": 1}


def parameters(inputs: int, hidden: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights of variance 1 / columns; gains about 1 and biases about 0, as in cell_rnn.py."""
    random, tenth = np.random.default_rng(seed), np.float32(0.1)

    def normal(*shape):
        return random.standard_normal(shape, np.float32)

    gain, bias = lambda n: 1 + tenth * normal(n), lambda n: tenth * normal(n)
    return {
        "weight_ih": normal(3 * hidden, inputs) / np.float32(inputs**0.5),
        "weight_hh": normal(3 * hidden, hidden) / np.float32(hidden**0.5),
        "gain_ih": gain(3 * hidden),
        "bias_ih": bias(3 * hidden),
        "gain_hh": gain(3 * hidden),
        "bias_hh": bias(3 * hidden),
    }


def for_peers(p):
    """Every parameter in two: NAME_rz and NAME_n."""
    hidden = len(p["gain_ih"]) // 3
    parts = {"rz": slice(0, 2 * hidden), "n": slice(2 * hidden, None)}
    return {f"{name}_{part}": v[rows] for name, v in p.items() for part, rows in parts.items()}


def answer(reference, p, x, **options):
    """y (T, B, H) in float64."""
    return reference.gru(x, p, eps=EPS, **options)[0]


def plain_answer(reference, p, x):
    """The same of the cell without a norm."""
    return reference.gru(x, p, norm=None)[0]


def forward(reference, p, x, states, **options):
    """y (T, B, H) from these states on, and the tape; norm=None for the plain cell."""
    y, _, tape = reference.gru(x, p, eps=EPS, h0=states[0], **options)
    return y, tape


def backward(reference, tape, gy):
    """The gradients of x, of the states as a tuple, and of the parameters by name."""
    gx, gh0, grads = reference.gru_backward(tape, gy)
    return gx, (gh0,), grads


# --- torch, inside a traced function ------------------------------------------------------------------------


def _torch_side(torch, p, side, x):
    """The normalised products of r, z and of n with the weights of a side, "ih" or "hh"."""
    f = torch.nn.functional
    found = []
    for part in ("rz", "n"):
        a = f.linear(x, p[f"weight_{side}_{part}"])
        found.append(f.layer_norm(a, a.shape[-1:], p[f"gain_{side}_{part}"], p[f"bias_{side}_{part}"], EPS))
    return tuple(found)


def torch_project(torch, p, x):
    return _torch_side(torch, p, "ih", x)


def torch_step(torch, p, projected, state):
    rz, n = _torch_side(torch, p, "hh", state[0])
    r, z = (rz + projected[0]).sigmoid().chunk(2, -1)
    n = torch.tanh(projected[1] + r * n)
    return (torch.lerp(n, state[0], z),)


# --- jax, inside a jitted function; matrices come transposed ------------------------------------------------


def _jax_side(jax, p, side, x):
    found = []
    for part in ("rz", "n"):
        a = x @ p[f"weight_{side}_{part}"]
        mean = a.mean(-1, keepdims=True)
        rstd = jax.lax.rsqrt(((a - mean) ** 2).mean(-1, keepdims=True) + EPS)
        found.append((a - mean) * rstd * p[f"gain_{side}_{part}"] + p[f"bias_{side}_{part}"])
    return tuple(found)


def jax_project(jax, p, x):
    return _jax_side(jax, p, "ih", x)


def jax_step(jax, p, projected, state):
    rz, n = _jax_side(jax, p, "hh", state[0])
    r, z = jax.numpy.split(jax.nn.sigmoid(rz + projected[0]), 2, -1)
    n = jax.numpy.tanh(projected[1] + r * n)
    return (n + z * (state[0] - n),)


def jax_plain_project(jax, p, x):
    return (x @ p["weight_ih"] + p["bias_ih"],)


def jax_plain_step(jax, p, projected, state):
    hidden = state[0].shape[-1]
    x_, h_ = projected[0], state[0] @ p["weight_hh"] + p["bias_hh"]
    rz = jax.nn.sigmoid(x_[:, : 2 * hidden] + h_[:, : 2 * hidden])
    r, z = jax.numpy.split(rz, 2, -1)
    n = jax.numpy.tanh(x_[:, 2 * hidden :] + r * h_[:, 2 * hidden :])
    return (n + z * (state[0] - n),)


# --- ONNX: nodes as (operator, inputs, outputs, attributes); parameters by name, matrices transposed --------


def _onnx_side(side, source, results):
    nodes = []
    for part, result in zip(("rz", "n"), results, strict=True):
        product = f"product_{side}_{part}"
        nodes += [
            ("MatMul", [source, f"weight_{side}_{part}"], [product], {}),
            (
                "LayerNormalization",
                [product, f"gain_{side}_{part}", f"bias_{side}_{part}"],
                [result],
                {"axis": -1, "epsilon": EPS},
            ),
        ]
    return nodes


def onnx_project(hidden):
    return _onnx_side("ih", "x", ["p0", "p1"]), [2, 1]


def onnx_step(hidden):
    return [
        *_onnx_side("hh", "s0", ["normal_rz", "normal_n"]),
        ("Add", ["normal_rz", "p0"], ["rz"], {}),
        ("Sigmoid", ["rz"], ["sig_rz"], {}),
        ("Split", ["sig_rz"], ["r", "z"], {"axis": -1, "num_outputs": 2}),
        ("Mul", ["r", "normal_n"], ["reset"], {}),
        ("Add", ["reset", "p1"], ["a"], {}),
        ("Tanh", ["a"], ["n"], {}),
        ("Sub", ["s0", "n"], ["way"], {}),
        ("Mul", ["z", "way"], ["moved"], {}),
        ("Add", ["n", "moved"], ["n0"], {}),
    ]
