"""Sessions by id: which lane each has, their parked states, and their states in a store."""

from .errors import SessionError, StoreError
from .pool import SessionPool
from .results import Joined, Maintained

__all__ = ["Joined", "Maintained", "SessionError", "SessionPool", "StoreError"]
