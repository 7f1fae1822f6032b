"""The part of server.py that all kinds of connections share: sessions by name, steps of the pool, counts."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol

import numpy as np
from store import BackgroundStore, NotFetched

from lnrnn.sessions import SessionError, StoreError


class Session(Protocol):
    """A connection: its name, once it has joined, and how text is sent. `accept` lets it send frames."""

    id: str
    ended: bool

    def accept(self) -> None: ...
    def text(self, text: str) -> None: ...
    def close(self) -> None: ...


class Server:
    """Steps the pool with the frames that have come, once for all sessions, and counts.

    pool: a lnrnn.SessionPool, or an object with the same methods. late: seconds from a frame to its answer.
    store: the store of the pool, or None.
    """

    def __init__(
        self, pool: Any, store: BackgroundStore | None, inputs: int, backlog: int = 50, late: float = 0.01
    ) -> None:
        self.pool, self.store = pool, store
        self.inputs, self.backlog, self.late = inputs, backlog, late
        self.size = 4 * inputs
        self.open: dict[str, Session] = {}
        self.joining: dict[str, asyncio.Task[None]] = {}  # while the store is asked
        self.counts = {"frames": 0, "bad_frames": 0, "steps": 0, "step_seconds": 0.0, "batches": 0}
        self.counts |= {"late_frames": 0, "refused": 0, "too_fast": 0, "deaf": 0, "exceptions": 0}

    def join(self, session: Session, name: str) -> None:
        """Opens the session of a name, now or when its value has come from the store."""
        try:
            if not name or name in self.open or name in self.joining:
                raise ValueError(f"the name of a session must be new and not empty, got {name!r}")
            joined = self.pool.join(name)
        except ValueError as error:  # also of the pool: too many sessions, a store that fails
            if isinstance(error.__cause__, NotFetched):
                fetch = self._join_later(session, name, error.__cause__.key)
                self.joining[name] = asyncio.get_running_loop().create_task(fetch)
                return
            self.refuse(session, error)
            session.close()
            return
        session.id = name
        self.open[name] = session
        session.text("new" if joined.how == "new" else f"{joined.how} {joined.step}")
        session.accept()

    async def _join_later(self, session: Session, name: str, key: str) -> None:
        assert self.store is not None
        await self.store.fetch(key)
        del self.joining[name]
        if not session.ended:
            self.join(session, name)
        self.store.fetched.pop(key, None)  # it may change before the next join

    def park(self, session: Session) -> None:
        """Parks the session of a connection that has ended."""
        if self.open.pop(session.id, None):
            try:
                self.pool.park(session.id)
            except StoreError as error:  # another server has it
                print(f"{session.id!r} is not parked: {error}", flush=True)

    def leave_taken(self) -> None:
        """Ends the sessions that other servers have joined."""
        assert self.store is not None
        for key in list(self.store.taken):
            session = self.open.get(key.removeprefix("lnrnn:s:"))  # as the pool's keys of str begin
            if session is not None:
                self.refuse(session, "the session has joined another server")
                session.close()
            self.store.taken.discard(key)

    def totals(self) -> dict[str, float]:
        """Returns all counts since the start."""
        return self.counts | (
            self.store.counts if self.store is not None else {"stored": 0, "store_errors": 0}
        )

    def failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Counts and prints an exception that nothing has caught."""
        self.counts["exceptions"] += 1
        loop.default_exception_handler(context)

    def refuse(self, session: Session, reason: Any) -> None:
        self.counts["refused"] += 1
        session.text(str(reason))

    def step(self, names: list[str], x: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
        """Steps sessions, x (R, inputs). Returns the indices of those that did, None for all, and their y.

        Sessions that the pool refuses, such as for NaN, get the error. The others are stepped without them.
        """
        counts = self.counts
        counts["frames"] += len(names)
        counts["batches"] += 1
        begin = time.perf_counter()
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
                counts["bad_frames"] += len(wrong)
                for name in wrong & self.open.keys():
                    self.refuse(self.open[name], error)
                good = np.flatnonzero(kept) if good is None else good[kept]
                names, x = [name for name in names if name not in wrong], x[kept]
        counts["step_seconds"] += time.perf_counter() - begin
        counts["steps"] += len(names)
        return good, y

    def answered(self, frames: int, since: float) -> None:
        """Counts the frames of a batch that are late. since: when the first of them came."""
        if time.perf_counter() - since > self.late:
            self.counts["late_frames"] += frames
