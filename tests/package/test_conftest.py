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
import signal, subprocess, sys
import pytest
if {missing}:
    pytest.importorskip("nosuch")
def test_a_process_can_be_interrupted():
    code = "import signal; print(signal.getsignal(signal.SIGINT))"
    assert b"default_int_handler" in subprocess.check_output([sys.executable, "-c", code])
@pytest.mark.parametrize("n", [1, 2])
def test_skipped(n):
    if n == 2:
        pytest.skip("needs a tool")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="ignores a signal")
def test_a_suite_below_a_folder_named_demo_whose_parent_ignores_ctrl_c(tmp_path):
    """Quick tests depend on names inside the repository only. A list of skipped tests can be run again."""
    clone = tmp_path / "demo" / "studies"
    (clone / "tests").mkdir(parents=True)
    shutil.copy(ROOT / "tests/conftest.py", clone / "tests")
    for name in ("one", "missing"):
        (clone / f"tests/test_{name}.py").write_text(TESTS.format(missing=name == "missing"))
    (clone / "pyproject.toml").write_text(
        f"[tool.pytest.ini_options]\npythonpath = [{str(ROOT / 'tests/support')!r}]\nmarkers = ['quick']\n"
    )

    def run(*words):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
        ignore = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
        return subprocess.run(command, cwd=clone, text=True, capture_output=True, preexec_fn=ignore).stdout

    assert "\n2 passed, 1 skipped, 1 deselected" in run("-m", "quick")
    assert "\n2 passed, 2 skipped" in (said := run("--skipped", "skipped")), said
    lines = dict(line.split("\t") for line in (clone / "skipped").read_text().splitlines())
    assert lines == {
        "tests/test_missing.py": "Skipped: could not import 'nosuch': No module named 'nosuch'",
        "tests/test_one.py::test_skipped[2]": "Skipped: needs a tool",
    }
    (clone / "again").write_text("\n".join(lines))
    assert "\n2 skipped" in run("@again")
