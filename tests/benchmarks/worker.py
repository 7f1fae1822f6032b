"""Runs races in a process for each number of threads.

The process is pinned to this number of CPUs before it loads any library. Some libraries choose the size of
their thread pools when they are loaded.

    python worker.py PIPE THREADS CPU,CPU...        the class Worker starts this command
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import traceback
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path


class Worker:
    """A process that runs races. `run` returns the result of `_race` for a case."""

    def __init__(self, threads: int, cpus: list[int]):
        ours, theirs = Pipe()
        path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
        command = [sys.executable, __file__, str(theirs.fileno()), str(threads), ",".join(map(str, cpus))]
        self.process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
        theirs.close()
        self.pipe = ours
        self.about = self._receive(120)  # a dict of versions and limits
        if "failed" in self.about:
            self.stop()
            raise RuntimeError(f"no benchmark can run:\n{self.about['failed']}")

    def run(self, case: str, arguments: dict, pace, patience: float = 900.0) -> dict:
        """Races a case. case: "module.function" of this folder."""
        self.pipe.send((case, arguments, pace))
        return self._receive(patience)

    def _receive(self, patience: float):
        if not self.pipe.poll(patience):
            self.stop()
            raise RuntimeError(f"the worker did not answer for {patience:.0f} s")
        try:
            return self.pipe.recv()
        except EOFError:
            raise RuntimeError(f"the worker ended with exit status {self.process.wait()}") from None

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def stop(self):
        self.pipe.close()  # ends the worker
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _about(threads: int) -> dict:
    from importlib.metadata import PackageNotFoundError, version

    import lnrnn
    import machine

    lnrnn.set_num_threads(threads)
    versions = {}
    for name in ("numpy", "torch", "onnxruntime", "jax", "openvino"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return {
        "versions": {"lnrnn": lnrnn.__version__, **versions},
        "isa": lnrnn.cpu_info()["isa"],
        "limits": machine.limits(threads),
    }


def _race(case: str, arguments: dict, pace, threads: int, cpus: set[int]) -> dict:
    """Checks and races one case. Returns its entry in a record.

    times: {contender: seconds of a step by round}. limit: seconds of the machine's limit by round, or None.
    others: the share of the CPUs' time that other processes used. A disturbed race is repeated, and the least
    disturbed race counts.
    """
    import numpy as np

    from neighbours import BUSY, Watch, wait_for_calm
    from race import race

    module, function = case.rsplit(".", 1)
    prepared = getattr(importlib.import_module(module), function)(threads=threads, **arguments)
    if isinstance(prepared, dict):  # the function has measured without a race
        return prepared
    contenders = prepared.assemble()
    os.sched_setaffinity(0, cpus)  # building a peer may have changed the CPUs of this thread
    loops = prepared.limit.loops if prepared.limit else {}
    peers = contenders.keys() - prepared.ours.keys() - set(prepared.other_work)
    samples, others = None, None
    for again in range(1 + pace.again):
        if again:
            wait_for_calm(cpus, pace.patience)
        watch = Watch(cpus)
        took, slow = race({**contenders, **loops}, pace, threads > 1, peers)
        share = watch.others()
        for name, why in slow.items():
            prepared.left_out[name] = why
            del contenders[name]
            peers = peers - {name}
            if samples:
                samples.pop(name, None)
        if samples is None or share < others:
            samples, others = took, share
        if share is None or share < BUSY:
            break
    if os.sched_getaffinity(0) != cpus:
        os.sched_setaffinity(0, cpus)
        raise AssertionError("a contender changed the affinity of the thread that calls all contenders")
    limit = None
    if prepared.limit:
        limit = prepared.limit.seconds({name: np.array(samples.pop(name)) for name in loops})
        limit = (limit / prepared.steps).tolist()
    return {
        "times": {name: (np.array(took) / prepared.steps).tolist() for name, took in samples.items()},
        "ours": list(prepared.ours),
        "left_out": prepared.left_out,
        "steps": prepared.steps,
        "others": others,
        "limit": limit,
        "limit_is": prepared.limit.name if prepared.limit else "",
        "bounds": prepared.bounds,
        "grace": prepared.grace,
        "also_judged": list(prepared.also_judged),
        "other_work": list(prepared.other_work),
        "errors": prepared.errors,
    }


def _serve(pipe: Connection, threads: int, cpus: set[int]):
    try:
        pipe.send(_about(threads))
    except Exception:
        pipe.send({"failed": traceback.format_exc()})
        return
    from case import Unavailable

    while True:
        try:
            case, arguments, pace = pipe.recv()
        except EOFError:
            return
        try:
            outcome = _race(case, arguments, pace, threads, cpus)
        except Unavailable as reason:
            outcome = {"unavailable": str(reason)}
        except Exception:
            outcome = {"failed": traceback.format_exc()}
        pipe.send(outcome)


def _main():
    handle, threads, cpus = int(sys.argv[1]), int(sys.argv[2]), {int(c) for c in sys.argv[3].split(",")}
    os.sched_setaffinity(0, cpus)  # must come before any library is loaded
    _serve(Connection(handle), threads, cpus)


if __name__ == "__main__":
    _main()
