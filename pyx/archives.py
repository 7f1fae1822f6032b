"""Commands of setuptools for reproducible sdists and wheels: equal in every folder, for every user and time.

SOURCE_DATE_EPOCH is the time of all files, in seconds since 1970. Its default is the time of the commit. A
wheel also contains a bill of materials (PEP 770): a CycloneDX list of its components.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import Cython
import numpy
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.sdist import sdist

__all__ = ["Sdist", "Wheel", "source_date"]


def source_date(root: Path) -> str:
    """Returns SOURCE_DATE_EPOCH, or the time of the last commit. In an sdist, setup.py has that time."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    with suppress(OSError, subprocess.CalledProcessError):
        if not given and (root / ".git").exists():
            command = ["git", "-C", str(root), "log", "-1", "--format=%ct"]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return given or f"{(root / 'setup.py').stat().st_mtime:.0f}"


class Sdist(sdist):
    def make_archive(self, base_name: Any, format: str, root_dir: Any = None, base_dir: Any = None, **_: Any):
        """Writes a .tar.gz that does not depend on this machine's owners, times and umask."""
        if format != "gztar":
            raise SystemExit(f"setup.py sdist writes gztar alone, got {format}")
        date, path = int(os.environ["SOURCE_DATE_EPOCH"]), f"{base_name}.tar.gz"

        def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.mtime, member.mode = date, 0o755 if member.mode & 0o100 else 0o644
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            return member

        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with (
            open(path, "wb") as raw,
            gzip.GzipFile("", "wb", mtime=date, fileobj=raw) as packed,
            tarfile.open(fileobj=packed, mode="w", dereference=True) as archive,
        ):
            archive.add(base_dir, filter=plain)  # sorted by name
        return path


class Wheel(bdist_wheel):
    def write_wheelfile(self, wheelfile_base: str, *more: Any) -> None:
        """Also writes the bill of materials, and gives all files of the wheel the same mode."""
        super().write_wheelfile(wheelfile_base, *more)
        root, info = Path(self.bdist_dir), Path(wheelfile_base)
        if info.parent != root:  # an editable installation
            return
        (info / "sboms").mkdir()
        bill = bill_of_materials(root, self.distribution.get_version(), self.distribution.get_description())
        (info / "sboms/lnrnn.cdx.json").write_text(json.dumps(bill, separators=(",", ":")) + "\n")
        for path in root.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)


def bill_of_materials(root: Path, version: str, description: str) -> dict[str, Any]:
    """Returns a CycloneDX document: libraries and data in `root`, and whose code they contain."""

    def licensed(name: str) -> list[dict[str, Any]]:
        return [{"license": {"id": name}}]

    def package(name: str, version: str, licence: str) -> dict[str, Any]:
        ref = f"pkg:pypi/{name.lower()}@{version}"
        own = {"type": "library", "name": name, "version": version, "purl": ref, "bom-ref": ref}
        return {**own, "licenses": licensed(licence)}

    def file(path: Path) -> dict[str, Any]:
        data = path.suffix == ".npz"
        digest = {"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}
        own = {"type": "data" if data else "file", "name": path.relative_to(root).as_posix()}
        return {**own, "hashes": [digest], "licenses": licensed("CC-BY-4.0" if data else "BSD-3-Clause")}

    compiled_in = [
        package("Cython", Cython.__version__, "Apache-2.0"),
        package("numpy", numpy.__version__, "BSD-3-Clause"),
    ]
    ends = ("*.so*", "*.dylib", "*.dll", "*.pyd", "*.npz")
    files = sorted(path for end in ends for path in root.rglob(end))
    own = package("lnrnn", version, "BSD-3-Clause")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own | {"description": description}},
        "components": [*map(file, files), *compiled_in],
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": [one["bom-ref"] for one in compiled_in]}],
    }
