"""Small independent jobs side by side: each on a thread of its own, as many as the caller allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import TypeVar

import lnrnn

Item = TypeVar("Item")
Value = TypeVar("Value")

# How many threads there were before the outermost `one_thread`.
_allowed: ContextVar[int] = ContextVar("_allowed", default=1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs the body on one thread: so small a batch gains nothing from two, and waits on a busy machine."""
    threads = lnrnn.get_num_threads()
    token = _allowed.set(max(threads, _allowed.get()))
    lnrnn.set_num_threads(1)
    try:
        yield
    finally:
        lnrnn.set_num_threads(threads)
        _allowed.reset(token)


def side_by_side(function: Callable[[Item], Value], items: Iterable[Item]) -> list[Value]:
    """function(item) for every item, in the items' order, several at a time within `one_thread`: as many as
    lnrnn's threads were before it.

    The calls must not share anything that one of them changes; then the values are the same for any number of
    threads. They gain where kernels and NumPy take most of the time, for those let other threads of Python
    run. Where a call raises, those not yet begun are dropped and the exception is raised.
    """
    with ThreadPoolExecutor(_allowed.get()) as pool:
        futures = [pool.submit(function, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class Tally:
    """Progress that several threads report: each call says that one more of ``total`` parts is done.

    progress: is called with the share that is done, 0 to 1, and a few words; by one thread at a time.
    """

    def __init__(self, progress: Callable[[float, str], None], total: int) -> None:
        self._progress, self._total = progress, total
        self._done, self._lock = 0, Lock()

    def __call__(self, text: str) -> None:
        with self._lock:
            self._done += 1
            self._progress(self._done / self._total, text)
