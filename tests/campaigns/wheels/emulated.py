"""Runs a Python for aarch64, from Debian's packages, in an emulator."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from outcome import Missing, done, needs

VERSION = "3.11"
PACKAGES = (
    f"python{VERSION}-minimal", f"libpython{VERSION}-minimal", f"libpython{VERSION}-stdlib",
    "libc6", "libgcc-s1", "libstdc++6", "zlib1g", "libexpat1", "libssl3", "libffi8", "libbz2-1.0",
    "liblzma5", "libuuid1", "libsqlite3-0",
)  # fmt: skip
INSTALL = (
    "-m", "pip", "install", "--quiet", "--no-warn-script-location", "--upgrade", "--python-version", VERSION,
    "--only-binary=:all:", "--platform", "manylinux_2_28_aarch64", "--platform", "manylinux_2_17_aarch64",
)  # fmt: skip


class Emulated:
    """A Python interpreter for aarch64 in `folder`, with packages in folder/packages."""

    def __init__(self, folder: Path) -> None:
        self.root, self.packages = folder / "root", folder / "packages"
        self.python = self.root / f"usr/bin/python{VERSION}"
        needs("qemu-aarch64", "apt-get", "dpkg")
        if not self.python.exists():
            self._unpack(folder / "debs")
            self._replace()

    def _unpack(self, folder: Path) -> None:
        if "arm64" not in done(["dpkg", "--print-foreign-architectures"]).split():
            raise Missing("needs `dpkg --add-architecture arm64` and `apt-get update`")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        wanted = [f"{name}:arm64" for name in PACKAGES]
        command = ["apt-get", "download", "-qq", *wanted]
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if ran.returncode:
            raise Missing(f"needs Debian's packages for arm64: {ran.stderr.strip()[-300:]}")
        for package in folder.glob("*.deb"):
            done(["dpkg-deb", "-x", str(package), str(self.root)])

    def _replace(self) -> None:
        """Replaces the interpreter by a script that runs it in the emulator, so that sys.executable works."""
        program = self.python.with_suffix(".aarch64")
        self.python.rename(program)
        command = f'exec qemu-aarch64 -L "{self.root}" -0 "{self.python}" "{program}" "$@"'
        self.python.write_text(f"#!/bin/sh\n{command}\n")
        self.python.chmod(0o755)

    def install(self, python: str, *packages: str) -> None:
        """Installs packages by the pip of ``python``, which runs on this machine."""
        done([python, *INSTALL, "--target", str(self.packages), *packages])

    def run(self, arguments: list[str], folder: Path, **environment: str) -> str:
        more = {"PYTHONHOME": self.root / "usr", "PYTHONPATH": self.packages, **environment}
        given = [f"{name}={value}" for name, value in more.items()]
        return done(["env", *given, str(self.python), *arguments], cwd=folder)
