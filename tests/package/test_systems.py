"""Tests that only the files of pyx/runtime/os.h know operating systems."""

from __future__ import annotations

import re

import pytest

from compilers import ROOT

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


def test_the_package_imports_no_module_that_windows_lacks():
    lacking = re.compile(r"^\s*(import|from) (fcntl|grp|posix|pwd|resource|syslog|termios)\b", re.MULTILINE)
    assert lacking.search("x = 1\n    import fcntl\n")
    assert not [str(path) for path in (ROOT / "lnrnn").rglob("*.py") if lacking.search(path.read_text())]
