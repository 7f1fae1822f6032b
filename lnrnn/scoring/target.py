"""The output of `lnrnn score` for one input, while it is computed. See bulk.py."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from ..files import check_apart, check_replaceable, replacing
from ..rnn.models import Model
from . import parquet
from .columns import check_names
from .compression import Compression, settings
from .inputs import Input, InputError
from .job import Job, Outcome, Task, bad_rows_schema, results_type, rows_of, sequences_schema
from .journal import Journal
from .long import Known, Long
from .output import Output, writing
from .report import COUNTS
from .scorer import Scorer


@dataclass(frozen=True)
class Request:
    """The arguments of all files. keep: the names of the columns to keep; None keeps all.

    folder: whether output is a folder, which has an output for each input. known: ids of `long`. local:
    whether workers hand decoded columns over, in files on this machine.
    """

    scorer: Scorer
    model: Model
    output: Path
    folder: bool
    keep: Sequence[str] | None = None
    compression: Compression | None = None
    long: Long | None = None
    known: Known = field(default_factory=Known)
    local: bool = True

    @property
    def skip(self) -> bool:
        return self.scorer.bad == "null"

    def path(self, source: Input) -> Path:
        return self.output / source.name if self.folder else self.output

    def parts(self, source: Input) -> Path:
        """Returns the folder of the journal: out.parquet.parts, or out.parts/NAME for a folder out."""
        folder = self.output.with_name(self.output.name + ".parts")
        return folder / source.name if self.folder else folder

    def bad_rows(self, source: Input) -> Path:
        """Returns the list of bad rows: out.bad.parquet for out.parquet, or out.bad/NAME for a folder out."""
        if self.folder:
            return self.output.with_name(self.output.name + ".bad") / source.name
        name = self.output.stem if self.output.suffix == ".parquet" else self.output.name
        return self.output.with_name(name + ".bad.parquet")


@dataclass
class Target:
    """A context with an output that gets row groups in any order.

    Raises InputError if the input cannot be scored. done: whether the output was complete before. facts: the
    facts of the row groups that are computed. tasks: the others.
    """

    request: Request
    source: Input
    done: bool = field(default=False, init=False)
    facts: dict[int, parquet.Facts] = field(default_factory=dict, init=False)
    tasks: list[Task] = field(default_factory=list, init=False)
    _written: int = field(default=0, init=False)
    _held: dict[int, Path] = field(default_factory=dict, init=False)

    def __enter__(self) -> Target:
        with ExitStack() as stack:
            self._open(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._stack.__exit__(kind, error, trace)
        finally:
            self._remove_empty_folders()

    def _open(self, stack: ExitStack) -> None:
        request, source, scorer = self.request, self.source, self.request.scorer
        binary, file = stack.enter_context(parquet.opened(source))
        with parquet.reading(source):
            self._was = parquet.identity(source, binary)
        try:
            own = sequences_schema(scorer, request.long, file.schema_arrow)
            kind = results_type(scorer, request.model, own)
            keep = _kept(file.schema_arrow.names, request.keep)
        except ValueError as error:
            raise InputError(f"{source}: {error}") from None
        long = request.long and request.known.counted(request.long, file, source)
        rows = rows_of(file, long)
        schema = parquet.output_schema(own, keep if long is None else [0], scorer.output, kind)
        results_facts = {
            "lnrnn's version": scorer.version,
            "the kernel set": scorer.isa,
            "the model's SHA-256": scorer.sha256,
            **self._was,
            ("--columns" if scorer.column is None else "--column"): ",".join(scorer.columns),
            **({"--flat": "yes"} if scorer.flat else {}),
            **({} if long is None else {"--long": ",".join(filter(None, (long.id, long.time)))}),
            "--into": scorer.into,
            "--name": scorer.output,
        }
        changed = {} if request.compression is None else {"--compression": str(request.compression)}
        self._provenance = {**results_facts, **changed, "columns": schema.names}
        path, listed = request.path(source), request.bad_rows(source)
        reasons_schema = bad_rows_schema(scorer, own)
        if request.folder and self._is_complete(path, listed, reasons_schema):
            self.done = True
            return
        for each in (path, listed) if request.skip else (path,):
            if request.folder:
                each.parent.mkdir(parents=True, exist_ok=True)
            check_replaceable(each)
            check_apart(each, *([source.path] if source.fs is None else []), scorer.path)
            if each == listed and each.is_symlink():
                raise ValueError(f"the list of bad rows must be no link, got {each}; remove it")
        bad = f" --id-column {scorer.id_column}" if scorer.id_column else ""
        facts = {
            "the layout of this folder": 3,
            **results_facts,
            "--bad": "skip" + bad if request.skip else "raise",
        }
        # A row group that is complete with --bad raise has no bad rows, so a run with --bad skip may continue
        # it.
        harmless = [("--bad", "raise", facts["--bad"])]
        self._journal = stack.enter_context(Journal.opened(request.parts(source), facts, harmless))
        scratch = self._journal.scratch
        self._files = stack.enter_context(ExitStack())
        write = self._files.enter_context(replacing(path, str(scratch)))
        with parquet.reading(source):
            how = settings(file, keep, schema, scorer.columns[0], request.compression)
        kept = [file.schema_arrow.names[k] for k in keep]
        self._output = Output(
            write, source, file, keep if long is None else [], schema, how,
            lambda index: parquet.rows_at_a_time(file, index, scorer, request.model, kept),
        )  # fmt: skip
        self._files.callback(self._output.discard)
        self._reasons = (
            self._files.enter_context(writing(listed, reasons_schema, scratch)) if request.skip else None
        )
        handed = keep if request.local and long is None and not set(kept).isdisjoint(scorer.columns) else []
        job = Job(scorer, source, self._was, str(scratch), long, handed)
        for index, count in enumerate(rows):
            found = parquet.complete(*self._parts(index), index, count)
            if found is None:
                self.tasks.append(Task(job, index))
            else:
                self.facts[index] = found
        self._rows = rows
        self._write()

    def _parts(self, index: int) -> tuple[Path, Path]:
        return self._journal.part(index), self._journal.part(index, bad=True)

    def _is_complete(self, path: Path, listed: Path, reasons_schema: Any) -> bool:
        """Returns whether an earlier run has written this output, with its list of bad rows if needed."""
        try:
            with parquet.opened(Input(path.name, str(path))) as (_, file):
                facts = parquet.facts_of(file)
            counts = {name: facts.pop(name) for name in COUNTS}
            if self.request.skip:
                with parquet.opened(Input(listed.name, str(listed))) as (_, file):
                    if file.schema_arrow.names != reasons_schema.names:
                        return False
        except (InputError, LookupError, ValueError):
            return False
        if facts != self._provenance or (counts["bad rows"] and not self.request.skip):
            return False
        self.facts, self._rows = {0: counts}, [counts["rows"]]
        return True

    @property
    def rows(self) -> int:
        return sum(self._rows)

    def counts(self) -> dict[str, int]:
        """Returns the numbers of rows, steps and bad rows that are computed."""
        return {name: sum(each[name] for each in self.facts.values()) for name in COUNTS}

    @property
    def complete(self) -> bool:
        return len(self.facts) == len(self._rows)

    def publish(self, outcome: Outcome) -> None:
        """Adds the row group of an outcome. Writes it when all earlier ones are written."""
        self._journal.publish(outcome.index, outcome.results, outcome.bad)
        self.facts[outcome.index] = outcome.facts
        if outcome.kept is not None:
            self._hold(outcome.index, Path(outcome.kept))
        self._write()

    def _hold(self, index: int, kept: Path) -> None:
        """Keeps a file of decoded columns until its row group is written, if there is space."""
        if sum(each.stat().st_size for each in (*self._held.values(), kept)) > parquet.HELD_BYTES:
            kept.unlink()  # the output decodes the columns of this row group
        else:
            self._held[index] = kept

    def _write(self) -> None:
        while self._written in self.facts:
            results, bad = self._parts(self._written)
            kept = self._held.pop(self._written, None)
            self._output.add(self._written, results, kept)
            if kept is not None:
                kept.unlink()
            if self._reasons is not None and self.facts[self._written]["bad rows"]:
                with parquet.opened(Input(bad.name, str(bad))) as (_, file):
                    for batch in file.iter_batches():
                        self._reasons.write_batch(batch)
            self._written += 1

    def finish(self) -> None:
        """Publishes the output. Raises InputError if the input has changed."""
        parquet.unchanged(self.source, self._was)
        self._output.close({parquet.KEY: json.dumps(self._provenance | self.counts())})
        self._files.close()
        if not self.request.skip:
            _remove_old_list(self.request.bad_rows(self.source), self.source)
        self._journal.finish()
        self._stack.close()
        self._remove_empty_folders()

    def abandon(self, error: InputError) -> None:
        """Ends the work after an error of the input, and removes its row groups."""
        for index in range(len(self._rows)):
            for part in self._parts(index):
                part.unlink(missing_ok=True)
        self.__exit__(type(error), error, None)

    def _remove_empty_folders(self) -> None:
        request, path = self.request, self.request.parts(self.source)
        with suppress(OSError):
            while request.folder and path.name != request.output.name + ".parts":
                path = path.parent
                path.rmdir()


def _kept(names: list[str], keep: Sequence[str] | None) -> list[int]:
    """Returns the numbers of the columns to keep, in the order of `names`. Raises ValueError without one."""
    if keep is None:
        return list(range(len(names)))
    for name in keep:
        check_names(names, name)
    return [k for k, name in enumerate(names) if name in keep]


def _remove_old_list(path: Path, source: Input) -> None:
    """Removes the list of bad rows that an earlier run left next to the output; keeps any other file."""
    if not path.is_file() or (source.fs is None and path.samefile(source.path)):
        return
    try:
        with parquet.opened(Input(path.name, str(path))) as (_, file):
            ours = file.schema_arrow.names[:3] == ["row", "row_group", "reason"]
    except InputError:
        return
    if ours:
        path.unlink()
