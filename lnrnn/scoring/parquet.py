"""Reads and writes Parquet files, in batches of rows that fit into memory.

A Part is a file that `lnrnn score` keeps until OUT is complete. It has the results of one row group, or its
bad rows. Its metadata have the row group's number and counts, and its pages have checksums. If a part is
damaged or belongs to another row group, the row group is computed again.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..packages import require
from ..rnn.models import Model
from .columns import check_names
from .scorer import Scorer
from .sequences import result_width

PIECE_BYTES = 2**26  # bytes of rows to hold in memory at a time; reading and writing needs about as many
BYTES, TIME = "the input's number of bytes", "the input's time of modification (ns)"
BUFFER = 2**20  # the number of bytes to read from the disk at a time
KEY = "lnrnn"  # the key of the facts in a part's metadata
Facts = dict[str, int]  # "row group", its "rows", their "steps", its "bad rows"


def packages() -> tuple[Any, Any]:
    result = [require(name, "lnrnn score", "score") for name in ("pyarrow", "pyarrow.parquet")]
    return result[0], result[1]


@contextmanager
def reading(path: str, where: str = "") -> Iterator[None]:
    """A context that replaces errors by a ValueError that says that the file cannot be read."""
    pa, _ = packages()
    try:
        yield
    except (OSError, ValueError, NotImplementedError, pa.ArrowException) as error:
        if isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError)):
            raise
        raise ValueError(f"{path}{where} cannot be read as Parquet: {str(error)[:400]}") from error


@contextmanager
def opened(path: str) -> Iterator[Any]:
    """A context with a pyarrow.parquet.ParquetFile, which reads row groups page by page."""
    _, pq = packages()
    if not os.path.exists(path):
        raise FileNotFoundError(f"no such file: {path!r}")
    with open(path, "rb"):  # raises OSError for a folder, and for a file without permission
        pass
    with reading(path):
        file = pq.ParquetFile(
            path, pre_buffer=False, buffer_size=BUFFER, page_checksum_verification=True
        )  # fmt: skip
    with file:
        yield file


def identity(path: str) -> dict[str, int | str]:
    """Returns facts that show a change of the input without reading all of the file."""
    result = os.stat(path)
    with reading(path), open(path, "rb") as file:
        file.seek(-8, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-8 - length, os.SEEK_END)
        footer = hashlib.sha256(file.read(length)).hexdigest()
    return {BYTES: result.st_size, TIME: result.st_mtime_ns, "the SHA-256 of the input's footer": footer}


def unchanged(path: str, was: dict[str, int | str]) -> None:
    """Raises ValueError if the input has changed. was: its earlier `identity`."""
    result = os.stat(path)
    if [result.st_size, result.st_mtime_ns] != [was[BYTES], was[TIME]]:
        raise ValueError(f"{path} has changed since its scoring began")


def rows_at_a_time(file: Any, index: int, scorer: Scorer, model: Model) -> int:
    """Returns how many rows of a row group take about PIECE_BYTES with results, by the mean size of a row."""
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
    """Yields the RecordBatches of a row group, with `rows` rows each. path: for error messages."""
    result = file.iter_batches(rows, row_groups=[index], columns=columns, use_threads=False)
    while True:
        with reading(path, f", row group {index},"):
            batch = next(result, None)
        if batch is None:
            return
        yield batch


def check_columns(file: Any, scorer: Scorer) -> Any:
    """Returns the type of the Scorer's column.

    Raises ValueError unless this column and the id_column exist once, or if a column has the result's name.
    """
    schema = file.schema_arrow
    for column in (scorer.column, scorer.id_column):
        if column is not None:
            check_names(schema.names, column, scorer.output)
    return schema.field(scorer.column).type


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
    """A file of a row group's results or bad rows, which is written batch by batch."""

    path: str
    schema: Any
    _writer: Any = field(default=None, init=False)

    def write(self, columns: list[Any]) -> None:
        pa, pq = packages()
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self.path, self.schema, compression="none", use_dictionary=False, write_page_checksum=True
            )
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self.schema))

    def close(self, facts: Facts) -> str | None:
        """Returns the path when all data are on the disk, or None if nothing was written."""
        if self._writer is None:
            return None
        self._writer.add_key_value_metadata({KEY: json.dumps(facts)})
        self._writer.close()
        with open(self.path, "rb") as file:
            os.fsync(file.fileno())
        return self.path


def facts_of(file: Any) -> Facts:
    """Returns a row group's number and counts from a part's metadata. Raises KeyError or ValueError."""
    return dict(json.loads((file.metadata.metadata or {})[KEY.encode()]))


def is_complete(results: Path, bad: Path, index: int, rows: int) -> bool:
    """Returns whether the parts of row group `index` are readable and have all its `rows` rows."""
    try:
        facts = _read(results, rows)
        if [facts["row group"], facts["rows"]] != [index, rows]:
            return False
        return not facts["bad rows"] or _read(bad, facts["bad rows"]) == facts
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return False


def _read(path: Path, rows: int) -> Facts:
    """Reads a whole part, to verify its checksums. Raises ValueError if it is damaged or lacks rows."""
    with opened(str(path)) as file:
        for k in range(file.num_row_groups):
            with reading(str(path)):
                rows -= len(file.read_row_group(k, use_threads=False))
        if rows:
            raise ValueError(f"{path} has another number of rows")
        return facts_of(file)
