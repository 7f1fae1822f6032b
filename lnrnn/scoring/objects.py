"""Converts columns of Python objects (lists, arrays) to sequences.Sequences, and results to object arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..errors import described, real
from .sequences import Array, Into, Sequences, float32


def sequences(rows: Iterable[Any], width: int) -> Sequences:
    """Returns rows as Sequences. A row is an array (T, width), nested lists of numbers, or null.

    For width 1 a row may also be (T,). None, NaN and pandas.NA are null.
    """
    arrays: list[Array | None] = []
    bad: dict[int, str] = {}
    for place, row in enumerate(rows):
        try:
            values, wrong = (None, {}) if _is_null(row) else float32(_steps(row, width))
            for step, fault in wrong.items():
                raise ValueError(f"step {step} {fault}")
            arrays.append(values)
        except (TypeError, ValueError) as error:
            arrays.append(None)
            bad[place] = str(error)
    null = np.array([array is None for array in arrays], bool)
    null[list(bad)] = False
    lengths = [0 if array is None else len(array) for array in arrays]
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    values = np.empty((offsets[-1], width), np.float32)
    for array, first, end in zip(arrays, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        if end > first:
            values[first:end] = array
    return Sequences(values, offsets, null, bad)


def result(given: Sequences, values: Array, into: Into, rows: Iterable[Any]) -> Array:
    """Returns results of `run` as an object array (B,), with None for rows without a result.

    The objects are arrays (W,). For "all" they are arrays (T, W), or lists of arrays (W,) if no row has two
    axes.
    """
    cells: Array = np.empty(len(given), object)
    flat = into == "all" and any(isinstance(row, np.ndarray) and row.ndim == 2 for row in rows)
    at = given.offsets.tolist()
    for row in np.flatnonzero(~given.absent).tolist():
        if into != "all":
            cells[row] = values[row]
        else:
            own = values[at[row] : at[row + 1]]
            cells[row] = own if flat else list(own)
    return cells


def reasons(given: Sequences) -> Array:
    """Returns an object array (B,): the reason why a row is bad, as a string, None for other rows."""
    cells: Array = np.empty(len(given), object)
    for row, reason in given.bad.items():
        cells[row] = reason
    return cells


def _is_null(row: Any) -> bool:
    if row is None or type(row).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(row, (float, np.floating)) and row != row


def _steps(row: Any, width: int) -> Array:
    """Returns a row as an array (T, width). Raises TypeError or ValueError, which says why it is invalid."""
    if isinstance(row, np.ndarray) and row.dtype == object and row.ndim == 1:
        row = list(row)
    if isinstance(row, (list, tuple)) and not len(row):
        return np.empty((0, width), np.float32)
    try:
        array = real("it", row)
    except (TypeError, ValueError):
        if isinstance(row, (list, tuple)):
            _check_each(row, width)
        array = None
    if array is not None and array.ndim == 1 and width == 1:
        return array[:, None]
    if array is not None and (array.ndim == 2 or not array.size) and not len(np.atleast_1d(array)):
        return np.empty((0, width), np.float32)
    if array is not None and array.ndim == 2:
        if array.shape[1] != width:
            raise ValueError(f"step 0 has {array.shape[1]} numbers, the model takes {width}")
        return array
    raise TypeError(f"each step must be {width} numbers, got {described(row)}")


def _check_each(row: Iterable[Any], width: int) -> None:
    """Raises ValueError or TypeError for the first step of a row that is not `width` numbers."""
    for place, step in enumerate(row):
        if _is_null(step):
            raise ValueError(f"step {place} is null")
        try:
            numbers = real("it", step)
        except (TypeError, ValueError):
            if isinstance(step, (list, tuple, np.ndarray)) and any(map(_is_null, step)):
                raise ValueError(f"step {place} holds a null") from None
            raise TypeError(f"step {place} must be {width} numbers, got {described(step)}") from None
        if numbers.shape != (width,):
            has = f"{numbers.size} numbers" if numbers.ndim == 1 else f"the shape {numbers.shape}"
            raise ValueError(f"step {place} has {has}, the model takes {width}")
