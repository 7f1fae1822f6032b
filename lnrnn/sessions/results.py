"""Results of the methods of a session pool."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal, NamedTuple

from .errors import StoreError, TakenError


class Joined(NamedTuple):
    """The result of `SessionPool.join`: where the state of the session comes from.

    Attributes
    ----------
    how : {"new", "restored", "checkpoint"}
        "new": the session starts at 0. "restored": it continues after its last step, because it was parked.
        "checkpoint": its process ended without parking it. Steps after the checkpoint are lost.
    step : int
        The number of steps that the state has seen.
    """

    how: Literal["new", "restored", "checkpoint"]
    step: int


class Maintained(NamedTuple):
    """The result of `SessionPool.maintain` and `SessionPool.drain`: the ids of sessions.

    Attributes
    ----------
    stored, parked, dropped : list
        Live sessions that have a new checkpoint; sessions that are now parked; sessions that have ended.
    errors : dict
        A `StoreError` for each session for which the store failed. It stays live, unless it is dropped, as
        after a `TakenError`.
    """

    stored: list[Hashable]
    parked: list[Hashable]
    dropped: list[Hashable]
    errors: dict[Hashable, StoreError]


def add_errors(to: Maintained, errors: dict[Hashable, StoreError]) -> None:
    to.errors.update(errors)
    to.dropped.extend(id for id, error in errors.items() if isinstance(error, TakenError))
