"""Reads one node RNN, LSTM or GRU of ONNX, or DynamicQuantizeLSTM of ONNX Runtime, as a layer of lnrnn.

The operators are those of opsets 7 to 22. For a node that no network of lnrnn can replace, a ValueError names
the attribute or the input.

A DynamicQuantizeLSTM has W (D, I, 4H) and R (D, H, 4H), of int8 or uint8: w = (q - zero point) * scale. The
gates have the order of LSTM. A scale or zero point is one number for each direction, (D,), or one for each
column, (D, 4H). rnn/quantized.py says how a network keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx.defs
import onnx_ir

from ...errors import message
from ...importers.weights import Weights, array, reordered
from ...recognise.constants import constant, is_zero
from ...recognise.graph import DOMAINS, Array, attribute, has_references, named
from ...recognise.values import ACTIVATIONS, MOST_DEPTH, constant_input, numbers
from ...rnn import cells, quantized

# The order of gates in ONNX, and in lnrnn. ONNX's c is the gate g of lnrnn.
GATES = {"RNN": ("i", "i"), "LSTM": ("iofc", "ifco"), "GRU": ("zrh", "rzh")}
VERSIONS = (7, 14, 22)  # of the three operators, in opsets 7 to 22
_SCHEMAS = [onnx.defs.get_schema(op, VERSIONS[-1]) for op in GATES]
TYPES = {name: onnx_ir.AttributeType(int(given.type.value))  # type: ignore[attr-defined]  # in onnx's stubs
         for schema in _SCHEMAS for name, given in schema.attributes.items()}  # fmt: skip
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
SCALES = {"W": (8, 9), "R": (10, 11)}  # inputs with the scale and the zero point
LARGEST = 2.0**119  # scales above it could make infinite weights
DEFAULTS = {"RNN": ("tanh",), "LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh")}
NONLINEARITIES = {op: name for op, name in ACTIVATIONS.items() if name in cells.NONLINEARITIES}
BY_NAME = {"affine": "identity", **{op.lower(): name for op, name in NONLINEARITIES.items()}}
# Functions with parameters: alpha and beta if they are left out. None: there must be an alpha.
WITH_ALPHA = {"hardsigmoid": (0.2, 0.5), "affine": None, "leakyrelu": (0.01, 0.0),
              "thresholdedrelu": (1.0, 0.0), "elu": (1.0, 0.0), "scaledtanh": None}  # fmt: skip
WITH_BETA = ("hardsigmoid", "affine", "scaledtanh")


@dataclass
class NodeLayer:
    """A node as one layer of a network.

    weights: for each direction. reverse: whether the node reads from the end. batch_first: whether layout is
    1. The values are the node's, or None for those that are left out. h0 and c0 are None if they are 0.
    """

    path: str
    node: onnx_ir.Node
    weights: tuple[Weights, ...]
    reverse: bool
    batch_first: bool
    x: onnx_ir.Value
    lengths: onnx_ir.Value | None
    h0: onnx_ir.Value | None
    c0: onnx_ir.Value | None
    y: onnx_ir.Value | None
    h: onnx_ir.Value | None
    c: onnx_ir.Value | None
    warnings: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return self.weights[0].cell

    @property
    def directions(self) -> int:
        return len(self.weights)

    @property
    def hidden_size(self) -> int:
        return self.weights[0].hidden_size


def refused(node: onnx_ir.Node, name: str, expected: str, got: Any, do: str = "") -> ValueError:
    """Returns the error for a node that breaks a rule. name: its attribute or input."""
    return ValueError(message(f"node {named(node)}: {name}", expected, str(got), do))


def without_equivalent(node: onnx_ir.Node, has: str, reason: str) -> ValueError:
    """Returns the error for a valid node that no network can replace. has: its attribute or input."""
    return ValueError(f"node {named(node)} has {has}, and {reason}")


def is_quantized(node: onnx_ir.Node) -> bool:
    return node.domain == "com.microsoft" and node.op_type == "DynamicQuantizeLSTM"


def is_recurrent(node: onnx_ir.Node) -> bool:
    return (node.domain in DOMAINS and node.op_type in GATES) or is_quantized(node)


def read_layer(
    node: onnx_ir.Node, path: str, opset: int | None, reset_after: bool | None = None
) -> NodeLayer:
    """Returns a node as a layer. Raises ValueError for a node that no network can replace.

    opset: the version of ONNX's operators in the file. reset_after: replaces the attribute of GRU nodes.
    """
    if has_references(node):
        raise ValueError(f"node {named(node)}: attributes must have values, got those of a function")
    kind = "LSTM" if is_quantized(node) else node.op_type
    _check_version(node, opset)
    directions = _checked_attributes(node)
    W, R = _weights(node, kind, directions)
    B = _biases(node, len(R[0]), directions)
    theirs, ours = GATES[kind]
    functions = activations(node, kind, directions)
    after = _reset_after(node, kind, reset_after)
    weights = []
    for d in range(directions):
        own = {"weight_ih": reordered(W[d], theirs, ours), "weight_hh": reordered(R[d], theirs, ours)}
        if B is not None:
            for name, b in zip(("bias_ih", "bias_hh"), np.split(B[d], 2), strict=True):
                own[name] = reordered(b, theirs, ours)
        weights.append(functions.applied(Weights(kind, None, B is not None, own, reset_after=after)))
    if kind == "LSTM" and not is_zero(_input(node, 7)):
        raise without_equivalent(node, "peepholes (input P)", "lnrnn's cells have none")
    reverse = attribute(node, "direction", "forward") == "reverse"
    h0, c0 = (None if is_zero(v) else v for v in (_input(node, 5), _input(node, 6)))
    _check_states(node, kind, len(R[0][0]))
    values = [_output(node, i) for i in range(3)]
    x = _input(node, 0)
    if x is None:
        raise refused(node, "input X", "a value", "none")
    return NodeLayer(
        path, node, tuple(weights), reverse, bool(attribute(node, "layout", 0)), x, _input(node, 4),
        h0, c0 if kind == "LSTM" else None, values[0], values[1], values[2] if kind == "LSTM" else None,
    )  # fmt: skip


# --- attributes ---------------------------------------------------------------------------------------------


def _check_version(node: onnx_ir.Node, opset: int | None) -> None:
    if is_quantized(node):
        return
    version = opset or 0
    newest = onnx.defs.onnx_opset_version()
    known = 0 < version <= newest and onnx.defs.get_schema(node.op_type, version, "").since_version
    if known not in VERSIONS:
        raise refused(node, "the opset", f"from 7 to {newest}", opset if opset else "none for ONNX's domain")


def _checked_attributes(node: onnx_ir.Node) -> int:
    """Returns the number of directions. Raises ValueError for attributes without an equivalent."""
    for name, kind in TYPES.items():
        given = node.attributes.get(name)
        if given is not None and not given.is_ref() and given.type != kind:
            raise refused(node, f"attribute {name}", f"of type {kind.name}", given.type.name)
    direction = attribute(node, "direction", "forward")
    if direction not in DIRECTIONS:
        raise refused(node, "attribute direction", " or ".join(DIRECTIONS), repr(direction))
    clip = attribute(node, "clip")
    if clip is not None:
        raise without_equivalent(node, f"clip={clip:g}", "lnrnn's cells have no clip")
    coupled = attribute(node, "input_forget", 0)
    if coupled != 0:
        reason = "the gates i and f of lnrnn's cells are separate"
        raise without_equivalent(node, f"input_forget={coupled}", reason)
    if attribute(node, "layout", 0) not in (0, 1):
        raise refused(node, "attribute layout", "0 or 1", attribute(node, "layout"))
    return DIRECTIONS[direction]


def _check_states(node: onnx_ir.Node, kind: str, hidden_size: int) -> None:
    """Raises ValueError if an initial state is known to have another number of units."""
    for i, name in ((5, "initial_h"), (6, "initial_c"))[: 1 + (kind == "LSTM")]:
        units = _last_size(_input(node, i))
        if units not in (None, hidden_size):
            do = "torch writes such a file for proj_size with dynamo=True" * (name == "initial_c")
            raise refused(
                node, name, f"of {hidden_size} units, as R", f"{units}, which no runtime can run", do
            )


def _last_size(value: onnx_ir.Value | None) -> int | None:
    """Returns the size of the last axis of a value, or None. Slice, Split and Concat must not change it."""
    for _ in range(MOST_DEPTH):
        if value is None:
            return None
        array = constant(value)
        declared = (value.shape or None) if array is None else array.shape
        size = declared[-1] if declared else None
        if array is not None or isinstance(size, int):
            return size if isinstance(size, int) else None
        node = value.producer()
        if node is None or node.domain not in DOMAINS or not node.inputs:
            return None
        if node.op_type in ("Expand", "ConstantOfShape"):
            sizes = numbers(node.inputs[-1], lambda _: None)
            return sizes[-1].number if sizes and sizes[-1] is not None else None
        axes: Any = ()
        if node.op_type in ("Concat", "Split"):
            axes = [attribute(node, "axis", 0)]
        elif node.op_type == "Slice":
            given_axes = constant_input(node, 3)
            axes = attribute(node, "axes") if given_axes is None else given_axes.reshape(-1).tolist()
        elif node.op_type not in ("Identity", "Cast"):
            return None
        if axes is None or any(a not in (0, 1) for a in axes):
            return None
        value = node.inputs[0]
    return None


def _reset_after(node: onnx_ir.Node, kind: str, given: bool | None) -> bool:
    if kind != "GRU":
        return True
    return bool(attribute(node, "linear_before_reset", 0)) if given is None else given


# --- arrays -------------------------------------------------------------------------------------------------


def _input(node: onnx_ir.Node, i: int) -> onnx_ir.Value | None:
    return node.inputs[i] if i < len(node.inputs) else None


def _output(node: onnx_ir.Node, i: int) -> onnx_ir.Value | None:
    value = node.outputs[i] if i < len(node.outputs) else None
    return value if value is not None and value.name and (value.uses() or value.is_graph_output()) else None


def folded(node: onnx_ir.Node, i: int, name: str) -> Array:
    """Returns the constant that is input i of a node."""
    value = _input(node, i)
    result = constant(value)
    if result is None:
        got = "none" if value is None else f"{value.name!r}, which depends on inputs of the model"
        producer = None if value is None else value.producer()
        if producer is not None:
            got += f" or on an operator that is not computed here, by {named(producer)}"
        raise refused(node, f"input {name}", "a constant", got)
    return result


def _weights(node: onnx_ir.Node, kind: str, directions: int) -> tuple[Array, Array]:
    """Returns W (D, G * H, I) and R (D, G * H, H)."""
    gates = len(GATES[kind][0])
    if is_quantized(node):
        W, R = dequantized([folded(node, i, name) for i, name in ((1, "W"), (2, "R"))], node)
    else:
        W, R = (_floats(node, folded(node, i, name), name) for i, name in ((1, "W"), (2, "R")))
    if R.ndim != 3 or W.ndim != 3:
        raise refused(node, "W and R", "of three axes", f"{W.shape} and {R.shape}")
    H, inputs = R.shape[-1], W.shape[-1]
    if not (H and inputs) or R.shape != (directions, gates * H, H) or W.shape[:2] != R.shape[:2]:
        raise refused(
            node, "W and R", f"of shape ({directions}, {gates} H, I) and ({directions}, {gates} H, H)",
            f"{W.shape} and {R.shape}",
        )  # fmt: skip
    said = attribute(node, "hidden_size")
    if said is not None and said != H:
        raise refused(node, "attribute hidden_size", f"{H}, as R of shape {R.shape} has", said)
    return W, R


def _biases(node: onnx_ir.Node, rows: int, directions: int) -> Array | None:
    """Returns B (D, 2 G H), or None. rows: G * H."""
    if _input(node, 3) is None:
        return None
    B = _floats(node, folded(node, 3, "B"), "B")
    if B.shape != (directions, 2 * rows):
        raise refused(node, "input B", f"of shape {(directions, 2 * rows)}", B.shape)
    return B


def _floats(node: onnx_ir.Node, value: Array, name: str) -> Array:
    try:
        return array(f"input {name}", value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"node {named(node)}: {error}") from None


# --- 8-bit weights ------------------------------------------------------------------------------------------


def dequantized(weights: list[Array], node: onnx_ir.Node) -> list[Array]:
    """Returns W and R as float32, of shape (D, 4H, I) and (D, 4H, H)."""
    result = []
    for name, q in zip(SCALES, weights, strict=True):
        integers = _integers(node, name, q)
        scale = _per_column(node, name, "scale", q, np.dtype(np.float32))
        if not ((scale >= 0) & (scale <= LARGEST)).all():
            raise refused(node, f"{name}_scale", "numbers from 0 to 2^119", "others")
        result.append((integers.astype(np.float32) * scale).swapaxes(1, 2))
    return result


def kept_by_int8(weights: list[Array], node: onnx_ir.Node) -> bool:
    """Returns whether to_dtype("int8") keeps all weights. If not, it rounds those of some outputs again."""
    return all(
        quantized.kept_by_int8(_integers(node, name, q), q.shape[1])
        for name, q in zip(SCALES, weights, strict=True)
    )


def _integers(node: onnx_ir.Node, name: str, q: Array) -> Array:
    """Returns q minus its zero point, int16."""
    if q.dtype not in (np.int8, np.uint8) or q.ndim != 3:
        got = f"{q.ndim} axes of {q.dtype}"
        raise ValueError(f"node {named(node)}: {name} must have 3 axes of int8 or uint8, got {got}")
    result: Array = q.astype(np.int16) - _per_column(node, name, "zero_point", q, q.dtype)
    return result


def _per_column(node: onnx_ir.Node, name: str, kind: str, q: Array, dtype: np.dtype) -> Array:
    """Returns the scale or zero point of W or R, of shape (D, 1, 1) or (D, 1, 4H)."""
    i = SCALES[name][kind == "zero_point"]
    value = constant(node.inputs[i] if i < len(node.inputs) else None)
    D, _, columns = q.shape
    if value is None or value.shape not in ((D,), (D, columns)) or value.dtype != dtype:
        got = "no constant" if value is None else f"shape {value.shape} of {value.dtype}"
        wanted = f"a constant of shape {(D,)} or {(D, columns)} of {dtype}"
        raise refused(node, f"{name}_{kind}", wanted, got)
    result: Array = value.reshape(D, 1, -1)
    return result


# --- activations --------------------------------------------------------------------------------------------


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
