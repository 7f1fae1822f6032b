"""Faults injected into lnrnn: what `make faults` runs.

    python tests/campaigns/faults/run.py [--seconds S] [--seed N] [PART ...]

Each part runs in processes of its own:

    memory    the n-th request for memory fails, for every n of every operation: of arrays and large objects,
              one alone and 20 in a row; then of every object of Python, one alone
    first     the same of the first call in a fresh process, on one thread and on two
    files     the n-th call to the file system fails: ENOSPC, EIO, EINTR, or a write of half the bytes
    limits    RLIMIT_FSIZE, RLIMIT_AS, RLIMIT_NPROC
    disk      a full tmpfs, in a user namespace
    kill, interrupt, command    SIGKILL and SIGINT at random moments, for S seconds each

A failure prints the command that does it again.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "support")]

from compilers import ROOT, built, native_compiler, preloading  # noqa: E402

# With PYTHONMALLOC=malloc requests for all Python objects fail, and not for arrays alone. CPython 3.13.0
# itself crashes where one for a function fails (PyFunction_NewWithQualName).
OBJECTS_FAIL = sys.version_info < (3, 13)

FIRST = """
import sys; sys.path[:0] = {path!r}
import sweep, numpy as np, lnrnn
sweep.find_functions()
lnrnn._core.set_barrier_mode("together")
lnrnn.set_num_threads({threads})
x, rnn = np.ones((40, 64, 16), np.float32), lnrnn.LSTM(16, 32, seed=0)
call = {{"call": lambda: rnn(x)[0], "norm": lambda: lnrnn.layer_norm(x.reshape(-1, 64), 64)}}[{what!r}]
try:
    found = sweep.lib.faults_call(call, sweep.MEMORY, {at}, 1, 0)
except MemoryError:
    found = None
failed = sweep.lib.faults_failed()
want = call()
assert found is None or np.array_equal(found, want)
lnrnn.set_num_threads(1)
assert np.array_equal(call(), want)
sys.exit(0 if failed else 9)
"""


def environment(**more: str) -> dict[str, str]:
    tests = [HERE, HERE.parents[1] / "support", HERE.parents[1] / "runtime"]
    path = [str(ROOT), *map(str, tests), os.environ.get("PYTHONPATH", "")]
    one = {
        "OPENBLAS_NUM_THREADS": "1",
        "RUST_BACKTRACE": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
    }
    return {**os.environ, **one, **more}


def failing() -> dict[str, str]:
    """The environment of a program in which requests fail."""
    flags = ["-shared", "-fPIC", "-fvisibility=default", "-fno-builtin"]
    return preloading(built("faults", native_compiler(), HERE / "failing.c", flags))


class Runner:
    def __init__(self, folder: Path, seed: int, seconds: float) -> None:
        self.folder, self.seed, self.seconds = folder, seed, seconds
        self.wrong: list[str] = []

    def run(self, script: str, *words: object, before: tuple[str, ...] = (), **more: str) -> None:
        """A script of this folder in a process of its own, after whose name comes a folder."""
        what, *rest = map(str, words)
        place = Path(tempfile.mkdtemp(dir=self.folder))
        command = [*before, sys.executable, str(HERE / script), what, str(place), *rest]
        since = time.monotonic()
        done = subprocess.run(command, env=environment(**more), text=True, capture_output=True)
        lines = done.stdout.splitlines()
        shown = [line for line in lines if "WRONG" in line or line.startswith(("    ", what, "total"))]
        print(*shown, sep="\n")
        print(f"{script} {what}: {time.monotonic() - since:.0f} s", flush=True)
        if done.returncode:
            at = place / "at"
            where = at.read_text().strip() if at.exists() else ""
            again = " ".join([*(f"{k}={v}" for k, v in more.items()), shlex.join([*command]), where])
            print(f"FAILED, exit {done.returncode}: {again}\n{done.stderr[-3000:]}", flush=True)
            self.wrong.append(again)

    def memory(self, every: tuple[int, int] = (1, 1)) -> None:
        """every: which requests fail, of arrays and of all objects."""
        self.run("sweep.py", "memory", "--every", every[0], **failing())
        if OBJECTS_FAIL:
            self.run("sweep.py", "memory", "--every", every[1], PYTHONMALLOC="malloc", **failing())

    def files(self) -> None:
        self.run("sweep.py", "files", **failing())

    def first(self) -> None:
        for threads in (1, 2):
            for what in ("call", "norm"):
                at, ended = 1, []
                while True:
                    path = environment()["PYTHONPATH"].split(os.pathsep)
                    code = FIRST.format(path=path, threads=threads, what=what, at=at)
                    preloaded = environment(**failing())
                    run = [sys.executable, "-c", code]
                    done = subprocess.run(run, env=preloaded, text=True, capture_output=True)
                    if done.returncode == 9:
                        break
                    if done.returncode:
                        ended.append(f"{at}: exit {done.returncode}, {done.stderr.strip()[-100:]}")
                    at += 1
                counts = f"{at - 1} requests failed, the process ended in {len(ended)}"
                print(f"first {what}, {threads} threads: {counts}")
                for text in ended:
                    print(f"    request {text}")
                # Where a thread or the memory of one cannot be had, glibc and libgomp end the process.
                others = ("libgomp", "thread-local data")
                self.wrong += [
                    f"first {what}: {text}" for text in ended if not any(o in text for o in others)
                ]

    def limits(self, steps: int = 60) -> None:
        self.run("limits.py", "files", "--steps", steps)
        self.run("limits.py", "memory", "--steps", steps)
        self.run("limits.py", "processes", "--steps", max(1, steps // 6), "--seed", self.seed)

    def disk(self) -> None:
        probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(self.folder)]
        try:
            done = subprocess.run(probe, capture_output=True, text=True)
            why = done.stderr.strip() if done.returncode else ""
        except FileNotFoundError:
            why = "there is no unshare"
        if why:
            print(f"disk: SKIPPED, no user namespace with mounts of its own: {why}")
            return
        self.run("limits.py", "disk", before=("unshare", "-rm"))

    def kill(self) -> None:
        self.run("signals.py", "kill", "--seed", self.seed, "--seconds", self.seconds)

    def interrupt(self) -> None:
        self.run("signals.py", "interrupt", "--seed", self.seed, "--seconds", self.seconds)

    def command(self) -> None:
        self.run("signals.py", "command", "--seed", self.seed, "--seconds", self.seconds)


PARTS = ("memory", "first", "files", "limits", "disk", "kill", "interrupt", "command")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all if none is named"
    )
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the random moments and limits")
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    print(f"seed {options.seed}")
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(Path(folder), options.seed, options.seconds)
        for part in options.parts or PARTS:
            getattr(runner, part)()
    print(f"{len(runner.wrong)} failures", *runner.wrong, sep="\n")
    sys.exit(bool(runner.wrong))


if __name__ == "__main__":
    main()
