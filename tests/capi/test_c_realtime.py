"""Steps, resets and norms from C, on one thread, do not allocate and make no system call."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lnrnn
from c_table import INT, SIZE, Handle, P, address, table
from compilers import native_compiler, preloading
from networks import network, normal, said

LIBRARY = Path(__file__).with_name("realtime.c")


class Run(ctypes.Structure):
    """The struct `run` of realtime.c."""

    _fields_ = [
        ("step", P), ("reset", P), ("norm", P), ("map", P), ("stream", P), ("lanes", P), ("x", P), ("y", P),
        ("steps", SIZE), ("rows", SIZE), ("of_x", SIZE), ("of_y", SIZE), ("wrong", INT), ("ended", INT),
    ]  # fmt: skip


def run_of(handle, lanes, x, y, more=False) -> Run:
    """Returns the Run that steps x (T, rows, D) to y (T, rows, H). more: whether the Run also resets the
    lanes once before the first step, and applies layer norm and tanh to the output of each step."""
    found = table()
    others = found.lnrnn_handle_reset, found.lnrnn_layer_norm, found.lnrnn_map
    return Run(
        found.lnrnn_handle_step, *(others if more else (None,) * 3), handle.pointer, address(lanes),
        address(x), address(y), len(x), handle.rows, x[0].size, y[0].size,
    )  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("counts the requests to the C library of GNU/Linux")
    path = tmp_path_factory.mktemp("realtime") / "realtime.so"
    command = [*native_compiler(), "-O1", "-Wall", "-Wextra", "-Werror", "-fno-builtin", "-shared", "-fPIC"]
    subprocess.run([*command, str(LIBRARY), "-o", str(path), "-pthread"], check=True)
    return path


# In "last", lanes are at different steps, by which batch norm sorts the rows of a step.
NETWORKS = {
    "layer": dict(cell="LSTM", num_layers=2),
    "last": dict(cell="GRU", norm=lnrnn.BatchNormSpec(overrun="last"), num_layers=2),
    "batch": dict(cell="LSTM", norm=lnrnn.BatchNormSpec(overrun="batch")),
    "none": dict(cell="RNN", norm=None),
}


def measured(path: str, name: str, dtype: str) -> dict:
    """Returns how often steps of one network allocate and call the system, after realtime.c is preloaded."""
    rng = np.random.default_rng(0)
    rnn = network(5, 37, trained=200, **NETWORKS[name]).to_dtype(dtype)
    lanes, steps = 300, 40
    stream = rnn.stream(lanes)
    if name == "last":
        stream.steps_done = rng.permutation(lanes)
    rows = lanes if name == "batch" else 150
    chosen = None if name == "batch" else rng.permutation(lanes)[:rows]
    library = ctypes.CDLL(path)
    library.allocations.restype = library.control_allocations.restype = ctypes.c_long
    x, y = normal(rng, steps, rows, 5), np.zeros((steps, rows, 37), np.float32)
    with Handle(stream, rows) as handle:
        asked = run_of(handle, chosen, x, y)
        found = {"first": library.allocations(ctypes.byref(asked)), "wrong": asked.wrong}
        asked = run_of(handle, chosen, x, y, more=True)
        found["more"] = library.allocations(ctypes.byref(asked))
        found["confined"] = library.confined_steps(ctypes.byref(asked))
        found["wrong"] |= asked.wrong
    found["finite"] = bool(np.isfinite(y).all() and y.any())
    nothing = Run()
    found["control"] = library.control_allocations(), library.confined_steps(ctypes.byref(nothing))
    return found


def test_a_step_does_not_allocate_and_makes_no_system_call(library):
    """The first step does not allocate either. Linux ends a thread that makes a system call."""
    environment = {**os.environ, **preloading(library)}
    code = "import json, sys, test_c_realtime as t; print(json.dumps({f'{name} {dtype}': "
    code += "t.measured(sys.argv[1], name, dtype) for name in t.NETWORKS for dtype in ('float32', 'int8')}))"
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", code, str(library)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for name, found in json.loads(done.stdout).items():
        assert found["first"] == found["more"] == found["wrong"] == 0 and found["finite"], (name, found)
        assert found["control"][0] > 2, "malloc, free, and qsort's own"
        if found["confined"] == -1:
            pytest.skip("this system confines no threads (seccomp)")
        assert found["control"][1] == 0 and found["confined"] == 1, name


# A callback of an audio driver. clang 20 and later check the calls of a function with this attribute.
CALLBACK = """
#include <lnrnn.h>
#ifdef __cplusplus
#define CALLBACK noexcept __attribute__((nonblocking))
#else
#define CALLBACK __attribute__((nonblocking))
#endif
void callback(lnrnn_handle *h, const float *x, float *y) CALLBACK;
void callback(lnrnn_handle *h, const float *x, float *y) CALLBACK
{
    %s
}
"""


@pytest.mark.parametrize("language", ["c", "c++"])
def test_a_compiler_knows_the_functions_for_real_time(tmp_path, language):
    def errors(text: str) -> str:
        flags = ["-Wall", "-Wextra", "-Wpedantic", "-Wfunction-effects", "-Werror", "-c", "-x", language]
        (tmp_path / "callback").write_text(text)
        command = [*clang, *flags, "callback", f"-I{lnrnn.get_include()}", "-o", "object"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stderr

    known = "#if !__has_attribute(nonblocking)\n#error\n#endif\nint known;\n"
    for clang in (["clang"], [sys.executable, "-m", "ziglang", "cc"]):
        if shutil.which(clang[0]) and not errors(known):
            break
    else:
        pytest.skip("without clang 20 and the package ziglang")
    right = """lnrnn_handle_reset(h, NULL, 1); lnrnn_handle_step(h, NULL, x, y); lnrnn_map(0, 4, y, y, 1);
    lnrnn_layer_norm(0, 1, 4, y, 4, NULL, NULL, 1e-5, y, 4, 1, 1);"""
    assert errors(CALLBACK % right) == ""
    assert "must not call non-'nonblocking' function 'lnrnn_handle_rows'" in errors(
        CALLBACK % f"{right} y[lnrnn_handle_rows(h)] = x[0];"
    )


# Weights, states, scratch and gradients of 2 MiB and more, which are in huge pages.
LARGE = """
import lnrnn, numpy as np
rnn, x = lnrnn.LSTM(300, 520, seed=0), np.ones((3, 1000, 300), np.float32)
rnn.stream(1000)(x[0])
y, _, tape = rnn.forward_train(x)
rnn.backward(tape, y)
"""


def test_large_blocks_have_sizes_that_strict_allocators_accept(library):
    said(LARGE, **preloading(library))
