"""`lnrnn score`: a model over a column of a Parquet file, in bounded memory, from where it was if it was
killed."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import lnrnn

from ..errors import choice, integer
from ..files import check_replaceable
from ..packages import require
from . import arrow, parquet
from .engines import outcomes
from .job import BAD, ENGINES, Bad, Engine, Job, Outcomes
from .journal import Journal
from .models import digest, loaded
from .output import Output, writing
from .row_groups import bad_rows_schema, compute
from .scorer import Scorer
from .sequences import result_width


def score(
    scorer: Scorer,
    source: Path,
    target: Path,
    *,
    engine: Engine = "local",
    workers: int = 1,
    address: str | None = None,
    bad: Bad = "raise",
) -> int:
    """Writes source's rows, with what the scorer makes of them, to target. -> how many rows are bad.

    source, target: Parquet files. engine, workers, address: see engines.outcomes. bad: what becomes of a row
    that is no sequence for the model: "raise" raises a ValueError that names it, "skip" gives it a null, and
    lists such rows in a file beside target, `bad_rows_path`.

    target is written whole or not at all, with the row groups of source in their order. Until then what is
    done is kept in target.parts (see journal.py), and a call with the same arguments goes on from there; of
    the arguments, engine, workers, address and the scorer's threads may be others, for no result depends on
    them.

    Raises what Scorer raises, OSError, and ValueError for a source that cannot be read, for target.parts of
    other arguments, or of another process that writes just now.
    """
    require("tqdm", "lnrnn score", "score")
    pa, _ = parquet.packages()
    engine, bad = choice("engine", engine, ENGINES), choice("bad", bad, BAD)
    workers = integer("workers", workers, 1, 1024)
    target = Path(os.path.realpath(target))
    model = loaded(scorer.path)
    identity = parquet.identity(str(source))
    with parquet.opened(str(source)) as file:
        kind = parquet.check_column(file, scorer.column, scorer.output)
        arrow.check_type(kind, model.input_size, scorer.column)
        for path in (target, bad_rows_path(target)) if bad == "skip" else (target,):
            check_replaceable(path)
            if path.exists() and path.samefile(source):
                raise ValueError(f"{path} would be written over while it is read")
        facts = {
            "the layout of this folder": 1,
            "lnrnn's version": lnrnn.__version__,
            "the kernel set": str(lnrnn.cpu_info()["isa"]),
            "the model's SHA-256": digest(scorer.path),
            **identity,
            "--column": scorer.column,
            "--into": scorer.into,
            "--name": scorer.output,
            "--bad": bad,
        }
        folder = target.with_name(target.name + ".parts")
        # A row group that was done under "raise" has no bad rows: it is what "skip" would have given.
        with Journal.opened(folder, facts, [("--bad", "raise", "skip")]) as journal:
            job = Job(
                model=scorer.path, model_was=str(facts["the model's SHA-256"]), input=os.path.abspath(source),
                input_was=identity, column=scorer.column, into=scorer.into, output=scorer.output,
                skip=bad == "skip", threads=scorer.threads or 1, version=lnrnn.__version__,
                isa=str(facts["the kernel set"]), scratch=str(journal.scratch),
            )  # fmt: skip
            results_type = arrow.result_type(job.into, result_width(model), kind, fixed=False)
            with ExitStack() as stack:

                def written(path: Path, schema: Any) -> Any:
                    return stack.enter_context(writing(path, schema, journal.scratch))

                rows = written(target, file.schema_arrow.append(pa.field(job.output, results_type)))
                reasons = written(bad_rows_path(target), bad_rows_schema()) if job.skip else None
                output = Output(job, model, file, rows, reasons)
                _fill(output, journal, lambda left: outcomes(engine, compute, job, left, workers, address))
                parquet.unchanged(job.input, identity)
            journal.finish()
    return output.bad_rows


def bad_rows_path(target: Path) -> Path:
    """Where the bad rows of a target are listed: out.bad.parquet beside out.parquet."""
    return target.with_name((target.stem if target.suffix == ".parquet" else target.name) + ".bad.parquet")


def _fill(output: Output, journal: Journal, compute: Callable[[list[int]], Outcomes]) -> None:
    """Computes what is not done yet, and writes row group after row group as soon as those before it are
    done."""
    metadata = output.source.metadata
    rows = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
    done = {k for k, count in enumerate(rows) if _is_complete(journal.part(k), count)}
    left = [k for k in range(len(rows)) if k not in done]
    tqdm = require("tqdm", "lnrnn score", "score").tqdm
    before = sum(rows[k] for k in done)
    # closing: where something fails, the workers end before their folder is removed.
    with (
        closing(compute(left)) as found,
        tqdm(total=sum(rows), initial=before, unit=" rows", unit_scale=True, disable=None) as bar,
    ):
        for k in range(len(rows)):
            while k not in done:
                outcome = next(found)
                if outcome.error is not None:
                    raise ValueError(outcome.error)
                journal.publish(outcome.index, outcome.results, outcome.bad)
                done.add(outcome.index)
                bar.update(rows[outcome.index])
            output.add(k, journal.part(k), journal.part(k, bad=True))


def _is_complete(part: Path, rows: int) -> bool:
    """Whether a row group's results are there: all of them, and readable."""
    if not part.exists():
        return False
    try:
        with parquet.opened(str(part)) as file:
            return bool(file.metadata.num_rows == rows)
    except ValueError:
        return False
