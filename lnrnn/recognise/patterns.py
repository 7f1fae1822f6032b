"""The table of one-step patterns: the equations of lnrnn's cells, as data.

A pattern is matched with values in the form of terms.py: sums of products, where a sum of gates is cut into
its gates. So one equation stands for all orders of factors and summands, for Gemm and MatMul, and for Split
and Slice.

In an equation, x, h0 and c0 are values from outside. A letter of `gates` is a gate's pre-activation, with the
equation of its own name, or else of the name "gate". Other names at the left of "=" are values inside.

    sigma(k)             the function of gates: sigmoid, or hard_sigmoid; the same for all gates
    f(k)                 tanh, relu or sigmoid, in a GRU and a LiGRU also identity
    weight @ x           the product with the rows of gate k of a constant matrix
    norm(a, "ifgo")      (a - mean) / sqrt(var + eps) over these gates, then cut to gate k
    norm(a)              the same over one gate
    gain, bias, ...      constant vectors, the part of gate k. A bias may be left out
    peephole * c         c is a value inside, that a function or norm also reads

Constants have the names of lnrnn's parameters.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Equations = Mapping[str, str]
VALUES = ("x", "h0", "c0")
INSIDE = ("c", "raw")  # values that a step computes, and that may also be factors
# ONNX's operators, by lnrnn's names of nonlinearities and gate activations.
OPERATORS = {"tanh": "Tanh", "relu": "Relu", "sigmoid": "Sigmoid", "hard_sigmoid": "HardSigmoid"}
FUNCTIONS = {
    "sigma": ("sigmoid", "hard_sigmoid"), "f": ("tanh", "relu", "sigmoid", "identity"), "tanh": ("tanh",),
}  # fmt: skip


@dataclass(frozen=True)
class Factor:
    """A factor of a product. kind: "value", "function", "product" or "norm".

    name: the value, the function, or the matrix. of: the equation that is the argument of a function or norm,
    else "". factors: the operand of a product. terms: the argument of a norm. gates: the gates of a norm.
    """

    kind: str
    name: str = ""
    of: str = ""
    factors: tuple[Factor, ...] = ()
    terms: tuple[Term, ...] = ()
    gates: str = ""


@dataclass(frozen=True)
class Term:
    """A summand: a sign, the name of a constant vector or "", and factors."""

    sign: int
    vector: str
    factors: tuple[Factor, ...]


@dataclass(frozen=True)
class Pattern:
    """The equations of one step.

    cell: the name of lnrnn's class. gates: letters in lnrnn's order. states: maps each new state's name to
    the old state's name. equations: by name, h first. norm: arguments of LayerNormSpec, or None. options:
    further arguments of the class. negated: a gate whose pre-activation has the other sign in lnrnn, or "".
    bias_of_h: lnrnn's name for the part of bias_ih that a file adds to the product with h.
    """

    cell: str
    gates: str
    states: Mapping[str, str]
    equations: Equations
    norm: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    negated: str = ""
    bias_of_h: str = "bias_hh"

    @cached_property
    def terms(self) -> dict[str, tuple[Term, ...]]:
        """Returns {name of an equation: its summands}."""
        return {name: _terms(ast.parse(text, mode="eval").body) for name, text in self.equations.items()}

    def of(self, name: str) -> tuple[Term, ...]:
        """Returns the summands of a value or gate."""
        return self.terms[name] if name in self.terms else self.terms["gate"]

    @property
    def has_projection(self) -> bool:
        return self.has("weight_hr", "h")

    def has(self, constant: str, gate: str) -> bool:
        """Returns whether the equation of a gate or value contains this constant."""
        return _has(constant, self.of(gate))


def _has(constant: str, terms: tuple[Term, ...]) -> bool:
    return any(
        t.vector == constant or any(f.name == constant or _has(constant, f.terms) for f in t.factors)
        for t in terms
    )


def _terms(node: ast.expr, sign: int = 1) -> tuple[Term, ...]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        right = sign if isinstance(node.op, ast.Add) else -sign
        return _terms(node.left, sign) + _terms(node.right, right)
    vectors, factors = [], []
    for part in _factors(node):
        if isinstance(part, ast.Name) and part.id not in (*VALUES, *INSIDE):
            vectors.append(part.id)
        else:
            factors.append(_factor(part))
    return (Term(sign, "".join(vectors), tuple(factors)),)


def _factors(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _factors(node.left) + _factors(node.right)
    return [node]


def _factor(node: ast.expr) -> Factor:
    match node:
        case ast.Name(id=name):
            return Factor("value", name)
        case ast.BinOp(left=ast.Name(id=matrix), op=ast.MatMult(), right=operand):
            return Factor("product", matrix, factors=tuple(map(_factor, _factors(operand))))
        case ast.Call(func=ast.Name(id="norm"), args=[ast.Name(id=argument)]):
            return Factor("norm", of=argument)
        case ast.Call(func=ast.Name(id="norm"), args=[inner, *rest]):
            gates = rest[0].value if rest and isinstance(rest[0], ast.Constant) else ""
            return Factor("norm", terms=_terms(inner), gates=str(gates))
        case ast.Call(func=ast.Name(id=function), args=[ast.Name(id=argument)]):
            return Factor("function", function, of=argument)
    raise AssertionError(ast.dump(node))


# --- the equations ------------------------------------------------------------------------------------------

PLAIN = "weight_ih @ x + weight_hh @ h0 + bias_ih"
JOINT = "gain * norm((weight_ih @ x) + (weight_hh @ h0) + inner_bias_ih, 'GATES') + bias"
SPLIT = (
    "gain_ih * norm((weight_ih @ x) + inner_bias_ih, 'GATES') + bias_ih"
    " + gain_hh * norm((weight_hh @ h0) + inner_bias_hh, 'GATES')"
)
GATE = JOINT.replace(", 'GATES'", "")


def spanning(equation: str, gates: str) -> str:
    """Replaces 'GATES' in an equation: its norms span these gates."""
    return equation.replace("'GATES'", repr(gates))


RNN_GATES: dict[str | None, str] = {None: PLAIN, "joint": GATE, "split": spanning(SPLIT, "a")}

LSTM_STATES: dict[str | None, Equations] = {
    None: {"h": "sigma(o) * tanh(c)", "c": "sigma(f) * c0 + sigma(i) * tanh(g)"},
    "out": {
        "h": "sigma(o) * tanh(seen)",
        "seen": "gain_c * norm(c) + bias_c",
        "c": "sigma(f) * c0 + sigma(i) * tanh(g)",
    },
    "carry": {
        "h": "sigma(o) * tanh(c)",
        "c": "gain_c * norm(raw) + bias_c",
        "raw": "sigma(f) * c0 + sigma(i) * tanh(g)",
    },
}
PROJECTED = "weight_hr @ ({})"  # the equation of h with proj_size; {} is h without a projection
LSTM_GATES: dict[str | None, str] = {
    None: PLAIN,
    "split": spanning(SPLIT, "ifgo"),
    "joint": spanning(JOINT, "ifgo"),
    "gate": GATE,
}


def _with_peepholes(gate: str, raw: str) -> Equations:
    """Returns the equations of the gates i, f and o with peepholes. raw: the name of c before its norm."""
    return {"i": f"{gate} + peephole * c0", "f": f"{gate} + peephole * c0", "o": f"{gate} + peephole * {raw}"}


# The update gate z multiplies h0; in Cho et al. 2014 and in some code it multiplies the new value.
GRU_STATES: dict[str, str] = {
    "": "f(n) + sigma(z) * h0 - sigma(z) * f(n)",
    "z": "h0 + sigma(z) * f(n) - sigma(z) * h0",
}
GRU_GATES: tuple[tuple[Mapping[str, Any] | None, bool, Equations], ...] = (  # norm, reset_after, equations
    (None, True, {
        "gate": PLAIN,
        "n": "weight_ih @ x + bias_ih + sigma(r) * (weight_hh @ h0) + sigma(r) * bias_hh",
    }),
    (None, False, {
        "gate": PLAIN,
        "n": "weight_ih @ x + bias_ih + weight_hh @ (sigma(r) * h0)",
    }),
    (dict(placement="split"), True, {
        "gate": spanning(SPLIT, "rz"),
        "n": "gain_ih * norm((weight_ih @ x) + inner_bias_ih) + bias_ih"
             " + sigma(r) * gain_hh * norm((weight_hh @ h0) + inner_bias_hh) + sigma(r) * bias_hh",
    }),
    (dict(placement="split"), False, {
        "gate": spanning(SPLIT, "rz"),
        "n": "gain_ih * norm((weight_ih @ x) + inner_bias_ih) + bias_ih"
             " + gain_hh * norm((weight_hh @ (sigma(r) * h0)) + inner_bias_hh)",
    }),
    (dict(placement="split", span="all"), True, {
        "gate": spanning(SPLIT, "rzn"),
        "n": "gain_ih * norm((weight_ih @ x) + inner_bias_ih, 'rzn') + bias_ih"
             " + sigma(r) * gain_hh * norm((weight_hh @ h0) + inner_bias_hh, 'rzn') + sigma(r) * bias_hh",
    }),
    (dict(placement="joint"), True, {
        "gate": spanning(JOINT, "rzn"),
        "n": "sigma(r) * gain * norm((weight_ih @ x) + (weight_hh @ h0) + inner_bias_ih, 'rzn')"
             " + sigma(r) * bias",
    }),
    (dict(placement="gate"), True, {
        "gate": GATE,
        "n": "gain * norm((weight_ih @ x) + sigma(r) * (weight_hh @ h0) + inner_bias_ih"
             " + sigma(r) * inner_bias_hh) + bias",
    }),
)  # fmt: skip

LIGRU_GATES: dict[str | None, str] = {
    None: PLAIN,
    "input": "gain_ih * norm((weight_ih @ x) + inner_bias_ih, 'zn') + bias_ih + weight_hh @ h0",
}

LSTMS = tuple(
    Pattern("LSTM", "ifgo", {"h": "h0", "c": "c0"}, {**states, "h": h, "gate": gate, **peepholes},
            None if placement is cell is None else {"placement": placement, "cell": cell})
    for placement, gate in LSTM_GATES.items()
    for cell, states in LSTM_STATES.items()
    if placement is not None or cell is None
    for h in (states["h"], PROJECTED.format(states["h"]))
    for peepholes in ({}, _with_peepholes(gate, "raw" if cell == "carry" else "c"))
)  # fmt: skip
GRUS = tuple(
    Pattern("GRU", "rzn", {"h": "h0"}, {"h": h, **gates}, norm, {} if reset_after else {"reset_after": False},
            negated)
    for norm, reset_after, gates in GRU_GATES
    for negated, h in GRU_STATES.items()
)  # fmt: skip
LIGRUS = tuple(
    Pattern("LiGRU", "zn", {"h": "h0"}, {"h": h, "gate": gate},
            None if placement is None else {"placement": placement}, negated=negated,
            bias_of_h="bias_hh" if placement is None else "inner_bias_hh")
    for placement, gate in LIGRU_GATES.items()
    for negated, h in GRU_STATES.items()
)  # fmt: skip
RNNS = tuple(
    Pattern("RNN", "a", {"h": "h0"}, {"h": "f(a)", "gate": gate},
            None if placement is None else {"placement": placement})
    for placement, gate in RNN_GATES.items()
)  # fmt: skip

PATTERNS = (*LSTMS, *GRUS, *LIGRUS, *RNNS)
