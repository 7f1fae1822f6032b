"""Finds steps of a cell that a Python loop has written one after another, with a length that is baked in."""

from __future__ import annotations

from collections.abc import Sequence

from .constants import constant, is_zero
from .graph import DOMAINS, Node, Value, attribute, producer
from .matching import Step, match
from .operators import new_terms
from .part import restarts
from .recurrences import (
    Layer,
    Recurrence,
    if_used,
    linked,
    recurrence,
    same_constants,
    same_values,
    used,
    with_unused,
)
from .terms import Terms
from .values import constant_input, element, moved_axes, outside_of_loops, rank, size

Values = Sequence[Value]
AXES = {("x", 3, 0): "TBI", ("x", 3, 1): "BTI", ("x", 3, 2): "BIT", ("y", 3, 0): "TBH", ("y", 3, 1): "BTH",
        ("y", 3, 2): "BHT"}  # fmt: skip


def chains(groups: Sequence[Sequence[Step]], terms: Terms) -> list[list[Step]]:
    """Returns steps that follow each other with the same constants. groups: the alternatives of each step."""
    by_state: dict[int, list[Step]] = {}
    every = [step for group in groups for step in group]
    for step in every:
        if step.old:
            by_state.setdefault(id(step.old[0]), []).append(step)

    def following(step: Step) -> Step | None:
        found = [each for each in by_state.get(id(step.new[0]), ())
                 if same_values(each.old, step.new) and same_constants(step, each, terms)]  # fmt: skip
        return found[0] if len(found) == 1 else None

    result = [chain for chain in linked(every, following) if len(chain) > 1]
    inside = {id(step.new[0]) for chain in result for step in chain}
    # The first step before a single one may start at 0.
    result += [[step] for step in every if id(step.new[0]) not in inside and step.old]
    return [with_start(chain, terms) for chain in result]


def with_start(chain: list[Step], terms: Terms) -> list[Step]:
    """Returns the steps, and before them the step that computes the first old states from constants."""
    old = chain[0].old
    if old[0].producer() is None:
        return chain
    of_zero, of_constants = match(old[0], terms, zero=True), match(old[0], new_terms(states=True))
    for step in [*of_zero, *(s for s in of_constants if all(constant(v) is not None for v in s.old))]:
        if same_values(step.new, old) and same_constants(step, chain[0], terms):
            return [step, *chain]
    return chain


def unrolled(path: str, layers: Sequence[Layer], terms: Terms) -> Recurrence | str:
    """Returns the part of layers of steps, or why they are no part."""
    n = len(layers[0].steps)
    elements = [element(x, terms.width) for x in layers[0].x]
    first = elements[0]
    if first is None or any(e is None for e in elements):
        return "the inputs of the steps are no elements of one value"
    given = [e for e in elements if e is not None]
    if any(e.whole is not first.whole or e.axis != first.axis for e in given):
        return "the inputs of the steps are elements of different values"
    indices = [e.index.number for e in given]
    reverse = n > 1 and indices == list(range(n))[::-1]
    if not reverse and indices != list(range(n)):
        if n > 1 and indices == list(range(1, n + 1)):
            return (
                f"step 0 is not one of them: the exporter may have computed its product with a state of 0. "
                f"The first nodes are those of step 1, which reads element 1 of {first.whole.name!r}"
            )
        return f"the steps read elements {indices} of {first.whole.name!r}, in another order"
    length = size(first.whole, first.axis, terms.width).number
    if length is not None and length != n:
        return f"{n} steps read {first.whole.name!r}, which has {length}"
    axes = rank(first.whole) or 3
    top = layers[-1]
    inside = {id(node): node for layer in layers for step in layer.steps for node in step.nodes}
    joined = stacked(top.h, set(inside))
    y, flipped = None, False
    result_axes = {"x": AXES.get(("x", axes, first.axis), ""), "h": "BH"}
    if not result_axes["x"]:
        return f"{first.whole.name!r} has {axes} axes"
    if joined is not None:
        y, axis, backwards, of_joined = joined
        flipped = backwards != reverse
        inside |= {id(node): node for node in of_joined}
        result_axes["y"] = AXES["y", 3, axis]
    for layer in layers:
        for at, step in enumerate(layer.steps):
            if step.outside:
                return f"{step.outside[0]} reads a value inside of step {at}"
            for value in step.new:
                if at < n - 1 and used(value, inside):
                    return f"the state of step {at}, {value.name!r}, is read outside of the steps"
    nodes = with_unused(inside.values(), [node for e in given for node in e.nodes])
    kept = {id(node) for node in nodes}
    h = tuple(if_used(layer.new[0], kept) for layer in layers)
    c = tuple(if_used(v, kept) for layer in layers for v in layer.new[1:])
    if y is None and not any((*h, *c)):
        return "the file uses none of its outputs"
    baked = {"T": n}
    warnings = [f"a length of {n} steps is baked in: the file has the nodes of each step"]
    if (sequences := batch(layers[0].steps[0])) is not None:
        baked["B"] = sequences
        warnings.append(f"a batch of {sequences} sequences is baked in: the first states are constants")
    if not reverse and all(is_zero(v) for layer in layers for v in layer.steps[0].old):
        warnings.append(restarts(layers[0].steps[0].nodes[0]))
    return recurrence(
        path, f"{n} steps of {layers[0].weights.cell}", layers, nodes=nodes, reverse=reverse, x=first.whole,
        y=y, flipped=flipped, h=h, c=c, axes=result_axes, baked=baked, warnings=warnings,
    )  # fmt: skip


def batch(step: Step) -> int | None:
    """Returns the number of sequences if constants of a step that starts at 0 set it."""
    for node in step.nodes if not step.old else ():
        places = (
            (0, 1, 2) if node.op_type == "Gemm" else (0, 1) if node.op_type in ("Add", "Mul", "Sub") else (0,)
        )
        for at in places:
            array = None if node.op_type in ("Gemm", "MatMul") and at == 1 else constant_input(node, at)
            if array is not None and array.ndim == 2 and len(array) > 1:
                return len(array)
    return None


def stacked(values: Values, inside: set[int]) -> tuple[Value, int, bool, list[Node]] | None:
    """Returns the value that joins these values along a new axis, the axis, whether it joins them backwards,
    and the nodes that compute it."""
    for user in values[0].consumers():
        of_steps = id(user) in inside or user.domain not in DOMAINS
        for join in () if of_steps else (j for v in user.outputs[:1] for j in v.consumers()):
            ops, nodes, given = (user.op_type, join.op_type), [user], user.inputs
            if ops == ("Unsqueeze", "Concat"):
                every = [producer(v, "Unsqueeze") for v in join.inputs]
                axis = attribute(join, "axis", 0) % 3
                nodes = [n for n in every if n and [a % 3 for a in moved_axes(n) or ()] == [axis]]
                given = [n.inputs[0] for n in nodes] if len(nodes) == len(join.inputs) else []
            elif ops != ("SequenceConstruct", "ConcatFromSequence") or not attribute(join, "new_axis", 0):
                continue
            backwards = _order(given, values)
            if join.domain in DOMAINS and backwards is not None:
                return join.outputs[0], attribute(join, "axis", 0) % 3, backwards, [*nodes, join]
    return None


def _order(given: Sequence[Value | None], values: Values) -> bool | None:
    """Returns whether two lists of values are each other's reverse, False if they are equal, else None."""
    ids = [id(outside_of_loops(v)) for v in given if v is not None]
    wanted = [id(v) for v in values]
    return False if ids == wanted else True if ids == wanted[::-1] else None
