"""Tests tests/lint/sizes.py in a repository of its own: folders, long files and wide lines have a budget."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SIZES = Path(__file__).parents[1] / "lint/sizes.py"
BUDGET = "tests/lint/budget.txt"


@pytest.fixture
def checked(tmp_path):
    """Returns a function that writes files, and returns the messages of sizes.py since the first commit."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    (tmp_path / "tests/lint").mkdir(parents=True)
    (tmp_path / "pyx").mkdir()
    shutil.copy(SIZES, tmp_path / "tests/lint")
    own = len(SIZES.read_text().splitlines())

    def git(*words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    def check(files, *words):
        for name, text in files.items():
            (tmp_path / name).write_text(text.replace("OWN", str(own)))
        git("add", "-A")
        command = [sys.executable, tmp_path / "tests/lint/sizes.py", *words]
        return subprocess.run(command, capture_output=True, text=True).stderr

    git("init", "-q", "-b", "main")
    assert check({"pyx/a.c": "x\n" * 300, BUDGET: "# numbers\npyx 300\ntests/lint OWN\n"}, "--lower") == ""
    git("commit", "-q", "-m", "first")
    check.folder = tmp_path
    return check


def test_a_folder_within_its_budget_passes(checked):
    assert checked({}) == ""
    assert checked({"pyx/a.c": "x\n" * 201}) == ""


@pytest.mark.parametrize("files, message", [
    ({"pyx/a.c": "x\n" * 301}, "pyx has 301 lines, and 300 are allowed. Remove lines, or add a row"),
    ({"pyx/a.c": "x\n" * 200}, "pyx has 200 lines, and 300 are allowed. Run"),
    ({"pyx/a.c": "x" * 111}, "pyx:wide has 1 lines, and 0 are allowed"),
    ({"pyx/a.c": "x\n" * 501}, "pyx/a.c has 501 lines, and 0 are allowed"),
    ({"new.md": "x\n"}, ". has 1 lines, and 0 are allowed"),
    ({BUDGET: "pyx 301\ntests/lint OWN\n"}, "raises 300 to 301. Add a row `pyx +lines reason`"),
    ({BUDGET: "pyx 300\npyx +9\ntests/lint OWN\n"}, "expected one row `name lines`, and rows"),
    ({BUDGET: "pyx 300\npyx 300\ntests/lint OWN\n"}, "expected one row `name lines`, and rows"),
])  # fmt: skip
def test_other_sizes_are_refused_by_name(checked, files, message):
    assert message in checked(files)


def test_a_row_with_a_reason_raises_a_budget_and_lower_follows_the_lines(checked):
    more = {"pyx/a.c": "x\n" * 350, BUDGET: "pyx 300\npyx +50 the browser\ntests/lint OWN\n"}
    assert checked(more) == ""
    assert checked({"pyx/a.c": "x\n" * 60}, "--lower") == ""
    assert (checked.folder / BUDGET).read_text().startswith("pyx 10\npyx +50 the browser\n")
    assert checked({}) == ""
