"""Builds and checks wheels for this machine and for others.

Parts are targets: x86_64 and aarch64 (glibc 2.17 or later), musl-x86_64, musl-aarch64, win-amd64, win-arm64,
and macos. For macos only the C code is compiled and linked. Wheels for this machine are built for every
installed Python, others for one. The compiler is clang from the package ziglang, which has the C libraries of
all targets. Wheels use lnrnn's own threads, because a second OpenMP in a process may conflict with the first.

Each wheel must have at most 1.62 MB, for Windows 1.8 MB, and pass auditwheel and check-wheel-contents. Wheels
for this machine are installed in new environments and must pass tests. A wheel for aarch64 is tested in an
emulator, if Debian's packages can be downloaded. One for win-amd64 is tested in wine, with --windows. Other
wheels are not run. Wheels are written to --into.

reproducible-sdist and reproducible-TARGET build the sdist and a wheel twice: in two folders, with other
times, permissions, owners and variables, and empty caches. Both must have the same bytes.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from archives import source_date
from checks import contents, in_emulator, in_wine, installed
from emulated import VERSION
from targets import TARGETS, build_wheel, builder, compile_for_macos
from twice import equal

from outcome import Missing, Wrong, done
from pythons_here import VERSIONS, environment, python_of
from source_copy import ROOT, copy_sources

ALL = (*VERSIONS, "3.14", "3.14t")
HERE_TARGET = platform.machine() if platform.libc_ver()[0] == "glibc" else None


def one(target: str, version: str, python: str, options: argparse.Namespace, first: bool) -> str:
    """Builds and checks a wheel. Returns its size and the results of its tests."""
    folder = options.folder
    build_python = builder(folder / f"python-{version}", python)
    wheel = build_wheel(TARGETS[target], build_python, folder / "build", options.into.resolve())
    summary = f"{wheel.name}: {contents(wheel)}"
    if target == HERE_TARGET and not options.no_tests:
        return f"{summary}; {installed(wheel, python, folder / f'user-{version}', first)}"
    if target == "aarch64" and version == VERSION and not options.no_tests:
        try:
            return f"{summary}; {in_emulator(wheel, build_python, folder / 'emulated')}"
        except Missing as missing:
            return f"{summary}; not run: {missing}"
    if target == "win-amd64" and options.windows and not options.no_tests:
        return f"{summary}; {in_wine(wheel, build_python, folder / 'wine', options.windows, version)}"
    return f"{summary}; not run"


def wheels(target: str, options: argparse.Namespace) -> dict[str, str]:
    os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", str(options.folder.parent / "zig"))
    os.environ["SOURCE_DATE_EPOCH"] = source_date(ROOT)
    if target == "macos":
        return {
            apple: f"{compile_for_macos(name, apple, options.folder / apple)} files of C are linked; not run"
            for name, apple in (("aarch64", "arm64"), ("x86_64", "x86_64"))
        }
    every = {version: python_of(version) for version in options.python or ALL}
    here = {version: python for version, python in every.items() if python}
    if not here:
        raise Missing("needs one of these Pythons")
    versions = list(here)
    if target != HERE_TARGET and not options.python:
        versions = [VERSION] if VERSION in here else versions[:1]
    figures, wrong = {}, []
    for version in versions:
        try:
            figures[version] = one(target, version, here[version], options, version == versions[0])
            print(f"{target} {version}: {figures[version]}", flush=True)
        except Wrong as error:
            wrong.append(f"{version}: {error}")
    if wrong:
        raise Wrong("\n".join(wrong))
    return figures


def sdist(folder: Path, prepare: Callable[[Path], None]) -> Path:
    copy_sources(folder)
    prepare(folder)
    done([sys.executable, "setup.py", "-q", "sdist"], cwd=folder, env=environment(folder))
    (archive,) = (folder / "dist").glob("*.tar.gz")
    return archive


def reproducible(target: str, options: argparse.Namespace) -> dict[str, str]:
    """Returns the SHA-256 of the archive. Wheels are built by one Python: the first that --python names."""
    os.environ["SOURCE_DATE_EPOCH"] = source_date(ROOT)
    if target == "sdist":
        return {target: equal(sdist, options.folder / target)}
    version = (options.python or [VERSION])[0]
    python = python_of(version)
    if not python:
        raise Missing(f"needs Python {version}")

    def wheel(folder: Path, prepare: Callable[[Path], None]) -> Path:
        os.environ["ZIG_GLOBAL_CACHE_DIR"] = str(folder / "zig")
        own = builder(folder / "python", python)
        return build_wheel(TARGETS[target], own, folder / "build", folder / "wheel", prepare)

    return {target: equal(wheel, options.folder / target)}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--python", action="append", choices=ALL, help="only this; may be repeated")
    parser.add_argument("--windows", type=Path, help="python.org's embeddable package, unpacked, for wine")
    parser.add_argument("--into", type=Path, default=Path("dist"))
    parser.add_argument("--no-tests", action="store_true", help="build, and check only the files")


PARTS = {target: partial(wheels, target) for target in (*TARGETS, "macos")}
PARTS |= {  # DLLs have the time when they were linked
    f"reproducible-{target}": partial(reproducible, target)
    for target in ("sdist", *TARGETS)
    if "win-" not in target
}
