"""Follows values through an ONNX graph, from its inputs to the states of recurrent nodes and to its outputs.

A value flows through nodes that move numbers and do not change them, such as Transpose, Slice and Concat. It
also flows into the sub-graphs of If, Loop and Scan, and out of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from ...errors import message
from ...recognise.constants import MOVES
from ...recognise.graph import DOMAINS, attribute, subgraphs
from ...recognise.part import Part
from ..nodes.node import is_recurrent

# The inputs of a node whose numbers it moves to its outputs. None: all inputs.
MOVED: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys((*MOVES, "CastLike", "Dropout", "Pad"), (0,)),
    "Concat": None,
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "Where": (1, 2),
}  # fmt: skip
MIXED = ("Concat", "ScatterElements", "ScatterND", "Where")  # those that join numbers of several values
MOST_VISITS = 10**7  # values that all searches in a graph may visit, about ten seconds
SIZES = ("Shape", "Size")  # their outputs do not depend on the numbers of their inputs

# A state of a node: the node's number in the order of the file, and "h", "c" or the number of a loop's value.
Slot = tuple[int, "str | int"]


def nodes(graph: Any) -> Iterator[tuple[Any, bool]]:
    """Yields all nodes of a graph and of its sub-graphs, and whether a node is in a branch of an If."""
    stack = [(iter(graph), False)]
    while stack:
        rest, branch = stack[-1]
        node = next(rest, None)
        if node is None:
            stack.pop()
            continue
        yield node, branch
        stack.extend((iter(inner), branch or node.op_type == "If") for _, inner in subgraphs(node))


class Flow:
    """The edges between the values of a graph, and the values that are states of recurrent nodes."""

    def __init__(self, graph: Any) -> None:
        self._inputs = [value for value in graph.inputs if value.name not in graph.initializers]
        self._outputs = set(graph.outputs)
        self._moves: dict[Any, list[Any]] = defaultdict(list)  # value: values with its numbers
        self._moved_from: dict[Any, list[Any]] = defaultdict(list)
        self._depends: dict[Any, list[Any]] = defaultdict(list)  # value: values computed from its numbers
        self._entries: dict[Any, set[Slot]] = defaultdict(set)
        self._exits: dict[Any, set[Slot]] = defaultdict(set)  # values Y_h and Y_c, and results of loops
        self._sequences: dict[Any, set[Slot]] = defaultdict(set)  # values Y
        self._recurrent: list[tuple[Any, bool]] = []
        self._visits = 0
        for number, (node, branch) in enumerate(nodes(graph)):
            self._add(number, node, branch)

    def _add(self, number: int, node: Any, branch: bool) -> None:
        kind = node.op_type if node.domain in (*DOMAINS, "com.microsoft") else ""
        if kind in ("If", "Loop", "Scan"):
            self._add_control(number, node, kind)
            return
        inputs = [value for value in node.inputs if value is not None]
        if kind not in SIZES:
            for value in inputs:
                self._depends[value] += node.outputs
        if kind in MOVED:
            places = MOVED[kind]
            for place, value in enumerate(node.inputs):
                if value is not None and (places is None or place in places):
                    for output in node.outputs:
                        self._move(value, output)
        if is_recurrent(node):
            self._recurrent.append((node, branch))
            for place, name in ((5, "h"), (6, "c")):
                if place < len(node.inputs) and node.inputs[place] is not None:
                    self._entries[node.inputs[place]].add((number, name))
            for place, name in ((1, "h"), (2, "c")):
                if place < len(node.outputs):
                    self._exits[node.outputs[place]].add((number, name))
            if node.outputs:
                self._sequences[node.outputs[0]].add((number, "h"))

    def _add_control(self, number: int, node: Any, kind: str) -> None:
        """Adds an If, a Loop or a Scan. Its nodes inside are added on their own."""
        for _, inner in subgraphs(node):
            skipped_out = 1 if kind == "Loop" else 0  # the condition to go on
            for value, output in zip(list(inner.outputs)[skipped_out:], node.outputs, strict=False):
                self._move(value, output)
                self._depends[value].append(output)
            if kind == "If":
                continue
            first = 2 if kind == "Loop" else 0  # after the number of rounds and the condition
            pairs = list(zip(node.inputs, inner.inputs, strict=False))[first:]
            scanned = attribute(node, "num_scan_inputs", 0) if kind == "Scan" else 0
            states = len(node.inputs) - first - (scanned if isinstance(scanned, int) else 0)
            for place, (value, inside) in enumerate(pairs):
                if value is None:
                    continue
                self._depends[value].append(inside)
                if place < states:
                    self._move(value, inside)
                    self._entries[value].add((number, place))
                    if place < len(node.outputs):
                        self._exits[node.outputs[place]].add((number, place))

    def add_parts(self, parts: Iterable[Part]) -> None:
        """Adds the states of recurrent parts, among them cells in plain operators, which no node shows."""
        every = [each for part in parts for each in (part, *part.same)]
        for number, part in enumerate(every, 1):
            for name, first, last in (("h", part.h0, part.h), ("c", part.c0, part.c)):
                for layer, (value, result) in enumerate(zip(first, last, strict=False)):
                    if value is not None and result is not None:
                        self._entries[value].add((-number, f"{name}{layer}"))
                        self._exits[result].add((-number, f"{name}{layer}"))

    def _move(self, value: Any, output: Any) -> None:
        self._moves[value].append(output)
        self._moved_from[output].append(value)

    def _reached(self, values: Iterable[Any], edges: dict[Any, list[Any]]) -> set[Any]:
        found = set(values)
        left = list(found)
        while left:
            for value in edges.get(left.pop(), ()):
                if value not in found:
                    found.add(value)
                    left.append(value)
        self._visits += len(found)
        if self._visits > MOST_VISITS:
            raise ValueError(message("states", "given for a file with so many nodes and inputs", "None"))
        return found

    def entries(self, value: Any) -> set[Slot]:
        """Returns the states of recurrent nodes to which the numbers of a value go."""
        return {s for v in self._reached([value], self._moves) for s in self._entries.get(v, ())}

    def exits(self, value: Any) -> set[Slot]:
        """Returns the states of recurrent nodes, after their last step, from which a value comes."""
        return {s for v in self._reached([value], self._moved_from) for s in self._exits.get(v, ())}

    def sequence_of(self, value: Any) -> set[Slot]:
        """Returns the states of recurrent nodes from whose output at all steps, Y, a value comes."""
        return {s for v in self._reached([value], self._moved_from) for s in self._sequences.get(v, ())}

    def joined(self, value: Any) -> set[Any]:
        """Returns the values that consist of numbers of `value` and of numbers that other inputs determine.

        The set is empty if no number of `value` goes to an output.

        A cache is one of them: the file appends new numbers to it and removes the oldest ones.
        """
        if not any(each in self._outputs for each in self._reached([value], self._moves)):
            return set()
        others = self._reached([each for each in self._inputs if each is not value], self._depends)
        alone, joined, left = {value}, set[Any](), [value]
        while left:
            source = left.pop()
            for output in self._moves.get(source, ()):
                node = output.producer()
                mixed = node is not None and node.op_type in MIXED
                mixed = mixed and any(each is not source and each in others for each in node.inputs)
                target = joined if source in joined or mixed else alone
                if output not in target and (target is joined or output not in joined):
                    target.add(output)
                    left.append(output)
        return joined

    def has_recurrent_nodes(self) -> bool:
        return bool(self._recurrent)

    def restarting(self, backwards: bool = False) -> list[Any]:
        """Returns the recurrent nodes whose first state does not depend on an input.

        backwards: whether to return nodes that read from the end too. In a file of one step, their sequence
        is another axis, such as frequencies. If another node has its state from an input, nodes in branches
        of an If are left out. Exporters write such a branch for a call without a state.
        """
        known = self._reached(self._inputs, self._depends)
        anew, continued = [], False
        for node, branch in self._recurrent:
            first = node.inputs[5] if len(node.inputs) > 5 else None
            if first is not None and first in known:
                continued = True
            elif backwards or attribute(node, "direction", "forward") == "forward":
                anew.append((node, branch))
        return [node for node, branch in anew if not (branch and continued)]
