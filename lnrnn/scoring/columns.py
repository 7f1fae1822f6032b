"""Reads the column of sequences in a dict, pandas DataFrame or Arrow table, and adds columns of results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from ..errors import bad_type, bad_value, real
from . import arrow, layouts, objects
from .sequences import Array, Bad, Into, Sequences, bad_rows, float32

# Types of functions whose arguments are the Sequences and the results of `run`. Cells returns new columns by
# name, WithResults returns the table with new columns.
Cells = Callable[[Sequences, Array], dict[str, Any]]
WithResults = Callable[[Sequences, Array], Any]
OFFSETS, ERROR = "_offsets", "_error"


class Asked(Protocol):
    """The attributes of a Scorer that name columns."""

    column: str | None
    columns: tuple[str, ...]
    flat: bool
    output: str
    into: Into
    bad: Bad
    id_column: str | None


def sequences_of(table: Any, asked: Asked, width: int) -> tuple[Sequences, WithResults]:
    """Returns the sequences in a table's columns, and a function that adds results to the table.

    width: the model's input_size. Raises TypeError for another type of table. Raises ValueError for a column
    that is absent, that exists twice, or that has the name of a new column.
    """
    if arrow.is_table(table):
        return _of_arrow(table, asked, width)
    if _is_frame(table, "polars"):
        return _of_polars(table, asked, width)
    if _is_frame(table, "pandas"):
        return _of_pandas(table, asked, width)
    if isinstance(table, Mapping):
        return _of_mapping(table, asked, width)
    kinds = "a dict of arrays, a pandas or polars DataFrame, an Arrow RecordBatch or Table, or an iterator"
    raise bad_type("table", kinds, table, "call .collect()" if type(table).__name__ == "LazyFrame" else "")


def cell(table: Any, column: str, row: int) -> Any:
    if arrow.is_table(table):
        return table.column(table.schema.names.index(column))[row].as_py()
    values = table[column]
    if len(values) <= row:
        raise ValueError(f"column {column!r} has {len(values)} entries, and no row {row}")
    entry = getattr(values, "iloc", values)[row]  # in a Series by position, not by label
    if hasattr(entry, "as_py"):
        return entry.as_py()
    return entry.item() if isinstance(entry, np.generic) else entry


def in_plain_lists(table: Any, column: str) -> Any:
    """Replaces fixed_size_lists in a column of an Arrow table by lists. Returns other tables unchanged."""
    if not arrow.is_table(table):
        return table
    at = table.schema.names.index(column)
    results = table.column(at)
    results = results.cast(arrow.plain_type(results.type))
    schema = table.schema.set(at, arrow.pyarrow().field(column, results.type))
    return type(table).from_arrays([*table.columns[:at], results, *table.columns[at + 1 :]], schema=schema)


def check_names(names: list[Any], column: str, *results: str) -> None:
    """Raises ValueError unless `names` has the column once and none of the new columns `results`."""
    count = names.count(column)
    if count != 1:
        known = ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")
        raise ValueError(
            f"there is no column {column!r}; the columns are {known or 'none'}" if not count
            else f"there are {count} columns {column!r}"
        )  # fmt: skip
    for output in results:
        if output in names:
            raise ValueError(
                f"there is a column {output!r} already; give the results another name with output="
            )


def _check_names(names: list[Any], asked: Asked, *results: str) -> None:
    if asked.id_column is not None:
        check_names(names, asked.id_column)
    errors = [asked.output + ERROR] if asked.bad == "null" else []
    for column in asked.columns:
        check_names(names, column, asked.output, *results, *errors)


def _is_frame(table: Any, package: str) -> bool:
    module = sys.modules.get(package)
    return module is not None and isinstance(table, module.DataFrame)


def _gathered(asked: Asked, width: int, read: Callable[[str, int], Sequences]) -> Sequences:
    """Returns the rows of all columns. read: returns those of one column with steps of a width."""
    each = _width_of_each(asked, width)
    parts = [read(column, each) for column in asked.columns]
    if asked.flat:
        return layouts.unflattened(parts[0], width)
    return layouts.side_by_side(parts, asked.columns, width) if asked.column is None else parts[0]


def _width_of_each(asked: Asked, width: int) -> int:
    """Returns how many numbers a step has in each column."""
    return 1 if asked.flat or asked.column is None else width


def check_arrow(schema: Any, asked: Asked, width: int) -> Any:
    """Returns the type of the first column. Raises the errors of `sequences_of` about a table's schema."""
    _check_names(schema.names, asked)
    each = _width_of_each(asked, width)
    for column in asked.columns:
        arrow.check_type(schema.field(column).type, each, column)
    return schema.field(asked.columns[0]).type


def of_arrow(table: Any, asked: Asked, width: int) -> Sequences:
    names = table.schema.names
    return _gathered(
        asked, width, lambda column, each: arrow.sequences(table.column(names.index(column)), each, column)
    )


def _columns(asked: Asked, cells: Callable[..., Any], reasons: Callable[[Sequences], Any]) -> Cells:
    """Returns a function that returns the column of results and, with bad="null", the column of reasons."""

    def columns(given: Sequences, result: Array) -> dict[str, Any]:
        cells_by_name = {asked.output: cells(given, result)}
        if asked.bad == "null":
            cells_by_name[asked.output + ERROR] = reasons(given)
        return cells_by_name

    return columns


def _arrow_columns(asked: Asked, kind: Any) -> Cells:
    """Returns the function of `_columns` for Arrow arrays. kind: the type of the input column."""
    return _columns(asked, lambda given, result: arrow.result(given, result, asked.into, kind), arrow.reasons)


def _object_columns(asked: Asked, rows: Any, reasons: Callable[[Sequences], Any]) -> Cells:
    return _columns(asked, lambda given, result: objects.result(given, result, asked.into, rows), reasons)


def _of_arrow(table: Any, asked: Asked, width: int) -> tuple[Sequences, WithResults]:
    _check_names(table.schema.names, asked)
    columns = _arrow_columns(asked, table.schema.field(asked.columns[0]).type)

    def with_results(given: Sequences, result: Array) -> Any:
        added, schema = columns(given, result), table.schema
        for name, cells in added.items():
            schema = schema.append(arrow.pyarrow().field(name, cells.type))
        return type(table).from_arrays([*table.columns, *added.values()], schema=schema)

    return of_arrow(table, asked, width), with_results


def _of_polars(table: Any, asked: Asked, width: int) -> tuple[Sequences, WithResults]:
    polars = sys.modules["polars"]
    _check_names(table.columns, asked)
    columns = _arrow_columns(asked, table.get_column(asked.columns[0]).to_arrow().type)

    def with_results(given: Sequences, result: Array) -> Any:
        added = columns(given, result)
        return table.with_columns(polars.from_arrow(cells).alias(name) for name, cells in added.items())

    return _gathered(
        asked, width, lambda column, each: arrow.sequences(table.get_column(column).to_arrow(), each, column)
    ), with_results


def _of_pandas(table: Any, asked: Asked, width: int) -> tuple[Sequences, WithResults]:
    pandas = sys.modules["pandas"]
    _check_names(list(table.columns), asked)

    def read(column: str, each: int) -> Sequences:
        if isinstance(table[column].dtype, pandas.ArrowDtype):
            return arrow.sequences(table[column].array.__arrow_array__(), each, column)
        return objects.sequences(table[column].to_numpy(dtype=object), each)

    own = table[asked.columns[0]]
    extension: Callable[[Any], Any]
    if isinstance(own.dtype, pandas.ArrowDtype):
        columns = _arrow_columns(asked, own.dtype.pyarrow_dtype)
        extension = pandas.arrays.ArrowExtensionArray
    else:
        rows = own.to_numpy(dtype=object)
        # The dtype is "string", because a dtype that pandas infers depends on whether there are bad rows.
        columns = _object_columns(asked, rows, lambda given: pandas.array(objects.reasons(given), "string"))
        extension = lambda cells: cells  # noqa: E731

    def with_results(given: Sequences, result: Array) -> Any:
        cells = columns(given, result)
        added = {name: pandas.Series(extension(cells[name]), index=table.index) for name in cells}
        return table.assign(**added)

    return _gathered(asked, width, read), with_results


def _of_mapping(table: Mapping[Any, Any], asked: Asked, width: int) -> tuple[Sequences, WithResults]:
    column = asked.columns[0]
    offsets_name = column + OFFSETS
    ragged = offsets_name in table and asked.column is not None and not asked.flat
    offsets = {asked.output + OFFSETS: table[offsets_name]} if ragged and asked.into == "all" else {}
    _check_names(list(table), asked, *offsets)
    own = table[column]
    if ragged:
        given, cells = _of_flat(own, table[offsets_name], asked, width)
        columns = _columns(asked, cells, objects.reasons)
    else:
        given = _gathered(asked, width, lambda column, each: _of_cells(table[column], column, each))
        if arrow.is_column(own):
            columns = _arrow_columns(asked, own.type)
        elif _are_objects(own):
            columns = _object_columns(asked, own, objects.reasons)
        else:
            T = real(f"column {column!r}", own).shape[1] // (width if asked.flat else 1)
            columns = _columns(asked, lambda given, result: _equal(given, result, asked, T), objects.reasons)
    return given, lambda given, result: {**table, **columns(given, result), **offsets}


def _are_objects(cells: Any) -> bool:
    return isinstance(cells, (list, tuple)) or getattr(cells, "dtype", None) is np.dtype(object)


def _of_cells(cells: Any, column: str, width: int) -> Sequences:
    """Returns the rows of a column of a dict, which is an Arrow array, objects or an array (B, T, width)."""
    if arrow.is_column(cells):
        return arrow.sequences(cells, width, column)
    if _are_objects(cells):
        return objects.sequences(list(cells), width)
    array = real(f"column {column!r}", cells)
    if width == 1 and array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] != width:
        expected = f"of shape (B, T, {width}), or with an array {column + OFFSETS!r} of shape (N, {width})"
        raise bad_value(f"column {column!r}", expected, array)
    B, T, _ = array.shape
    offsets = np.arange(B + 1, dtype=np.int64) * T
    return _rows(array.reshape(B * T, width), offsets)


def _equal(given: Sequences, result: Array, asked: Asked, T: int) -> Array:
    """Returns the results of rows of T steps as an array, for "all" (B, T, W)."""
    offsets = np.arange(len(given) + 1, dtype=np.int64) * T
    numbers = _numbers(given, result, asked, offsets, len(given) * T)
    return numbers.reshape(len(given), T, result.shape[1]) if asked.into == "all" else numbers


def _of_flat(
    values: Any, offsets: Any, asked: Asked, width: int
) -> tuple[Sequences, Callable[[Sequences, Array], Array]]:
    """Reads a column of values (N, width), for width 1 also (N,), and a column of offsets (B + 1,)."""
    column = f"column {asked.columns[0]!r}"
    flat = real(column, values)
    if width == 1 and flat.ndim == 1:
        flat = flat[:, None]
    if flat.ndim != 2 or flat.shape[1] != width:
        raise bad_value(column, f"of shape (N, {width})", flat)
    name = f"column {asked.columns[0] + OFFSETS!r}"
    at = real(name, offsets)
    if at.dtype.kind not in "iu":
        raise bad_type(name, "an array of integers", at)
    if at.ndim != 1 or not len(at):
        raise bad_value(name, "of shape (B + 1,)", at)
    at = at.astype(np.int64)
    fall = np.flatnonzero(np.diff(at) < 0)
    if len(fall):
        raise ValueError(f"{name} must not decrease, got a smaller offset after row {fall[0]}")
    if at[0] < 0 or at[-1] > len(flat):
        raise bad_value(
            name, f"between 0 and the {len(flat)} steps of {column}", int(at[0] if at[0] < 0 else at[-1])
        )
    given = _rows(flat, at)
    return given, lambda given, result: _numbers(given, result, asked, at, len(flat))


def _numbers(given: Sequences, result: Array, asked: Asked, offsets: Array, steps: int) -> Array:
    """Returns the results of `run` as an array (B, W), for "all" (steps, W).

    Bad rows become NaN. Steps that belong to no row become 0. offsets: the offsets in the table, because
    `given` does not have the steps of bad rows.
    """
    if asked.into != "all":
        result[given.absent] = np.nan
        return result
    if len(result) == steps:
        return result
    whole = np.zeros((steps, result.shape[1]), np.float32)
    own = whole[offsets[0] : offsets[-1]]
    bad = np.repeat(given.absent, np.diff(offsets))
    own[bad], own[~bad] = np.nan, result
    return whole


def _rows(steps: Array, offsets: Array) -> Sequences:
    values, wrong = float32(steps)
    null = np.zeros(len(offsets) - 1, bool)
    return Sequences.of(values, offsets, null, bad_rows(offsets, null, wrong))
