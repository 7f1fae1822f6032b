"""The folder OUT.parts, which has the complete row groups of a `lnrnn score` that is running or was killed.

OUT.parts/
    lock                  locked by the running process, whose number it has
    manifest.json         all facts on which the results depend: see `Journal.opened`
    00000007.parquet      the results of row group 7, complete
    00000007.bad.parquet  the bad rows of row group 7, if there are any
    run-*/                unfinished files of the running process and its workers

A row group is complete when its file has the name above. Only the process with the lock gives this name, when
the file is on the disk. So a worker that still runs after its parent was killed cannot add a file.
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
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import message
from ..files import replacing

Facts = Mapping[str, int | str]
Change = tuple[str, int | str, int | str]  # name, old value, new value
OWN = re.compile(r"run-[0-9a-f]{16}|\d{8}(\.bad)?\.parquet|manifest\.json|\.lnrnn-[0-9a-f]{16}\.part")


class Journal:
    """The folder OUT.parts during a run. scratch: the folder of the run's unfinished files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scratch = folder / f"run-{secrets.token_hex(8)}"

    @classmethod
    @contextmanager
    def opened(cls, folder: Path, facts: Facts, harmless: Iterable[Change] = ()) -> Iterator[Journal]:
        """A context that creates the folder, or continues in it, and holds its lock.

        facts: numbers and texts on which the results depend, by names that a user knows. harmless: changes of
        facts after which complete row groups stay valid. Raises ValueError that names a fact that differs
        from the manifest. Raises BlockingIOError that names the process with the lock. If the body raises an
        exception before any row group is complete, the folder is removed.
        """
        with _locked(folder):
            journal = cls(folder)
            journal._check(facts, set(harmless))
            for left in folder.glob("run-*"):  # unfinished files of a killed run
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
            # Without a manifest, no row group was complete or the run had ended. Other files are not needed.
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
        """Returns the file of a row group's results, or of its bad rows."""
        return self.folder / f"{index:08}{'.bad' if bad else ''}.parquet"

    def publish(self, index: int, results: str, bad: str | None) -> None:
        """Moves the files of a row group from `scratch` to the folder. Then the row group is complete."""
        if bad is not None:
            os.replace(bad, self.part(index, bad=True))
        os.replace(results, self.part(index))

    def finish(self) -> None:
        """Removes the journal's files, and the folder if no other files are in it."""
        self._clear()
        with suppress(OSError):
            (self.folder / "lock").unlink()
            self.folder.rmdir()

    def _clear(self) -> None:
        # Remove the manifest first: without the manifest, no run continues from the other files.
        for left in sorted(self.folder.iterdir(), key=lambda path: path.name != "manifest.json"):
            if OWN.fullmatch(left.name):
                _remove(left)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _refuse_foreign(folder: Path) -> None:
    """Raises ValueError for a folder of another user, and for links, which could lead to any file."""
    with tempfile.TemporaryFile(dir=folder) as probe:
        own = os.fstat(probe.fileno()).st_uid  # some file systems have another number than the process
    chain = (folder, *folder.parents)
    top = next(k for k, each in enumerate(chain) if each.suffix == ".parts")
    files = (each for each in folder.iterdir() if each.name == "lock" or OWN.fullmatch(each.name))
    for each in (*chain[: top + 1], *files):
        found = each.lstat()
        regular = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
        if not (found.st_uid == own if stat.S_ISDIR(found.st_mode) else regular):
            got = f"{stat.filemode(found.st_mode)} of user {found.st_uid} (hard links: {found.st_nlink})"
            raise ValueError(message(str(each), "of this user, and no link", got, "remove it"))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Creates the folder if needed, and holds its lock. The system releases the lock if the process ends."""
    path = folder / "lock"
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _refuse_foreign(folder)
            file = open(path, "a+b", opener=lambda name, how: os.open(name, how | os.O_NOFOLLOW, 0o666))  # noqa: SIM115
        except FileNotFoundError:  # pragma: no cover - another run has just removed the folder
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            with file:
                if error.errno not in (errno.EAGAIN, errno.EACCES):  # pragma: no cover - no file locks
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
