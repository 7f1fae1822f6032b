"""The command ``make guard``, in small: and that a touch outside an array ends the process."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import lnrnn

SCRIPT = Path(__file__).with_name("sweep.py")
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pages without access by mprotect")

# A byte beyond an array's end, or before its beginning, is written.
TOUCH = """
import ctypes, sys
sys.path.insert(0, {folder!r})
import pathlib, sweep, numpy as np
guard = sweep.guard_pages(pathlib.Path({build!r}))
guard.set({mode})
a = np.empty({size}, np.uint8)
guard.set(0)
ctypes.memset(a.ctypes.data {offset:+d}, 1, 1)
print("alive")
"""


def run(*words):
    return subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, check=False)


@linux
@pytest.mark.parametrize("name", lnrnn.cpu_info()["available"])
def test_no_kernel_touches_what_is_outside_its_arrays(name):
    done = run(SCRIPT, "--quick", "--isa", name)
    assert done.returncode == 0, f"{done.stdout[-500:]}\n{done.stderr[-2000:]}"
    cases, arrays, other = map(
        int, re.search(r"(\d+) cases, (\d+) arrays with guards, (\d+) other", done.stdout).groups()
    )
    assert cases > 50 and arrays > 1000 and other == 0


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """A folder where the module is compiled once."""
    return tmp_path_factory.mktemp("guard_pages")


@linux
@pytest.mark.parametrize("size", [5, 8192])
@pytest.mark.parametrize("mode, inside, outside", [("after", -1, 0), ("before", 0, -1)])
def test_a_touch_outside_an_array_ends_the_process(build, mode, inside, outside, size):
    number, end = {"after": (1, size), "before": (2, 0)}[mode]
    for step, ends_by in ((inside, 0), (outside, -signal.SIGSEGV)):
        code = TOUCH.format(
            folder=str(SCRIPT.parent), build=str(build), mode=number, size=size, offset=end + step
        )
        assert run("-c", code).returncode == ends_by
