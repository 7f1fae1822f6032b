"""Finds parts that are RNN, LSTM, GRU or DynamicQuantizeLSTM nodes, and such nodes in bodies of loops.

Exporters write stacked layers with Transpose, Reshape and Squeeze between nodes. The search starts from a
node's output (T, D, B, H), and follows its axes through these operators to the next node's input. A value
that the file also uses elsewhere ends the stack.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir

from ...importers.weights import Weights, network
from ...recognise.graph import (
    attribute,
    constant,
    has_references,
    moved_axes,
    outside,
    outside_of_loops,
    producer,
)
from ...recognise.interface import DOMAINS, PATH, named
from ...recognise.matching import Step
from ...recognise.part import Difference, GraphPart, is_batch_first, restarts
from ...recognise.patterns import PATTERNS
from ...recognise.sizes import Counting, Linear, Numbers
from ..reading import opset_of
from .node import NodeLayer, is_recurrent, read_layer

Axes = tuple[str, ...]  # "T", "D", "B", "H", and "DH" for the units of all directions


@dataclass
class Layers:
    """Reads each recurrent node of a model once, as a NodeLayer. reset_after: as in from_onnx."""

    model: onnx_ir.Model
    reset_after: bool | None = None
    known: dict[onnx_ir.Node, NodeLayer | str] = field(default_factory=dict)  # a layer, or why there is none

    def of(self, graph: onnx_ir.Graph) -> dict[onnx_ir.Node, NodeLayer | str]:
        """Returns {recurrent node: its NodeLayer, or a text that says why it is no layer}, in graph order."""
        own = [node for node in graph if is_recurrent(node)]
        for node in own:
            if node not in self.known:
                try:
                    self.known[node] = read_layer(node, opset_of(self.model), self.reset_after)
                except ValueError as error:
                    self.known[node] = str(error)
        return {node: self.known[node] for node in own}

    def parts(self, graphs: Iterable[onnx_ir.Graph]) -> list[GraphPart]:
        """Returns the recurrent nodes of graphs as parts. Nodes that no network can replace get a reason."""
        result: list[GraphPart] = []
        for graph in graphs:
            every = self.of(graph)
            found = stacks([layer for layer in every.values() if isinstance(layer, NodeLayer)])
            starts = {stack.layers[0].node: stack for stack in found}
            for node, layer in every.items():
                if isinstance(layer, str):
                    refused = GraphPart(node.meta[PATH], node.op_type, reason=layer, nodes=(node,))
                    refused.layers = (node,)
                    result.append(refused)
                elif node in starts:
                    result.append(_part(starts[node], self.model, self.reset_after))
        return result

    def steps(self, graph: Any) -> Iterator[list[Step]]:
        """Yields single steps that are recurrent nodes in the body of a loop, in the form of matching.steps.

        torch's exporter writes them for an LSTMCell or GRUCell in a scripted loop.
        """
        for layer in self.of(graph).values():
            step = _step(layer) if isinstance(layer, NodeLayer) else None
            if step is not None:
                yield [step]


def _part(stack: Stack, model: onnx_ir.Model, reset_after: bool | None) -> GraphPart:
    first = stack.layers[0]
    order = "BT" if first.batch_first else "TB"
    part = GraphPart(
        first.node.meta[PATH], first.kind, nodes=(*(layer.node for layer in stack.layers), *stack.between),
        x=first.x, lengths=first.lengths, h0=tuple(layer.h0 for layer in stack.layers), y=stack.y,
        h=tuple(layer.h for layer in stack.layers), baked=stack.baked,
        axes={
            "x": f"{order}I", "h": "BDH" if first.batch_first else "DBH",
            "y": "".join("H" if axis == "DH" else axis for axis in stack.y_axes),
        },
        layers=tuple(layer.node for layer in stack.layers),
    )  # fmt: skip
    if first.kind == "LSTM":
        part.c0 = tuple(layer.c0 for layer in stack.layers)
        part.c = tuple(layer.c for layer in stack.layers)
    part.warnings = _warnings(part, stack, model, reset_after)
    weights = _with_biases(stack.layers)
    part.converted = network(weights, is_batch_first(part), "ONNX", first.reverse)
    return part


def _with_biases(layers: list[NodeLayer]) -> list[list[Weights]]:
    """Returns weights by layer and direction. If only some layers have biases, the others get zeros."""
    every = [list(layer.weights) for layer in layers]
    if len({weights.bias for layer in every for weights in layer}) == 1:
        return every
    for layer in every:
        for d, weights in enumerate(layer):
            if not weights.bias:
                zeros = np.zeros(len(weights.parameters["weight_hh"]), np.float32)
                own = weights.parameters | {"bias_ih": zeros, "bias_hh": zeros}
                layer[d] = replace(weights, bias=True, parameters=own)
    return every


def _warnings(part: GraphPart, stack: Stack, model: onnx_ir.Model, reset_after: bool | None) -> list[str]:
    result: list[str] = []
    first = stack.layers[0]
    before = reset_after is None and not first.weights[0].reset_after
    if before and (model.producer_name or "").lower() == "pytorch":
        result.append(Difference(
            f"node {named(first.node)} has no linear_before_reset=1, as torch's GRU should have. If torch's "
            "exporter wrote the file with dynamo=True between November 2025 and June 2026, all runtimes "
            "compute other outputs than the model; from_onnx(..., reset_after=True) repairs the network"
        ))  # fmt: skip
    result += stack.messages
    if first.batch_first:
        result.append(
            f"node {named(first.node)} has layout=1. ONNX Runtime refuses it on a CPU, and OpenVINO 2026.1 "
            "computes other outputs"
        )
    no_state = all(v is None for v in (*part.h0, *part.c0))
    if no_state:
        result.append(restarts(first.node))
    if first.kept_by_int8 is not None:
        kept = all(layer.kept_by_int8 for layer in stack.layers)
        does = "keeps the weights" if kept else "rounds weights beyond -128 .. 127 (without the zero point)"
        result.append(
            f"node {named(first.node)} has weights of 8 bits. The network has their values in float32, and "
            f"does not round its inputs as ONNX Runtime does; to_dtype('int8') {does}"
        )
    return result


# --- steps in the body of a Loop or Scan --------------------------------------------------------------------


@dataclass(frozen=True)
class NodeStep(Step):
    """A cell step in a loop's body that is a recurrent node, between Unsqueeze and Squeeze nodes."""

    layer: NodeLayer | None = None

    def weights(self) -> Weights:
        assert self.layer is not None
        return self.layer.weights[0]


def _step(layer: NodeLayer) -> Step | None:
    given = (layer.x, layer.h0, layer.c0)[: 3 if layer.kind == "LSTM" else 2]
    results = (layer.h, layer.c)[: len(given) - 1]
    if layer.directions > 1 or layer.reverse or layer.batch_first or layer.lengths is not None:
        return None
    before = [producer(v, "Unsqueeze") for v in given]
    after = [_squeeze(v) for v in results]
    pairs = [(node, node.inputs[0]) for node in before if node is not None and moved_axes(node) == [0]]
    values = [value for _, value in pairs if value is not None]
    if len(values) != len(given) or None in after:
        return None
    ends = [node for node in after if node is not None]
    nodes = (*(node for node, _ in pairs), layer.node, *ends)
    new = tuple(node.outputs[0] for node in ends)
    x, *old = (outside_of_loops(value) for value in values)
    pattern = next(p for p in PATTERNS if p.cell == layer.kind)
    return NodeStep(
        pattern, layer.hidden_size, {}, {}, None, True, x, tuple(old), new, nodes, outside(nodes, new),
        layer=layer,
    )  # fmt: skip


def _squeeze(value: onnx_ir.Value | None) -> onnx_ir.Node | None:
    """Returns the only Squeeze that reads a state, if it removes the axis of directions, or None."""
    users = [] if value is None else [u for u in value.consumers() if u.op_type == "Squeeze" and not u.domain]
    return users[0] if len(users) == 1 and moved_axes(users[0]) == [0] else None


# --- stacks -------------------------------------------------------------------------------------------------


@dataclass
class Walk:
    """A search from a layer's output to the next layer: the current value, and its axes.

    shapes: outputs of Shape nodes, by id. declared: sizes T and B that the file declares for its input, such
    as {"T": 10}. baked: sizes that a Reshape fixes. messages: warnings about `declared` and `baked`.
    """

    value: onnx_ir.Value
    axes: Axes
    sizes: dict[str, int]
    nodes: list[onnx_ir.Node] = field(default_factory=list)
    shapes: dict[int, Numbers] = field(default_factory=dict)
    declared: dict[str, int] = field(default_factory=dict)
    baked: dict[str, int] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counting = Counting(lambda _: None, self.shapes)

    def note(self, value: onnx_ir.Value, axes: Axes) -> None:
        """Records the outputs of Shape nodes that read this value, since a Reshape may use them."""
        for node in value.consumers():
            start, end = attribute(node, "start", 0), attribute(node, "end", len(axes))
            if node.op_type == "Shape" and node.domain in DOMAINS and type(start) is type(end) is int:
                self.shapes |= {id(v): [self.size(axis) for axis in axes[start:end]] for v in node.outputs}

    def size(self, axis: str) -> Linear:
        """Returns the size of an axis as a Linear: a symbol for T and B, a number for D, H and I."""
        if axis in ("T", "B"):
            return Linear(0, {axis: 1})
        return Linear(math.prod(self.sizes[letter] for letter in axis))


@dataclass
class Stack:
    """Stacked layers of one network, its output y, and y's axes.

    between: nodes between and after the layers. baked, messages: as in Walk.
    """

    layers: list[NodeLayer]
    y: onnx_ir.Value | None
    y_axes: Axes
    between: list[onnx_ir.Node]
    baked: dict[str, int]
    messages: list[str]


def stacks(layers: Sequence[NodeLayer]) -> list[Stack]:
    """Groups layers into stacks, in the order of their first layers."""
    by_input: dict[int, list[NodeLayer]] = {}
    for layer in layers:
        by_input.setdefault(id(layer.x), []).append(layer)
    below: set[int] = set()  # layers that have a layer below them
    steps: dict[int, tuple[Walk, NodeLayer | None]] = {}
    declared: dict[int, dict[str, int]] = {}
    for layer in layers:
        own = declared.get(id(layer), {}) | _declared(layer)
        walk, above = _next(layer, by_input, own)
        steps[id(layer)] = walk, above
        if above is not None:
            below.add(id(above))
            declared[id(above)] = own
    return [_stack(layer, steps) for layer in layers if id(layer) not in below]


def _stack(first: NodeLayer, steps: dict[int, tuple[Walk, NodeLayer | None]]) -> Stack:
    layers, between = [first], list[onnx_ir.Node]()
    baked: dict[str, int] = {}
    messages: list[str] = []
    while True:
        walk, above = steps[id(layers[-1])]
        between += walk.nodes
        baked |= walk.baked
        messages += walk.messages
        if above is None:
            y = walk.value if layers[-1].y is not None else None
            return Stack(layers, y, walk.axes, between, baked, messages)
        layers.append(above)


def _declared(layer: NodeLayer) -> dict[str, int]:
    """Returns sizes T and B that the file declares for a layer's input, such as {"T": 10}."""
    shape = layer.x.shape
    if shape is None or len(shape) != 3:
        return {}
    order = "BT" if layer.batch_first else "TB"
    return {axis: size for axis, size in zip(order, shape, strict=False) if isinstance(size, int)}


def _next(
    layer: NodeLayer, by_input: dict[int, list[NodeLayer]], declared: dict[str, int]
) -> tuple[Walk, NodeLayer | None]:
    """Follows a layer's output. Returns (walk, the layer that reads it or None).

    Without such a layer, the walk ends at the last value with a network's output axes.
    """
    T, B = ("B", "T") if layer.batch_first else ("T", "B")
    axes: Axes = (T, B, "D", "H") if layer.batch_first else (T, "D", B, "H")
    sizes = {"D": layer.directions, "H": layer.hidden_size, "I": layer.weights[0].input_size}
    if layer.y is None:
        return Walk(layer.node.outputs[0] if layer.node.outputs else layer.x, axes, sizes), None
    walk = Walk(layer.y, axes, sizes, declared=declared)
    walk.note(layer.x, (T, B, "I"))
    walk.note(layer.y, axes)
    end, best = 0, (walk.value, walk.axes)
    while True:
        user = _only_user(walk)
        if user is None:
            break
        if len(walk.axes) == 3:
            above = next((a for a in by_input.get(id(walk.value), ()) if a.node is user), None)
            if above is not None and _fits(layer, above, walk):
                return walk, above
        if not _moved(walk, user):
            break
        if len(walk.axes) == 3 and set(walk.axes[:2]) == {"T", "B"}:
            end, best = len(walk.nodes), (walk.value, walk.axes)
    walk.nodes = walk.nodes[:end]
    walk.value, walk.axes = best
    return walk, None


def _only_user(walk: Walk) -> onnx_ir.Node | None:
    """Returns the only node that reads the current value, or None. Nodes that read its shape do not count."""
    users = [use.node for use in walk.value.uses() if not _measures(use.node)]
    if len(users) != 1 or walk.value.is_graph_output():
        return None
    producer = walk.value.producer()
    return users[0] if producer is not None and users[0].graph is producer.graph else None


def _measures(node: onnx_ir.Node) -> bool:
    """Returns whether a node is a Shape, or a Transpose that only Shape nodes read."""
    after = [use.node.op_type for v in node.outputs for use in v.uses()]
    moves = node.op_type == "Transpose" and {*after} == {"Shape"} and not node.outputs[0].is_graph_output()
    return node.op_type == "Shape" or moves


def _fits(layer: NodeLayer, above: NodeLayer, walk: Walk) -> bool:
    """Returns whether `above` can be the next layer of the same network."""
    a, b = layer.weights[0], above.weights[0]
    order = ("B", "T") if above.batch_first else ("T", "B")
    same = ("cell", "nonlinearity", "gate_activation", "peepholes", "reset_after", "hidden_size")
    return (
        walk.axes[:2] == order
        and layer.batch_first == above.batch_first
        and (layer.directions, layer.reverse) == (above.directions, above.reverse)
        and layer.lengths is above.lengths
        and all(getattr(a, name) == getattr(b, name) for name in same)
        and b.input_size == walk.size(walk.axes[2]).number
    )


# --- nodes between layers -----------------------------------------------------------------------------------


def _moved(walk: Walk, node: onnx_ir.Node) -> bool:
    """Advances the walk over a node that only moves axes, and returns True. Returns False for other nodes."""
    if node.domain not in DOMAINS or not node.outputs or node.inputs[0] is not walk.value:
        return False
    if has_references(node):  # attributes that are arguments of a function are unknown
        return False
    try:
        axes = _after(walk, node)
    except (ArithmeticError, LookupError, TypeError, ValueError):  # attributes may be anything
        return False
    if axes is None:
        return False
    walk.value, walk.axes = node.outputs[0], axes
    walk.nodes += [*(_of_shape(node.inputs[1]) if node.op_type == "Reshape" else ()), node]
    walk.note(walk.value, axes)
    return True


def _after(walk: Walk, node: onnx_ir.Node) -> Axes | None:
    """Returns the axes after a node, or None if the node does more than move axes."""
    axes, rank = walk.axes, len(walk.axes)
    if node.op_type == "Identity" or (node.op_type == "Dropout" and _idle(node)):
        return axes
    if node.op_type == "Transpose":
        order = [int(i) for i in attribute(node, "perm", range(rank)[::-1])]
        return tuple(axes[i] for i in order) if sorted(order) == list(range(rank)) else None
    if node.op_type == "Squeeze":
        squeezed = {i % rank for i in moved_axes(node) or ()}
        if not squeezed or any(walk.size(axes[i]) != Linear(1) for i in squeezed):
            return None
        return tuple(axis for i, axis in enumerate(axes) if i not in squeezed)
    if node.op_type == "Reshape" and len(node.inputs) > 1:
        shape = walk.counting.numbers(node.inputs[1])
        return None if shape is None else _reshaped(walk, node, shape)
    return None


def _idle(node: onnx_ir.Node) -> bool:
    """Returns whether a Dropout is the identity: opset below 12, or training_mode absent or false."""
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return True
    training = constant(node.inputs[2])
    return training is not None and not training.any()


def _reshaped(walk: Walk, node: onnx_ir.Node, shape: Numbers) -> Axes | None:
    """Returns the axes after a Reshape that merges D and H to DH, in either order of T and B, or None."""
    old = tuple(axis for axis in walk.axes if walk.size(axis) != Linear(1) or axis not in ("D", "H"))
    new: Axes = (*old[:2], "DH")
    if (
        len(shape) != 3
        or set(old[:2]) != {"T", "B"}
        or old[2:] not in (("D", "H"), ("D",), ("H",), (), ("DH",))
    ):
        return None
    if attribute(node, "allowzero", 0) == 0:
        shape = [walk.size(walk.axes[i]) if size == Linear(0) and i < len(walk.axes) else size
                 for i, size in enumerate(shape)]  # fmt: skip
    baked: dict[str, int] = {}
    for size, axis in zip(shape, new, strict=True):
        if size in (Linear(-1), walk.size(axis)):
            continue
        if axis not in ("T", "B") or size is None or (size.number or 0) < 1:
            return None
        baked[axis] = size.constant
    if shape.count(Linear(-1)) > 1:
        return None
    for axis, fixed in baked.items():
        what = {"T": "steps", "B": "sequences"}[axis]
        walk.messages.append(
            f"node {named(node)} sets the number of {what} to {fixed}; the network takes any number"
        )
    if any(walk.declared.get(axis) != fixed for axis, fixed in baked.items()):
        return None  # the node may mix steps and sequences
    walk.baked |= baked
    return new


def _of_shape(shape: onnx_ir.Value | None) -> list[onnx_ir.Node]:
    """Returns the nodes that compute a Reshape's shape from shapes of values."""
    found: dict[int, onnx_ir.Node] = {}
    stack = [shape]
    while stack:
        value = stack.pop()
        node = None if value is None or constant(value) is not None else value.producer()
        if node is not None and id(node) not in found:
            found[id(node)] = node
            stack += () if node.op_type in ("Shape", "SequenceLength") else node.inputs
    return list(found.values())[::-1]
