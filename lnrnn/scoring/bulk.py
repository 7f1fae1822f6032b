"""`lnrnn score`: runs a model over columns of Parquet files, in bounded memory.

After a killed run, the next one computes only the missing row groups. report.py shows progress on stderr.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from ..arguments import THREADS, Choice
from ..errors import message
from . import inputs, parquet
from .compression import Compression
from .engines import outcomes
from .inputs import Input, InputError
from .job import ENGINES, Engine, Task, compute
from .long import Long
from .report import LOGS, Log, Report
from .scorer import Scorer, model_of
from .target import Request, Target


def score(
    scorer: Scorer,
    sources: Iterable[str | os.PathLike[str]],
    output: Path,
    *,
    keep: Sequence[str] | None = None,
    compression: Compression | None = None,
    long: Long | None = None,
    engine: Engine = "local",
    workers: int = 1,
    address: str | None = None,
    log: Log = "text",
) -> int:
    """Writes the rows of Parquet files with the scorer's results. Returns how many files are left out.

    sources: see inputs.find. output: a file for one source, otherwise a folder with a file for each source.
    keep: the names of columns to copy; None copies all. compression: None keeps that of the sources. long: if
    rows are steps. engine, workers, address: see engines.outcomes. log: see report.py.

    With bad="raise", the first bad row raises a ValueError that names it. With bad="null", Request.bad_rows
    lists bad rows, and a file of a folder that cannot be scored is left out.

    An output appears only when it is complete; its row groups are those of its source. Until then, complete
    row groups are kept (see journal.py). A call with the same arguments continues from there, and does not
    compute complete files of a folder again. Only keep, compression, engine, workers, address, log and the
    scorer's threads may differ, because results do not depend on them.

    Raises the errors of Scorer, and OSError. Raises ValueError if a source cannot be read, or if an output is
    the model or a source or has no suffix of Parquet. Also raises it if the row groups belong to other
    arguments, or if another process is writing there.
    """
    parquet.packages()
    engine, log = Choice(ENGINES).check("engine", engine), Choice(LOGS).check("log", log)
    workers = THREADS.of.check("workers", workers)
    files, folder = inputs.find([os.fspath(source) for source in sources])
    _check_output(output, files, folder)
    output = Path(os.path.realpath(output))
    request = Request(
        scorer, model_of(scorer), output, folder, keep, compression, long, local=engine == "local"
    )
    with ExitStack() as stack, Report(log, len(files)) as report:
        running: dict[str, Target] = {}

        def finish(target: Target) -> None:
            del running[target.source.name]
            try:
                target.finish()
            except InputError as error:
                fail(target, error)
            else:
                report.files += 1

        def fail(target: Target, error: InputError) -> None:
            if not (folder and request.skip):
                raise error
            running.pop(target.source.name, None)
            target.abandon(error)
            report.failed(target.source, error, target.counts())

        def tasks() -> Iterator[Task]:
            for source in files:
                try:
                    target = stack.enter_context(Target(request, source))
                except InputError as error:
                    if not (folder and request.skip):
                        raise
                    report.failed(source, error)
                    continue
                report.opened(target.rows, target.counts())
                if target.done:
                    report.files += 1
                    continue
                running[source.name] = target
                if target.complete:
                    finish(target)
                yield from target.tasks

        # If the body raises an exception, closing() ends the workers before journals are removed.
        threads = scorer.threads or 1
        with closing(outcomes(engine, compute, tasks(), workers, threads, address)) as pending:
            for outcome in pending:
                target = running.get(outcome.name)
                if target is None:  # a file that is left out because of another row group
                    continue
                if outcome.error is not None:
                    if not outcome.of_input:
                        raise ValueError(outcome.error)
                    fail(target, InputError(outcome.error))
                    continue
                try:
                    target.publish(outcome)
                except InputError as error:
                    fail(target, error)
                    continue
                report.add(outcome.facts)
                if target.complete:
                    finish(target)
        listed = None
        if request.skip and report.files:
            listed = request.bad_rows(Input("", "") if folder else files[0])
        report.summary(output, listed, folder)
    return report.bad_files


def _check_output(output: Path, files: Sequence[Input], folder: bool) -> None:
    """Raises ValueError for an output of another format, in the input, or at the place of a file system."""
    if re.match("[a-z][a-z0-9+.-]+:/", str(output)):  # a Path has one slash
        raise ValueError(message("the output", "on this machine", str(output)))
    suffix = output.suffix.lower()
    if not folder and suffix not in ("", ".parquet", ".pq"):
        raise ValueError(f"the output must be a Parquet file, got {output}; give it the suffix .parquet")
    if not folder:
        return
    if output.exists() and not output.is_dir():
        raise ValueError(message("the output of a folder", "a folder", str(output)))
    if os.path.ismount(output):
        do = "give a folder in it"
        raise ValueError(message("the output", "a folder of a file system", f"its root, {output}", do))
    own = os.path.realpath(output)
    for each in files:
        if each.fs is None and os.path.realpath(each.path).startswith(own + os.sep):
            raise ValueError(message("the output", "a folder without inputs", f"{output} with {each}"))
