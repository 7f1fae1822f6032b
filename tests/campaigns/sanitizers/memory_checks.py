"""``make sanitize`` and ``make valgrind``: what reads or writes memory that it may not, or what nobody has
written, or does what C leaves undefined.

    python tests/campaigns/sanitizers/memory_checks.py address FOLDER [ARGUMENTS OF PYTEST]
    python tests/campaigns/sanitizers/memory_checks.py valgrind [--isa scalar]

address: a build of its own in FOLDER with gcc's address and undefined-behaviour sanitizers, and the suite in
it, which runs every instruction set that the machine has. Left out are rooms that limit memory, preload a
library of their own or compile for another machine, and programs that take minutes. Leaks are not looked for:
Python never gives back all of its memory.

valgrind: every norm, function and kind of network in a few sizes under valgrind's memcheck, which knows which
bits were written, with Python's memory from malloc so that it sees every object. Only errors in lnrnn's own
code count. As a control, memory that nobody has written is normalised: that must be reported.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "support"), str(HERE.parent / "guard")]

from source_copy import build, copy_sources  # noqa: E402

SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined"
ROOMS = (
    "tests/norm", "tests/rnn", "tests/reference", "tests/importers", "tests/files", "tests/cli",
    "tests/demo", "tests/data", "tests/campaigns/fuzz", "tests/runtime", "tests/capi",
)  # fmt: skip
# Of those: what limits memory, of which the sanitizer reserves terabytes, counts it, or measures stacks.
NOT = (
    "tests/runtime/test_threads.py",
    "tests/runtime/test_result_memory.py",
    "tests/runtime/test_interrupts.py",
    "tests/capi/test_c_realtime.py",
)
# A process that breaks down on purpose: the sanitizer ends it with another status.
NOT_TESTS = ("tests/campaigns/fuzz/test_fuzz.py::test_what_a_fault_looks_like[crash]",)

MEMCHECK = """
import sys
sys.path[:0] = {path!r}
import numpy as np, lnrnn, sweep
from helpers import using_threads
sweep.QUICK = {sizes}
lnrnn._core.use_isa({isa!r})
with using_threads(1):
    count = 0
    for function, arguments in sweep.cases(quick=True):
        for array in function(*arguments):
            count += bool(np.isfinite(np.asarray(array, np.float64)).all())  # a branch on what came out
    print(count, "arrays")
    print("CONTROL", file=sys.stderr, flush=True)
    lnrnn.layer_norm(np.empty((5, 37), np.float32), 37)
"""


def library(name: str) -> str:
    command = ["gcc", f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def address(folder: Path, arguments: list[str]) -> int:
    """-> the status of pytest."""
    copy_sources(folder)
    build(folder, CC="gcc", CFLAGS=f"{SANITIZERS} -fno-omit-frame-pointer", LDFLAGS=SANITIZERS)
    # The sanitizer has to be the first library of the process, and that of C++ beside it, for PyTorch throws
    # exceptions.
    variables = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "LD_PRELOAD": f"{library('libasan.so')} {library('libstdc++.so')}",
        # Hostile files ask for more memory than there is: that is a MemoryError, and no error of the test.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    chosen = [] if any(not word.startswith("-") and "tests" in word for word in arguments) else [*ROOMS]
    chosen += [f"--ignore={name}" for name in NOT if (folder / name).exists()]
    chosen += [f"--deselect={name}" for name in NOT_TESTS]
    command = [sys.executable, "-m", "pytest", "-q", *chosen, *arguments]
    return subprocess.run(command, cwd=folder, env=variables, check=False).returncode


def errors(isa: str, sizes: tuple[int, ...] = (1, 3, 16, 31, 65)) -> tuple[list[str], list[str]]:
    """What memcheck says about lnrnn's code, and what it says about it in the control."""
    path = [str(HERE.parents[1] / "support"), str(HERE.parent / "guard"), str(HERE.parents[2])]
    program = MEMCHECK.format(path=path, isa=isa, sizes=sizes)
    variables = {**os.environ, "PYTHONMALLOC": "malloc", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["valgrind", "--num-callers=12", "--error-limit=no", sys.executable, "-c", program],
        env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"under valgrind: exit {done.returncode}\n{done.stderr[-3000:]}")
    print(f"{isa}: {done.stdout.strip()}", flush=True)

    def ours(log: str) -> list[str]:
        reports = re.split(r"^==\d+== \n", log, flags=re.MULTILINE)
        return [report for report in reports if re.search(r"\bat 0x\S+: .*_core\.", report)]

    cases, _, control = done.stderr.partition("CONTROL\n")
    return ours(cases), ours(control)


def valgrind(isas: list[str]) -> int:
    wrong = 0
    for isa in isas:
        found, control = errors(isa)
        print(*found[:20], sep="\n")
        print(f"{isa}: {len(found)} errors; the control is {'' if control else 'NOT '}reported", flush=True)
        wrong += bool(found) or not control
    return int(wrong > 0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("address").add_argument("folder", type=Path)
    parts.add_parser("valgrind").add_argument("--isa", action="append")
    options, arguments = parser.parse_known_args()
    if options.part == "address":
        return address(options.folder.resolve(), arguments)
    return valgrind(options.isa or ["scalar"])


if __name__ == "__main__":
    sys.exit(main())
