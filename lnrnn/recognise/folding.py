"""Constant folding: ONNX operators in NumPy, for nodes between the weights and the recurrent nodes.

FOLDED maps an operator to a function(attributes, inputs) that returns the node's outputs. `attributes`
also has the number of outputs, as "outputs". Inputs are arrays, or None if omitted. It raises Unfolded for a
valid node that is not computed, and any other error for wrong attributes and shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray
Given = Mapping[str, Any]
Inputs = Sequence[Array | None]


class Unfolded(Exception):
    """Raised for a valid node that constant folding does not support."""


def size_of(operator: str, inputs: Inputs) -> int:
    """Returns an upper bound in bytes of a node's results, before they are computed."""
    match operator:
        case "ConstantOfShape":
            return _count(_integers(inputs, 0)) * 8
        case "Expand":
            return _count(np.broadcast_shapes(_array(inputs, 0).shape, tuple(_integers(inputs, 1)))) * 8
        case "Cast" | "DequantizeLinear":
            return 8 * _array(inputs, 0).size
        case "Concat" | "Gather" | "Reshape":
            return sum(a.nbytes for a in inputs if a is not None)
    return 64


def _count(shape: Iterable[int]) -> int:
    result = 1
    for size in shape:
        if size < 0:
            raise ValueError(f"a shape must have no negative number, got {size}")
        result *= size
    return result


def _array(inputs: Inputs, i: int) -> Array:
    result = inputs[i] if i < len(inputs) else None
    if result is None:
        raise ValueError(f"input {i} must be given")
    return result


def _integers(inputs: Inputs, i: int, default: Iterable[int] | None = None) -> list[int]:
    """Returns input `i`, such as a shape or axes, as a list of ints.

    default: returned if the input is missing. Older opsets have it as an attribute.
    """
    if default is not None and (i >= len(inputs) or inputs[i] is None):
        return [int(n) for n in default]
    result = _array(inputs, i)
    if result.dtype.kind not in "iu" or result.ndim > 1:
        raise ValueError(f"input {i} must be integers, got {result.dtype} of shape {result.shape}")
    numbers: list[int] = result.reshape(-1).tolist()
    return numbers


def _constant(given: Given, inputs: Inputs) -> list[Array]:
    for name, dtype in (("value_float", np.float32), ("value_floats", np.float32), ("value_int", np.int64),
                        ("value_ints", np.int64), ("value", None)):  # fmt: skip
        if name in given:
            return [np.asarray(given[name], dtype)]
    raise Unfolded  # a constant of strings


def _slice(given: Given, inputs: Inputs) -> list[Array]:
    data = _array(inputs, 0)
    starts, ends = (_integers(inputs, i, given.get(name)) for i, name in ((1, "starts"), (2, "ends")))
    axes = _integers(inputs, 3, given.get("axes", range(len(starts))))
    where: dict[int, slice] = {}
    for axis, start, end, step in zip(
        axes, starts, ends, _integers(inputs, 4, [1] * len(starts)), strict=True
    ):
        size = data.shape[axis]
        if axis % data.ndim in where:
            raise ValueError(f"the axes must be different, got {axes}")
        if step < 0 and end >= 2**31 - 1:
            raise Unfolded  # ONNX Runtime reads this end as -1
        if step < 0:  # a negative end of NumPy counts from the last element, also if it is -1
            start = max(start + size if start < 0 else start, 0)
            end = end + size if end < 0 else end
        where[axis % data.ndim] = slice(start, None if step < 0 and end < 0 else end, step)
    return [data[tuple(where.get(axis, slice(None)) for axis in range(data.ndim))]]


def _concat(given: Given, inputs: Inputs) -> list[Array]:
    return [np.concatenate([_array(inputs, i) for i in range(len(inputs))], int(given.get("axis", 1)))]


def _unsqueeze(given: Given, inputs: Inputs) -> list[Array]:
    return [np.expand_dims(_array(inputs, 0), tuple(_integers(inputs, 1, given.get("axes", ()))))]


def _squeeze(given: Given, inputs: Inputs) -> list[Array]:
    if not any(a is not None for a in inputs[1:]) and "axes" not in given:
        return [np.squeeze(_array(inputs, 0))]
    axes = _integers(inputs, 1, given.get("axes"))
    if not axes:
        raise Unfolded  # no axes are given: some runtimes take all axes, others none
    return [np.squeeze(_array(inputs, 0), tuple(axes))]


def _reshape(given: Given, inputs: Inputs) -> list[Array]:
    data, shape = _array(inputs, 0), _integers(inputs, 1, given.get("shape"))
    if not given.get("allowzero", 0):
        shape = [data.shape[i] if size == 0 else size for i, size in enumerate(shape)]
    return [data.reshape(shape)]


def _flatten(given: Given, inputs: Inputs) -> list[Array]:
    data, axis = _array(inputs, 0), int(given.get("axis", 1))
    if not -data.ndim <= axis <= data.ndim:
        raise ValueError(f"axis {axis} is out of range for shape {data.shape}")
    return [data.reshape(_count(data.shape[:axis]), -1)]


def _cast(given: Given, inputs: Inputs) -> list[Array]:
    data, dtype = _array(inputs, 0), given["to"]
    if {dtype.kind, data.dtype.kind} & {*"OSU"}:
        raise Unfolded
    return [data.astype(dtype)]


def _split(given: Given, inputs: Inputs) -> list[Array]:
    data, axis, parts = _array(inputs, 0), int(given.get("axis", 0)), given["outputs"]
    size = data.shape[axis]
    each = -(-size // parts)  # the last part may be smaller
    least = each * (parts - 1) if "num_outputs" in given else each * parts
    equal = [each] * (parts - 1) + [size - each * (parts - 1)] if least <= size <= each * parts else []
    sizes = _integers(inputs, 1, given.get("split", equal))
    if sum(sizes) != size or len(sizes) != parts:
        raise ValueError(f"{parts} parts of sizes {sizes} must add up to axis {axis} of shape {data.shape}")
    return list(np.split(data, np.cumsum(sizes)[:-1], axis))


def _shape(given: Given, inputs: Inputs) -> list[Array]:
    return [np.array(_array(inputs, 0).shape, np.int64)[given.get("start", 0) : given.get("end")]]


def _constant_of_shape(given: Given, inputs: Inputs) -> list[Array]:
    value = given["value"].reshape(-1)[0] if "value" in given else np.float32(0)
    return [np.full(_integers(inputs, 0), value)]


def _expand(given: Given, inputs: Inputs) -> list[Array]:
    data = _array(inputs, 0)
    return [np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(_integers(inputs, 1)))).copy()]


def _gather(given: Given, inputs: Inputs) -> list[Array]:
    data, axis, indices = _array(inputs, 0), int(given.get("axis", 0)), _array(inputs, 1)
    if indices.size > data.shape[axis]:
        raise Unfolded  # the result would have more numbers than the data
    return [np.take(data, indices, axis)]


def _dequantize(given: Given, inputs: Inputs) -> list[Array]:
    data, scale, zero = _array(inputs, 0), _array(inputs, 1), inputs[2] if len(inputs) > 2 else None
    if given.get("block_size", 0):
        raise Unfolded  # the data has a scale for each block
    if scale.size != 1 and scale.ndim != 1:
        raise ValueError(f"the scale must be one number or one for each slice, got shape {scale.shape}")
    shape = [1] * data.ndim if scale.size > 1 else []
    if shape:
        shape[int(given.get("axis", 1))] = -1
    scale, zero = scale.reshape(shape), None if zero is None else zero.reshape(shape)
    if np.broadcast_shapes(data.shape, scale.shape) != data.shape:
        raise ValueError(f"the scale must fit the data, got shapes {scale.shape} and {data.shape}")
    shifted = data.astype(np.float32) if zero is None else data.astype(np.float32) - zero.astype(np.float32)
    return [(shifted * scale).astype(scale.dtype)]


# Operators that only move the numbers of input 0. Further inputs set shapes, axes or indices.
MOVES = ("Cast", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze",
         "Transpose", "Unsqueeze")  # fmt: skip
REPEATS = ("ConstantOfShape", "Expand", "Reshape", "Tile")  # the last input may depend on the batch size
FOLDED: dict[str, Callable[[Given, Inputs], list[Array]]] = {
    "Cast": _cast, "Concat": _concat, "Constant": _constant, "ConstantOfShape": _constant_of_shape,
    "DequantizeLinear": _dequantize, "Expand": _expand, "Flatten": _flatten, "Gather": _gather,
    "Identity": lambda given, inputs: [_array(inputs, 0)[...]], "Reshape": _reshape, "Shape": _shape,
    "Slice": _slice, "Split": _split, "Squeeze": _squeeze,
    "Transpose": lambda given, inputs: [np.transpose(_array(inputs, 0), given.get("perm"))],
    "Unsqueeze": _unsqueeze,
}  # fmt: skip
