"""Writes the messages of `lnrnn score` to stderr: progress, files that are left out, and a summary.

Lines are text or JSON. On a terminal, text has a progress bar instead of lines of progress.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from ..packages import require
from .inputs import Input, InputError

COUNTS = ("rows", "steps", "bad rows")
PREFIX = "lnrnn score: "
EVERY = 60.0  # the least number of seconds between two lines of progress
Log = Literal["text", "json"]
LOGS: tuple[Log, ...] = get_args(Log)


class Report:
    """A context that counts rows and files, and reports them. inputs: the number of files."""

    def __init__(self, log: Log, inputs: int) -> None:
        self._json, self._inputs = log == "json", inputs
        self._began = self._said = time.monotonic()
        self.files = self.bad_files = 0
        self.counts = dict.fromkeys(COUNTS, 0)
        self._before = 0  # rows that earlier runs have computed
        self._opened = self._total = 0  # opened files, and all their rows
        tqdm = require("tqdm", "lnrnn score", "score").tqdm
        hidden = True if sys.stderr is None or self._json else None  # None: if stderr is no terminal
        self._bar = tqdm(total=0, unit=" rows", unit_scale=True, disable=hidden)

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def opened(self, rows: int, counts: Mapping[str, int]) -> None:
        """Counts an opened file of so many rows. counts: those that earlier runs have computed."""
        self._opened += 1
        self._total += rows
        self._bar.total = self._total
        self._before += counts["rows"]
        self._add(counts)

    def add(self, counts: Mapping[str, int]) -> None:
        """Counts a row group."""
        self._add(counts)
        if self._bar.disable and time.monotonic() - self._said >= EVERY:
            self._said = time.monotonic()
            self._progress()

    def _add(self, counts: Mapping[str, int]) -> None:
        for name in COUNTS:
            self.counts[name] += counts[name]
        self._bar.update(counts["rows"])

    def _progress(self) -> None:
        seconds, rows = time.monotonic() - self._began, self.counts["rows"]
        # Files that are not opened yet count as large as the mean of the others.
        total = self._total * self._inputs / self._opened
        left = seconds * (total - rows) / max(rows - self._before, 1)
        done = f"{rows} of {self._total} rows"
        if self._inputs > 1:
            done = f"{self.files} of {self._inputs} files, {rows} rows"
        self._say("progress", f"{done}, {left:.0f} s left", {"seconds_left": round(left, 1)})

    def failed(
        self, source: Input, error: InputError, counts: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """Reports a file that is left out. counts: those of its row groups that were computed."""
        self.bad_files += 1
        for name, count in counts.items():
            self.counts[name] -= count
        reason = " ".join(str(error).split())
        self._say("bad file", f"left out: {reason}", {"file": str(source), "reason": reason})

    def summary(self, output: Path, bad_rows: Path | None, folder: bool) -> None:
        """Reports all. bad_rows: the list of bad rows."""
        counts = [_counted(self.files, "files")] if folder else []
        counts += [_counted(count, name) for name, count in self.counts.items()]
        counts[-1] += f" ({bad_rows})" if bad_rows else ""
        counts += [_counted(self.bad_files, "bad files")] if self.bad_files else []
        text = f"{', '.join(counts)}, {time.monotonic() - self._began:.1f} s: {output}"
        self._say("summary", text, {"output": str(output), "bad_rows_in": bad_rows and str(bad_rows)})

    def _say(self, event: str, text: str, facts: dict[str, Any]) -> None:
        counts = {name.replace(" ", "_"): count for name, count in self.counts.items()}
        known = {"files": self.files, "inputs": self._inputs, "bad_files": self.bad_files, **counts}
        seconds = round(time.monotonic() - self._began, 1)
        say(
            json.dumps({"event": event, **known, "seconds": seconds, **facts})
            if self._json
            else PREFIX + text
        )


def say(line: str) -> None:
    if sys.stderr is not None:  # a process may have no stderr
        with suppress(OSError):  # if nobody reads stderr, the work continues
            print(line, file=sys.stderr, flush=True)


def _counted(count: int, name: str) -> str:
    return f"{count} {name[: -1 if count == 1 else None]}"
