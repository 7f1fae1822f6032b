"""Compiles C files whose inputs have changed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

with suppress(ImportError):  # Windows: two builds in a folder at the same time are an error
    import fcntl

__all__ = ["Objects", "prerequisites"]


class Objects:
    """A folder of object files, with records of their compilers, flags, and hashes of input files.

    An object's name contains a hash of its command. So several builds can share the folder, and use each
    other's objects. A new object replaces an older one of the same command, so that the folder grows
    by new commands only. File times are ignored, because checkouts and copies do not keep them.
    """

    def __init__(self, command: list[str], version: str, folder: Path) -> None:
        """command: the compiler with flags for all files. version: its output for --version."""
        self.command, self.folder = command, folder
        # cc and gcc are often the same compiler. GCC's version begins with the name by which it was called.
        self.compiler = [os.path.realpath(shutil.which(command[0]) or command[0]), *command[1:]]
        texts = [_hash(word) for word in self.compiler if os.path.isfile(word)]  # compilers may be scripts
        self.version = [version.removeprefix(os.path.basename(command[0])), *texts]
        folder.mkdir(parents=True, exist_ok=True)

    def compile(
        self, name: str, source: str, flags: list[str], include: list[str], versions: str = ""
    ) -> str:
        """Returns the path of the object file. include: folders of headers. versions: a text that changes if
        other headers change."""
        by = hashlib.sha256(json.dumps([*self.compiler, *flags, source]).encode()).hexdigest()[:16]
        target, rule = (self.folder / f"{name}-{by}.{end}" for end in ("o", "d"))
        path, made_by = target.with_suffix(".json"), [*self.version, versions]

        def is_current() -> bool:
            try:
                old = json.loads(path.read_text())
                files: dict[str, str] = old["files"]
                return (
                    target.exists()
                    and old["made_by"] == made_by
                    and all(_hash(f) == h for f, h in files.items())
                )
            except (OSError, ValueError):
                return False

        if is_current():  # also works in a read-only folder
            return str(target)
        with path.open("a+") as record:
            if os.name == "posix":
                fcntl.flock(record, fcntl.LOCK_EX)  # another build may be compiling this object
            if is_current():
                return str(target)
            record.truncate(0)  # an interrupted run must leave no record of a partial object
            command = [*self.command, *flags, *(f"-I{folder}" for folder in include)]
            subprocess.run([*command, "-MMD", "-MF", str(rule), "-c", source, "-o", str(target)], check=True)
            read = prerequisites(os.fsdecode(rule.read_bytes()))
            hashes = {name: _hash(name) for name in read if not os.path.isabs(name)}
            json.dump({"made_by": made_by, "files": hashes}, record)
        return str(target)


def prerequisites(rule: str) -> list[str]:
    """Returns the input files of a compilation from the make rule that -MMD writes.

    Names are separated by spaces or continued lines. Escapes in names: `\\ `, `\\#` and `$$`.
    """
    files = rule.replace("\\\n", " ").partition(": ")[2]
    words = re.findall(r"(?:\\[ #]|\S)+", files)
    return [re.sub(r"\\([ #])|\$(\$)", r"\1\2", word) for word in words]


def _hash(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
