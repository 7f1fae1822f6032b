"""Reads one node RNN, LSTM or GRU of ONNX, or DynamicQuantizeLSTM of ONNX Runtime, as a layer of lnrnn.

The operators are those of opsets 7 to 22. For a node that no network of lnrnn can replace, a ValueError names
the attribute or the input. plain.py and cells/node_steps.py call `read_layer`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx.defs
import onnx_ir

from ...importers.weights import Weights, array, reordered
from ..graph.constants import constant, is_zero
from ..graph.counting import last_size
from ..graph.folding import DOMAINS, Unfolded, attribute, named, refused, without_equivalent
from .activations import activations
from .quantized import dequantized, is_quantized

Array = np.ndarray
# The order of gates in ONNX, and in lnrnn. ONNX's c is the gate g of lnrnn.
GATES = {"RNN": ("i", "i"), "LSTM": ("iofc", "ifco"), "GRU": ("zrh", "rzh")}
VERSIONS = (7, 14, 22)  # of the three operators, in opsets 7 to 22
TYPES = {
    "activation_alpha": onnx_ir.AttributeType.FLOATS,
    "activation_beta": onnx_ir.AttributeType.FLOATS,
    "activations": onnx_ir.AttributeType.STRINGS,
    "clip": onnx_ir.AttributeType.FLOAT,
    "direction": onnx_ir.AttributeType.STRING,
    "hidden_size": onnx_ir.AttributeType.INT,
    "input_forget": onnx_ir.AttributeType.INT,
    "layout": onnx_ir.AttributeType.INT,
    "linear_before_reset": onnx_ir.AttributeType.INT,
}
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


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


def is_recurrent(node: onnx_ir.Node) -> bool:
    return (node.domain in DOMAINS and node.op_type in GATES) or is_quantized(node)


def read_layer(
    node: onnx_ir.Node, path: str, opset: int | None, reset_after: bool | None = None
) -> NodeLayer:
    """Returns a node as a layer. Raises ValueError for a node that no network can replace.

    opset: the version of ONNX's operators in the file. reset_after: replaces the attribute of GRU nodes.
    """
    try:
        return _layer(node, path, opset, reset_after)
    except Unfolded:
        raise ValueError(
            f"node {named(node)}: attributes must have values, got those of a function"
        ) from None


def _layer(node: onnx_ir.Node, path: str, opset: int | None, reset_after: bool | None) -> NodeLayer:
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
        units = last_size(_input(node, i))
        if units not in (None, hidden_size):
            do = "torch writes such a file for proj_size with dynamo=True" * (name == "initial_c")
            raise refused(
                node, name, f"of {hidden_size} units, as R", f"{units}, which no runtime can run", do
            )


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
