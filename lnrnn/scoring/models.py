"""Models that a process has loaded: each file once, for all that score with it."""

from __future__ import annotations

import hashlib
import os
import threading

from ..io import load
from ..rnn.models import Model

KEPT = 4  # models at a time

_LOADED: dict[tuple[object, ...], tuple[str, Model]] = {}  # the files' SHA-256, and what is in them
_LOCK = threading.Lock()
if hasattr(os, "register_at_fork"):
    # A fork waits, or a child might find the lock held by a thread that it does not have.
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


def loaded(path: str, sha256: str) -> Model:
    """The model that `save` wrote to path, as lnrnn.load gives it: from memory, if this process has loaded
    this file before.

    sha256: what `digest` must say of the file, or the model is another one: ValueError. Raises what
    lnrnn.load raises, and ValueError under overrun="batch", where a result would depend on the rows around
    it.
    """
    with _LOCK:
        if not os.path.isfile(path):
            return load(path)  # which says what is wrong
        key = path, *_identity(path)
        kept = _LOADED.pop(key, None)
        found = kept[0] if kept else digest(path)
        if found == sha256:
            model = kept[1] if kept else _checked(path)
            if key != (path, *_identity(path)):  # it was replaced while it was read
                found = digest(path)
        if found != sha256:
            raise ValueError(f"{path} is not the model that it was: its SHA-256 was {sha256}, and is {found}")
        _LOADED[key] = found, model
        while len(_LOADED) > KEPT:
            del _LOADED[next(iter(_LOADED))]
        return model


def _checked(path: str) -> Model:
    model = load(path)
    if model.overrun == "batch":
        raise ValueError(
            f"{path} has overrun='batch': a row's result would depend on the rows that are computed with it; "
            "set overrun to 'raise', 'last' or 'mean' and save it again"
        )
    return model


def digest(path: str) -> str:
    """The SHA-256 of a file, in hexadecimal. Raises what lnrnn.load raises where there is no file."""
    if not os.path.isfile(path):
        load(path)
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def _identity(path: str) -> tuple[int, ...]:
    """What changes when another file takes path's name, or when it is written to."""
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
