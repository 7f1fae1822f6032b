"""Builds ONNX graphs with expressions: `a + b` on two Values adds an Add node to their graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from . import OPSETS

Array = np.ndarray
Shape = Sequence[int | str]
TYPES = {"float": TensorProto.FLOAT, "int32": TensorProto.INT32, "int64": TensorProto.INT64,
         "bool": TensorProto.BOOL, "bfloat16": TensorProto.BFLOAT16}  # fmt: skip


class Value:
    """A value of a graph under construction. Operators and methods add nodes to the graph."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph, self.name = graph, name

    def __add__(self, other: Value) -> Value:
        return self.graph.node("Add", self, other)

    def __sub__(self, other: Value) -> Value:
        return self.graph.node("Sub", self, other)

    def __mul__(self, other: Value) -> Value:
        return self.graph.node("Mul", self, other)

    def __truediv__(self, other: Value) -> Value:
        return self.graph.node("Div", self, other)

    def __rsub__(self, other: float) -> Value:
        return self.graph.node("Sub", self.graph.number(other), self)

    def __rmul__(self, other: float) -> Value:
        return self.graph.node("Mul", self.graph.number(other), self)

    def __radd__(self, other: float) -> Value:
        return self.graph.node("Add", self.graph.number(other), self)


class Graph:
    """A graph under construction: a main graph, or the body of a Scan in the graph `outer`.

    All arrays, also of bodies, become initializers of the main graph. Names are unique in the whole file.
    opset: the file's opset version, at least the first that has all operators used.
    """

    def __init__(self, name: str, outer: Graph | None = None, opset: int = OPSETS[0]) -> None:
        self.name, self.outer = name, outer
        self.opset: int = outer.opset if outer else opset
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.arrays: dict[str, Array] = outer.arrays if outer else {}
        self.used: dict[str, int] = outer.used if outer else {}
        self.prefix = ""
        self.renamed: dict[str, str] = {}

    def fresh(self, name: str) -> str:
        """Returns an unused name: `name`, or `name` with a number."""
        name = self.prefix + name
        count = self.used[name] = self.used.get(name, 0) + 1
        return name if count == 1 else f"{name}_{count}"

    def input(self, name: str, dtype: str, shape: Shape) -> Value:
        name = self.fresh(name)
        self.inputs.append(helper.make_tensor_value_info(name, TYPES[dtype], list(shape)))
        return Value(self, name)

    def output(self, value: Value, dtype: str, shape: Shape, name: str = "") -> None:
        """Makes a value an output of the graph. Outputs keep the order of calls. name: renames the value."""
        if any(value.name == each.name for each in self.outputs) or value.name in self.renamed:
            value = self.node("Identity", value)
        if name:
            self.renamed[value.name] = self.fresh(name)
        name = self.renamed.get(value.name, value.name)
        self.outputs.append(helper.make_tensor_value_info(name, TYPES[dtype], list(shape)))

    def array(self, name: str, array: Array) -> Value:
        """Returns an initializer as a Value. Calls with the same name must give equal arrays."""
        self.arrays.setdefault(name, array)
        self.used.setdefault(name, 1)
        return Value(self, name)

    def number(self, value: float) -> Value:
        return self.array(f"number_{np.float32(value)}", np.array(value, np.float32))

    def index(self, value: int) -> Value:
        """Returns an int64 scalar as a Value."""
        return self.array(f"index_{value}", np.array(value, np.int64))

    def integers(self, *values: int) -> Value:
        """Returns an int64 array (n,) as a Value, for node inputs such as axes or sizes."""
        return self.array("_".join(["integers", *map(str, values)]), np.array(values, np.int64))

    def node(self, op: str, *inputs: Value | None, name: str = "", **attributes: Any) -> Value:
        (found,) = self.nodes_of(op, *inputs, name=name, **attributes)
        return found

    def nodes_of(
        self, op: str, *inputs: Value | None, outputs: int = 1, name: str = "", **attributes: Any
    ) -> list[Value]:
        """Adds a node with several outputs and returns them. An input None is omitted."""
        names = [self.fresh(name or op.lower()) for _ in range(outputs)]
        given = ["" if value is None else value.name for value in inputs]
        while given and not given[-1]:
            given.pop()
        self.nodes.append(helper.make_node(op, given, names, names[0], **attributes))
        return [Value(self, each) for each in names]

    def split(self, value: Value, sizes: Sequence[int], axis: int = -1) -> list[Value]:
        if len(sizes) == 1:
            return [value]
        return self.nodes_of("Split", value, self.integers(*sizes), outputs=len(sizes), axis=axis)

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        return values[0] if len(values) == 1 else self.node("Concat", *values, axis=axis)

    def cast(self, value: Value, dtype: str) -> Value:
        return self.node("Cast", value, to=TYPES[dtype])

    def squeeze(self, value: Value, *axes: int) -> Value:
        return self.node("Squeeze", value, self.integers(*axes))

    def unsqueeze(self, value: Value, *axes: int) -> Value:
        return self.node("Unsqueeze", value, self.integers(*axes))

    def where(self, condition: Value, yes: Value, no: Value) -> Value:
        return self.node("Where", condition, yes, no)

    def proto(self, arrays: bool = True) -> onnx.GraphProto:
        """Returns the GraphProto. arrays: True writes arrays as initializers, False as additional inputs."""
        for node in self.nodes:
            for names in (node.input, node.output):
                names[:] = [self.renamed.get(name, name) for name in names]
        if not arrays:
            more = [helper.make_empty_tensor_value_info(name) for name in self.arrays]
            return helper.make_graph(self.nodes, self.name, self.inputs + more, self.outputs)
        stored = [] if self.outer else [numpy_helper.from_array(a, n) for n, a in self.arrays.items()]
        return helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, stored)
