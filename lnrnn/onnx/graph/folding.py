"""The operators that `constant` of constants.py computes: those between the weights of a file and its nodes.

Each function has (node, inputs) as arguments and returns the outputs. The inputs are arrays, or None for
those that are left out. `FOLDED` has the functions by operator, and `size_of` the bytes that a result needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir

from ...errors import message

Array = np.ndarray
DOMAINS = ("", "ai.onnx")  # of ONNX's own operators
Inputs = Sequence[Array | None]


class Unfolded(Exception):
    """Raised for a node that is valid and not computed. In constants.py it has the text of an error."""


def named(node: onnx_ir.Node) -> str:
    """Returns a text for messages: the name and the operator of a node."""
    domain = f"{node.domain}." if node.domain not in DOMAINS else ""
    return f"{node.name!r} ({domain}{node.op_type})"


def refused(node: onnx_ir.Node, name: str, expected: str, got: Any, do: str = "") -> ValueError:
    """Returns the error for a node that breaks a rule. name: its attribute or input."""
    return ValueError(message(f"node {named(node)}: {name}", expected, str(got), do))


def without_equivalent(node: onnx_ir.Node, has: str, reason: str) -> ValueError:
    """Returns the error for a valid node that no network can replace. has: its attribute or input."""
    return ValueError(f"node {named(node)} has {has}, and {reason}")


def attribute(node: onnx_ir.Node, name: str, default: Any = None) -> Any:
    """Returns the value of an attribute. Raises Unfolded for an argument of the function around the node."""
    found = node.attributes.get(name)
    if found is None:
        return default
    if found.is_ref():
        raise Unfolded("an attribute of a function")
    return found.value


def size_of(node: onnx_ir.Node, inputs: Inputs) -> int:
    """Returns the bytes of a node's results, 0 for views of the inputs, before they are computed."""
    given = sum(a.nbytes for a in inputs if a is not None)
    op = node.op_type
    if op == "ConstantOfShape":
        return _count(_numbers(inputs, 0)) * 8
    if op == "Expand":
        shape = tuple(int(i) for i in _numbers(inputs, 1))
        return _count(np.broadcast_shapes(_array(inputs, 0).shape, shape)) * 8
    if op in ("Cast", "CastLike", "DequantizeLinear"):
        return 8 * _array(inputs, 0).size
    return given if op in ("Concat", "Gather", "Reshape") else 64


def _count(shape: Any) -> int:
    result = 1
    for size in shape:
        if size < 0:
            raise ValueError(f"a shape must have no negative number, got {size}")
        result *= int(size)
    return result


def _array(inputs: Inputs, i: int) -> Array:
    result = inputs[i] if i < len(inputs) else None
    if result is None:
        raise ValueError(f"input {i} must be given")
    return result


def _optional(inputs: Inputs, i: int) -> Array | None:
    return inputs[i] if i < len(inputs) else None


def _numbers(inputs: Inputs, i: int) -> Array:
    """An input with integers, such as a shape or axes."""
    result = _array(inputs, i)
    if result.dtype.kind not in "iu" or result.ndim > 1:
        raise ValueError(f"input {i} must be integers, got {result.dtype} of shape {result.shape}")
    return result.reshape(-1)


def _axes(node: onnx_ir.Node, inputs: Inputs) -> list[int] | None:
    """The axes of Squeeze and Unsqueeze: an input since opset 13, an attribute before."""
    if _optional(inputs, 1) is not None:
        return [int(i) for i in _numbers(inputs, 1)]
    axes = attribute(node, "axes")
    return None if axes is None else [int(i) for i in axes]


def _identity(node: onnx_ir.Node, inputs: Inputs) -> list[Array]:
    return [_array(inputs, 0)[...]]


def _constant(node: onnx_ir.Node, inputs: Inputs) -> list[Array]:
    for name, dtype in (("value_float", np.float32), ("value_floats", np.float32), ("value_int", np.int64),
                        ("value_ints", np.int64)):  # fmt: skip
        value = attribute(node, name)
        if value is not None:
            return [np.asarray(value, dtype)]
    raise Unfolded("a constant of strings")


def _slice(node: onnx_ir.Node, inputs: Inputs) -> list[Array]:
    data = _array(inputs, 0)
    if _optional(inputs, 1) is not None:
        starts, ends = _numbers(inputs, 1), _numbers(inputs, 2)
        axes = _numbers(inputs, 3) if _optional(inputs, 3) is not None else range(len(starts))
        steps = _numbers(inputs, 4) if _optional(inputs, 4) is not None else [1] * len(starts)
    else:  # opset 9 and before
        starts, ends = attribute(node, "starts", ()), attribute(node, "ends", ())
        axes, steps = attribute(node, "axes") or range(len(starts)), [1] * len(starts)
    where: dict[int, slice] = {}
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        axis, start, end, step = int(axis), int(start), int(end), int(step)
        size = data.shape[axis]
        if axis % data.ndim in where:
            raise ValueError(f"the axes must be different, got {list(axes)}")
        if step < 0 and end >= 2**31 - 1:
            raise Unfolded("an end that ONNX Runtime reads as -1")
        if step < 0:  # a negative end of NumPy counts from the last element, also if it is -1
            start = max(start + size if start < 0 else start, 0)
            end = end + size if end < 0 else end
        where[axis % data.ndim] = slice(start, None if step < 0 and end < 0 else end, step)
    return [data[tuple(where.get(axis, slice(None)) for axis in range(data.ndim))]]


def _concat(node: onnx_ir.Node, inputs: Inputs) -> list[Array]:
    parts = [_array(inputs, i) for i in range(len(inputs))]
    return [np.concatenate(parts, int(attribute(node, "axis", 1)))]


def _unsqueeze(node: onnx_ir.Node, inputs: Inputs) -> list[Array]:
    return [np.expand_dims(_array(inputs, 0), tuple(_axes(node, inputs) or ()))]


def _squeeze(node: onnx_ir.Node, inputs: Inputs) -> list[Array]:
    axes = _axes(node, inputs)
    if axes == []:
        raise Unfolded("no axes, which runtimes read as all axes or as none")
    return [np.squeeze(_array(inputs, 0), None if axes is None else tuple(axes))]


def _transpose(node: onnx_ir.Node, inputs: Inputs) -> list[Array]:
    return [np.transpose(_array(inputs, 0), attribute(node, "perm"))]


def _reshape(node: onnx_ir.Node, inputs: Inputs) -> list[Array]:
    data = _array(inputs, 0)
    shape = [int(i) for i in (_numbers(inputs, 1) if len(inputs) > 1 else attribute(node, "shape", ()))]
    if not attribute(node, "allowzero", 0):
        shape = [data.shape[i] if size == 0 else size for i, size in enumerate(shape)]
    return [data.reshape(shape)]


def _flatten(node: onnx_ir.Node, inputs: Inputs) -> list[Array]:
    data, axis = _array(inputs, 0), int(attribute(node, "axis", 1))
    if not -data.ndim <= axis <= data.ndim:
        raise ValueError(f"axis {axis} must be one of shape {data.shape}")
    return [data.reshape(_count(data.shape[:axis]), -1)]


def _cast(node: onnx_ir.Node, inputs: Inputs) -> list[Array]:
    to = onnx_ir.DataType(int(attribute(node, "to", 0)))
    if to == onnx_ir.DataType.STRING or _array(inputs, 0).dtype.kind in "OSU":
        raise Unfolded("a cast of strings")
    return [_array(inputs, 0).astype(to.numpy())]


def _split(node: onnx_ir.Node, inputs: Inputs) -> list[Array]:
    data, axis = _array(inputs, 0), int(attribute(node, "axis", 0))
    sizes = _numbers(inputs, 1) if _optional(inputs, 1) is not None else attribute(node, "split")
    if sizes is None:
        parts = len(node.outputs)
        each = -(-data.shape[axis] // parts)  # the last part may be smaller
        least = each * (parts - 1) if "num_outputs" in node.attributes else each * parts
        if not least <= data.shape[axis] <= each * parts:
            raise ValueError(f"axis {axis} of shape {data.shape} must have {parts} parts")
        ends = [min(each * i, data.shape[axis]) for i in range(1, parts)]
    else:
        if sum(int(s) for s in sizes) != data.shape[axis] or len(sizes) != len(node.outputs):
            raise ValueError(f"the sizes {list(sizes)} must divide axis {axis} of shape {data.shape}")
        ends = list(np.cumsum([int(s) for s in sizes]))[:-1]
    return list(np.split(data, ends, axis))


def _shape(node: onnx_ir.Node, inputs: Inputs) -> list[Array]:
    shape = np.array(_array(inputs, 0).shape, np.int64)
    return [shape[attribute(node, "start", 0) : attribute(node, "end")]]


def _constant_of_shape(node: onnx_ir.Node, inputs: Inputs) -> list[Array]:
    tensor = attribute(node, "value")
    value = np.float32(0) if tensor is None else tensor.numpy().reshape(-1)[0]
    return [np.full([int(i) for i in _numbers(inputs, 0)], value)]


def _expand(node: onnx_ir.Node, inputs: Inputs) -> list[Array]:
    data, shape = _array(inputs, 0), tuple(int(i) for i in _numbers(inputs, 1))
    return [np.broadcast_to(data, np.broadcast_shapes(data.shape, shape)).copy()]


def _gather(node: onnx_ir.Node, inputs: Inputs) -> list[Array]:
    data, axis, indices = _array(inputs, 0), int(attribute(node, "axis", 0)), _array(inputs, 1)
    if indices.size > data.shape[axis]:
        raise Unfolded("more numbers than the data has")
    return [np.take(data, indices, axis)]


def _dequantize(node: onnx_ir.Node, inputs: Inputs) -> list[Array]:
    data, scale, zero = _array(inputs, 0), _array(inputs, 1), _optional(inputs, 2)
    if attribute(node, "block_size", 0):
        raise Unfolded("scales of blocks")
    if scale.ndim == 1 and scale.size > 1:
        shape = [1] * data.ndim
        shape[int(attribute(node, "axis", 1))] = -1
        scale, zero = scale.reshape(shape), None if zero is None else zero.reshape(shape)
    elif scale.size != 1:
        raise ValueError(f"the scale must be one number or one for each slice, got shape {scale.shape}")
    else:
        scale, zero = scale.reshape(()), None if zero is None else zero.reshape(())
    if np.broadcast_shapes(data.shape, scale.shape) != data.shape:
        raise ValueError(f"the scale must fit the data, got shapes {scale.shape} and {data.shape}")
    shifted = data.astype(np.float32) if zero is None else data.astype(np.float32) - zero.astype(np.float32)
    return [(shifted * scale).astype(scale.dtype)]


# Operators that only move the numbers of input 0, whatever the other inputs are.
MOVES = ("Cast", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze",
         "Transpose", "Unsqueeze")  # fmt: skip
FOLDED: dict[str, Callable[[onnx_ir.Node, Inputs], Sequence[Array | None]]] = {
    "Cast": _cast,
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "DequantizeLinear": _dequantize,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Identity": _identity,
    "Reshape": _reshape,
    "Shape": _shape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
