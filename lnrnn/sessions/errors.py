"""Exceptions of session pools. They contain the ids of the sessions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


class SessionError(ValueError):
    """Raised for sessions that a call of a `SessionPool` refuses. No session has changed then.

    Attributes
    ----------
    ids : tuple
        The ids of all sessions that the call refuses for this reason.

    Examples
    --------
    >>> import numpy as np
    >>> import lnrnn
    >>> from lnrnn.sessions import SessionError
    >>> pool = lnrnn.SessionPool(lnrnn.GRU(3, 4, seed=0))
    >>> try:
    ...     pool.step(["ann"], np.zeros((1, 3)))
    ... except SessionError as error:
    ...     print(error.ids)
    ('ann',)
    """

    def __init__(self, text: str, ids: Sequence[Hashable] = ()) -> None:
        super().__init__(text)
        self.ids = tuple(ids)


class StoreError(SessionError):
    """Raised if the store of a `SessionPool` fails, or has unusable bytes. Other sessions are unaffected."""


class TakenError(StoreError):
    """Raised if another pool has joined a session that this pool would store. It is no longer live here."""
