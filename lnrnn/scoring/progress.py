"""What `lnrnn score` says on stderr: a bar on a terminal, elsewhere a line now and then, and at its end a
summary."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..packages import require

EVERY = 60.0  # seconds from line to line, at least


def say(text: str) -> None:
    if sys.stderr is not None:  # a process may have none
        with suppress(OSError):  # nobody reads it: the work goes on
            print(f"lnrnn score: {text}", file=sys.stderr, flush=True)


@contextmanager
def progress(total: int, done: int) -> Iterator[Any]:
    """-> a function to be called with the number of rows that were done. done: before."""
    tqdm = require("tqdm", "lnrnn score", "score").tqdm
    began = said = time.monotonic()
    first = done
    hidden = True if sys.stderr is None else None  # None: where stderr is no terminal

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
    """scored: see output.Output. reasons: the list of bad rows."""
    told = [f"{count} {what[: -1 if count == 1 else None]}" for what, count in scored.items()]
    return f"{', '.join(told)}{f' ({reasons})' if reasons else ''}, {seconds:.1f} s: {target}"
