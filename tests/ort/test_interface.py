"""The plug-in's declarations of ONNX Runtime's C interface, checked against the installed runtime.

Sessions of the other tests call the functions: for inputs, options, errors, and the nodes that are taken.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest

onnxruntime = pytest.importorskip("onnxruntime", minversion="1.25")

import lnrnn.onnxruntime  # noqa: E402
from compilers import ROOT, native_compiler  # noqa: E402

HEADER = (ROOT / "pyx/onnxruntime/interface.h").read_text()
POSITIONS = {name: int(at) for name, at in re.findall(r"\bF\((\w+), (\d+),", HEADER)}
SOURCES = "".join(path.read_text() for path in (ROOT / "pyx/onnxruntime").glob("*.c"))
P, SIZE, INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


@pytest.fixture(scope="module")
def base():
    (path,) = Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*")
    get = ctypes.CDLL(str(path)).OrtGetApiBase
    get.restype = ctypes.POINTER(P * 2)
    return get().contents


@pytest.fixture(scope="module")
def table(base):
    at = ctypes.CFUNCTYPE(P, ctypes.c_uint32)(base[0])(24)
    return ctypes.cast(at, ctypes.POINTER(P * 415)).contents


def test_each_listed_function_is_used_and_has_its_own_position():
    assert len(POSITIONS) > 30
    assert all(re.search(rf"\b{name}\b", SOURCES) for name in POSITIONS)
    general = [at for name, at in POSITIONS.items() if name not in ("create_device", "claim")]
    assert sorted(set(general)) == general


@pytest.mark.parametrize(
    "version, right",
    [
        ("1.23.2", False), ("1.9.0", False), ("1", False), ("0.30.0", False),
        ("1.24.0", True), ("1.100.1", True), ("2.0.0", True),
    ],
)  # fmt: skip
def test_older_runtimes_are_refused_by_a_status(tmp_path, table, version, right):
    source = tmp_path / "version.c"
    source.write_text(f'const char *version(void) {{ return "{version}"; }}\n')
    library = tmp_path / "version.so"
    subprocess.run([*native_compiler(), "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    old = ctypes.CDLL(str(library))
    asked = []

    @ctypes.CFUNCTYPE(P, ctypes.c_uint32)
    def tables(wanted):
        asked.append(wanted)
        return ctypes.addressof(table)

    base = (P * 2)(ctypes.cast(tables, P), ctypes.cast(old.version, P))
    plugin = ctypes.CDLL(lnrnn.onnxruntime.library_path())
    plugin.CreateEpFactories.restype = P
    factories, count = (P * 4)(), SIZE(9)
    arguments = [ctypes.c_char_p(b"x"), base, None, factories, SIZE(4), ctypes.byref(count)]
    status = plugin.CreateEpFactories(*arguments)
    assert (status is None, count.value) == (right, int(right))
    assert asked == [24 if right else 1]
    if right:
        plugin.ReleaseEpFactory.argtypes = [P]
        plugin.ReleaseEpFactory(factories[0])
    else:
        text = ctypes.CFUNCTYPE(ctypes.c_char_p, P)(table[2])(status)
        assert text.decode() == f"lnrnn needs ONNX Runtime 1.24 or later, got {version}"


def test_the_library_needs_only_liblnrnn_and_exports_two_functions():
    path = lnrnn.onnxruntime.library_path()
    listed = subprocess.run(["nm", "-D", path], capture_output=True, text=True, check=True).stdout
    assert re.findall(r" T (\w+)", listed) == ["CreateEpFactories", "ReleaseEpFactory"]
    assert "onnx" not in listed.lower() and "Py" not in listed


@pytest.mark.parametrize("path", sorted((ROOT / "pyx/onnxruntime").glob("*.c")), ids=lambda path: path.stem)
def test_global_names_begin_with_the_name_of_their_file(tmp_path, path):
    out, include = str(tmp_path / "file.o"), [f"-I{ROOT / name}" for name in ("include", "pyx")]
    subprocess.run([*native_compiler(), "-std=gnu11", *include, "-c", str(path), "-o", out], check=True)
    listed = subprocess.run(["nm", "-g", "--defined-only", out], capture_output=True, text=True, check=True)
    names = {line.split()[-1].lstrip("_") for line in listed.stdout.splitlines()}
    exported = {"CreateEpFactories", "ReleaseEpFactory"}
    assert names and all(name.startswith(f"{path.stem.partition('_')[0]}_") for name in names - exported)
