"""Reads and checks ONNX files, and iterates over their graphs.

A file may be damaged or hostile, so `read` checks it before anything is computed. `checked_graphs` checks
nodes with ONNX's own schemas, so that lnrnn.recognise may rely on their inputs and attributes.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.inliner
import onnx_ir

from ..errors import bad_type, message
from ..recognise.graph import forget, subgraphs
from ..recognise.interface import DOMAINS, Array, Front, named, node_path, prepare
from ..recognise.patterns import OPERATORS
from .errors import OnnxFileError, naming, quiet, text_of

MOST_BYTES = 2**31 - 1  # of a protobuf
MOST_TIMES, LEAST = 16, 2**22  # function inlining: largest growth, unless below LEAST bytes
SOURCE = "lnrnn.source"  # key of Model.meta with the path of the file, or ""


# --- reading ------------------------------------------------------------------------------------------------


def read(path_or_model: Any, keep: str | None = None) -> onnx_ir.Model:
    """Reads and checks a model. path_or_model: a path, bytes, an onnx.ModelProto or an onnx_ir.Model.

    keep: a domain whose functions are not inlined, or None. Raises OnnxFileError for a damaged file, and for
    a model that breaks a rule of the format. For example, a graph may have a name twice, or a node may read a
    value that no earlier node computes.
    """
    path = os.fspath(path_or_model) if isinstance(path_or_model, (str, os.PathLike)) else ""
    with naming(path):
        model = _read(path_or_model, keep)
    model.meta[SOURCE] = path
    return model


def _read(path_or_model: Any, keep: str | None) -> onnx_ir.Model:
    if isinstance(path_or_model, onnx_ir.Model):
        model, size, folder = path_or_model, 2**40, None
    else:
        proto, size, folder = _proto(path_or_model)
        _check_names(proto.graph)
        model = _converted(proto)
    versions = {version for domain, version in model.opset_imports.items() if domain in DOMAINS}
    if len(versions) > 1:
        raise OnnxFileError(f"ONNX's operators must have one version, got {sorted(versions)}")
    for domain, name, _ in model.functions:
        if domain in DOMAINS or (domain, name) == ("com.microsoft", "DynamicQuantizeLSTM"):
            raise OnnxFileError(f"function {name!r} has the name of a standard operator")
    if any(domain != keep for domain, *_ in model.functions):
        model = _inlined(model, keep)
    if folder is not None:
        for tensor in external_tensors(model):
            tensor.base_dir = folder
    every, inside = list(_walk(model)), dict[onnx_ir.Node | None, list[onnx_ir.Graph]]()
    for _, graph, around in every:
        inside.setdefault(around, []).append(graph)
    for graph in inside[None]:
        _check_order(graph, inside, set())
    front = OnnxFront(size)
    for path, graph, around in every:
        prepare(graph, front, around, path)
    if model is path_or_model:  # the caller may have changed it
        forget(graph for _, graph, _ in every)
    return model


def _proto(source: Any) -> tuple[onnx.ModelProto, int, str | None]:
    """Returns (ModelProto, its size in bytes, folder of external data or None)."""
    if isinstance(source, onnx.ModelProto):
        return source, source.ByteSize(), None
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
    return proto, len(data), folder


def _inlined(model: onnx_ir.Model, keep: str | None) -> onnx_ir.Model:
    """Returns a model with its functions inlined. Their nodes are named "function/node" and a number.

    keep: a domain whose functions stay. All functions stay if onnx cannot convert one to the model's opset,
    if one calls itself, or if the result would be too large.
    """
    folders = {tensor.location: tensor.base_dir for tensor in external_tensors(model)}
    try:
        proto = onnx_ir.to_proto(model)
        bodies = {(f.domain, f.name, f.overload): f.node for f in proto.functions}
        if _size(proto.graph.node, bodies, {}) > MOST_TIMES * proto.ByteSize() + LEAST:
            return model
        kept = [function for function in proto.functions if function.domain == keep]
        for function in kept:
            proto.functions.remove(function)
        for function in proto.functions:
            for node in function.node:
                node.name = f"{function.name}/{node.name or node.op_type}"
        proto = onnx.inliner.inline_local_functions(proto, True)
        proto.functions.extend(kept)
        result = _converted(proto)
    except Exception:  # onnx raises exceptions of many types
        return model
    for tensor in external_tensors(result):
        tensor.base_dir = folders[tensor.location]
    return result


def _size(nodes: Any, bodies: dict[Any, Any], sizes: dict[Any, float]) -> float:
    """Returns the bytes of nodes after inlining. bodies: nodes by function. sizes: a cache by function."""
    total = 0.0
    for node in nodes:
        key = node.domain, node.op_type, node.overload
        if key in bodies and key not in sizes:
            sizes[key] = math.inf  # stays if the function calls itself
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
    """Raises OnnxFileError for faults that onnx_ir accepts.

    They are inputs or initializers with equal names, names that are not UTF-8, and attributes without a
    type. An initializer of a sub-graph must not have the name of an input: the input would replace it.
    """
    outermost, sparse = graph, set[str]()
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
                f"inputs of sub-graph {graph.name!r} must not be initializers too, got {min(both)!r}"
            )
        sparse |= {tensor.values.name for tensor in graph.sparse_initializer}
        for node in graph.node:
            if not sparse.isdisjoint(node.input):
                raise OnnxFileError(
                    f"initializers must not be sparse, got one at {node.name or node.op_type!r}"
                )
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
        if not isinstance(text, str):  # protobuf returns bytes if they are not UTF-8
            raise OnnxFileError(f"names must be text in UTF-8, got {text!r}")


def _check_order(
    graph: onnx_ir.Graph, inside: Mapping[onnx_ir.Node | None, list[onnx_ir.Graph]], known: set[int]
) -> None:
    """Raises OnnxFileError if a node reads a value that no earlier node computes, such as in a cycle.

    inside: sub-graphs by node. known: ids of the outer values that nodes of this graph may read. It is
    restored at the end.
    """
    own = [id(v) for v in (*graph.inputs, *graph.initializers.values())]
    known.update(own)
    for node in graph:
        for value in node.inputs:
            if value is not None and id(value) not in known:
                raise OnnxFileError(
                    f"node {named(node)} must read values of earlier nodes, got {value.name!r}, which no "
                    "earlier node computes"
                )
        for inner in inside.get(node, ()):
            _check_order(inner, inside, known)
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
    """Yields the tensors of initializers and attributes that are stored in other files."""
    for _, graph, _ in _walk(model):
        every = [value.const_value for value in graph.initializers.values()]
        for attribute in (attribute for node in graph for attribute in node.attributes.values()):
            every += [attribute.value] * (attribute.type == onnx_ir.AttributeType.TENSOR)
        yield from (tensor for tensor in every if isinstance(tensor, onnx_ir.ExternalTensor))


# --- tensors ------------------------------------------------------------------------------------------------


class OnnxFront(Front):
    """Reads tensors of an ONNX file. size: bytes of the file, which limit the memory for folded constants."""

    error = OnnxFileError
    most = "16 bytes for each byte of the file"

    def __init__(self, size: int) -> None:
        super().__init__(2**26 + 16 * size)

    def dtype(self, number: int) -> np.dtype[Any]:
        return onnx_ir.DataType(number).numpy()

    def array(self, tensor: Any, owner: Any) -> Array:
        """Returns a tensor's array. Raises OnnxFileError if its dims and type do not fit its data."""
        name: str = getattr(tensor, "name", None) or getattr(owner, "name", None) or ""
        try:
            dims = [int(d) for d in tensor.shape]
            if any(d < 0 for d in dims):
                raise ValueError(f"dims {dims}")
            if isinstance(tensor, onnx_ir.ExternalTensor):
                _check_external(tensor)
            proto = getattr(tensor, "raw", None)
            if isinstance(proto, onnx.TensorProto) and 0 not in dims and not _has_data(proto):
                raise ValueError(f"dims {dims} and no data")
            array = np.asarray(tensor.numpy())
        except (OnnxFileError, MemoryError):
            raise
        except Exception as error:  # asserts and other errors of onnx_ir and NumPy
            raise OnnxFileError(
                f"tensor {name!r} must have the data that its dims and type say, got {text_of(error)}"
            ) from None
        if array.dtype.kind not in "OSU" and array.flags.writeable:
            array = array.view()
            array.flags.writeable = False
        return array


def _has_data(proto: onnx.TensorProto) -> bool:
    fields = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
    return proto.HasField("raw_data") or any(len(getattr(proto, field)) for field in fields)


def external_file(tensor: onnx_ir.ExternalTensor) -> str:
    """Returns the path of external data. Raises OnnxFileError unless it is a file in the model's folder."""
    location = str(tensor.location)
    if not tensor.base_dir:
        raise OnnxFileError(
            f"path_or_model must be a path if the model has external data, got a model with {location!r}"
        )
    folder = os.path.realpath(tensor.base_dir)
    path = os.path.realpath(os.path.join(folder, location))
    if os.path.commonpath([folder, path]) != folder or not os.path.isfile(path):
        expected = "files in the folder of the model's file"
        raise OnnxFileError(message("external data", expected, f"{location!r} for {tensor.name!r}"))
    return path


def _check_external(tensor: onnx_ir.ExternalTensor) -> None:
    start, size, given = tensor.offset or 0, tensor.nbytes, os.path.getsize(external_file(tensor))
    if start < 0 or start + size > given or (tensor.length or size) != size:
        expected = f"{size} bytes in {str(tensor.location)!r}"
        got = f"a part of {given} bytes from {start}, of length {tensor.length}"
        raise OnnxFileError(message(f"external data of tensor {tensor.name!r}", expected, got))


# --- walking ------------------------------------------------------------------------------------------------


def graphs(model: onnx_ir.Model) -> Iterator[tuple[str, onnx_ir.Graph]]:
    """Yields (path, graph) for the main graph, with path "", and for all sub-graphs and bodies of functions.

    The path of a sub-graph is "path of its node/attribute name".
    """
    for path, graph, _ in _walk(model):
        yield path, graph


def _walk(model: onnx_ir.Model) -> Iterator[tuple[str, onnx_ir.Graph, onnx_ir.Node | None]]:
    """Yields (path, graph, node). node: the node that has the graph as an attribute, or None."""
    stack: list[tuple[str, onnx_ir.Graph, onnx_ir.Node | None]]
    stack = [(f"function {f.name}", f.graph, None) for f in reversed(list(model.functions.values()))]
    stack.append(("", model.graph, None))
    while stack:
        path, graph, node_around = stack.pop()
        yield path, graph, node_around
        inner = [(f"{node_path(path, node)}/{name}", each, node)
                 for node in graph for name, each in subgraphs(node)]  # fmt: skip
        stack.extend(reversed(inner))


def opset_of(model: onnx_ir.Model) -> int | None:
    """Returns the opset version of ONNX's own domain, or None."""
    return model.opset_imports.get("", model.opset_imports.get("ai.onnx"))


# --- nodes --------------------------------------------------------------------------------------------------


# Operators whose nodes are checked: cell steps, and nodes around them, consist of these.
CHECKED = frozenset((
    "Add", "Cast", "Concat", "ConcatFromSequence", "Div", "Exp", "Expand", "Gather", "Gemm", "Greater",
    "Identity", "LayerNormalization", "Less", "Loop", "MatMul", "Mul", "Neg", "Not", "Pow", "Range",
    "Reciprocal", "ReduceMean", "Reshape", "ReverseSequence", "Scan", "SequenceAt", "SequenceConstruct",
    "SequenceEmpty", "SequenceInsert", "SequenceLength", "Shape", "Slice", "Split", "SplitToSequence",
    "Sqrt", "Squeeze", "Sub", "Sum", "Transpose", "Unsqueeze", "Where", *OPERATORS.values(),
))  # fmt: skip


def checked_graphs(model: onnx_ir.Model) -> tuple[list[onnx_ir.Graph], list[onnx_ir.Graph]]:
    """Checks nodes with ONNX's schemas. Returns (graphs outside, graphs inside of functions).

    Nodes in functions are not checked, since their attributes may be arguments. Raises OnnxFileError for
    inputs, outputs or attributes that an operator does not have.
    """
    version = min(max(opset_of(model) or 1, 1), onnx.defs.onnx_opset_version())
    own, of_functions = list[onnx_ir.Graph](), list[onnx_ir.Graph]()
    for path, graph in graphs(model):
        (of_functions if path.startswith("function ") else own).append(graph)
    for node in (node for graph in own for node in graph):
        if node.domain in DOMAINS and node.op_type in CHECKED and (wrong := _wrong(node, version)):
            raise OnnxFileError(f"node {named(node)} must follow ONNX's rules, got {wrong}")
    return own, of_functions


def _wrong(node: onnx_ir.Node, opset: int) -> str:
    """Returns how a node breaks its operator's schema, such as "3 inputs", or "" if it does not."""
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return f"an operator that opset {opset} does not have"
    optional = onnx.defs.OpSchema.FormalParameterOption.Single
    if not schema.min_input <= len(node.inputs) <= schema.max_input:
        return f"{len(node.inputs)} inputs"
    if not schema.min_output <= len(node.outputs) <= schema.max_output:
        return f"{len(node.outputs)} outputs"
    for k, formal in enumerate(schema.inputs[: len(node.inputs)]):
        if node.inputs[k] is None and formal.option == optional:
            return f"no input {formal.name!r}"
    for name, attribute in schema.attributes.items():
        given = node.attributes.get(name)
        if given is None:
            if attribute.required:
                return f"no attribute {name!r}"
        elif given.is_ref() or int(given.type) != int(attribute.type.value):  # type: ignore[attr-defined]
            return f"an attribute {name!r} of another type"
    return _wrong_values({name: node.attributes.get(name) for name in schema.attributes}, node)


def _wrong_values(attributes: Mapping[str, onnx_ir.Attr | None], node: onnx_ir.Node) -> str:
    """Returns a text about invalid axes or directions of a node, or "". attributes: those of its schema."""
    order = attributes.get("perm")
    if order is not None and sorted(order.value) != list(range(len(order.value))):
        return f"perm {list(order.value)[:10]}"
    data = node.inputs[0] if node.inputs else None
    if (
        order is not None
        and data is not None
        and data.shape is not None
        and len(data.shape) != len(order.value)
    ):
        return f"perm {list(order.value)[:10]} for {len(data.shape)} axes"
    axis = attributes.get("axis")
    if axis is not None and not -100 <= axis.value <= 100:
        return f"axis {axis.value}"
    for name in ("scan_input_directions", "scan_output_directions"):
        given = attributes.get(name)
        if given is not None and not {*given.value} <= {0, 1}:
            return f"{name} {list(given.value)[:10]}"
    return ""
