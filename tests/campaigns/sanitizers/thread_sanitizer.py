"""``make tsan``: the library's threads under gcc's ThreadSanitizer.

    python tests/campaigns/sanitizers/thread_sanitizer.py FOLDER [ARGUMENTS OF PYTEST]

A copy of the sources in FOLDER is built with the sanitizer and without OpenMP, whose library the sanitizer
does not know: threads are those of the pool. As a control it first has a barrier whose atomic operations
order nothing: there a race must be reported, or the sanitizer sees nothing. Then, with the barrier as it is,
the tests of threads and of what they divide run. Ends with 0 if the control was reported, and nothing else.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from source_copy import build as compile_module  # noqa: E402
from source_copy import copy_sources  # noqa: E402

FLAGS = "-fsanitize=thread"
# Where threads divide units, sequences, rows and gradients, and where callers and forks meet.
TESTS = (
    "tests/runtime/test_teams.py",
    "tests/runtime/test_concurrent_setters.py",
    "tests/rnn/test_equal_bits.py",
    "tests/rnn/test_lanes.py",
    "tests/rnn/test_partitions.py",
    "tests/rnn/test_short_calls.py",
    "tests/rnn/test_side_by_side.py",
    "tests/capi/test_c_stream.py",
)
# The sanitizer does not support threads that a child of a fork starts, and has a thread of its own.
NOT = "not fork and not workers_start and not allocates"
# Units of a step divided among two threads, which meet at the barrier.
CONTROL = """
import lnrnn, numpy as np
lnrnn._core.set_barrier_mode("together")
lnrnn.set_num_threads(2)
rnn = lnrnn.RNN(8, 1024, seed=0)
rnn(np.random.default_rng(0).standard_normal((20, 1, 8)).astype(np.float32))
assert lnrnn._core.teams_had()[1] == 2
"""
REPORT = "WARNING: ThreadSanitizer: data race"


def build(folder: Path, relaxed: bool) -> None:
    """A copy of the sources in the current folder, built in ``folder`` with the sanitizer."""
    copy_sources(folder)
    if relaxed:
        barrier = folder / "pyx/runtime/barrier.c"
        text, count = re.subn(r"__ATOMIC_(ACQ_REL|ACQUIRE|RELEASE)", "__ATOMIC_RELAXED", barrier.read_text())
        if not count:
            raise SystemExit("the barrier has no ordered operations: the control has to be written anew")
        barrier.write_text(text)
    compile_module(folder, CC="gcc", CFLAGS=FLAGS, LDFLAGS=FLAGS, LNRNN_OPENMP="0")


def run(folder: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Python in ``folder`` with the sanitizer's library, which has to be the first of the process."""
    library = subprocess.run(
        ["gcc", "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder.resolve()),
        "LD_PRELOAD": library.stdout.strip(),
        "TSAN_OPTIONS": "halt_on_error=0 exitcode=66",
        "OPENBLAS_NUM_THREADS": "1",  # NumPy's own threads are not built with the sanitizer
    }
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip


def main() -> int:
    folder, words = Path(sys.argv[1]), sys.argv[2:]
    build(folder, relaxed=True)
    seen = run(folder, ["-c", CONTROL])
    if REPORT not in seen.stdout:
        print(seen.stdout[-3000:])
        print("the control, a barrier that orders nothing, was not reported: the sanitizer sees nothing here")
        return 1
    print(f"control: {seen.stdout.count(REPORT)} races reported in a barrier that orders nothing, as must be")
    build(folder, relaxed=False)
    found = run(folder, ["-m", "pytest", "-p", "no:cacheprovider", "-k", NOT, *TESTS, *words])
    races = found.stdout.count(REPORT)
    print(found.stdout[-6000:])
    print(f"tested: {races} races reported, pytest ended with {found.returncode}")
    return int(races > 0 or found.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
