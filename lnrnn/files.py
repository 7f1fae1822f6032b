"""Files that are written whole or not at all."""

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
def replacing(path: Path, directory: str | None = None) -> Iterator[Callable[[Any], object]]:
    """``with replacing(path) as write: write(data)``: writes a file whole or not at all.

    The data go into a new file in the same directory, which takes path's name when the body has ended well
    and all of it is on the disk. If anything fails, what stood at path stays as it was and the new file is
    removed. (A process that is killed leaves it there, under a random name.) A symbolic link stays, the file
    that it points to is replaced. Permissions are those that open(path, "wb") leaves: of the file that is
    replaced, or what umask allows.

    directory: where the new file is made, of the same file system; None: path's own.
    write: takes any contiguous bytes-like object, an array too.
    Raises OSError, with errno and path, where open(path, "wb"), writing or replacing fails, and if what
    stands at path is no regular file.
    """
    made: list[str] = []
    try:
        with _said_of(path):
            target, part, descriptor = _create(path, made, directory)
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
    """Raises the OSError that `replacing` would raise before its body runs. For use before a long
    computation.

    It makes a file in path's directory and removes it, for permission bits do not say all that may forbid it.
    """
    made: list[str] = []
    try:
        with _said_of(path):
            os.close(_create(path, made)[2])
    finally:
        _remove(made)


def check_apart(path: Path, *read: Path) -> None:
    """Raises ValueError if path is one of the files that are read, by any of its names."""
    for other in read:
        if os.path.exists(path) and os.path.samefile(path, other):
            raise ValueError(message("the output", "another file than the input", os.fsdecode(path)))


def _remove(made: list[str]) -> None:
    for part in made:
        with suppress(OSError):
            os.unlink(part)


def _create(path: Path, made: list[str], directory: str | None = None) -> tuple[str, str, int]:
    """-> the name to be replaced, that of a new file in directory or beside it, and the new file's
    descriptor.

    made: gets the new name before there is such a file, so that an interrupt at any moment leaves none.
    """
    target = os.fsdecode(path)
    if os.path.islink(target):
        target = os.path.realpath(target)
    old = _old(target)
    # An old file may be kept from others: so is what will replace it, from the first moment.
    mode = 0o666 if old is None else stat.S_IMODE(old.st_mode) & 0o777
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    while True:
        # Not named after path, whose name may be as long as a name can be.
        part = os.path.join(directory or os.path.dirname(target), f".lnrnn-{secrets.token_hex(8)}.part")
        made[:] = [part]
        try:
            descriptor = os.open(part, flags, mode)
            break
        except FileExistsError:
            made.clear()  # somebody else's
    if old is not None:
        try:
            _like(old, descriptor, mode)
        except BaseException:
            os.close(descriptor)
            raise
    return target, part, descriptor


def _old(target: str) -> os.stat_result | None:
    """What stands at target, if it is a file that open(target, "wb") would write to; None if nothing does."""
    try:
        old = os.stat(target)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(old.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)
    if not stat.S_ISREG(old.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", target)
    # A read-only file is an error too. To replace it, its directory's permission would be enough.
    os.close(os.open(target, os.O_WRONLY))
    return old


def _like(old: os.stat_result, descriptor: int, mode: int) -> None:
    """Gives a new file the owner, group and permissions of the old one, which writing into that would
    keep."""
    if not hasattr(os, "fchown"):  # pragma: no cover - Windows
        return
    new = os.fstat(descriptor)
    for owner, group in ((old.st_uid, -1), (-1, old.st_gid)):
        if owner not in (-1, new.st_uid) or group not in (-1, new.st_gid):
            with suppress(PermissionError):  # the owner is root's to give, the group a member's
                os.fchown(descriptor, owner, group)
    os.fchmod(descriptor, mode)


def _sync_directory(target: str) -> None:
    """Brings target's new name to the disk, where a directory can be synced."""
    if not hasattr(os, "O_DIRECTORY"):  # pragma: no cover - Windows
        return
    try:
        descriptor = os.open(os.path.dirname(target) or ".", os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # a directory may be written and not read
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
    """An OSError says path, and not the name of the new file, which the user does not know, or none."""
    try:
        yield
    except OSError as error:
        if error.errno is None or (part is not None and error.filename not in (None, part)):
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
