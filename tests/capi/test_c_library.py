"""Tests liblnrnn in programs without Python, and the examples in C. A process has one copy of the library."""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import lnrnn
from c_library import library
from c_table import FLAGS, table
from compilers import ROOT, native_compiler
from networks import network, normal

EXAMPLES, DATA = ROOT / "examples", ROOT / "tests/data"


def program(folder: Path, source: Path, compiler: list[str], *flags: str) -> Path:
    """Compiles a program and links it to the package's library. Returns the program's path."""
    path = Path(lnrnn.get_library())
    target = folder / source.stem
    include = f"-I{lnrnn.get_include()}"
    linked = [str(path), f"-Wl,-rpath,{path.parent}", "-pthread", "-o", str(target)]
    subprocess.run([*compiler, *FLAGS, include, str(source), *flags, *linked], check=True)
    return target


def ran(command: list, **options) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tests_in_c_pass(tmp_path):
    made = program(tmp_path, ROOT / "tests/capi/library.c", native_compiler(), "-std=gnu11", "-O1")
    assert ran([made, *sorted(DATA.glob("*.safetensors"))], cwd=tmp_path) == "passed\n"


@pytest.mark.parametrize("macro", ["__BYTE_ORDER__=__ORDER_BIG_ENDIAN__", None])
def test_a_big_endian_machine_is_refused(macro):
    flags = [f"-U{macro.partition('=')[0]}", f"-D{macro}"] if macro else []
    command = [*native_compiler(), *flags, "-fsyntax-only", f"-I{lnrnn.get_include()}", "-xc", "-"]
    ran = subprocess.run(command, input="#include <lnrnn.h>\n", capture_output=True, text=True)
    assert (
        ('error: #error "lnrnn needs a little-endian machine' in ran.stderr) == bool(macro) == ran.returncode
    )


@pytest.fixture
def saved(tmp_path, rng):
    """Returns a network's file, inputs, and the outputs of Python's stream."""
    rnn, path = network(3, 5, cell="LSTM", num_layers=2), tmp_path / "model.safetensors"
    rnn.save(path)
    x, stream = normal(rng, 4, 3), rnn.stream()
    return path, x, np.array([stream(row) for row in x])


def numbers(text: str) -> np.ndarray:
    return np.array([line.split() for line in text.splitlines()], np.float32)


def test_the_example_program_in_c_has_the_results_of_python(tmp_path, saved):
    path, x, y = saved
    made = program(tmp_path, EXAMPLES / "c_program/c_program.c", native_compiler(), "-std=c99")
    lines = "".join(" ".join(map(repr, row.tolist())) + "\n" for row in x)
    said = ran([made, path], input=f"{lines}reset\n{lines}")
    assert (numbers(said) == np.concatenate([y, y])).all()
    refused = subprocess.run([str(made), str(tmp_path)], capture_output=True, text=True)
    assert refused.returncode == 1 and "it is not a regular file" in refused.stderr


def test_the_example_program_in_cpp_runs(tmp_path):
    compiler = shutil.which("c++") or pytest.skip("needs a C++ compiler")
    made = program(tmp_path, EXAMPLES / "cpp_program/cpp_program.cpp", [compiler], "-std=c++17")
    rnn = lnrnn.RNN(1, 2)
    rnn.load_state_dict({
        "weight_ih_l0": np.array([[1], [-1]], np.float32), "weight_hh_l0": np.eye(2, dtype=np.float32) / 2,
        "gain_l0": np.ones(2, np.float32), "bias_l0": np.array([0, 0.25], np.float32),
    })  # fmt: skip
    y, _ = rnn(np.arange(1, 7, dtype=np.float32).reshape(3, 2, 1), lengths=[3, 1])
    found = numbers(ran([made]).replace("|", ""))
    assert np.abs(found - y.reshape(3, 4)).max() < 1e-6


def test_the_example_program_in_ctypes_has_the_results_of_python(saved):
    path, _, _ = saved
    said = ran([sys.executable, EXAMPLES / "ctypes_program/ctypes_program.py", lnrnn.get_library(), path])
    stream = lnrnn.load(path).stream()
    y = np.array([stream(np.full(3, t, np.float32)) for t in range(3)])
    assert np.abs(numbers(said) - y).max() < 1e-6


UNLOADED = """
import _ctypes, ctypes, sys, time
c, n = ctypes.CDLL(sys.argv[1]), 1 << 20
assert not c.lnrnn_team_use(b"pthread")
x = (ctypes.c_float * n)()
c.lnrnn_map(0, ctypes.c_size_t(n), x, x, 4)
_ctypes.dlclose(c._handle)
time.sleep(0.2)  # until the threads sleep
print(x[0])
"""


@pytest.mark.skipif(platform.system() != "Linux", reason="dlclose of Linux")
def test_a_program_may_unload_the_library_whose_threads_sleep():
    assert ran([sys.executable, "-c", UNLOADED, lnrnn.get_library()]) == "1.0\n"


# --- one library in a process -------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [None, "torch"])
def test_all_interfaces_share_one_library(more):
    """The interfaces are the Python module, the table for C modules, ctypes, and torch's operator."""
    if more:
        pytest.importorskip(more)
        import_module("lnrnn.torch")
    c, own = library(), lnrnn.get_num_threads()
    assert ctypes.cast(c.lnrnn_map, ctypes.c_void_p).value == table().lnrnn_map
    c.lnrnn_isa_name.restype = ctypes.c_char_p
    assert c.lnrnn_isa_name().decode() == lnrnn.cpu_info()["isa"]
    try:
        for n in (3, 2):
            c.lnrnn_set_num_threads(n)
            assert lnrnn.get_num_threads() == n
            lnrnn.set_num_threads(n + 1)
            assert c.lnrnn_get_num_threads() == n + 1
    finally:
        lnrnn.set_num_threads(own)
    if platform.system() == "Linux":
        maps = Path("/proc/self/maps").read_text()
        assert len({line.split()[-1] for line in maps.splitlines() if "liblnrnn." in line}) == 1


def python_flags() -> list[str]:
    """Returns the compiler's flags for a program that embeds this Python."""
    names = ("LIBDIR", "LDLIBRARY", "LIBS", "SYSLIBS")
    folder, library, *more = (sysconfig.get_config_var(name) or "" for name in names)
    header, file = Path(sysconfig.get_path("include"), "Python.h"), Path(folder, library)
    for needed in (header, file):
        if not os.access(needed, os.R_OK):
            pytest.skip(f"needs {needed}, to embed Python")
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        pytest.skip("needs a shared library of Python, to embed it")
    return ["-isystem", str(header.parent), str(file), f"-Wl,-rpath,{folder}", *shlex.split(" ".join(more))]


def test_a_program_that_embeds_python_has_one_library(tmp_path):
    source = ROOT / "tests/capi/embedding.c"
    made = program(tmp_path, source, native_compiler(), "-std=gnu11", "-O1", *python_flags())
    environment = {k: v for k, v in os.environ.items() if k != "LNRNN_ISA"}
    path = [str(Path(lnrnn.__file__).parents[1]), *filter(None, sys.path)]
    environment |= {"PYTHONHOME": sys.base_prefix, "PYTHONPATH": os.pathsep.join(path)}
    assert ran([made], env=environment) == "passed\n"


@pytest.mark.skipif(platform.system() != "Linux", reason="writes to a file of ELF")
def test_a_library_of_another_version_is_refused(tmp_path):
    path = tmp_path / Path(lnrnn.get_library()).name
    text = Path(lnrnn.get_library()).read_bytes()
    version = lnrnn.__version__.encode()
    assert text.count(version + b"\0") == 1
    path.write_bytes(text.replace(version + b"\0", b"9" * len(version) + b"\0"))
    folders = filter(None, [str(tmp_path), os.environ.get("LD_LIBRARY_PATH")])
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(folders)}
    done = subprocess.run(
        [sys.executable, "-c", "import lnrnn"], env=environment, capture_output=True, text=True
    )
    own = lnrnn.__version__
    assert f"ImportError: liblnrnn is of version 99999, the module of lnrnn of {own}" in done.stderr


def test_the_header_has_the_version_of_the_package():
    assert (
        f'#define LNRNN_VERSION "{lnrnn.__version__}"' in (Path(lnrnn.get_include()) / "lnrnn.h").read_text()
    )
