"""Finds the arrays of values that depend on constants only.

`FOLDED` has the operators that are computed: those between the weights of a file and its nodes. The sum of
all arrays that are made for one model is bounded, as `Front` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .graph import DOMAINS, Array, Graph, Node, Value, attribute, front_of, has_references, named

_VALUE = "lnrnn.constant"
_ROW = "lnrnn.row"  # a result of `constant` with any_batch
_REPEATS = ("ConstantOfShape", "Expand", "Reshape", "Tile")  # the last input may have the number of sequences
Inputs = Sequence[Array | None]


class Unfolded(Exception):
    """Raised for a node that is valid and not computed."""


def forget(graphs: Iterable[Graph]) -> None:
    """Removes the results of `constant`."""
    for graph in graphs:
        of_nodes = (value for node in graph for value in (*node.inputs, *node.outputs) if value is not None)
        for value in (*graph.inputs, *graph.outputs, *of_nodes):
            value.meta.pop(_VALUE, None)
            value.meta.pop(_ROW, None)


def constant(value: Value | None, any_batch: bool = False) -> Array | None:
    """Returns the array of a value that depends on constants only, else None. The array is read-only.

    An initializer that is also an input has its default. Raises `Front.error` for a constant whose nodes or
    data are wrong. any_batch: for an initial state also if nodes repeat it for the number of sequences; it is
    not repeated then.
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
            top.meta[key] = front_of(top.graph).array(top.const_value, top)
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


def is_zero(value: Value | None) -> bool:
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
            fill = attribute(node, "value")
            if has_references(node) or (
                fill is not None and front_of(node.graph).array(fill, node).astype(bool).any()
            ):
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


def same_bits(a: Array, b: Array) -> bool:
    """Returns whether arrays of numbers have the same dtype, shape and bits."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    places = [(each.__array_interface__["data"], each.strides) for each in (a, b)]
    bits = f"u{a.itemsize}"
    return places[0] == places[1] or np.array_equal(a.view(bits), b.view(bits))


def _computed(node: Node, key: str) -> list[Array | None]:
    """Returns the outputs of a node whose inputs are constants. key: of their arrays in `meta`."""
    front = front_of(node.graph)
    inputs = [None if v is None else v.meta[key] for v in node.inputs]
    sized = node.op_type != "Tile" and any(a is not None for a in inputs[-1:])
    if key == _ROW and node.op_type in _REPEATS and not sized:
        if node.op_type != "ConstantOfShape":
            return inputs[:1]
        inputs = [np.ones(1, np.int64)]
    try:
        if has_references(node):
            raise Unfolded
        tensor = attribute(node, "value") if node.op_type == "Constant" else None
        if tensor is not None:
            return [front.array(tensor, node)]
        front.take(size_of(node, inputs), node)
        with np.errstate(all="ignore"):
            results = FOLDED[node.op_type](node, inputs)
    except (front.error, MemoryError):
        raise
    except Unfolded:
        return [None] * len(node.outputs)
    except Exception as error:  # wrong attributes and shapes give errors of many types
        if key == _ROW:  # the constant may have another shape than the file's value
            return [None] * len(node.outputs)
        text = " ".join(str(error).split())[:300]
        raise front.error(f"node {named(node)} must fit its constant inputs: {text}") from None
    for result in results:
        if result is not None and result.flags.writeable:
            result.flags.writeable = False
    return list(results)


# --- operators ----------------------------------------------------------------------------------------------
# Each function has the node and its inputs as arguments, arrays or None for those left out.


def size_of(node: Node, inputs: Inputs) -> int:
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


def _axes(node: Node, inputs: Inputs) -> list[int] | None:
    """The axes of Squeeze and Unsqueeze: an input since opset 13, an attribute before."""
    if _optional(inputs, 1) is not None:
        return [int(i) for i in _numbers(inputs, 1)]
    axes = attribute(node, "axes")
    return None if axes is None else [int(i) for i in axes]


def _identity(node: Node, inputs: Inputs) -> list[Array]:
    return [_array(inputs, 0)[...]]


def _constant(node: Node, inputs: Inputs) -> list[Array]:
    for name, dtype in (("value_float", np.float32), ("value_floats", np.float32), ("value_int", np.int64),
                        ("value_ints", np.int64)):  # fmt: skip
        value = attribute(node, name)
        if value is not None:
            return [np.asarray(value, dtype)]
    raise Unfolded  # a constant of strings


def _slice(node: Node, inputs: Inputs) -> list[Array]:
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
            raise Unfolded  # an end that ONNX Runtime reads as -1
        if step < 0:  # a negative end of NumPy counts from the last element, also if it is -1
            start = max(start + size if start < 0 else start, 0)
            end = end + size if end < 0 else end
        where[axis % data.ndim] = slice(start, None if step < 0 and end < 0 else end, step)
    return [data[tuple(where.get(axis, slice(None)) for axis in range(data.ndim))]]


def _concat(node: Node, inputs: Inputs) -> list[Array]:
    parts = [_array(inputs, i) for i in range(len(inputs))]
    return [np.concatenate(parts, int(attribute(node, "axis", 1)))]


def _unsqueeze(node: Node, inputs: Inputs) -> list[Array]:
    return [np.expand_dims(_array(inputs, 0), tuple(_axes(node, inputs) or ()))]


def _squeeze(node: Node, inputs: Inputs) -> list[Array]:
    axes = _axes(node, inputs)
    if axes == []:
        raise Unfolded  # no axes, which runtimes read as all axes or as none
    return [np.squeeze(_array(inputs, 0), None if axes is None else tuple(axes))]


def _transpose(node: Node, inputs: Inputs) -> list[Array]:
    return [np.transpose(_array(inputs, 0), attribute(node, "perm"))]


def _reshape(node: Node, inputs: Inputs) -> list[Array]:
    data = _array(inputs, 0)
    shape = [int(i) for i in (_numbers(inputs, 1) if len(inputs) > 1 else attribute(node, "shape", ()))]
    if not attribute(node, "allowzero", 0):
        shape = [data.shape[i] if size == 0 else size for i, size in enumerate(shape)]
    return [data.reshape(shape)]


def _flatten(node: Node, inputs: Inputs) -> list[Array]:
    data, axis = _array(inputs, 0), int(attribute(node, "axis", 1))
    if not -data.ndim <= axis <= data.ndim:
        raise ValueError(f"axis {axis} must be one of shape {data.shape}")
    return [data.reshape(_count(data.shape[:axis]), -1)]


def _cast(node: Node, inputs: Inputs) -> list[Array]:
    dtype = front_of(node.graph).dtype(int(attribute(node, "to", 0)))
    if {dtype.kind, _array(inputs, 0).dtype.kind} & {*"OSU"}:
        raise Unfolded
    return [_array(inputs, 0).astype(dtype)]


def _split(node: Node, inputs: Inputs) -> list[Array]:
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


def _shape(node: Node, inputs: Inputs) -> list[Array]:
    shape = np.array(_array(inputs, 0).shape, np.int64)
    return [shape[attribute(node, "start", 0) : attribute(node, "end")]]


def _constant_of_shape(node: Node, inputs: Inputs) -> list[Array]:
    tensor = attribute(node, "value")
    value = np.float32(0) if tensor is None else front_of(node.graph).array(tensor, node).reshape(-1)[0]
    return [np.full([int(i) for i in _numbers(inputs, 0)], value)]


def _expand(node: Node, inputs: Inputs) -> list[Array]:
    data, shape = _array(inputs, 0), tuple(int(i) for i in _numbers(inputs, 1))
    return [np.broadcast_to(data, np.broadcast_shapes(data.shape, shape)).copy()]


def _gather(node: Node, inputs: Inputs) -> list[Array]:
    data, axis, indices = _array(inputs, 0), int(attribute(node, "axis", 0)), _array(inputs, 1)
    if indices.size > data.shape[axis]:
        raise Unfolded  # more numbers than the data has
    return [np.take(data, indices, axis)]


def _dequantize(node: Node, inputs: Inputs) -> list[Array]:
    data, scale, zero = _array(inputs, 0), _array(inputs, 1), _optional(inputs, 2)
    if attribute(node, "block_size", 0):
        raise Unfolded  # scales of blocks
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
FOLDED: dict[str, Callable[[Node, Inputs], Sequence[Array | None]]] = {
    "Cast": _cast, "Concat": _concat, "Constant": _constant, "ConstantOfShape": _constant_of_shape,
    "DequantizeLinear": _dequantize, "Expand": _expand, "Flatten": _flatten, "Gather": _gather,
    "Identity": _identity, "Reshape": _reshape, "Shape": _shape, "Slice": _slice, "Split": _split,
    "Squeeze": _squeeze, "Transpose": _transpose, "Unsqueeze": _unsqueeze,
}  # fmt: skip
