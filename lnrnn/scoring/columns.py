"""Reads a column of sequences from a dict, DataFrame or Arrow table, and adds columns of results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from ..arguments import INTEGERS
from ..arguments import Array as Takes
from ..errors import bad_type, bad_value, real
from ..rnn.batches import checked_offsets
from . import arrow, objects
from .sequences import Array, Bad, Into, Sequences, bad_rows, float32


class Asked(Protocol):
    """The arguments of a Scorer that choose columns."""

    column: str
    into: Into
    output: str
    bad: Bad
    id_column: str | None


# Arguments: the Sequences, and the result of `run`. Returns a column or a table.
WithResults = Callable[[Sequences, Array], Any]
OFFSETS, ERROR = "_offsets", "_error"
_OFFSETS = Takes("B+1", INTEGERS, "N", "the {} steps of its column")


def sequences_of(table: Any, asked: Asked, width: int) -> tuple[Sequences, WithResults]:
    """Reads a table's column of sequences. Returns (Sequences, function that adds the results to the table).

    width: the model's input_size. Raises TypeError for unknown types of table. Raises ValueError for a column
    that is absent, exists twice, or has the name of a new column.
    """
    column, offsets, reasons = asked.column, None, objects.reasons
    add: Callable[[Any, dict[str, Any]], Any]
    if arrow.is_table(table):
        _check_names(table.schema.names, asked)
        own, add = table.column(table.schema.names.index(column)), _add_to_arrow
    elif _is_frame(table, "polars"):
        _check_names(table.columns, asked)
        own, add = table.get_column(column).to_arrow(), _add_to_polars
    elif _is_frame(table, "pandas"):
        _check_names(list(table.columns), asked)
        own, add = table[column], _add_to_pandas
        is_arrow = isinstance(own.dtype, sys.modules["pandas"].ArrowDtype)
        own = own.array.__arrow_array__() if is_arrow else own.to_numpy(dtype=object)
    elif isinstance(table, Mapping):
        offsets = table.get(column + OFFSETS)
        more = [asked.output + OFFSETS] if offsets is not None and asked.into == "all" else []
        _check_names(list(table), asked, *more)
        own, add = table[column], lambda table, added: {**table, **added, **dict.fromkeys(more, offsets)}
    else:
        frames = "a pandas or polars DataFrame, an Arrow RecordBatch or Table"
        do = "call .collect()" if type(table).__name__ == "LazyFrame" else ""
        raise bad_type("table", f"a dict of arrays, {frames}, or an iterator", table, do)

    cells: WithResults
    if offsets is not None:
        given, cells = _of_flat(own, offsets, asked, width)
    elif arrow.is_column(own):
        given, reasons = arrow.sequences(own, width, column), arrow.reasons
        cells = lambda given, result: arrow.result(given, result, asked.into, own.type)  # noqa: E731
    elif isinstance(own, (list, tuple)) or getattr(own, "dtype", None) is np.dtype(object):
        given = objects.sequences(list(own), width)
        cells = lambda given, result: objects.result(given, result, asked.into, own)  # noqa: E731
    else:
        given, cells = _of_array(own, asked, width)

    def with_results(given: Sequences, result: Array) -> Any:
        added = {asked.output: cells(given, result)}
        if asked.bad == "null":
            added[asked.output + ERROR] = reasons(given)
        return add(table, added)

    return given, with_results


def _add_to_arrow(table: Any, added: dict[str, Any]) -> Any:
    for name, cells in added.items():
        table = table.append_column(name, cells)
    return table


def _add_to_polars(table: Any, added: dict[str, Any]) -> Any:
    polars = sys.modules["polars"]
    return table.with_columns(polars.from_arrow(cells).alias(name) for name, cells in added.items())


def _add_to_pandas(table: Any, added: dict[str, Any]) -> Any:
    pandas, series = sys.modules["pandas"], dict[str, Any]()
    for name, cells in added.items():
        if arrow.is_column(cells):
            cells = pandas.arrays.ArrowExtensionArray(cells)
        elif series:  # explicit: pandas would infer the dtype from the bad rows
            cells = pandas.array(cells, "string")
        series[name] = pandas.Series(cells, index=table.index)
    return table.assign(**series)


def cell(table: Any, column: str, row: int) -> Any:
    if arrow.is_table(table):
        return table.column(table.schema.names.index(column))[row].as_py()
    values = table[column]
    if len(values) <= row:
        raise ValueError(f"column {column!r} has {len(values)} entries, and no row {row}")
    entry = getattr(values, "iloc", values)[row]  # a Series by position, not by label
    if hasattr(entry, "as_py"):
        return entry.as_py()
    return entry.item() if isinstance(entry, np.generic) else entry


def in_plain_lists(table: Any, column: str) -> Any:
    """Replaces fixed_size_lists in a column of an Arrow table by lists. Returns other tables unchanged."""
    if not arrow.is_table(table):
        return table
    at = table.schema.names.index(column)
    results = table.column(at)
    return table.set_column(at, column, results.cast(arrow.plain_type(results.type)))


def check_names(names: list[Any], column: str, *results: str) -> None:
    """Raises ValueError unless `names` contains the column once, and none of the new columns `results`."""
    count = names.count(column)
    if count != 1:
        known = ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")
        raise ValueError(
            f"there is no column {column!r}; the columns are {known or 'none'}" if not count
            else f"column {column!r} must be the only one of this name, got {count}"
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
    check_names(names, asked.column, asked.output, *results, *errors)


def _is_frame(table: Any, package: str) -> bool:
    module = sys.modules.get(package)
    return module is not None and isinstance(table, module.DataFrame)


def _of_array(cells: Any, asked: Asked, width: int) -> tuple[Sequences, WithResults]:
    """Returns Sequences of an array (B, T, width), or (B, T) for width 1, and its WithResults function."""
    column = f"column {asked.column!r}"
    array = real(column, cells)
    if width == 1 and array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] != width:
        hint = f"or with an array {asked.column + OFFSETS!r} of shape (N, {width})"
        raise bad_value(column, f"of shape (B, T, {width}), {hint}", array)
    B, T, _ = array.shape
    offsets = np.arange(B + 1, dtype=np.int64) * T

    def numbers(given: Sequences, result: Array) -> Array:
        found = _numbers(given, result, asked, offsets, B * T)
        return found.reshape(B, T, result.shape[1]) if asked.into == "all" else found

    return _rows(array.reshape(B * T, width), offsets), numbers


def _of_flat(values: Any, offsets: Any, asked: Asked, width: int) -> tuple[Sequences, WithResults]:
    """Returns Sequences of values (N, width) or (N,) with offsets (B + 1,), and its WithResults function."""
    column = f"column {asked.column!r}"
    flat = real(column, values)
    if width == 1 and flat.ndim == 1:
        flat = flat[:, None]
    if flat.ndim != 2 or flat.shape[1] != width:
        raise bad_value(column, f"of shape (N, {width})", flat)
    at = checked_offsets(f"column {asked.column + OFFSETS!r}", offsets, _OFFSETS, len(flat))
    given = _rows(flat, at)
    return given, lambda given, result: _numbers(given, result, asked, at, len(flat))


def _numbers(given: Sequences, result: Array, asked: Asked, offsets: Array, steps: int) -> Array:
    """Returns the results of `run` as an array (B, W), or (steps, W) for "all".

    Bad rows become NaN, and steps outside of all rows 0. offsets: of the table, because `given` lacks the
    steps of bad rows.
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
