"""Joins recurrences: two directions to a layer, and layers to a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import onnx_ir

from ...importers.weights import Weights
from ..graph.folding import DOMAINS
from ..graph.values import attribute, in_order
from ..part import Part
from .recurrences import Recurrence

Join = Callable[[Recurrence, Recurrence], Recurrence | None]
Values = Callable[[Part], Sequence["onnx_ir.Value | None"]]


def joined(found: Sequence[Recurrence]) -> list[Recurrence]:
    """Returns the recurrences of one graph, joined where the values between them allow it."""
    both = _pairwise(found, both_directions, lambda part: (part.x,))
    return _pairwise(both, one_above, lambda part: (part.y, *part.h[-1:]))


def _pairwise(found: Sequence[Recurrence], join: Join, values: Values) -> list[Recurrence]:
    """Replaces pairs by their join until there is no pair left. values: those that can be x of the second."""
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
    """Returns two directions with one x, whose y are concatenated, as one layer."""
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
    """Returns two recurrences as layers of one, if b reads the outputs of a and nothing else does."""
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
    a: Recurrence,
    b: Recurrence,
    weights: list[list[Weights]],
    y: onnx_ir.Value | None,
    more: tuple[onnx_ir.Node, ...],
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
