"""Compiled units of C, kept and compiled again only when something that they are made from has changed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path

__all__ = ["Objects", "prerequisites"]


class Objects:
    """Compiled units in a folder, each beside a record of what it was made from: the compiler, the flags, and
    a hash of every file that the compiler read. Contents decide and not times, which a checkout or a copy
    does not keep."""

    def __init__(self, command: list[str], version: str, folder: Path) -> None:
        """command: the compiler, with what every unit needs. version: what it says of itself."""
        self.command, self.folder = command, folder
        scripts = [_hash(word) for word in command if os.path.isfile(word)]  # such as zig_cc.py
        self.compiler = [version, *scripts, *command]
        folder.mkdir(parents=True, exist_ok=True)

    def compile(
        self, name: str, source: str, flags: list[str], include: list[str], versions: str = ""
    ) -> str:
        """-> the object's path. include: folders of headers. Files outside this folder are not looked at:
        `versions` names what stands for them."""
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
        record.unlink(missing_ok=True)  # an interrupted run leaves no record of an object half written
        rule = self.folder / f"{name}.d"
        command = [*self.command, *flags, *(f"-I{path}" for path in include)]
        subprocess.run([*command, "-MMD", "-MF", str(rule), "-c", source, "-o", str(target)], check=True)
        read = prerequisites(os.fsdecode(rule.read_bytes()))
        files = {path: _hash(path) for path in read if not os.path.isabs(path)}
        record.write_text(json.dumps({"made_by": made_by, "files": files}))
        return str(target)


def prerequisites(rule: str) -> list[str]:
    """The files that a compiler has read, from the rule for make that it writes with -MMD: separated by
    spaces or continued lines, with `\\ `, `\\#` and `$$` for a space, # and $ in a name."""
    files = rule.replace("\\\n", " ").partition(": ")[2]
    words = re.findall(r"(?:\\[ #]|\S)+", files)
    return [re.sub(r"\\([ #])|\$(\$)", r"\1\2", word) for word in words]


def _hash(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
