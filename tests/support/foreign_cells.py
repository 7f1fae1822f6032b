"""The recurrent cells of other libraries in float64 NumPy, one function each.

The functions follow the libraries' formulas and names, independently of lnrnn, so that tests can compare
importers with them. The heading above a function names its source file.

A cell takes x (B, I), the state and its parameters by name. It returns the next state, a tuple that begins
with h.
"""

from __future__ import annotations

import numpy as np


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def ln(v, gamma=1.0, beta=0.0, eps=1e-5):
    """Normalises v (B, units) over the units."""
    centred = v - v.mean(axis=1, keepdims=True)
    return gamma * centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + eps) + beta


def quarters(v):
    return np.split(v, 4, axis=1)


def thirds(v):
    return np.split(v, 3, axis=1)


# --- torch.nn (pytorch, torch/nn/modules/rnn.py) ------------------------------------------------------------


def _linear(x, h, p):
    gx, gh = x @ p["weight_ih"].T, h @ p["weight_hh"].T
    return (gx + p["bias_ih"], gh + p["bias_hh"]) if "bias_ih" in p else (gx, gh)


def torch_rnn(x, state, p, nonlinearity="tanh"):
    gx, gh = _linear(x, state[0], p)
    return (np.tanh(gx + gh) if nonlinearity == "tanh" else np.maximum(gx + gh, 0),)


def torch_lstm(x, state, p):
    h, c = state
    i, f, g, o = quarters(sum(_linear(x, h, p)))
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def torch_gru(x, state, p):
    (h,) = state
    (xr, xz, xn), (hr, hz, hn) = map(thirds, _linear(x, h, p))
    r, z = sigmoid(xr + hr), sigmoid(xz + hz)
    n = np.tanh(xn + r * hn)
    return ((1 - z) * n + z * h,)


# --- LayerNormLSTMCell of pytorch, benchmarks/fastrnns/custom_lstms.py; NeMo, nemo/collections/common/parts/r


def fastrnns_lstm(x, state, p, eps=1e-5):
    h, c = state
    x_side = ln(x @ p["weight_ih"].T, p["layernorm_i.weight"], p["layernorm_i.bias"], eps)
    h_side = ln(h @ p["weight_hh"].T, p["layernorm_h.weight"], p["layernorm_h.bias"], eps)
    i, f, g, o = quarters(x_side + h_side)
    c = ln(sigmoid(f) * c + sigmoid(i) * np.tanh(g), p["layernorm_c.weight"], p["layernorm_c.bias"], eps)
    return sigmoid(o) * np.tanh(c), c


# --- _CustomLSTM of torchaudio, torchaudio/models/rnnt.py ---------------------------------------------------


def torchaudio_lstm(x, state, p, eps=1e-5, layer_norm=True):
    h, c = state
    gates = x @ p["x2g.weight"].T + p.get("x2g.bias", 0) + h @ p["p2g.weight"].T
    if layer_norm:
        gates = ln(gates, p["g_norm.weight"], p["g_norm.bias"], eps)
    i, f, g, o = quarters(gates)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    if layer_norm:
        c = ln(c, p["c_norm.weight"], p["c_norm.bias"], eps)
    return sigmoid(o) * np.tanh(c), c


# --- icefall, egs/librispeech/ASR/transducer/rnn.py ---------------------------------------------------------


def _named_norm(p, eps):
    return lambda name, v: ln(v, p[f"layernorm_{name}.weight"], p[f"layernorm_{name}.bias"], eps)


def icefall_lstm(x, state, p, eps=1e-5):
    h, c = state
    norm = _named_norm(p, eps)
    i, f, g, o = quarters(sum(_linear(x, h, p)))
    i, f, g, o = norm("i", i), norm("f", f), norm("cx", g), norm("o", o)
    c = norm("cy", sigmoid(f) * c + sigmoid(i) * np.tanh(g))
    return sigmoid(o) * np.tanh(c), c


def icefall_gru(x, state, p, eps=1e-5):
    (h,) = state
    norm = _named_norm(p, eps)
    (xr, xu, xn), (hr, hu, hn) = map(thirds, _linear(x, h, p))
    reset, update = sigmoid(norm("r", xr + hr)), sigmoid(norm("i", xu + hu))
    new = np.tanh(norm("n", xn + reset * hn))
    return (new + update * (h - new),)


# --- haste, frameworks/pytorch/layer_norm_lstm.py and layer_norm_gru.py -------------------------------------


def haste_lstm(x, state, p, zoneout=0.0):
    h, c = state
    v = ln(x @ p["kernel"], p["gamma"][0]) + ln(h @ p["recurrent_kernel"], p["gamma"][1]) + p["bias"]
    i, g, f, o = quarters(v)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    new = sigmoid(o) * np.tanh(ln(c, p["gamma_h"], p["beta_h"]))
    return zoneout * h + (1 - zoneout) * new, c


def haste_gru(x, state, p, zoneout=0.0):
    (h,) = state
    wx = ln(x @ p["kernel"], p["gamma"][0]) + p["bias"]
    rh = ln(h @ p["recurrent_kernel"], p["gamma"][1]) + p["recurrent_bias"]
    (xz, xr, xg), (hz, hr, hg) = thirds(wx), thirds(rh)
    z, r = sigmoid(xz + hz), sigmoid(xr + hr)
    new = z * h + (1 - z) * np.tanh(xg + r * hg)
    return (zoneout * h + (1 - zoneout) * new,)


# --- Keras, keras/src/layers/rnn/{simple_rnn,lstm,gru}.py ---------------------------------------------------

ACTIVATIONS = {
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "relu": lambda a: np.maximum(a, 0),
    "identity": lambda a: a,
}


def keras_simple_rnn(x, state, p, nonlinearity="tanh"):
    a = x @ p["kernel"] + p.get("bias", 0) + state[0] @ p["recurrent_kernel"]
    return (ACTIVATIONS[nonlinearity](a),)


def keras_hard_sigmoid(a):
    """Returns relu6(a + 3) / 6, as in Keras 3."""
    return np.minimum(np.maximum(a + 3, 0), 6) / 6


def keras_2_hard_sigmoid(a):
    return np.clip(0.2 * a + 0.5, 0, 1)


def keras_lstm(x, state, p, sigmoid=sigmoid):
    h, carry = state
    i, f, c, o = quarters(x @ p["kernel"] + h @ p["recurrent_kernel"] + p.get("bias", 0))
    carry = sigmoid(f) * carry + sigmoid(i) * np.tanh(c)
    return sigmoid(o) * np.tanh(carry), carry


def keras_gru(x, state, p, reset_after=True, sigmoid=sigmoid):
    (h,) = state
    bias = p.get("bias", np.zeros((2, p["kernel"].shape[1])))
    xz, xr, xh = thirds(x @ p["kernel"] + (bias[0] if reset_after else bias))
    if reset_after:
        hz, hr, hh = thirds(h @ p["recurrent_kernel"] + bias[1])
        z, r = sigmoid(xz + hz), sigmoid(xr + hr)
        candidate = np.tanh(xh + r * hh)
    else:
        uz, ur, uh = thirds(p["recurrent_kernel"])
        z, r = sigmoid(xz + h @ uz), sigmoid(xr + h @ ur)
        candidate = np.tanh(xh + (r * h) @ uh)
    return (z * h + (1 - z) * candidate,)


# --- TensorFlow Addons, tensorflow_addons/rnn/layer_norm_lstm_cell.py and layer_norm_simple_rnn_cell.py -----


def tfa_lstm(x, state, p, eps=1e-3):
    h, carry = state
    z = ln(x @ p["kernel"], p["kernel_norm/gamma"], p["kernel_norm/beta"], eps)
    z = z + ln(h @ p["recurrent_kernel"], p["recurrent_norm/gamma"], p["recurrent_norm/beta"], eps)
    i, f, c, o = quarters(z + p.get("bias", 0))
    carry = sigmoid(f) * carry + sigmoid(i) * np.tanh(c)
    carry = ln(carry, p["state_norm/gamma"], p["state_norm/beta"], eps)
    return sigmoid(o) * np.tanh(carry), carry


def tfa_simple_rnn(x, state, p, eps=1e-5, nonlinearity="tanh"):
    a = ln(x @ p["kernel"] + state[0] @ p["recurrent_kernel"], p["layernorm/gamma"], 0.0, eps)
    return (ACTIVATIONS[nonlinearity](a + p.get("bias", 0)),)


# --- sequences ----------------------------------------------------------------------------------------------


def run(cell, x, layers, states, **options):
    """Runs a stack of layers, each of one or two directions, on sequences of full length.

    x (T, B, I). layers[k][d]: the parameters of layer k in direction d. states[k][d]: the initial state of
    that layer and direction, (B, H) each. Returns y (T, B, directions * H) and last states, (layers *
    directions, B, H)."""
    ends = []
    for layer, begin in zip(layers, states, strict=True):
        sides = []
        for d, (p, state) in enumerate(zip(layer, begin, strict=True)):
            outputs = []
            for x_t in x[::-1] if d else x:
                state = cell(x_t, state, p, **options)
                outputs.append(state[0])
            sides.append(np.array(outputs[::-1] if d else outputs))
            ends.append(state)
        x = np.concatenate(sides, axis=-1)
    return x, tuple(np.array(part) for part in zip(*ends, strict=True))
