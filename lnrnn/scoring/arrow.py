"""Converts Arrow columns to sequences.Sequences, and results to Arrow arrays.

A row is a list of steps, and a step is a list of numbers. For types list<fixed_size_list<float, D>> and
list<list<float>>, float32 values without nulls are not copied.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..packages import require
from .sequences import Array, Into, Sequences, bad_rows, float32


def pyarrow() -> Any:
    return require("pyarrow", "reading Arrow data", "score")


def is_column(value: Any) -> bool:
    pa = sys.modules.get("pyarrow")
    return pa is not None and isinstance(value, (pa.Array, pa.ChunkedArray))


def is_table(value: Any) -> bool:
    pa = sys.modules.get("pyarrow")
    return pa is not None and isinstance(value, (pa.RecordBatch, pa.Table))


def check_type(kind: Any, width: int, name: str) -> None:
    """Raises TypeError unless the Arrow type `kind` of a column is a list of steps, or null.

    Raises ValueError if steps have another width. If the type permits any width, `sequences` checks it.
    """
    types = pyarrow().types
    if types.is_null(kind):
        return
    step = kind.value_type if _is_list(types, kind) else None
    if step is not None and types.is_fixed_size_list(step) and _is_number(types, step.value_type):
        if step.list_size != width:
            raise ValueError(f"column {name!r} has {step.list_size} numbers a step, the model takes {width}")
        return
    if step is not None and _is_list(types, step) and _is_number(types, step.value_type):
        return
    if step is not None and _is_number(types, step) and width == 1:
        return
    wanted = f"list<fixed_size_list<float, {width}>> or list<list<float>>" + (
        " or list<float>" if width == 1 else ""
    )
    raise TypeError(f"column {name!r} must be {wanted}, got {kind}")


def sequences(column: Any, width: int, name: str) -> Sequences:
    """Returns the rows of a column as Sequences.

    column: an Array, or a ChunkedArray, whose chunks are joined. width: numbers in a step. name: its name.
    """
    pa = pyarrow()
    check_type(column.type, width, name)
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    rows = len(column)
    if pa.types.is_null(column.type):
        return Sequences(np.zeros((0, width), np.float32), np.zeros(rows + 1, np.int64), np.ones(rows, bool))
    null = _nulls(column)
    offsets, steps = _lists(pa, column)
    first, steps = int(offsets[0]), steps.slice(offsets[0], offsets[-1] - offsets[0])
    offsets = offsets - first
    values, wrong = _numbers(pa, steps, width)
    return Sequences.of(values, offsets, null, bad_rows(offsets, null, wrong))


def result(given: Sequences, values: Array, into: Into, like: Any) -> Any:
    """Returns results of `run` as an Array: fixed_size_list<float, W>, or for "all" a list of these.

    like: the input column's type; for a large list, results are a large_list. Missing results are null.
    """
    pa = pyarrow()
    absent = _array(pa, pa.bool_(), len(given), np.packbits(given.absent, bitorder="little"))
    width = values.shape[1]
    numbers = _array(pa, pa.float32(), values.size, np.ascontiguousarray(values))
    if into != "all":
        return pa.FixedSizeListArray.from_arrays(numbers, width, mask=absent)
    steps = pa.FixedSizeListArray.from_arrays(numbers, width)
    if _is_large(pa.types, like):
        offsets = _array(pa, pa.int64(), len(given) + 1, given.offsets)
        return pa.LargeListArray.from_arrays(offsets, steps, mask=absent)
    if given.offsets[-1] >= 2**31:  # pragma: no cover - needs 2**31 steps in one array
        raise ValueError(
            "the results of one Arrow list array must have at most 2**31 - 1 steps, "
            f"got {given.offsets[-1]}; give fewer rows at a time"
        )
    offsets = _array(pa, pa.int32(), len(given) + 1, given.offsets.astype(np.int32))
    return pa.ListArray.from_arrays(offsets, steps, mask=absent)


def reasons(given: Sequences) -> Any:
    """Returns a string Array: the reason why a row is bad, null for other rows."""
    pa = pyarrow()
    if not given.bad:
        return pa.nulls(len(given), pa.string())
    return pa.array([given.bad.get(row) for row in range(len(given))], pa.string())


def plain_type(kind: Any) -> Any:
    """Returns an Arrow type with each fixed_size_list replaced by a list."""
    pa = pyarrow()
    if not _is_list(pa.types, kind):
        return kind
    each = plain_type(kind.value_type)
    return pa.large_list(each) if _is_large(pa.types, kind) else pa.list_(each)


def _is_list(types: Any, kind: Any) -> bool:
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def _is_large(types: Any, kind: Any) -> bool:
    return bool(types.is_large_list(kind) or types.is_large_list_view(kind))


def _is_number(types: Any, kind: Any) -> bool:
    return bool(types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind))


# The functions below avoid Arrow's conversions from and to NumPy, which import pandas. This
# import takes half a second and 60 MB in each process.


def _array(pa: Any, kind: Any, length: int, memory: Array) -> Any:
    """Returns an Arrow Array without nulls that shares memory with a NumPy array. kind: its type."""
    return pa.Array.from_buffers(kind, length, [None, pa.py_buffer(memory)])


def _memory(array: Any, dtype: Any) -> Array:
    """Returns an Arrow Array of numbers as a NumPy array, not copied. Nulls get arbitrary values."""
    buffer, first, count = array.buffers()[1], array.offset, len(array)
    if not count:
        return np.zeros(0, dtype)
    return np.frombuffer(buffer, dtype, first + count)[first:]


def _nulls(array: Any) -> Array:
    """Returns bool (B,): whether each element is null."""
    if not array.null_count:
        return np.zeros(len(array), bool)
    first, end = array.offset, array.offset + len(array)
    part = np.frombuffer(array.buffers()[0], np.uint8)[first // 8 : (end + 7) // 8]
    bits = np.unpackbits(part, bitorder="little")[first % 8 :]
    nulls: Array = bits[: len(array)] == 0
    return nulls


def _lists(pa: Any, column: Any) -> tuple[Array, Any]:
    """Returns (offsets (B + 1,) int64, Array of the lists' elements) of an Array of lists."""
    kind = column.type
    if not len(column):  # there may be no offsets buffer
        return np.zeros(1, np.int64), column.values[:0]
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        return (column.offset + np.arange(len(column) + 1, dtype=np.int64)) * size, column.values
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        lengths = np.where(_nulls(column), 0, _memory(column.sizes, _integers(pa, column.sizes.type)))
        return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), column.flatten()
    return _memory(column.offsets, _integers(pa, column.offsets.type)).astype(np.int64), column.values


def _integers(pa: Any, kind: Any) -> Any:
    return np.int64 if pa.types.is_int64(kind) else np.int32


def _numbers(pa: Any, steps: Any, width: int) -> tuple[Array, dict[int, str]]:
    """Returns (numbers (N, width) float32, {index of an invalid step: reason}) of an Array of steps.

    Numbers of invalid steps are arbitrary.
    """
    wrong: dict[int, str] = {}
    count = len(steps)
    if _is_number(pa.types, steps.type):
        numbers, starts = steps, None
    else:
        offsets, numbers = _lists(pa, steps)
        for step in np.flatnonzero(_nulls(steps)).tolist():
            wrong[step] = "is null"
        sizes = np.diff(offsets)
        for step in np.flatnonzero(sizes != width).tolist():
            wrong.setdefault(step, f"has {sizes[step]} numbers, the model takes {width}")
        numbers = numbers.slice(offsets[0], offsets[-1] - offsets[0])
        starts = offsets[:-1] - offsets[0] if (sizes != width).any() else None
    flat = _flat(pa, numbers)
    holes = _nulls(numbers) if numbers.null_count else None
    if starts is None:
        values = flat.reshape(count, width)
        empty = None if holes is None else holes.reshape(count, width).any(1)
    else:
        # Steps of another width become zeros.
        right = sizes == width
        places = starts[right, None] + np.arange(width)
        values, empty = np.zeros((count, width), flat.dtype), np.zeros(count, bool)
        values[right] = flat[places]
        if holes is not None:
            empty[right] = holes[places].any(1)
    if empty is not None:
        for step in np.flatnonzero(empty).tolist():
            wrong.setdefault(step, "holds a null")
    values, beyond = float32(values)
    return values, beyond | wrong


def _flat(pa: Any, numbers: Any) -> Array:
    """Returns an Array of numbers as a NumPy array, copied only for booleans. Nulls get arbitrary values."""
    if pa.types.is_boolean(numbers.type):
        numbers = numbers.cast(pa.uint8())
    return _memory(numbers, _dtype(pa, numbers.type))


def _dtype(pa: Any, kind: Any) -> Any:
    letter = "f" if pa.types.is_floating(kind) else "u" if pa.types.is_unsigned_integer(kind) else "i"
    return np.dtype(f"{letter}{kind.bit_width // 8}")
