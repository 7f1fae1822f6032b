"""Writes messages of `lnrnn score` to stderr: progress, skipped files, and a summary.

Lines are text or JSON. On a terminal, a progress bar replaces lines of progress.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args

from ..packages import require
from .inputs import Input, InputError

EVERY = 60.0  # seconds between two lines of progress, at least
Log = Literal["text", "json"]
LOGS: tuple[Log, ...] = get_args(Log)


class Report:
    """A context that counts rows and files, and reports them. inputs: the number of files.

    files: complete outputs. kept: complete outputs of an earlier run. total: rows of all readable files.
    """

    def __init__(self, log: Log, inputs: int) -> None:
        self._json, self._inputs = log == "json", inputs
        self._began = self._said = time.monotonic()
        self.files = self.kept = self.bad_files = self.total = 0
        self._rows = self._bad_rows = self._before = 0
        self._lock = threading.Lock()
        tqdm = require("tqdm", "lnrnn score", "score").tqdm
        hidden = True if sys.stderr is None or self._json else None  # None: hidden without a terminal
        self._bar = tqdm(total=0, unit=" rows", unit_scale=True, disable=hidden)

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def keep(self, rows: int, bad_rows: int) -> None:
        """Counts a complete output of an earlier run, and its rows."""
        self.files, self.kept, self._before = self.files + 1, self.kept + 1, self._before + rows
        self.add(rows, bad_rows)

    def add(self, rows: int, bad_rows: int) -> None:
        """Counts rows that have been written."""
        with self._lock:
            self._rows, self._bad_rows = self._rows + rows, self._bad_rows + bad_rows
            self._bar.total = self.total
            self._bar.update(rows)
            if self._bar.disable and time.monotonic() - self._said >= EVERY:
                self._said = time.monotonic()
                new = max(self._rows - self._before, 1)
                left = (self._said - self._began) * (self.total - self._rows) / new
                done = f"{self.files} of {self._inputs} files, " if self._inputs > 1 else ""
                done += f"{self._rows} of {self.total} rows, {left:.0f} s left"
                self._say("progress", done, {"seconds_left": round(left, 1)})

    def complete(self) -> None:
        """Counts a complete output."""
        with self._lock:
            self.files += 1

    def fail(self, source: Input, error: InputError, rows: int = 0, bad_rows: int = 0) -> None:
        """Reports a skipped file, and subtracts its rows from the counts."""
        with self._lock:
            self.bad_files += 1
            self._rows, self._bad_rows = self._rows - rows, self._bad_rows - bad_rows
            reason = " ".join(str(error).split())
            self._say("bad file", f"left out: {reason}", {"file": str(source), "reason": reason})

    def summary(self, output: Path) -> None:
        kept = f" ({self.kept} kept from an earlier run)" if self.kept else ""
        counts = [_counted(self.files, "file") + kept, _counted(self._rows, "row")]
        counts += [_counted(self._bad_rows, "bad row")]
        counts += [_counted(self.bad_files, "bad file")] if self.bad_files else []
        text = f"{', '.join(counts)}, {time.monotonic() - self._began:.1f} s: {output}"
        self._say("summary", text, {"output": str(output)})

    def _say(self, event: str, text: str, facts: dict[str, Any]) -> None:
        known = {"files": self.files, "kept": self.kept, "inputs": self._inputs, "bad_files": self.bad_files}
        known |= {"rows": self._rows, "bad_rows": self._bad_rows}
        seconds = round(time.monotonic() - self._began, 1)
        own = json.dumps({"event": event, **known, "seconds": seconds, **facts})
        say(own if self._json else f"lnrnn score: {text}")


def say(line: str) -> None:
    if sys.stderr is not None:  # None in processes without stderr
        with suppress(OSError):  # work continues if stderr is closed
            print(line, file=sys.stderr, flush=True)


def _counted(count: int, name: str) -> str:
    return f"{count} {name}" + "s" * (count != 1)
