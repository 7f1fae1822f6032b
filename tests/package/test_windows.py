"""Tests on Windows: files that other programs hold, names in UTF-16, and a DLL of another version."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lnrnn
from networks import network

pytestmark = pytest.mark.skipif(sys.platform != "win32", reason="runs on Windows only")
pytest.importorskip("safetensors", reason="models are saved by the safetensors package")


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "mein Büro 中"
    made.mkdir()
    return made


def test_a_library_of_another_version_is_refused(folder):
    """Windows gives a module the DLL of that name that the process has loaded."""
    own, version = Path(lnrnn.get_library()), lnrnn.__version__.encode()
    text = own.read_bytes()
    assert text.count(version + b"\0") == 1
    (folder / own.name).write_bytes(text.replace(version + b"\0", b"9" * len(version) + b"\0"))
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); import lnrnn"
    command = [sys.executable, "-c", code, str(folder / own.name)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert f"liblnrnn is of version {'9' * len(version)}, the module of lnrnn of" in done.stderr


def open_alone(path):
    """Opens a file as a program that shares it with no other. Returns a function that closes it."""
    from ctypes import c_void_p, c_wchar_p, windll  # type: ignore[attr-defined]

    open_file, read, existing = windll.kernel32.CreateFileW, 0x80000000, 3
    open_file.restype = c_void_p
    held = open_file(c_wchar_p(str(path)), read, 0, None, existing, 0, None)
    assert held not in (None, c_void_p(-1).value)
    return lambda: windll.kernel32.CloseHandle(c_void_p(held))


def test_a_file_that_another_program_holds_keeps_its_model(folder, rng):
    path, x = folder / "m ä.safetensors", rng.standard_normal((2, 1, 3), dtype=np.float32)
    rnn = network(3, 4)
    for _ in range(2):  # a new file, then a replacement
        rnn.save(path)
    with open(path, "rb"), pytest.raises(PermissionError, match="m ä.safetensors"):
        network(3, 4, seed=1).save(path)
    close = open_alone(path)
    with pytest.raises(ValueError, match="m ä.safetensors': Permission denied"):
        lnrnn.load(path)
    with pytest.raises(PermissionError, match="m ä.safetensors"):
        network(3, 4, seed=1).save(path)
    close()
    assert [file.name for file in folder.iterdir()] == [path.name]
    assert np.array_equal(lnrnn.load(path)(x)[0], rnn(x)[0])
