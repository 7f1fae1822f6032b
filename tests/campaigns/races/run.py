"""Races: what `make races` runs.

    python tests/campaigns/races/run.py [--seconds S] [--seed N] [PART ...]

readers, callers, settings: tests/campaigns/races/readers.py. fork, pools, exit: tests/campaigns/races/processes.py. Each part
runs in a process of its own, for S seconds; a failure prints the command that does it again.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PARTS = {
    **dict.fromkeys(("readers", "callers", "settings"), "readers.py"),
    **dict.fromkeys(("fork", "pools", "exit"), "processes.py"),
}


def run(part: str, seed: int, seconds: float) -> list[str]:
    """-> the commands that failed: none, or this one."""
    command = [sys.executable, str(HERE / PARTS[part]), part, "--seed", str(seed), "--seconds", str(seconds)]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=300 + 2 * seconds)
    print(done.stdout, end="", flush=True)
    if done.returncode == 0:
        return []
    again = shlex.join(command)
    print(f"FAILED, exit {done.returncode}: {again}\n{done.stderr[-3000:]}", flush=True)
    return [again]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    print(f"seed {options.seed}")
    wrong = [line for part in options.parts or PARTS for line in run(part, options.seed, options.seconds)]
    print(f"{len(wrong)} failures", *wrong, sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
