"""One row group of `lnrnn score`, wherever it is computed: read, scored, and its results written."""

from __future__ import annotations

import secrets
from typing import Any

from . import arrow, parquet
from .job import Job, Outcome
from .parts import Part
from .scorer import Scorer, model_of, named
from .sequences import result_width, run


def compute(job: Job, index: int) -> Outcome:
    """Scores a row group. What a user may be told is in the outcome; anything else is a fault of lnrnn and is
    raised."""
    try:
        return _computed(job, index)
    except (OSError, ValueError, TypeError, ImportError, MemoryError) as error:
        return Outcome(index, error=str(error) or type(error).__name__)


def bad_rows_schema(scorer: Scorer, source: Any) -> Any:
    """row: in the whole input; both numbers count from 0. id: of the column of names, if the Scorer has one.
    source: the schema of the input."""
    pa, _ = parquet.packages()
    name = scorer.id_column
    id_field = [] if name is None else [("id", source.field(name).type)]
    return pa.schema([("row", pa.int64()), ("row_group", pa.int32()), ("reason", pa.string()), *id_field])


def _computed(job: Job, index: int) -> Outcome:
    scorer = job.scorer
    model = model_of(scorer)
    pa, _ = parquet.packages()
    parquet.unchanged(job.input, job.input_was)
    stem = f"{job.scratch}/{index:08}-{secrets.token_hex(8)}"
    with parquet.opened(job.input) as file:
        kind = parquet.check_columns(file, scorer)
        kind_out = arrow.result_type(scorer.into, result_width(model), kind, fixed=False)
        results = Part(f"{stem}.parquet", pa.schema([(scorer.output, kind_out)]))
        bad = Part(f"{stem}.bad.parquet", bad_rows_schema(scorer, file.schema_arrow))
        rows = parquet.rows_at_a_time(file, index, scorer, model)
        facts = {"row group": index, "rows": 0, "steps": 0, "bad rows": 0}
        before = sum(file.metadata.row_group(k).num_rows for k in range(index))
        wanted = [name for name in (scorer.column, scorer.id_column) if name is not None]
        for batch in parquet.batches(file, job.input, index, rows, wanted):
            column = batch.column(batch.schema.names.index(scorer.column))
            given = arrow.sequences(column, model.input_size, scorer.column).less_long(model)
            first = before + facts["rows"]
            if given.bad:
                places = sorted(given.bad)
                if scorer.bad == "raise":
                    raise ValueError(
                        f"{job.input}, row group {index}, row {first + places[0]}"
                        f"{named(scorer, batch, places[0])}, column {scorer.column!r}: "
                        f"{given.bad[places[0]]} (--bad skip leaves such rows out)"
                    )
                told = [(first + place, index, given.bad[place]) for place in places]
                listed = zip(zip(*told, strict=True), bad.schema.types[:3], strict=True)
                columns = [pa.array(values, kind) for values, kind in listed]
                if scorer.id_column is not None:  # not by take, which knows fewer types
                    names = batch.column(scorer.id_column)
                    columns.append(pa.concat_arrays([names.slice(place, 1) for place in places]))
                bad.write(columns)
            found = run(model, given, scorer.into, scorer.threads)
            results.write([arrow.result(given, found, scorer.into, kind, fixed=False)])
            for name, count in (("rows", given), ("steps", given.values), ("bad rows", given.bad)):
                facts[name] += len(count)
        if not facts["rows"]:
            results.write([pa.array([], kind_out)])
    parquet.unchanged(job.input, job.input_was)
    made = results.close(facts)
    assert made is not None
    return Outcome(index, made, bad.close(facts))
