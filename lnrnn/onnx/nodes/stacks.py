"""Finds layers that follow each other through Transpose, Reshape and Squeeze, as exporters write stacks.

The outputs of a node have four axes, (T, D, B, H). The axes of each value after it are followed, until they
are those of the next node's input. A value that the file also uses elsewhere ends the stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir

from ...recognise.constants import constant
from ...recognise.graph import DOMAINS, attribute, has_references, named
from ...recognise.values import moved_axes
from .node import NodeLayer

Axes = tuple[str, ...]  # "T", "D", "B", "H", and "DH" for the units of all directions
DEEPEST, MOST, LONGEST = 16, 256, 8  # nodes after each other, values, and numbers of a shape
Size = int | str | None  # a number, "T" or "B", or None for an unknown one


@dataclass
class Walk:
    """A value after a layer, its axes, and the nodes between them.

    shapes: axes by id of values, for the operator Shape. declared: the numbers of steps and sequences that a
    file declares for its input: {"T": 10}. baked: those that a Reshape sets. messages: about these, for
    users of the file.
    """

    value: onnx_ir.Value
    axes: Axes
    sizes: dict[str, int]
    nodes: list[onnx_ir.Node] = field(default_factory=list)
    shapes: dict[int, Axes] = field(default_factory=dict)
    declared: dict[str, int] = field(default_factory=dict)
    baked: dict[str, int] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def note(self) -> None:
        self.shapes[id(self.value)] = self.axes

    def size(self, axis: str) -> Size:
        """Returns the size of an axis: a number for D, H and I."""
        if axis in ("T", "B"):
            return axis
        result = 1
        for letter in axis:
            result *= self.sizes[letter]
        return result


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
    walk = Walk(layer.y, axes, sizes, shapes={id(layer.x): (T, B, "I")}, declared=declared)
    walk.note()
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
        and b.input_size == walk.size(walk.axes[2])
    )


# --- steps --------------------------------------------------------------------------------------------------


def _step(walk: Walk, node: onnx_ir.Node) -> bool:
    """Moves the walk past a node. Returns False for a node that does other things to the value."""
    if node.domain not in DOMAINS or not node.outputs or node.inputs[0] is not walk.value:
        return False
    if has_references(node):  # to arguments of a function
        return False
    used: list[onnx_ir.Node] = []
    try:
        axes = _after(walk, node, used)
    except (ArithmeticError, LookupError, TypeError, ValueError):  # attributes may be anything
        return False
    if axes is None:
        return False
    walk.value, walk.axes = node.outputs[0], axes
    walk.nodes += [*used, node]
    walk.note()
    return True


def _after(walk: Walk, node: onnx_ir.Node, used: list[onnx_ir.Node]) -> Axes | None:
    """Returns the axes of a node's output, or None. Appends the nodes that compute its shape to `used`."""
    axes, rank = walk.axes, len(walk.axes)
    if node.op_type == "Identity" or (node.op_type == "Dropout" and _idle(node)):
        return axes
    if node.op_type == "Transpose":
        order = [int(i) for i in attribute(node, "perm", range(rank)[::-1])]
        return tuple(axes[i] for i in order) if sorted(order) == list(range(rank)) else None
    if node.op_type == "Squeeze":
        squeezed = {i % rank for i in moved_axes(node) or ()}
        if not squeezed or any(walk.size(axes[i]) != 1 for i in squeezed):
            return None
        return tuple(axis for i, axis in enumerate(axes) if i not in squeezed)
    if node.op_type == "Reshape" and len(node.inputs) > 1:
        shape = _Shapes(walk, used).sizes(node.inputs[1])
        return None if shape is None else _reshaped(walk, node, shape)
    return None


def _idle(node: onnx_ir.Node) -> bool:
    """Returns whether a Dropout is the identity: always before opset 12, later without a training mode."""
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return True
    training = constant(node.inputs[2])
    return training is not None and not training.any()


def _reshaped(walk: Walk, node: onnx_ir.Node, shape: list[Size]) -> Axes | None:
    """Returns the axes after a Reshape from (T, B, D, H) to (T, B, DH), in any order of T and B, or None."""
    old = tuple(axis for axis in walk.axes if walk.size(axis) != 1 or axis not in ("D", "H"))
    new: Axes = (*old[:2], "DH")
    if (
        len(shape) != 3
        or set(old[:2]) != {"T", "B"}
        or old[2:] not in (("D", "H"), ("D",), ("H",), (), ("DH",))
    ):
        return None
    if attribute(node, "allowzero", 0) == 0:
        shape = [walk.size(walk.axes[i]) if size == 0 and i < len(walk.axes) else size
                 for i, size in enumerate(shape)]  # fmt: skip
    baked: dict[str, int] = {}
    for size, axis in zip(shape, new, strict=True):
        if size in (-1, walk.size(axis)):
            continue
        if axis not in ("T", "B") or not isinstance(size, int) or size < 1:
            return None
        baked[axis] = size
    if shape.count(-1) > 1:
        return None
    for axis, size in baked.items():
        what = {"T": "steps", "B": "sequences"}[axis]
        walk.messages.append(
            f"node {named(node)} sets the number of {what} to {size}; the network takes any number"
        )
    if any(walk.declared.get(axis) != size for axis, size in baked.items()):
        return None  # it may divide the values into other steps and sequences
    walk.baked |= baked
    return new


@dataclass
class _Shapes:
    """Finds the numbers of a shape that nodes compute from the shapes of a walk's values.

    used: receives these nodes. results: the numbers by id of values. Both are bounded, since a file may have
    long chains.
    """

    walk: Walk
    used: list[onnx_ir.Node]
    results: dict[int, list[Size] | None] = field(default_factory=dict)

    def sizes(self, value: onnx_ir.Value | None, depth: int = 0) -> list[Size] | None:
        """Returns the numbers, or None if they are computed from other values."""
        if value is None or depth > DEEPEST or len(self.results) > MOST:
            return None
        if id(value) not in self.results:
            self.results[id(value)] = None
            result = self._sizes(value, depth)
            self.results[id(value)] = result if result is None or len(result) <= LONGEST else None
        return self.results[id(value)]

    def _sizes(self, value: onnx_ir.Value, depth: int) -> list[Size] | None:
        known = constant(value)
        if known is not None:
            fits = known.dtype.kind in "iu" and known.size <= LONGEST
            return [int(i) for i in known.reshape(-1)] if fits else None
        node = value.producer()
        if node is None or node.domain not in DOMAINS or not node.inputs or has_references(node):
            return None
        if node.op_type == "Shape":
            axes = self.walk.shapes.get(id(node.inputs[0]))
            ends = attribute(node, "start", 0), attribute(node, "end")
            result = None if axes is None else [self.walk.size(axis) for axis in axes][slice(*ends)]
        elif node.op_type in ("Concat", "Mul"):
            result = []
            for each in node.inputs[:LONGEST]:
                result += self.sizes(each, depth + 1) or [None] * (LONGEST + 1)
            if node.op_type == "Mul":
                result = [_product(result)] if len(result) == 2 else None
        else:
            result = self.sizes(node.inputs[0], depth + 1)
            if node.op_type in ("Slice", "Gather"):
                result = None if result is None else _taken(node, result)
            elif node.op_type not in ("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape"):
                result = None
        if result is not None:
            self.used.append(node)
        return result


def _taken(node: onnx_ir.Node, given: list[Size]) -> list[Size] | None:
    """Returns the numbers that a Slice or Gather takes from a shape."""
    numbers = [constant(v) for v in node.inputs[1:]]
    if any(n is None or n.size != 1 or n.dtype.kind not in "iu" for n in numbers):
        return None
    start, *more = (int(n.reshape(())) for n in numbers if n is not None)
    if node.op_type == "Gather":
        return given[start:][:1] if -len(given) <= start < len(given) else None
    plain = bool(more) and more[1:2] in ([], [0]) and more[2:] in ([], [1])
    return given[start : more[0]] if plain else None


def _product(sizes: list[Size]) -> Size:
    a, b = sizes
    return a * b if isinstance(a, int) and isinstance(b, int) else None
