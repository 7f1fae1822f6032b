"""``make sanitize`` and ``make valgrind``: what reads or writes memory that it may not, or what nobody has
written, or does what C leaves undefined.

    python tests/memory_checks.py address FOLDER [ARGUMENTS OF PYTEST]
    python tests/memory_checks.py valgrind [--isa scalar]

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
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "support"), str(HERE / "guard")]

from source_copy import build, copy_sources  # noqa: E402

SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined"
ROOMS = (
    "tests/norm", "tests/rnn", "tests/reference", "tests/importers", "tests/files", "tests/cli",
    "tests/demos", "tests/data", "tests/fuzz", "tests/runtime",
)  # fmt: skip
# Of those: what limits memory, of which the sanitizer reserves terabytes, counts it, or measures stacks.
NOT = (
    "tests/runtime/test_threads.py",
    "tests/runtime/test_result_memory.py",
    "tests/runtime/test_interrupts.py",
)

MEMCHECK = """
import sys
sys.path[:0] = {path!r}
import numpy as np, lnrnn
from helpers import using_threads
from sweep import cases
lnrnn._core.use_isa({isa!r})
with using_threads(1):
    if {control}:
        lnrnn.layer_norm(np.empty((5, 37), np.float32), 37)
    else:
        count = 0
        for function, arguments in cases(quick=True):
            for array in function(*arguments):
                count += bool(np.isfinite(np.asarray(array, np.float64)).all())  # a branch on what came out
        print(count, "arrays")
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
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    chosen = [] if any(not word.startswith("-") and "tests" in word for word in arguments) else [*ROOMS]
    chosen += [f"--ignore={name}" for name in NOT if (folder / name).exists()]
    command = [sys.executable, "-m", "pytest", "-q", *chosen, *arguments]
    return subprocess.run(command, cwd=folder, env=variables, check=False).returncode


def errors(isa: str, control: bool) -> list[str]:
    """What memcheck says about lnrnn's code."""
    path = [str(HERE / "support"), str(HERE / "guard"), str(HERE.parent)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = ["valgrind", "--tool=memcheck", "--num-callers=12", f"--log-file={log}", "--error-limit=no"]
        program = MEMCHECK.format(path=path, isa=isa, control=control)
        variables = {
            **os.environ,
            "PYTHONMALLOC": "malloc",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run(
            [*command, sys.executable, "-c", program],
            env=variables, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"under valgrind: exit {done.returncode}\n{done.stderr[-3000:]}")
        if not control:
            print(f"{isa}: {done.stdout.strip()}", flush=True)
        reports = re.split(r"^==\d+== \n", log.read_text(), flags=re.MULTILINE)
    return [report for report in reports if re.search(r"\bat 0x\S+: .*_core\.", report)]


def valgrind(isas: list[str]) -> int:
    if not errors(isas[0], control=True):
        print("the control, memory that nobody has written, is not reported")
        return 1
    found = [report for isa in isas for report in errors(isa, control=False)]
    for report in found:
        print(report)
    print(f"valgrind on {', '.join(isas)}: the control is reported, {len(found)} errors")
    return int(bool(found))


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
