"""The store of server.py in Redis. Threads talk to it, so no live session waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

from lnrnn.sessions import RedisStore, TakenError

AT_ONCE = 50  # values of one exchange with the store


class NotFetched(Exception):
    """Raised for a key whose value must be fetched first."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class BackgroundStore(RedisStore):
    """A store that a pool uses from memory: `fetch` reads a value for it, `write` stores its values.

    After an error Redis is asked nothing for `pause` seconds. Values wait here until they are stored. Removal
    has no thread, because the server removes no session.
    """

    def __init__(self, client: Any, pause: float) -> None:
        super().__init__(client)
        self.pause, self.error, self.again = pause, "", 0.0
        self.waiting: dict[str, bytes] = {}
        self.fetched: dict[str, bytes | Exception | None] = {}
        self.taken: set[str] = set()  # by another pool, which this one does not know yet
        self.counts = {"stored": 0, "store_errors": 0}
        self.threads = ThreadPoolExecutor(2, "store")
        self.new = asyncio.Event()

    def get(self, key: str) -> bytes | None:
        if key in self.waiting:
            return self.waiting[key]
        if key not in self.fetched:
            raise NotFetched(key)
        found = self.fetched.pop(key)
        if isinstance(found, Exception):
            raise found
        self.taken.discard(key)
        return found

    def __setitem__(self, key: str, value: bytes) -> None:
        self.update({key: value})

    def update(self, values: Mapping[str, bytes]) -> None:
        if taken := self.taken.intersection(values):
            if len(values) == 1:  # else the pool stores them one by one now
                self.taken -= taken
            raise TakenError("another server has it")
        self.waiting.update(values)
        self.new.set()

    async def fetch(self, key: str) -> None:
        """Reads a value, which the next `get` returns. It raises the error, if there was one."""
        self.fetched[key] = await self._asked(super().get, key)

    async def write(self) -> None:
        """Stores the values that wait, and those that come."""
        while True:
            await self.new.wait()
            await asyncio.sleep(max(0.0, self.again - time.monotonic()))
            some = dict(islice(self.waiting.items(), AT_ONCE))
            taken = await self._asked(self._store, some)
            if isinstance(taken, Exception):
                continue
            for key, value in some.items():
                if self.waiting[key] is value:
                    del self.waiting[key]
            self.taken |= taken
            self.counts["stored"] += len(some) - len(taken)
            if not self.waiting:
                self.new.clear()

    def _store(self, values: dict[str, bytes]) -> set[str]:
        """Stores values. Returns the keys of those that another pool has taken."""
        taken = set()
        try:
            super().update(values)
        except TakenError:
            for key, value in values.items():
                try:
                    super().__setitem__(key, value)
                except TakenError:
                    taken.add(key)
        return taken

    async def _asked(self, call: Callable[[Any], Any], argument: Any) -> Any:
        """Returns the result or the error of a call in a thread."""
        rest = self.again - time.monotonic()
        if rest > 0:
            return ConnectionError(f"it failed ({self.error}), and is asked again in {rest:.1f} s")
        try:
            return await asyncio.get_running_loop().run_in_executor(self.threads, call, argument)
        except Exception as error:
            self.counts["store_errors"] += 1
            self.error, self.again = f"{type(error).__name__}: {error}", time.monotonic() + self.pause
            print(f"the store fails, and {len(self.waiting)} sessions wait for it: {self.error}", flush=True)
            return error
