"""Contenders timed in turn, round by round, so that a ratio holds while the machine's speed drifts.

A contender has `turn(n)`: do the work n times, give the seconds it took. `Call` makes one of a Python
callable; the loops of machine.py are contenders as they are. Each round gives every contender one turn of its
own calibrated n, in an order that changes from round to round, so that nobody always runs in the wake of the
same neighbour.
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
    """How long a race takes: rounds, seconds of one turn, the seconds after which no further round starts
    once there are `least` of them; how often a disturbed race is run again, and how many seconds it waits for
    calm before that."""

    rounds: int = 21
    turn: float = 0.008
    least: int = 5
    limit: float = 8.0
    again: int = 2
    patience: float = 3.0


QUICK = Pace(rounds=3, turn=0.002, least=1, limit=2.0, again=0)

LONG_CALL = 0.1  # seconds; a call this long needs no call before it to warm up for
HOPELESS = 2.0  # times the best peer's time: a peer whose calls are long and this slow does not race


class Call:
    """A Python callable as a contender. `enter` and `leave` surround its turns, untimed. `answer` gives the
    result to be checked where the call itself does not return it; `tolerance` is this contender's own (see
    case.py), and so is `reference`, what it must give where it does other work."""

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
    """The surroundings that a contender asked for."""
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
    """Does any other thread of this process run, or wait for a core to run on?"""
    for task in Path("/proc/self/task").iterdir():
        try:
            state = (task / "stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:  # it has ended
            continue
        if state == b"R" and int(task.name) != threading.get_native_id():
            return True
    return False


def quiet(patience: float = 0.3):
    """Returns when no other thread of this process is at work, or after `patience` seconds. Thread pools spin
    after their work, in the hope of more: GCC's and XLA's for a few milliseconds, ONNX Runtime's for fifty.
    The next contender would share its cores with them. (The process's time does not tell: the kernel adds up
    that of running threads only now and then.)"""
    end = time.perf_counter() + patience
    while _at_work() and time.perf_counter() < end:
        time.sleep(0.001)


def calibrate(contender, seconds: float) -> tuple[int, float]:
    """The n whose turn takes about `seconds`, at least 1, and the seconds of one call."""
    with on_track(contender):
        contender.turn(1)
        n = 1
        while (took := contender.turn(n)) < seconds / 2:
            n = max(2 * n, int(n * seconds / max(took, 1e-7)) // 2)
        return max(1, round(n * seconds / took)), took / n


def _too_slow(contenders: dict, took: dict[str, float], peers, settle: bool) -> dict[str, str]:
    """The peers that shall not race, with the reason; took: {contender: seconds of a call}. Who looks slow is
    timed twice more, for a neighbour or a late compiler may have been in the way."""
    best, slow = min((took[name] for name in peers), default=0.0), {}
    for name in peers:
        least = took[name]
        for _ in range(2):
            if least > max(LONG_CALL, HOPELESS * best):
                if settle:
                    quiet()
                with on_track(contenders[name]):
                    least = min(least, contenders[name].turn(1))
        if least > max(LONG_CALL, HOPELESS * best):
            slow[name] = f"does not race: {least:.2f} s a call, {least / best:.1f} times the best peer's"
    return slow


def race(contenders: dict, pace: Pace, settle: bool = False, peers=()):
    """{name: seconds of one call, one entry a round}; entry k of all names is of the same round. And {name:
    reason} of those of `peers` that are so slow that they would only make the race longer.

    settle: wait for the pools of the last contender before a turn (`quiet`). Where calls are short, an
    untimed turn of a tenth comes first, to wake its own threads and to fill the caches with its own data.
    """
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
