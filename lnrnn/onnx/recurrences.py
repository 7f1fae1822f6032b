"""Steps that follow each other, and the part of a file that they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir

from ..importers.weights import Weights, network
from .matching import Step
from .parts import Part
from .terms import Terms

Nodes = Sequence[onnx_ir.Node]


@dataclass(frozen=True)
class Layer:
    """The steps of one layer in the order of computation, with equal weights.

    start: whether the first step has no old states, because they are 0.
    """

    steps: tuple[Step, ...]
    weights: Weights

    @property
    def old(self) -> tuple[onnx_ir.Value | None, ...]:
        """The initial states, None if they are 0."""
        return self.steps[0].old or (None,) * len(self.new)

    @property
    def new(self) -> tuple[onnx_ir.Value, ...]:
        return self.steps[-1].new

    @property
    def x(self) -> tuple[onnx_ir.Value, ...]:
        return tuple(step.x for step in self.steps)

    @property
    def h(self) -> tuple[onnx_ir.Value, ...]:
        return tuple(step.new[0] for step in self.steps)


def same_constants(a: Step, b: Step, terms: Terms) -> bool:
    """Returns whether two steps have the same equations and the same constants. A step with states of 0 may
    lack some."""
    if a.pattern is not b.pattern or a.functions != b.functions or a.units != b.units:
        return False
    if a.eps != b.eps and a.old and b.old:
        return False
    for key, mine in a.constants.items():
        theirs = b.constants.get(key)
        if theirs is None:
            if a.old and b.old:
                return False
            continue
        if key[0].startswith("weight"):
            if terms.identity(mine[0]) != terms.identity(theirs[0]):
                return False
            mine, theirs = mine[1], theirs[1]
        elif "bias" in key[0]:
            mine, theirs = (sum(v for _, v in given) for given in (mine, theirs))
        if not np.array_equal(np.broadcast_to(mine, (a.units,)), np.broadcast_to(theirs, (a.units,))):
            return False
    return True


def part(path: str, kind: str, layers: Sequence[Layer], **values: Any) -> Part:
    """Returns the part of these layers. values: fields of Part, and `reverse` for its network."""
    reverse = values.pop("reverse", False)
    states = [layer.old for layer in layers]
    last = [layer.new for layer in layers]
    has_c = len(last[0]) == 2
    result = Part(
        path, kind, values.pop("nodes"),
        h0=values.pop("h0", tuple(s[0] for s in states)),
        c0=values.pop("c0", tuple(s[1] for s in states) if has_c else ()),
        h=values.pop("h", tuple(s[0] for s in last)),
        c=values.pop("c", tuple(s[1] for s in last) if has_c else ()),
        **values,
    )  # fmt: skip
    batch_first = result.axes.get("x") == "BTI"
    try:
        converted = network([[layer.weights] for layer in layers], batch_first, "ONNX")
    except ValueError as error:
        return replace(result, reason=f"the layers of a network must be alike: {error}")
    if reverse:
        converted.arguments["reverse"] = True
    result.converted = converted
    return result


def used(value: onnx_ir.Value, inside: set[int]) -> bool:
    """Returns whether a node that is not inside, or the graph's output, reads a value."""
    return value.is_graph_output() or any(id(user) not in inside for user in value.consumers())


def with_unused(nodes: Iterable[onnx_ir.Node], more: Iterable[onnx_ir.Node]) -> tuple[onnx_ir.Node, ...]:
    """Returns nodes, and those of `more` that are needed by these alone, in the order of the graph."""
    kept = {id(node): node for node in nodes}
    left = list({id(node): node for node in more}.values())
    changed = True
    while changed:
        changed = False
        for node in left[:]:
            if not any(used(v, set(kept)) for v in node.outputs):
                kept[id(node)] = node
                left.remove(node)
                changed = True
    return in_order(kept.values())


def in_order(nodes: Iterable[onnx_ir.Node]) -> tuple[onnx_ir.Node, ...]:
    """Returns nodes of one graph in its order."""
    every = list(nodes)
    graph = every[0].graph
    assert graph is not None
    return tuple(sorted((node for node in every if node.graph is graph), key=graph.index))
