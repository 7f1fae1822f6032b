"""Runs a Python for aarch64, from Debian's packages, in an emulator, and a Python for Windows in wine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from outcome import Missing, done, needs
from pythons_here import environment
from wine import WINE, wine_variables

VERSION = "3.11"
PACKAGES = (
    f"python{VERSION}-minimal", f"libpython{VERSION}-minimal", f"libpython{VERSION}-stdlib",
    "libc6", "libgcc-s1", "libstdc++6", "zlib1g", "libexpat1", "libssl3", "libffi8", "libbz2-1.0",
    "liblzma5", "libuuid1", "libsqlite3-0",
)  # fmt: skip


def install(python: str, into: Path, version: str, platforms: tuple[str, ...], *packages: str) -> None:
    """Installs packages for another machine by the pip of ``python``, which runs on this machine."""
    words = [
        "--quiet",
        "--no-warn-script-location",
        "--upgrade",
        "--only-binary=:all:",
        "--target",
        str(into),
    ]
    words += [f"--python-version={version}", *(f"--platform={name}" for name in platforms)]
    done([python, "-m", "pip", "install", *words, *packages])


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
        install(
            python, self.packages, VERSION, ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64"), *packages
        )

    def run(self, arguments: list[str], folder: Path, **environment: str) -> str:
        more = {"PYTHONHOME": self.root / "usr", "PYTHONPATH": self.packages, **environment}
        given = [f"{name}={value}" for name, value in more.items()]
        return done(["env", *given, str(self.python), *arguments], cwd=folder)


class Wine:
    """A Python for Windows in `folder`, a copy of `windows`, which is python.org's embeddable package."""

    # Debian's wine 8 lacks crealf, which later versions of NumPy need, and bcryptprimitives.dll. pyarrow 19
    # runs with this NumPy.
    OLD = ("numpy<2", "safetensors<0.4.4", "pyarrow<20")

    def __init__(self, folder: Path, windows: Path, version: str) -> None:
        if not os.path.exists(WINE):
            raise Missing("needs Debian's wine64")
        self.root, self.packages, self.version = folder / "root", folder / "packages", version
        shutil.copytree(windows, self.root, dirs_exist_ok=True)
        for path in self.root.glob("*._pth"):  # with it, Python ignores PYTHONPATH
            path.unlink()
        own = {**wine_variables(), "PYTHONPATH": f"Z:{self.packages}"}
        self.environment = environment(folder, **own)
        done([WINE, "wineboot"], env=self.environment)

    def install(self, python: str, *packages: str) -> None:
        install(python, self.packages, self.version, ("win_amd64",), *packages, *self.OLD)

    def run(self, arguments: list[str], folder: Path) -> str:
        command = [WINE, str(self.root / "python.exe"), *arguments]
        return done(command, cwd=folder, env=self.environment, input="")  # Python needs a standard input
