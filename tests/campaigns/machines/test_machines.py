"""A quick part of `make machines`: norms, products and layers on NEON, forward and back, by one thread and by
two, beside plain C; what musl lacks; and builds with pointers of 32 bits, which are refused."""

from __future__ import annotations

import importlib
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from compilers import CFLAGS, GCC_AARCH64, ONCE, QEMU, ROOT, emulates_aarch64, linked

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def room():
    """Modules of this folder, which is on the path for a program that begins in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE)
        yield importlib.import_module("crossed"), importlib.import_module("digests")


@pytest.mark.skipif(not emulates_aarch64(), reason=f"needs {GCC_AARCH64} and {QEMU}")
def test_neon_on_one_thread_and_on_two_beside_plain_c(room, tmp_path):
    crossed, digests = room
    program = linked("aarch64", [GCC_AARCH64], "aarch64", digests.MAIN, flags=("-O1",), link=("-static",))
    command = [QEMU, str(program)]
    neon = crossed.on_threads(command, "neon", tmp_path)
    scalar = digests.results(command, "scalar", 1, tmp_path)
    assert len(neon.lines) > 500
    digests.agree(neon, scalar, "neon and scalar")
    with pytest.raises(Exception, match="differ"):
        digests.same(neon, scalar, "neon and scalar")


@pytest.mark.skipif(not shutil.which("musl-gcc"), reason="needs musl-gcc")
def test_what_is_compiled_once_needs_no_more_than_musl_has(room):
    crossed, _ = room
    for name in ONCE:
        flags = [*CFLAGS, *crossed.WARNINGS, "-fsyntax-only", "-Iinclude", "-Ipyx"]
        subprocess.run(["musl-gcc", *flags, f"pyx/{name}"], cwd=ROOT, check=True)


@pytest.mark.parametrize("compiler", [["gcc", "-m32"], ["gcc", "-mx32"], ["clang", "-m32"]], ids=" ".join)
def test_a_compiler_of_32_bits_is_refused(room, compiler):
    if platform.machine() != "x86_64" or not shutil.which(compiler[0]):
        pytest.skip(f"needs {compiler[0]} on x86-64")
    crossed, _ = room
    assert crossed.refuses(compiler)
    assert not crossed.refuses(compiler[:1])


def test_a_python_of_32_bits_is_refused(room):
    crossed, _ = room
    crossed.refused_by_setup()
