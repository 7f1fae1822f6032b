"""A quick part of `make faults`: some requests for memory, calls to the file system, limits and signals."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from compilers import native_compiler
from helpers import program

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs Linux and glibc")


@pytest.fixture
def runner(tmp_path):
    pytest.importorskip("safetensors")
    native_compiler()
    made = program(Path(__file__).with_name("run.py")).Runner(tmp_path, seed=1, seconds=1.5)
    yield made
    assert not made.wrong


def test_memory(runner):
    """Requests 1, 32, 63, ... of each operation; one of 450 where every object is one."""
    runner.memory((31, 450))


def test_memory_of_new_streams(runner):
    """Every request."""
    run = program(Path(__file__).with_name("run.py"))
    failing = run.failing()
    for kind in ("", "malloc") if run.OBJECTS_FAIL else ("",):
        more = {"PYTHONMALLOC": kind} if kind else {}
        runner.run("sweep.py", "memory", "--every", 1, "--only", "new stream RNN", **failing, **more)


def test_files(runner):
    runner.files()


def test_limits(runner):
    runner.limits(3)


def test_signals(runner):
    runner.kill()
    runner.interrupt()
