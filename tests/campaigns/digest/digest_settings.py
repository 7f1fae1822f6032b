"""``make digest``: the same bits whatever the threads: tests/campaigns/digest/digest.py in processes of different settings.

    python tests/campaigns/digest/digest_settings.py [--isa avx2] [--quick]

Settings are the number of threads (1 to 7), whose threads they are, the cores of the affinity mask, OpenMP's
environment, and the sizes of the caches that the tuning goes by. Prints one digest for each instruction set,
or the configurations that differ, with the setting, and then ends with 1.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
import lnrnn  # noqa: E402
from helpers import available_isas, isa_options  # noqa: E402

ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {},
    {"OMP_PROC_BIND": "true"},
    {"OMP_PROC_BIND": "spread", "OMP_PLACES": "cores"},
    {"OMP_WAIT_POLICY": "passive"},
    {"OMP_WAIT_POLICY": "active"},
    {"OMP_DYNAMIC": "true"},
    {"OMP_THREAD_LIMIT": "2"},
    {"OMP_SCHEDULE": "dynamic,1", "OMP_NESTED": "true"},
)
CACHES = (("16384", "262144", "1048576"), ("65536", "4194304", "67108864"))
# Runs digest.py on one core: a line of its own, for not every system has taskset.
PINNED = "import os, runpy, sys; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); "
PINNED += "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


def settings(quick: bool) -> list[tuple[str, list[str], dict[str, str], list[str]]]:
    """(name, words before the script, environment, words after it). The first is one thread."""
    found: list[tuple[str, list[str], dict[str, str], list[str]]] = [("1 thread", [], {}, ["--threads", "1"])]
    for team in lnrnn._core.team_list():
        kind = {"LNRNN_TEAM": team}
        for threads in (3,) if quick else range(2, 8):
            found.append((f"{team}, {threads} threads", [], kind, ["--threads", str(threads)]))
        if quick:
            continue
        for environment in ENVIRONMENTS[1:]:
            named = " ".join(f"{name}={value}" for name, value in environment.items())
            found.append((f"{team}, 3 threads, {named}", [], {**kind, **environment}, ["--threads", "3"]))
        if hasattr(os, "sched_setaffinity"):
            found.append((f"{team}, 3 threads, one core", ["-c", PINNED], kind, ["--threads", "3"]))
        for caches in CACHES:
            words = ["--threads", "2", "--caches", *caches]
            found.append((f"{team}, 2 threads, caches {' '.join(caches)}", [], kind, words))
    return found


def digests(isa: str, before: list[str], environment: dict[str, str], after: list[str]) -> list[str]:
    """The lines of digest.py under a setting."""
    command = [sys.executable, *before, str(Path(__file__).with_name("digest.py")), "--isa", isa, *after]
    free = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "LNRNN_"))}
    done = subprocess.run(command, env={**free, **environment}, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()


def main() -> int:
    parser = isa_options(__doc__)
    parser.add_argument("--quick", action="store_true", help="three settings instead of all")
    options = parser.parse_args()
    different = 0
    for isa in options.isa or available_isas():
        (_, *first), *others = settings(options.quick)
        want = digests(isa, *first)
        for name, *setting in others:
            got = digests(isa, *setting)
            wrong = [a for a, b in zip(got, want, strict=True) if a != b]
            different += len(wrong)
            for line in wrong:
                print(f"{name}: {line}")
        whole = hashlib.sha256("\n".join(want).encode()).hexdigest()[:16]
        print(f"{isa}: {1 + len(others)} settings, {len(want)} configurations, digest {whole}", flush=True)
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
