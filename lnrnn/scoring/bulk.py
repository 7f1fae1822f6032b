"""`lnrnn score`: a model over a column of a Parquet file, in bounded memory, from where it was if it was
killed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from ..errors import choice, integer
from ..files import check_apart, check_replaceable
from . import arrow, parquet
from .engines import outcomes
from .job import ENGINES, Engine, Job, Outcomes
from .journal import Journal
from .output import Output, writing
from .parts import is_complete
from .progress import progress, say, summary
from .row_groups import bad_rows_schema, compute
from .scorer import Scorer, model_of
from .sequences import result_width


def score(
    scorer: Scorer,
    source: Path,
    target: Path,
    *,
    engine: Engine = "local",
    workers: int = 1,
    address: str | None = None,
) -> None:
    """Writes source's rows, with what the scorer makes of them, to target, and on stderr what was done.

    source, target: Parquet files. engine, workers, address: see engines.outcomes. Under the scorer's
    bad="raise", a bad row raises a ValueError that names it; under "null" such rows are listed in a file
    beside target, `bad_rows_path`.

    target is written whole or not at all, with the row groups of source in their order. Until then what is
    done is kept in target.parts (see journal.py), and a call with the same arguments goes on from there; of
    the arguments, engine, workers, address and the scorer's threads may be others, for no result depends on
    them.

    Raises what Scorer raises, OSError, and ValueError for a source that cannot be read, for a target that is
    the model, the source or no name of a Parquet file, for target.parts of other arguments, or of another
    process that writes just now.
    """
    began = time.monotonic()
    pa, _ = parquet.packages()
    engine = choice("engine", engine, ENGINES)
    workers = integer("workers", workers, 1, 1024)
    if target.suffix.lower() not in ("", ".parquet", ".pq"):
        raise ValueError(f"{target} would be written as Parquet: give it the suffix .parquet")
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
        # A row group that was done under "raise" has no bad rows: it is what "skip" would have given.
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
    """Where the bad rows of a target are listed: out.bad.parquet beside out.parquet."""
    return target.with_name((target.stem if target.suffix == ".parquet" else target.name) + ".bad.parquet")


def _remove_old_list(path: Path, source: Path) -> None:
    """Removes the list of bad rows that an earlier run left beside the target. A file that is no such list
    stays."""
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
    """Computes what is not done yet, and writes row group after row group as soon as those before it are
    done."""
    metadata = output.source.metadata
    rows = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
    done = {
        k for k, count in enumerate(rows)
        if is_complete(journal.part(k), journal.part(k, bad=True), k, count)
    }  # fmt: skip
    left = [k for k in range(len(rows)) if k not in done]
    # closing: where something fails, the workers end before their folder is removed.
    with closing(compute(left)) as found, progress(sum(rows), sum(rows[k] for k in done)) as add:
        for k in range(len(rows)):
            while k not in done:
                outcome = next(found)
                if outcome.error is not None:
                    raise ValueError(outcome.error)
                journal.publish(outcome.index, outcome.results, outcome.bad)
                done.add(outcome.index)
                add(rows[outcome.index])
            output.add(k, journal.part(k), journal.part(k, bad=True))
