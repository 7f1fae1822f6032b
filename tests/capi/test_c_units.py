"""Tests C and Cython modules that use lnrnn: headers, .pxd, versions, examples, installed files."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lnrnn
from c_table import CAPSULE, FLAGS, HEADER, compiled, imported, listed, python_include, table
from compilers import ROOT, native_compiler
from lnrnn import _core
from networks import network, normal
from source_copy import copy_sources

HERE = Path(__file__).parent
EXAMPLES = ROOT / "examples"


PROGRAM = """
#include <lnrnn_api.h>
int use(PyObject *stream, const float *x, float *y);
int use(PyObject *stream, const float *x, float *y)
{
    lnrnn_handle *h = lnrnn_import() ? NULL : lnrnn_handle_open(stream, 1, 1);
    int wrong = h ? lnrnn_handle_step(h, NULL, x, y) : LNRNN_STREAM_NO_LANE;
    lnrnn_map(LNRNN_MAP_TANH, 1, x, y, 1);
    lnrnn_handle_free(h);
    return wrong;
}
"""


@pytest.mark.parametrize("language, standard, compiler", [
    *[("c", standard, compiler) for standard in ("c99", "c11") for compiler in ("gcc", "clang")],
    *[("c++", standard, compiler) for standard in ("c++11", "c++20") for compiler in ("g++", "clang++")],
])  # fmt: skip
def test_headers_compile_without_warnings(language, standard, compiler):
    if not shutil.which(compiler):
        pytest.skip(f"needs {compiler}")
    command = [compiler, f"-std={standard}", "-x", language, *FLAGS, "-pedantic", "-fsyntax-only", "-"]
    for text in ('#include "lnrnn.h"\n', '#include "lnrnn.h"\n' + PROGRAM):
        include = ["-isystem", python_include()[2:], f"-I{lnrnn.get_include()}"]
        done = subprocess.run([*command, *include], input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_each_function_of_the_list_has_its_define():
    named = re.findall(
        r"^#define (lnrnn_\w+) \(lnrnn_api_table->(lnrnn_\w+)\)$", HEADER.read_text(), re.MULTILINE
    )
    assert [a for a, _ in named] == [b for _, b in named] == listed()


# {minor version: the functions that it added, in the order of the table}. Compiled modules rely on the order.
RELEASED = {
    0: """handle_open version isa_list isa_emulated isa_name isa_use isa_unit isa_amx team_list team_name
          team_use cores get_num_threads set_num_threads on_shortage map
          layer_norm layer_norm_backward layer_norm_work batch_work batch_norm batch_norm_backward
          describe description_resolve description_arrays description_array network_create network_open
          network_retain network_release network_inputs network_units network_layers network_directions
          network_run stream_create stream_release stream_network stream_lanes stream_state
          stream_steps handle_create handle_free handle_stream handle_rows handle_step handle_reset
          network_state_size workspace_create workspace_free""",
    1: "network_read",
}


def test_the_table_only_grows_at_its_end():
    """A new function comes last and needs a new minor version. A change of an old one needs a new major
    version."""
    assert (table().major, table().minor) == (4, max(RELEASED)), "a new major has a list of its own"
    released = " ".join(RELEASED[minor] for minor in sorted(RELEASED)).split()
    assert listed() == [f"lnrnn_{name}" for name in released]


def declarations(text: str) -> dict[str, str]:
    """Returns {function: its type, as in C}, without comments."""
    text = re.sub(r"/\*.*?\*/|#.*?$| LNRNN_REALTIME", "", text, flags=re.DOTALL | re.MULTILINE)
    found = re.finditer(
        r"^ *((?:const )?\w+ [*]?)(lnrnn_\w+)\(((?:[^()]|\([^()]*\))*)\)(?: except \S+)?;?$",
        text, re.MULTILINE,
    )  # fmt: skip
    return {
        name: re.sub(r"(\w+)\[\w*\]", r"*\1", " ".join(f"{kind}({arguments})".split()))
        .replace("(void)", "()")
        .replace(" noexcept", "")
        for kind, name, arguments in (match.groups() for match in found)
    }


def declared() -> dict[str, str]:
    return declarations(HEADER.read_text()) | declarations(HEADER.with_name("lnrnn.h").read_text())


# {minor version: the first 16 hexadecimal digits of SHA-256 of its functions' types}.
TYPES = {0: "bf33cffef57842f6", 1: "c2bc2d68fcfc4512"}


def test_no_released_function_changes_its_types():
    found = declared()
    for minor, names in RELEASED.items():
        types = [re.sub(r"\w+(?=[,)])", "", found[f"lnrnn_{name}"]) for name in names.split()]
        assert hashlib.sha256("\n".join(types).encode()).hexdigest()[:16] == TYPES[minor], types


def test_the_pxd_declares_the_functions_of_the_headers():
    text = Path(lnrnn.__file__).with_name("__init__.pxd").read_text()
    said, wanted = declarations(text), declared()
    locked = declarations(text.partition('cdef extern from "lnrnn_api.h" nogil:')[0])
    assert set(locked) == {"lnrnn_import", "lnrnn_handle_open"}
    assert said.pop("lnrnn_import") == "int ()"
    wanted["lnrnn_handle_open"] = wanted["lnrnn_handle_open"].replace("PyObject *", "object ")
    assert said == {name: wanted[name] for name in listed()}


def test_the_table_has_all_of_the_header():
    own = declarations(HEADER.with_name("lnrnn.h").read_text())
    assert set(listed()) == {"lnrnn_handle_open", *own}


@pytest.fixture(scope="module")
def units(tmp_path_factory):
    """Returns a module of units.c, which imports the table, and names.c, which uses it. Static assertions
    check layouts."""
    folder = tmp_path_factory.mktemp("units")
    return imported(compiled(folder, "units", [HERE / "units.c", HERE / "names.c"], "-std=gnu11", *FLAGS))


def test_every_function_of_the_table_has_an_address(units):
    assert units.names() == [(name, 1) for name in listed()]


def imported_anew(units, folder: Path):
    """Imports a copy of the module, because CPython imports an extension module once per path."""
    return imported(Path(shutil.copy2(units.__file__, folder)))


@pytest.mark.parametrize("major, minor, right", [
    (4, 1, True), (4, 2, True), (5, 0, False), (3, 9, False), (4, 0, False),
])  # fmt: skip
def test_other_versions_are_refused(units, tmp_path, monkeypatch, major, minor, right):
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    fake = type(table()).from_buffer_copy(table())
    fake.major, fake.minor = major, minor
    monkeypatch.setattr(_core, "_C_API", new(ctypes.addressof(fake), CAPSULE, None))
    if right:
        assert imported_anew(units, tmp_path).names() == [(name, 1) for name in listed()]
    else:
        with pytest.raises(ImportError, match=rf"for version 4\.1 of lnrnn's C API.* has {major}\.{minor}$"):
            imported_anew(units, tmp_path)


@pytest.mark.parametrize("found", [None, 3, "nothing"])
def test_an_lnrnn_without_a_table_is_refused(units, tmp_path, monkeypatch, found):
    if found == "nothing":
        monkeypatch.delattr(_core, "_C_API")
    else:
        monkeypatch.setattr(_core, "_C_API", found)
    with pytest.raises(ImportError, match=r"for version 4\.1 of lnrnn's C API.* has none$"):
        imported_anew(units, tmp_path)


def test_a_missing_lnrnn_is_an_import_error(units, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lnrnn", None)
    with pytest.raises(ImportError, match="lnrnn"):
        imported_anew(units, tmp_path)


def demo(folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(lnrnn.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "demo.py"], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_module_in_c_has_the_results_of_python(tmp_path, rng):
    folder = tmp_path / "c_stream"
    shutil.copytree(EXAMPLES / "c_stream", folder)
    module = imported(compiled(folder, "c_stream", [folder / "c_stream.c"], *FLAGS))
    assert demo(folder) == "equal bits: True\nsteps of each lane: [  0   0   0 100   0   0   0   0]\n"
    stream, x, y = network(3, 17).stream(2), normal(rng, 4, 3), np.zeros((4, 17), np.float32)
    for lane in (-1, 2):
        with pytest.raises(ValueError, match=f"step 0 of lane {lane} is refused: code -1"):
            module.run(stream, x, y, lane)
    for a, b in ((x, y[1:]), (x[:3], y), (x.ravel()[1:], y)):
        with pytest.raises(ValueError, match=r"x must be \(T, D\)"):
            module.run(stream, a, b, 0)
    with pytest.raises(TypeError, match="stream must be a stream of lnrnn"):
        module.run(None, x, y, 0)
    assert not stream.steps_done.any()


def test_the_example_module_in_cython_runs(tmp_path):
    pytest.importorskip("Cython")
    pytest.importorskip("setuptools")
    native_compiler()
    folder = tmp_path / "cython_stream"
    shutil.copytree(EXAMPLES / "cython_stream", folder)
    # -O0 saves some seconds of compilation; the kernels of lnrnn are compiled already.
    environment = {**os.environ, "PYTHONPATH": str(Path(lnrnn.__file__).parents[1]), "CFLAGS": "-O0"}
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=folder, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert demo(folder).startswith("equal bits: True\nsteps of each lane: [100 100")


def test_the_page_of_the_c_api_shows_the_examples():
    """Every block of C or Cython in docs/c_api.md is a part of an example."""
    page = (ROOT / "docs/c_api.md").read_text()
    texts = [path.read_text() for kind in ("*_stream.*", "*_program.*") for path in EXAMPLES.rglob(kind)]
    blocks = re.findall(r"```(?:c|cython)\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 4
    for block in blocks:
        assert any(block in text for text in texts), block


def test_the_page_of_the_c_api_names_every_code_and_version():
    page = (ROOT / "docs/c_api.md").read_text()
    codes = dict(
        re.findall(r"(LNRNN_STREAM_\w+) = (-\d)", (Path(lnrnn.get_include()) / "lnrnn.h").read_text())
    )
    assert len(codes) == 5
    for name, code in codes.items():
        assert re.search(rf"`{name}`.*{code}\b", page), name


def test_headers_and_pxd_are_installed(tmp_path):
    """The package is laid out as by `pip install`, with the existing compiled module."""
    pytest.importorskip("Cython")
    pytest.importorskip("setuptools")
    source, built = tmp_path / "source", tmp_path / "built"
    copy_sources(source)
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(built)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    found = {path.name for path in (built / "lnrnn/include").iterdir()}
    assert found == {"lnrnn.h", "lnrnn_api.h"}
    assert (built / "lnrnn/__init__.pxd").exists()
    for path in (_core.__file__, *Path(_core.__file__).parent.glob("liblnrnn.*")):
        shutil.copy2(path, built / "lnrnn")
    code = "import lnrnn; print(lnrnn.get_include())"
    environment = {**os.environ, "PYTHONPATH": str(built)}
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert said.stdout.strip() == str(built / "lnrnn/include"), said.stderr
    run = [*native_compiler(), "-fsyntax-only", "-x", "c", python_include(), f"-I{said.stdout.strip()}", "-"]
    assert subprocess.run(run, input=PROGRAM, text=True).returncode == 0
