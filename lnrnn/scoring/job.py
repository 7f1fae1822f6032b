"""A row group of `lnrnn score` (Task): the arguments of its worker (Job), the work, the result (Outcome)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ..errors import reason
from ..rnn.models import Model
from . import arrow, columns, parquet
from .inputs import Input, InputError
from .long import Long
from .scorer import Scorer, called, model_of
from .sequences import Sequences, result_width, run

Engine = Literal["local", "dask", "ray"]
ENGINES: tuple[Engine, ...] = get_args(Engine)


@dataclass(frozen=True)
class Job:
    """The arguments of a worker for the row groups of an input. It may be pickled. All paths are absolute.

    input_was: parquet.identity of the input when the run began. scratch: the folder for results. long: None
    if a row of the input is a sequence. kept: the numbers of columns that the worker hands over to the
    output, in a file in `scratch`; [] if the output decodes them.
    """

    scorer: Scorer
    input: Input
    input_was: dict[str, int | str]
    scratch: str
    long: Long | None = None
    kept: list[int] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Task:
    """A row group to compute."""

    job: Job
    index: int

    def __str__(self) -> str:
        return f"{self.job.input}, row group {self.index}"


@dataclass(frozen=True)
class Outcome:
    """The names of the files with a row group's results and its bad rows, or the text of an error.

    name: the Input's. kept: the file of the columns Job.kept. facts: the counts of rows. of_input: whether
    the error is one of the input. The error is a text because not every engine can return an exception.
    """

    name: str
    index: int
    results: str = ""
    bad: str | None = None
    kept: str | None = None
    facts: parquet.Facts = field(default_factory=dict)
    error: str | None = None
    of_input: bool = False


Outcomes = Generator[Outcome, None, None]
Compute = Callable[[Job, int], Outcome]
TRIES = 3  # the largest number of times that a row group is started, if its processes die


def lost(task: Task, tries: int = TRIES, hint: str = "was there memory enough?") -> ChildProcessError:
    return ChildProcessError(f"{task}: the process that computed it died {tries} times ({hint})")


def compute(job: Job, index: int) -> Outcome:
    """Scores a row group. Errors of input, files and memory are in the outcome; other errors are raised."""
    try:
        return _computed(job, index)
    except (OSError, ValueError, TypeError, ImportError, MemoryError) as error:
        of_input = isinstance(error, InputError)
        return Outcome(job.input.name, index, error=reason(error), of_input=of_input)


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
    with parquet.opened(job.input) as (_, file):
        schema = sequences_schema(scorer, job.long, file.schema_arrow)
        kind_out = results_type(scorer, model, schema)
        kept, rows = _handed_over(job, index, file, model)
        out = pa.schema([*([] if job.long is None else [schema.field(0)]), (scorer.output, kind_out)])
        with (
            parquet.Part(f"{stem}.parquet", out) as results,
            parquet.Part(f"{stem}.bad.parquet", bad_rows_schema(scorer, schema)) as bad,
            parquet.handing_over(f"{stem}.kept.arrow") if kept else nullcontext() as hand_over,
        ):
            facts = {"row group": index, "rows": 0, "steps": 0, "bad rows": 0}
            before = sum(rows_of(file, job.long)[:index])
            for batch, given, names in _read(job, index, file, model, rows, kept):
                if hand_over is not None:
                    own = parquet.names_of(file, kept)
                    hand_over(batch if own is None else batch.select(own))
                given = given.less_long(model)
                if given.bad:
                    bad.write(_bad_rows(job, index, given, before, facts["rows"], names))
                result = run(model, given, scorer.into, scorer.threads)
                cells = arrow.result(given, result, scorer.into, kind_out, fixed=False)
                results.write([*([] if job.long is None else [batch.column(0)]), cells])
                for name, count in (("rows", given), ("steps", given.values), ("bad rows", given.bad)):
                    facts[name] += len(count)
            if not facts["rows"]:
                results.write([pa.array([], each.type) for each in out])
            parquet.unchanged(job.input, job.input_was)
            path = results.close(facts)
            assert path is not None
            handed = f"{stem}.kept.arrow" if kept and facts["rows"] else None
            return Outcome(job.input.name, index, path, bad.close(facts), handed, facts)


def _handed_over(job: Job, index: int, file: Any, model: Model) -> tuple[list[int], int]:
    """Returns which columns the worker hands over, and how many rows of the row group to read at a time.

    The output writes the same batches, whether it gets them or reads them. Row groups that would fill much of
    HELD_BYTES are not handed over.
    """
    names = file.schema_arrow.names
    kept = [names[k] for k in job.kept]
    rows = parquet.rows_at_a_time(file, index, job.scorer, model, kept)
    pieces = file.metadata.row_group(index).num_rows / rows if kept else 0
    if kept and pieces * parquet.PIECE_BYTES <= parquet.HELD_BYTES / 4:
        return job.kept, rows
    return [], parquet.rows_at_a_time(file, index, job.scorer, model)


def sequences_schema(scorer: Scorer, long: Long | None, source: Any) -> Any:
    """Returns the schema of a table whose rows are sequences, for an input with the schema `source`."""
    return source if long is None else long.schema(source, scorer.columns)


def rows_of(file: Any, long: Long | None) -> list[int]:
    """Returns how many sequences begin in each row group."""
    if long is not None:
        return list(long.counts)
    return [file.metadata.row_group(k).num_rows for k in range(file.metadata.num_row_groups)]


def _read(
    job: Job, index: int, file: Any, model: Model, rows: int, kept: list[int]
) -> Iterator[tuple[Any, Sequences, Callable[[list[int]], Any]]]:
    """Yields tables of a row group, their sequences, and a function that returns the names of rows.

    rows: how many a table has. kept: the numbers of columns that it has, besides those of the sequences.
    """
    scorer = job.scorer
    if job.long is None:
        names = _Names(job, file, index).of
        own = parquet.names_of(file, kept)
        wanted = None if own is None else [*scorer.columns, *own]
        for batch in parquet.batches(file, job.input, index, rows, wanted):
            yield batch, columns.of_arrow(batch, scorer, model.input_size), names
        return
    found = job.long.batch(file, job.input, index, scorer.columns)
    if found is not None:
        batch, untimed = found
        given = columns.of_arrow(batch, scorer, model.input_size)
        reasons = {row: f"a step has no {job.long.time!r}" for row in untimed} | given.bad
        yield batch, Sequences.of(given.values, given.offsets, given.null, reasons), batch.column(0).take


def _bad_rows(
    job: Job, index: int, given: Sequences, before: int, first: int, names: Callable[[list[int]], Any]
) -> list[Any]:
    """Returns the columns of `bad_rows_schema` for a batch. With bad="raise" raises ValueError.

    before: the number of rows in earlier row groups. first: that of earlier rows in this row group.
    """
    pa, _ = parquet.packages()
    scorer, places = job.scorer, sorted(given.bad)
    own = names([first + place for place in places])
    at = [before + first + place for place in places]
    if scorer.bad == "raise":
        name = "" if own is None else called(scorer, own[0].as_py())
        raise ValueError(
            f"{job.input}, row group {index}, row {at[0]}{name}, {scorer.where}: "
            f"{given.bad[places[0]]} (--bad skip leaves such rows out)"
        )
    reasons = [given.bad[place] for place in places]
    cells = [
        pa.array(at, pa.int64()),
        pa.array([index] * len(at), pa.int32()),
        pa.array(reasons, pa.string()),
    ]
    return cells if own is None else [*cells, own]


def results_type(scorer: Scorer, model: Model, source: Any) -> Any:
    """Returns the type of the results for an input with the schema `source`.

    Raises InputError if the input has not the Scorer's columns.
    """
    try:
        kind = columns.check_arrow(source, scorer, model.input_size)
    except (ValueError, TypeError) as error:
        raise InputError(str(error)) from None
    return arrow.result_type(scorer.into, result_width(model), kind, fixed=False)


@dataclass
class _Names:
    """The column of names of a row group, which is read for the first bad row."""

    job: Job
    file: Any
    index: int
    _read: Any = None

    def of(self, rows: list[int]) -> Any:
        """Returns an Array of the names of rows of the row group, or None without an id_column."""
        name = self.job.scorer.id_column
        if name is None:
            return None
        pa, _ = parquet.packages()
        if self._read is None:
            with parquet.reading(self.job.input, f", row group {self.index},"):
                self._read = self.file.read_row_group(self.index, columns=[name], use_threads=False)[name]
        # take() does not support all types
        return pa.chunked_array([self._read.slice(row, 1).chunk(0) for row in rows]).combine_chunks()
