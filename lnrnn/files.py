"""Writes files completely or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .errors import message

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]


@contextmanager
def replacing(path: Path) -> Iterator[Callable[[Any], object]]:
    """``with replacing(path) as write: write(data)`` writes a file completely or not at all.

    The data go to a temporary file in the same directory. If the body ends without an exception and
    all data are on the disk, the temporary file is renamed to path. After an error, the old file is unchanged
    and the temporary file is removed. (A killed process leaves it, under a random name.) If path is a
    symbolic link, its target is replaced. Permissions come from the old file, or else from umask.

    write: accepts any contiguous bytes-like object, such as an array. Raises OSError, with errno and path, if
    open(path, "wb"), writing or replacing fails, or if path is not a regular file.
    """
    made: list[str] = []
    try:
        with _said_of(path):
            target, part, descriptor = _create(path, made)
        with _said_of(path, part):
            with open(descriptor, "wb") as file:
                yield file.write
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, target)
    except BaseException:
        _remove(made)
        raise
    with _said_of(path):
        _sync_directory(target)


def check_replaceable(path: Path) -> None:
    """Raises the OSError that `replacing` would raise. Call it before a long computation.

    It creates and removes a file in path's directory, because permission bits do not show all obstacles.
    """
    made: list[str] = []
    try:
        with _said_of(path):
            os.close(_create(path, made)[2])
    finally:
        _remove(made)


def check_apart(path: Path, *read: Path) -> None:
    """Raises ValueError if path is one of the files `read`, possibly under another name."""
    for other in read:
        if os.path.exists(path) and os.path.samefile(path, other):
            raise ValueError(message("the output", "another file than the input", os.fsdecode(path)))


def _remove(made: list[str]) -> None:
    for part in made:
        with suppress(OSError):
            os.unlink(part)


def _create(path: Path, made: list[str]) -> tuple[str, str, int]:
    """Creates a temporary file in path's directory. Returns (name of the file to replace, temporary name,
    file descriptor).

    The temporary name is put into the list `made` before the file exists, so that interrupts can remove it.
    """
    target = os.fsdecode(path)
    if os.path.islink(target):
        target = os.path.realpath(target)
    old = _old(target)
    # The temporary file has the old file's permissions from the start, so that secrets stay secret.
    mode = 0o666 if old is None else stat.S_IMODE(old.st_mode) & 0o777
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    while True:
        # The name is random, because path's name with a suffix could be too long.
        part = os.path.join(os.path.dirname(target), f".lnrnn-{secrets.token_hex(8)}.part")
        made[:] = [part]
        try:
            descriptor = os.open(part, flags, mode)
            break
        except FileExistsError:
            made.clear()  # another process created this file: do not remove it
    if old is not None:
        try:
            _like(old, descriptor, mode)
        except BaseException:
            os.close(descriptor)
            raise
    return target, part, descriptor


def _old(target: str) -> os.stat_result | None:
    """Returns os.stat of the file at target, or None if it is missing. Raises OSError if it is read-only."""
    try:
        old = os.stat(target)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(old.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)
    if not stat.S_ISREG(old.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", target)
    # A read-only file is an error, although its directory may permit replacing it.
    os.close(os.open(target, os.O_WRONLY))
    return old


def _like(old: os.stat_result, descriptor: int, mode: int) -> None:
    """Gives a new file the owner, group and permissions of the old file. mode: these permissions."""
    if not hasattr(os, "fchown"):  # pragma: no cover - Windows
        return
    new = os.fstat(descriptor)
    for owner, group in ((old.st_uid, -1), (-1, old.st_gid)):
        if owner not in (-1, new.st_uid) or group not in (-1, new.st_gid):
            with suppress(PermissionError):  # only root may set owners, only members groups
                os.fchown(descriptor, owner, group)
    os.fchmod(descriptor, mode)


def _sync_directory(target: str) -> None:
    """Writes target's directory, where a file was renamed, to the disk if the system can."""
    if not hasattr(os, "O_DIRECTORY"):  # pragma: no cover - Windows
        return
    try:
        descriptor = os.open(os.path.dirname(target) or ".", os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # the directory may be writeable but unreadable
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(descriptor)


@contextmanager
def _said_of(path: Path, part: str | None = None) -> Iterator[None]:
    """A context whose OSErrors name the user's file `path` instead of the temporary file `part`."""
    try:
        yield
    except OSError as error:
        if error.errno is None or (part is not None and error.filename not in (None, part)):
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
