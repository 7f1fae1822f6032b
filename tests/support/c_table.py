"""The C API for extension modules: the header's functions, the table in the capsule, and compiled modules.

ctypes calls the functions without the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import re
import shlex
import subprocess
import sysconfig
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np

import lnrnn
from compilers import native_compiler
from lnrnn import _core

HEADER = Path(lnrnn.get_include()) / "lnrnn_api.h"
CAPSULE = b"lnrnn._core._C_API"
FLAGS = ["-Wall", "-Wextra", "-Wconversion", "-Werror"]


def listed(header: str | None = None) -> list[str]:
    """Returns the names of the functions in the header's list, in order."""
    text = HEADER.read_text() if header is None else header
    body = re.search(r"#define LNRNN_API_FUNCTIONS\(X\)((?:.*\\\n)*.*\n)", text)
    return re.findall(r"X\((\w+)\)", body.group(1))


class Table(ctypes.Structure):
    _fields_ = [("major", ctypes.c_int), ("minor", ctypes.c_int), *((n, ctypes.c_void_p) for n in listed())]


def table() -> Table:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return Table.from_address(pointer(_core._C_API, CAPSULE))


P, SIZE, INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


def function(name: str, result, *arguments, locked: bool = False):
    """Returns a function of the table. locked: whether it needs the interpreter's lock, and may raise."""
    kind = ctypes.PYFUNCTYPE if locked else ctypes.CFUNCTYPE
    return kind(result, *arguments)(getattr(table(), name))


def address(array):
    return None if array is None else array.ctypes.data


class Handle:
    """An lnrnn_handle of a stream of Python, used as `with Handle(stream, rows) as handle`."""

    def __init__(self, stream, rows: int, threads: int = 1) -> None:
        opened = function("lnrnn_handle_open", P, ctypes.py_object, SIZE, INT, locked=True)
        self.pointer, self.rows = opened(stream, rows, threads), rows
        self.stream = function("lnrnn_handle_stream", P, P)(self.pointer)
        assert function("lnrnn_handle_rows", SIZE, P)(self.pointer) == rows
        self.lanes = function("lnrnn_stream_lanes", SIZE, P)(self.stream)
        network = function("lnrnn_stream_network", P, P)(self.stream)
        for name in ("inputs", "units", "layers"):
            setattr(self, name, function(f"lnrnn_network_{name}", SIZE, P)(network))
        size = function("lnrnn_network_state_size", SIZE, P, INT)
        self.widths = size(network, 0), size(network, 1)

    def step(self, x, y, lanes=None) -> int:
        """Computes y (rows, size of h) from x (rows, D) and lanes (rows) of int64, all contiguous. Returns
        the status."""
        assert x.dtype == y.dtype == np.float32 and x.flags.c_contiguous and y.flags.c_contiguous
        assert lanes is None or lanes.dtype == np.int64
        step = function("lnrnn_handle_step", INT, P, P, P, P)
        return step(self.pointer, address(lanes), address(x), address(y))

    def stepped(self, x, lanes=None):
        """Returns the y of a step, which must succeed."""
        y = np.full((self.rows, self.widths[0]), np.nan, np.float32)
        assert self.step(x, y, None if lanes is None else np.array(lanes, np.int64)) == 0
        return y

    def reset(self, lanes, n: int | None = None) -> int:
        n = len(lanes) if n is None else n
        return function("lnrnn_handle_reset", INT, P, P, SIZE)(self.pointer, address(lanes), n)

    def state(self, layer: int, cell: int = 0):
        """Returns h or c of a layer, (lanes, size of h or c), as a view of the C memory, or None."""
        result = function("lnrnn_stream_state", P, P, SIZE, INT)(self.stream, layer, cell)
        return result and np.ctypeslib.as_array(
            (ctypes.c_float * (self.lanes * self.widths[cell])).from_address(result)
        ).reshape(self.lanes, self.widths[cell])

    def steps(self):
        result = function("lnrnn_stream_steps", P, P)(self.stream)
        return np.ctypeslib.as_array((ctypes.c_int64 * self.lanes).from_address(result)).copy()

    def close(self) -> None:
        function("lnrnn_handle_free", None, P)(self.pointer)
        self.pointer = None

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_) -> None:
        self.close()


def python_include() -> str:
    return f"-I{sysconfig.get_paths()['include']}"


def compiled(folder: Path, name: str, sources: list[Path], *flags: str) -> Path:
    """Builds the extension module `name` from these C sources in a folder, with lnrnn.get_include()."""
    target = folder / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    shared = shlex.split(sysconfig.get_config_var("LDSHARED"))[1:]  # the first word is the compiler
    command = [
        *native_compiler(), "-O1", *shared, "-fPIC", *flags, python_include(), f"-I{lnrnn.get_include()}",
        *map(str, sources), "-o", str(target),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def imported(path: Path):
    """Imports the extension module in a file again, as a new module."""
    name = path.name.partition(".")[0]
    spec = spec_from_file_location(name, path, loader=ExtensionFileLoader(name, str(path)))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
