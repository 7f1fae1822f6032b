"""Runs of the plug-in's nodes do not allocate after the first."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

from compilers import native_compiler, preloading  # noqa: E402
from onnx_files import recurrent  # noqa: E402
from plugin_runs import KINDS, feed, plugged  # noqa: E402

SOURCE = Path(__file__).with_name("allocations.c")


def counts(path: str) -> list[list[int]]:
    """Returns the requests for memory of each of four runs, by network."""
    counter = ctypes.CDLL(path)
    rng, result = np.random.default_rng(0), []
    for kind in KINDS:
        for D in (1, 2):
            session = plugged(recurrent(rng, kind, D=D, lengths=True, states=True))
            assert counter.watch() == 2
            given = feed(rng, kind, T=9, B=40, D=D, lengths=rng.integers(0, 10, 40), states=True)
            smaller = feed(rng, kind, T=1, B=1, D=D, lengths=[1], states=True)
            before = []
            for each in (given, given, smaller, given):
                before.append(counter.requests_until_now())
                session.run(None, each)
            before.append(counter.requests_until_now())
            result.append([b - a for a, b in zip(before, before[1:], strict=False)])
    return result


def test_runs_after_the_first_do_not_allocate(tmp_path):
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("counts the requests to the C library of GNU/Linux")
    library = tmp_path / "allocations.so"
    command = [*native_compiler(), "-O1", "-Wall", "-Wextra", "-Werror", "-fno-builtin", "-shared", "-fPIC"]
    subprocess.run([*command, str(SOURCE), "-o", str(library)], check=True)
    paths = os.pathsep.join([str(Path(__file__).parents[1] / "support"), str(Path(__file__).parent)])
    code = f"import json, test_plugin_memory as t; print(json.dumps(t.counts({str(library)!r})))"
    environment = os.environ | preloading(library) | {"PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for first, *later in json.loads(done.stdout):
        assert first > 0 and later == [0, 0, 0]
