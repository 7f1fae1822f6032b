"""The command ``make digest``, in small."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import lnrnn
from networks import FREE

SCRIPT = Path(__file__).parents[1] / "digest_settings.py"


def test_one_digest_for_both_kinds_of_threads():
    environment = {name: value for name, value in os.environ.items() if name not in FREE}
    isa = lnrnn.cpu_info()["available"][0]
    command = [sys.executable, SCRIPT, "--quick", "--isa", isa]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    settings = 1 + len(lnrnn._core.team_list())
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(
        rf"{isa}: {settings} settings, \d{{3,}} configurations, digest [0-9a-f]{{16}}\n", done.stdout
    )
