"""Sessions by id: their lanes, parked states, and states in a store."""

from .errors import SessionError, StoreError, TakenError
from .pool import SessionPool
from .redis_store import RedisStore
from .results import Joined, Maintained

__all__ = ["Joined", "Maintained", "RedisStore", "SessionError", "SessionPool", "StoreError", "TakenError"]
__dir__ = __all__.copy  # dir() lists public names only
