"""Finds layers that follow each other through Transpose, Reshape and Squeeze, as exporters write stacks.

The outputs of a node have four axes, (T, D, B, H). The axes of each value after it are followed, until they
are those of the next node's input. A value that the file also uses elsewhere ends the stack.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir

from ...recognise.graph import attribute, constant, has_references, moved_axes
from ...recognise.interface import DOMAINS, named
from ...recognise.sizes import Counting, Linear, Numbers
from .node import NodeLayer

Axes = tuple[str, ...]  # "T", "D", "B", "H", and "DH" for the units of all directions


@dataclass
class Walk:
    """A value after a layer, its axes, and the nodes between them.

    shapes: the results of nodes Shape, by id. declared: the numbers of steps and sequences that a file
    declares for its input: {"T": 10}. baked: those that a Reshape sets. messages: about these, for users.
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
        """Adds the results of nodes Shape that read a value with these axes."""
        for node in value.consumers():
            start, end = attribute(node, "start", 0), attribute(node, "end", len(axes))
            if node.op_type == "Shape" and node.domain in DOMAINS and type(start) is type(end) is int:
                self.shapes |= {id(v): [self.size(axis) for axis in axes[start:end]] for v in node.outputs}

    def size(self, axis: str) -> Linear:
        """Returns the size of an axis: a number for D, H and I."""
        if axis in ("T", "B"):
            return Linear(0, {axis: 1})
        return Linear(math.prod(self.sizes[letter] for letter in axis))


@dataclass
class Stack:
    """Layers of one network, the value with the outputs of the last, and the axes of this value.

    between: the nodes between and after the layers. baked and messages: as in Walk.
    """

    layers: list[NodeLayer]
    y: onnx_ir.Value | None
    y_axes: Axes
    between: list[onnx_ir.Node]
    baked: dict[str, int]
    messages: list[str]


def stacks(layers: Sequence[NodeLayer]) -> list[Stack]:
    """Returns all layers as stacks, in the order of their first layers."""
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
    """Returns the numbers of steps and sequences that the file declares for the input of a layer."""
    shape = layer.x.shape
    if shape is None or len(shape) != 3:
        return {}
    order = "BT" if layer.batch_first else "TB"
    return {axis: size for axis, size in zip(order, shape, strict=False) if isinstance(size, int)}


def _next(
    layer: NodeLayer, by_input: dict[int, list[NodeLayer]], declared: dict[str, int]
) -> tuple[Walk, NodeLayer | None]:
    """Follows the outputs of a layer. Returns the walk and the layer above, or None.

    Without a layer above, the walk ends at the last value whose axes are those of a network's outputs.
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
        if not _step(walk, user):
            break
        if len(walk.axes) == 3 and set(walk.axes[:2]) == {"T", "B"}:
            end, best = len(walk.nodes), (walk.value, walk.axes)
    walk.nodes = walk.nodes[:end]
    walk.value, walk.axes = best
    return walk, None


def _only_user(walk: Walk) -> onnx_ir.Node | None:
    """Returns the only node that uses the value, without Shape, if it is in the same graph."""
    users = [use.node for use in walk.value.uses() if use.node.op_type != "Shape"]
    if len(users) != 1 or walk.value.is_graph_output():
        return None
    producer = walk.value.producer()
    return users[0] if producer is not None and users[0].graph is producer.graph else None


def _fits(layer: NodeLayer, above: NodeLayer, walk: Walk) -> bool:
    """Returns whether two layers can be layers of one network."""
    a, b = layer.weights[0], above.weights[0]
    order = ("B", "T") if above.batch_first else ("T", "B")
    same = ("cell", "nonlinearity", "gate_activation", "reset_after", "hidden_size")
    return (
        walk.axes[:2] == order
        and layer.batch_first == above.batch_first
        and (layer.directions, layer.reverse) == (above.directions, above.reverse)
        and layer.lengths is above.lengths
        and all(getattr(a, name) == getattr(b, name) for name in same)
        and b.input_size == walk.size(walk.axes[2]).number
    )


# --- steps --------------------------------------------------------------------------------------------------


def _step(walk: Walk, node: onnx_ir.Node) -> bool:
    """Moves the walk past a node. Returns False for a node that does other things to the value."""
    if node.domain not in DOMAINS or not node.outputs or node.inputs[0] is not walk.value:
        return False
    if has_references(node):  # to arguments of a function
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
    """Returns the axes of a node's output, or None."""
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
    """Returns whether a Dropout is the identity: always before opset 12, later without a training mode."""
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return True
    training = constant(node.inputs[2])
    return training is not None and not training.any()


def _reshaped(walk: Walk, node: onnx_ir.Node, shape: Numbers) -> Axes | None:
    """Returns the axes after a Reshape from (T, B, D, H) to (T, B, DH), in any order of T and B, or None."""
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
        return None  # it may divide the values into other steps and sequences
    walk.baked |= baked
    return new


def _of_shape(shape: onnx_ir.Value | None) -> list[onnx_ir.Node]:
    """Returns the nodes that compute a shape from the shapes of values."""
    found: dict[int, onnx_ir.Node] = {}
    stack = [shape]
    while stack:
        value = stack.pop()
        node = None if value is None or constant(value) is not None else value.producer()
        if node is not None and id(node) not in found:
            found[id(node)] = node
            stack += () if node.op_type in ("Shape", "SequenceLength") else node.inputs
    return list(found.values())[::-1]
