"""A row group of `lnrnn score`: the arguments for a worker (Job), its work, and the result (Outcome)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from . import arrow, parquet
from .scorer import Scorer, model_of, named
from .sequences import result_width, run

Engine = Literal["local", "dask", "ray"]
ENGINES: tuple[Engine, ...] = get_args(Engine)


@dataclass(frozen=True)
class Job:
    """The arguments of a worker, which may be pickled. All paths are absolute.

    input_was: parquet.identity of the input when the run began. scratch: the folder for results.
    """

    scorer: Scorer
    input: str
    input_was: dict[str, int | str]
    scratch: str

    @property
    def threads(self) -> int:
        return self.scorer.threads or 1


@dataclass(frozen=True)
class Outcome:
    """The names of the files with a row group's results and its bad rows, or the text of an error.

    The error is a text because not every engine can return an exception.
    """

    index: int
    results: str = ""
    bad: str | None = None
    error: str | None = None


Outcomes = Generator[Outcome, None, None]
Compute = Callable[[Job, int], Outcome]
TRIES = 3  # the largest number of times that a row group is started, if its processes die


def lost(index: int, tries: int = TRIES, hint: str = "was there memory enough?") -> ChildProcessError:
    return ChildProcessError(f"row group {index}: the process that computed it died {tries} times ({hint})")


def compute(job: Job, index: int) -> Outcome:
    """Scores a row group. Errors of input, files and memory are in the outcome; other errors are raised."""
    try:
        return _computed(job, index)
    except (OSError, ValueError, TypeError, ImportError, MemoryError) as error:
        return Outcome(index, error=str(error) or type(error).__name__)


def bad_rows_schema(scorer: Scorer, source: Any) -> Any:
    """Returns the schema of the list of bad rows, for an input with the schema `source`.

    The column row is the row's number in the whole input, from 0; row_group counts from 0 too. id is the
    entry in the Scorer's id_column, if that is given.
    """
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
        results = parquet.Part(f"{stem}.parquet", pa.schema([(scorer.output, kind_out)]))
        bad = parquet.Part(f"{stem}.bad.parquet", bad_rows_schema(scorer, file.schema_arrow))
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
                listed = zip(*((first + place, index, given.bad[place]) for place in places), strict=True)
                kinds = bad.schema.types[:3]
                columns = [pa.array(values, kind) for values, kind in zip(listed, kinds, strict=True)]
                if scorer.id_column is not None:  # take() does not support all types
                    names = batch.column(scorer.id_column)
                    columns.append(pa.concat_arrays([names.slice(place, 1) for place in places]))
                bad.write(columns)
            result = run(model, given, scorer.into, scorer.threads)
            results.write([arrow.result(given, result, scorer.into, kind, fixed=False)])
            for name, count in (("rows", given), ("steps", given.values), ("bad rows", given.bad)):
                facts[name] += len(count)
        if not facts["rows"]:
            results.write([pa.array([], kind_out)])
    parquet.unchanged(job.input, job.input_was)
    path = results.close(facts)
    assert path is not None
    return Outcome(index, path, bad.close(facts))
