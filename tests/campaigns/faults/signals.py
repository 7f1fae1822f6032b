"""Sends SIGKILL and SIGINT at random moments to processes that write files, compute and train.

kill: the file must be the complete old or new one, and can be written again. interrupt: the call must raise
KeyboardInterrupt or give the right result. Its state must be the old or the new one, no other file may
remain, and the next call must be right.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections import Counter
from functools import partial
from pathlib import Path
from types import FrameType

import numpy as np
from limits import Writers, work_folder
from operations import Operation, bits, operations

import lnrnn
from networks import network, normal
from outcome import until

PART = ".lnrnn-"


def parts_left(folder: Path) -> list[Path]:
    return [p for p in folder.iterdir() if p.name.startswith(PART)]


def kill(options: argparse.Namespace) -> Counter[str]:
    """Kills children that write files, after a random time."""
    folder = work_folder(options)
    rng, writers, seen = np.random.default_rng(options.seed), Writers(folder), Counter()
    lnrnn.set_num_threads(1)  # a forked child has no other threads
    todo = writers.all()
    for _, write in todo:
        write()
    for _ in until(options.seconds):
        path, write = todo[rng.choice(3, p=[0.45, 0.45, 0.1])]
        writers.reset()
        delay = rng.uniform(0, 1.0 if path == writers.png else 0.02)
        child = os.fork()
        if not child:
            try:
                while True:
                    write()
                    writers.reset()
            finally:
                os._exit(1)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"the child ended: {status}"
        content = whole(writers, path)
        left = parts_left(folder)
        assert len(left) <= 1, left  # a killed process cannot remove its temporary file
        for part in left:
            part.unlink()
        seen[f"{path.name} {content}{', a part left' * len(left)}"] += 1
        write()
        assert writers.whole(path) == "new"
    return seen


def whole(writers: Writers, path: Path) -> str:
    """Returns the result of Writers.whole, but "old" for an incomplete figure, because Writers.reset may be
    killed too."""
    if path == writers.png and path.read_bytes() in (b"", b"old"):
        return "old"
    return writers.whole(path)


class Alarm:
    """Raises KeyboardInterrupt after some time, but only during `call`."""

    def __init__(self) -> None:
        self.armed = False
        signal.signal(signal.SIGALRM, self.ring)

    def ring(self, number: int, frame: FrameType | None) -> None:
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt

    def call(self, function, delay: float):
        """Calls function(). Returns its result, or the KeyboardInterrupt that occurred after ``delay``."""
        signal.setitimer(signal.ITIMER_REAL, delay)
        try:
            try:
                self.armed = True
                return function()
            finally:
                self.armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt as interrupt:
            return interrupt.with_traceback(None)


# Operations that are interrupted, in addition to a call of 20 ms.
INTERRUPTED = (
    "call LSTM split out", "new stream LSTM split out", "forward_train GRU batch",
    "backward LSTM layer", "calibrate GRU batch",
    "load_state_dict LSTM layer", "set GRU batch", "layer small", "save over a file", "load", "write_array",
    "state of a stream GRU batch",
)  # fmt: skip


def work(folder: Path) -> dict[str, Operation]:
    large, x = network(64, 200, cell="LSTM", norm="batch"), normal(np.random.default_rng(1), 400, 40, 64)
    reset = partial(large.load_state_dict, large.state_dict())
    every = {**dict(operations(folder, False)), **dict(operations(folder / "files", True))}
    long_call = Operation(lambda: large.forward_train(x)[:1], partial(bits, large), reset)
    return {name: every[name] for name in INTERRUPTED} | {"long call": long_call}


def interrupt(options: argparse.Namespace) -> Counter[str]:
    rng, alarm, seen = np.random.default_rng(options.seed), Alarm(), Counter()
    lnrnn.set_num_threads(1)
    known = {}
    for name, operation in work(work_folder(options)).items():
        call, state, reset = operation.call, operation.seen, operation.reset
        reset()
        old = state()
        call()
        reset()
        since = time.monotonic()
        want = bits(call())
        known[name] = (call, state, reset, old, want, state(), time.monotonic() - since)
    open_before = len(os.listdir("/proc/self/fd"))
    for _ in until(options.seconds):
        for name, (call, state, reset, old, want, new, took) in known.items():
            if name == "long call" and rng.random() > 0.1:
                continue
            reset()
            result = alarm.call(call, rng.uniform(1e-6, 1.1 * took))
            stopped = isinstance(result, KeyboardInterrupt)
            seen[f"{name} {'interrupted' if stopped else 'done'}"] += 1
            assert stopped or bits(result) == want, f"{name}: a wrong result"
            now = state()
            assert now in (old, new) if stopped else now == new, f"{name}: neither the old state nor the new"
            reset()
            assert bits(call()) == want and state() == new, f"{name}: the next call is wrong"
    left = len(os.listdir("/proc/self/fd")) - open_before
    seen["descriptors left open"] += left
    return seen
