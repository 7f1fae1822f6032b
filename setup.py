"""Builds the shared library liblnrnn, and two libraries that are linked to it.

They are the Cython module lnrnn._core, and liblnrnn_ort, the plug-in for ONNX Runtime. A separate module,
lnrnn.torch.layouts, reads torch's tensors.

Kernels are compiled once for each instruction set, other C code once. Object files are kept in
build/objects. A file is compiled again only if its source, an included header, the compiler or its flags
change: see pyx/objects.py.

The environment variable LNRNN_REPOSITORY is the address of the public repository. With it, relative links of
README.md work on a package index too.

To compile for another machine, set CC and _PYTHON_HOST_PLATFORM to the compiler and the platform, as
tests/campaigns/wheels/targets.py does. SOURCE_DATE_EPOCH is the time of all files in archives, and the time
of the last commit is the default: see pyx/archives.py.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from glob import glob
from pathlib import Path

import Cython.Compiler.Options
import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

sys.path.insert(0, "pyx")
from archives import Sdist, Wheel, source_date  # noqa: E402
from build_flags import CFLAGS, plugin_units, units  # noqa: E402
from library import (  # noqa: E402
    HEADER,
    OBJECTS,
    imported,
    library_name,
    link,
    link_plugin,
    openmp_flags,
    plugin_name,
    rpath,
    threads_flags,
    without_python,
)
from objects import Objects  # noqa: E402
from zig_cc import zig  # noqa: E402

HEADERS = [HEADER, "include/lnrnn_api.h"]  # the C API, copied to lnrnn.get_include()

if sys.maxsize < 2**32:
    sys.exit("lnrnn needs a 64-bit build: this Python has pointers of 32 bits")


class BuildExt(build_ext):
    """Builds the shared library, and the plug-in and module linked to it, in one folder."""

    def initialize_options(self) -> None:
        super().initialize_options()
        if sys.platform == "win32":  # setuptools' class for gcc and clang
            self.compiler = "mingw32"
            os.environ.setdefault("CC", zig(sysconfig.get_platform()))

    def build_extensions(self) -> None:
        if self.system() == "win32":  # Python's headers know only Microsoft's compiler
            for ext in self.extensions:
                ext.define_macros.append(("MS_WIN64", ""))
        if sys.platform == "win32":
            self.compiler.dll_libraries = []  # zig links the C library
        found = set(Path(self.build_lib).rglob("*.lib"))
        super().build_extensions()
        # A program is linked with one import library. The linker also writes those of other modules.
        found.add(imported(Path(self.build_lib, self.shared_libraries()[0])))
        for path in {*Path(self.build_lib).rglob("*.lib")} - found:
            path.unlink()

    def build_extension(self, ext: Extension) -> None:
        if ext.name != core.name:
            super().build_extension(ext)
            return
        command, linker = self.compiler.compiler_so, self.compiler.linker_so
        if not self.editable_mode:
            # Wheels are 50 kB smaller without names of local functions and unwind tables, which only
            # debuggers and profilers use.
            command = [*command, "-fno-asynchronous-unwind-tables"]
            # One symbol hash table suffices: C libraries that wheels support read the newer kind.
            linker = [*linker, *(["-Wl,-x"] if self.system() == "darwin" else ["-s", "-Wl,--hash-style=gnu"])]
            self.compiler.set_executable("linker_so", linker)
        openmp = openmp_flags(command, linker)
        if not openmp:
            print("lnrnn: built without OpenMP; calls use threads of the library's own")
        (written,) = cythonize(
            [ext],
            force=True,  # the default compares file times, which a checkout does not keep
            emit_linenums="LNRNN_LINES" in os.environ,  # for tests/campaigns/coverage
            include_path=["pyx", "."],
            compiler_directives={
                "language_level": 3,
                "boundscheck": False,
                "wraparound": False,
                "cdivision": True,
                "binding": False,  # plain functions then need no Python objects
            },
        )
        asked = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        for_this, for_all = (
            Objects(words, asked.stdout, OBJECTS) for words in (command, without_python(command))
        )
        python = [*self.include_dirs, *ext.include_dirs]
        macros = [f"-D{name}={value}" for name, value in ext.define_macros]
        versions = (
            f"numpy {numpy.__version__}, Cython {Cython.__version__}, Python {platform.python_version()}"
        )
        # _core.c comes first, because it takes longest. Each file has its own compiler process.
        module = f"_core-{sysconfig.get_config_var('SOABI')}"
        flags = [*CFLAGS, "-O1", *macros]
        todo = [partial(for_this.compile, module, written.sources[0], flags, python, versions)]
        own = units(self.machine(), openmp)
        todo += [partial(for_all.compile, *unit) for unit in [*own, *plugin_units()]]
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            compiled, *objects = pool.map(lambda one: one(), todo)
        library, plugin = (Path(self.build_lib, path) for path in self.shared_libraries())
        link(linker, objects[: len(own)], library, self.system(), openmp or threads_flags(self.system()))
        link_plugin(linker, objects[len(own) :], plugin, self.system(), library)
        ext.sources, ext.extra_objects = [], [compiled, str(imported(library))]
        ext.extra_link_args = [*rpath(self.system()), "-lm"]
        self.force = True  # always link: setuptools does not know the dependencies
        super().build_extension(ext)

    def machine(self) -> str:
        """Returns the target machine: "x86_64", "arm64", ..."""
        name = self.plat_name.rpartition("-")[2]
        return platform.machine() if name == "universal2" else name

    def system(self) -> str:
        """Returns the target system, as sys.platform names it."""
        names = {"macosx": "darwin", "win": "win32"}
        return next((names[name] for name in names if self.plat_name.startswith(f"{name}-")), "linux")

    def shared_libraries(self) -> list[str]:
        """Returns the paths in the package of liblnrnn and of the plug-in for ONNX Runtime."""
        return [f"lnrnn/{name(self.system())}" for name in (library_name, plugin_name)]

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()
        for path in self.shared_libraries():
            self.copy_file(os.path.join(self.build_lib, path), path, level=self.verbose)

    def get_outputs(self) -> list[str]:
        return sorted(
            {
                *super().get_outputs(),
                *(os.path.join(self.build_lib, path) for path in self.shared_libraries()),
            }
        )

    def get_output_mapping(self) -> dict[str, str]:
        built = {os.path.join(self.build_lib, path): path for path in self.shared_libraries()}
        return super().get_output_mapping() | (built if self.inplace else {})


class BuildPy(build_py):
    """Copies the headers of the C API into the package. Editable installs use include/ instead."""

    def headers(self) -> dict[str, str]:
        """Returns {target: source} of the headers."""
        if self.editable_mode:
            return {}
        return {os.path.join(self.build_lib, "lnrnn", path): path for path in HEADERS}

    def run(self) -> None:
        super().run()
        for target, source in self.headers().items():
            self.mkpath(os.path.dirname(target))
            self.copy_file(source, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), *self.headers()]


def readme(address: str, version: str) -> str:
    """Returns README.md with relative links and images replaced by web addresses of this version."""
    text = Path("README.md").read_text(encoding="utf-8")
    if not address:
        return text
    for picture, kind in (("!", "raw"), ("", "blob")):
        away = rf"(?P<said>(?<!!){picture}\[[^\]]*\])\((?!https?:|#)"
        text = re.sub(away, rf"\g<said>({address}/{kind}/v{version}/", text)
    return text


def urls(address: str) -> dict[str, str]:
    if not address:
        return {}
    return {
        "Source": address,
        "Documentation": f"{address}/blob/main/docs/index.md",
        "Changelog": f"{address}/blob/main/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }


address = os.environ.get("LNRNN_REPOSITORY", "").rstrip("/")
if address and not address.startswith("https://"):
    sys.exit(f"LNRNN_REPOSITORY must begin with https://, got {address!r}")
(version,) = re.findall(r'^__version__ = "(.+)"$', Path("lnrnn/__init__.py").read_text(), re.MULTILINE)

os.environ["SOURCE_DATE_EPOCH"] = source_date(Path("."))
Cython.Compiler.Options.docstrings = False  # the module is not public
core = Extension(
    "lnrnn._core",
    ["pyx/_core.pyx"],
    include_dirs=["include", "pyx", numpy.get_include()],
    define_macros=[
        ("LNRNN_CORE", "1"),
        ("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION"),
        ("NPY_TARGET_VERSION", "NPY_1_25_API_VERSION"),
    ],
    depends=sorted(glob("pyx/*.px[di]") + ["lnrnn/__init__.pxd"]),
)

setup(
    long_description=readme(address, version),
    long_description_content_type="text/markdown",
    project_urls=urls(address),
    ext_modules=[core, Extension("lnrnn.torch.layouts", ["pyx/layouts.c"])],
    cmdclass={"build_ext": BuildExt, "build_py": BuildPy, "sdist": Sdist, "bdist_wheel": Wheel},
)
