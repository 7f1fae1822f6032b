"""Reads Parquet files in batches of rows that fit in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..packages import require
from ..rnn.models import Model
from .inputs import Input, InputError
from .scorer import Scorer
from .sequences import result_width

PIECE_BYTES = 2**26  # bytes of a batch's rows; reading and writing need about as many again
BUFFER = 2**20  # bytes to read from the disk at a time


def packages() -> tuple[Any, Any]:
    result = [require(name, "lnrnn score", "score") for name in ("pyarrow", "pyarrow.parquet")]
    return result[0], result[1]


@contextmanager
def reading(source: object, where: str = "") -> Iterator[None]:
    """A context that converts errors to InputErrors: the file cannot be read. where: a place in the file."""
    pa, _ = packages()
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, NotImplementedError, pa.ArrowException) as error:
        raise InputError(f"{source}{where} cannot be read as Parquet: {str(error)[:400]}") from error


@contextmanager
def opened(source: Input) -> Iterator[tuple[Any, Any]]:
    """A context that opens an input. Yields (binary file, pyarrow.parquet.ParquetFile).

    The ParquetFile reads row groups of local files page by page, and of remote files column by column.
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


def identity(source: Input, binary: Any) -> dict[str, str]:
    """Returns facts that reveal changes of the input without reading the whole file. binary: the open file.

    Equal local files have equal facts, so there is no time among these.
    """
    with reading(source):
        end = max(binary.seek(0, 2) - 8, 0)
        binary.seek(end)
        binary.seek(max(end - int.from_bytes(binary.read(4), "little"), 0))  # the footer's length
        facts = {"the SHA-256 of the input's footer": hashlib.sha256(binary.read()).hexdigest()}
    return facts if source.fs is None else {**facts, "the input's version": str(source.state()[1])}


def batches(
    file: Any, source: Input, scorer: Scorer, model: Model, names: list[str] | None
) -> Iterator[tuple[int, Any]]:
    """Yields (number of the row group, RecordBatch) for all rows of a file in order.

    names: columns to read, or None for all.
    """
    for index in range(file.num_row_groups):
        rows = _rows_at_a_time(file.metadata.row_group(index), scorer, model, names)
        found = file.iter_batches(rows, row_groups=[index], columns=names)
        while True:
            with reading(source, f", row group {index},"):
                batch = next(found, None)
            if batch is None:
                break
            yield index, batch


def _rows_at_a_time(group: Any, scorer: Scorer, model: Model, names: list[str] | None) -> int:
    """Returns the number of rows that take about PIECE_BYTES with results. group: a row group's metadata."""
    rows = max(group.num_rows, 1)
    own = numbers = 0
    for each in (group.column(k) for k in range(group.num_columns)):
        name = each.path_in_schema.split(".")[0]
        if names is None or name in names:
            own += max(8 * each.num_values, each.total_uncompressed_size)
        if name == scorer.column:
            numbers += each.num_values
    results = 4 * result_width(model) * (numbers / model.input_size if scorer.into == "all" else rows)
    return max(int(PIECE_BYTES * rows / (own + results + 1)), 1)
