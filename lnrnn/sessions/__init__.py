"""Sessions by id: which lane each has, their parked states, and their states in a store."""

from .errors import SessionError, StoreError, TakenError
from .pool import SessionPool
from .redis_store import RedisStore
from .results import Joined, Maintained

__all__ = ["Joined", "Maintained", "RedisStore", "SessionError", "SessionPool", "StoreError", "TakenError"]
__dir__ = __all__.copy  # dir() shows the public names alone
