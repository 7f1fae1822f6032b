"""The attributes activations, activation_alpha and activation_beta of ONNX's recurrent operators."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir

from ...importers.weights import Weights
from ...rnn import cells
from ..graph.folding import attribute, named, without_equivalent
from ..graph.values import ACTIVATIONS

DEFAULTS = {"RNN": ("tanh",), "LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh")}
NONLINEARITIES = {op: name for op, name in ACTIVATIONS.items() if name in cells.NONLINEARITIES}
BY_NAME = {"affine": "identity", **{op.lower(): name for op, name in NONLINEARITIES.items()}}
# Functions with parameters: alpha and beta if they are left out. None: there must be an alpha.
WITH_ALPHA = {"hardsigmoid": (0.2, 0.5), "affine": None, "leakyrelu": (0.01, 0.0),
              "thresholdedrelu": (1.0, 0.0), "elu": (1.0, 0.0), "scaledtanh": None}  # fmt: skip
WITH_BETA = ("hardsigmoid", "affine", "scaledtanh")


@dataclass(frozen=True)
class Functions:
    """lnrnn's nonlinearity of an RNN, or gate_activation of an LSTM or GRU.

    factor: multiplies the sums of the gates, because hard sigmoids differ in their slope.
    """

    nonlinearity: str | None = None
    gate_activation: str = "sigmoid"
    factor: float = 1.0

    def applied(self, weights: Weights) -> Weights:
        """Returns the weights of a cell with these functions. The candidate has no hard sigmoid."""
        own = weights.parameters
        if self.factor != 1:
            H = weights.hidden_size
            rows = np.full(len(own["weight_hh"]), self.factor)
            rows[2 * H : 3 * H] = 1  # lnrnn's order is i, f, g, o or r, z, n
            own = {name: (v.T * rows).T.astype(np.float32) for name, v in own.items()}
        return replace(
            weights, parameters=own, nonlinearity=self.nonlinearity, gate_activation=self.gate_activation
        )


def activations(node: onnx_ir.Node, kind: str, directions: int) -> Functions:
    """Returns the functions of a node. Raises ValueError for other ones than a network has."""
    given = attribute(node, "activations")
    names = tuple(str(name).lower() for name in given or DEFAULTS[kind] * directions)
    each = len(DEFAULTS[kind])
    if len(names) != each * directions:
        raise ValueError(
            f"node {named(node)}: attribute activations must have {each * directions} names, got {len(names)}"
        )
    shown = ", ".join(given or ())
    of = [(name, *_parameters(node, names, i)) for i, name in enumerate(names)]
    if of[:each] * directions != of:
        raise without_equivalent(node, f"activations {shown}", "both directions of a network have the same")
    if kind == "RNN":
        name, alpha, beta = of[0]
        if name in BY_NAME and (name != "affine" or (alpha, beta) == (1, 0)):
            return Functions(BY_NAME[name])
        known = f"lnrnn's cells have {', '.join(NONLINEARITIES)}, or Affine with alpha 1 and beta 0"
        raise without_equivalent(node, _text(shown, alpha, beta), known)
    gate, alpha, beta = of[0]
    if all(name == "tanh" for name, _, _ in of[1:each]):
        if gate == "sigmoid":
            return Functions()
        if gate == "hardsigmoid" and alpha > 0 and beta == 0.5:
            # clip(alpha a + 1/2) is clip(6 alpha a / 6 + 1/2).
            return Functions(None, "hard_sigmoid", 6 * alpha)
    known = "lnrnn's cells have Sigmoid, or HardSigmoid with beta 0.5, for the gates, and else Tanh"
    raise without_equivalent(node, _text(shown, alpha, beta), known)


def _text(shown: str, alpha: float, beta: float) -> str:
    return f"activations {shown}" + (
        f" with alpha {alpha:g} and beta {beta:g}" if (alpha, beta) != (0, 0) else ""
    )


def _parameters(node: onnx_ir.Node, names: tuple[str, ...], i: int) -> tuple[float, float]:
    """Returns alpha and beta of function i. The lists have a number for each function that uses one.

    Some exporters write a number for each function. A list of another length is refused.
    """
    defaults = WITH_ALPHA.get(names[i], (0.0, 0.0))
    result = []
    given = ("activation_alpha", tuple(WITH_ALPHA)), ("activation_beta", WITH_BETA)
    for k, (attr, users) in enumerate(given):
        if names[i] not in users:
            result.append(0.0)
            continue
        values = [float(np.float32(v)) for v in attribute(node, attr) or ()]
        using = [j for j, name in enumerate(names) if name in users]
        if len(values) == len(using):
            result.append(values[using.index(i)])
        elif len(values) == len(names):
            result.append(values[i])
        elif not values and defaults is not None:
            result.append(float(np.float32(defaults[k])))
        else:
            raise ValueError(
                f"node {named(node)}: attribute {attr} must have {len(using)} numbers, one for each function "
                f"with one, got {len(values)}"
            )
    return result[0], result[1]
