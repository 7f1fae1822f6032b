"""The interface that the recogniser needs from a graph library. onnx_ir satisfies it; fronts are adapters.

Operators, attributes and dtype numbers are ONNX's. The recogniser asks:

    what computes a value        `producer()`; `graph`, `is_graph_input()`, `is_initializer()` if no node does
    its inputs                   `inputs` of a node: values, None for one that is left out
    its attributes               `attribute(node, name)` of graph.py
    its constants                `constant(value)` of graph.py; `Front.array` reads a `const_value`
    its users                    `consumers()`, each node once, and `is_graph_output()`
    its sub-graphs               `subgraphs(node)`, and `parent(graph)`, the node around one

Nodes and values are compared by identity. A shape is None or has an int, or any other object, for each axis.
The `meta` of each graph has the `Front` of its model under FRONT, and under PARENT the node around it. The
`meta` of a node has its place in the graph under PLACE, and under PATH the names of outer nodes and its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

import numpy as np

Array = np.ndarray
Meta = MutableMapping[str, Any]
DOMAINS = ("", "ai.onnx")  # the domains of standard ONNX operators
FRONT, PARENT, PLACE, PATH = "lnrnn.front", "lnrnn.parent", "lnrnn.place", "lnrnn.path"
DTYPES = {1: "float32", 6: "int32", 7: "int64", 9: "bool", 11: "float64"}


class Value(Protocol):
    @property
    def name(self) -> str | None: ...
    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...  # TensorProto.DataType, or None
    @property
    def const_value(self) -> Any: ...  # None or a tensor
    @property
    def meta(self) -> Meta: ...
    @property
    def graph(self) -> Graph | None: ...
    def producer(self) -> Node | None: ...
    def consumers(self) -> Sequence[Node]: ...
    def is_graph_input(self) -> bool: ...
    def is_graph_output(self) -> bool: ...
    def is_initializer(self) -> bool: ...


class Node(Protocol):
    @property
    def name(self) -> str | None: ...
    @property
    def op_type(self) -> str: ...
    @property
    def domain(self) -> str: ...
    @property
    def inputs(self) -> Sequence[Value | None]: ...
    @property
    def outputs(self) -> Sequence[Value]: ...
    @property
    def attributes(self) -> Mapping[str, Any]: ...  # with value, type (AttributeProto.type) and is_ref()
    @property
    def graph(self) -> Graph | None: ...
    @property
    def meta(self) -> Meta: ...


class Graph(Protocol):
    @property
    def inputs(self) -> Sequence[Value]: ...
    @property
    def outputs(self) -> Sequence[Value]: ...
    @property
    def meta(self) -> Meta: ...
    def __iter__(self) -> Iterator[Node]: ...


class Front:
    """Reads the tensors of one model.

    All graphs of the model share one Front. left: the bytes that constant folding may still allocate.
    error: the exception class for invalid graphs.
    """

    error: type[ValueError] = ValueError
    most = "2^26 bytes"

    def __init__(self, left: int = 2**26) -> None:
        self.left = left

    def array(self, tensor: Any, owner: Value | Node) -> Array:
        """Returns the array of a `const_value` or tensor attribute. owner: the value or node that has it."""
        return np.asarray(tensor)

    def dtype(self, number: int) -> np.dtype[Any]:
        return np.dtype(DTYPES[number])

    def take(self, size: int, node: Node) -> None:
        if size > self.left:
            raise self.error(f"constants must need at most {self.most}, got more at node {named(node)}")
        self.left -= size


def named(node: Node) -> str:
    """Returns "'name' (operator)" of a node, for messages."""
    domain = f"{node.domain}." if node.domain not in DOMAINS else ""
    return f"{node.name!r} ({domain}{node.op_type})"


def node_path(graph: str, node: Node) -> str:
    """Returns "graph/name": the path of a node. graph: the path of the graph that contains the node."""
    name = node.name or f"{node.op_type} of {node.outputs[0].name if node.outputs else 'nothing'}"
    return f"{graph}/{name}" if graph else name


def prepare(graph: Graph, front: Front, around: Node | None = None, path: str = "") -> None:
    """Sets the `meta` of a graph and its nodes. Each Front must call this for every graph of a model.

    around: the node that has the graph as an attribute, or None. path: the path of this node in the model.
    """
    graph.meta[FRONT], graph.meta[PARENT] = front, around
    for place, node in enumerate(graph):
        node.meta[PLACE], node.meta[PATH] = place, node_path(path, node)
