"""``make wheels``: wheels for this machine and for others, built and checked here.

    python tests/campaigns/wheels/run.py FOLDER [TARGET ...] [--python 3.12 ...] [--into dist] [--no-tests]

A TARGET is x86_64 or aarch64 (glibc 2.17 or later), musl-x86_64 or musl-aarch64, for every Python that is
here, or macos: its C alone, which is compiled and not run. Default: all, those of other machines for one
Python. What is compiled stays in FOLDER, wheels come into --into. The compiler is clang, of the package
ziglang, which has the C libraries of all targets. Threads are the library's own: an OpenMP that a wheel
brings along would be a second one.

Each wheel has to be below 1.5 MB and to pass auditwheel and check-wheel-contents. Those for this machine are
installed where there is nothing else, and pass tests; one for aarch64 does in an emulator, if Debian's
packages for it can be had. The others are built and not run.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "support")]

from checks import contents, in_emulator, installed  # noqa: E402
from emulated import VERSION  # noqa: E402
from targets import TARGETS, build_wheel, builder, compile_for_macos  # noqa: E402

from outcome import Missing, Wrong  # noqa: E402
from pythons_here import VERSIONS, python_of  # noqa: E402

ALL = (*VERSIONS, "3.14", "3.14t")
HERE_TARGET = platform.machine() if platform.libc_ver()[0] == "glibc" else None
BUILDERS = threading.Lock()


def one(name: str, version: str, python: str, options: argparse.Namespace, first: bool) -> str:
    """Builds and checks a wheel. -> what came out."""
    with BUILDERS:
        made_with = builder(options.folder / f"python-{version}", python)
    wheel = build_wheel(TARGETS[name], made_with, options.folder / name, options.into)
    said = f"{wheel.name}: {contents(wheel)}"
    if options.no_tests:
        return f"{said}; not run"
    if name == HERE_TARGET:
        return f"{said}; {installed(wheel, python, options.folder / name / f'user-{version}', first)}"
    if name == "aarch64" and version == VERSION:
        try:
            return f"{said}; {in_emulator(wheel, made_with, options.folder / name / 'emulated')}"
        except Missing as missing:
            return f"{said}; not run: {missing}"
    return f"{said}; not run"


def target(here: dict[str, str], options: argparse.Namespace, name: str) -> int:
    """All wheels of a target: of another machine than this one, unless it was asked for, for one Python.
    -> how many failed."""
    failed = 0
    wanted = list(here)
    if name != HERE_TARGET and not options.targets:
        wanted = [VERSION] if VERSION in here else wanted[:1]
    for version in wanted if name != "macos" else [""]:
        begun = time.monotonic()
        try:
            if name == "macos":
                units = compile_for_macos(options.folder / name)
                said = f"{units} units of C compiled and linked for arm64; not run"
            else:
                said = one(name, version, here[version], options, version == wanted[0])
        except Wrong as wrong:
            said, failed = f"FAILED: {wrong}", failed + 1
        print(f"{name} {version}: {said} ({time.monotonic() - begun:.0f} s)", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*TARGETS, "macos"]
    parser.add_argument("folder", type=Path)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--python", action="append", choices=ALL, help="only this; may be given again")
    parser.add_argument("--into", type=Path, default=Path("dist"))
    parser.add_argument("--no-tests", action="store_true", help="build, and look at what was built")
    options = parser.parse_args()
    options.folder, options.into = options.folder.resolve(), options.into.resolve()
    if unknown := [name for name in options.targets if name not in names]:
        parser.error(f"no target {unknown[0]!r}: there are {', '.join(names)}")
    os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", str(options.folder / "zig"))
    pythons = {version: python_of(version) for version in options.python or ALL}
    print("Pythons:", *(f"{v} ({'here' if p else 'not here'})" for v, p in pythons.items()), flush=True)
    here = {version: python for version, python in pythons.items() if python}
    if not here:
        return 1
    with ThreadPoolExecutor(max_workers=2) as pool:  # each has stretches on one core
        return int(sum(pool.map(partial(target, here, options), options.targets or names)) > 0)


if __name__ == "__main__":
    sys.exit(main())
