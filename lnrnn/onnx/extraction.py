"""Makes a small model of a part, for proof.py and plugin_trial.py: its nodes and those of its weights."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx_ir

from ..recognise.graph import attribute, constant, is_zero, subgraphs
from ..recognise.interface import DOMAINS, named
from ..recognise.part import Part
from ..recognise.proof import Unchecked
from .errors import quiet
from .nodes.node import constants, dequantized, is_quantized

IR_VERSION = 8  # old runtimes read it, and initializers need not be inputs
OPTIONAL = range(5, 8)  # inputs initial_h, initial_c and P of a node, left out if they are 0


def extracted(
    part: Part, model: onnx_ir.Model, reset_after: bool | None = None
) -> tuple[onnx.ModelProto, np.dtype]:
    """Returns a model that computes y, h and c of a part from x, lengths, h0 and c0, and its dtype.

    Only the values that are not None become inputs and outputs. Constants of `initial_states` stay constants.
    reset_after: as in from_onnx.
    """
    outputs = [v for v in (part.y, *part.h, *part.c) if v is not None]
    states = [v for v in (*part.h0, *part.c0) if part.initial_states is None or constant(v) is None]
    inputs = list({id(v): v for v in (part.x, part.lengths, part.mask, *states) if v is not None}.values())
    if not outputs:
        raise Unchecked("the file uses none of its outputs")
    extract = _Extract(part, reset_after, {id(v): v for v in inputs})
    for value in outputs:
        extract.collect(value)
    names = [v.name for v in extract.values.values()]
    if len(set(names)) != len(names):
        raise Unchecked("two of its values have the same name")
    weights = constant(part.layers[0].inputs[1]) if part.layers else None
    dtype = np.dtype(np.float32) if weights is None or weights.dtype.kind in "iu" else weights.dtype
    dtypes = {id(part.lengths): np.dtype(np.int32), id(part.mask): np.dtype(bool)}

    def described(value: onnx_ir.Value) -> onnx.ValueInfoProto:
        kind = onnx.helper.np_dtype_to_tensor_dtype(dtypes.get(id(value), dtype))
        return onnx.helper.make_tensor_value_info(value.name or "", kind, None)

    graph = onnx.helper.make_graph(
        extract.nodes, "part",
        [described(v) for v in inputs],
        [described(v) for v in outputs],
        extract.initializers,
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION), dtype


@dataclass
class _Extract:
    """Collects the nodes that compute values, in the order of execution.

    values: the values that the nodes compute or read, by id. At first, those that are inputs.
    """

    part: Part
    reset_after: bool | None
    values: dict[int, onnx_ir.Value]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)

    def collect(self, value: onnx_ir.Value) -> None:
        """Adds the nodes that compute a value, and the constants that they read."""
        layers = {id(node) for node in self.part.layers}
        stack = [value]
        while stack:  # a loop, since chains of nodes may be longer than Python's stack
            top = stack[-1]
            if id(top) in self.values:
                stack.pop()
                continue
            node = top.producer()
            if node is None or node.op_type == "Constant":
                self._add_constant(top)
                continue
            of_layer = id(node) in layers
            read = self._layer_inputs(node) if of_layer else [v for v in node.inputs if v is not None]
            missing = [v for v in (*read, *_captured(node)) if id(v) not in self.values]
            if missing:
                stack += missing
                continue
            self.nodes += self._layer(node) if of_layer else [self._with_reset_after(_proto(node))]
            self.values |= {id(v): v for v in node.outputs if v.name}

    def _add_constant(self, value: onnx_ir.Value) -> None:
        array = constant(value)
        if array is None:
            raise Unchecked(f"it also reads {value.name!r}")
        self.initializers.append(onnx.numpy_helper.from_array(np.asarray(array), value.name))
        self.values[id(value)] = value

    def _layer(self, node: onnx_ir.Node) -> list[onnx.NodeProto]:
        """Returns a recurrent node without inputs that are 0, and with linear_before_reset replaced.

        A node with layout=1 becomes one with layout=0 between nodes Transpose, as ONNX Runtime needs.
        """
        if is_quantized(node):
            return [self._dequantized(node)]
        proto = self._with_reset_after(_proto(node))
        kept = {id(v) for v in self._layer_inputs(node)}
        for i, value in enumerate(node.inputs):
            if value is not None and id(value) not in kept:
                proto.input[i] = ""
        return _with_layout_0(proto) if attribute(node, "layout", 0) else [proto]

    def _layer_inputs(self, node: onnx_ir.Node) -> list[onnx_ir.Value]:
        """Returns the inputs of a recurrent node that may be other than 0, and no scales of 8-bit weights."""
        left_out = (1, 2, *range(8, 99)) if is_quantized(node) else ()
        return [v for i, v in enumerate(node.inputs)
                if v is not None and i not in left_out and not (i in OPTIONAL and is_zero(v))]  # fmt: skip

    def _with_reset_after(self, proto: onnx.NodeProto) -> onnx.NodeProto:
        """Replaces linear_before_reset of a GRU, and of those in the graphs inside of a node."""
        stack = [proto] if self.reset_after is not None else []
        while stack:
            node = stack.pop()
            stack += [inner for a in node.attribute for graph in (a.g, *a.graphs) for inner in graph.node]
            if node.op_type == "GRU" and node.domain in DOMAINS:
                _remove(node, "linear_before_reset")
                after = onnx.helper.make_attribute("linear_before_reset", int(bool(self.reset_after)))
                node.attribute.append(after)
        return proto

    def _dequantized(self, node: onnx_ir.Node) -> onnx.NodeProto:
        """Returns an LSTM for a DynamicQuantizeLSTM, which rounds its inputs to 8 bits."""
        W, R, _ = dequantized(node, constants(node))
        names = ["" if v is None or id(v) not in self.values else v.name or "" for v in node.inputs[:7]]
        for i, array in ((1, W), (2, R)):
            names[i] = f"{node.outputs[0].name} {'WR'[i - 1]} in float32"
            self.initializers.append(onnx.numpy_helper.from_array(np.ascontiguousarray(array), names[i]))
        options = {name: attribute(node, name) for name in node.attributes}
        return onnx.helper.make_node("LSTM", names, [v.name or "" for v in node.outputs], **options)


def _remove(proto: onnx.NodeProto, name: str) -> None:
    for each in [a for a in proto.attribute if a.name == name]:
        proto.attribute.remove(each)


def _with_layout_0(proto: onnx.NodeProto) -> list[onnx.NodeProto]:
    before, after = [], []
    _remove(proto, "layout")
    for i in (0, 5, 6):  # X, initial_h and initial_c
        if i < len(proto.input) and proto.input[i]:
            name, proto.input[i] = proto.input[i], f"{proto.output} input {i}"
            before.append(onnx.helper.make_node("Transpose", [name], [proto.input[i]], perm=(1, 0, 2)))
    for i, name in enumerate(list(proto.output)):
        if name:
            proto.output[i] = f"{name} with layout 0"
            perm = (2, 0, 1, 3) if i == 0 else (1, 0, 2)
            after.append(onnx.helper.make_node("Transpose", [proto.output[i]], [name], perm=perm))
    return [*before, proto, *after]


def _proto(node: onnx_ir.Node) -> onnx.NodeProto:
    try:
        with quiet():
            return onnx_ir.to_proto(node)
    except Exception:  # of many types, for an attribute or a text that onnx_ir has read but cannot write
        raise Unchecked(f"onnx_ir cannot write node {named(node)}") from None


def _captured(node: onnx_ir.Node) -> list[onnx_ir.Value]:
    """Returns the values of outer graphs that the graphs inside of a node read."""
    own, read = set[int](), dict[int, onnx_ir.Value]()
    stack = [graph for _, graph in subgraphs(node)]
    while stack:
        graph = stack.pop()
        own.update(map(id, (*graph.inputs, *graph.initializers.values())))
        read |= {id(v): v for v in graph.outputs}
        for inner in graph:
            own.update(map(id, inner.outputs))
            read |= {id(v): v for v in inner.inputs if v is not None}
            stack += [each for _, each in subgraphs(inner)]
    return [v for key, v in read.items() if key not in own]
