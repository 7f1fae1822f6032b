"""Steps that follow each other as a layer, and their Recurrence: a part of a file with its weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import onnx_ir

from ...importers.weights import Array, Converted, Weights, network
from ..batch_axis import is_batch_first
from ..graph.values import in_order
from ..part import Part
from .matching import Step
from .terms import Terms

Nodes = Sequence[onnx_ir.Node]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Layer:
    """The steps of one layer in the order of computation, with equal weights."""

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
    """Returns whether two steps have the same equations and the same constants.

    A step with states of 0 may lack some. The file may have added bias_hh to bias_ih there.
    """
    if a.pattern is not b.pattern or a.functions != b.functions or a.units != b.units:
        return False
    whole = bool(a.old and b.old)
    if whole and (a.eps != b.eps or set(a.constants) != set(b.constants)):
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
            if terms.identity(first) != terms.identity(second):
                return False
        else:
            mine, theirs = a.constants[name, gate], b.constants[name, gate]
        if not (np.asarray(mine) == theirs).all():
            return False
    return True


def _all_biases(step: Step, name: str, gate: str) -> Array:
    """Returns a bias of a gate, and for bias_ih the bias_hh that stands in the same sum."""
    names = {name}
    if name in ("bias_ih", "bias_hh") and not step.pattern.has("bias_hh", gate):
        names = {"bias_ih", step.pattern.bias_of_h}
    parts = [v for each in names for _, v in step.constants.get((each, gate), ())]
    total: Array = np.zeros(step.units) + sum(parts)
    return total


def linked(items: Sequence[Item], following: Callable[[Item], Item | None]) -> list[list[Item]]:
    """Returns the items as lists in which the item `following(a)` comes after a."""
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
    """A part and its weights by layer and direction. reverse: whether one direction reads from the end."""

    part: Part
    weights: list[list[Weights]]
    reverse: bool = False

    def converted(self, batch_first: bool = False) -> Converted:
        """Raises ValueError if the layers are not those of one network."""
        return network(self.weights, batch_first, "ONNX", self.reverse)

    def finished(self) -> Part:
        """Returns the part with its network."""
        try:
            self.part.converted = self.converted(is_batch_first(self.part))
        except ValueError as error:
            self.part.reason = str(error)
        return self.part


def recurrence(
    path: str, kind: str, layers: Sequence[Layer], reverse: bool = False, **values: Any
) -> Recurrence:
    """Returns a recurrence of these layers. values: fields of its part, by default the layers' states."""
    for name, states in (("0", [layer.old for layer in layers]), ("", [layer.new for layer in layers])):
        values.setdefault(f"h{name}", tuple(each[0] for each in states))
        values.setdefault(f"c{name}", tuple(v for each in states for v in each[1:]))
    return Recurrence(Part(path, kind, **values), [[layer.weights] for layer in layers], reverse)


def used(value: onnx_ir.Value, inside: Collection[int] = ()) -> bool:
    """Returns whether a value is an output of its graph, or is read by a node that is not inside."""
    return value.is_graph_output() or any(id(user) not in inside for user in value.consumers())


def if_used(value: onnx_ir.Value, inside: Collection[int] = ()) -> onnx_ir.Value | None:
    return value if used(value, inside) else None


def with_unused(nodes: Iterable[onnx_ir.Node], more: Iterable[onnx_ir.Node]) -> tuple[onnx_ir.Node, ...]:
    """Returns nodes, and those of `more` that are needed by these alone, in the order of the graph."""
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
