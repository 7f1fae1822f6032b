"""Row groups computed by processes of this one.

Each has pipes of its own and shares no lock and no queue, so that one that is killed, at whatever moment,
hinders none of the others. A ProcessPoolExecutor's share both: what it does when one is killed did not always
end.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue

from .job import TRIES, Compute, Job, Outcome, Outcomes, lost


def on_processes(compute: Compute, job: Job, indices: Iterable[int], workers: int) -> Outcomes:
    """compute(job, index) for every index, on so many processes. A row group whose process dies is computed
    again by a new one."""
    left, died = deque(indices), Counter[int]()
    working: dict[Connection, _Worker] = {}
    try:
        while left or any(worker.given for worker in working.values()):
            for _ in range(min(workers - len(working), len(left))):
                worker = _Worker(compute, job)
                working[worker.outcomes] = worker
            for worker in working.values():
                # One more is at hand when the first is done, but of the last ones each gets one.
                while left and len(worker.given) < (2 if len(left) > workers else 1):
                    worker.give(left.popleft())
            for connection in wait(list(working)):
                worker = working[connection]  # type: ignore[index]
                try:
                    outcome = worker.take()
                except EOFError:
                    del working[worker.outcomes]
                    worker.end()
                    left.extendleft(worker.given[::-1])
                    at_work = worker.given[:1]
                    died.update(at_work)
                    if at_work and died[at_work[0]] == TRIES:
                        raise lost(at_work[0]) from None
                else:
                    yield outcome
    finally:
        for worker in working.values():
            worker.end()


class _Worker:
    """A process. outcomes: what comes from it. given: the row groups it has, the one it is at first."""

    def __init__(self, compute: Compute, job: Job) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would take threads' locks along
        numbers, self.numbers = context.Pipe(duplex=False)
        self.outcomes, outcomes = context.Pipe(duplex=False)
        self.given: list[int] = []
        self.process = context.Process(target=_work, args=(compute, job, numbers, outcomes), daemon=True)
        with numbers, outcomes:  # its ends: only it has them open afterwards
            self.process.start()

    def give(self, index: int) -> None:
        self.given.append(index)
        with suppress(OSError):  # it is dead, which `take` tells
            self.numbers.send(index)

    def take(self) -> Outcome:
        """The next outcome. Raises EOFError if it is dead, and what compute raised."""
        try:
            received: tuple[Outcome | None, Exception | None, str] = self.outcomes.recv()
        except OSError:  # pragma: no cover - it died while it sent
            raise EOFError from None
        outcome, error, where = received
        if error is not None:
            raise error from RuntimeError(f"in a worker:\n{where}")
        assert outcome is not None
        self.given.pop(0)
        return outcome

    def end(self) -> None:
        """Ends it, whatever it does. What it was writing is in a folder that the journal removes."""
        self.process.kill()
        self.process.join()
        self.numbers.close()
        self.outcomes.close()


def _work(compute: Compute, job: Job, numbers: Connection, outcomes: Connection) -> None:
    """A process: computes row group after row group, in the order in which their numbers come, until the
    other end of `numbers` is closed, which it is when the first process ends, however."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the first process ends the others
    waiting = SimpleQueue[int]()

    def receive() -> None:
        with suppress(EOFError, OSError):
            while True:
                waiting.put(numbers.recv())
        os._exit(1)

    threading.Thread(target=receive, daemon=True).start()
    while True:
        try:
            outcome = compute(job, waiting.get())
        except Exception as error:  # pragma: no cover - in a process that is killed, and writes no counts
            outcomes.send((None, error, traceback.format_exc()))
        else:
            outcomes.send((outcome, None, ""))
