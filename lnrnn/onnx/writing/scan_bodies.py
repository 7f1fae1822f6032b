"""The equations of one time step of each cell as ONNX operators. Names are as in lnrnn.reference.

They become the body of a Scan, or a file that computes a single step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...recognise.patterns import OPERATORS
from ...rnn.architecture import Architecture
from ...rnn.specs import LayerNormSpec, RMSNormSpec
from . import RMS_NORM
from .builder import Graph, Value

Array = np.ndarray


@dataclass
class Step:
    """One time step of one layer and direction in `graph`.

    suffix: of the parameters' names, such as "_l0". arrays: parameters and tables, by name without suffix.
    row (B,): the row of the batch norm tables for each sequence, or None.
    """

    graph: Graph
    made: Architecture
    suffix: str
    arrays: Mapping[str, Array]
    row: Value | None = None

    def array(self, name: str, gates: str | None = None) -> Value | None:
        """Returns an initializer, or None if the cell has no such array. gates: the only rows to include."""
        if name not in self.arrays:
            return None
        array, all_gates = self.arrays[name], EQUATIONS[self.made.cell.name].gates
        axis = array.ndim - 1 if name.startswith(("scale", "shift")) else 0
        if gates in (None, all_gates):
            return self.graph.array(name + self.suffix, array)
        H = self.made.hidden_size
        first = all_gates.index(gates or "") * H
        part = np.take(array, range(first, first + len(gates or "") * H), axis)
        return self.graph.array(f"{name}{self.suffix}_{gates}", part)

    def product(self, side: str, v: Value, gates: str | None = None) -> Value:
        """Returns W v + bias; the inner bias if a norm follows. side: "ih" or "hh". gates: as in `array`."""
        site = self.made.sites.get(side, {})
        bias = f"inner_bias_{side}" if "gain" in site else site.get("bias", f"inner_bias_{side}")
        return self.graph.node(
            "Gemm", v, self.array(f"weight_{side}", gates), self.array(bias, gates), transB=1
        )

    def norm(self, side: str, a: Value, gates: str | None = None) -> Value:
        """Returns norm(a), or a if no norm is here. side: "ih", "hh", "c" or "". gates: those in `a`."""
        names = self.made.sites.get(side, {})
        if "gain" not in names:
            return a
        if self.row is not None:
            end = side and f"_{side}"
            scale, shift = (
                self.graph.node("Gather", self.array(name + end, gates), self.row, axis=0)
                for name in ("scale", "shift")
            )
            return a * scale + shift
        gain, bias = (self.array(names.get(use, ""), gates) for use in ("gain", "bias"))
        assert isinstance(self.made.norm, LayerNormSpec) and gain is not None
        eps: float = self.made.norm.eps
        if isinstance(self.made.norm, RMSNormSpec) and self.graph.opset >= RMS_NORM:
            a = self.graph.node("RMSNormalization", a, gain, axis=-1, epsilon=eps)
            return a + bias if bias else a
        if isinstance(self.made.norm, RMSNormSpec):
            letters = gates or ("c" if side == "c" else EQUATIONS[self.made.cell.name].gates)
            units = self.graph.number(len(letters) * self.made.hidden_size)
            square = self.graph.node("ReduceSum", a * a, self.graph.integers(-1)) / units
            a = a / self.graph.node("Sqrt", eps + square)
            return a * gain + bias if bias else a * gain
        return self.graph.node("LayerNormalization", a, gain, bias, axis=-1, epsilon=eps)

    def gates(self, side: str, a: Value, groups: Sequence[str]) -> list[Value]:
        """Returns norm(a) split into gates. groups: gates that layer norm normalises together."""
        H = self.made.hidden_size
        if not isinstance(self.made.norm, LayerNormSpec):
            groups = ["".join(groups)]
        parts = zip(groups, self.graph.split(a, [H * len(g) for g in groups]), strict=True)
        normed = [(g, self.norm(side, part, g)) for g, part in parts]
        return [gate for g, part in normed for gate in self.graph.split(part, [H] * len(g))]

    def sum_of_sides(self, x: Value, h: Value) -> list[Value]:
        """Returns the gates: norm(W x) + norm(U h) if each product has a norm, else norm(W x + U h)."""
        x_, h_ = self.product("ih", x), self.product("hh", h)
        letters = EQUATIONS[self.made.cell.name].gates
        if "" in self.made.sites:
            each = isinstance(self.made.norm, LayerNormSpec) and self.made.norm.placement == "gate"
            return self.gates("", x_ + h_, list(letters) if each else [letters])
        a = self.norm("ih", x_) + self.norm("hh", h_)
        return self.graph.split(a, [self.made.hidden_size] * len(letters))

    def sig(self, a: Value) -> Value:
        """Applies the gates' activation: sigmoid or hard sigmoid."""
        if self.made.gate_activation == "hard_sigmoid":
            return self.graph.node("HardSigmoid", a, alpha=1 / 6, beta=0.5)
        return self.graph.node("Sigmoid", a)

    def tanh(self, a: Value) -> Value:
        return self.graph.node("Tanh", a)

    def f(self, a: Value) -> Value:
        """Applies the cell's nonlinearity."""
        op = OPERATORS.get(self.made.nonlinearity)
        return a if op is None else self.graph.node(op, a)


States = list[Value]


def rnn(s: Step, x: Value, states: States) -> tuple[Value, States]:
    (a,) = s.sum_of_sides(x, states[0])
    h = s.f(a)
    return h, [h]


def lstm(s: Step, x: Value, states: States) -> tuple[Value, States]:
    h, c = states
    i, f, g, o = s.sum_of_sides(x, h)
    peephole = s.array("peephole")
    if peephole:
        p_i, p_f, p_o = s.graph.split(peephole, [s.made.hidden_size] * 3)
        i, f = i + p_i * c, f + p_f * c
    raw = s.sig(f) * c + s.sig(i) * s.tanh(g)
    o = o + p_o * raw if peephole else o
    seen = s.norm("c", raw)
    h = s.sig(o) * s.tanh(seen)
    if s.made.proj_size:
        h = s.graph.node("Gemm", h, s.array("weight_hr"), transB=1)
    carried = isinstance(s.made.norm, LayerNormSpec) and s.made.norm.cell == "carry"
    return h, [h, seen if carried else raw]


def gru(s: Step, x: Value, states: States) -> tuple[Value, States]:
    (h,) = states
    norm = s.made.norm
    spec = norm if isinstance(norm, LayerNormSpec) else LayerNormSpec("split", span="all")
    n, z = _GRU[str(spec.placement) if s.made.reset_after else "before"](s, x, h, spec)
    h = (1 - z) * n + z * h
    return h, [h]


def _split(s: Step, x: Value, h: Value, spec: LayerNormSpec) -> tuple[Value, Value]:
    groups = ["rzn"] if spec.span == "all" else ["rz", "n"]
    xr, xz, xn = s.gates("ih", s.product("ih", x), groups)
    hr, hz, hn = s.gates("hh", s.product("hh", h), groups)
    r, z = s.sig(xr + hr), s.sig(xz + hz)
    return s.f(xn + r * hn), z


def _before(s: Step, x: Value, h: Value, spec: LayerNormSpec) -> tuple[Value, Value]:
    xr, xz, xn = s.gates("ih", s.product("ih", x), ["rz", "n"])
    hr, hz = s.graph.split(s.norm("hh", s.product("hh", h, "rz"), "rz"), [s.made.hidden_size] * 2)
    r, z = s.sig(xr + hr), s.sig(xz + hz)
    return s.f(xn + s.norm("hh", s.product("hh", r * h, "n"), "n")), z


def _joint(s: Step, x: Value, h: Value, spec: LayerNormSpec) -> tuple[Value, Value]:
    r, z, n = s.sum_of_sides(x, h)
    return s.f(s.sig(r) * n), s.sig(z)


def _gate(s: Step, x: Value, h: Value, spec: LayerNormSpec) -> tuple[Value, Value]:
    sizes = [s.made.hidden_size] * 3
    xr, xz, xn = s.graph.split(s.product("ih", x), sizes)
    hr, hz, hn = s.graph.split(s.product("hh", h), sizes)
    r, z = s.sig(s.norm("", xr + hr, "r")), s.sig(s.norm("", xz + hz, "z"))
    return s.f(s.norm("", xn + r * hn, "n")), z


_GRU = {"split": _split, "before": _before, "joint": _joint, "gate": _gate}


def ligru(s: Step, x: Value, states: States) -> tuple[Value, States]:
    (h,) = states
    z, n = s.sum_of_sides(x, h)
    z, n = s.sig(z), s.f(n)
    h = (1 - z) * n + z * h
    return h, [h]


def slstm(s: Step, x: Value, states: States) -> tuple[Value, States]:
    h, c, n, m = states
    g = s.graph
    i, f, z, o = s.sum_of_sides(x, h)
    if not s.made.exp_forget:  # log(sigmoid(f)) without overflow in Exp
        f = g.node("Min", f, g.number(0)) - g.node("Log", 1 + g.node("Exp", g.node("Neg", g.node("Abs", f))))
    zero, kept = g.number(0), f + m
    fresh = g.node("Equal", n, zero)
    m = g.where(fresh, i, g.node("Max", i, kept))
    i = g.node("Exp", i - m)
    f = g.where(fresh, zero, g.node("Exp", g.where(fresh, zero, kept - m)))
    c = f * g.where(fresh, zero, c) + i * s.tanh(z)
    n = f * n + i
    states = [s.sig(o) * c / n, c, n, m]
    if s.made.state_dtype == "bfloat16":
        states = [g.cast(g.cast(each, "bfloat16"), "float") for each in states]
    return behind(s, states[0]), states


def behind(s: Step, h: Value) -> Value:
    """Normalises y of an SLSTM: statistics by head, gain and bias for all units."""
    norm, g = s.made.norm, s.graph
    if not isinstance(norm, LayerNormSpec):
        return h
    units = s.made.hidden_size // s.made.num_heads
    ones = g.array(f"ones_{units}", np.ones(units, np.float32))
    y = g.node("Reshape", h, g.integers(-1, s.made.num_heads, units))
    y = g.node("LayerNormalization", y, ones, axis=-1, epsilon=norm.eps)
    y = g.node("Reshape", y, g.integers(-1, s.made.hidden_size))
    gain, bias = s.array("gain_y"), s.array("bias_y")
    y = y * gain if gain else y
    return y + bias if bias else y


@dataclass(frozen=True)
class Equation:
    """A cell in ONNX. gates: lnrnn's order. node: order of ONNX's node, "" if there is no such node."""

    gates: str
    step: Callable[[Step, Value, States], tuple[Value, States]]
    node: str = ""


EQUATIONS = {
    "RNN": Equation("a", rnn, "a"),
    "LSTM": Equation("ifgo", lstm, "iofg"),
    "GRU": Equation("rzn", gru, "zrn"),
    "LiGRU": Equation("zn", ligru),
    "SLSTM": Equation("ifzo", slstm),
}


def step(s: Step, x: Value, states: States, zoneout: Sequence[float]) -> tuple[Value, States]:
    """Adds the nodes of one step. Returns y and the new states, (B, *) each. zoneout: rates, or ()."""
    y, new = EQUATIONS[s.made.cell.name].step(s, x, states)
    if zoneout:
        new = [n if not d else d * old + (1 - d) * n for d, old, n in zip(zoneout, states, new, strict=True)]
        y = new[0]
    return y, new
