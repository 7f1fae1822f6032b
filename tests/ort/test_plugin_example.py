"""The example in C++ has the outputs of Python.

It is compiled with the header of ONNX Runtime's C++ package if that is in the folder LNRNN_ONNXRUNTIME, and
with declarations/onnxruntime_cxx_api.h otherwise.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

onnxruntime = pytest.importorskip("onnxruntime", minversion="1.25")
pytest.importorskip("onnx")

import lnrnn.onnxruntime  # noqa: E402
from compilers import ROOT  # noqa: E402

SOURCE = ROOT / "examples/onnxruntime_plugin/onnxruntime_plugin.cpp"
DECLARATIONS = Path(__file__).with_name("declarations")


def program(folder: Path) -> Path:
    compiler = shutil.which("c++") or pytest.skip("needs a C++ compiler")
    package = os.environ.get("LNRNN_ONNXRUNTIME")
    include = Path(package, "include") if package else DECLARATIONS
    libraries = Path(package, "lib") if package else Path(onnxruntime.__file__).parent / "capi"
    # The file of pip's package has another name than programs load.
    (folder / "libonnxruntime.so.1").symlink_to(next(libraries.glob("libonnxruntime.so.1*")))
    words = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{include}", f"-Wl,-rpath,{folder}"]
    made = folder / "program"
    subprocess.run([compiler, *words, str(SOURCE), folder / "libonnxruntime.so.1", "-o", made], check=True)
    return made


def test_the_example_in_cpp_has_the_outputs_of_python(tmp_path):
    rnn = lnrnn.LSTM(4, 8, norm=None, seed=0)
    lnrnn.to_onnx(rnn, tmp_path / "step.onnx", step=True)
    made = program(tmp_path)
    done = subprocess.run(
        [made, lnrnn.onnxruntime.library_path(), tmp_path / "step.onnx"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    y, _ = rnn(np.arange(3, dtype=np.float32)[:, None, None].repeat(4, 2))
    found = np.array([line.split() for line in done.stdout.splitlines()], np.float32)
    assert np.abs(found - y[:, 0]).max() < 2e-6
    wrong = subprocess.run(
        [made, tmp_path / "none.so", tmp_path / "step.onnx"], capture_output=True, text=True
    )
    assert wrong.returncode == 1 and "none.so" in wrong.stderr
