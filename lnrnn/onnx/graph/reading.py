"""Reads ONNX files safely, and walks their graphs.

A file may be damaged or hostile, so `read` checks it before anything is computed.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from typing import Any

import onnx
import onnx.inliner
import onnx_ir

from ...errors import bad_type
from ..errors import OnnxFileError, naming, quiet, text_of
from .constants import forget, with_memory
from .folding import DOMAINS, named

_PARENT = "lnrnn.parent"
MOST_BYTES = 2**31 - 1  # of a protobuf
MOST_TIMES, LEAST = 16, 2**22  # the bytes of a model without functions, for each byte with them, and more
PATH = "lnrnn.path"  # of a model's file, "" without one


# --- reading ------------------------------------------------------------------------------------------------


def read(path_or_model: Any) -> onnx_ir.Model:
    """Returns the model of a file, of bytes, of an onnx.ModelProto, or an onnx_ir.Model.

    Raises OnnxFileError for a damaged file, and for a model that breaks a rule of the format. For example, a
    graph may have a name twice, or a node may read a value that no earlier node computes.
    """
    path = os.fspath(path_or_model) if isinstance(path_or_model, (str, os.PathLike)) else ""
    with naming(path):
        model = _read(path_or_model)
    model.meta[PATH] = path
    return model


def _read(path_or_model: Any) -> onnx_ir.Model:
    if isinstance(path_or_model, onnx_ir.Model):
        model, size, folder = path_or_model, 2**40, None
    else:
        proto, folder = _proto(path_or_model)
        size = proto.ByteSize()
        _check_names(proto.graph)
        model = _converted(proto)
    versions = {version for domain, version in model.opset_imports.items() if domain in DOMAINS}
    if len(versions) > 1:
        raise OnnxFileError(f"ONNX's operators must have one version, got {sorted(versions)}")
    for domain, name, _ in model.functions:
        if domain in DOMAINS or (domain, name) == ("com.microsoft", "DynamicQuantizeLSTM"):
            raise OnnxFileError(f"functions must have names of their own, got {name!r}, an operator's")
    if model.functions:
        model = _inlined(model)
    every = []
    for _, graph, around in _walk(model):
        graph.meta[_PARENT] = around
        every.append(graph)
    if model is path_or_model:  # its owner may have changed it
        forget(every)
    with_memory(every, size)
    for graph in (model.graph, *(f.graph for f in model.functions.values())):
        _check_order(graph)
    if folder is not None:
        for tensor in external_tensors(model):
            tensor.base_dir = folder
    return model


def _proto(source: Any) -> tuple[onnx.ModelProto, str | None]:
    """Returns the ModelProto of read's argument, and the folder of external data."""
    if isinstance(source, onnx.ModelProto):
        return source, None
    folder = None
    if isinstance(source, (str, os.PathLike)):
        folder = os.path.dirname(os.path.abspath(source))
        status = os.stat(source)
        if not stat.S_ISREG(status.st_mode):
            raise OnnxFileError(f"path_or_model must be a file, got {str(source)!r}")
        if status.st_size > MOST_BYTES:
            raise OnnxFileError(f"an ONNX file must have at most {MOST_BYTES} bytes, got {status.st_size}")
        with open(source, "rb") as file:
            data = file.read()
    elif isinstance(source, (bytes, bytearray, memoryview)):
        data = bytes(source)
    else:
        raise bad_type("path_or_model", "a path, bytes, an onnx.ModelProto or an onnx_ir.Model", source)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception as error:  # DecodeError of protobuf, whose module depends on its version
        raise OnnxFileError(f"the file must be an ONNX model, got other or damaged bytes: {error}") from None
    if not proto.HasField("graph"):
        raise OnnxFileError("the file must be an ONNX model, got bytes without a graph")
    return proto, folder


def _inlined(model: onnx_ir.Model) -> onnx_ir.Model:
    """Returns a model without its functions. The names of their nodes are "function/node" and a number.

    They stay if onnx cannot convert one to the model's opset, call themselves, or make the model too large.
    """
    folders = {tensor.location: tensor.base_dir for tensor in external_tensors(model)}
    try:
        proto = onnx_ir.to_proto(model)
        bodies = {(f.domain, f.name, f.overload): f.node for f in proto.functions}
        if _size(proto.graph.node, bodies, {}) > MOST_TIMES * proto.ByteSize() + LEAST:
            return model
        for function in proto.functions:
            for node in function.node:
                node.name = f"{function.name}/{node.name or node.op_type}"
        result = _converted(onnx.inliner.inline_local_functions(proto, True))
    except Exception:  # of many types
        return model
    for tensor in external_tensors(result):
        tensor.base_dir = folders[tensor.location]
    return result


def _size(nodes: Any, bodies: dict[Any, Any], sizes: dict[Any, float]) -> float:
    """Returns the bytes of nodes and of the functions that they call. sizes: those of functions, by name."""
    total = 0.0
    for node in nodes:
        key = node.domain, node.op_type, node.overload
        if key in bodies and key not in sizes:
            sizes[key] = math.inf  # for a function that calls itself
            sizes[key] = _size(bodies[key], bodies, sizes)
        inner = [n for a in node.attribute for g in (a.g, *a.graphs) for n in g.node]
        total += sizes.get(key, 0) + node.ByteSize() + _size(inner, bodies, sizes)
    return total


def _converted(proto: onnx.ModelProto) -> onnx_ir.Model:
    try:
        with quiet():
            return onnx_ir.from_proto(proto)
    except MemoryError:  # pragma: no cover - an error of the machine
        raise
    except Exception as error:  # onnx_ir wraps errors of all types
        cause: BaseException = error
        while (inner := cause.__cause__ or cause.__context__) is not None:
            cause = inner
        raise OnnxFileError(f"the file must follow ONNX's rules; onnx_ir says: {text_of(cause)}") from None


def _check_names(graph: onnx.GraphProto) -> None:
    """Refuses faults that onnx_ir accepts.

    These are equal names of inputs or of initializers, names that are no UTF-8, and attributes without types.
    An input of a sub-graph may have no default either, since a value around the sub-graph replaces it.
    """
    outermost = graph
    stack = [graph]
    while stack:
        graph = stack.pop()
        _check_texts(graph.name, *(v.name for v in (*graph.input, *graph.initializer, *graph.output)))
        for what, values in (("inputs", graph.input), ("initializers", graph.initializer)):
            names: set[str] = set()
            for value in values:
                if not value.name:
                    raise OnnxFileError(f"{what} must have names, got an empty one in graph {graph.name!r}")
                if value.name in names:
                    raise OnnxFileError(
                        f"{what} must have different names, got {value.name!r} twice in graph {graph.name!r}"
                    )
                names.add(value.name)
        both = {v.name for v in graph.input} & {v.name for v in graph.initializer}
        if both and graph is not outermost:
            raise OnnxFileError(
                f"inputs of sub-graph {graph.name!r} must be no initializers, got {min(both)!r}"
            )
        for node in graph.node:
            _check_texts(node.name, node.op_type, node.domain, *node.input, *node.output)
            for attribute in node.attribute:
                if not (attribute.type or attribute.ref_attr_name):
                    raise OnnxFileError(
                        f"attributes must have types, got none for {attribute.name!r} of node {node.name!r}"
                    )
                if attribute.HasField("g"):
                    stack.append(attribute.g)
                stack.extend(attribute.graphs)


def _check_texts(*texts: str) -> None:
    for text in texts:
        if not isinstance(text, str):  # protobuf returns bytes that are not UTF-8 as they are
            raise OnnxFileError(f"names must be text in UTF-8, got {text!r}")


def _check_order(graph: onnx_ir.Graph, known: set[int] | None = None) -> None:
    """Refuses a node that reads a value of no earlier node. So it refuses cycles.

    known: the identities of the values that the nodes of this graph may read. It is the same afterwards.
    """
    known = set() if known is None else known
    own = [id(v) for v in (*graph.inputs, *graph.initializers.values())]
    known.update(own)
    for node in graph:
        for value in node.inputs:
            if value is not None and id(value) not in known:
                raise OnnxFileError(
                    f"node {named(node)} must read values of earlier nodes, got {value.name!r}, which no "
                    "earlier node computes"
                )
        for _, inner in subgraphs(node):
            _check_order(inner, known)
        outputs = [id(value) for value in node.outputs]
        known.update(outputs)
        own += outputs
    for value in graph.outputs:
        if id(value) not in known:
            raise OnnxFileError(
                f"graph {graph.name!r} must compute its outputs, got {value.name!r}, which no node computes"
            )
    known.difference_update(own)


def external_tensors(model: onnx_ir.Model) -> Iterator[onnx_ir.ExternalTensor]:
    """Yields the tensors of initializers and attributes whose data is in other files."""
    for _, graph, _ in _walk(model):
        every = [value.const_value for value in graph.initializers.values()]
        for attribute in (attribute for node in graph for attribute in node.attributes.values()):
            every += [attribute.value] * (attribute.type == onnx_ir.AttributeType.TENSOR)
        yield from (tensor for tensor in every if isinstance(tensor, onnx_ir.ExternalTensor))


# --- walking ------------------------------------------------------------------------------------------------


def graphs(model: onnx_ir.Model) -> Iterator[tuple[str, onnx_ir.Graph]]:
    """Yields (path, graph) for the main graph, "", and for all graphs inside of nodes or functions.

    The path of a graph inside of a node is the path of the node, "/" and the name of the attribute.
    """
    for path, graph, _ in _walk(model):
        yield path, graph


def _walk(model: onnx_ir.Model) -> Iterator[tuple[str, onnx_ir.Graph, onnx_ir.Node | None]]:
    """Yields (path, graph, the node with this graph)."""
    stack: list[tuple[str, onnx_ir.Graph, onnx_ir.Node | None]]
    stack = [(f"function {f.name}", f.graph, None) for f in reversed(list(model.functions.values()))]
    stack.append(("", model.graph, None))
    while stack:
        path, graph, node_around = stack.pop()
        yield path, graph, node_around
        inner = [(f"{node_path(path, node)}/{name}", each, node)
                 for node in graph for name, each in subgraphs(node)]  # fmt: skip
        stack.extend(reversed(inner))


def subgraphs(node: onnx_ir.Node) -> Iterator[tuple[str, onnx_ir.Graph]]:
    """Yields (name, graph) for the graphs in attributes of a node: the branches of an If, for example."""
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == onnx_ir.AttributeType.GRAPH:
            yield attribute.name, attribute.value
        elif attribute.type == onnx_ir.AttributeType.GRAPHS:
            yield from ((f"{attribute.name}{i}", graph) for i, graph in enumerate(attribute.value))


def node_path(graph: str, node: onnx_ir.Node) -> str:
    """Returns the path of a node in the graph with the path `graph`."""
    name = node.name or f"{node.op_type} of {node.outputs[0].name if node.outputs else 'nothing'}"
    return f"{graph}/{name}" if graph else name


def parent(graph: onnx_ir.Graph | None) -> onnx_ir.Node | None:
    """Returns the node that has the graph as an attribute, or None. The model must come from `read`."""
    result: onnx_ir.Node | None = None if graph is None else graph.meta.get(_PARENT)
    return result


def loop_around(graph: onnx_ir.Graph | None, within_if: bool = False) -> onnx_ir.Node | None:
    """Returns the Loop or Scan whose body is the graph, or None. within_if: also around nodes If."""
    node = parent(graph)
    while within_if and node is not None and node.op_type == "If":
        node = parent(node.graph)
    is_loop = node is not None and node.op_type in ("Loop", "Scan") and node.domain in DOMAINS
    return node if is_loop else None


def opset_of(model: onnx_ir.Model) -> int | None:
    """Returns the version of ONNX's operators in a model."""
    return model.opset_imports.get("", model.opset_imports.get("ai.onnx"))
