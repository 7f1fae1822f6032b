"""Writes the files of `lnrnn score`: the input's row groups with results, in order, and the bad rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..files import replacing
from ..rnn.models import Model
from . import parquet
from .job import Job

COUNTS = ("rows", "steps", "bad rows")


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


@dataclass
class Output:
    """Writes row groups of the input with their results, in the order of calls of `add`.

    source: the input, a ParquetFile. rows: the ParquetWriter of OUT. reasons: the ParquetWriter of the list
    of bad rows, or None. scored: the numbers of rows, steps and bad rows so far.
    """

    job: Job
    model: Model
    source: Any
    rows: Any
    reasons: Any = None
    scored: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0), init=False)

    def add(self, index: int, results: Path, bad: Path) -> None:
        """Writes row group `index`. results, bad: the files of its results, and of its bad rows if any."""
        pa, _ = parquet.packages()
        schema = self.rows.schema
        # Each batch becomes a row group of OUT, so that a large row group need not be in memory at once.
        pieces = parquet.rows_at_a_time(self.source, index, self.job.scorer, self.model)
        kind = schema.field(self.job.scorer.output).type
        with parquet.opened(str(results)) as part:
            facts, groups = parquet.facts_of(part), range(part.num_row_groups)
            column_of_results = _Rows(
                batch for k in groups for batch in parquet.batches(part, str(results), k, pieces)
            )
            for batch in parquet.batches(self.source, self.job.input, index, pieces):
                column = pa.chunked_array(column_of_results.next(len(batch)), kind)
                self.rows.write_table(pa.Table.from_arrays([*batch.columns, column], schema=schema))
        if not facts["rows"]:
            self.rows.write_table(schema.empty_table())
        for name in COUNTS:
            self.scored[name] += facts[name]
        if self.reasons is not None and facts["bad rows"]:
            with parquet.opened(str(bad)) as file:
                for batch in file.iter_batches():
                    self.reasons.write_batch(batch)


class _Rows:
    """Divides the rows of a column, which come in batches, into arrays of other lengths."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._left: Any = None

    def next(self, rows: int) -> list[Any]:
        """Returns arrays that have the next `rows` rows together. Raises ValueError if there are fewer."""
        result = []
        while rows:
            if self._left is None or not len(self._left):
                batch = next(self._batches, None)
                if batch is None:  # pragma: no cover - is_complete has refused such a file
                    raise ValueError("a file of results has too few rows")
                self._left = batch.column(0)
            result.append(self._left[:rows])
            self._left = self._left[len(result[-1]) :]
            rows -= len(result[-1])
        return result
