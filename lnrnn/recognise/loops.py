"""Converts a Loop or Scan to a Recurrence if its body is one step of a cell, or of stacked cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .graph import attribute, constant, dependents, is_zero, outside_of_loops, producer, rank
from .interface import DOMAINS, Graph, Node, Value, named
from .masks import Choice, all_true, choice, in_order_of_x, lengths_at, lengths_of, reversed_of
from .matching import Step, nodes_between
from .part import KEEPS, READS_INSIDE, REPEATS, restarts
from .recurrences import ORDERS, Layer, Nodes, Recurrence, if_used, linked, recurrence, used, with_unused
from .sizes import STEP, Element, Linear, Width, element, number, size
from .terms import Terms


@dataclass(frozen=True)
class CarriedStep:
    """A cell step in a loop's body, and the loop-carried states that it updates.

    choice: the mask that keeps finished sequences' states unchanged, as a Choice, or None.
    """

    step: Step
    states: tuple[Carried, ...]
    choice: Choice | None


@dataclass
class Sequences:
    """The sequences x, y and mask of a Loop or Scan, with their axes and order.

    backwards: whether the first step reads the last element of x. lengths: replaces a mask, or None.
    y_axes: axes of y, such as "TBH". flipped: whether y's steps are in the reverse order of x's. before,
    after: nodes outside of the loop that the converted part also replaces.
    """

    x: Value
    axis: int
    backwards: bool
    mask: Value | None
    lengths: Value | None
    y: Value | None
    y_axes: str
    flipped: bool
    after: list[Node]
    before: list[Node]

    def turn(self, width: Width) -> None:
        """If nodes around the loop reverse x, mask and y, absorbs these nodes and reads x backwards."""
        lengths = self.lengths
        x = reversed_of(self.x, self.axis, width, None, lengths)
        if x is None or self.backwards or self.flipped:
            return
        steps = size(self.x, self.axis, width)
        mask = None if self.mask is None else reversed_of(self.mask, 0, width, steps)
        if self.mask is not None and mask is None:
            return
        if self.y is not None:
            y = in_order_of_x(self.y, self.y_axes, width, steps, lengths)
            if y is None:
                return
            self.y, self.y_axes = y[:2]
            self.after += y[2]
        self.x, self.backwards = x[0], True
        self.before.append(x[1])
        if mask is not None:
            self.mask = mask[0]
            self.before.append(mask[1])


def whole_loop(node: Node, groups: Sequence[Sequence[Step]], terms: Terms) -> Recurrence:
    """Returns the Recurrence of a Loop or Scan. Raises Unfit unless its body is steps of stacked cells.

    groups: the alternative matches of each cell step in the body.
    """
    body = body_of(node, terms.width)
    found = _in_order([_carried_step(group, body) for group in groups])
    for each in found:
        if each.step.outside:
            raise Unfit(f"{each.step.outside[0]} {READS_INSIDE}")
    whole, axis, backwards = body.element(found[0].step.x)
    before_loop: Nodes = ()
    if (product := found[0].step.sequence) is not None:
        before_loop, whole = nodes_between([whole], [product]) or (), product
    baked = check_steps(body, whole, axis)
    masked = found[0].choice
    if any(each.choice is not masked and not (masked and masked.has_mask_of(each.choice)) for each in found):
        raise Unfit("one mask must keep all its states past the end of a sequence, got different masks")
    mask, steps = None, size(whole, axis, terms.width)
    lengths = None if masked is None else body.lengths(masked, steps, backwards)
    if masked is not None and lengths is None:
        mask, of_mask, same = body.element(masked.mask)
        column = rank(mask) == 3 and size(mask, 2, terms.width).number == 1
        if not (rank(mask) in (None, 2) if masked.has_row else column):
            raise Unfit(f"the mask {mask.name!r} must have the shape (T, B) or (T, B, 1), got {mask.shape}")
        lengths = lengths_of(mask, of_mask) if masked.has_row else None
        if same != backwards or (of_mask != 0 and lengths is None):
            raise Unfit(f"the mask {mask.name!r} must be read in the same order of steps as {whole.name!r}")
    y, warnings = _outputs(body, found)
    if y is not None and y.axis not in (0, 1):
        raise Unfit(f"{y.value.name!r} must have the steps along axis 0 or 1, got axis {y.axis}")
    sequences = Sequences(
        whole, axis, backwards, mask if lengths is None else None, lengths, None if y is None else y.value,
        "" if y is None else ORDERS[y.axis].format("H"), y is not None and y.backwards != backwards,
        [node, *(() if y is None else y.nodes)], [*before_loop],
    )  # fmt: skip
    if KEEPS not in warnings or lengths is None:
        sequences.turn(terms.width)
    states = [[if_used(carried.after) for carried in each.states] for each in found]
    before = [[carried.before for carried in each.states] for each in found]
    for value in (v for each in before for v in each):
        if rank(value) not in (None, 2):
            raise Unfit(f"the initial state {value.name!r} must have 2 axes, got {rank(value)}")
    if y is None and not any(v for each in states for v in each):
        raise Unfit("the file uses no output of it")
    if baked is not None:
        warnings.append(f"a length of {baked} steps is baked in: the {node.op_type} has this number of steps")
    if not sequences.backwards and all(is_zero(v) for each in before for v in each):
        warnings.append(restarts(node))
    layers = [Layer((each.step,), each.step.weights()) for each in found]
    return recurrence(
        node, f"{node.op_type} of {found[0].step.pattern.cell}", layers, sequences.backwards,
        h0=tuple(v[0] for v in before), c0=tuple(v for each in before for v in each[1:]),
        h=tuple(v[0] for v in states), c=tuple(v for each in states for v in each[1:]),
        baked={} if baked is None else {"T": baked}, warnings=warnings, **_values(sequences),
    )  # fmt: skip


def _values(sequences: Sequences) -> dict[str, Any]:
    """Returns the arguments of GraphPart that describe x, y, lengths, masks and nodes."""
    mask, lengths = sequences.mask, sequences.lengths
    lengths = lengths_of(mask) if lengths is None and mask is not None else lengths
    axes = {"x": _axes(sequences.x, sequences.axis), "h": "BH"}
    if sequences.y is not None:
        axes["y"] = sequences.y_axes
    if mask is not None and lengths is None:
        axes["mask"] = "TBI"[: rank(mask) or 2]
    return {
        "x": sequences.x, "y": sequences.y, "flipped": sequences.flipped, "lengths": lengths,
        "mask": mask if lengths is None else None, "axes": axes,
        "nodes": with_unused(sequences.after, sequences.before),
    }  # fmt: skip


def _axes(value: Value, axis: int) -> str:
    if (rank(value) or 3) != 3:
        raise Unfit(f"{value.name!r} must have 3 axes, got {rank(value)}")
    return ORDERS[axis].format("I")


def _carried_step(group: Sequence[Step], body: Body) -> CarriedStep:
    """Chooses the alternative whose new states the loop carries to the next step. Else raises Unfit."""
    for step in group:
        carried = [body.carried.get(id(v)) for v in step.old]
        if not carried or None in carried:
            continue
        states = tuple(c for c in carried if c is not None)
        direct = all(outside_of_loops(c.outer) is v for c, v in zip(states, step.new, strict=True))
        if direct:
            return CarriedStep(step, states, None)
        choices = [choice(c.outer) for c in states]
        if all(
            found is not None and found.new is v and found.old is c.inner and found.has_mask_of(choices[0])
            for found, v, c in zip(choices, step.new, states, strict=True)
        ):
            return CarriedStep(step, states, choices[0])
    step = group[0]
    after = {id(c.outer) for v in step.old if (c := body.carried.get(id(v))) is not None}
    users = (user for v in step.new for user in v.consumers() if user not in step.nodes)
    changes = [f", but node {named(user)} changes them" for user in users if dependents(user.outputs) & after]
    text = f"the states of its {step.pattern.cell} step must be carried to the next step"
    raise Unfit(text + "".join(changes[:1]))


def _in_order(found: list[CarriedStep]) -> list[CarriedStep]:
    """Sorts the cell steps of a body as layers: each reads the h of the step before it in the list."""
    chains = linked(found, lambda each: next((other for other in found if _is_h(other.step.x, each)), None))
    if len(chains) != 1 or len(chains[0]) != len(found):
        raise Unfit(f"its {len(found)} cells must be stacked layers: each must read the h of the one below")
    return chains[0]


def _is_h(x: Value, of: CarriedStep) -> bool:
    return outside_of_loops(x) is of.step.new[0]


def _outputs(body: Body, found: Sequence[CarriedStep]) -> tuple[Joined | None, list[str]]:
    """Returns (y or None, warnings). Raises Unfit if the body has other outputs that the file uses."""
    mask = found[0].choice
    states = {id(c.inner) for each in found for c in each.states}
    held = found[-1].states[0].inner
    h, warnings = found[-1].step.new[0], list[str]()
    joined = [j for j in body.joined if used(j.value)]
    memory: set[int] = set()  # ids of states in which Keras' loops repeat the last output
    for carried in body.carried.values():
        if id(carried.inner) in states or id(carried.inner) in body.counters:
            continue
        if outside_of_loops(carried.outer) is outside_of_loops(carried.inner):
            if used(carried.after):
                raise Unfit(f"no network returns {carried.after.name!r}, which no step changes")
            continue
        if outside_of_loops(carried.inner) is not carried.inner:
            continue
        inserted = insertion(carried)
        if inserted is not None:
            joined += _concatenated(carried.after, *inserted)
        elif not used(carried.after) and _is_output(carried.outer, h, mask, carried.inner, held):
            memory.add(id(carried.inner))
        else:
            raise Unfit(f"it carries {carried.inner.name!r} from step to step, a state of no known cell")
    counted = [c for c in body.carried.values() if id(c.inner) in body.counters and used(c.after)]
    if counted:
        name = counted[0].after.name
        raise Unfit(f"the file uses its number of steps, {name!r}, which networks do not return")
    if len(joined) > 1:
        raise Unfit(f"it must have at most one output with a value for each step, got {len(joined)}")
    for each in joined:
        kind = _is_output(each.inner, h, mask, None, held, memory)
        if not kind:
            node = outside_of_loops(each.inner).producer()
            source = f", got the output of node {named(node)}" if node else ""
            raise Unfit(f"its output {each.value.name!r} must be the hidden state h of each step{source}")
        warnings += {"repeats": [REPEATS], "keeps": [KEEPS]}.get(kind, [])
    return (joined[0] if joined else None), warnings


def _is_output(
    value: Value, h: Value, mask: Choice | None, old: Value | None, held: Value,
    memory: set[int] | frozenset[int] = frozenset(),
) -> str:  # fmt: skip
    """Compares an output with h. Returns "h" if it is h in all steps. For masked steps, returns "0" for
    zeros, "repeats" for its last value, and "keeps" for the state `held`. Otherwise returns ""."""
    value = outside_of_loops(value)
    if value is h:
        return "h" if mask is None else ""
    found = choice(value)
    if found is None or found.new is not h or not found.has_mask_of(mask):
        return ""
    if is_zero(outside_of_loops(found.old)):
        return "0"
    if found.old is held:
        return "keeps"
    return "repeats" if found.old is old or id(found.old) in memory else ""


def _concatenated(sequence: Value, inner: Value, front: bool) -> list[Joined]:
    """Returns the outputs of the ConcatFromSequence nodes that join a Loop's sequence."""
    users = list(sequence.consumers())
    if sequence.is_graph_output() or any(
        user.op_type != "ConcatFromSequence"
        or user.domain not in DOMAINS
        or not attribute(user, "new_axis", 0)
        for user in users
    ):
        reader = "ConcatFromSequence with new_axis=1"
        raise Unfit(f"its sequence {sequence.name!r} must be read by {reader} alone")
    nodes: Nodes = users
    axes = {attribute(user, "axis", 0) % 3 for user in users}
    if len(users) > 1 or axes - {0, 1}:
        wanted = "one array with the steps along axis 0 or 1"
        got = f"{len(users)} arrays, along the axes {sorted(axes)}"
        raise Unfit(f"its sequence {sequence.name!r} must become {wanted}, got {got}")
    return [Joined(inner, user.outputs[0], attribute(user, "axis", 0), front, nodes) for user in users]


# --- bodies -------------------------------------------------------------------------------------------------


class Unfit(Exception):
    """Raised for a Loop or Scan that no network can replace. The text says why."""


@dataclass(frozen=True)
class Carried:
    """A loop-carried value: input and output of the body, and input and output of the Loop or Scan node."""

    inner: Value
    outer: Value
    before: Value
    after: Value


@dataclass(frozen=True)
class Joined:
    """An output `value` of a loop that stacks `inner` of all steps. backwards: the last step comes first."""

    inner: Value
    value: Value
    axis: int
    backwards: bool
    nodes: Nodes = ()


@dataclass
class Body:
    """The body of a Loop or Scan `node`: the values that it carries, reads and stacks, by id.

    scanned: (sequence, axis, backwards) of each element that a Scan reads. counters: values that count steps.
    """

    node: Node
    graph: Graph
    width: Width
    carried: dict[int, Carried] = field(default_factory=dict)
    scanned: dict[int, tuple[Value, int, bool]] = field(default_factory=dict)
    joined: list[Joined] = field(default_factory=list)
    counters: dict[int, Linear] = field(default_factory=dict)

    def element(self, value: Value) -> tuple[Value, int, bool]:
        """Returns (sequence, axis, backwards) if `value` is one element of a sequence in each step. It reads
        backwards if the first step has the last element. Raises Unfit otherwise."""
        value = outside_of_loops(value)
        if id(value) in self.scanned:
            return self.scanned[id(value)]
        found = element(value, self.width, self.counters)
        if found is None or found.index is None:
            raise Unfit(f"{value.name!r}, which a step reads, must be an element of a sequence")
        whole = outside_of_loops(found.whole)
        if whole.graph is self.graph:
            raise Unfit(f"{whole.name!r}, whose elements the steps read, changes from step to step")
        return whole, found.axis, self._backwards(replace(found, whole=whole))

    def lengths(self, masked: Choice, steps: Linear, backwards: bool) -> Value | None:
        """Returns the lengths (B,) if the mask is "index in x of this step < lengths", else None."""
        found = lengths_at(masked, self.width, self.counters)
        fits = found is not None and found[1] == _place(steps, backwards)
        return found[0] if found is not None and fits and found[0].graph is not self.graph else None

    def _backwards(self, found: Element) -> bool:
        length = size(found.whole, found.axis, self.width)
        for backwards in (False, True):
            if found.index == _place(length, backwards):
                return backwards
        order = "one after another, from the first or from the last"
        raise Unfit(f"the steps must read the elements of {found.whole.name!r} {order}")


def _place(length: Linear, backwards: bool) -> Linear:
    """Returns the index of the element that step number STEP reads. backwards: step 0 reads the last one."""
    step = Linear(0, {STEP: 1})
    return length.plus(Linear(1), -1).plus(step, -1) if backwards else step


def body_of(node: Node, width: Width) -> Body:
    """Returns the body of a Loop or Scan. Raises Unfit if its signature is invalid."""
    graph = attribute(node, "body")
    if len({id(v) for v in graph.outputs}) != len(graph.outputs):
        raise Unfit("its body has an output twice, for which ONNX Runtime 1.32 computes other numbers")
    if None in node.inputs[2 if node.op_type == "Loop" else 0 :]:
        raise Unfit("all its inputs must be given, got one left out")
    return _scan(node, graph, width) if node.op_type == "Scan" else _loop(node, graph, width)


def _scan(node: Node, graph: Graph, width: Width) -> Body:
    body, n = Body(node, graph, width), attribute(node, "num_scan_inputs", 0)
    states = len(graph.inputs) - n
    m = len(graph.outputs) - states
    same = len(node.inputs) == len(graph.inputs) and len(node.outputs) == len(graph.outputs)
    if not same or min(states, m, n) < 0:
        raise Unfit(
            f"it must have the inputs and outputs of its body, {len(graph.inputs)} and {len(graph.outputs)}, "
            f"with num_scan_inputs among them, got {len(node.inputs)} and {len(node.outputs)}, and {n}"
        )
    lists = {name: attribute(node, f"scan_{name}", None) or [0] * (n if "input" in name else m)
             for name in ("input_axes", "input_directions", "output_axes", "output_directions")}  # fmt: skip
    for name, given in lists.items():
        if len(given) != (most := n if "input" in name else m):
            text = f"attribute scan_{name} must have a number for each of {most} sequences"
            raise Unfit(f"{text}, got {len(given)}")
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


def _loop(node: Node, graph: Graph, width: Width) -> Body:
    body, states = Body(node, graph, width), len(node.inputs) - 2
    if len(graph.inputs) != states + 2 or len(node.outputs) != len(graph.outputs) - 1:
        raise Unfit(
            f"it must have {len(graph.inputs)} inputs and {len(graph.outputs) - 1} outputs for its body, got "
            f"{len(node.inputs)} and {len(node.outputs)}"
        )
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


def check_steps(body: Body, whole: Value, axis: int) -> int | None:
    """Checks that a Loop has as many steps as a sequence. Returns their number if the file fixes it."""
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
            assert most is not None
            raise Unfit(f"its largest number of steps, {most.name!r}, is not the length of {whole.name!r}")
        return length.number
    if unlimited:
        raise Unfit("its condition is always true, and it has no number of steps")
    if steps == length:
        return length.number
    if steps is not None and steps.number is not None and length.number is None:
        return steps.number
    raise Unfit(f"its number of steps is not the length of {whole.name!r}")


def _always(body: Body, condition: Value | None) -> bool:
    """Returns whether a Loop's condition is constantly true, so that only its number of steps ends it."""
    if condition is not None and not all_true(condition):
        return False
    after = outside_of_loops(body.graph.outputs[0])
    return after is body.graph.inputs[1] or all_true(after)


def _check_condition(body: Body, length: Linear) -> None:
    """Raises Unfit unless the condition is "index of the next step < length"."""
    before, after = body.node.inputs[1], body.graph.outputs[0]
    for value, step in ((before, Linear(0)), (after, Linear(1, {STEP: 1}))):
        if value is before and (value is None or all_true(value)):
            continue
        assert value is not None
        both = producer(outside_of_loops(value), "And")  # tf2onnx may compare two counters
        for each in (value,) if both is None else both.inputs:
            less = producer(None if each is None else outside_of_loops(each), "Less", "Greater")
            pair = [] if less is None else [number(v, body.width, body.counters) for v in less.inputs]
            if less is not None and less.op_type == "Greater":
                pair.reverse()
            if pair != [step, length]:
                raise Unfit(f"its condition {value.name!r} must be that the next step is before the end of x")


def insertion(carried: Carried) -> tuple[Value, bool] | None:
    """Returns (value, at_front) of a SequenceInsert that adds one element in each step, else None."""
    node = producer(outside_of_loops(carried.outer), "SequenceInsert")
    if node is None or node.inputs[0] is not carried.inner or node.inputs[1] is None:
        return None
    if producer(outside_of_loops(carried.before), "SequenceEmpty") is None:
        return None
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return node.inputs[1], False
    at = constant(outside_of_loops(node.inputs[2]))
    return (node.inputs[1], True) if at is not None and at.item() == 0 else None
