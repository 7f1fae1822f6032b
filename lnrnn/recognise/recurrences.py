"""Joins cell steps into layers, and layers and directions into a Recurrence: a part with its weights.

`chains` finds unrolled steps, whose number is baked into the file. `unrolled` makes a Recurrence of them.
`joined` joins two Recurrences: the two directions of a layer, or two successive layers of the same
network.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from ..importers.weights import Converted, Weights, network
from .graph import (
    attribute,
    constant,
    constant_input,
    in_order,
    is_zero,
    moved_axes,
    outside,
    outside_of_loops,
    producer,
    rank,
)
from .interface import DOMAINS, PATH, Array, Node, Value
from .masks import choice, lengths_at
from .matching import Step, match, nodes_between
from .operators import new_terms
from .part import KEEPS, READS_INSIDE, GraphPart, is_batch_first, restarts
from .sizes import Width, before_reversal, element, size
from .terms import Terms

Nodes = Sequence[Node]
Item = TypeVar("Item")
ORDERS = ("TB{}", "BT{}", "B{}T")  # of axes; T is the axis of steps


@dataclass(frozen=True)
class Layer:
    """The steps of one layer in the order of computation. All have the same weights."""

    steps: tuple[Step, ...]
    weights: Weights

    @property
    def old(self) -> tuple[Value | None, ...]:
        """Returns the initial states; None stands for zeros."""
        return self.steps[0].old or (None,) * len(self.new)

    @property
    def new(self) -> tuple[Value, ...]:
        return self.steps[-1].new

    @property
    def x(self) -> tuple[Value, ...]:
        return tuple(step.x for step in self.steps)

    @property
    def h(self) -> tuple[Value, ...]:
        return tuple(step.new[0] for step in self.steps)


def same_constants(a: Step, b: Step) -> bool:
    """Returns whether two steps have the same equations and the same constants.

    A first step whose states are 0 may lack weights, and its bias_ih may include bias_hh.
    """
    if a.pattern is not b.pattern or a.functions != b.functions or a.units != b.units:
        return False
    whole = bool(a.old and b.old)
    if whole and ((a.eps, a.centred) != (b.eps, b.centred) or set(a.constants) != set(b.constants)):
        return False
    for name, gate in a.constants:
        if (name, gate) not in b.constants:
            continue
        if not whole and "bias" in name:
            mine, theirs = (_all_biases(step, name, gate) for step in (a, b))
        elif "bias" in name:
            mine, theirs = (sum(v for _, v in step.constants[name, gate]) for step in (a, b))
        elif name.startswith("weight"):
            (first, mine), (second, theirs) = a.constants[name, gate], b.constants[name, gate]
            if first.key != second.key:
                return False
        else:
            mine, theirs = a.constants[name, gate], b.constants[name, gate]
        if not (np.asarray(mine) == theirs).all():
            return False
    return True


def _all_biases(step: Step, name: str, gate: str) -> Array:
    """Returns the bias `name` of a gate. If the equation just adds bias_ih and bias_hh, returns their sum."""
    names = {name}
    if name in ("bias_ih", "bias_hh") and not step.pattern.has("bias_hh", gate):
        names = {"bias_ih", step.pattern.bias_of_h}
    parts = [v for each in names for _, v in step.constants.get((each, gate), ())]
    total: Array = np.zeros(step.units) + sum(parts)
    return total


def same_values(a: Sequence[Value], b: Sequence[Value]) -> bool:
    return len(a) == len(b) and all(outside_of_loops(v) is w for v, w in zip(a, b, strict=True))


def linked(items: Sequence[Item], following: Callable[[Item], Item | None]) -> list[list[Item]]:
    """Splits items into chains: in each list, item a is followed by `following(a)`."""
    after = {id(item): following(item) for item in items}
    later = {id(item) for item in after.values()}
    result = [[item] for item in items if id(item) not in later]
    for chain in result:
        while (item := after[id(chain[-1])]) is not None and len(chain) <= len(items):
            chain.append(item)
    return result


# --- parts --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recurrence:
    """A GraphPart and its weights by layer and direction. reverse: one direction reads from the last step."""

    part: GraphPart
    weights: list[list[Weights]]
    reverse: bool = False

    def converted(self, batch_first: bool = False) -> Converted:
        """Returns the converted network. Raises ValueError if the layers do not form one network."""
        return network(self.weights, batch_first, "ONNX", self.reverse)

    def finished(self) -> GraphPart:
        """Sets the part's network, or the reason for which there is no network. Returns the part."""
        try:
            self.part.converted = self.converted(is_batch_first(self.part))
        except ValueError as error:
            self.part.reason = str(error)
        return self.part


def recurrence(
    first: Node, kind: str, layers: Sequence[Layer], reverse: bool = False, **values: Any
) -> Recurrence:
    """Returns a Recurrence of stacked layers.

    first: the node whose path names the part. values: fields of GraphPart; states default to the layers'.
    """
    for name, states in (("0", [layer.old for layer in layers]), ("", [layer.new for layer in layers])):
        values.setdefault(f"h{name}", tuple(each[0] for each in states))
        values.setdefault(f"c{name}", tuple(v for each in states for v in each[1:]))
    part = GraphPart(first.meta[PATH], kind, **values)
    return Recurrence(part, [[layer.weights] for layer in layers], reverse)


def used(value: Value, inside: Collection[int] = ()) -> bool:
    """Returns whether a value is an output of its graph, or a node outside of `inside` reads it."""
    return value.is_graph_output() or any(id(user) not in inside for user in value.consumers())


def if_used(value: Value, inside: Collection[int] = ()) -> Value | None:
    return value if used(value, inside) else None


def with_unused(nodes: Iterable[Node], more: Iterable[Node]) -> tuple[Node, ...]:
    """Returns `nodes` in the graph's order, with the nodes of `more` whose outputs no other node reads."""
    kept = {id(node): node for node in nodes}
    left = list({id(node): node for node in more}.values())
    changed = True
    while changed:
        changed = False
        for node in left[:]:
            if not any(used(v, kept) for v in node.outputs):
                kept[id(node)] = node
                left.remove(node)
                changed = True
    return in_order(kept.values())


# --- joining ------------------------------------------------------------------------------------------------


Join = Callable[[Recurrence, Recurrence], Recurrence | None]
Values = Callable[[GraphPart], Sequence[Value | None]]


def joined(found: Sequence[Recurrence]) -> list[Recurrence]:
    """Joins recurrences of one graph: first pairs of directions to layers, then layers to networks."""
    both = _pairwise(found, both_directions, lambda part: (part.x,))
    return _pairwise(both, one_above, lambda part: (part.y, *part.h[-1:]))


def _pairwise(found: Sequence[Recurrence], join: Join, values: Values) -> list[Recurrence]:
    """Merges pairs until no pair fits. values(part): the values that the second of a pair may have as x."""
    left: list[Recurrence | None] = list(found)
    by_x: dict[int, list[int]] = {}
    for k, each in enumerate(found):
        by_x.setdefault(id(each.part.x), []).append(k)
    for i in range(len(left)):
        while (a := left[i]) is not None:
            places = [k for v in values(a.part) if v is not None for k in by_x.get(id(v), ())]
            pairs = ((k, join(a, b)) for k in places if k != i and (b := left[k]) is not None)
            k, result = next(((k, r) for k, r in pairs if r is not None), (i, None))
            if result is None:
                break
            left[i], left[k] = result, None
    return [each for each in left if each is not None]


def both_directions(a: Recurrence, b: Recurrence) -> Recurrence | None:
    """Returns a bidirectional layer if both read the same x and a Concat joins their y, else None."""
    p, q = a.part, b.part
    if a.reverse or not b.reverse or p.x is not q.x or p.y is None or q.y is None or p.flipped or q.flipped:
        return None
    if len(a.weights) > 1 or len(a.weights[0]) > 1 or not _same(a, b) or p.axes.get("y") != q.axes.get("y"):
        return None
    users = {id(user): user for v in (p.y, q.y) for user in v.consumers() if user.op_type != "Shape"}
    if len(users) != 1 or p.y.is_graph_output() or q.y.is_graph_output():
        return None
    (concat,) = users.values()
    if concat.op_type != "Concat" or concat.domain not in DOMAINS:
        return None
    if attribute(concat, "axis", 0) not in (-1, 2):
        return None
    if len(concat.inputs) != 2 or concat.inputs[0] is not p.y or concat.inputs[1] is not q.y:
        return None
    return _join(a, b, [[a.weights[0][0], b.weights[0][0]]], concat.outputs[0], (concat,))


def one_above(a: Recurrence, b: Recurrence) -> Recurrence | None:
    """Returns a stack of layers, a below b, if only b reads the y of a, else None."""
    p, q = a.part, b.part
    if a.reverse != b.reverse or p.flipped or not _same(a, b) or q.x is None:
        return None
    if len(a.weights[0]) != len(b.weights[0]):
        return None
    if p.axes["x"] == "BI":
        fits = q.axes["x"] == "BI" and q.x is p.h[-1]
    else:
        inside = {id(node) for node in q.nodes}
        y = p.y
        fits = y is not None and y is q.x and p.axes["y"].replace("H", "I") == q.axes["x"]
        fits = fits and y is not None and not y.is_graph_output() and all(
            id(user) in inside or user.op_type == "Shape" for user in y.consumers()
        )  # fmt: skip
    nodes = {id(node) for node in p.nodes}
    if any(v is not None and id(v.producer()) in nodes for v in (*q.h0, *q.c0)):
        return None  # the states of b are values of a
    return _join(a, b, a.weights + b.weights, q.y, ()) if fits else None


def _same(a: Recurrence, b: Recurrence) -> bool:
    p, q = a.part, b.part
    return (
        p.lengths is q.lengths and p.mask is q.mask and p.baked == q.baked
        and len(p.c0) * len(q.h0) == len(q.c0) * len(p.h0) and p.nodes[0].graph is q.nodes[0].graph
    )  # fmt: skip


def _join(
    a: Recurrence, b: Recurrence, weights: list[list[Weights]], y: Value | None, more: tuple[Node, ...]
) -> Recurrence | None:
    p, q = a.part, b.part
    part = replace(
        p, nodes=in_order({id(n): n for n in (*p.nodes, *q.nodes, *more)}.values()), y=y, flipped=q.flipped,
        h0=p.h0 + q.h0, c0=p.c0 + q.c0, h=p.h + q.h, c=p.c + q.c, axes=p.axes | q.axes | {"x": p.axes["x"]},
        warnings=list(dict.fromkeys(p.warnings + q.warnings)),
    )  # fmt: skip
    result = Recurrence(part, weights, a.reverse)
    try:
        result.converted()
    except ValueError:
        return None
    return result


# --- unrolled steps -----------------------------------------------------------------------------------------


def chains(groups: Sequence[Sequence[Step]], terms: Terms) -> list[list[Step]]:
    """Returns chains of steps with the same weights: each step reads the states of the step before."""
    by_state: dict[int, list[Step]] = {}
    every = [_masked(step, terms.width) for group in groups for step in group]
    for step in every:
        if step.old:
            by_state.setdefault(id(step.old[0]), []).append(step)

    def following(step: Step) -> Step | None:
        found = [each for each in by_state.get(id(step.new[0]), ())
                 if same_values(each.old, step.new) and same_constants(step, each)]  # fmt: skip
        return found[0] if len(found) == 1 else None

    result = [chain for chain in linked(every, following) if len(chain) > 1]
    inside = {id(step.new[0]) for chain in result for step in chain}
    # A state may start at 0: then the first step lacks operators, but the second step is complete.
    result += [[step] for step in every if id(step.new[0]) not in inside and step.old]
    return [with_start(chain, terms) for chain in result]


def _masked(step: Step, width: Width) -> Step:
    """Returns the step extended by masks that keep finished sequences' states; unchanged without masks."""
    states = [
        [v for user in new.consumers() for v in user.outputs[:1]
         if (c := choice(v)) is not None and c.new is new and c.old is outside_of_loops(old)]
        for new, old in zip(step.new, step.old, strict=False)
    ]  # fmt: skip
    if not states or any(len(found) != 1 for found in states):
        return step
    new = tuple(found[0] for found in states)
    masks = [choice(v) for v in new]
    within = lengths_at(masks[0], width) if masks[0] is not None else None
    if within is None or any(each is None or not each.has_mask_of(masks[0]) for each in masks):
        return step
    nodes = in_order({*step.nodes, *(node for v in new if (node := v.producer()) is not None)})
    return replace(step, new=new, nodes=nodes, outside=outside(nodes, new), within=within)


def with_start(chain: list[Step], terms: Terms) -> list[Step]:
    """Returns the chain, with a first step in front if its initial states are constants."""
    old = chain[0].old
    if old[0].producer() is None:
        return chain
    of_zero, of_constants = match(old[0], terms, zero=True), match(old[0], new_terms(states=True))
    for step in [*of_zero, *(s for s in of_constants if all(constant(v) is not None for v in s.old))]:
        if same_values(step.new, old) and same_constants(step, chain[0]):
            return [step, *chain]
    return chain


def unrolled(layers: Sequence[Layer], terms: Terms) -> Recurrence | str:
    """Returns a Recurrence of unrolled stacked layers, or a text that says why there is none."""
    n, sequence = len(layers[0].steps), layers[0].steps[-1].sequence
    elements = [element(x, terms.width) for x in layers[0].x]
    given = [e for e in elements if e is not None and e.index is not None]
    if len(given) < n:
        return f"the inputs of the {n} steps must be elements of one value, got {len(given)} elements"
    if sequence is not None:
        steps = size(sequence, given[0].axis, terms.width)
        given = [before_reversal(e, terms.width, steps) for e in given]
    first = given[0]
    if any(e.whole is not first.whole or e.axis != first.axis for e in given):
        return "the inputs of the steps must be elements of one value along one axis, got several"
    indices = [e.index and e.index.number for e in given]
    reverse = n > 1 and indices == list(range(n))[::-1]
    if not reverse and indices != list(range(n)):
        if n > 1 and indices == list(range(1, n + 1)):
            return (
                f"step 0 is not one of them: the exporter may have computed its product with a state of 0. "
                f"The first nodes compute step 1, which reads element 1 of {first.whole.name!r}"
            )
        return f"the steps read elements {indices} of {first.whole.name!r}, in another order"
    within = [step.within for layer in layers for step in layer.steps]
    lengths = None if within[0] is None else within[0][0]
    if within != [None if lengths is None else (lengths, e.index) for _ in layers for e in given]:
        return "the masks of all steps must compare with the same lengths, got different masks"
    whole = first.whole if sequence is None else sequence
    length = size(whole, first.axis, terms.width).number
    if length is not None and length != n:
        return f"the file must have a step for each of {length} elements of {whole.name!r}, got {n} steps"
    if (axes := rank(whole) or 3) != 3:
        return f"{whole.name!r} must have 3 axes, got {axes}"
    top, of_states = layers[-1], _state_axes(layers, terms)
    if of_states is None:
        return "its states must be arrays (B, H) or (1, B, H), got other shapes"
    inside = {id(node): node for layer in layers for step in layer.steps for node in step.nodes}
    joined = stacked(top.h, set(inside))
    y, flipped = None, False
    result_axes = {"x": ORDERS[first.axis].format("I"), "h": of_states}
    if joined is not None:
        y, axis, backwards, of_joined = joined
        flipped = backwards != reverse
        inside |= {id(node): node for node in of_joined}
        result_axes["y"] = ORDERS[axis].format("H")
    for layer in layers:
        for at, step in enumerate(layer.steps):
            if step.outside:
                return f"at step {at}, {step.outside[0]} {READS_INSIDE}"
            for value in step.new:
                if at < n - 1 and used(value, inside):
                    return f"the state of step {at}, {value.name!r}, is read outside of the steps"
    before = [node for e in given for node in e.nodes]
    before += () if sequence is None else nodes_between([first.whole], [sequence]) or ()
    nodes = with_unused(inside.values(), before)
    kept = {id(node) for node in nodes}
    h = tuple(if_used(layer.new[0], kept) for layer in layers)
    c = tuple(if_used(v, kept) for layer in layers for v in layer.new[1:])
    if y is None and not any((*h, *c)):
        return "the file uses no output of it"
    baked, warnings = {"T": n}, list[str]([KEEPS] * (lengths is not None and y is not None))
    warnings += [f"a length of {n} steps is baked in: the file has the nodes of each step"]
    if (sequences := batch(layers[0].steps[0])) is not None:
        baked["B"] = sequences
        warnings.append(f"a batch of {sequences} sequences is baked in: the first states are constants")
    if not reverse and all(is_zero(v) for layer in layers for v in layer.steps[0].old):
        warnings.append(restarts(layers[0].steps[0].nodes[0]))
    return recurrence(
        layers[0].steps[0].nodes[0], f"{n} steps of {layers[0].weights.cell}", layers, reverse, nodes=nodes,
        x=whole, lengths=lengths, y=y, flipped=flipped, h=h, c=c, axes=result_axes, baked=baked,
        warnings=warnings,
    )  # fmt: skip


def _state_axes(layers: Sequence[Layer], terms: Terms) -> str | None:
    """Returns the axes of the states: "BH", or "DBH" if axis 0 has size 1. None for other shapes."""
    states = [v for layer in layers for v in (*layer.steps[0].old, *layer.new)]
    ranks = {rank(v) for v in states}
    if ranks <= {None, 2}:
        return "BH"
    sizes = [size(v, 0, terms.width).number for v in states]
    return "DBH" if ranks <= {None, 3} and 1 in sizes and {*sizes} <= {1, None} else None


def batch(step: Step) -> int | None:
    """Returns the batch size if constants of a step that starts at 0 fix it, else None."""
    for node in step.nodes if not step.old else ():
        places = (
            (0, 1, 2) if node.op_type == "Gemm" else (0, 1) if node.op_type in ("Add", "Mul", "Sub") else (0,)
        )
        for at in places:
            array = None if node.op_type in ("Gemm", "MatMul") and at == 1 else constant_input(node, at)
            if array is not None and array.ndim > 1 and array.shape[-2] > 1:
                return int(array.shape[-2])
    return None


def stacked(values: Sequence[Value], inside: set[int]) -> tuple[Value, int, bool, list[Node]] | None:
    """Returns (result, axis, backwards, nodes) if nodes stack these values along a new axis, else None.
    backwards: they are stacked in reverse order."""
    three = rank(values[0]) == 3
    for user in values[0].consumers():
        of_steps = id(user) in inside or user.domain not in DOMAINS
        after = [user] if three else [j for v in user.outputs[:1] for j in v.consumers()]
        for join in () if of_steps else after:
            ops, nodes, given = (user.op_type, join.op_type), [user], user.inputs
            if three:
                if join.op_type != "Concat" or attribute(join, "axis", 0) != 0:
                    continue
                nodes = []
            elif ops == ("Unsqueeze", "Concat"):
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


def _order(given: Sequence[Value | None], values: Sequence[Value]) -> bool | None:
    """Returns False if `given` equals `values`, True if it is `values` reversed, None otherwise."""
    ids = [id(outside_of_loops(v)) for v in given if v is not None]
    wanted = [id(v) for v in values]
    return False if ids == wanted else True if ids == wanted[::-1] else None
