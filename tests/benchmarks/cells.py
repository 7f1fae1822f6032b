"""The layer-normalised cells of Ba, Kiros and Hinton, written for each library that races.

    RNN     h_t = tanh(LN(W_hh h_{t-1} + W_ih x_t))
    LSTM    i, f, g, o = LN(W_hh h_{t-1}) + LN(W_ih x_t), each over all 4H
            c_t = sig(f) c_{t-1} + sig(i) tanh(g),    h_t = sig(o) tanh(LN(c_t))
    GRU     r, z = sig(LN(W_hh h_{t-1})[r, z] + LN(W_ih x_t)[r, z]), each LN over 2H
            n = tanh(LN(W_ih x_t)[n] + r LN(W_hh h_{t-1})[n]), each LN over H;    h_t = (1 - z) n + z h_{t-1}

p: {lnrnn's name without the layer's suffix: array of the library}. A state is a tuple of arrays (B, H).
`*_project` computes LN(W_xh x) or W_xh x of all steps at once, `*_step` computes one step. JAX and ONNX get
transposed matrices, because they multiply these faster.
"""

from __future__ import annotations

import numpy as np

from lnrnn import reference

EPS = 1e-5


def torch_norm(torch, p, a, which):
    return torch.nn.functional.layer_norm(a, a.shape[-1:], p[f"gain{which}"], p[f"bias{which}"], EPS)


def jax_norm(jax, p, a, which):
    mean = a.mean(-1, keepdims=True)
    rstd = jax.lax.rsqrt(((a - mean) ** 2).mean(-1, keepdims=True) + EPS)
    return (a - mean) * rstd * p[f"gain{which}"] + p[f"bias{which}"]


def onnx_norm(source, result, which):
    names = [source, f"gain{which}", f"bias{which}"]
    return "LayerNormalization", names, [result], {"axis": -1, "epsilon": EPS}


class Cell:
    NAME: str  # the name of the class in lnrnn and torch.nn, and of the operator in ONNX
    GATES: int
    STATES = 1
    ONNX_GATES: list[int]  # for each gate in ONNX's order, its index in lnrnn
    ONNX_OPTIONS: dict = {}
    SIDES = ("_ih", "_hh")  # suffixes of gain and bias

    def parameters(self, inputs: int, hidden: int, seed: int = 0) -> dict[str, np.ndarray]:
        """Returns random parameters: weights of variance 1 / columns, gains near 1, biases near 0. With
        these, rounding errors fade from step to step, so right answers always agree with the reference."""
        random, rows = np.random.default_rng(seed), self.GATES * hidden

        def normal(*shape):
            return random.standard_normal(shape, np.float32)

        p = {
            "weight_ih": normal(rows, inputs) / np.float32(inputs**0.5),
            "weight_hh": normal(rows, hidden) / np.float32(hidden**0.5),
        }
        for side in self.SIDES:
            n = hidden if side == "_c" else rows
            p[f"gain{side}"] = 1 + np.float32(0.1) * normal(n)
            p[f"bias{side}"] = np.float32(0.1) * normal(n)
        return p

    def plain_parameters(self, hidden: int, seed: int = 0) -> dict[str, np.ndarray]:
        """Returns random parameters of the cell without a norm, as torch initialises them, for I = H."""
        random, bound, rows = np.random.default_rng(seed), hidden**-0.5, self.GATES * hidden
        widths = {"weight_ih": (hidden,), "weight_hh": (hidden,), "bias_ih": (), "bias_hh": ()}
        drawn = {name: random.uniform(-bound, bound, (rows, *width)) for name, width in widths.items()}
        return {name: value.astype(np.float32) for name, value in drawn.items()}

    def for_peers(self, p):
        """Returns the parameters as the peers' loops need them: in another order, and in other arrays."""
        return p

    def forward(self, p, x, states=(), **options):
        """Returns the reference's y (T, B, H) and tape, float64. norm=None: the cell without a norm."""
        function = getattr(reference, self.NAME.lower())
        initial = dict(zip(("h0", "c0"), states, strict=False))
        y, _, tape = function(x, p, eps=EPS, **initial, **options)
        return y, tape

    def backward(self, tape, gy):
        """Returns the gradients of x, of the states (a tuple), and of the parameters (a dict)."""
        gx, gstates, grads = getattr(reference, f"{self.NAME.lower()}_backward")(tape, gy)
        return gx, gstates if isinstance(gstates, tuple) else (gstates,), grads

    def answer(self, p, x, **options):
        return self.forward(p, x, **options)[0]

    def jax_plain_project(self, jax, p, x):
        return (x @ p["weight_ih"] + (p["bias_ih"] + p["bias_hh"]),)


class RNN(Cell):
    NAME, GATES, ONNX_GATES, SIDES = "RNN", 1, [0], ("",)

    def forward(self, p, x, states=(), **options):
        y, _, tape = reference.rnn(x, **p, eps=EPS, **dict(zip(["h0"], states, strict=False)), **options)
        return y, tape

    def torch_project(self, torch, p, x):
        return (torch.nn.functional.linear(x, p["weight_ih"]),)

    def torch_step(self, torch, p, projected, state):
        a = torch.nn.functional.linear(state[0], p["weight_hh"]) + projected[0]
        return (torch.tanh(torch_norm(torch, p, a, "")),)

    def jax_project(self, jax, p, x):
        return (x @ p["weight_ih"],)

    def jax_step(self, jax, p, projected, state):
        return (jax.numpy.tanh(jax_norm(jax, p, projected[0] + state[0] @ p["weight_hh"], "")),)

    def jax_plain_step(self, jax, p, projected, state):
        return (jax.numpy.tanh(projected[0] + state[0] @ p["weight_hh"]),)

    def onnx_project(self, hidden):
        """Returns nodes (operator, inputs, outputs, attributes) that compute p0, p1 ... from x, and the
        widths of these in multiples of H."""
        return [("MatMul", ["x", "weight_ih"], ["p0"], {})], [1]

    def onnx_step(self, hidden):
        """Returns nodes from states s0, s1 ... and p0, p1 ... to new states n0, n1 ...; n0 is the output."""
        return [
            ("MatMul", ["s0", "weight_hh"], ["product"], {}),
            ("Add", ["product", "p0"], ["a"], {}),
            onnx_norm("a", "normal", ""),
            ("Tanh", ["normal"], ["n0"], {}),
        ]


class LSTM(Cell):
    """Peers get the gates in the order i, f, o, g, so that one call computes all three sigmoids. A norm over
    all gates does not depend on their order."""

    NAME, GATES, STATES = "LSTM", 4, 2
    ONNX_GATES = [0, 3, 1, 2]  # i, o, f, g
    SIDES = ("_ih", "_hh", "_c")

    def parameters(self, inputs, hidden, seed=0):
        """The gain of W_hh h is near 1/2, because with 1 rounding errors grow 100 times in 100 steps."""
        p = super().parameters(inputs, hidden, seed)
        return p | {"gain_hh": p["gain_hh"] / 2}

    def for_peers(self, p):
        def sort(v):
            i, f, g, o = np.split(v, 4)
            return np.concatenate([i, f, o, g])

        return {name: v if name.endswith("_c") else sort(v) for name, v in p.items()}

    def torch_project(self, torch, p, x):
        return (torch_norm(torch, p, torch.nn.functional.linear(x, p["weight_ih"]), "_ih"),)

    def torch_step(self, torch, p, projected, state):
        hidden = state[0].shape[-1]
        a = torch_norm(torch, p, torch.nn.functional.linear(state[0], p["weight_hh"]), "_hh") + projected[0]
        i, forget, o = a[:, : 3 * hidden].sigmoid().chunk(3, -1)
        c = forget * state[1] + i * a[:, 3 * hidden :].tanh()
        return o * torch_norm(torch, p, c, "_c").tanh(), c

    def jax_project(self, jax, p, x):
        return (jax_norm(jax, p, x @ p["weight_ih"], "_ih"),)

    def jax_step(self, jax, p, projected, state):
        a = projected[0] + jax_norm(jax, p, state[0] @ p["weight_hh"], "_hh")
        i, f, o, g = jax.numpy.split(a, 4, -1)
        sigmoid, tanh = jax.nn.sigmoid, jax.numpy.tanh
        c = sigmoid(f) * state[1] + sigmoid(i) * tanh(g)
        return sigmoid(o) * tanh(jax_norm(jax, p, c, "_c")), c

    def jax_plain_step(self, jax, p, projected, state):
        i, f, g, o = jax.numpy.split(projected[0] + state[0] @ p["weight_hh"], 4, -1)
        sigmoid, tanh = jax.nn.sigmoid, jax.numpy.tanh
        c = sigmoid(f) * state[1] + sigmoid(i) * tanh(g)
        return sigmoid(o) * tanh(c), c

    def onnx_project(self, hidden):
        product = ("MatMul", ["x", "weight_ih"], ["product_ih"], {})
        return [product, onnx_norm("product_ih", "p0", "_ih")], [4]

    def onnx_step(self, hidden):
        return [
            ("MatMul", ["s0", "weight_hh"], ["product"], {}),
            onnx_norm("product", "normal", "_hh"),
            ("Add", ["normal", "p0"], ["a"], {}),
            ("Constant", [], ["widths"], {"value_ints": [3 * hidden, hidden]}),
            ("Split", ["a", "widths"], ["ifo", "g"], {"axis": -1}),
            ("Sigmoid", ["ifo"], ["sig_ifo"], {}),
            ("Tanh", ["g"], ["tanh_g"], {}),
            ("Split", ["sig_ifo"], ["i", "f", "o"], {"axis": -1, "num_outputs": 3}),
            ("Mul", ["f", "s1"], ["kept"], {}),
            ("Mul", ["i", "tanh_g"], ["written"], {}),
            ("Add", ["kept", "written"], ["n1"], {}),
            onnx_norm("n1", "normal_c", "_c"),
            ("Tanh", ["normal_c"], ["tanh_c"], {}),
            ("Mul", ["o", "tanh_c"], ["n0"], {}),
        ]


class GRU(Cell):
    """Peers get separate parameters of r and z, and of n, because dividing one product would need a copy."""

    NAME, GATES = "GRU", 3
    ONNX_GATES = [1, 0, 2]  # z, r, n
    ONNX_OPTIONS = {"linear_before_reset": 1}
    PARTS = ("_rz", "_n")

    def for_peers(self, p):
        hidden = len(p["gain_ih"]) // 3
        rows = dict(zip(self.PARTS, (slice(0, 2 * hidden), slice(2 * hidden, None)), strict=True))
        return {f"{name}{part}": v[rows[part]] for name, v in p.items() for part in self.PARTS}

    def _torch_side(self, torch, p, side, x):
        """Returns two normalised products with W_ih or W_hh: of r and z together, and of n."""
        linear = torch.nn.functional.linear
        return tuple(
            torch_norm(torch, p, linear(x, p[f"weight{side}{part}"]), side + part) for part in self.PARTS
        )

    def torch_project(self, torch, p, x):
        return self._torch_side(torch, p, "_ih", x)

    def torch_step(self, torch, p, projected, state):
        rz, n = self._torch_side(torch, p, "_hh", state[0])
        r, z = (rz + projected[0]).sigmoid().chunk(2, -1)
        return (torch.lerp(torch.tanh(projected[1] + r * n), state[0], z),)

    def _jax_side(self, jax, p, side, x):
        return tuple(jax_norm(jax, p, x @ p[f"weight{side}{part}"], side + part) for part in self.PARTS)

    def jax_project(self, jax, p, x):
        return self._jax_side(jax, p, "_ih", x)

    def jax_step(self, jax, p, projected, state):
        rz, n = self._jax_side(jax, p, "_hh", state[0])
        r, z = jax.numpy.split(jax.nn.sigmoid(rz + projected[0]), 2, -1)
        n = jax.numpy.tanh(projected[1] + r * n)
        return (n + z * (state[0] - n),)

    def jax_plain_project(self, jax, p, x):
        return (x @ p["weight_ih"] + p["bias_ih"],)

    def jax_plain_step(self, jax, p, projected, state):
        hidden = state[0].shape[-1]
        x_, h_ = projected[0], state[0] @ p["weight_hh"] + p["bias_hh"]
        rz = jax.nn.sigmoid(x_[:, : 2 * hidden] + h_[:, : 2 * hidden])
        r, z = jax.numpy.split(rz, 2, -1)
        n = jax.numpy.tanh(x_[:, 2 * hidden :] + r * h_[:, 2 * hidden :])
        return (n + z * (state[0] - n),)

    def _onnx_side(self, side, source, results):
        nodes = []
        for part, result in zip(self.PARTS, results, strict=True):
            product = f"product{side}{part}"
            nodes.append(("MatMul", [source, f"weight{side}{part}"], [product], {}))
            nodes.append(onnx_norm(product, result, side + part))
        return nodes

    def onnx_project(self, hidden):
        return self._onnx_side("_ih", "x", ["p0", "p1"]), [2, 1]

    def onnx_step(self, hidden):
        return [
            *self._onnx_side("_hh", "s0", ["normal_rz", "normal_n"]),
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


CELLS = {"rnn": RNN(), "lstm": LSTM(), "gru": GRU()}
