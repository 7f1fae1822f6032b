"""Symbolic sizes of axes, elements of shapes, and slices.

Exporters compute the bounds of slices, and the number of a Loop's steps, from shapes. `Linear` is an
affine expression of unknown sizes and of the step's number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .graph import (
    MOST_DEPTH,
    attribute,
    constant,
    constant_input,
    moved_axes,
    outside_of_loops,
    producer,
    rank,
)
from .interface import DOMAINS, DTYPES, Node, Value

STEP = "step"  # the number of the current step of the innermost Loop
MOST_NUMBERS = 16  # elements of a value that `numbers` follows
LARGEST = 2**31  # larger numbers count as unknown
WIDE = tuple(number for number, name in DTYPES.items() if name != "bool")
Size = tuple[int, int]  # the size of a value along an axis: the value's id, and the axis
Symbol = Size | str
Width = Callable[[Value], int | None]  # returns the size of a value's last axis, or None


# --- numbers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Linear:
    """A size or index: constant + sum of factor * symbol. A symbol is an unknown size or the step number."""

    constant: int
    factors: Mapping[Symbol, int] = field(default_factory=dict)

    def plus(self, other: Linear, sign: int = 1) -> Linear:
        factors = dict(self.factors)
        for symbol, factor in other.factors.items():
            factors[symbol] = factors.get(symbol, 0) + sign * factor
        return Linear(self.constant + sign * other.constant, {s: f for s, f in factors.items() if f})

    @property
    def number(self) -> int | None:
        return None if self.factors else self.constant


Numbers = list[Linear | None]


def numbers(
    value: Value | None, width: Width, counters: Mapping[int, Linear] | None = None
) -> Numbers | None:
    """Returns the elements of a small integer value, such as a shape, with None for unknown elements.

    counters: values that count steps, by id of the value.
    """
    return Counting(width, {key: [value] for key, value in (counters or {}).items()}).numbers(value)


@dataclass
class Counting:
    """Computes elements as `numbers` does, with a cache, since several nodes may read one value.

    known: elements of values, by id of the value.
    """

    width: Width
    known: Mapping[int, Numbers]
    found: dict[int, Numbers | None] = field(default_factory=dict)

    def numbers(self, value: Value | None, depth: int = 0) -> Numbers | None:
        if value is None or depth > MOST_DEPTH:
            return None
        if id(value) in self.known:
            return self.known[id(value)]
        value = outside_of_loops(value)
        if id(value) not in self.found:
            result = self._numbers(value, depth)
            self.found[id(value)] = result if result is None or len(result) <= MOST_NUMBERS else None
        return self.found[id(value)]

    def _numbers(self, value: Value, depth: int) -> Numbers | None:
        array = constant(value)
        if array is not None:
            whole = array.size <= MOST_NUMBERS and array.dtype.kind in "iuf" and np.isfinite(array).all()
            whole = whole and (array == array.round()).all()
            return [Linear(int(i)) for i in array.reshape(-1)] if whole else None
        node = value.producer()
        if node is None or node.domain not in DOMAINS or not 0 < len(node.inputs) <= MOST_NUMBERS:
            return None
        if node.op_type == "Shape":
            return shape(node, self.width)
        if node.op_type == "SequenceLength":
            split = producer(node.inputs[0], "SplitToSequence")
            if split is None or split.inputs[0] is None:
                return None
            one = constant_input(split, 1)
            if one is not None and one.tolist() not in (1, [1]):
                return None
            return [size(split.inputs[0], attribute(split, "axis", 0), self.width)]
        if node.op_type == "Cast" and attribute(node, "to", 0) not in WIDE:
            return None
        if node.op_type in ("Cast", "Squeeze", "Unsqueeze", "Identity", "Reshape"):
            return self.numbers(node.inputs[0], depth + 1)
        parts = [self.numbers(v, depth + 1) for v in node.inputs]
        first = parts[0]
        if first is None or any(part is None for part in parts):
            return None
        given = [part for part in parts if part is not None]
        match node.op_type:
            case "Gather" if attribute(node, "axis", 0) == 0:
                at = [None if i is None else i.number for i in given[1]]
                return [first[i] if i is not None and -len(first) <= i < len(first) else None for i in at]
            case "Slice" if len(given) > 2:
                bounds = [p[0].number if len(p) == 1 and p[0] is not None else None for p in given[1:]]
                if None in bounds or bounds[2:] not in ([], [0], [0, 1]):
                    return None
                return first[slice(*bounds[:2])]
            case "Concat":
                return [i for part in given for i in part]
            case "Add" | "Sub" | "Mul" | "Div" if len(given) == 2:
                n = max(map(len, given))
                a, b = (part * n if len(part) == 1 else part for part in given)
                divisor = constant_input(node, 1)
                rounds = divisor is not None and divisor.dtype.kind in "iu"
                return [_computed(node.op_type, i, j, rounds) for i, j in zip(a, b, strict=False)]
        return None


def number(value: Value | None, width: Width, counters: Mapping[int, Linear] | None = None) -> Linear | None:
    """Returns the number in a value of one element, or None if it is unknown."""
    result = numbers(value, width, counters)
    return result[0] if result is not None and len(result) == 1 else None


def shape(node: Node, width: Width) -> Numbers | None:
    """Returns the sizes that a Shape node outputs. An input of unknown rank counts as (B, H)."""
    data = node.inputs[0]
    if data is None:
        return None
    axes = rank(data)
    sizes: Numbers = [size(data, axis, width) for axis in ((0, -1) if axes is None else range(axes))]
    return sizes[attribute(node, "start", 0) : attribute(node, "end")]


def size(value: Value, axis: int, width: Width) -> Linear:
    """Returns the size of an axis as a Linear. Axes with the same symbol have the same size."""
    while True:
        axes = rank(value) or None
        axis = axis if axes is None else axis % axes
        given = None if axes is None or value.shape is None else value.shape[axis]
        if isinstance(given, int):
            return Linear(given)
        known = width(value) if axis == (-1 if axes is None else axes - 1) else None
        if known is not None:
            return Linear(known)
        node = value.producer()
        source = node.inputs[0] if node is not None and node.inputs else None
        if node is None or source is None or node.domain not in DOMAINS:
            break
        if node.op_type == "Transpose" and axes is not None:
            order = attribute(node, "perm")
            axis = axes - 1 - axis if order is None else int(order[axis])
        elif node.op_type == "Unsqueeze" and axes is not None:
            new = [int(a) % axes for a in moved_axes(node) or ()]
            if axis in new:
                return Linear(1)
            axis -= sum(a < axis for a in new)
        elif node.op_type not in ("Identity", "Cast", "Not", "ReverseSequence"):
            break
        value = source
    return Linear(0, {(id(value), axis): 1})


def last_size(value: Value) -> int | None:
    """Returns the size of a state's last axis, or None. Slice, Split and Concat may change axes 0 and 1."""
    for _ in range(MOST_DEPTH):
        array = constant(value)
        declared = (value.shape or None) if array is None else array.shape
        known = declared[-1] if declared else None
        if array is not None or isinstance(known, int):
            return known if isinstance(known, int) else None
        node = value.producer()
        source = node.inputs[0] if node is not None and node.inputs else None
        if node is None or source is None or node.domain not in DOMAINS:
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
        value = source
    return None


def _computed(op: str, a: Linear | None, b: Linear | None, rounds: bool) -> Linear | None:
    """Returns a op b, or None if it is unknown. rounds: a quotient is rounded toward 0, as for integers."""
    if a is None or b is None:
        return None
    if any(abs(n) > LARGEST for v in (a, b) for n in (v.constant, *v.factors.values())):
        return None
    if op in ("Add", "Sub"):
        return a.plus(b, 1 if op == "Add" else -1)
    if op == "Mul":
        a, b = (b, a) if a.number is not None else (a, b)
        factor = b.number
        if factor is None:
            return None
        return Linear(a.constant * factor, {s: f * factor for s, f in a.factors.items() if factor})
    if a.number is None or not b.number or (a.number % b.number and not rounds):
        return None
    return Linear(int(a.number / b.number))


# --- slices and elements ------------------------------------------------------------------------------------


def bounds(
    node: Node, width: Width, counters: Mapping[int, Linear] | None = None
) -> tuple[int, Linear, Linear, int] | None:
    """Returns (axis, start, end, step) of a Slice along one axis, or None if any is unknown."""
    names = ("starts", "ends", "axes", "steps")
    given: list[Numbers | None]
    if len(node.inputs) > 1:
        inputs = (*node.inputs[1:], None, None)[:4]
        given = [numbers(v, width, counters) for v in inputs]
        left_out = [v is None for v in inputs]
    else:  # opset 9 and before
        of_node = [attribute(node, name) for name in names]
        given = [None if a is None else [Linear(int(i)) for i in a] for a in of_node]
        left_out = [a is None for a in of_node]
    defaults = (None, None, [Linear(0)], [Linear(1)])
    each = [d if out else a for a, out, d in zip(given, left_out, defaults, strict=True)]
    only = [a[0] if a is not None and len(a) == 1 else None for a in each]
    start, end, axis, step = only
    if start is None or end is None or axis is None or step is None:
        return None
    if axis.number is None or step.number is None:
        return None
    return axis.number, start, end, step.number


def in_single_steps(node: Node) -> bool:
    """Returns whether a SplitToSequence outputs single elements, without the split axis."""
    if node.op_type != "SplitToSequence":
        return False
    if len(node.inputs) < 2 or node.inputs[1] is None:
        return not attribute(node, "keepdims", 1)
    # The standard ignores keepdims if input 1 is given; torch and ONNX Runtime apply it.
    one = constant_input(node, 1)
    return one is not None and one.ndim == 0 and one.item() == 1 and not attribute(node, "keepdims", 1)


@dataclass(frozen=True)
class Element:
    """whole[index] along an axis: one step of a sequence. nodes: select it. index: None if unknown."""

    whole: Value
    axis: int
    index: Linear | None
    nodes: tuple[Node, ...]


def element(value: Value, width: Width, counters: Mapping[int, Linear] | None = None) -> Element | None:
    """Returns the Element of a value such as x[:, t], or None if it is no single element of a sequence."""
    node = inner = producer(outside_of_loops(value), "Gather", "SequenceAt", "Squeeze")
    if node is not None and node.op_type == "Squeeze":
        inner = producer(node.inputs[0], "Gather", "Slice", "Split")
    elif node is not None and node.op_type == "SequenceAt":
        inner = producer(node.inputs[0], "SplitToSequence")
    if node is None or inner is None or inner.inputs[0] is None:
        return None
    whole, axis, index, at = inner.inputs[0], attribute(inner, "axis", 0), None, None
    if inner.op_type == "Slice":
        found = bounds(inner, width, counters)
        if found is not None and found[3] == 1:
            axis, start, end = found[:3]
            last = start.number == -1 and (end.number or 0) > 2**30
            index = start if last or end.plus(start, -1).number == 1 else None
    elif inner.op_type == "Split":
        sizes = constant_input(inner, 1)
        parts = attribute(inner, "split") if sizes is None else sizes.reshape(-1).tolist()
        if parts is None and size(whole, axis, width).number == len(inner.outputs):
            parts = [1]
        if parts is not None and set(parts) == {1}:
            index = Linear(next(k for k, v in enumerate(inner.outputs) if v is node.inputs[0]))
    elif inner.op_type == "Gather" or in_single_steps(inner):
        at = (inner if inner.op_type == "Gather" else node).inputs[1]
        if node is not inner or (at is not None and not rank(at)):
            index = number(at, width, counters)
    of_loop = inner.op_type == "Gather" and node is inner and at is not None and rank(at) == 0
    if (index is None and not of_loop) or (node.op_type == "Squeeze" and moved_axes(node) != [axis]):
        return None
    axis = axis % (rank(whole) or 3)
    if index is not None and index.number is not None and index.number < 0:
        index = index.plus(size(whole, axis, width))
    return Element(whole, axis, index, (node,) if node is inner else (node, inner))


def widened(value: Value) -> tuple[Value, int | None]:
    """Removes widening casts and one Unsqueeze. Returns the value, and the axis of the Unsqueeze or None."""
    axis, value = None, outside_of_loops(value)
    while (node := producer(value, "Cast", "Unsqueeze")) is not None and node.inputs[0] is not None:
        if node.op_type == "Unsqueeze":
            axes = moved_axes(node)
            if axis is not None or axes is None or len(axes) != 1:
                break
            axis = axes[0] % 2
        elif attribute(node, "to", 0) not in WIDE:
            break
        value = outside_of_loops(node.inputs[0])
    return value, axis


def is_reversal(
    node: Node, axis: int, width: Width, steps: Linear | None = None, lengths: Value | None = None
) -> bool:
    """Returns whether a node reverses an axis of its input. steps, lengths: as for `reversed_of`."""
    data = node.inputs[0] if node.inputs else None
    if data is None or node.domain not in DOMAINS:
        return False
    length = size(data, axis, width)
    if node.op_type == "ReverseSequence":
        if attribute(node, "time_axis", 0) != axis or attribute(node, "batch_axis", 1) == axis:
            return False
        given_lengths = node.inputs[1]
        if lengths is not None:
            return given_lengths is not None and widened(given_lengths) == (lengths, None)
        array = constant(given_lengths)
        if array is not None:
            return length.number is not None and bool((array == length.number).all())
        expand = producer(given_lengths, "Expand")
        given = None if expand is None else number(expand.inputs[0], width)
        return given is not None and given in (length, steps)
    if node.op_type != "Slice" or lengths is not None:
        return False
    found = bounds(node, width)
    if found is None or found[0] % (rank(data) or 3) != axis or found[3] != -1:
        return False
    from_last = found[1] in (Linear(-1), length.plus(Linear(1), -1)) or (found[1].number or 0) > 2**30
    to_first = found[2].number is not None and (found[2].number < -(2**30))
    return from_last and (to_first or found[2].plus(length).number == -1)


def before_reversal(found: Element, width: Width, steps: Linear | None = None) -> Element:
    """Returns an element of a reversed sequence as an element of the original one. steps: the length."""
    node, index = found.whole.producer(), found.index
    if node is None or not is_reversal(node, found.axis, width) or node.inputs[0] is None:
        return found
    index = None if index is None or steps is None else steps.plus(Linear(1), -1).plus(index, -1)
    return Element(node.inputs[0], found.axis, index, (*found.nodes, node))
