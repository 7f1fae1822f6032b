"""Compiles C files, but only those whose inputs have changed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path

__all__ = ["Objects", "prerequisites"]


class Objects:
    """Fills a folder with object files, and records of their compilers, flags, and hashes of input files.

    Times of files are ignored, because a checkout or a copy does not keep them.
    """

    def __init__(self, command: list[str], version: str, folder: Path) -> None:
        """command: the compiler and the flags for all files. version: its output for --version."""
        self.command, self.folder = command, folder
        scripts = [_hash(word) for word in command if os.path.isfile(word)]  # scripts, such as zig_cc.py
        self.compiler = [version, *scripts, *command]
        folder.mkdir(parents=True, exist_ok=True)

    def compile(
        self, name: str, source: str, flags: list[str], include: list[str], versions: str = ""
    ) -> str:
        """Returns the path of the object file. include: folders of headers. versions: a text that changes if
        other headers change."""
        target, record = self.folder / f"{name}.o", self.folder / f"{name}.json"
        made_by = [*self.compiler, *flags, source, versions]
        try:
            old = json.loads(record.read_text())
            if (
                target.exists()
                and old["made_by"] == made_by
                and all(_hash(f) == h for f, h in old["files"].items())
            ):
                return str(target)
        except (OSError, ValueError):
            pass
        record.unlink(missing_ok=True)  # an interrupted run must leave no record of a partial object
        rule = self.folder / f"{name}.d"
        command = [*self.command, *flags, *(f"-I{path}" for path in include)]
        subprocess.run([*command, "-MMD", "-MF", str(rule), "-c", source, "-o", str(target)], check=True)
        read = prerequisites(os.fsdecode(rule.read_bytes()))
        files = {path: _hash(path) for path in read if not os.path.isabs(path)}
        record.write_text(json.dumps({"made_by": made_by, "files": files}))
        return str(target)


def prerequisites(rule: str) -> list[str]:
    """Returns the input files of a compilation, from the rule for make that -MMD writes.

    Spaces or continued lines separate names. In names, a space, # and $ are written `\\ `, `\\#` and `$$`.
    """
    files = rule.replace("\\\n", " ").partition(": ")[2]
    words = re.findall(r"(?:\\[ #]|\S)+", files)
    return [re.sub(r"\\([ #])|\$(\$)", r"\1\2", word) for word in words]


def _hash(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
