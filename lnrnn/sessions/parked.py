"""Sessions without a lane: states in the pool's memory, and values of a store.

In memory, a state is a bytes object: time of last use, step number, floats. So a session needs few
bytes besides its floats. Values of a store have the format of `StreamState.to_bytes`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np

from ..errors import bad_type
from ..rnn.batches import as_state
from ..rnn.snapshot import Snapshot
from ..rnn.state_bytes import decode, encode
from ..rnn.stream import stream_states
from .errors import StoreError, TakenError

Array = np.ndarray
T = TypeVar("T")
MOST_FAILURES = 3
_HEAD = struct.Struct("=dq")


class Store(Protocol):
    """Values of bytes by keys of str: a dict, a shelve.Shelf, a redis.Redis, or any class with these methods.

    If it has update(mapping), the pool stores many values at once by it.
    """

    def get(self, key: str) -> bytes | None: ...
    def __setitem__(self, key: str, value: bytes) -> None: ...
    def __delitem__(self, key: str) -> None: ...


def pack(states: list[Array], step: int, last: float) -> bytes:
    return b"".join((_HEAD.pack(last, step), *(array.tobytes() for array in states)))


def unpack(data: bytes, like: list[Array]) -> tuple[list[Array], int]:
    """Decodes data to (states (layers, 1, *), step number). like: the network's arrays (layers, lanes, *)."""
    states, at = [], _HEAD.size
    for array in like:
        layers, _, width = array.shape
        states.append(np.frombuffer(data, np.float32, layers * width, at).reshape(layers, 1, width))
        at += states[-1].nbytes
    return states, _HEAD.unpack_from(data)[1]


def last_use(data: bytes) -> float:
    return float(_HEAD.unpack_from(data)[0])


def pop_old(parked: dict[Hashable, bytes], before: float, most: int) -> list[Hashable]:
    """Removes sessions whose last use was before this time, at most `most`. Returns their ids."""
    old: list[Hashable] = []
    for id, data in parked.items():  # in the order of parking
        if last_use(data) >= before or len(old) >= most:
            break
        old.append(id)
    for id in old:
        del parked[id]
    return old


def _name(id: Hashable) -> str:
    """Returns a session's id as text. Unequal ids have different texts."""
    if isinstance(id, str):
        return f"s:{id}"
    if isinstance(id, (int, np.integer)):
        return f"i:{int(id)}"
    if isinstance(id, bytes):
        return f"b:{id.hex()}"
    raise bad_type("id", "a str, int or bytes for a pool with a store", id)


def _short(name: str) -> str:
    """Returns the name, or its hash if it is long: the header of a state is limited."""
    return name if len(name) < 200 else hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


class Values:
    """The values of a pool's sessions in its store, with the id, and "session": "parked" or "living"."""

    def __init__(self, store: Store, prefix: str, snapshot: Snapshot) -> None:
        for name in ("get", "__setitem__", "__delitem__"):
            if not callable(getattr(store, name, None)):
                raise bad_type("store", f"an object with the method {name}", store)
        self._store, self._prefix, self._snapshot = store, prefix, snapshot

    def key(self, id: Hashable) -> str:
        """Returns the store's key of a session. Unequal ids have different keys."""
        return self._prefix + _name(id)

    def value(self, id: Hashable, states: list[Array], step: int, session: str) -> bytes:
        state: Any = as_state(states, self._snapshot.architecture.cell)
        notes = {"session": session, "id": _short(_name(id))}
        return encode(state, [step], self._snapshot.fingerprint(), notes)

    def take(self, id: Hashable) -> tuple[list[Array], int, str] | None:
        """Returns (states (layers, 1, *), step number, "parked" or "living"), or None if there is no value.

        "living" values are checkpoints of live sessions. The value stays in the store, marked "living".
        """
        key = self.key(id)
        data = self._asked(id, "read", lambda: self._store.get(key))
        if data is None:
            return None
        try:
            state, step, fingerprint, notes = decode(data)
            if fingerprint != self._snapshot.fingerprint():
                raise ValueError("it is of another network, with other parameters, statistics or dtype")
            if len(step) != 1 or notes.get("session") not in ("parked", "living"):
                raise ValueError("it is not a value of a SessionPool")
            if notes.get("id") != _short(_name(id)):
                raise ValueError(f"it is of another session, {notes.get('id')!r:.60}")
            states = stream_states("state", state, 1, self._snapshot.architecture)
        except (ValueError, TypeError) as error:
            text = f"the store's value of session {id!r:.60} cannot be used: {error}"
            raise StoreError(text, (id,)) from error
        if notes["session"] == "parked":
            # The process may end before it parks the session again. Then this value serves as a checkpoint.
            self.put(id, self.value(id, states, int(step[0]), "living"))
        return states, int(step[0]), notes["session"]

    def put(self, id: Hashable, value: bytes) -> None:
        key = self.key(id)
        self._asked(id, "write", lambda: self._store.__setitem__(key, value))

    def put_all(self, values: Mapping[Hashable, bytes]) -> dict[Hashable, StoreError]:
        """Stores many values. Returns {id: error} of the values that were not stored."""
        update: Any = getattr(self._store, "update", None)
        if update is not None and len(values) > 1:
            try:
                update({self.key(id): value for id, value in values.items()})
                return {}
            except Exception:  # some values may be stored: store each alone to find failures
                pass
        errors: dict[Hashable, StoreError] = {}
        failures = 0  # consecutive failures: each may wait for a timeout
        for id, value in values.items():
            try:
                if failures == MOST_FAILURES:
                    raise StoreError(f"session {id!r:.60} is not stored: the store failed for others", (id,))
                self.put(id, value)
                failures = 0
            except TakenError as error:
                errors[id] = error
            except StoreError as error:
                errors[id] = error
                failures = min(failures + 1, MOST_FAILURES)
        return errors

    def remove(self, id: Hashable, live: bool) -> bool:
        """Removes a session's value. Returns whether there was a value."""
        key = self.key(id)
        # For a session that is not live, `get` is called first. It may take the session from another pool.
        if not live and self._asked(id, "read", lambda: self._store.get(key)) is None:
            return False
        try:
            self._asked(id, "remove", lambda: self._store.__delitem__(key))
        except StoreError as error:
            if not isinstance(error.__cause__, KeyError):
                raise
            return False
        return True

    def _asked(self, id: Hashable, verb: str, call: Callable[[], T]) -> T:
        """Returns call(). Converts exceptions of a store, of any class, to StoreError."""
        try:
            return call()
        except TakenError as error:
            raise TakenError(f"session {id!r:.60} is not here any more: {error}", (id,)) from error
        except Exception as error:
            text = f"the store failed to {verb} session {id!r:.60}: {type(error).__name__}: {error}"
            raise StoreError(text, (id,)) from error
