"""Finds inputs of `lnrnn score`: files, folders and patterns, local or at addresses of fsspec."""

from __future__ import annotations

import glob
import os
import posixpath
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ..packages import require

WILD = re.compile(r"[*?[]")


class InputError(ValueError):
    """Raised for a file that cannot be scored. `lnrnn score --bad null` then continues with the next file."""


@dataclass(frozen=True)
class Input:
    """An input file.

    name: of its output, relative to the folder of outputs. path: an absolute path, or a path in fs. fs: an
    fsspec file system, or None for local files.
    """

    name: str
    path: str
    fs: Any = None

    def __str__(self) -> str:
        return self.path if self.fs is None else str(self.fs.unstrip_protocol(self.path))

    def open(self) -> Any:
        """Returns a binary file object. Raises InputError if the file cannot be opened."""
        with self._found():
            # pyarrow has a cache, so fsspec's is disabled
            return open(self.path, "rb") if self.fs is None else self.fs.open(self.path, cache_type="none")

    def state(self) -> tuple[int, int | str]:
        """Returns (number of bytes, modification time or fsspec's key of this version)."""
        with self._found():
            if self.fs is None:
                found = os.stat(self.path)
                return found.st_size, found.st_mtime_ns
            self.fs.invalidate_cache()
            return int(self.fs.size(self.path) or 0), str(self.fs.ukey(self.path))

    @contextmanager
    def _found(self) -> Iterator[None]:
        """A context that converts OSErrors to InputErrors with the file's name."""
        try:
            yield
        except FileNotFoundError:
            raise InputError(f"no such file: {str(self)!r}") from None
        except OSError as error:
            raise InputError(f"{self} cannot be opened: {error.strerror or error}") from error


class _Found(NamedTuple):
    """The files of one argument. root: the folder to which names are relative. folder: it is a folder."""

    root: str
    files: list[str]
    fs: Any
    folder: bool


def find(arguments: Iterable[str]) -> tuple[list[Input], bool]:
    """Returns (inputs sorted by name, whether the output is a folder).

    arguments: files, folders, patterns with `*`, `?`, `[...]` and `**`, or fsspec addresses of these. A
    single file has an output file. In folders, names that begin with a dot or an underscore are skipped,
    except `_name=value`. Names are relative to the deepest folder that contains all arguments.

    Raises InputError if an argument matches no file, and ValueError if two files have the same name.
    """
    found = [_found(str(argument)) for argument in arguments]
    many = len(found) > 1 or found[0].folder
    inputs: dict[str, Input] = {}
    for fs in {id(each.fs): each.fs for each in found}.values():
        own = [each for each in found if each.fs is fs]
        base = (os.path if fs is None else posixpath).commonpath([each.root for each in own])
        for path in (path for each in own for path in each.files):
            name = os.path.relpath(path, base)
            each = Input(name, path, fs)
            if name in inputs:
                raise ValueError(f"the inputs {inputs[name]} and {each} have the same output, {name}")
            inputs[name] = each
    return [inputs[name] for name in sorted(inputs)], many


def _found(argument: str) -> _Found:
    address = re.match(r"([a-z][a-z0-9+.-]+)(://|::)", argument)
    if address is None or (address[1] in ("file", "local") and "::" not in argument):
        fs, path = None, os.path.abspath(argument.removeprefix(address[0]) if address else argument)
        is_file, is_folder, below = os.path.isfile, os.path.isdir, _walked
        matching = partial(glob.glob, recursive=True)
    else:
        fs, path = require("fsspec", "the input " + argument, "score").core.url_to_fs(argument)
        is_file, is_folder, below, matching = fs.isfile, fs.isdir, fs.find, fs.glob
    try:
        if is_file(path):
            return _Found(posixpath.dirname(path) or "/", [path], fs, folder=False)
        root, matches = path.rstrip("/") or "/", [path]
        if WILD.search(path) and not is_folder(path):
            root, matches = _fixed(path), matching(path)
        files = {file for each in matches for file in (below(each) if is_folder(each) else [each])}
        seen = sorted(file for file in files if not _hidden(os.path.relpath(file, root)))
        if not seen:
            found = f"no files in {argument!r}" if is_folder(root) else f"no such file: {argument!r}"
            raise InputError(found)
    except OSError as error:
        raise InputError(f"{argument} cannot be listed: {error}") from error
    return _Found(root, seen, fs, folder=True)


def _walked(path: str) -> Iterator[str]:
    """Yields the files below a folder. Folders that contain themselves by links are read once."""
    seen = set()
    for folder, below, names in os.walk(path, followlinks=True):
        seen.add(os.path.realpath(folder))
        yield from (os.path.join(folder, name) for name in names)
        below[:] = [each for each in below if os.path.realpath(os.path.join(folder, each)) not in seen]


def _fixed(pattern: str) -> str:
    """Returns the folder before the first path component with wildcards."""
    parts = pattern.split("/")
    return "/".join(parts[: next(k for k, part in enumerate(parts) if WILD.search(part))]) or "/"


def _hidden(name: str) -> bool:
    return any(
        part.startswith(".") or (part.startswith("_") and "=" not in part) for part in name.split(os.sep)
    )
