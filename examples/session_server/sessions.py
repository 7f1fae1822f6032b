"""The part of server.py that all kinds of connections share: sessions by name, steps of the pool, counts."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from lnrnn.sessions import SessionError, StoreError


class Session(Protocol):
    """A connection: its name, once it has joined, and how text is sent."""

    id: str

    def text(self, text: str) -> None: ...
    def close(self) -> None: ...


class Server:
    """Steps the pool with the frames that have come, once for all sessions, and counts.

    pool: a lnrnn.SessionPool, or an object with the same methods. late: seconds from a frame to its answer.
    """

    def __init__(self, pool: Any, inputs: int, backlog: int = 50, late: float = 0.01) -> None:
        self.pool, self.inputs, self.backlog, self.late = pool, inputs, backlog, late
        self.size = 4 * inputs
        self.open: dict[str, Session] = {}
        self.unparked: set[str] = set()  # without a connection, but live, because the store failed
        self.counts = {"frames": 0, "batches": 0, "refused": 0, "late": 0, "model_seconds": 0.0}
        self.counts |= {"stored": 0, "store_errors": 0, "behind": 0}

    def join(self, session: Session, name: str) -> bool:
        """Opens the session of a name. Returns whether that was possible."""
        try:
            if not name or name in self.open:
                raise ValueError(f"the name of a session must be new and not empty, got {name!r}")
            if name in self.unparked:
                self.pool.park(name)
                self.unparked.remove(name)
            joined = self.pool.join(name)
        except ValueError as error:  # also of the pool: too many sessions, a store that fails
            self.refuse(session, error)
            session.close()
            return False
        session.id = name
        self.open[name] = session
        session.text("new" if joined.how == "new" else f"{joined.how} {joined.step}")
        return True

    def park(self, session: Session) -> None:
        """Parks the session of a connection that has ended."""
        if self.open.pop(session.id, None):
            try:
                self.pool.park(session.id)
            except SessionError as error:
                self.counts["store_errors"] += 1
                self.unparked |= {session.id} if session.id in self.pool else set()
                print(f"{session.id} is not parked: {error}", flush=True)

    def park_again(self) -> None:
        """Parks sessions for which the store failed, until it fails again."""
        for name in list(self.unparked):
            with suppress(StoreError):
                if name in self.pool:
                    self.pool.park(name)
                self.unparked.remove(name)
                continue
            break

    def refuse(self, session: Session, reason: Any) -> None:
        self.counts["refused"] += 1
        session.text(str(reason))

    def step(self, names: list[str], x: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
        """Steps sessions, x (R, inputs). Returns the indices of those that did, None for all, and their y.

        Sessions that the pool refuses, such as for NaN, get the error. The others are stepped without them.
        """
        self.counts["frames"] += len(names)
        self.counts["batches"] += 1
        begin = time.thread_time()
        good = None
        while True:
            try:
                y = self.pool.step(names, x)
                break
            except SessionError as error:
                wrong = set(error.ids)
                kept = np.array([name not in wrong for name in names])
                if kept.all():
                    raise
                for name in error.ids:
                    self.refuse(self.open[str(name)], error)
                good = np.flatnonzero(kept) if good is None else good[kept]
                names, x = [name for name in names if name not in wrong], x[kept]
        self.counts["model_seconds"] += time.thread_time() - begin
        return good, y

    def answered(self, frames: int, since: float) -> None:
        """Counts the frames of a batch that are late. since: when the first of them came."""
        if time.perf_counter() - since > self.late:
            self.counts["late"] += frames
