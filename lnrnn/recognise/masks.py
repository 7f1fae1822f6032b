"""Masks of steps, and steps in reverse order, around a Loop or Scan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .graph import attribute, constant, moved_axes, outside_of_loops, producer, rank
from .interface import DOMAINS, Node, Value
from .recurrences import Nodes
from .sizes import WIDE, Linear, Width, bounds, number, size

INT32 = 6


@dataclass(frozen=True)
class Choice:
    """A value that is `new` where mask is true, and `old` elsewhere.

    has_row: whether the mask is (B,), and an Unsqueeze gives it a second axis. Otherwise it should be (B, 1).
    """

    mask: Value
    new: Value
    old: Value
    has_row: bool = False

    def has_mask_of(self, other: Choice | None) -> bool:
        return other is not None and self.mask is other.mask and self.has_row == other.has_row


def choice(value: Value) -> Choice | None:
    """Returns the choice that computes a value: Where, or as tf2onnx writes it, m new + (1 - m) old."""
    value = outside_of_loops(value)
    node = producer(value, "Where")
    if node is not None and None not in node.inputs[:3]:
        mask, new, old = (outside_of_loops(v) for v in node.inputs[:3] if v is not None)
        row = without_axis(mask)
        return Choice(mask if row is None else row, new, old, row is not None)
    node = producer(value, "Add")
    if node is None:
        return None
    products = [producer(v, "Mul") for v in node.inputs]
    if len(products) != 2 or products[0] is None or products[1] is None:
        return None
    found: dict[bool, tuple[Value, Value]] = {}  # whether the mask is negated: mask, value
    for product in products:
        assert product is not None
        for at in (0, 1):
            cast, other = producer(product.inputs[at], "Cast"), product.inputs[1 - at]
            if cast is None or cast.inputs[0] is None or other is None:
                continue
            mask, negated = outside_of_loops(cast.inputs[0]), False
            inverse = producer(mask, "Not")
            if inverse is not None and inverse.inputs[0] is not None:
                mask, negated = outside_of_loops(inverse.inputs[0]), True
            found[negated] = (mask, outside_of_loops(other))
            break
    if set(found) != {False, True} or found[False][0] is not found[True][0]:
        return None
    return Choice(found[False][0], found[False][1], found[True][1])


def without_axis(mask: Value) -> Value | None:
    """Returns the mask (B,) behind an Unsqueeze to (B, 1), or None."""
    node = producer(mask, "Unsqueeze")
    if node is None or node.inputs[0] is None or moved_axes(node) not in ([1], [-1]):
        return None
    return outside_of_loops(node.inputs[0])


def lengths_of(mask: Value) -> Value | None:
    """Returns the lengths (B,) of int32 if a mask (T, B) is true before each sequence's end."""
    node = producer(mask, "Less")
    if node is None:
        return None
    steps, cast = producer(node.inputs[0], "Unsqueeze"), producer(node.inputs[1], "Cast")
    if steps is None or cast is None or moved_axes(steps) not in ([1], [-1]):
        return None
    count, lengths = producer(steps.inputs[0], "Range"), cast.inputs[0]
    if count is None or lengths is None or len(count.inputs) != 3 or attribute(cast, "to", 0) not in WIDE:
        return None
    first, step = constant(count.inputs[0]), constant(count.inputs[2])
    if first is None or step is None or first.any() or not (step == 1).all():
        return None
    fits = lengths.dtype in (None, INT32) and rank(lengths) in (None, 1)
    return lengths if fits else None


def reversed_of(
    value: Value, axis: int, width: Width, steps: Linear | None = None
) -> tuple[Value, Node] | None:
    """Returns the value that has the steps along an axis in the reverse order, and the node between.

    steps: the length of the axis, if it is known.
    """
    node = value.producer()
    if node is None or not is_reversal(node, axis, width, steps) or node.inputs[0] is None:
        return None
    return node.inputs[0], node


def is_reversal(node: Node, axis: int, width: Width, steps: Linear | None = None) -> bool:
    """Returns whether a node reverses an axis of its input. steps: the length of the axis, if it is known."""
    data = node.inputs[0] if node.inputs else None
    if data is None or node.domain not in DOMAINS:
        return False
    length = size(data, axis, width)
    if node.op_type == "ReverseSequence":
        if attribute(node, "time_axis", 0) != axis or attribute(node, "batch_axis", 1) == axis:
            return False
        lengths = node.inputs[1]
        array = constant(lengths)
        if array is not None:
            return length.number is not None and bool((array == length.number).all())
        expand = producer(lengths, "Expand")
        given = None if expand is None else number(expand.inputs[0], width)
        return given is not None and given in (length, steps)
    if node.op_type != "Slice":
        return False
    found = bounds(node, width)
    if found is None or found[0] % (rank(data) or 3) != axis or found[3] != -1:
        return False
    from_last = found[1] in (Linear(-1), length.plus(Linear(1), -1)) or (found[1].number or 0) > 2**30
    to_first = found[2].number is not None and (found[2].number < -(2**30))
    return from_last and (to_first or found[2].plus(length).number == -1)


def in_order_of_x(y: Value, axes: str, width: Width, steps: Linear) -> tuple[Value, str, Nodes] | None:
    """Returns the only value that is y with its steps reversed, its axes, and the nodes between.

    steps: the number of steps.
    """
    ends: list[tuple[Value, str]] = []
    nodes: list[Node] = []
    stack = [(y, axes)]
    while stack:
        value, axes = stack.pop()
        if value.is_graph_output():
            return None
        for user in value.consumers():
            if user.op_type == "Shape":
                continue
            if user in nodes or user.domain not in DOMAINS:
                return None
            nodes.append(user)
            order = attribute(user, "perm")
            if user.op_type == "Transpose" and order is not None and len(order) == len(axes):
                stack.append((user.outputs[0], "".join(axes[i] for i in order)))
            elif user.op_type == "Identity":
                stack.append((user.outputs[0], axes))
            elif user.inputs[0] is value and is_reversal(user, axes.index("T"), width, steps):
                ends.append((user.outputs[0], axes))
            else:
                return None
    return (*ends[0], nodes) if len(ends) == 1 else None


def all_true(value: Value | None) -> bool:
    """Returns whether a value is a constant true."""
    array = None if value is None else constant(outside_of_loops(value))
    return array is not None and bool(np.asarray(array).all())
