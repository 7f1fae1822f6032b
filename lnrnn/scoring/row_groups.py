"""One row group of `lnrnn score`, wherever it is computed: read, scored, and its results written."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from typing import Any

import lnrnn

from . import arrow, parquet
from .job import Job, Outcome
from .models import loaded
from .sequences import result_width, run


@dataclass
class _Part:
    """A file of the scratch folder that is written piece by piece."""

    path: str
    schema: Any
    _writer: Any = field(default=None, init=False)

    def write(self, columns: list[Any]) -> None:
        pa, pq = parquet.packages()
        if self._writer is None:
            self._writer = pq.ParquetWriter(self.path, self.schema, compression="none", use_dictionary=False)
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self.schema))

    def close(self) -> str | None:
        """-> the path, when all is on the disk; None if nothing was written."""
        if self._writer is None:
            return None
        self._writer.close()
        with open(self.path, "rb") as file:
            os.fsync(file.fileno())
        return self.path


def compute(job: Job, index: int) -> Outcome:
    """Scores a row group. What a user may be told is in the outcome; anything else is a fault of lnrnn and is
    raised."""
    try:
        return _computed(job, index)
    except (OSError, ValueError, TypeError, ImportError, MemoryError) as error:
        return Outcome(index, error=str(error) or type(error).__name__)


def bad_rows_schema() -> Any:
    """row: in the whole input; both count from 0."""
    pa, _ = parquet.packages()
    return pa.schema([("row", pa.int64()), ("row_group", pa.int32()), ("reason", pa.string())])


def _computed(job: Job, index: int) -> Outcome:
    _check_here(job)
    model = loaded(job.model, job.model_was)
    width, into = result_width(model), job.into
    pa, _ = parquet.packages()
    parquet.unchanged(job.input, job.input_was)
    stem = f"{job.scratch}/{index:08}-{secrets.token_hex(8)}"
    with parquet.opened(job.input) as file:
        kind = parquet.check_column(file, job.column, job.output)
        schema = pa.schema([(job.output, arrow.result_type(into, width, kind, fixed=False))])
        results, bad = _Part(f"{stem}.parquet", schema), _Part(f"{stem}.bad.parquet", bad_rows_schema())
        rows = parquet.rows_at_a_time(file, index, job, model)
        scored = 0
        for batch in parquet.batches(file, job.input, index, rows, [job.column]):
            given = arrow.sequences(batch.column(0), model.input_size, job.column).less_long(model)
            if given.bad:
                before = scored + sum(file.metadata.row_group(k).num_rows for k in range(index))
                told = [(before + place, index, given.bad[place]) for place in sorted(given.bad)]
                if not job.skip:
                    raise ValueError(
                        f"{job.input}, row group {index}, row {told[0][0]}, column {job.column!r}: "
                        f"{told[0][2]} (--bad skip leaves such rows out)"
                    )
                columns = zip(zip(*told, strict=True), bad.schema.types, strict=True)
                bad.write([pa.array(values, kind) for values, kind in columns])
            found = run(model, given, into, job.threads)
            results.write([arrow.result(given, found, into, kind, fixed=False)])
            scored += len(given)
        if results.close() is None:  # a row group without rows
            results.write([pa.array([], schema.types[0])])
            results.close()
    parquet.unchanged(job.input, job.input_was)
    return Outcome(index, results.path, bad.close())


def _check_here(job: Job) -> None:
    """Raises ValueError if the lnrnn of this process would give other bits than the one that began."""
    isa = lnrnn.cpu_info()["isa"]
    if (lnrnn.__version__, isa) != (job.version, job.isa):
        raise ValueError(
            f"a worker has lnrnn {lnrnn.__version__} with the kernels {isa}, the command has lnrnn "
            f"{job.version} with {job.isa}: their results differ (LNRNN_ISA chooses kernels)"
        )
