"""Writes files whole or not at all."""

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
    """``with replacing(path) as write: write(data)`` writes a file whole or not at all.

    The data are written to a new file in the same directory. When the body has ended without an exception and
    all data are on the disk, the new file is renamed to path. After an error, the old file is unchanged and
    the new one is removed. (A killed process leaves the new file, which has a random name.) If path is a
    symbolic link, its target is replaced. Permissions come from the old file, or from umask.

    write: takes any contiguous bytes-like object, such as an array. Raises OSError, with errno and path, if
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
    """Raises the OSError that `replacing` would raise, before a long computation.

    It creates and removes a file in path's directory, because permission bits do not show all obstacles.
    """
    made: list[str] = []
    try:
        with _said_of(path):
            os.close(_create(path, made)[2])
    finally:
        _remove(made)


def check_apart(path: Path, *read: Path) -> None:
    """Raises ValueError if path is one of the files `read`, also under another name."""
    for other in read:
        if os.path.exists(path) and os.path.samefile(path, other):
            raise ValueError(message("the output", "another file than the input", os.fsdecode(path)))


def _remove(made: list[str]) -> None:
    for part in made:
        with suppress(OSError):
            os.unlink(part)


def _create(path: Path, made: list[str]) -> tuple[str, str, int]:
    """Creates a new file in path's directory. Returns the name to replace, and the new file's name and
    descriptor.

    The new name is put into the list `made` before the file exists, so that it is removed after an interrupt.
    """
    target = os.fsdecode(path)
    if os.path.islink(target):
        target = os.path.realpath(target)
    old = _old(target)
    # The new file has the old file's permissions from the start, so that others cannot read secret data.
    mode = 0o666 if old is None else stat.S_IMODE(old.st_mode) & 0o777
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    while True:
        # Use a random name, because path's name with an addition could be too long.
        part = os.path.join(os.path.dirname(target), f".lnrnn-{secrets.token_hex(8)}.part")
        made[:] = [part]
        try:
            descriptor = os.open(part, flags, mode)
            break
        except FileExistsError:
            made.clear()  # another process made this file, so it must not be removed
    if old is not None:
        try:
            _like(old, descriptor, mode)
        except BaseException:
            os.close(descriptor)
            raise
    return target, part, descriptor


def _old(target: str) -> os.stat_result | None:
    """Returns the status of the file at target, or None without a file. Raises OSError if it is read-only."""
    try:
        old = os.stat(target)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(old.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)
    if not stat.S_ISREG(old.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", target)
    # A read-only file is an error, although whoever may write to its directory could replace it.
    os.close(os.open(target, os.O_WRONLY))
    return old


def _like(old: os.stat_result, descriptor: int, mode: int) -> None:
    """Gives a new file the owner, group and permissions of the old one."""
    if not hasattr(os, "fchown"):  # pragma: no cover - Windows
        return
    new = os.fstat(descriptor)
    for owner, group in ((old.st_uid, -1), (-1, old.st_gid)):
        if owner not in (-1, new.st_uid) or group not in (-1, new.st_gid):
            with suppress(PermissionError):  # only root may set the owner, only members the group
                os.fchown(descriptor, owner, group)
    os.fchmod(descriptor, mode)


def _sync_directory(target: str) -> None:
    """Writes the directory of target, which has the new name, to the disk if the system can."""
    if not hasattr(os, "O_DIRECTORY"):  # pragma: no cover - Windows
        return
    try:
        descriptor = os.open(os.path.dirname(target) or ".", os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # the directory may be writeable but not readable
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
    """A context whose OSErrors name the file `path` that the user gave, not the temporary file `part`."""
    try:
        yield
    except OSError as error:
        if error.errno is None or (part is not None and error.filename not in (None, part)):
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
