"""The folder OUT.parts, from which a killed `lnrnn score` continues.

OUT.parts/
    lock                  held by the process that writes, and names it
    manifest.json         all that the results depend on: see `Journal.opened`
    00000007.parquet      the results of row group 7, complete
    00000007.bad.parquet  its bad rows, if it has any
    run-*/                unfinished files of the running process and its workers

A row group is done when its file has its final name. Only the process that holds the lock renames files, when
they are complete and on the disk. A worker that outlives a killed run cannot publish anything.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ..files import replacing

Facts = Mapping[str, int | str]
Change = tuple[str, int | str, int | str]  # name, old value, new value
OWN = re.compile(r"run-[0-9a-f]{16}|\d{8}(\.bad)?\.parquet|manifest\.json|\.lnrnn-[0-9a-f]{16}\.part")


class Journal:
    """The folder of one run. scratch: the folder of files that are not yet published."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scratch = folder / f"run-{secrets.token_hex(8)}"

    @classmethod
    @contextmanager
    def opened(cls, folder: Path, facts: Facts, harmless: Iterable[Change] = ()) -> Iterator[Journal]:
        """Makes the folder or continues in it, and holds its lock.

        facts: numbers and texts that the results depend on, by the names that a user knows. harmless: changes
        of facts after which complete row groups stay valid. Raises ValueError that names a fact that differs
        from the folder's. Raises BlockingIOError that names the process that holds the lock. If the body
        fails before any row group is complete, the folder is removed.
        """
        with _locked(folder):
            journal = cls(folder)
            journal._check(facts, set(harmless))
            for left in folder.glob("run-*"):  # of a run that was killed
                _remove(left)
            for left in folder.glob(".lnrnn-*.part"):
                _remove(left)
            journal.scratch.mkdir()
            try:
                yield journal
            except BaseException:
                _remove(journal.scratch)
                if not any(folder.glob("*.parquet")):
                    journal.finish()
                raise

    def _check(self, facts: Facts, harmless: set[Change]) -> None:
        manifest = self.folder / "manifest.json"
        again = f"remove {self.folder} to begin anew"
        try:
            was = json.loads(manifest.read_text())
            if not isinstance(was, dict):
                raise ValueError("it holds no names and values")
        except FileNotFoundError:
            # No row group is complete, or the run has finished, so the files are useless.
            self._clear()
            was = {}
        except ValueError as error:
            raise ValueError(f"cannot continue: {manifest} is damaged ({error}); {again}") from None
        now = dict(facts)
        for name in [*now, *(name for name in was if name not in now)] if was else []:
            old, new = was.get(name, "not there"), now.get(name, "not there")
            if old != new and (name, old, new) not in harmless:
                raise ValueError(
                    f"cannot continue from {self.folder}: {name} was {old}, and is {new}; {again}"
                )
        if was != now:
            with replacing(manifest) as write:
                write(json.dumps(now, indent=1).encode())

    def part(self, index: int, bad: bool = False) -> Path:
        """The file of a row group's results, or of its bad rows."""
        return self.folder / f"{index:08}{'.bad' if bad else ''}.parquet"

    def publish(self, index: int, results: str, bad: str | None) -> None:
        """Moves the files of a row group from `scratch`. Then the row group is done."""
        if bad is not None:
            os.replace(bad, self.part(index, bad=True))
        os.replace(results, self.part(index))

    def finish(self) -> None:
        """Removes the folder, except files of others; with such a file the folder stays."""
        self._clear()
        with suppress(OSError):
            (self.folder / "lock").unlink()
            self.folder.rmdir()

    def _clear(self) -> None:
        # Remove the manifest first: without it, no run continues from the rest.
        for left in sorted(self.folder.iterdir(), key=lambda path: path.name != "manifest.json"):
            if OWN.fullmatch(left.name):
                _remove(left)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Makes the folder if need be, and holds its lock, which the system releases when the process ends."""
    path = folder / "lock"
    while True:
        folder.mkdir(exist_ok=True)
        try:
            file = open(path, "a+b")  # noqa: SIM115
        except FileNotFoundError:  # pragma: no cover - its owner has just removed the folder
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            with file:
                if error.errno not in (errno.EAGAIN, errno.EACCES):  # pragma: no cover - no locks there
                    raise
                file.seek(0)
                owner = file.read(300).decode(errors="replace").strip() or "another process"
                raise BlockingIOError(f"{folder} is being written by {owner}") from None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                break
        file.close()  # pragma: no cover - another process has removed or replaced it
    with file:
        file.truncate(0)
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        file.write(f"process {os.getpid()} on {platform.node()}, since {started}".encode())
        file.flush()
        yield
