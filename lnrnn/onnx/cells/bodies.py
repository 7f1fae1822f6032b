"""The body of a Loop or Scan, for loops.py: its states, its elements of sequences, and its outputs."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir

from ..graph.constants import constant
from ..graph.counting import STEP, Element, Linear, Width, element, number, size
from ..graph.values import attribute, outside_of_loops, producer, rank
from .masks import all_true
from .recurrences import Nodes


class Unfit(Exception):
    """Raised for a Loop or Scan that no network replaces. The text says why."""


@dataclass(frozen=True)
class Carried:
    """A value that each step passes to the next: the body's input and output, before and after all steps."""

    inner: onnx_ir.Value
    outer: onnx_ir.Value
    before: onnx_ir.Value
    after: onnx_ir.Value


@dataclass(frozen=True)
class Joined:
    """A value of all steps: inner is that of one step. backwards: in the reverse order of the steps."""

    inner: onnx_ir.Value
    value: onnx_ir.Value
    axis: int
    backwards: bool
    nodes: Nodes = ()


@dataclass
class Body:
    """node: the Loop or Scan. carried: by the identity of `inner`.

    scanned: for the elements that a Scan reads, the sequence, its axis, and whether it is read backwards.
    """

    node: onnx_ir.Node
    graph: onnx_ir.Graph
    width: Width
    carried: dict[int, Carried] = field(default_factory=dict)
    scanned: dict[int, tuple[onnx_ir.Value, int, bool]] = field(default_factory=dict)
    joined: list[Joined] = field(default_factory=list)
    counters: dict[int, Linear] = field(default_factory=dict)

    def element(self, value: onnx_ir.Value) -> tuple[onnx_ir.Value, int, bool]:
        """Returns the sequence whose element in each step is this value, its axis, and whether the first step
        has its last element."""
        value = outside_of_loops(value)
        if id(value) in self.scanned:
            return self.scanned[id(value)]
        found = element(value, self.width, self.counters)
        if found is None:
            raise Unfit(f"{value.name!r} is no element of a sequence")
        if found.whole.graph is self.graph or self._is_inside(found.whole):
            raise Unfit(f"{found.whole.name!r}, whose elements the steps read, changes from step to step")
        return outside_of_loops(found.whole), found.axis, self._backwards(found)

    def _is_inside(self, value: onnx_ir.Value) -> bool:
        node = value.producer()
        return node is not None and node.graph is self.graph

    def _backwards(self, found: Element) -> bool:
        length = size(found.whole, found.axis, self.width)
        if found.index == Linear(0, {STEP: 1}):
            return False
        if found.index == length.plus(Linear(1), -1).plus(Linear(0, {STEP: 1}), -1):
            return True
        raise Unfit(f"the steps read elements of {found.whole.name!r} in another order")


def body_of(node: onnx_ir.Node, width: Width) -> Body:
    """Returns the body of a Loop or Scan. Raises Unfit."""
    graph = node.attributes["body"].as_graph()
    if len({id(v) for v in graph.outputs}) != len(graph.outputs):
        raise Unfit("its body has an output twice, for which ONNX Runtime 1.32 computes other numbers")
    if None in node.inputs[2 if node.op_type == "Loop" else 0 :]:
        raise Unfit("an input is left out")
    return _scan(node, graph, width) if node.op_type == "Scan" else _loop(node, graph, width)


def _scan(node: onnx_ir.Node, graph: onnx_ir.Graph, width: Width) -> Body:
    body, n = Body(node, graph, width), attribute(node, "num_scan_inputs", 0)
    states = len(graph.inputs) - n
    m = len(graph.outputs) - states
    same = len(node.inputs) == len(graph.inputs) and len(node.outputs) == len(graph.outputs)
    if not same or min(states, m, n) < 0:
        raise Unfit("it has another number of inputs or outputs than its body")
    lists = {name: attribute(node, f"scan_{name}", None) or [0] * (n if "input" in name else m)
             for name in ("input_axes", "input_directions", "output_axes", "output_directions")}  # fmt: skip
    if any(len(given) != (n if "input" in name else m) for name, given in lists.items()):
        raise Unfit("it has another number of axes or directions than of sequences")
    for k in range(states):
        before = node.inputs[k]
        assert before is not None
        body.carried[id(graph.inputs[k])] = Carried(
            graph.inputs[k], graph.outputs[k], before, node.outputs[k]
        )
    axes, back = lists["input_axes"], lists["input_directions"]
    for k in range(n):
        whole = node.inputs[states + k]
        assert whole is not None
        axis = axes[k] % (rank(whole) or 3)
        body.scanned[id(graph.inputs[states + k])] = (outside_of_loops(whole), axis, bool(back[k]))
    axes, back = lists["output_axes"], lists["output_directions"]
    for k in range(m):
        inner, value = graph.outputs[states + k], node.outputs[states + k]
        body.joined.append(Joined(inner, value, axes[k], bool(back[k])))
    return body


def _loop(node: onnx_ir.Node, graph: onnx_ir.Graph, width: Width) -> Body:
    body, states = Body(node, graph, width), len(node.inputs) - 2
    if len(graph.inputs) != states + 2 or len(node.outputs) != len(graph.outputs) - 1:
        raise Unfit("it has another number of inputs or outputs than its body")
    body.counters[id(graph.inputs[0])] = Linear(0, {STEP: 1})
    for k in range(states):
        before, inner = node.inputs[k + 2], graph.inputs[k + 2]
        assert before is not None
        carried = Carried(inner, graph.outputs[k + 1], before, node.outputs[k])
        body.carried[id(inner)] = carried
        start = number(before, width)
        if start is not None:
            step = number(carried.outer, width, {id(inner): Linear(0, {STEP: 1})})
            if step == Linear(1, {STEP: 1}):
                body.counters[id(inner)] = start.plus(Linear(0, {STEP: 1}))
    for k in range(states, len(node.outputs)):
        body.joined.append(Joined(graph.outputs[k + 1], node.outputs[k], 0, False))
    return body


def check_steps(body: Body, whole: onnx_ir.Value, axis: int) -> int | None:
    """Raises Unfit unless a Loop has as many steps as a sequence. Returns the number if the file sets it."""
    if body.node.op_type == "Scan":
        return None
    length = size(whole, axis, body.width)
    most, condition = body.node.inputs[:2]
    steps = None if most is None else number(most, body.width)
    if most is not None and steps is None:
        raise Unfit(f"its number of steps, {most.name!r}, is not the length of {whole.name!r}")
    unlimited = steps is None or (steps.number is not None and steps.number >= 2**31 - 1)
    if not _always(body, condition):
        _check_condition(body, length)
        if not unlimited and steps != length:
            raise Unfit("it has a limit on the number of steps")
        return length.number
    if unlimited:
        raise Unfit("it has no end")
    if steps == length:
        return length.number
    if steps is not None and steps.number is not None and length.number is None:
        return steps.number
    raise Unfit(f"its number of steps is not the length of {whole.name!r}")


def _always(body: Body, condition: onnx_ir.Value | None) -> bool:
    """Returns whether the condition of a Loop is true in all steps."""
    if condition is not None and not all_true(condition):
        return False
    after = outside_of_loops(body.graph.outputs[0])
    return after is body.graph.inputs[1] or all_true(after)


def _check_condition(body: Body, length: Linear) -> None:
    """Raises Unfit unless the Loop goes on while the number of the next step is less than the length."""
    before, after = body.node.inputs[1], body.graph.outputs[0]
    for value, step in ((before, Linear(0)), (after, Linear(1, {STEP: 1}))):
        if value is before and (value is None or all_true(value)):
            continue
        assert value is not None
        less = producer(outside_of_loops(value), "Less", "Greater")
        pair = [] if less is None else [number(v, body.width, body.counters) for v in less.inputs]
        if less is not None and less.op_type == "Greater":
            pair.reverse()
        if pair != [step, length]:
            raise Unfit(f"its condition {value.name!r} is another than the end of the sequence")


def insertion(carried: Carried) -> tuple[onnx_ir.Value, bool] | None:
    """Returns the value that each step inserts into a sequence, and whether it does so at the front."""
    node = producer(outside_of_loops(carried.outer), "SequenceInsert")
    if node is None or node.inputs[0] is not carried.inner or node.inputs[1] is None:
        return None
    if producer(outside_of_loops(carried.before), "SequenceEmpty") is None:
        return None
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return node.inputs[1], False
    at = constant(outside_of_loops(node.inputs[2]))
    return (node.inputs[1], True) if at is not None and at.item() == 0 else None
