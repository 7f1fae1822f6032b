"""Compares the binary interface of liblnrnn with liblnrnn.MAJOR.abi, which describes this major version.

As a program, writes that file, after the version was raised.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from compilers import ROOT, native_compiler, objects, units

HEADER = ROOT / "include/lnrnn.h"
(MAJOR,) = re.findall(r"^#define LNRNN_API_MAJOR (\d+)$", HEADER.read_text(), re.M)
STORED = Path(__file__).with_name(f"liblnrnn.{MAJOR}.abi")
# Only the types and functions of the header count: an opaque struct may change.
PUBLIC = [
    "--drop-private-types", "--drop-undefined-syms", "--no-show-locs", "--no-parameter-names",
    "--no-elf-needed", "--no-corpus-path", "--no-comp-dir-path", "--no-architecture",
]  # fmt: skip


def library(folder: Path, header: str) -> Path:
    """Compiles the library against this text of lnrnn.h. It exports the functions that the text declares."""
    (folder / "header").mkdir(parents=True)
    (folder / "header/lnrnn.h").write_text(header)
    own = [unit for unit in units(platform.machine(), []) if unit.source != "pyx/isa/kernels.c"]
    flags = ["-O0", "-gdwarf-4", f"-ffile-prefix-map={ROOT}=.", f"-I{folder / 'header'}"]
    compiled = objects([*native_compiler(), "-fPIC"], own, folder, *flags)
    names = re.findall(r"^(?!typedef|#| \*).*?\b(lnrnn_\w+)\(", header, re.M)
    (folder / "names").write_text(f"{{ global: {'; '.join(names)}; local: *; }};")
    path = folder / f"liblnrnn.so.{MAJOR}"
    script = f"-Wl,--version-script={folder / 'names'}"
    subprocess.run([*native_compiler(), "-shared", *compiled, script, "-o", path], check=True)
    return path


def described(header: str, folder: Path) -> Path:
    """Returns a file with the interface of the library that is compiled against this text of lnrnn.h."""
    path = folder / "described.abi"
    made = library(folder, header)
    command = ["abidw", *PUBLIC, "--headers-dir", folder / "header", "--out-file", path, made]
    subprocess.run(command, check=True)
    return path


def changed(old: Path, new: Path) -> tuple[int, str]:
    """Returns the exit status of abidiff, which has the bits 4 and 8 for changes, and its report."""
    ran = subprocess.run(["abidiff", "--no-added-syms", old, new], capture_output=True, text=True)
    return ran.returncode, ran.stdout + ran.stderr


# {name: the text of the header, and the text that replaces it}.
CHANGES = {
    "a field's type": ("double eps;\n    /* Only for batch", "float eps;\n    /* Only for batch"),
    "the order of fields": ("const char *name;\n    int dtype;", "int dtype;\n    const char *name;"),
    "a constant": ("LNRNN_INVALID = 4", "LNRNN_INVALID = 14"),
    "a function": ("int lnrnn_cores(void);\n", ""),
}


@pytest.fixture(autouse=True)
def tools():
    if not (shutil.which("abidiff") and shutil.which("abidw")):
        pytest.skip("needs abidiff and abidw: Debian's abigail-tools")


def test_the_interface_is_that_of_the_major_version(tmp_path):
    assert STORED.exists(), f"a new major version: run PYTHONPATH=tests/support python {__file__}"
    assert changed(STORED, described(HEADER.read_text(), tmp_path))[0] == 0


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_needs_a_new_major_version(tmp_path, name):
    old, new = CHANGES[name]
    assert HEADER.read_text().count(old) == 1
    other = described(HEADER.read_text().replace(old, new), tmp_path)
    status, report = changed(STORED, other)
    assert status & 4, report
    if not new:  # a function that is added needs none
        assert changed(other, described(HEADER.read_text(), tmp_path / "whole"))[0] == 0


if __name__ == "__main__":
    shutil.rmtree(ROOT / "build/abi", ignore_errors=True)
    shutil.copy(described(HEADER.read_text(), ROOT / "build/abi"), STORED)
