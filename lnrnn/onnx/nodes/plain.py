"""Finds parts that are nodes RNN, LSTM, GRU or DynamicQuantizeLSTM, and such nodes as steps in a body."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir

from ...importers.weights import Weights, network
from ...recognise.graph import attribute, named, node_path, producer
from ...recognise.matching import Step, outside
from ...recognise.part import Difference, Part, is_batch_first, restarts
from ...recognise.patterns import PATTERNS
from ...recognise.values import moved_axes, outside_of_loops
from ..reading import graphs, opset_of
from .node import NodeLayer, folded, is_quantized, is_recurrent, kept_by_int8, read_layer
from .stacks import Stack, stacks


def plain_parts(model: onnx_ir.Model, reset_after: bool | None = None) -> list[Part]:
    """Returns the parts of a model in the order of its graphs and nodes. reset_after: as in from_onnx."""
    result: list[Part] = []
    opset = opset_of(model)
    for path, graph in graphs(model):
        layers: list[NodeLayer] = []
        refused: dict[int, Part] = {}
        nodes = [node for node in graph if is_recurrent(node)]
        for node in nodes:
            own = node_path(path, node)
            try:
                layers.append(read_layer(node, own, opset, reset_after))
            except ValueError as error:
                refused[id(node)] = Part(own, node.op_type, (node,), reason=str(error), layers=(node,))
        accepted = {id(stack.layers[0].node): _part(stack, model, reset_after) for stack in stacks(layers)}
        every = accepted | refused
        result += [every[id(node)] for node in nodes if id(node) in every]
    return result


def _part(stack: Stack, model: onnx_ir.Model, reset_after: bool | None) -> Part:
    first = stack.layers[0]
    order = "BT" if first.batch_first else "TB"
    part = Part(
        first.path, first.kind, (*(layer.node for layer in stack.layers), *stack.between), x=first.x,
        lengths=first.lengths, h0=tuple(layer.h0 for layer in stack.layers), y=stack.y,
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
    batch_first = is_batch_first(part)
    part.converted = network(_with_biases(stack.layers), batch_first, "ONNX", first.reverse)
    part.warnings = _warnings(part, stack, model, reset_after)
    return part


def _as_int8(stack: Stack) -> str:
    nodes = [layer.node for layer in stack.layers]
    kept = all(kept_by_int8([folded(n, 1, "W"), folded(n, 2, "R")], n) for n in nodes)
    return "keeps the weights" if kept else "rounds weights beyond -128 .. 127 (without the zero point)"


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
    before = reset_after is None and attribute(first.node, "linear_before_reset", 0) == 0
    if first.kind == "GRU" and before and (model.producer_name or "").lower() == "pytorch":
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
    if is_quantized(first.node):
        result.append(
            f"node {named(first.node)} has weights of 8 bits. The network has their values in float32, and "
            f"does not round its inputs as ONNX Runtime does; to_dtype('int8') {_as_int8(stack)}"
        )
    return result


# --- steps in the body of a Loop or Scan --------------------------------------------------------------------


# torch's exporter writes them for an LSTMCell or GRUCell in a scripted loop.


@dataclass(frozen=True)
class NodeStep(Step):
    """A step that is one node, with an Unsqueeze before and a Squeeze after it."""

    layer: NodeLayer | None = None

    def weights(self) -> Weights:
        assert self.layer is not None
        return self.layer.weights[0]


def node_steps(
    path: str, graph: onnx_ir.Graph, opset: int | None, reset_after: bool | None = None
) -> Iterator[list[Step]]:
    """Yields the steps of a graph that are nodes, as `steps` of matching.py does."""
    for node in graph:
        if not is_recurrent(node):
            continue
        try:
            layer = read_layer(node, node_path(path, node), opset, reset_after)
        except ValueError:
            continue
        step = _step(layer)
        if step is not None:
            yield [step]


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
