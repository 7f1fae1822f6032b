"""Explains why recurrences were not converted: names the first operator that no lnrnn cell has."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from .folding import MOVES
from .graph import attribute, constant, dependents, first_and_next, in_order, outside_of_loops, parent
from .interface import DOMAINS, PATH, Graph, Node, Value, named
from .masks import choice
from .matching import Matcher, alike
from .operators import new_terms
from .part import GraphPart
from .patterns import OPERATORS
from .terms import Atom, Terms

Pairs = Sequence[tuple[Value, Value]]  # (old state, new state) of a step
MOVING = (*MOVES, "Concat", "SequenceAt", "SequenceInsert")
NO_STEP = "its body is no step of a cell of lnrnn"
MOST_MATRICES = 16  # `repeated` compares at most this many matrix products


def unknown(graphs: Iterable[Graph], parts: Sequence[GraphPart], states: Pairs = ()) -> list[str]:
    """Returns a text for each recurrence outside of all parts. states: the model's (old, new) states."""
    every = [each for part in parts for each in (part, *part.same)]
    taken = {id(node) for part in every for node in part.nodes}
    paths = [path for part in parts for path in part.paths]
    found = list[tuple[str, Pairs, bool]]()  # (name, pairs of old and new state, whether a step has them)
    for graph in graphs:
        steps = repeated(graph, taken)
        pairs = steps if steps or parts or parent(graph) is not None else states
        found.append((f"the step of {', '.join(repr(new.name) for _, new in pairs)}", pairs, bool(steps)))
        for node in graph:
            if node.op_type not in ("Loop", "Scan") or node.domain not in DOMAINS or id(node) in taken:
                continue
            before = 2 if node.op_type == "Loop" else attribute(node, "num_scan_inputs", 0)
            path, body = node.meta[PATH], attribute(node, "body")
            if len(node.inputs) > before and not any(each.startswith(f"{path}/") for each in paths):
                pairs = [(v, both[1]) for v in body.inputs if (both := first_and_next(v))]
                found.append((f"{path!r} ({node.op_type}): {NO_STEP}", pairs, False))
    texts = [(what, misfit(pairs, is_step)) for what, pairs, is_step in found]
    return [what + f": {text}" * bool(text) for what, text in texts if text or what.endswith(NO_STEP)]


def repeated(graph: Graph, taken: set[int]) -> Pairs:
    """Returns [(a, b)] if a constant matrix multiplies a and b, and b depends on a's product. Else ()."""
    first: dict[int, tuple[Value, set[int]]] = {}
    for node in graph:
        if node.op_type not in ("Gemm", "MatMul") or id(node) in taken or None in node.inputs[:2]:
            continue
        operand, matrix = (outside_of_loops(v) for v in node.inputs[:2] if v is not None)
        if id(matrix) in first:
            old, after = first[id(matrix)]
            if id(operand) in after:
                return [(old, operand)]
        elif len(first) < MOST_MATRICES and constant(matrix) is not None:
            first[id(matrix)] = operand, dependents(node.outputs)
    return ()


def misfit(pairs: Pairs, is_step: bool = False) -> str:
    """Names the first operator between old and new states that no cell has. Returns "" if there is none.

    is_step: the pairs are known to be states. Otherwise, they count only if a matrix multiplies an old one.
    """
    terms, inside = new_terms(joined=True), dependents(old for old, _ in pairs)
    others, outer = list[Node](), list[Node]()  # outer: products that are added to states
    sums, seen = [(terms.sum(outside_of_loops(new)), True) for _, new in pairs], set[tuple[int, bool]]()
    while sums:
        whole, is_state = sums.pop()
        for atom in {a for product in whole.terms for a in product if (a.key, is_state) not in seen}:
            value = atom.value
            seen.add((atom.key, is_state))
            if atom.of is not None:
                sums.append((atom.of, False))
            elif value is not None and atom.matrix is not None:
                sums.append((operand := terms.sum(value), False))
                read = {id(value), *(id(each.value) for product in operand.terms for each in product)}
                is_step = is_step or any(id(old) in read for old, _ in pairs)
                outer += _computing(atom) * is_state
            elif value is not None and atom.kind == "value":
                node, chosen = value.producer(), choice(value)
                if chosen is not None:
                    sums += [(terms.sum(v), is_state) for v in (chosen.new, chosen.old)]
                elif node is not None and any(id(v) in inside for v in node.inputs):
                    others += [node] * (node.op_type not in MOVING)
                    sums += [(terms.sum(v), False) for v in node.inputs if v is not None]
    unfit = _unfit(pairs, terms) if is_step else []
    for nodes, where in (others, ""), (unfit, " in this place"), (outer, " without a function"):
        if nodes and is_step:
            node = in_order(nodes)[0]
            known = node.attributes.items() if node.op_type in terms.operators and not where else ()
            given = [f"{name}={a.value:g}" for name, a in known if isinstance(a.value, (int, float))]
            return f"no cell has node {named(node)}" + f" with {', '.join(given)}" * bool(given) + where
    return ""


def _unfit(pairs: Pairs, terms: Terms) -> list[Node]:
    """Returns the node at which the longest partial match of a pattern stops, as a list, or []."""
    longest, unfit = 0, list[Node]()
    for new in (outside_of_loops(new) for _, new in pairs):
        for matcher in (Matcher(pattern, terms, False) for pattern in alike(terms.sum(new))):
            deque(matcher.whole(new, terms.sum(new)), 0)
            if matcher.bound > longest and matcher.unfit is not None:
                longest, unfit = matcher.bound, _computing(matcher.unfit)
    return unfit


def _computing(unfit: Atom | Value) -> list[Node]:
    """Returns the node that computes a value or an atom, as a list, or []."""
    value = unfit.value if isinstance(unfit, Atom) else unfit
    if isinstance(unfit, Atom) and unfit.kind != "value" and value is not None:
        op, matrix = OPERATORS.get(unfit.kind), unfit.matrix and unfit.matrix.value
        return [user for user in value.consumers() if op == user.op_type or matrix in user.inputs][:1]
    return [node] if value is not None and (node := value.producer()) is not None else []
