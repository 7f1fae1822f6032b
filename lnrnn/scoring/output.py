"""Writes the outputs of `lnrnn score`: columns of the input, whose pages are copied, and the results."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..files import replacing
from . import footer, pages, parquet, thrift
from .footer import CHUNK, COLUMNS, ROW_GROUPS, ROWS
from .inputs import Input, InputError
from .pages import Compression
from .thrift import I64, STRUCT, Struct


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
    """An output, which gets a row group for each row group of the input.

    write: a function that writes bytes. source: the Input. file: it, opened. own: its footer. keep: the
    numbers of the columns to copy. compression: None keeps that of the input. schema: pyarrow's schema of
    the output, whose last column has the results.
    """

    def __init__(
        self,
        write: Callable[[Any], object],
        source: Input,
        file: Any,
        own: Struct,
        keep: list[int],
        compression: Compression | None,
        schema: Any,
    ) -> None:
        self._write, self._source, self._file, self._own = write, source, file, own
        self._keep, self._compression, self._schema = keep, compression, schema
        with self._reading_footer():
            self._leaves = [leaf for k in keep for leaf in footer.trees(own)[k][1]]
        self._groups: list[Struct] = []
        self._rows = self._at = 0
        self._put(footer.MAGIC)

    @contextmanager
    def _reading_footer(self) -> Iterator[None]:
        """A context in which a footer that lacks a field, or has another type of it, raises InputError."""
        try:
            yield
        except (LookupError, TypeError, AttributeError, OverflowError, UnicodeError) as error:
            raise InputError(f"{self._source} cannot be copied: its footer is damaged ({error!r})") from error

    def _put(self, data: bytes) -> None:
        self._write(data)
        self._at += len(data)

    def compression_of(self, column: str) -> Compression:
        """Returns the codec of a column of the input, or SNAPPY if a new file cannot have it."""
        codec = -1
        with self._reading_footer():
            trees = footer.trees(self._own)
            names = [elements[0][footer.NAME][1] for elements, _ in trees]
            leaf = trees[names.index(column.encode())][1][0]
            for group in self._own[ROW_GROUPS][1].values[:1]:
                codec = group[COLUMNS][1].values[leaf][CHUNK][1][footer.CODEC][1]
        return Compression(pages.NAMES.get(codec, "snappy"))

    def add(self, index: int, results: Path) -> None:
        """Writes row group `index`. results: the file of its results."""
        begin = self._at
        with self._reading_footer():
            group = self._own[ROW_GROUPS][1].values[index]
            columns, rows = group[COLUMNS][1].values, group[footer.GROUP_ROWS][1]
            chunks = [self._copied(columns[leaf]) for leaf in self._leaves]
        with results.open("rb") as part:
            parts = footer.parse(footer.read(part))[ROW_GROUPS][1].values
            for column in zip(*(each[COLUMNS][1].values for each in parts), strict=True):
                to = self._at
                copied = [self._put_all(pages.copy(part, each[CHUNK][1])) for each in column]
                chunks.append(footer.moved(footer.joined(copied), to))
        with self._reading_footer():
            self._groups.append(footer.row_group(rows, chunks, begin))
        self._rows += rows

    def _put_all(self, blocks: Generator[bytes, None, Struct]) -> Struct:
        while True:
            try:
                block = next(blocks)
            except StopIteration as end:
                chunk: Struct = end.value
                return chunk
            self._put(block)

    def _copied(self, column: Struct) -> Struct:
        """Copies a column of the input. Returns its ColumnMetaData. Raises InputError if it is damaged."""
        to, name = self._at, f"{self._source} cannot be copied: "
        if footer.IN_ANOTHER_FILE in column:
            raise InputError(name + "it has columns in another file")
        chunk = column[CHUNK][1]
        blocks = (
            pages.copy(self._file, chunk)
            if self._compression is None
            else pages.recompress(self._file, chunk, self._compression)
        )
        return footer.moved(self._put_all(_of_input(blocks, name)), to)

    def close(self, facts: dict[str, str]) -> None:
        """Writes the footer. facts: more metadata."""
        pa, pq = parquet.packages()
        sink = pa.BufferOutputStream()
        results = pa.schema([self._schema.field(len(self._schema.names) - 1)])
        with pq.ParquetWriter(sink, results):
            pass
        empty = footer.parse(footer.read(pa.BufferReader(sink.getvalue())))
        metadata = {name.encode(): value.encode() for name, value in facts.items()}
        with self._reading_footer():
            end = footer.with_columns(self._own, self._keep, empty, self._schema, metadata)
            end[ROWS] = I64, self._rows
            end[ROW_GROUPS] = thrift.LIST, thrift.List(STRUCT, self._groups)
            data = thrift.written(end)
        self._put(data + len(data).to_bytes(4, "little") + footer.MAGIC)


def _of_input(blocks: Generator[bytes, None, Struct], name: str) -> Generator[bytes, None, Struct]:
    """Yields the blocks. An error of theirs becomes an InputError whose message begins with `name`."""
    try:
        return (yield from blocks)
    except (OSError, ValueError, LookupError, parquet.packages()[0].ArrowException) as error:
        raise InputError(f"{name}{str(error)[:400]}") from error
