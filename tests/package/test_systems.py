"""Tests that only the files of pyx/runtime/os.h know operating systems."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from compilers import ROOT, zig

FILES = sorted(
    path
    for folder in ("include", "pyx")
    for path in (ROOT / folder).rglob("*.[ch]")
    if path.name != "_core.c" and not re.fullmatch(r"os(_\w+)?\.[ch]", path.name)
)
SYSTEM = (
    r"\b(_WIN(32|64)|WIN32|_MSC_VER"
    r"|__(linux|APPLE|unix|MINGW\w*|CYGWIN|wasi|EMSCRIPTEN|ANDROID|\w+BSD)(__)?)\b"
)
# Headers of ISO C, of compilers, of OpenMP and of Python; strings.h is everywhere.
HEADERS = (
    r"\w*mmintrin|arm_neon|cpuid|errno|fenv|float|limits|lnrnn|lnrnn_api|math|omp|Python|stdarg|stdbool"
    r"|stddef|stdint|stdio|stdlib|string|strings|wasm_simd128"
)
HEADER = rf"#\s*include\s*<(?!({HEADERS})\.h>)"


def foreign(text: str) -> list[str]:
    """Returns the lines that name a system or include a header of one."""
    return [line for line in text.splitlines() if re.search(rf"{HEADER}|^\s*#.*{SYSTEM}", line)]


def test_only_the_door_names_a_system():
    assert len(FILES) > 80
    assert not {str(path): lines for path in FILES if (lines := foreign(path.read_text()))}


@pytest.mark.parametrize(
    "line", ["#include <pthread.h>", "# include <sys/mman.h>", "#if defined(__linux__)", "#ifdef _WIN32"]
)
def test_a_system_is_noticed(line):
    assert foreign(f"int x;\n{line}\n") == [line]


def test_setuptools_can_split_the_command_of_the_compiler(monkeypatch):
    """Windows has backslashes and spaces in paths."""
    split_quoted = pytest.importorskip("setuptools._distutils.util").split_quoted
    monkeypatch.setattr(sys, "executable", r"C:\Program Files\Python\python.exe")
    first, *_, target = split_quoted(zig("win-amd64"))
    assert (first, target) == ("C:/Program Files/Python/python.exe", "x86_64-windows-gnu")


def test_the_package_imports_no_module_that_windows_lacks():
    lacking = re.compile(r"^\s*(import|from) (fcntl|grp|posix|pwd|resource|syslog|termios)\b", re.MULTILINE)
    assert lacking.search("x = 1\n    import fcntl\n")
    assert not [str(path) for path in (ROOT / "lnrnn").rglob("*.py") if lacking.search(path.read_text())]


# Runs on any system, without the names of POSIX that Windows lacks, and with its default integers of NumPy 1.
WITHOUT_POSIX = """
import mmap, multiprocessing, os, signal, subprocess, sys, tempfile
import numpy as np, safetensors.numpy
sys.modules |= dict.fromkeys(("fcntl", "grp", "pwd", "resource", "termios"))
for owner, names in (
    (os, "O_DIRECTORY fchmod fchown fork geteuid getuid killpg register_at_fork sched_getaffinity sysconf"),
    (mmap, "MADV_NOHUGEPAGE MAP_ANONYMOUS MAP_PRIVATE"), (signal, "SIGHUP SIGKILL SIGUSR1 pthread_sigmask"),
):
    for name in names.split():
        vars(owner).pop(name, None)
sys.platform = "win32"
array = np.array
def with_short_integers(make):
    def made(*given, **options):
        found = make(*given, **options)
        chosen = "dtype" in options or (make is array and (given[1:] or isinstance(given[0], np.ndarray)))
        return found if chosen or found.dtype != np.int64 else found.astype(np.int32)
    return made
np.arange, np.array = map(with_short_integers, (np.arange, np.array))
import lnrnn, lnrnn.cli, lnrnn.demo, lnrnn.scoring, lnrnn.sessions, lnrnn.studies
rnn, x = lnrnn.LSTM(3, 4, seed=0), np.ones((2, 1, 3), np.float32)
for _ in range(2):  # a new file, then a replacement
    rnn.save(sys.argv[1])
assert np.array_equal(lnrnn.load(sys.argv[1])(x)[0], rnn(x)[0])
pool = lnrnn.SessionPool(rnn)
pool.join("a")
assert np.array_equal(pool.step(["a"], x[0]), rnn(x)[0][0])
stream = rnn.stream(1)
stream.steps_done = 5
stream.set_state(None, stream.get_state())
assert np.array_equal(stream(x[0]), rnn(x)[0][0]) and stream.steps_done == 6
"""


def test_files_and_pools_need_no_name_of_posix(tmp_path):
    pytest.importorskip("safetensors")
    subprocess.run([sys.executable, "-c", WITHOUT_POSIX, str(tmp_path / "a.safetensors")], check=True)
