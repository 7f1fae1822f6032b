"""Times contenders round by round, so that drift of the machine's speed does not change ratios within a
round.

A contender has `turn(n)`, which does its work n times and returns the seconds. `Call` is the contender of a
Python function, and the loops of machine.py are contenders too. In each round every contender has one turn,
with an n calibrated for it. The order changes from round to round, so that no contender always follows the
same other one.
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
    """The number and duration of rounds, and when to stop or repeat a race."""

    rounds: int = 21
    turn: float = 0.008  # seconds of a contender's turn
    least: int = 5  # the least number of rounds, even if they take more than `limit`
    limit: float = 8.0  # seconds, after which no round starts
    again: int = 2  # how often a disturbed race is repeated
    patience: float = 3.0  # seconds to wait for idle CPUs before a repetition


QUICK = Pace(rounds=3, turn=0.002, least=1, limit=2.0, again=0)

LONG_CALL = 0.1  # seconds; a longer call needs no warm-up
TOO_SLOW = 2.0  # a peer with long calls does not race if its time exceeds this multiple of the best peer's


class Call:
    """A Python function as a contender.

    enter, leave: functions called before and after a turn, not timed. answer: a function that returns the
    result to check; default: the call itself. tolerance, reference: override the `Case`'s."""

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
    """Runs the body between the contender's `enter` and `leave`."""
    enter, leave = getattr(contender, "enter", None), getattr(contender, "leave", None)
    if enter:
        enter()
    try:
        yield
    finally:
        if leave:
            leave()


@contextmanager
def no_garbage_collection():
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _at_work() -> bool:
    """Returns whether another thread of this process runs or waits for a core."""
    for task in Path("/proc/self/task").iterdir():
        try:
            state = (task / "stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:  # the thread has ended
            continue
        if state == b"R" and int(task.name) != threading.get_native_id():
            return True
    return False


def quiet(patience: float = 0.3):
    """Waits until no other thread of this process works, at most `patience` seconds.

    Thread pools spin after their work: GCC's and XLA's for some milliseconds, ONNX Runtime's for fifty. The
    next contender would share its cores with them."""
    end = time.perf_counter() + patience
    while _at_work() and time.perf_counter() < end:
        time.sleep(0.001)


def calibrate(contender, seconds: float) -> tuple[int, float]:
    """Returns the n for which a turn takes about `seconds`, at least 1, and the seconds of one call."""
    with on_track(contender):
        contender.turn(1)
        n = 1
        while (took := contender.turn(n)) < seconds / 2:
            n = max(2 * n, int(n * seconds / max(took, 1e-7)) // 2)
        return max(1, round(n * seconds / took)), took / n


def _too_slow(contenders: dict, took: dict[str, float], peers, settle: bool) -> dict[str, str]:
    """Returns {peer that is too slow to race: reason}. took: {contender: seconds of a call}. Times a slow
    peer twice more, because another process or a compiler may have slowed its call."""
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
    """Returns {contender: seconds of a call by round}, and {peer that is too slow to race: reason}.

    settle: before a turn, wait until the last contender's thread pool rests (`quiet`). Before a turn of short
    calls, a tenth of the calls run untimed, to wake the contender's threads and fill the caches."""
    order = random.Random(0)
    with no_garbage_collection():
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
