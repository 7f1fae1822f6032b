"""Lanes for a growing number of sessions. A pool's lanes are in blocks, so that growth copies no state.

A new block doubles the number of lanes, up to LARGEST new ones. Lanes use no memory before their first use.
"""

from __future__ import annotations

import heapq
import math
import mmap
import sys
from collections.abc import Hashable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from .. import _core
from ..rnn.snapshot import Snapshot

Array = np.ndarray
FIRST, LARGEST, PART = 1 << 16, 1 << 17, 1024
FREE = np.inf  # Block.last of a lane without a session


def zeros(shape: tuple[int, ...], dtype: Any) -> Array:
    """Returns zeros in memory that the kernel allocates in small pages, each at its first write.

    NumPy asks for huge pages. Their first write takes 0.2 ms, and 5 ms in some virtual machines.
    """
    private = {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
    size = math.prod(shape) * np.dtype(dtype).itemsize
    try:
        memory = mmap.mmap(-1, max(size, 1), **private)
    except OSError as error:
        raise MemoryError(f"no memory for {size} bytes of sessions") from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # kernels without huge pages
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape)


class Block:
    """Lanes `start` to `end` - 1 of a pool.

    last (lanes,) float64: times of last use. kept (lanes,) int64: step numbers of last checkpoints.
    """

    def __init__(self, network: _core.Network, start: int, lanes: int) -> None:
        self.start, self.end = start, start + lanes
        self.lanes = _core.Lanes(network, lanes, 1, zeros)
        self.last, self.kept = zeros((lanes,), np.float64), zeros((lanes,), np.int64)


class Blocks:
    """The lanes of a pool, by number. Lanes are never removed. Free lanes of small number are taken first."""

    def __init__(self, snapshot: Snapshot, most: int | None) -> None:
        self.most = most
        self._network = snapshot.compiled()
        self.blocks: list[Block] = []
        self._starts = np.zeros(0, np.int64)
        self._free: list[int] = []
        self._used = 0  # lanes that have had a session
        # (PART,) arrays of ids: small, so that growth is quick; no lists: garbage collection would scan them.
        self._ids: list[Array] = []
        self._grow()

    def _grow(self) -> None:
        total = self.blocks[-1].end if self.blocks else 0
        size = min(total, LARGEST) or FIRST
        size = size if self.most is None else min(size, self.most - total)
        self.blocks.append(Block(self._network, total, size))
        self._starts = np.array([block.start for block in self.blocks])

    def take(self) -> int:
        """Returns a lane without a session. Its old state remains until `put`."""
        if self._free:
            return heapq.heappop(self._free)
        if self._used == self.blocks[-1].end:
            self._grow()
        if self._used == PART * len(self._ids):
            self._ids.append(np.empty(PART, object))
        self._used += 1
        return self._used - 1

    def give(self, lane: int) -> None:
        block, k = self._place(lane)
        block.last[k], self._ids[lane // PART][lane % PART] = FREE, None
        heapq.heappush(self._free, lane)

    def _place(self, lane: int) -> tuple[Block, int]:
        for block in self.blocks:
            if lane < block.end:
                return block, lane - block.start
        raise AssertionError(f"internal error: lane {lane}")

    def id(self, lane: int) -> Hashable:
        found: Hashable = self._ids[lane // PART][lane % PART]
        return found

    def put(self, lane: int, id: Hashable, states: list[Array | None], step: int, last: float) -> None:
        """Sets a lane. states: (layers, 1, *) each, or None for zeros. last: time of last use."""
        block, k = self._place(lane)
        block.lanes.put(np.array([k], np.int64), states, np.array([step], np.int64))
        block.last[k], block.kept[k] = last, step
        self._ids[lane // PART][lane % PART] = id

    def get(self, lane: int) -> tuple[list[Array], int, float]:
        """Returns (copies of the states (layers, 1, *), step number, time of last use)."""
        block, k = self._place(lane)
        states = [array[:, k : k + 1].copy() for array in block.lanes.states]
        return states, int(block.lanes.steps[k]), float(block.last[k])

    def keep(self, lane: int, step: int) -> None:
        """Records the step number at which the session of a lane was last stored."""
        block, k = self._place(lane)
        block.kept[k] = step

    def _split(self, rows: Array) -> list[tuple[Block, Array, Array]]:
        """Returns (block, positions in `rows`, indices in the block) for each block with lanes of `rows`."""
        which = np.searchsorted(self._starts, rows, "right") - 1
        order = np.argsort(which, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(which[order])) + 1) if len(rows) else []
        found = [(self.blocks[which[part[0]]], part) for part in parts]
        return [(block, part, rows[part] - block.start) for block, part in found]

    def steps(self, rows: Array) -> Array:
        """Returns the step number of each lane, (R,) int64."""
        found = np.empty(len(rows), np.int64)
        for block, part, places in self._split(rows):
            found[part] = block.lanes.steps[places]
        return found

    def step(self, rows: Array, x: Array, out: Array | None, now: float | None) -> Array | None:
        """Computes one step of the lanes `rows`, and sets their time of last use to `now` unless it is None.

        x (R, D) -> y (R, P), written to `out` if given. Returns None like _core.Lanes.step.
        """
        if len(self.blocks) == 1 or not len(rows):
            block = self.blocks[0]
            y = block.lanes.step(x, rows, out, None, 0)
            if y is not None and now is not None:
                block.last[rows] = now
            return y
        wide = len(rows), self.blocks[0].lanes.states[0].shape[2]
        if out is not None and not (
            type(out) is np.ndarray and out.dtype == np.float32 and out.shape == wide and out.flags.writeable
        ):
            return None
        split = self._split(rows)
        found = _core.step_all([(block.lanes, x[part], places) for block, part, places in split], 0)
        if found is None:
            return None
        y = np.empty(wide, np.float32) if out is None else out
        for (block, part, places), each in zip(split, found, strict=True):
            y[part] = each
            if now is not None:
                block.last[places] = now
        return y

    def idle(self, before: float) -> Iterator[Hashable]:
        """Yields ids of sessions whose last use was before this time."""
        for block in self.blocks:
            n = max(0, min(self._used, block.end) - block.start)
            yield from map(self.id, (np.flatnonzero(block.last[:n] < before) + block.start).tolist())

    def due(self, every: int) -> Iterator[Hashable]:
        """Yields ids of sessions with at least `every` steps since their last checkpoint."""
        for block in self.blocks:
            n = max(0, min(self._used, block.end) - block.start)
            late = (block.lanes.steps[:n] - block.kept[:n] >= every) & (block.last[:n] < FREE)
            yield from map(self.id, (np.flatnonzero(late) + block.start).tolist())
