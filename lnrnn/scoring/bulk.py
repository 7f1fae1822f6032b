"""`lnrnn score`: runs a Scorer over Parquet files in bounded memory, with one output for each file.

An output is written under a temporary name, and renamed when it is complete. Its metadata list all facts
on which it depends, so that a later run keeps it, or refuses to replace it.
"""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from threading import Semaphore
from types import SimpleNamespace
from typing import Any

from ..arguments import THREADS
from ..errors import message
from ..files import check_apart, replacing
from . import columns, inputs, parquet
from .inputs import Input, InputError
from .report import Log, Report
from .scorer import Scorer, model_of, named

CODECS = ("none", "snappy", "gzip", "brotli", "zstd", "lz4")
KEY = "lnrnn"  # key of these facts in an output's metadata


@dataclass(eq=False)
class _Target:
    """An input file and its output.

    state: source.state() when `facts` were read. facts: for the output's metadata. rows, bad_rows: numbers of
    rows written so far.
    """

    source: Input
    path: Path
    state: tuple[int, int | str]
    facts: dict[str, Any]
    rows: int = 0
    bad_rows: int = 0


@dataclass(eq=False)
class Command:
    """The arguments of `lnrnn score`.

    scorer: a Scorer with bad="null". output: a file for one source, otherwise a folder with a file for each
    source. nulls: bad rows get a null and a reason, and files of a folder that cannot be scored are
    skipped. Otherwise the first of them raises ValueError. keep: names of columns to copy; None copies
    all. compression: one of CODECS. overwrite: replace other files with the names of outputs.
    workers: how many files, and batches of rows, are computed at the same time. log: see report.py.
    """

    scorer: Scorer
    output: Path
    nulls: bool
    keep: Sequence[str] | None
    compression: str
    overwrite: bool
    workers: int
    log: Log

    def run(self, sources: Iterable[str]) -> int:
        """Writes outputs for the sources (see inputs.find). Returns the number of skipped sources.

        Keeps outputs of earlier runs with equal arguments. Raises the errors of Scorer, and
        OSError. Raises ValueError if a source cannot be read or an output must not be written. Raises
        KeyboardInterrupt with a text that says how far the run came.
        """
        parquet.packages()
        workers = THREADS.of.check("workers", self.workers)
        files, self._folder = inputs.find(sources)
        _check_output(self.output, files, self._folder)
        self.output = Path(os.path.realpath(self.output))
        self._model = model_of(self.scorer)
        self._room = Semaphore(workers + 1)  # limits the batches in memory
        with Report(self.log, len(files)) as self._report:
            try:
                self._write_all(files, workers)
            except KeyboardInterrupt:
                done = f"after {self._report.files} of {len(files)} files"
                do = "the same command keeps them, and computes the others from their first rows"
                raise KeyboardInterrupt(f"{done}; {do}") from None
            self._report.summary(self.output)
        return self._report.bad_files

    def _write_all(self, files: list[Input], workers: int) -> None:
        self._pool, writers = ThreadPoolExecutor(workers), ThreadPoolExecutor(min(workers, len(files)))
        with self._pool, writers:
            try:
                todo = [target for source in files if (target := self._opened(source))]
                for each in as_completed([writers.submit(self._write, target) for target in todo]):
                    each.result()
            except BaseException:
                for pool in (writers, self._pool):  # files in progress end after a batch
                    pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _opened(self, source: Input) -> _Target | None:
        """Returns the _Target of an input. None if its output is complete, or if the input is skipped."""
        path, scorer = self.output / source.name if self._folder else self.output, self.scorer
        try:
            state = source.state()
            with parquet.opened(source) as (binary, file):
                facts = {
                    "lnrnn's version": scorer.version,
                    "the kernel set": scorer.isa,
                    "the model's SHA-256": scorer.sha256,
                    **parquet.identity(source, binary),
                    "--column": scorer.column,
                    "--into": scorer.into,
                    "--bad": "null" if self.nulls else "raise",
                    "--compression": self.compression,
                    "the list of columns": self._schema(source, file)[1].names,
                }
                rows = file.metadata.num_rows
            check_apart(path, *([source.path] if source.fs is None else []), scorer.path)
        except InputError as error:
            self._leave_out(source, error)
            return None
        self._report.total += rows
        if not path.exists() or (bad_rows := self._kept(source, path, facts)) is None:
            return _Target(source, path, state, facts)
        self._report.keep(rows, bad_rows)
        return None

    def _kept(self, source: Input, path: Path, facts: dict[str, Any]) -> int | None:
        """Returns the number of bad rows of a complete output, or None if it must be computed again."""
        try:
            with parquet.opened(Input(path.name, str(path))) as (_, file):
                was = dict(json.loads((file.metadata.metadata or {})[KEY.encode()]))
            bad_rows = int(was.pop("bad rows"))
        except (InputError, LookupError, ValueError):
            reason = "it was not written by this command"
        else:
            names = (name for name in facts if was.get(name) != facts[name])
            if (name := next(names, None)) is not None:
                reason = f"{name} was {was.get(name, 'not there')}, and is {facts[name]}"
            elif source.fs is None and os.stat(source.path).st_mtime_ns > path.stat().st_mtime_ns:
                reason = f"it is older than {source}"
            else:
                return bad_rows
        if self.overwrite:
            return None
        raise ValueError(f"there is {path} already: {reason}; choose another output, or give --overwrite")

    def _schema(self, source: Input, file: Any) -> tuple[list[str] | None, Any]:
        """Returns (names of the columns to read or None for all, the output's Arrow schema).

        Raises InputError if the input lacks a column.
        """
        pa, _ = parquet.packages()
        schema, own = file.schema_arrow, [self.scorer.column, self.scorer.id_column]
        try:
            for name in self.keep or ():
                columns.check_names(schema.names, name)
            wanted = schema.names if self.keep is None else [*self.keep, *own]
            read = pa.schema([each for each in schema if each.name in wanted])
            result = self._shown(self.scorer(read.empty_table())).schema
        except (ValueError, TypeError) as error:
            raise InputError(f"{source}: {error}") from None
        # Spark would read its own description of the columns instead of the schema, and miss the results.
        kept = {k: v for k, v in (schema.metadata or {}).items() if not k.startswith(b"org.apache.spark")}
        return None if self.keep is None else read.names, result.with_metadata(kept)

    def _shown(self, result: Any) -> Any:
        """Selects the output's columns from a table with the scorer's results.

        Results become lists of variable size: pyarrow before version 26 cannot read nulls among fixed-size
        lists from Parquet.
        """
        names = result.schema.names
        given = len(names) - 2  # the last two are results and reasons
        kept = [k for k, name in enumerate(names[:given]) if self.keep is None or name in self.keep]
        results = range(given, given + (2 if self.nulls else 1))
        return columns.in_plain_lists(result, self.scorer.output).select([*kept, *results])

    def _scored(self, source: Input, index: int, first: int, batch: Any) -> tuple[Any, int]:
        """Returns (output rows, bad row count) of a batch. index: its row group. first: its first row."""
        result = self.scorer(batch)
        reasons = result.column(result.num_columns - 1)
        bad_rows = len(reasons) - reasons.null_count
        if bad_rows and not self.nulls:
            row = next(k for k, reason in enumerate(reasons) if reason.is_valid)
            where = f"{source}, row group {index}, row {first + row}{named(self.scorer, batch, row)}"
            do = "(--bad null gives such rows a null)"
            raise ValueError(f"{where}, column {self.scorer.column!r}: {reasons[row]} {do}")
        return self._shown(result), bad_rows

    def _write(self, target: _Target) -> None:
        """Writes an output under a temporary name, and renames it when it is complete."""
        source, path = target.source, target.path
        try:
            if self._folder:
                path.parent.mkdir(parents=True, exist_ok=True)
            with parquet.opened(source) as (_, file), replacing(path) as write:
                self._write_rows(target, file, write)
                if source.state() != target.state:
                    raise InputError(f"{source} has changed since its scoring began")
                if path.exists() and not self.overwrite:
                    raise ValueError(f"another command has written {path} meanwhile; that file is kept")
        except InputError as error:
            self._leave_out(source, error, target.rows, target.bad_rows)
        else:
            self._report.complete()

    def _leave_out(self, source: Input, error: InputError, *counts: int) -> None:
        if not (self._folder and self.nulls):
            raise error
        self._report.fail(source, error, *counts)

    def _write_rows(self, target: _Target, file: Any, write: Any) -> None:
        pa, pq = parquet.packages()
        pending, first = deque[Future[tuple[Any, int]]](), 0
        names, schema = self._schema(target.source, file)
        # Most floats differ, so a dictionary would be as large as the floats.
        plain = [each for each in schema if not pa.types.is_nested(each.type)]
        coded = [each.name for each in plain if not pa.types.is_floating(each.type)]
        sink = pa.PythonFile(SimpleNamespace(write=write, closed=False, close=int, flush=int), mode="w")

        def write_first() -> None:
            rows, bad_rows = pending[0].result()
            writer.write_table(pa.Table.from_batches([rows]), max(len(rows), 1))
            target.rows, target.bad_rows = target.rows + len(rows), target.bad_rows + bad_rows
            self._report.add(len(rows), bad_rows)
            pending.popleft()
            self._room.release()

        try:
            with pq.ParquetWriter(sink, schema, compression=self.compression, use_dictionary=coded) as writer:
                for index, batch in parquet.batches(file, target.source, self.scorer, self._model, names):
                    while not self._room.acquire(blocking=not pending):
                        write_first()
                    pending.append(self._pool.submit(self._scored, target.source, index, first, batch))
                    first += len(batch)
                while pending:
                    write_first()
                facts = target.facts | {"bad rows": target.bad_rows}
                writer.add_key_value_metadata({KEY: json.dumps(facts)})
        finally:
            for _ in pending:
                self._room.release()


def _check_output(output: Path, files: Sequence[Input], folder: bool) -> None:
    """Raises ValueError if the output has another format, lies among inputs, or is of an older version."""
    if re.match("[a-z][a-z0-9+.-]+:/", str(output)):  # a Path turns "//" into "/"
        raise ValueError(message("the output", "on this machine", str(output)))
    own = os.path.realpath(output)
    if os.path.exists(own + ".parts"):
        do = "finish with that version, or remove the folder"
        raise ValueError(f"{own}.parts has row groups of an earlier version, which cannot be read: {do}")
    if not folder:
        if output.suffix.lower() not in ("", ".parquet", ".pq"):
            raise ValueError(f"the output must be a Parquet file, got {output}; give it the suffix .parquet")
        return
    if output.exists() and not output.is_dir():
        raise ValueError(message("the output of a folder", "a folder", str(output)))
    for each in files:
        if each.fs is None and os.path.realpath(each.path).startswith(own.rstrip(os.sep) + os.sep):
            raise ValueError(message("the output", "a folder without inputs", f"{output} with {each}"))
