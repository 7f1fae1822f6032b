"""Tests quick parts of campaigns that need no build, run.py, the table in README.md, and stored results."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lnrnn

HERE = Path(__file__).parent
NAMES = sorted(path.parent.name for path in HERE.glob("*/run_*.py"))
# {campaign: a part and arguments of run.py}. Most parts are the campaign's control: it plants faults, which
# must be reported. tests/campaigns/fuzz, mutants, soak and ulp have tests of their own.
QUICK = {
    "coverage": "control",
    "digest": f"digest --isa {lnrnn.cpu_info()['isa']} --isa scalar",  # these round differently
    "faults": "control",
    "machines": "bits32",  # tests/simd/test_aarch64.py runs NEON
    "plugin": "control",
    "races": "control",
    "reader": "model-file",
    "site": "control",
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits, signals, forks of Linux")
@pytest.mark.parametrize("name", QUICK)
def test_a_quick_part_passes(name, tmp_path):
    """With --figures run.py runs a part in its own process. The next test starts a process for each part."""
    command = [sys.executable, HERE / "run.py", name, *QUICK[name].split(), "--quick", "--seed", "1"]
    done = subprocess.run(
        [*command, "--folder", tmp_path, "--figures", tmp_path / "figures"], capture_output=True, text=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1])},
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip(next(line for line in done.stdout.splitlines() if "not run: " in line))
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert json.loads((tmp_path / "figures").read_text())


def test_a_part_that_fails_or_crashes_is_reported(tmp_path):
    """The report has the command that repeats the part. The other parts run too."""
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "run_toy.py").write_text(
        "import os\nfrom outcome import Missing, Wrong\n"
        "def wrong(options): raise Wrong('two and two')\n"
        "def dead(options):\n    (options.folder / 'at').write_text('--at 7')\n    os._exit(3)\n"
        "def absent(options): raise Missing('needs a tool')\n"
        "def right(options): return {'cases': options.seed}\n"
        "PARTS = {'wrong': wrong, 'dead': dead, 'absent': absent, 'right-one': right}\n"
    )
    text = (HERE / "run.py").read_text()
    (tmp_path / "run.py").write_text(text.replace("HERE.parents[1]", f"Path({str(HERE.parents[1])!r})"))
    (tmp_path / "results").mkdir()

    def run(*words):
        command = [sys.executable, tmp_path / "run.py", "toy", *words, "--seed", "5"]
        return subprocess.run([*command, "--folder", tmp_path / "work"], capture_output=True, text=True)

    done = run()
    text = done.stdout
    assert done.returncode == 1 and "WRONG: two and two" in text and "not run: needs a tool" in text, text
    assert re.search(r"dead: FAILED, exit 3; again: .*run.py toy dead .*--at 7", text) and "cases 5" in text
    assert run("right", "--keep").returncode == 0 == run("right", "absent", "--skip-missing").returncode
    assert run("absent", "right").returncode == 77
    result = json.loads((tmp_path / "results/toy.json").read_text())
    assert result["passed"] and result["figures"] == {"cases": 5} and result["campaign"] == "toy"


@pytest.mark.parametrize("name", NAMES)
def test_a_campaign_lists_its_parts_in_a_new_process(name):
    done = subprocess.run([sys.executable, HERE / "run.py", name, "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "PART" in done.stdout, done.stderr


KEYS = {
    "campaign": str, "date": str, "commit": str, "cpu": str, "python": str, "seconds": int, "command": str,
    "passed": bool, "figures": dict, "notes": list,
}  # fmt: skip


@pytest.mark.parametrize("path", sorted((HERE / "results").glob("*.json")), ids=lambda path: path.stem)
def test_results_can_be_shown(path):
    result = json.loads(path.read_text())
    assert {key: type(value) for key, value in result.items()} == KEYS
    assert result["campaign"] == path.stem and result["figures"]
    assert all(isinstance(value, (int, float, str)) for value in result["figures"].values())


def test_the_readme_lists_every_campaign_with_its_control():
    row = r"^\| \[(\w+)\]\(\1\) \| (.+) \| `(.+)` \| (.+) \| (.+) \|$"
    rows = re.findall(row, (HERE / "README.md").read_text(), re.M)
    assert sorted(name for name, *_ in rows) == NAMES
    assert all(len(control) > 20 for *_, control in rows)
