"""Builds liblnrnn, the library of all C code of lnrnn, which does not use Python.

setup.py links the compiled module to the shared library. `make lib` and `make install` run this file:

python3 pyx/library.py [--prefix PREFIX]
    Compiles the shared and the static library and the plug-in for ONNX Runtime into build/lib. With PREFIX it
    installs them, the header and lnrnn.pc there; DESTDIR is put before these paths. CC, CFLAGS, LDFLAGS and
    AR mean the same as for make. LNRNN_OPENMP=0 builds without OpenMP.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from build_flags import plugin_units, units
from objects import Objects

__all__ = [
    "HEADER", "OBJECTS", "imported", "library_name", "link", "link_plugin", "openmp_flags", "plugin_name",
    "rpath", "threads_flags", "without_python",
]  # fmt: skip

ROOT = Path(__file__).parents[1]
HEADER = "include/lnrnn.h"
OBJECTS = Path("build/objects", sysconfig.get_platform())  # shared with setup.py
MAJOR, VERSION = (
    re.search(rf'^#define LNRNN_{name} "?([^\s"]+)', (ROOT / HEADER).read_text(), re.MULTILINE)[1]  # type: ignore[index]
    for name in ("API_MAJOR", "VERSION")
)

PC = """\
prefix={prefix}
libdir=${{prefix}}/lib
includedir=${{prefix}}/include

Name: lnrnn
Description: recurrent networks with layer norm or batch norm inside, on a CPU
Version: {version}
Libs: -L${{libdir}} -llnrnn
Libs.private: {private}
Cflags: -I${{includedir}}
"""


def library_name(system: str) -> str:
    """Returns the file name of the shared library, with the major version. system: as in sys.platform."""
    return {"darwin": f"liblnrnn.{MAJOR}.dylib", "win32": f"liblnrnn.{MAJOR}.dll"}.get(
        system, f"liblnrnn.so.{MAJOR}"
    )


def plugin_name(system: str) -> str:
    """Returns the file name of the plug-in for ONNX Runtime."""
    return f"liblnrnn_ort.{ {'darwin': 'dylib', 'win32': 'dll'}.get(system, 'so') }"


def rpath(system: str) -> list[str]:
    """Returns linker flags for a module that loads libraries from its own folder. On Windows every module
    does so."""
    if system == "win32":
        return []
    return ["-Wl,-rpath,@loader_path"] if system == "darwin" else ["-Wl,-rpath,$ORIGIN"]


def link_plugin(command: list[str], objects: list[str], target: Path, system: str, library: Path) -> None:
    """Links the plug-in for ONNX Runtime, which loads liblnrnn from its own folder."""
    link(command, objects, target, system, [str(imported(library)), *rpath(system)])


def imported(library: Path) -> Path:
    """Returns the file to link with for a library: on Windows the import library of a DLL."""
    return library.with_suffix(".lib") if library.suffix == ".dll" else library


def threads_flags(system: str) -> list[str]:
    """Returns linker flags for the system's threads."""
    return [] if system == "win32" else ["-pthread"]


def link(command: list[str], objects: list[str], target: Path, system: str, libraries: list[str]) -> None:
    """Links a shared library. command: the linker with flags for shared objects. libraries: flags for
    OpenMP or POSIX threads, or for other libraries."""
    name = target.name
    if system == "darwin":
        command = [word for word in command if word not in ("-bundle", "-undefined", "dynamic_lookup")]
        own = ["-dynamiclib", f"-Wl,-install_name,@rpath/{name}"]
    elif system == "win32":
        own = [f"-Wl,--out-implib,{imported(target)}"]
    else:
        # With -Bsymbolic the library calls its own functions, even if a program defines the same names. A
        # program may unload it while its threads sleep, or while sessions of ONNX Runtime need it.
        own = [f"-Wl,-soname,{name}", "-Wl,-Bsymbolic", "-Wl,-z,nodelete"]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)  # running programs keep the old file
    subprocess.run([*command, *own, *objects, *libraries, "-lm", "-o", str(target)], check=True)


def without_python(command: list[str]) -> list[str]:
    """Returns setuptools' compiler command without Python's flags for optimisation and warnings.

    So files without Python compile alike for all versions of Python and for `make lib`. The user's
    CFLAGS stay. build_flags.py has the flags of single files.
    """
    values = sysconfig.get_config_vars("CC", "CFLAGS")
    of_python = [word for value in values for word in shlex.split(value or "")]
    differs = ("-W", "-O", "-g", "-D", "-f", "-march=", "-mtune=", "-m64", "-pipe", "-pthread", "-specs=")
    of_user = shlex.split(os.environ.get("CFLAGS", ""))
    moved = {*of_user, "-fPIC", *(word for word in of_python if word.startswith(differs))}
    return [*(word for word in command if word not in moved), *of_user, "-fPIC"]


def openmp_flags(compiler: list[str], linker: list[str]) -> list[str]:
    """Returns ["-fopenmp"] if a shared object compiles and links with this flag, else []. LNRNN_OPENMP=0
    also gives []."""
    if os.environ.get("LNRNN_OPENMP") == "0":
        return []
    source = "#include <omp.h>\nint threads(void) { return omp_get_max_threads(); }\n"
    with tempfile.TemporaryDirectory() as folder:
        text, unit, shared = (str(Path(folder, f"openmp.{end}")) for end in ("c", "o", "so"))
        Path(text).write_text(source)
        for command in (
            [*compiler, "-fopenmp", "-c", text, "-o", unit],
            [*linker, unit, "-fopenmp", "-o", shared],
        ):
            if subprocess.run(command, capture_output=True).returncode:
                return []
    return ["-fopenmp"]


def _make(folder: Path) -> list[str]:
    """Compiles the shared library, the static library and the plug-in in `folder`. Returns linker flags for
    programs with the static library."""
    compiler = [*shlex.split(os.environ.get("CC", "cc")), *shlex.split(os.environ.get("CFLAGS", "")), "-fPIC"]
    shared = [*compiler, "-shared", *shlex.split(os.environ.get("LDFLAGS", ""))]
    openmp = openmp_flags(compiler, shared)
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True).stdout
    objects = Objects(compiler, version, OBJECTS)
    own = units(platform.machine(), openmp)
    todo = [partial(objects.compile, *unit) for unit in [*own, *plugin_units()]]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        all_compiled = list(pool.map(lambda one: one(), todo))
    compiled, plugin = all_compiled[: len(own)], all_compiled[len(own) :]
    name, threads = library_name(sys.platform), openmp or threads_flags(sys.platform)
    link(shared, compiled, folder / name, sys.platform, threads)
    link_plugin(shared, plugin, folder / plugin_name(sys.platform), sys.platform, folder / name)
    _point(folder, name)
    archive = folder / "liblnrnn.a"
    archive.unlink(missing_ok=True)  # otherwise ar keeps old members
    subprocess.run([*shlex.split(os.environ.get("AR", "ar")), "rcs", str(archive), *compiled], check=True)
    return [*threads, "-lm"]


def _point(folder: Path, name: str) -> None:
    """Creates a symbolic link without a version, which -llnrnn needs, to the library `name` in `folder`."""
    plain = folder / f"liblnrnn.{'dylib' if name.endswith('dylib') else 'so'}"
    plain.unlink(missing_ok=True)
    plain.symlink_to(name)


def _install(folder: Path, prefix: Path, private: list[str]) -> None:
    into, name = Path(f"{os.environ.get('DESTDIR', '')}{prefix}"), library_name(sys.platform)
    for part in ("lib/pkgconfig", "include"):
        (into / part).mkdir(parents=True, exist_ok=True)
    for file in (name, "liblnrnn.a", plugin_name(sys.platform)):
        (into / "lib" / file).unlink(missing_ok=True)
        shutil.copy2(folder / file, into / "lib" / file)
    _point(into / "lib", name)
    shutil.copy2(ROOT / HEADER, into / "include")
    quoted = str(prefix).replace(" ", r"\ ")
    text = PC.format(prefix=quoted, version=VERSION, private=shlex.join(private))
    (into / "lib/pkgconfig/lnrnn.pc").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prefix", type=Path, help="an absolute path")
    prefix = parser.parse_args().prefix
    if prefix and not prefix.is_absolute():
        parser.error(f"--prefix must be an absolute path, got {str(prefix)!r}")
    os.chdir(ROOT)
    folder = Path("build/lib")
    private = _make(folder)
    if prefix:
        _install(folder, prefix, private)
    print(f"lnrnn {VERSION}: {prefix or folder / library_name(sys.platform)}")


if __name__ == "__main__":
    main()
