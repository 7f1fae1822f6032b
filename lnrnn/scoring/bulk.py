"""`lnrnn score`: runs a model over a column of a Parquet file, in bounded memory.

After a killed run, the next one computes only the missing row groups. Progress is shown on stderr: as a bar
on a terminal, else as one line a minute.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import choice, integer
from ..files import check_apart, check_replaceable
from ..packages import require
from . import arrow, parquet
from .engines import outcomes
from .job import ENGINES, Engine, Job, Outcomes, bad_rows_schema, compute
from .journal import Journal
from .output import Output, writing
from .scorer import Scorer, model_of
from .sequences import result_width

EVERY = 60.0  # the least number of seconds between two lines of progress


def score(
    scorer: Scorer,
    source: Path,
    target: Path,
    *,
    engine: Engine = "local",
    workers: int = 1,
    address: str | None = None,
) -> None:
    """Copies the rows of source to target, adds the scorer's results, and reports on stderr.

    source, target: Parquet files. engine, workers, address: see engines.outcomes. With bad="raise", the first
    bad row raises a ValueError that names it. With bad="null", the file `bad_rows_path` lists bad rows.

    target appears only when it is complete; its row groups are in the order of source. Until then, complete
    row groups are kept in target.parts (see journal.py). A call with the same arguments continues from there.
    Only engine, workers, address and the scorer's threads may differ, because results do not depend on them.

    Raises the errors of Scorer, and OSError. Raises ValueError if source cannot be read, or if target is the
    model or the source or has no suffix of Parquet. Also raises it if target.parts belongs to other
    arguments, or if another process is writing there.
    """
    began = time.monotonic()
    pa, _ = parquet.packages()
    engine = choice("engine", engine, ENGINES)
    workers = integer("workers", workers, 1, 1024)
    if target.suffix.lower() not in ("", ".parquet", ".pq"):
        raise ValueError(f"the output must be a Parquet file, got {target}; give it the suffix .parquet")
    target = Path(os.path.realpath(target))
    skip, reasons_path = scorer.bad == "null", bad_rows_path(target)
    model = model_of(scorer)
    with parquet.opened(str(source)) as file:
        identity = parquet.identity(str(source))
        kind = parquet.check_columns(file, scorer)
        arrow.check_type(kind, model.input_size, scorer.column)
        for path in (target, reasons_path) if skip else (target,):
            check_replaceable(path)
            check_apart(path, source, scorer.path)
        facts = {
            "the layout of this folder": 2,
            "lnrnn's version": scorer.version,
            "the kernel set": scorer.isa,
            "the model's SHA-256": scorer.sha256,
            **identity,
            "--column": scorer.column,
            "--into": scorer.into,
            "--name": scorer.output,
            "--bad": ("skip" + (f" --id-column {scorer.id_column}" if scorer.id_column else ""))
            if skip
            else "raise",
        }
        folder = target.with_name(target.name + ".parts")
        # A row group that is complete with --bad raise has no bad rows, so a run with --bad skip may continue
        # it.
        with Journal.opened(folder, facts, [("--bad", "raise", facts["--bad"])]) as journal:
            job = Job(scorer, os.path.abspath(source), identity, str(journal.scratch))
            results_type = arrow.result_type(scorer.into, result_width(model), kind, fixed=False)
            with ExitStack() as stack:

                def written(path: Path, schema: Any) -> Any:
                    return stack.enter_context(writing(path, schema, journal.scratch))

                rows = written(target, file.schema_arrow.append(pa.field(scorer.output, results_type)))
                reasons_schema = bad_rows_schema(scorer, file.schema_arrow)
                reasons = written(reasons_path, reasons_schema) if skip else None
                output = Output(job, model, file, rows, reasons)
                _fill(output, journal, lambda left: outcomes(engine, compute, job, left, workers, address))
                parquet.unchanged(job.input, identity)
                if not skip:
                    _remove_old_list(reasons_path, source)
            journal.finish()
    say(summary(output.scored, time.monotonic() - began, target, reasons_path if skip else None))


def bad_rows_path(target: Path) -> Path:
    """Returns the file that lists the bad rows of target: out.bad.parquet for out.parquet."""
    return target.with_name((target.stem if target.suffix == ".parquet" else target.name) + ".bad.parquet")


def _remove_old_list(path: Path, source: Path) -> None:
    """Removes the list of bad rows that an earlier run left next to target; keeps any other file."""
    if not path.is_file() or path.samefile(source):
        return
    try:
        with parquet.opened(str(path)) as file:
            ours = file.schema_arrow.names[:3] == ["row", "row_group", "reason"]
    except (OSError, ValueError):
        return
    if ours:
        path.unlink()


def _fill(output: Output, journal: Journal, compute: Callable[[list[int]], Outcomes]) -> None:
    """Computes the missing row groups. Writes each to the output when all earlier ones are written."""
    metadata = output.source.metadata
    rows = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
    done = {
        k for k, count in enumerate(rows)
        if parquet.is_complete(journal.part(k), journal.part(k, bad=True), k, count)
    }  # fmt: skip
    left = [k for k in range(len(rows)) if k not in done]
    # If the body raises an exception, closing() ends the workers before the journal's folder is removed.
    with closing(compute(left)) as pending, progress(sum(rows), sum(rows[k] for k in done)) as add:
        for k in range(len(rows)):
            while k not in done:
                outcome = next(pending)
                if outcome.error is not None:
                    raise ValueError(outcome.error)
                journal.publish(outcome.index, outcome.results, outcome.bad)
                done.add(outcome.index)
                add(rows[outcome.index])
            output.add(k, journal.part(k), journal.part(k, bad=True))


def say(text: str) -> None:
    if sys.stderr is not None:  # a process may have no stderr
        with suppress(OSError):  # if nobody reads stderr, the work continues
            print(f"lnrnn score: {text}", file=sys.stderr, flush=True)


@contextmanager
def progress(total: int, done: int) -> Iterator[Any]:
    """A context that shows progress. Yields a function add(rows) for completed rows. done: rows completed
    earlier."""
    tqdm = require("tqdm", "lnrnn score", "score").tqdm
    began = said = time.monotonic()
    first = done
    hidden = True if sys.stderr is None else None  # None hides the bar if stderr is no terminal

    with tqdm(total=total, initial=done, unit=" rows", unit_scale=True, disable=hidden) as bar:

        def add(rows: int) -> None:
            nonlocal done, said
            done += rows
            bar.update(rows)
            now = time.monotonic()
            if bar.disable and now - said >= EVERY:
                said = now
                left = (now - began) * (total - done) / max(done - first, 1)
                say(f"{done} of {total} rows, {left:.0f} s left")

        yield add


def summary(scored: Mapping[str, int], seconds: float, target: Path, reasons: Path | None) -> str:
    """Returns the last line of the report. scored: counts of output.Output. reasons: the list of bad rows."""
    counts = [f"{count} {name[: -1 if count == 1 else None]}" for name, count in scored.items()]
    return f"{', '.join(counts)}{f' ({reasons})' if reasons else ''}, {seconds:.1f} s: {target}"
