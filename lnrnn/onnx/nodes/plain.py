"""Finds parts that are nodes RNN, LSTM, GRU or DynamicQuantizeLSTM, and such nodes as steps in a body."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir

from ...importers.weights import Weights, network
from ...recognise.graph import moved_axes, outside_of_loops, producer
from ...recognise.interface import PATH, named
from ...recognise.matching import Step, outside
from ...recognise.part import Difference, Part, is_batch_first, restarts
from ...recognise.patterns import PATTERNS
from ..reading import opset_of
from .node import NodeLayer, is_recurrent, read_layer
from .stacks import Stack, stacks


@dataclass
class Layers:
    """The recurrent nodes of a model, each read once. reset_after: as in from_onnx."""

    model: onnx_ir.Model
    reset_after: bool | None = None
    known: dict[onnx_ir.Node, NodeLayer | str] = field(default_factory=dict)  # a layer, or why there is none

    def of(self, graph: onnx_ir.Graph) -> dict[onnx_ir.Node, NodeLayer | str]:
        """Returns the recurrent nodes of a graph in its order, each with its layer, or why there is none."""
        own = [node for node in graph if is_recurrent(node)]
        for node in own:
            if node not in self.known:
                try:
                    self.known[node] = read_layer(node, opset_of(self.model), self.reset_after)
                except ValueError as error:
                    self.known[node] = str(error)
        return {node: self.known[node] for node in own}

    def parts(self, graphs: Iterable[onnx_ir.Graph]) -> list[Part]:
        """Returns the nodes of graphs as parts, in their order."""
        result: list[Part] = []
        for graph in graphs:
            every = self.of(graph)
            found = stacks([layer for layer in every.values() if isinstance(layer, NodeLayer)])
            starts = {stack.layers[0].node: stack for stack in found}
            for node, layer in every.items():
                if isinstance(layer, str):
                    result.append(Part(node.meta[PATH], node.op_type, (node,), reason=layer, layers=(node,)))
                elif node in starts:
                    result.append(_part(starts[node], self.model, self.reset_after))
        return result

    def steps(self, graph: Any) -> Iterator[list[Step]]:
        """Yields the steps of a graph that are nodes, as `steps` of matching.py does.

        torch's exporter writes them for an LSTMCell or GRUCell in a scripted loop.
        """
        for layer in self.of(graph).values():
            step = _step(layer) if isinstance(layer, NodeLayer) else None
            if step is not None:
                yield [step]


def _part(stack: Stack, model: onnx_ir.Model, reset_after: bool | None) -> Part:
    first = stack.layers[0]
    order = "BT" if first.batch_first else "TB"
    part = Part(
        first.node.meta[PATH], first.kind, (*(layer.node for layer in stack.layers), *stack.between),
        x=first.x, lengths=first.lengths, h0=tuple(layer.h0 for layer in stack.layers), y=stack.y,
        h=tuple(layer.h for layer in stack.layers), baked=stack.baked,
        axes={
            "x": f"{order}I", "h": "BDH" if first.batch_first else "DBH",
            "y": "".join("H" if axis == "DH" else axis for axis in stack.y_axes),
        },
        layers=tuple(layer.node for layer in stack.layers),
    )  # fmt: skip
    if first.kind == "LSTM":
        part.c0 = tuple(layer.c0 for layer in stack.layers)
        part.c = tuple(layer.c for layer in stack.layers)
    part.warnings = _warnings(part, stack, model, reset_after)
    weights = _with_biases(stack.layers)
    part.converted = network(weights, is_batch_first(part), "ONNX", first.reverse)
    return part


def _with_biases(layers: list[NodeLayer]) -> list[list[Weights]]:
    """Returns the weights by layer and direction. If one layer has biases, all have: zeros, if need be."""
    every = [list(layer.weights) for layer in layers]
    if len({weights.bias for layer in every for weights in layer}) == 1:
        return every
    for layer in every:
        for d, weights in enumerate(layer):
            if not weights.bias:
                zeros = np.zeros(len(weights.parameters["weight_hh"]), np.float32)
                own = weights.parameters | {"bias_ih": zeros, "bias_hh": zeros}
                layer[d] = replace(weights, bias=True, parameters=own)
    return every


def _warnings(part: Part, stack: Stack, model: onnx_ir.Model, reset_after: bool | None) -> list[str]:
    result: list[str] = []
    first = stack.layers[0]
    before = reset_after is None and not first.weights[0].reset_after
    if before and (model.producer_name or "").lower() == "pytorch":
        result.append(Difference(
            f"node {named(first.node)} has no linear_before_reset=1, as torch's GRU should have. If torch's "
            "exporter wrote the file with dynamo=True between November 2025 and June 2026, all runtimes "
            "compute other outputs than the model; from_onnx(..., reset_after=True) repairs the network"
        ))  # fmt: skip
    result += stack.messages
    if first.batch_first:
        result.append(
            f"node {named(first.node)} has layout=1. ONNX Runtime refuses it on a CPU, and OpenVINO 2026.1 "
            "computes other outputs"
        )
    no_state = all(v is None for v in (*part.h0, *part.c0))
    if no_state:
        result.append(restarts(first.node))
    if first.kept_by_int8 is not None:
        kept = all(layer.kept_by_int8 for layer in stack.layers)
        does = "keeps the weights" if kept else "rounds weights beyond -128 .. 127 (without the zero point)"
        result.append(
            f"node {named(first.node)} has weights of 8 bits. The network has their values in float32, and "
            f"does not round its inputs as ONNX Runtime does; to_dtype('int8') {does}"
        )
    return result


# --- steps in the body of a Loop or Scan --------------------------------------------------------------------


@dataclass(frozen=True)
class NodeStep(Step):
    """A step that is one node, with an Unsqueeze before and a Squeeze after it."""

    layer: NodeLayer | None = None

    def weights(self) -> Weights:
        assert self.layer is not None
        return self.layer.weights[0]


def _step(layer: NodeLayer) -> Step | None:
    given = (layer.x, layer.h0, layer.c0)[: 3 if layer.kind == "LSTM" else 2]
    results = (layer.h, layer.c)[: len(given) - 1]
    if layer.directions > 1 or layer.reverse or layer.batch_first or layer.lengths is not None:
        return None
    before = [producer(v, "Unsqueeze") for v in given]
    after = [_squeeze(v) for v in results]
    pairs = [(node, node.inputs[0]) for node in before if node is not None and moved_axes(node) == [0]]
    values = [value for _, value in pairs if value is not None]
    if len(values) != len(given) or None in after:
        return None
    ends = [node for node in after if node is not None]
    nodes = (*(node for node, _ in pairs), layer.node, *ends)
    new = tuple(node.outputs[0] for node in ends)
    x, *old = (outside_of_loops(value) for value in values)
    pattern = next(p for p in PATTERNS if p.cell == layer.kind)
    return NodeStep(
        pattern, layer.hidden_size, {}, {}, None, x, tuple(old), new, nodes, outside(nodes, new), layer
    )


def _squeeze(value: onnx_ir.Value | None) -> onnx_ir.Node | None:
    """Returns the node that removes the axis of directions from a state."""
    users = [] if value is None else [u for u in value.consumers() if u.op_type == "Squeeze" and not u.domain]
    return users[0] if len(users) == 1 and moved_axes(users[0]) == [0] else None
