"""What py.typed promises: lnrnn itself passes a strict type check, and a user's program is told what is right and wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="mypy is not installed (extra: test)")
pytest.importorskip("torch", reason="lnrnn.torch is checked against PyTorch's own types")
ROOT = Path(__file__).parent.parent


def test_types(tmp_path):
    """In one run, which reads NumPy's and PyTorch's types once. tests/typing_sample.py says what has to be an error."""
    command = ["-m", "mypy", "--strict", "--cache-dir", tmp_path, "lnrnn", "tests/typing_sample.py"]
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
