"""Contenders timed in turn, round by round, so that a ratio holds while the machine's speed drifts.

A contender has `turn(n)`: do the work n times, give the seconds it took. `Call` makes one of a Python
callable; the loops of machine.py are contenders as they are. Each round gives every contender one turn of its
own calibrated n, in an order that changes from round to round, so that nobody always runs in the wake of the
same neighbour.
"""

from __future__ import annotations

import gc
import random
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat


@dataclass(frozen=True)
class Pace:
    """How long a race takes: rounds, seconds of one turn, the seconds after which no further round starts
    once there are `least` of them; how often a disturbed race is run again, and how many seconds it waits for
    calm before that."""

    rounds: int = 21
    turn: float = 0.008
    least: int = 7
    limit: float = 20.0
    again: int = 2
    patience: float = 3.0


QUICK = Pace(rounds=3, turn=0.002, least=1, limit=2.0, again=0)

LONG_CALL = 0.1  # seconds; a call this long needs no call before it to warm up for


class Call:
    """A Python callable as a contender. `enter` and `leave` surround its turns, untimed. `answer` gives the
    result to be checked where the call itself does not return it; `tolerance` is this contender's own (see
    case.py)."""

    def __init__(self, call, *, answer=None, tolerance=None, enter=None, leave=None):
        self.call, self.answer, self.tolerance = call, answer or call, tolerance
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


def calibrate(contender, seconds: float) -> int:
    """The n whose turn takes about `seconds`; at least 1."""
    with on_track(contender):
        contender.turn(1)
        n = 1
        while (took := contender.turn(n)) < seconds / 2:
            n = max(2 * n, int(n * seconds / max(took, 1e-7)) // 2)
        return max(1, round(n * seconds / took))


def race(contenders: dict, pace: Pace, settle: float = 0.0) -> dict[str, list[float]]:
    """{name: seconds of one call, one entry a round}; entry k of all names is of the same round.

    settle: seconds of sleep before a turn. Thread pools spin for some milliseconds after their work, in the
    hope of more; without the pause the next contender would share its cores with them. An untimed turn of a
    tenth follows, to wake its own threads and to fill the caches with its own data.
    """
    order = random.Random(0)
    samples = {name: [] for name in contenders}
    with _no_garbage_collection():
        calls = {name: calibrate(contender, pace.turn) for name, contender in contenders.items()}
        short = {name: True for name in contenders}
        start = time.perf_counter()
        for k in range(pace.rounds):
            if k >= pace.least and time.perf_counter() - start > pace.limit:
                break
            for name in order.sample(list(contenders), len(contenders)):
                contender, n = contenders[name], calls[name]
                with on_track(contender):
                    if settle:
                        time.sleep(settle)
                    if short[name]:
                        contender.turn(max(1, n // 10))
                    took = contender.turn(n) / n
                short[name] = took < LONG_CALL
                samples[name].append(took)
    return samples
