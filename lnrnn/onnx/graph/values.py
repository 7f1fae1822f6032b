"""Facts about values of a graph: constants behind Identity and in Loops, ranks, attributes of nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx_ir

from ..cells.patterns import OPERATORS
from .constants import constant
from .folding import DOMAINS
from .reading import loop_around, subgraphs

Array = np.ndarray
MOST_DEPTH = 40  # nodes in a row that are read to find one property of a value
ACTIVATIONS = {operator: name for name, operator in OPERATORS.items()}
ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Neg", "Identity", "Sum", "Cast", "Equal", *ACTIVATIONS)


def outside_of_loops(value: onnx_ir.Value) -> onnx_ir.Value:
    """Returns the value behind Identity nodes, and behind inputs of a Loop's body that never change."""
    while True:
        value = _before_identity(value)
        found = first_and_next(value)
        if found is None or _before_identity(found[1]) is not value:
            return value
        value = found[0]


def _before_identity(value: onnx_ir.Value) -> onnx_ir.Value:
    while (node := producer(value, "Identity")) is not None and node.inputs[0] is not None:
        value = node.inputs[0]
    return value


def first_and_next(value: onnx_ir.Value) -> tuple[onnx_ir.Value, onnx_ir.Value] | None:
    """Returns the first value of a state in the body of a Loop or Scan, and the output with its next value.

    Returns None for other values than the body's inputs with states.
    """
    body = value.graph
    loop = loop_around(body) if value.is_graph_input() else None
    if body is None or loop is None:
        return None
    at, is_loop = next(k for k, v in enumerate(body.inputs) if v is value), loop.op_type == "Loop"
    scanned = 0 if is_loop else attribute(loop, "num_scan_inputs", 0)
    # A Loop's body has the inputs step and condition before the states, and the output condition.
    if not 2 * is_loop <= at < len(loop.inputs) - scanned or at - is_loop >= len(body.outputs):
        return None
    first = loop.inputs[at]
    return None if first is None else (first, body.outputs[at - is_loop])


def rank(value: onnx_ir.Value) -> int | None:
    """Returns the number of axes of a value, or None."""
    return _rank(value, {}, 0)


def _rank(value: onnx_ir.Value, known: dict[int, int | None], depth: int) -> int | None:
    """As rank. known: receives the results by id, since a node may read a value twice."""
    if value.shape is not None:
        return len(value.shape)
    if depth > MOST_DEPTH:
        return None
    if id(value) not in known:
        known[id(value)] = _rank_of_result(value, known, depth)
    return known[id(value)]


def _rank_of_result(value: onnx_ir.Value, known: dict[int, int | None], depth: int) -> int | None:
    node = value.producer()
    if node is None:
        found = first_and_next(value)
        return None if found is None else _rank(found[0], known, depth + 1)
    if node.op_type == "Gemm":
        return 2
    if node.op_type in ELEMENTWISE:
        ranks = [_rank(v, known, depth + 1) for v in node.inputs if v is not None]
        return None if None in ranks else max(r for r in ranks if r is not None)
    first = _rank(node.inputs[0], known, depth + 1) if node.inputs and node.inputs[0] is not None else None
    if node.op_type in ("MatMul", "LayerNormalization", "Split", "Slice", "ReverseSequence", "Not"):
        return first
    if node.op_type == "Transpose":
        order = attribute(node, "perm")
        return first if order is None else len(order)
    if first is None:
        return None
    if node.op_type == "Gather":
        indices = None if node.inputs[1] is None else _rank(node.inputs[1], known, depth + 1)
        return None if indices is None else first + indices - 1
    if node.op_type in ("Squeeze", "Unsqueeze"):
        axes = moved_axes(node)
        return None if axes is None else first + (len(axes) if node.op_type == "Unsqueeze" else -len(axes))
    return None


def moved_axes(node: onnx_ir.Node) -> list[int] | None:
    """Returns the axes of a Squeeze or Unsqueeze."""
    given = constant_input(node, 1) if len(node.inputs) > 1 else None
    axes = attribute(node, "axes") if given is None else given.reshape(-1)
    return None if axes is None else [int(a) for a in axes]


def is_last_axis(axis: int, data: onnx_ir.Value) -> bool:
    """Returns whether this axis of a value is its last. A value of unknown rank counts as (B, H)."""
    return axis == -1 or axis == (rank(data) or 2) - 1


def from_constants(value: onnx_ir.Value) -> bool:
    """Returns whether a value depends on constants alone, and on inputs by their shapes at most."""
    values = [value]
    for each in values:
        node = each.producer()
        if not each.is_initializer() and (node is None or len(values) > 1000):
            return False
        if node is not None and node.op_type != "Shape":
            nodes = (node, *(other for _, graph in subgraphs(node) for other in graph))
            values += {v for other in nodes for v in other.inputs if v is not None}.difference(values)
    return True


def is_argument(value: onnx_ir.Value, depth: int = 0) -> bool:
    """Returns whether a value is the argument of a product with a constant, a norm, or a function."""
    for user, at in value.uses():
        if user.op_type == "Identity" and depth < MOST_DEPTH and is_argument(user.outputs[0], depth + 1):
            return True
        if at != 0 or user.domain not in DOMAINS:
            continue
        if user.op_type in ACTIVATIONS or user.op_type in ("LayerNormalization", "ReduceMean"):
            return True
        if user.op_type in ("Gemm", "MatMul") and constant_input(user, 1) is not None:
            return True
    return False


def attribute(node: onnx_ir.Node, name: str, default: Any = None) -> Any:
    """Returns the value of an attribute. An argument of the function around the node counts as missing."""
    given = node.attributes.get(name)
    return default if given is None or given.is_ref() else given.value


def constant_input(node: onnx_ir.Node, at: int) -> Array | None:
    """Returns the array of an input that is constant, also in the steps of a Loop, else None."""
    value = node.inputs[at] if at < len(node.inputs) else None
    return None if value is None else constant(outside_of_loops(value))


def keeps_last_axis(node: onnx_ir.Node) -> bool:
    """Returns whether the last axis of a Gather's, Squeeze's or Unsqueeze's result is that of its input."""
    data = node.inputs[0]
    axes = [attribute(node, "axis", 0)] if node.op_type == "Gather" else moved_axes(node)
    r = None if data is None else rank(data)
    if axes is None or r is None:
        return False
    last = r if node.op_type == "Unsqueeze" else r - 1
    return not any(a in (-1, last) for a in axes)


def producer(value: onnx_ir.Value | None, *ops: str) -> onnx_ir.Node | None:
    """Returns the node that computes a value if it is one of these operators."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type in ops and node.domain in DOMAINS else None


PLACE = "lnrnn.place"


def number_nodes(graph: onnx_ir.Graph) -> None:
    """Gives each node its place in the graph, for `in_order`."""
    for place, node in enumerate(graph):
        node.meta[PLACE] = place


def in_order(nodes: Iterable[onnx_ir.Node]) -> tuple[onnx_ir.Node, ...]:
    """Returns nodes of one graph in its order, without those of other graphs."""
    every = list(nodes)
    return tuple(sorted((n for n in every if n.graph is every[0].graph), key=lambda node: node.meta[PLACE]))
