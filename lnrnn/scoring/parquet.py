"""Parquet files: row groups read a few rows at a time, and columns written so."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..packages import require
from ..rnn.models import Model
from .columns import check_names
from .scorer import Scorer
from .sequences import result_width

# So many bytes of rows at a time, in memory; what they are read from and written to takes about as much
# again.
PIECE_BYTES = 2**26
BYTES, TIME = "the input's number of bytes", "the input's time of modification (ns)"
BUFFER = 2**20  # bytes read from the disk at a time


def packages() -> tuple[Any, Any]:
    """pyarrow, pyarrow.parquet"""
    found = [require(name, "lnrnn score", "score") for name in ("pyarrow", "pyarrow.parquet")]
    return found[0], found[1]


@contextmanager
def reading(path: str, where: str = "") -> Iterator[None]:
    """Says of what goes wrong as a Parquet file is read that it cannot be read: a ValueError."""
    pa, _ = packages()
    try:
        yield
    except (OSError, ValueError, NotImplementedError, pa.ArrowException) as error:
        if isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError)):
            raise
        raise ValueError(f"{path}{where} cannot be read as Parquet: {str(error)[:400]}") from error


@contextmanager
def opened(path: str) -> Iterator[Any]:
    """A pyarrow.parquet.ParquetFile, which reads row groups page by page."""
    _, pq = packages()
    if not os.path.exists(path):
        raise FileNotFoundError(f"no such file: {path!r}")
    with open(path, "rb"):  # a folder, and a file that may not be read, are named by Python
        pass
    with reading(path):
        file = pq.ParquetFile(
            path, pre_buffer=False, buffer_size=BUFFER, page_checksum_verification=True
        )  # fmt: skip
    with file:
        yield file


def identity(path: str) -> dict[str, int | str]:
    """What tells an input from another one, or from itself before it was written to, without reading all of
    it."""
    found = os.stat(path)
    with reading(path), open(path, "rb") as file:
        file.seek(-8, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-8 - length, os.SEEK_END)
        footer = hashlib.sha256(file.read(length)).hexdigest()
    return {BYTES: found.st_size, TIME: found.st_mtime_ns, "the SHA-256 of the input's footer": footer}


def unchanged(path: str, was: dict[str, int | str]) -> None:
    """Raises ValueError if an input is not what it was."""
    found = os.stat(path)
    if [found.st_size, found.st_mtime_ns] != [was[BYTES], was[TIME]]:
        raise ValueError(f"{path} has changed since its scoring began")


def rows_at_a_time(file: Any, index: int, scorer: Scorer, model: Model) -> int:
    """How many rows of a row group, with their results, take about PIECE_BYTES: by what its metadata say of
    the mean row."""
    group = file.metadata.row_group(index)
    rows = max(group.num_rows, 1)
    own = steps = 0.0
    for each in (group.column(k) for k in range(group.num_columns)):
        own += max(8 * each.num_values, each.total_uncompressed_size)
        if each.path_in_schema.split(".")[0] == scorer.column:
            steps += each.num_values / model.input_size
    results = 4 * result_width(model) * (steps if scorer.into == "all" else rows)
    return max(int(PIECE_BYTES * rows / (own + results + 1)), 1)


def batches(file: Any, path: str, index: int, rows: int, columns: list[str] | None = None) -> Iterator[Any]:
    """The RecordBatches of a row group, of `rows` rows each. path: for errors."""
    found = file.iter_batches(rows, row_groups=[index], columns=columns, use_threads=False)
    while True:
        with reading(path, f", row group {index},"):
            batch = next(found, None)
        if batch is None:
            return
        yield batch


def check_columns(file: Any, scorer: Scorer) -> Any:
    """The type of the column to be scored. Raises ValueError if it, or that of names, is not there once, or
    the name of the result is taken."""
    schema = file.schema_arrow
    for column in (scorer.column, scorer.id_column):
        if column is not None:
            check_names(schema.names, column, scorer.output)
    return schema.field(scorer.column).type


class Sink(io.RawIOBase):
    """A file that pyarrow writes to, of a function that writes."""

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
