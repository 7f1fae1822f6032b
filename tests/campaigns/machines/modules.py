"""The Python module by other compilers and for other Pythons."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from digests import agree, native_program, results

from helpers import available_isas
from outcome import Missing, Wrong, done, needs
from pythons_here import VERSIONS, environment, python_of
from source_copy import copy_sources

DIGEST = "tests/campaigns/digest/digest.py"
# What a compiler can get wrong: the vocabulary, the norms, products, forward and backward.
OF_KERNELS = [
    "tests/simd/test_simd.py", "tests/simd/test_vmath.py", "tests/norm/test_exact_statistics.py",
    "tests/norm/test_half.py", "tests/norm/test_magnitudes.py", "tests/norm/test_rms_norm.py",
    "tests/rnn/test_matmul.py", "tests/rnn/test_forward.py",
]  # fmt: skip
# What depends on the Python: arguments and their errors, arrays, copies, settings, files, the command.
OF_PYTHON = [
    "tests/norm/test_norm_input.py",
    "tests/rnn/test_attributes.py", "tests/rnn/test_bad_calls.py", "tests/rnn/test_copies.py",
    "tests/rnn/test_construction.py", "tests/rnn/test_stream.py", "tests/runtime/test_runtime.py",
    "tests/runtime/test_changed_arrays.py", "tests/runtime/test_result_memory.py", "tests/files", "tests/cli",
]  # fmt: skip
ROOMS_OF_PYTHON = ["tests/norm", "tests/rnn", "tests/runtime", "tests/files", "tests/cli"]


def tested(python: str, folder: Path, tests: list[str], free: dict[str, str]) -> str:
    """pytest's last line."""
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", *tests]
    return done(command, cwd=folder, env=free).splitlines()[-1]


def same_arrays(folder: Path) -> list[str]:
    """How many arrays of digest.c have the same bits by both compilers, for each instruction set. The others
    agree within the tolerances, for no bits are promised between compilers."""
    folder.mkdir(parents=True, exist_ok=True)
    programs = [str(native_program(folder, compiler)) for compiler in ("gcc", "clang")]
    said = []
    for isa in available_isas():
        of_gcc, of_clang = (results([program], isa, 1, folder) for program in programs)
        agree(of_gcc, of_clang, f"gcc and clang, {isa}")
        same = sum(map(str.__eq__, of_gcc.lines, of_clang.lines))
        said.append(f"{isa}: {same} of {len(of_gcc.lines)} arrays of the C have the same bits")
    return said


def compilers(options: argparse.Namespace) -> str:
    needs("gcc", "clang")
    folder = options.folder
    said, digests = same_arrays(folder), []
    for compiler in ("gcc", "clang"):
        own = folder / compiler
        copy_sources(own)
        free = environment(own, CC=compiler)
        done([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=own, env=free)
        used = "import lnrnn; print(lnrnn.__file__, *lnrnn._core.team_list(), sep='\\n')"
        file, *teams = done([sys.executable, "-c", used], cwd=own, env=free).splitlines()
        if not Path(file).is_relative_to(own):
            raise Wrong(f"{file} was imported, not what {compiler} has built")
        digests.append(done([sys.executable, DIGEST], cwd=own, env=free).splitlines())
        tests = ["tests/simd", "tests/norm", "tests/rnn"] if options.whole else OF_KERNELS
        said.append(f"{compiler} ({', '.join(teams)}): {tested(sys.executable, own, tests, free)}")
    pairs = list(zip(*digests, strict=True))
    for isa in available_isas():
        of_isa = [one == other for one, other in pairs if one.startswith(f"{isa} ")]
        said.append(f"{isa}: {sum(of_isa)} of {len(of_isa)} configurations of the module")
    return "; ".join(said)


def pythons(options: argparse.Namespace) -> str:
    """Each in an environment of its own, with what `make test` installs."""
    folder = options.folder
    found = {version: python_of(version) for version in options.python or VERSIONS}
    absent = [version for version, python in found.items() if not python]
    if absent:
        raise Missing(f"needs Python {' and '.join(absent)}")
    said = []
    for version, python in found.items():
        own, venv = folder / version / "source", folder / version / "venv"
        copy_sources(own)
        free = environment(own)
        done([str(python), "-m", "venv", str(venv)], env=free)
        own_python = str(venv / "bin/python")
        install = [own_python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done([*install, "setuptools>=77", "cython>=3.1", "numpy>=2"], env=free)
        done([*install, "--no-build-isolation", "-e", ".[test]"], cwd=own, env=free)
        file = done([own_python, "-c", "import lnrnn; print(lnrnn._core.__file__)"], env=free).strip()
        known = done([str(venv / "bin/lnrnn"), "info"], cwd=own, env=free)
        if f"python: {version}." not in known or not Path(file).is_relative_to(own):
            raise Wrong(f"another module than the one built: {file}\n{known}")
        tests = tested(own_python, own, ROOMS_OF_PYTHON if options.whole else OF_PYTHON, free)
        numpy = done([own_python, "-c", "import numpy; print(numpy.__version__)"], env=free).strip()
        said.append(f"{version} (NumPy {numpy}): {tests}")
    return "; ".join(said)
