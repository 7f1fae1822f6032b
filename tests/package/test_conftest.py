"""Tests conftest.py by a run of pytest in another folder."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import signal
import pytest
def test_the_process_can_be_interrupted():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
@pytest.mark.parametrize("n", [1, 2])
def test_skipped(n):
    if n == 2:
        pytest.skip("needs a tool")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="ignores a signal")
def test_a_suite_below_a_folder_named_demo_whose_parent_ignores_ctrl_c(tmp_path):
    """Quick tests depend on names inside the repository only. A list of skipped tests can be run again."""
    clone = tmp_path / "demo"
    (clone / "tests").mkdir(parents=True)
    shutil.copy(ROOT / "tests/conftest.py", clone / "tests")
    (clone / "tests/test_one.py").write_text(TESTS)
    (clone / "tests/test_missing.py").write_text('import pytest\npytest.importorskip("nosuch")\n')
    support = ROOT / "tests/support"
    (clone / "pytest.ini").write_text(f'[pytest]\npythonpath = "{support}"\nmarkers = quick\n')

    def run(*words):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
        ignore = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
        return subprocess.run(command, cwd=clone, text=True, capture_output=True, preexec_fn=ignore).stdout

    assert "\n2 passed, 1 skipped, 1 deselected" in run("-m", "quick")
    assert "\n2 passed, 2 skipped" in run("--skipped", "skipped")
    missing, tool = (line.split("\t") for line in (clone / "skipped").read_text().splitlines())
    assert missing[0] == "tests/test_missing.py" and tool[1] == "Skipped: needs a tool"
    assert "\n2 skipped" in run(missing[0], tool[0])
