"""Builds an archive twice, in different folders and as if by different people, and compares the bytes."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock
from zipfile import ZipFile

from outcome import Wrong

# The second build: other variables, permissions, times of files, and with root's rights another owner.
OTHER = {"USER": "another", "LOGNAME": "another", "LC_ALL": "C", "TZ": "UTC+11", "PYTHONHASHSEED": "7"}
UMASK, TIME, OWNER = 0o077, 981_173_106, 12_345


def disguise(folder: Path) -> None:
    """Changes times, permissions and owner of all files in a folder."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~UMASK)
            os.utime(path, (TIME, TIME))
        if os.geteuid() == 0:
            os.chown(path, OWNER, OWNER, follow_symlinks=False)


def equal(build: Callable[[Path, Callable[[Path], None]], Path], folder: Path) -> str:
    """Returns the SHA-256 of the archive that `build` writes both times.

    build: a function of a folder, and of a function that it calls with the copy of the sources before the
    build. Raises Wrong with the members of the archives that differ.
    """
    shutil.rmtree(folder, ignore_errors=True)
    first = build(folder / "first", lambda sources: None)
    second = folder / "in-another-folder"
    umask = os.umask(UMASK)
    try:
        with mock.patch.dict(os.environ, {**OTHER, "HOME": str(second)}):
            other = build(second, disguise)
    finally:
        os.umask(umask)
    if first.name != other.name:
        raise Wrong(f"the names differ: {first.name}, {other.name}")
    one, two = members(first), members(other)
    differ = sorted(name for name in {*one, *two} if one.get(name) != two.get(name))
    if differ:
        raise Wrong(f"{first.name}: these members differ: {', '.join(differ)}")
    if list(one) != list(two) or first.read_bytes() != other.read_bytes():
        raise Wrong(f"{first.name}: the order of the members, or the archive's own bytes differ")
    return hashlib.sha256(first.read_bytes()).hexdigest()


def members(archive: Path) -> dict[str, tuple]:
    """Returns the properties and the content of each member of a wheel or an sdist, in their order."""
    if archive.suffix == ".whl":
        with ZipFile(archive) as opened:
            return {
                info.filename: (info.date_time, info.external_attr, info.create_system, opened.read(info))
                for info in opened.infolist()
            }
    with tarfile.open(archive) as opened:
        return {
            member.name: (
                member.get_info(), opened.extractfile(member).read() if member.isfile() else b""
            )
            for member in opened
        }  # fmt: skip
