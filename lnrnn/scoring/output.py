"""The files that `lnrnn score` writes: the input's row groups with their results, in the input's order."""

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
    """A pyarrow.parquet.ParquetWriter whose file gets the name `path` when the body succeeds.

    scratch: a folder of the same file system, for the unfinished file.
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
    """Takes row groups in the input's order, and writes each with its results.

    source: the input, a ParquetFile. rows: the ParquetWriter of OUT. reasons: that of the list of bad rows,
    or None. scored: the counts of rows, steps and bad rows so far.
    """

    job: Job
    model: Model
    source: Any
    rows: Any
    reasons: Any = None
    scored: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0), init=False)

    def add(self, index: int, results: Path, bad: Path) -> None:
        """results: the file of a row group's results. bad: that of its bad rows, if there are any."""
        pa, _ = parquet.packages()
        schema = self.rows.schema
        # Each piece becomes a row group of OUT, so a row group that is too large for memory becomes several.
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
    """The rows of a column's batches, in any number at a time."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._left: Any = None

    def next(self, rows: int) -> list[Any]:
        """-> arrays with that many rows together. Raises ValueError if there are fewer."""
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
