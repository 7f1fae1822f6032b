"""RedisStore: a store for pools of several processes."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from ..arguments import TAKES, Integer, check
from .errors import TakenError

TAKES["sessions.RedisStore"] = {"seconds": Integer(1, 2**31 - 1)}
# Lua scripts. KEYS: the key of a session, a hash with fields owner and state. ARGV: owner, seconds.
_GET = """
redis.call('HSET', KEYS[1], 'owner', ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return redis.call('HGET', KEYS[1], 'state')
"""
# A key without an owner has expired, or the server has lost its data.
_OWNED = """
local owner = redis.call('HGET', KEYS[1], 'owner')
if owner and owner ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'owner', ARGV[1])
"""
_SET = f"{_OWNED}redis.call('HSET', KEYS[1], 'state', ARGV[3])\n"
# The owner remains, so that another pool cannot store the session again.
_DELETE = f"{_OWNED}redis.call('HDEL', KEYS[1], 'state')\n"
_END = "redis.call('EXPIRE', KEYS[1], ARGV[2])\nreturn 1"


class RedisStore:
    """The store of a `SessionPool` in Redis, which pools of several processes can share.

    A session belongs to the pool that joined it last. If another pool stores or removes it, this pool gets a
    `TakenError`, and the value does not change. So a process that was believed dead cannot overwrite a newer
    state.

    Parameters
    ----------
    client : redis.Redis
        Give it timeouts, because a step waits while the pool stores states.
    seconds : int
        Redis forgets sessions that were not stored for so long.

    Raises
    ------
    TypeError, ValueError
        If seconds is no integer of at least 1.
    redis.RedisError, TakenError
        By its methods: if the server does not answer, or if another pool has joined a session.

    Notes
    -----
    A value is a hash with the fields owner and state. Scripts in Redis read and change it atomically.

    Examples
    --------
    >>> import redis  # doctest: +SKIP
    >>> client = redis.Redis(socket_timeout=0.2)  # doctest: +SKIP
    >>> pool = lnrnn.SessionPool(rnn, store=lnrnn.sessions.RedisStore(client))  # doctest: +SKIP
    """

    def __init__(self, client: Any, seconds: int = 86400) -> None:
        self._client = client
        self._words = (secrets.token_hex(8), *check("sessions.RedisStore", {"seconds": seconds}))
        self._get, self._set, self._delete = (
            client.register_script(text) for text in (_GET, _SET + _END, _DELETE + _END)
        )

    def get(self, key: str) -> bytes | None:
        """Return the state of a session, and make this store its owner. Errors are as in `RedisStore`.

        Parameters
        ----------
        key : str
            The pool's prefix and the session's id.

        Returns
        -------
        bytes or None
            The stored state, or None if there is none.
        """
        found: bytes | None = self._get([key], self._words)
        return found

    def __setitem__(self, key: str, value: bytes) -> None:
        _refuse(key, self._set([key], (*self._words, value)))

    def __delitem__(self, key: str) -> None:
        _refuse(key, self._delete([key], self._words))

    def update(self, values: Mapping[str, bytes]) -> None:
        """Store many values in one exchange with the server. Errors are as in `RedisStore`.

        Parameters
        ----------
        values : mapping of str to bytes
            States by key.
        """
        with self._client.pipeline(transaction=False) as pipe:
            for key, value in values.items():
                self._set([key], (*self._words, value), client=pipe)
            for key, done in zip(values, pipe.execute(), strict=True):
                _refuse(key, done)


def _refuse(key: str, done: int) -> None:
    if not done:
        raise TakenError(f"another pool has joined the session with the key {key!r:.80}")
