"""Finds recurrent cells in graphs of plain operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from .graph import first_and_next, is_input, loop_around, origin, producer, rank, reaches_output
from .interface import PATH, Graph, Node, Value, named
from .loops import Unfit, whole_loop
from .matching import Step, steps
from .operators import new_terms
from .part import READS_INSIDE, Difference, GraphPart
from .recurrences import Layer, Recurrence, chains, if_used, joined, linked, recurrence, same_values, unrolled
from .terms import Terms

Steps = Callable[[Graph], Iterable[list[Step]]]


def find_cells(graphs: Iterable[Graph], more: Steps) -> list[GraphPart]:
    """Returns the parts of a model whose nodes compute one or more steps of a cell.

    Parts are single steps, unrolled steps, and Loop and Scan nodes whose body is a step. graphs: all graphs
    of the model, outer graphs before bodies. more: a function of a body that yields further steps, in the
    form of matching.steps.
    """
    found: list[Recurrence | GraphPart] = []
    terms, of_both = new_terms(), new_terms(joined=True)
    for graph in graphs:
        groups = _largest(list(steps(graph, terms, of_both)))
        loop = loop_around(graph)
        if loop is not None:
            found += _in_body(loop, graph, groups, [*groups, *more(graph)], terms)
        elif groups:
            found += _in_graph(groups, terms)
    recurrences = joined([each for each in found if isinstance(each, Recurrence)])
    return [each.finished() for each in recurrences] + [each for each in found if isinstance(each, GraphPart)]


def _in_body(
    node: Node, body: Graph, groups: list[list[Step]], every: list[list[Step]],
    terms: Terms,
) -> list[Recurrence | GraphPart]:  # fmt: skip
    """Returns the Loop or Scan as one part, or the steps in its body. every: groups and recurrent nodes."""
    if not every:
        return []
    carried = [kept for group in every if (kept := [step for step in group if _is_carried(step, body)])]
    try:
        if not carried:
            before = next((n for step in every[0] for v in step.old if (n := v.producer())), None)
            text = "its body must pass the new states of a cell to the next step"
            raise Unfit(text + (f", but node {named(before)} changes them" if before else ""))
        return [whole_loop(node, carried, terms)]
    except Unfit as reason:
        found = _in_graph(groups, terms)
        for each in found:
            part = each.part if isinstance(each, Recurrence) else each
            text = f"the {node.op_type} around it is not converted: {reason}"
            part.warnings.append(Difference(text))
        return found


def _is_carried(step: Step, body: Graph) -> bool:
    inputs = {id(v) for v in body.inputs}
    return bool(step.old) and all(id(v) in inputs for v in step.old)


def _largest(groups: Sequence[Sequence[Step]]) -> list[list[Step]]:
    """Drops steps whose root node lies inside a larger step."""
    sizes: dict[int, int] = {}
    for group in groups:
        for step in group:
            for node in step.nodes:
                sizes[id(node)] = max(sizes.get(id(node), 0), len(step.nodes))
    kept = [
        [step for step in group if sizes[id(step.new[0].producer())] <= len(step.nodes)] for group in groups
    ]
    return [group for group in kept if group]


def _in_graph(groups: list[list[Step]], terms: Terms) -> list[Recurrence | GraphPart]:
    """Returns the parts of one graph: unrolled layers first, then single steps. Loops are found elsewhere."""
    found = chains(groups, terms)
    layers = [Layer(tuple(chain), chain[-1].weights()) for chain in found if len(chain) > 1]
    done: set[int] = set()
    reasons: dict[int, str] = {}  # by node: why successive steps cannot be one network
    result: list[Recurrence | GraphPart] = []
    # layers whose x is the h of the layer before
    for stack in linked(layers, lambda a: next((b for b in layers if same_values(b.x, a.h)), None)):
        whole = unrolled(stack, terms)
        if isinstance(whole, str):
            text = f"it is one of {len(stack[0].steps)} steps in a row that no network replaces: {whole}"
            reasons |= {id(n): text for layer in stack for step in layer.steps for n in step.nodes}
        else:
            result.append(whole)
            done.update(id(node) for node in whole.part.nodes)
    for group in groups:
        if id(group[0].new[0].producer()) not in done:
            single = one_step(group)
            if single is not None:
                part = single.part if isinstance(single, Recurrence) else single
                text = reasons.get(id(group[0].new[0].producer()), "")
                part.warnings += [Difference(text)] * bool(text)
                result.append(single)
    return result


# --- single steps -------------------------------------------------------------------------------------------


def one_step(group: Sequence[Step]) -> Recurrence | GraphPart | None:
    """Returns a single step as a part, or None if its nodes may be no recurrent cell.

    group: alternative matches of the same nodes, which differ in the roles of x and h.
    """
    whole = [step for step in group if not step.outside]
    if any(step.sequence is not None for step in group):
        return None
    own = f"{group[0].pattern.cell} step"
    if not whole:
        node, reason = group[0].nodes[0], f"{group[0].outside[0]} {READS_INSIDE}"
        refused = GraphPart(node.meta[PATH], own, nodes=group[0].nodes, reason=reason)
        return refused if group[0].pattern.cell != "RNN" else None
    ranked = sorted(whole, key=evidence, reverse=True)
    step = ranked[0]
    if step.pattern.cell == "RNN" and not (is_input(origin(step.old[0])) and reaches_output(step.new[0])):
        return None  # tanh of two matrix products may also be additive attention
    for v in (step.x, *step.old, *step.new):
        if rank(v) not in (None, 2):
            reason = f"{v.name!r} must have 2 axes in a single step, got {rank(v)}"
            return GraphPart(step.nodes[0].meta[PATH], own, nodes=step.nodes, reason=reason)
    users = [user for value in step.new for user in value.consumers() if user not in step.nodes]
    if not any(v.is_graph_output() for v in step.new) and all(user.op_type == "Shape" for user in users):
        return None
    h, *c = (if_used(v, {id(node) for node in step.nodes}) for v in step.new)
    warnings = []
    if len(ranked) > 1 and evidence(ranked[0])[:-1] == evidence(ranked[1])[:-1]:
        warnings.append(Difference(
            f"x and h have the same size, and the nodes do not show which is which: x is taken to be "
            f"{step.x.name!r}"
        ))  # fmt: skip
    return recurrence(
        step.nodes[0], own, [Layer((step,), step.weights())],
        nodes=step.nodes, x=step.x, h=(h,), c=tuple(c), axes={"x": "BI", "h": "BH"},
        baked={"T": 1}, warnings=warnings,
    )  # fmt: skip


def evidence(step: Step) -> tuple[int, ...]:
    """Returns a sort key for alternative matches: larger if the roles of x and h are more plausible."""
    x, h = origin(step.x), origin(step.old[0])
    carried = all(first_and_next(origin(v)) is not None for v in step.old)
    with_c = len(step.old) > 1 and h is origin(step.old[1]) and x is not h
    graph = h.graph
    order = 0
    if graph is not None and is_input(h) and is_input(x) and x.graph is graph:
        at = {id(v): k for k, v in enumerate(graph.inputs)}
        order = 1 if at[id(x)] < at[id(h)] else -1
    return int(carried), int(with_c), int(_from_before(step)), int(is_input(h)) - int(is_input(x)), order


def _from_before(step: Step) -> bool:
    """Returns whether one earlier LSTM step computes both the old h and the old c."""
    if len(step.old) < 2 or any(v.producer() is None for v in step.old):
        return False
    h, c = step.old
    node = producer(h, "Mul")  # sigmoid(o) * tanh(c)
    tanhs = [producer(v, "Tanh") for v in node.inputs] if node is not None else []
    of_c = any(tanh is not None and tanh.inputs[0] is c for tanh in tanhs)
    return of_c or _source(h) is _source(c)


def _source(value: Value) -> Node | None:
    return origin(value).producer()
