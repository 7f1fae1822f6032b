"""SessionPool: sessions by id on the lanes of a network."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike

from .. import _core
from ..arguments import TAKES, Choice, Instance, Integer, Number, Optional, check
from ..counts import Counts, OnCall
from ..errors import bad_type, bad_value, described, message
from ..rnn.batches import FLOAT32
from ..rnn.network import Network
from ..state import Closed
from .blocks import Blocks
from .errors import SessionError, StoreError, TakenError
from .frames import Bad, frames, listed, not_live, refuse_last, refuse_twice
from .parked import Store, Values, pack, pop_old, unpack
from .results import Joined, Maintained, add_errors

Array = np.ndarray
_FUNCTION = Instance(Callable, "a function")
TAKES["SessionPool"] = {
    "rnn": Instance(Network, "a network"), "max_sessions": Optional(Integer(1, 2**31 - 1)),
    "bad": Choice(get_args(Bad)), "park_after": Optional(Number(0)), "drop_after": Optional(Number(0)),
    "checkpoint_every": Optional(Integer(1)), "prefix": Instance(str, "a str"),
    "on_call": Optional(_FUNCTION), "clock": _FUNCTION,
}  # fmt: skip
TAKES["SessionPool.maintain"] = {"limit": Integer(1)}
TABLES = 64  # number of dicts of ids: a growing dict copies its entries, which would take 40 ms at a million


class SessionPool(Closed):
    """The states of many sessions of a network, by id: live ones on lanes, parked ones in few bytes.

    A live session has a lane, and can make steps. A parked session has left its lane, and continues when it
    joins again. A new session starts at 0.

    Parameters
    ----------
    rnn : Network
        A network that streams. The pool keeps the parameters and statistics that it has now.
    max_sessions : int, optional
        The largest number of live sessions. `join` refuses more. Without it the pool grows, without a pause.
    bad : {"raise", "reset", "pass"}
        The policy for frames with NaN or infinity. "raise": the call is refused before any session moves.
        "reset": the session gets NaN as output, and starts anew. "pass": the frame is computed. The session
        may give NaN for ever, also after parking.
    park_after, drop_after : float, optional
        Seconds, at least 0, without a step after which `maintain` parks a session, or ends it.
    store : mapping, optional
        Where states of parked sessions and checkpoints are kept: a `RedisStore`, a dict, or a mapping of
        bytes by str with ``get(key)``, and perhaps ``update(mapping)``. Default: the pool keeps them.
    checkpoint_every : int, optional
        Number of steps after which `maintain` stores the state of a live session again. Needs a store.
    prefix : str
        The first letters of all keys in the store. Networks that share a store need different prefixes.
    on_call : callable, optional
        Gets the `Counts` of each call of `step`, for monitoring.
    clock : callable
        Returns the time in seconds.

    Raises
    ------
    ValueError, TypeError
        For a wrong argument, a bidirectional network, or overrun="batch", whose lanes depend on each other.

    Notes
    -----
    An id is any hashable object; with a store, a str, int or bytes. Results equal, bit for bit, those of a
    stream with this session alone. One thread at a time may use a pool: it has no lock. A step may use
    several threads.

    A value of the store has the bytes of a StreamState, with the session's id, without pickle. `leave`
    removes it; `drop_after` does not: let the store do that, as Redis can.

    Examples
    --------
    >>> import numpy as np
    >>> import lnrnn
    >>> pool = lnrnn.SessionPool(lnrnn.GRU(3, 4, seed=0))
    >>> pool.join("ann"), pool.join("bob").how
    (Joined(how='new', step=0), 'new')
    >>> pool.step(["bob", "ann"], np.ones((2, 3))).shape
    (2, 4)
    >>> pool.park("ann")
    >>> len(pool), pool.parked, "ann" in pool
    (1, 1, False)
    >>> pool.join("ann")
    Joined(how='restored', step=1)
    """

    __slots__ = (
        "_snapshot", "_blocks", "_tables", "_live", "_parked", "_values", "_bad", "_park_after",
        "_drop_after", "_every", "_clock", "_on_call",
    )  # fmt: skip

    def __init__(
        self,
        rnn: Network[Any],
        max_sessions: int | None = None,
        *,
        bad: Bad = "raise",
        park_after: float | None = None,
        drop_after: float | None = None,
        store: Store | None = None,
        checkpoint_every: int | None = None,
        prefix: str = "lnrnn:",
        on_call: OnCall | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        rnn, max_sessions, self._bad, self._park_after, *more = check("SessionPool", locals())
        self._drop_after, self._every, prefix, self._on_call, self._clock = more
        if store is None and checkpoint_every is not None:
            raise bad_value("checkpoint_every", "None without a store", checkpoint_every)
        self._snapshot = rnn.stream()._snapshot  # raises for networks that cannot stream
        if self._snapshot.overrun == "batch":
            wanted = "'raise', 'last' or 'mean'"
            raise bad_value("rnn.overrun", wanted, "batch", "its lanes are not independent")
        self._values = None if store is None else Values(store, prefix, self._snapshot)
        self._blocks = Blocks(self._snapshot, max_sessions)
        self._tables: list[dict[Hashable, int]] = [{} for _ in range(TABLES)]
        self._parked: list[dict[Hashable, bytes]] = [{} for _ in range(TABLES)]
        self._live = 0

    def step(self, ids: Iterable[Hashable], x: ArrayLike, out: Any = None) -> Array:
        """Compute one time step of some live sessions.

        Parameters
        ----------
        ids : sequence of hashable, of length R
            Different ids. A list or tuple is fastest.
        x : array_like of shape (R, D)
            Their frames; float32 in C order is fastest.
        out : array of float32 of shape (R, P), optional
            Where to write y.

        Returns
        -------
        y : array of float32 of shape (R, P)
            Outputs; `out` if given.

        Raises
        ------
        SessionError
            For ids that are not live, occur twice or have no statistics for the step, and for frames that
            `bad` refuses. Its `ids` has them.
        ValueError, TypeError
            For a wrong `x` or `out`. After any of these errors no session has moved.
        """
        if type(ids) is not list and type(ids) is not tuple:
            ids = listed(ids)
        if self._on_call is None:
            return self._step(ids, x, out)[0]
        begin, bad, steps = time.perf_counter(), 0, 0
        try:
            y, bad = self._step(ids, x, out)
            steps = len(ids) - bad
        except SessionError as error:
            bad = len(error.ids)
            raise
        finally:
            self._on_call(Counts(len(ids), bad, steps, time.perf_counter() - begin))
        return y

    def _step(self, ids: Any, x: Any, out: Any) -> tuple[Array, int]:
        """Computes one step of the sessions. Returns (y, number of sessions that were reset)."""
        rows = _core.lanes_of(self._tables, ids)
        if rows is None:
            raise not_live(ids, self)
        bad = None
        width = self._snapshot.architecture.input_size
        if not _core.all_finite(x, len(ids), width):
            x, bad = frames(ids, x, width, self._bad)
        now = None if self._park_after is None and self._drop_after is None else self._clock()
        y = self._blocks.step(rows, x, out, now)
        if y is None:
            y = self._checked(ids, rows, x, out, now)
        if bad is None:
            return y, 0
        y[bad] = np.nan
        for k in bad.tolist():
            self._blocks.put(int(rows[k]), ids[k], self._zeros(), 0, self._clock())
        return y, len(bad)

    def _checked(self, ids: Any, rows: Array, x: Any, out: Any, now: float | None) -> Array:
        """Computes a step whose arguments Blocks.step does not accept, or raises the error."""
        refuse_twice(ids, rows)
        wide = len(rows), self._snapshot.architecture.h_width
        (result,) = check("Stream.__call__", {"out": out}, {"y": wide, "dtype of y": FLOAT32})
        refuse_last(ids, self._blocks.steps(rows), self._snapshot)
        y = self._blocks.step(rows, x, None, now)
        if y is None:  # pragma: no cover - another thread uses the lanes at this moment
            raise RuntimeError("the pool was changed by another thread")
        if result is not None:
            result[...] = y
            y = out
        return y

    def _zeros(self) -> list[Array | None]:
        return [None] * len(self._blocks.blocks[0].lanes.states)

    def _tables_of(self, id: Hashable) -> tuple[dict[Hashable, int], dict[Hashable, bytes]]:
        """Returns (dict of live sessions, dict of parked sessions) for an id, from TABLES dicts of each."""
        try:
            k = hash(id) & (TABLES - 1)
        except TypeError:
            raise bad_type("id", "hashable", id) from None
        return self._tables[k], self._parked[k]

    def join(self, id: Hashable) -> Joined:
        """Make a session live. A parked session continues.

        Parameters
        ----------
        id : hashable
            The name of the session.

        Returns
        -------
        Joined
            ``(how, step)``. how is "new"; "restored", if the session was parked; or "checkpoint", if its
            process ended and it continues from the checkpoint at this step.

        Raises
        ------
        SessionError
            If the session is live, or `max_sessions` are live.
        StoreError
            If the store fails, or its value is damaged, or of another network or session. It is unchanged.
        """
        live, parked = self._tables_of(id)
        if id in live:
            raise SessionError(message("id", "of a session that is not live", described(id)), [id])
        most = self._blocks.most
        if most is not None and self._live >= most:
            text = message("the number of sessions", f"at most max_sessions {most}", f"{described(id)} too")
            raise SessionError(text, [id])
        joined = Joined("new", 0)
        states = self._zeros()
        lane = self._blocks.take()
        try:
            if id in parked:
                states[:], step = unpack(parked[id], self._blocks.blocks[0].lanes.states)
                joined = Joined("restored", step)
            elif self._values is not None and (value := self._values.take(id)) is not None:
                states[:], step, session = value
                joined = Joined("restored" if session == "parked" else "checkpoint", step)
            self._blocks.put(lane, id, states, joined.step, self._clock())
        except BaseException:
            self._blocks.give(lane)
            raise
        live[id] = lane
        parked.pop(id, None)
        self._live += 1
        return joined

    def park(self, id: Hashable) -> None:
        """Keep the state of a live session in the store or the pool, and free its lane. `id` is as in `join`.

        Raises
        ------
        SessionError
            If the session is not live.
        StoreError
            If the store fails. The session stays live, except after a TakenError.
        """
        if id not in self:
            raise not_live([id], self)
        _, errors = self._park([id])
        if errors:
            raise errors[id]

    def leave(self, id: Hashable) -> None:
        """End a live or parked session, and forget its state. `id` is as in `join`.

        Raises
        ------
        SessionError
            If there is no such session.
        StoreError
            If the store fails. The session is not live, but may have a value in the store: leave again.
        """
        live, parked = self._tables_of(id)
        had = id in live
        known = had or parked.pop(id, None) is not None
        if had:
            self._free(id)
        if not (self._values is not None and self._values.remove(id, had)) and not known:
            raise SessionError(message("id", "of a live or parked session", described(id)), [id])

    def _free(self, id: Hashable) -> None:
        self._blocks.give(self._tables_of(id)[0].pop(id))
        self._live -= 1

    def _park(self, ids: list[Hashable]) -> tuple[list[Hashable], dict[Hashable, StoreError]]:
        """Parks live sessions. Returns (ids of parked sessions, {id: error} of the others)."""
        errors = self._put(ids, "parked") if self._values is not None else {}
        done = [id for id in ids if id not in errors]
        for id in done:
            live, parked = self._tables_of(id)
            if self._values is None:
                parked[id] = pack(*self._blocks.get(live[id]))
            self._free(id)
        return done, errors

    def _put(self, ids: list[Hashable], session: str) -> dict[Hashable, StoreError]:
        """Stores states of live sessions. Returns {id: error} of states that were not stored."""
        assert self._values is not None
        values, steps = {}, {}
        for id in ids:
            states, steps[id], _ = self._blocks.get(self._tables_of(id)[0][id])
            values[id] = self._values.value(id, states, steps[id], session)
        errors = self._values.put_all(values)
        for id in ids:
            if id not in errors:
                self._blocks.keep(self._tables_of(id)[0][id], steps[id])
            elif isinstance(errors[id], TakenError):
                self._free(id)
        return errors

    def maintain(self, limit: int = 1000) -> Maintained:
        """Drop, park and store sessions whose time has come. Call it often, between steps.

        A failing store raises nothing: the result has its errors. Other errors are as in `SessionPool`.

        Parameters
        ----------
        limit : int
            The largest number of sessions of this call, which bounds its duration. Others follow in the next.

        Returns
        -------
        Maintained
            ``(stored, parked, dropped, errors)``.
        """
        (left,) = check("SessionPool.maintain", {"limit": limit})
        now = self._clock()
        result = Maintained([], [], [], {})
        if self._drop_after is not None:
            self._drop(now - self._drop_after, left, result)
            left -= len(result.dropped) + len(result.errors)
        if self._park_after is not None and left > 0:
            ids = list(islice(self._blocks.idle(now - self._park_after), left))
            parked, errors = self._park(ids)
            result.parked.extend(parked)
            add_errors(result, errors)
            left -= len(ids)
        if self._every is not None and left > 0:
            ids = list(islice(self._blocks.due(self._every), left))
            errors = self._put(ids, "living")
            result.stored.extend(id for id in ids if id not in errors)
            add_errors(result, errors)
        return result

    def _drop(self, before: float, left: int, result: Maintained) -> None:
        """Ends sessions whose last use was before this time: live ones, and those parked in the pool."""
        for id in list(islice(self._blocks.idle(before), left)):
            try:
                self.leave(id)
            except StoreError as error:
                result.errors[id] = error
            result.dropped.append(id)
        for parked in self._parked:
            result.dropped.extend(pop_old(parked, before, left - len(result.dropped)))

    def drain(self) -> Maintained:
        """Park all live sessions, before the process ends. The result is as from `maintain`.

        Drain again until its `errors` is empty.
        """
        result = Maintained([], [], [], {})
        ids = list(self)
        for k in range(0, len(ids), 1000):
            parked, errors = self._park(ids[k : k + 1000])
            result.parked.extend(parked)
            add_errors(result, errors)
        return result

    def __len__(self) -> int:
        """The number of live sessions."""
        return self._live

    def __contains__(self, id: Hashable) -> bool:
        """Whether a session is live."""
        return id in self._tables_of(id)[0]

    def __iter__(self) -> Iterator[Hashable]:
        """The ids of the live sessions, in any order."""
        for table in self._tables:
            yield from table

    @property
    def parked(self) -> int:
        """The number of sessions that are parked in the pool, without sessions in a store."""
        return sum(map(len, self._parked))

    def __repr__(self) -> str:
        return f"SessionPool({self._snapshot}, sessions={len(self)}, parked={self.parked})"

    def __reduce__(self) -> Any:
        raise TypeError("a SessionPool cannot be copied or pickled: park its sessions into a store")
