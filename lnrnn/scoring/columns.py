"""Tables of every kind: which column of a dict, pandas frame or Arrow table holds the sequences, and the same
table with a column of results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import bad_type, bad_value, described, real
from . import arrow, objects
from .sequences import Array, Into, Sequences

# What makes a table of the results: `run`'s array -> the table with one column more.
WithResults = Callable[[Array], Any]
OFFSETS = "_offsets"


def taken(table: Any, column: str, output: str, into: Into, width: int) -> tuple[Sequences, WithResults]:
    """The sequences of a table's column, and what adds results to the table.

    Raises TypeError for what is no table, ValueError that names the column that is missing, is there twice,
    or has the name of the result.
    """
    if arrow.is_table(table):
        return _of_arrow(table, column, output, into, width)
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(table, pandas.DataFrame):
        return _of_pandas(pandas, table, column, output, into, width)
    if isinstance(table, Mapping):
        return _of_mapping(table, column, output, into, width)
    raise TypeError(
        "expected a dict of arrays, a pandas DataFrame, an Arrow RecordBatch or Table, or an iterator of "
        f"such, got {described(table)}"
    )


def in_plain_lists(table: Any, column: str) -> Any:
    """An Arrow table whose results in that column are lists of any size; other tables as they are."""
    if not arrow.is_table(table):
        return table
    at = table.schema.names.index(column)
    results = table.column(at)
    results = results.cast(arrow.plain_type(results.type))
    schema = table.schema.set(at, arrow.pyarrow().field(column, results.type))
    return type(table).from_arrays([*table.columns[:at], results, *table.columns[at + 1 :]], schema=schema)


def check_names(names: list[Any], column: str, output: str) -> None:
    found = names.count(column)
    if found != 1:
        known = ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")
        raise ValueError(
            f"there is no column {column!r}; there are {known or 'none'}" if not found
            else f"there are {found} columns {column!r}"
        )  # fmt: skip
    if output in names:
        raise ValueError(f"there is a column {output!r} already; give the results another name with output=")


def _of_arrow(table: Any, column: str, output: str, into: Into, width: int) -> tuple[Sequences, WithResults]:
    check_names(table.schema.names, column, output)
    own = table.column(table.schema.names.index(column))
    given = arrow.sequences(own, width, column)

    def with_results(found: Array) -> Any:
        results = arrow.result(given, found, into, own.type)
        schema = table.schema.append(arrow.pyarrow().field(output, results.type))
        return type(table).from_arrays([*table.columns, results], schema=schema)

    return given, with_results


def _of_pandas(
    pandas: Any, table: Any, column: str, output: str, into: Into, width: int
) -> tuple[Sequences, WithResults]:
    check_names(list(table.columns), column, output)
    own = table[column]
    if isinstance(own.dtype, pandas.ArrowDtype):
        array = own.array.__arrow_array__()
        given = arrow.sequences(array, width, column)

        def cells(found: Array) -> Any:
            return pandas.arrays.ArrowExtensionArray(arrow.result(given, found, into, array.type))
    else:
        rows = own.to_numpy(dtype=object)
        given = objects.sequences(rows, width)

        def cells(found: Array) -> Any:
            return objects.result(given, found, into, rows)

    def with_results(found: Array) -> Any:
        return table.assign(**{output: pandas.Series(cells(found), index=table.index)})

    return given, with_results


def _of_mapping(
    table: Mapping[Any, Any], column: str, output: str, into: Into, width: int
) -> tuple[Sequences, WithResults]:
    check_names(list(table), column, output)
    own, beside = table[column], column + OFFSETS
    if beside in table:
        given, cells = _of_flat(own, table[beside], column, into, width)
        if into == "all":
            check_names(list(table), column, output + OFFSETS)
            return given, lambda found: {
                **table, output: cells(found), output + OFFSETS: table[beside]
            }  # fmt: skip
    elif arrow.is_column(own):
        given = arrow.sequences(own, width, column)

        def cells(found: Array) -> Any:
            return arrow.result(given, found, into, own.type)
    elif isinstance(own, (list, tuple)) or getattr(own, "dtype", None) is np.dtype(object):
        rows = list(own)
        given = objects.sequences(rows, width)

        def cells(found: Array) -> Any:
            return objects.result(given, found, into, rows)
    else:
        given, cells = _of_equal(own, column, into, width)
    return given, lambda found: {**table, output: cells(found)}


def _of_flat(
    values: Any, offsets: Any, column: str, into: Into, width: int
) -> tuple[Sequences, Callable[[Array], Array]]:
    """values (N, width), also (N,) if width is 1, and offsets (B + 1,)."""
    flat = real(f"column {column!r}", values)
    if width == 1 and flat.ndim == 1:
        flat = flat[:, None]
    if flat.ndim != 2 or flat.shape[1] != width:
        raise bad_value(f"column {column!r}", f"of shape (N, {width})", flat)
    name = f"column {column + OFFSETS!r}"
    at = real(name, offsets)
    if at.dtype.kind not in "iu":
        raise bad_type(name, "an array of integers", at)
    if at.ndim != 1 or not len(at):
        raise bad_value(name, "of shape (B + 1,)", at)
    at = at.astype(np.int64)
    fall = np.flatnonzero(np.diff(at) < 0)
    if len(fall):
        raise ValueError(f"{name} must not fall, and does after row {fall[0]}")
    if at[0] < 0 or at[-1] > len(flat):
        raise bad_value(
            name,
            f"between 0 and the {len(flat)} steps of column {column!r}",
            int(at[0] if at[0] < 0 else at[-1]),
        )
    given = Sequences.of(_float32(flat), at, np.zeros(len(at) - 1, bool), {})

    def cells(found: Array) -> Array:
        if into != "all" or len(found) == len(flat):
            return found
        whole = np.zeros((len(flat), found.shape[1]), np.float32)  # steps that are no row's have zeros
        whole[at[0] : at[-1]] = found
        return whole

    return given, cells


def _of_equal(values: Any, column: str, into: Into, width: int) -> tuple[Sequences, Callable[[Array], Array]]:
    """values (B, T, width), also (B, T) if width is 1: all rows have T steps."""
    array = real(f"column {column!r}", values)
    if width == 1 and array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] != width:
        expected = f"of shape (B, T, {width}), or with an array {column + OFFSETS!r} of shape (N, {width})"
        raise bad_value(f"column {column!r}", expected, array)
    B, T, _ = array.shape
    offsets = np.arange(B + 1, dtype=np.int64) * T
    given = Sequences(_float32(array).reshape(B * T, width), offsets, np.zeros(B, bool))
    return given, lambda found: found.reshape(B, T, found.shape[1]) if into == "all" else found


def _float32(array: Array) -> Array:
    with np.errstate(over="ignore"):  # what is beyond float32 is infinite
        return np.ascontiguousarray(array, np.float32)
