"""Masks, lengths and reversals of steps around a Loop or Scan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .graph import attribute, constant, moved_axes, outside_of_loops, producer, rank
from .interface import DOMAINS, Node, Value
from .sizes import Linear, Width, element, is_reversal, number, widened

INTEGERS = 6, 7  # int32, int64


@dataclass(frozen=True)
class Choice:
    """where(mask, new, old): how exported files keep the states of a finished sequence.

    has_row: whether the mask is (B,), expanded by an Unsqueeze. Otherwise it should be (B, 1).
    """

    mask: Value
    new: Value
    old: Value
    has_row: bool = False

    def has_mask_of(self, other: Choice | None) -> bool:
        return other is not None and self.mask is other.mask and self.has_row == other.has_row


def choice(value: Value) -> Choice | None:
    """Returns the Choice that computes a value: a Where, or tf2onnx's m new + (1 - m) old. Else None."""
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
    found: dict[bool, tuple[Value, Value]] = {}  # negated -> (mask, value)
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
    """Returns the mask (B,) whose Unsqueeze to (B, 1) is `mask`, or None."""
    node = producer(mask, "Unsqueeze")
    if node is None or node.inputs[0] is None or moved_axes(node) not in ([1], [-1]):
        return None
    return outside_of_loops(node.inputs[0])


def less(mask: Value) -> tuple[Value, Value] | None:
    """Returns (a, b) if a mask is a < b, written as Less, as Greater, or as Not of >= or <=; else None."""
    node = producer(mask, "Less", "Greater", "Not")
    negated = node is not None and node.op_type == "Not" and node.inputs[0] is not None
    if negated:
        assert node is not None and node.inputs[0] is not None
        node = producer(outside_of_loops(node.inputs[0]), "GreaterOrEqual", "LessOrEqual")
    a, b = (None, None) if node is None or len(node.inputs) != 2 else node.inputs
    if node is None or a is None or b is None:
        return None
    return (b, a) if node.op_type in ("Greater", "LessOrEqual") else (a, b)


def lengths_of(mask: Value, axis: int = 0) -> Value | None:
    """Returns lengths (B,) if a mask is step < lengths, else None. axis: the mask's axis of steps."""
    node = producer(mask, "Transpose")
    if node is not None and node.inputs[0] is not None and rank(mask) in (None, 2):
        mask, axis = outside_of_loops(node.inputs[0]), 1 - axis
    pair = less(mask)
    if pair is None:
        return None
    steps, of_steps = widened(pair[0])
    lengths, of_lengths = widened(pair[1])
    along, across = (of_steps, of_lengths) if axis == 0 else (of_lengths, of_steps)
    fits = along == 1 and across in (0, None) and _is_lengths(lengths, pair[1])
    return lengths if fits and _counts(steps) else None


def lengths_at(
    masked: Choice, width: Width, counters: Mapping[int, Linear] | None = None
) -> tuple[Value, Linear] | None:
    """Returns (lengths, n) if the mask of one step is n < lengths, else None. counters: as for `numbers`."""
    each = element(masked.mask, width, counters)
    if each is not None and masked.has_row:
        lengths = lengths_of(outside_of_loops(each.whole), each.axis)
        return None if lengths is None or each.index is None else (lengths, each.index)
    pair = less(masked.mask)
    at = None if pair is None else number(pair[0], width, counters)
    if pair is None or at is None:
        return None
    value, axis = widened(pair[1])
    fits = axis == (None if masked.has_row else 1) and _is_lengths(value, pair[1])
    return (value, at) if fits else None


def _counts(value: Value) -> bool:
    """Returns whether a value is 0, 1, 2, ...: a constant, or a Range that starts at 0 with step 1."""
    array, node = constant(value), producer(value, "Range")
    if array is not None:
        return array.ndim == 1 and bool((array == np.arange(len(array))).all())
    first, step = (constant(node.inputs[k]) if node and len(node.inputs) == 3 else None for k in (0, 2))
    return first is not None and step is not None and not first.any() and bool((step == 1).all())


def _is_lengths(value: Value, whole: Value) -> bool:
    """Returns whether a value may be lengths: integers (B,). whole: the value before casts are removed."""
    known = value.dtype in INTEGERS or (value.dtype is None and value is not whole)
    return known and rank(value) in (None, 1)


def reversed_of(
    value: Value, axis: int, width: Width, steps: Linear | None = None, lengths: Value | None = None
) -> tuple[Value, Node] | None:
    """Returns (original, node) if `node` computes `value` by reversing the original along an axis, else None.

    steps: the length of the axis, or None if unknown. lengths (B,): each sequence is reversed within its own
    length, as ReverseSequence does.
    """
    node = value.producer()
    if node is None or not is_reversal(node, axis, width, steps, lengths) or node.inputs[0] is None:
        return None
    return node.inputs[0], node


def in_order_of_x(
    y: Value, axes: str, width: Width, steps: Linear, lengths: Value | None = None
) -> tuple[Value, str, list[Node]] | None:
    """Follows y to its only use, a reversal. Returns (reversed y, its axes, the nodes between), else None.

    steps: the length of the time axis. lengths: as for `reversed_of`.
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
            elif user.inputs[0] is value and is_reversal(user, axes.index("T"), width, steps, lengths):
                ends.append((user.outputs[0], axes))
            else:
                return None
    return (*ends[0], nodes) if len(ends) == 1 else None


def all_true(value: Value | None) -> bool:
    """Returns whether a value is a constant whose elements are all true."""
    array = None if value is None else constant(outside_of_loops(value))
    return array is not None and bool(np.asarray(array).all())
