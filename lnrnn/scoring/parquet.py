"""Reads and writes Parquet files, in batches of rows that fit into memory.

A Part is a file that `lnrnn score` keeps until OUT is complete. It has the results of one row group, or its
bad rows. Its metadata have the row group's number and counts, and its pages have checksums. If a part is
damaged or belongs to another row group, the row group is computed again.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..packages import require
from ..rnn.models import Model
from .inputs import Input, InputError
from .scorer import Scorer
from .sequences import result_width

HELD_BYTES = 2**30  # of decoded rows that wait in files for the output, for each output
PIECE_BYTES = 2**26  # bytes of rows to hold in memory at a time; reading and writing needs about as many
BYTES, TIME = "the input's number of bytes", "the input's time of modification (ns) or version"
BUFFER = 2**20  # the number of bytes to read from the disk at a time
KEY = "lnrnn"  # the key of the facts in a part's metadata
Facts = dict[str, int]  # "row group", its "rows", their "steps", its "bad rows"


def packages() -> tuple[Any, Any]:
    result = [require(name, "lnrnn score", "score") for name in ("pyarrow", "pyarrow.parquet")]
    return result[0], result[1]


@contextmanager
def reading(source: object, where: str = "") -> Iterator[None]:
    """A context that replaces errors by an InputError that says that the file cannot be read."""
    pa, _ = packages()
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, NotImplementedError, pa.ArrowException) as error:
        raise InputError(f"{source}{where} cannot be read as Parquet: {str(error)[:400]}") from error


@contextmanager
def opened(source: Input) -> Iterator[tuple[Any, Any]]:
    """A context with a binary file, and with a pyarrow.parquet.ParquetFile of it.

    From this machine the ParquetFile reads row groups page by page, from elsewhere column by column.
    """
    _, pq = packages()
    far = source.fs is not None
    with source.open() as binary:
        with reading(source):
            file = pq.ParquetFile(
                binary if far else source.path,
                pre_buffer=far, buffer_size=0 if far else BUFFER, page_checksum_verification=True,
            )  # fmt: skip
        with file:
            yield binary, file


def identity(source: Input, binary: Any) -> dict[str, int | str]:
    """Returns facts that show a change of the input without reading all of the file. binary: it, opened."""
    size, version = source.state()
    end = binary.seek(0, 2)
    binary.seek(max(end - 8, 0))
    binary.seek(max(end - 8 - int.from_bytes(binary.read(4), "little"), 0))  # the footer's number of bytes
    own = binary.read()
    return {BYTES: size, TIME: version, "the SHA-256 of the input's footer": hashlib.sha256(own).hexdigest()}


def unchanged(source: Input, was: dict[str, int | str]) -> None:
    """Raises InputError if the input has changed. was: its earlier `identity`."""
    if source.state() != (was[BYTES], was[TIME]):
        raise InputError(f"{source} has changed since its scoring began")


def rows_at_a_time(file: Any, index: int, scorer: Scorer, model: Model, more: Container[str] = ()) -> int:
    """Returns how many rows of a row group take about PIECE_BYTES with results, by the mean size of a row.

    more: the names of columns that are read too.
    """
    group = file.metadata.row_group(index)
    rows = max(group.num_rows, 1)
    own = numbers = 0
    for each in (group.column(k) for k in range(group.num_columns)):
        name = each.path_in_schema.split(".")[0]
        if name in scorer.columns or name in more:
            own += max(8 * each.num_values, each.total_uncompressed_size)
        if name in scorer.columns:
            numbers += each.num_values
    results = 4 * result_width(model) * (numbers / model.input_size if scorer.into == "all" else rows)
    return max(int(PIECE_BYTES * rows / (own + results + 1)), 1)


def names_of(file: Any, keep: list[int]) -> list[str] | None:
    """Returns the names of the columns `keep`, or None for all: names need not differ if all are copied."""
    names = file.schema_arrow.names
    return None if len(keep) == len(names) else [names[k] for k in keep]


def batches(file: Any, source: Input, index: int, rows: int, columns: list[str] | None) -> Iterator[Any]:
    """Yields the RecordBatches of a row group, with `rows` rows each. source: for error messages."""
    result = file.iter_batches(rows, row_groups=[index], columns=columns, use_threads=False)
    while True:
        with reading(source, f", row group {index},"):
            batch = next(result, None)
        if batch is None:
            return
        yield batch


def output_schema(source: Any, keep: list[int], name: str, kind: Any) -> Any:
    """Returns the schema of an output: the columns `keep` of the input's schema, and the results."""
    pa, _ = packages()
    # Spark would read its own description of the columns instead of the schema, and miss the results.
    own = {
        key: value
        for key, value in (source.metadata or {}).items()
        if not key.startswith(b"org.apache.spark")
    }
    return pa.schema([*(source.field(k) for k in keep), pa.field(name, kind)], metadata=own or None)


class Sink(io.RawIOBase):
    """A file object for pyarrow that writes by calling a function."""

    def __init__(self, write: Callable[[Any], object]) -> None:
        self._write, self._at = write, 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._write(data)
        size = memoryview(data).nbytes
        self._at += size
        return size

    def tell(self) -> int:  # pragma: no cover - only some versions of pyarrow call it
        return self._at


@dataclass
class Part:
    """A context with a file of a row group's results or bad rows, which is written batch by batch."""

    path: str
    schema: Any
    _writer: Any = field(default=None, init=False)

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None and self._writer.is_open:  # after an error, perhaps of a full disk
            with suppress(OSError):
                self._writer.close()

    def write(self, columns: list[Any]) -> None:
        pa, pq = packages()
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self.path, self.schema, compression="none", use_dictionary=False, write_statistics=False,
                write_page_checksum=True,
            )  # fmt: skip
        with _named(self.path):
            self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self.schema))

    def close(self, facts: Facts) -> str | None:
        """Returns the path when all data are on the disk, or None if nothing was written."""
        if self._writer is None:
            return None
        self._writer.add_key_value_metadata({KEY: json.dumps(facts)})
        with _named(self.path):
            self._writer.close()
            with open(self.path, "rb") as file:
                os.fsync(file.fileno())
        return self.path


@contextmanager
def handing_over(path: str) -> Iterator[Callable[[Any], None]]:
    """A context with a function that writes RecordBatches to a file, not encoded. See handed_over."""
    pa, _ = packages()
    writer: Any = None
    with pa.OSFile(path, "wb") as file:

        def write(batch: Any) -> None:
            nonlocal writer
            with _named(path):
                writer = writer or pa.ipc.new_stream(file, batch.schema)
                writer.write_batch(batch)

        yield write
        if writer is not None:
            with _named(path):
                writer.close()


def handed_over(path: Path) -> Iterator[Any]:
    """Yields the RecordBatches of a file of handing_over, one after another."""
    pa, _ = packages()
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
        yield from reader


@contextmanager
def _named(path: str) -> Iterator[None]:
    """A context that gives errors, such as of a full disk, the name of the file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or errno.EIO), path) from error


def facts_of(file: Any) -> dict[str, Any]:
    """Returns the facts in the metadata of a part or an output. Raises KeyError or ValueError."""
    return dict(json.loads((file.metadata.metadata or {})[KEY.encode()]))


def complete(results: Path, bad: Path, index: int, rows: int) -> Facts | None:
    """Returns the facts of row group `index` if its parts are readable and have all its `rows` rows."""
    try:
        facts = _read(results, rows)
        if [facts["row group"], facts["rows"]] != [index, rows]:
            return None
        return facts if not facts["bad rows"] or _read(bad, facts["bad rows"]) == facts else None
    except (KeyError, TypeError, ValueError):
        return None


def _read(path: Path, rows: int) -> Facts:
    """Reads a whole part, to verify its checksums. Raises ValueError if it is damaged or lacks rows."""
    with opened(Input(path.name, str(path))) as (_, file):
        for k in range(file.num_row_groups):
            with reading(path):
                rows -= len(file.read_row_group(k, use_threads=False))
        if rows:
            raise ValueError(f"{path} has another number of rows")
        return facts_of(file)
