"""Finds the arrays of values that depend on constants only.

The sum of all arrays that are made for one model is bounded by the size of its file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir

from ...errors import message
from ..errors import OnnxFileError, text_of
from .folding import DOMAINS, FOLDED, MOVES, Unfolded, named, size_of

Array = np.ndarray
_VALUE, _MEMORY = "lnrnn.constant", "lnrnn.memory"
_ROW = "lnrnn.row"  # a result of `constant` with any_batch
_REPEATS = ("ConstantOfShape", "Expand", "Reshape", "Tile")  # the last input may have the number of sequences
_LEAST = 2**26  # bytes that arrays of any file may have
_TIMES = 16  # further bytes, for each byte of the file


@dataclass
class Memory:
    """The bytes that `constant` may still use for the arrays of one model."""

    left: int

    def take(self, size: int, node: onnx_ir.Node) -> None:
        if size > self.left:
            raise OnnxFileError(
                f"constants must need at most {_TIMES} bytes for each byte of the file, got more at node "
                f"{named(node)}"
            )
        self.left -= size


def with_memory(graphs: Iterable[onnx_ir.Graph], size: int) -> None:
    """Sets the memory that the arrays of these graphs share. size: the bytes of the model's file."""
    shared = Memory(_LEAST + _TIMES * size)
    for graph in graphs:
        graph.meta[_MEMORY] = shared


def forget(graphs: Iterable[onnx_ir.Graph]) -> None:
    """Removes the results of `constant`."""
    for graph in graphs:
        outputs = (value for node in graph for value in node.outputs)
        for value in (*graph.inputs, *graph.initializers.values(), *outputs):
            value.meta.pop(_VALUE, None)
            value.meta.pop(_ROW, None)


def constant(value: onnx_ir.Value | None, any_batch: bool = False) -> Array | None:
    """Returns the array of a value that depends on constants only, else None. The array is read-only.

    The model must come from `read`. An initializer that is also an input has its default. The operators are
    those of folding.py. Raises OnnxFileError for a constant whose nodes or data are wrong. any_batch: for an
    initial state also if nodes repeat it for the number of sequences; it is not repeated then.
    """
    if value is None:
        return None
    stack, key = [value], _ROW if any_batch else _VALUE
    while stack:  # a loop, since chains of nodes may be longer than Python's stack
        top = stack[-1]
        if key in top.meta:
            stack.pop()
            continue
        node = top.producer()
        if top.const_value is not None and (node is None or top.is_initializer()):
            top.meta[key] = _loaded(top.const_value, top)
            continue
        known = (*FOLDED, *_REPEATS) if any_batch else FOLDED
        if node is None or node.domain not in DOMAINS or node.op_type not in known:
            top.meta[key] = None
            continue
        inputs = [v for v in node.inputs if v is not None]
        missing = [v for v in inputs if key not in v.meta]
        if missing:
            stack.append(missing[0])
            continue
        fixed = all(v.meta[key] is not None for v in inputs) or (any_batch and node.op_type in _REPEATS)
        results = _computed(node, key) if fixed else [None] * len(node.outputs)
        for output, result in zip(node.outputs, results, strict=False):
            output.meta[key] = result
        top.meta.setdefault(key, None)
    array: Array | None = value.meta[key]
    return array


def is_zero(value: onnx_ir.Value | None) -> bool:
    """Returns whether all numbers of a value are 0, whatever its shape is. None, a value left out, is 0."""
    stack, seen = [value], set()
    while stack:
        top = stack.pop()
        if top is None or id(top) in seen:
            continue
        seen.add(id(top))
        array, node = constant(top), top.producer()
        if array is not None:
            if array.dtype.kind in "OSU" or array.astype(bool).any():
                return False
        elif node is None or node.domain not in DOMAINS:
            return False
        elif node.op_type == "ConstantOfShape":
            fill = node.attributes.get("value")
            if fill is not None and (fill.is_ref() or _loaded(fill.value, node).astype(bool).any()):
                return False
        elif node.op_type in ("Add", "Concat", "Sub"):
            stack.extend(node.inputs)
        elif node.op_type == "Mul" and constant(node.inputs[1]) is None:  # 0 * x may be NaN
            return False
        elif node.op_type in (*MOVES, "Mul", "Neg", "Relu", "Tanh", "Tile") and node.inputs:
            stack.append(node.inputs[0])
        else:
            return False
    return True


def memory(graph: onnx_ir.Graph | None) -> Memory:
    """Returns the memory that is left for the arrays of a graph's model."""
    if graph is None:  # pragma: no cover - a node without a graph, which only a program can make
        return Memory(_LEAST)
    result: Memory = graph.meta.setdefault(_MEMORY, Memory(_LEAST))
    return result


def _loaded(tensor: Any, owner: Any) -> Array:
    """Returns the numbers of a tensor, after a comparison of its dims with its data."""
    name: str = getattr(tensor, "name", None) or getattr(owner, "name", None) or ""
    try:
        dims = [int(d) for d in tensor.shape]
        if any(d < 0 for d in dims):
            raise Unfolded(f"dims {dims}")
        if isinstance(tensor, onnx_ir.ExternalTensor):
            _check_external(tensor)
        proto = getattr(tensor, "raw", None)
        if isinstance(proto, onnx.TensorProto) and 0 not in dims and not _has_data(proto):
            raise Unfolded(f"dims {dims} and no data")
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
    """Returns the path of external data. Refuses all but regular files in the folder of the model's file."""
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


def _computed(node: onnx_ir.Node, key: str) -> list[Array | None]:
    """Returns the outputs of a node whose inputs are constants. key: of their arrays in `meta`."""
    left = memory(node.graph)
    inputs = [None if v is None else v.meta[key] for v in node.inputs]
    sized = node.op_type != "Tile" and any(a is not None for a in inputs[-1:])
    if key == _ROW and node.op_type in _REPEATS and not sized:
        if node.op_type != "ConstantOfShape":
            return inputs[:1]
        inputs = [np.ones(1, np.int64)]
    try:
        if node.op_type == "Constant":
            tensor = node.attributes.get("value")
            if tensor is not None and not tensor.is_ref():
                return [_loaded(tensor.value, node)]
        left.take(size_of(node, inputs), node)
        with np.errstate(all="ignore"):
            results = FOLDED[node.op_type](node, inputs)
    except (OnnxFileError, MemoryError):
        raise
    except Unfolded:
        return [None] * len(node.outputs)
    except Exception as error:  # wrong attributes and shapes give errors of many types
        if key == _ROW:  # the constant may have another shape than the file's value
            return [None] * len(node.outputs)
        raise OnnxFileError(f"node {named(node)} must fit its constant inputs: {text_of(error)}") from None
    for result in results:
        if result is not None and result.flags.writeable:
            result.flags.writeable = False
    return list(results)
