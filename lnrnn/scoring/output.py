"""Writes the outputs of `lnrnn score`: the kept columns of the input, and the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..files import replacing
from . import parquet
from .inputs import Input


@contextmanager
def writing(path: Path, schema: Any, scratch: Path) -> Iterator[Any]:
    """A context with a pyarrow.parquet.ParquetWriter, whose file gets the name `path` when the body succeeds.

    scratch: a folder for the unfinished file, on the file system of `path`.
    """
    pa, pq = parquet.packages()
    with (
        replacing(path, str(scratch)) as write,
        pa.PythonFile(parquet.Sink(write), mode="w") as sink,
        pq.ParquetWriter(sink, schema) as writer,
    ):
        yield writer


class Output:
    """An output, which gets the row groups of the input in order.

    write: a function that writes bytes. source: the Input. file: it, opened. keep: the numbers of the columns
    to copy from the input. schema: pyarrow's schema of the output, whose last columns have the results.
    settings: arguments of the ParquetWriter. rows: a function that returns how many rows of a row group to
    hold in memory.
    """

    def __init__(
        self,
        write: Callable[[Any], object],
        source: Input,
        file: Any,
        keep: list[int],
        schema: Any,
        settings: dict[str, Any],
        rows: Callable[[int], int],
    ) -> None:
        pa, pq = parquet.packages()
        self._source, self._file, self._schema, self._rows = source, file, schema, rows
        self._names = parquet.names_of(file, keep)
        self._sink = pa.PythonFile(parquet.Sink(write), mode="w")
        self._writer = pq.ParquetWriter(self._sink, schema, **settings)

    def add(self, index: int, results: Path, kept: Path | None = None) -> None:
        """Writes row group `index`. results: the file of its results.

        kept: a file of parquet.handing_over with the columns to copy. None decodes them.
        """
        pa, _ = parquet.packages()
        pieces = self._rows(index)
        empty = True
        # Each batch becomes a row group, so that a large row group need not be in memory at once.
        with parquet.opened(Input(results.name, str(results))) as (_, part):
            found = (
                batch.columns
                for k in range(part.num_row_groups)
                for batch in parquet.batches(part, self._source, k, pieces, None)
            )
            for columns in found if self._names == [] else self._with_kept(found, index, pieces, kept):
                empty = False
                self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))
        if empty:
            self._writer.write_table(self._schema.empty_table())

    def _with_kept(
        self, found: Iterator[list[Any]], index: int, pieces: int, kept: Path | None
    ) -> Iterator[list[Any]]:
        pa, _ = parquet.packages()
        rows = _Rows(columns[0] for columns in found)
        kind = self._schema.field(len(self._schema.names) - 1).type
        if kept is None:
            batches = parquet.batches(self._file, self._source, index, pieces, self._names)
        else:
            batches = parquet.handed_over(kept)
        for batch in batches:
            columns = batch.columns if self._names is None else [batch.column(name) for name in self._names]
            yield [*columns, pa.chunked_array(rows.next(len(batch)), kind)]

    def close(self, facts: dict[str, str]) -> None:
        """Writes the footer. facts: more metadata."""
        self._writer.add_key_value_metadata(facts)
        self._writer.close()
        self._sink.close()

    def discard(self) -> None:
        """Ends the writer of an output that will be removed, perhaps after an error such as a full disk."""
        if self._writer.is_open:
            with suppress(OSError, ValueError):
                self._writer.close()


class _Rows:
    """Divides a column, which comes in arrays, into arrays of other lengths."""

    def __init__(self, arrays: Iterator[Any]) -> None:
        self._arrays = arrays
        self._left: Any = None

    def next(self, rows: int) -> list[Any]:
        """Returns arrays that have the next `rows` rows together. Raises ValueError if there are fewer."""
        result = []
        while rows:
            if self._left is None or not len(self._left):
                self._left = next(self._arrays, None)
                if self._left is None:  # pragma: no cover - parquet.complete has refused such a file
                    raise ValueError("a file of results has too few rows")
            result.append(self._left[:rows])
            self._left = self._left[len(result[-1]) :]
            rows -= len(result[-1])
        return result
