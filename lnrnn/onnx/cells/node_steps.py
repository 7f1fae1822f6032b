"""Steps of a Loop's or Scan's body that are a node RNN, LSTM or GRU for a sequence of one step.

torch's exporter writes them for an LSTMCell or GRUCell in a scripted loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir

from ...importers.weights import Weights
from ..graph.reading import node_path
from ..graph.values import moved_axes, outside_of_loops, producer
from ..nodes.node import NodeLayer, is_recurrent, read_layer
from .matching import Step, outside
from .patterns import PATTERNS


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
