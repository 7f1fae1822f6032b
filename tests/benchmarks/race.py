"""Times contenders in turn, round by round. Ratios within a round hold while the machine's speed drifts.

A contender has `turn(n)`, which does its work n times and returns the seconds. `Call` is the contender of a
Python callable; the loops of machine.py are contenders too. In each round every contender has one turn of its
calibrated n. The order changes from round to round, so that no contender always follows the same other.
"""

from __future__ import annotations

import gc
import random
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path


@dataclass(frozen=True)
class Pace:
    """How long a race takes."""

    rounds: int = 21
    turn: float = 0.008  # seconds
    least: int = 5  # rounds, also if they take more than `limit`
    limit: float = 8.0  # seconds, after which no round starts
    again: int = 2  # how often a disturbed race is repeated
    patience: float = 3.0  # seconds to wait for idle CPUs before that


QUICK = Pace(rounds=3, turn=0.002, least=1, limit=2.0, again=0)

LONG_CALL = 0.1  # seconds; such a call needs no warm-up
TOO_SLOW = 2.0  # a peer with long calls does not race if it takes so many times as long as the best peer


class Call:
    """A Python callable as a contender.

    enter, leave: called before and after its turns, not timed. answer: returns the result to check, if the
    call does not. tolerance, reference: this contender's, in place of those of its `Case`."""

    def __init__(self, call, *, answer=None, tolerance=None, reference=None, enter=None, leave=None):
        self.call, self.answer, self.tolerance, self.reference = call, answer or call, tolerance, reference
        self.enter, self.leave = enter, leave

    def turn(self, n: int) -> float:
        call = self.call
        start = time.perf_counter()
        for _ in repeat(None, n):
            call()
        return time.perf_counter() - start


@contextmanager
def on_track(contender):
    """Calls the contender's `enter` and `leave`."""
    enter, leave = getattr(contender, "enter", None), getattr(contender, "leave", None)
    if enter:
        enter()
    try:
        yield
    finally:
        if leave:
            leave()


@contextmanager
def _no_garbage_collection():
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _at_work() -> bool:
    """Whether another thread of this process runs, or waits for a core."""
    for task in Path("/proc/self/task").iterdir():
        try:
            state = (task / "stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:  # it has ended
            continue
        if state == b"R" and int(task.name) != threading.get_native_id():
            return True
    return False


def quiet(patience: float = 0.3):
    """Returns when no other thread of this process is at work, or after `patience` seconds.

    Thread pools spin after their work: GCC's and XLA's for some milliseconds, ONNX Runtime's for fifty. The
    next contender would share its cores with them. (The process's CPU time does not show it: the kernel adds
    the time of running threads only now and then.)"""
    end = time.perf_counter() + patience
    while _at_work() and time.perf_counter() < end:
        time.sleep(0.001)


def calibrate(contender, seconds: float) -> tuple[int, float]:
    """-> the n, at least 1, whose turn takes about `seconds`, and the seconds of one call."""
    with on_track(contender):
        contender.turn(1)
        n = 1
        while (took := contender.turn(n)) < seconds / 2:
            n = max(2 * n, int(n * seconds / max(took, 1e-7)) // 2)
        return max(1, round(n * seconds / took)), took / n


def _too_slow(contenders: dict, took: dict[str, float], peers, settle: bool) -> dict[str, str]:
    """{peer that is too slow to race: reason}. took: {contender: seconds of a call}. A slow peer is timed
    twice more, since another process or a compiler may have slowed its call."""
    best, slow = min((took[name] for name in peers), default=0.0), {}
    for name in peers:
        least = took[name]
        for _ in range(2):
            if least > max(LONG_CALL, TOO_SLOW * best):
                if settle:
                    quiet()
                with on_track(contenders[name]):
                    least = min(least, contenders[name].turn(1))
        if least > max(LONG_CALL, TOO_SLOW * best):
            slow[name] = f"takes {least:.2f} s a call, {least / best:.1f} times the best peer's"
    return slow


def race(contenders: dict, pace: Pace, settle: bool = False, peers=()):
    """-> {contender: seconds of a call by round}, and {peer that is too slow to race: reason}.

    settle: wait for the thread pool of the last contender before a turn (`quiet`). Before a turn of short
    calls, a tenth of it runs untimed, which wakes the contender's threads and fills the caches."""
    order = random.Random(0)
    with _no_garbage_collection():
        calls = {}
        for name, contender in contenders.items():
            if settle:
                quiet()
            calls[name] = calibrate(contender, pace.turn)
        slow = _too_slow(contenders, {name: took for name, (_, took) in calls.items()}, peers, settle)
        names = [name for name in contenders if name not in slow]
        samples = {name: [] for name in names}
        short = {name: calls[name][1] < LONG_CALL for name in names}
        start = time.perf_counter()
        for k in range(pace.rounds):
            if k >= pace.least and time.perf_counter() - start > pace.limit:
                break
            for name in order.sample(names, len(names)):
                contender, n = contenders[name], calls[name][0]
                with on_track(contender):
                    if settle:
                        quiet()
                    if short[name]:
                        contender.turn(max(1, n // 10))
                    took = contender.turn(n) / n
                short[name] = took < LONG_CALL
                samples[name].append(took)
    return samples, slow
