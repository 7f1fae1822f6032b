"""Lanes for a number of sessions that grows. The lanes of a pool are in blocks, so growth copies no state.

A new block has as many lanes as all before it, up to LARGEST. Memory of a lane is used from its first step.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from .. import _core
from ..rnn.snapshot import Snapshot

Array = np.ndarray
FIRST, LARGEST = 4096, 1 << 18
FREE = np.inf  # in Block.last, for a lane without a session


class Block:
    """Lanes `start` to `end` - 1 of a pool.

    last (lanes,) float64: when each was used last. kept (lanes,) int64: the step of its last checkpoint.
    """

    def __init__(self, network: _core.Network, start: int, lanes: int) -> None:
        self.start, self.end = start, start + lanes
        self.lanes = _core.Lanes(network, lanes, 1)
        self.last, self.kept = np.zeros(lanes), np.zeros(lanes, np.int64)


class Blocks:
    """The lanes of a pool, by their numbers. None is removed. Free lanes of small number come first."""

    def __init__(self, snapshot: Snapshot, most: int | None) -> None:
        self.most = most
        self._network = snapshot.compiled()
        self.blocks: list[Block] = []
        self._starts = np.zeros(0, np.int64)
        self._free: list[int] = []
        self._used = 0  # the number of lanes that have had a session
        self._grow()

    def _grow(self) -> None:
        total = self.blocks[-1].end if self.blocks else 0
        size = min(total, LARGEST) or (min(self.most, 1 << 16) if self.most else FIRST)
        size = size if self.most is None else min(size, self.most - total)
        self.blocks.append(Block(self._network, total, size))
        self._starts = np.array([block.start for block in self.blocks])

    def take(self) -> int:
        """Returns a lane without a session, which keeps an old state until `put`."""
        if self._free:
            return heapq.heappop(self._free)
        if self._used == self.blocks[-1].end:
            self._grow()
        self._used += 1
        return self._used - 1

    def give(self, lane: int) -> None:
        block, k = self._place(lane)
        block.last[k] = FREE
        heapq.heappush(self._free, lane)

    def _place(self, lane: int) -> tuple[Block, int]:
        for block in self.blocks:
            if lane < block.end:
                return block, lane - block.start
        raise AssertionError(f"broken promise: lane {lane}")

    def put(self, lane: int, states: list[Array | None], step: int, last: float) -> None:
        """Sets a lane. states: (layers, 1, *) each, or None for zeros."""
        block, k = self._place(lane)
        block.lanes.put(np.array([k]), states, np.array([step]))
        block.last[k], block.kept[k] = last, step

    def get(self, lane: int) -> tuple[list[Array], int, float]:
        """Returns copies of the states (layers, 1, *), the step and the time of the last use."""
        block, k = self._place(lane)
        states = [array[:, k : k + 1].copy() for array in block.lanes.states]
        return states, int(block.lanes.steps[k]), float(block.last[k])

    def keep(self, lane: int, step: int) -> None:
        """Sets the step of the lane's last checkpoint."""
        block, k = self._place(lane)
        block.kept[k] = step

    def steps(self, rows: Array) -> Array:
        return np.array([self._place(lane)[0].lanes.steps[self._place(lane)[1]] for lane in rows.tolist()])

    def step(self, rows: Array, x: Array, out: Array | None, now: float | None) -> Array | None:
        """Computes one step of the lanes `rows` and sets the time of their last use, unless it is None.

        x (R, D) -> y (R, P), in `out` if given. Returns None as Lanes.step of the compiled module does.
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
        which = np.searchsorted(self._starts, rows, "right") - 1
        order = np.argsort(which, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(which[order])) + 1)
        blocks = [self.blocks[which[part[0]]] for part in parts]
        places = [rows[part] - block.start for block, part in zip(blocks, parts, strict=True)]
        calls = [(b.lanes, x[part], place) for b, part, place in zip(blocks, parts, places, strict=True)]
        found = _core.step_all(calls, 0)
        if found is None:
            return None
        if now is not None:
            for block, place in zip(blocks, places, strict=True):
                block.last[place] = now
        y = np.empty(wide, np.float32) if out is None else out
        for part, each in zip(parts, found, strict=True):
            y[part] = each
        return y

    def idle(self, before: float) -> Iterator[int]:
        """Yields the lanes of sessions that were used last before this time."""
        for block in self.blocks:
            n = max(0, min(self._used, block.end) - block.start)
            yield from (np.flatnonzero(block.last[:n] < before) + block.start).tolist()

    def due(self, every: int) -> Iterator[int]:
        """Yields the lanes of sessions that have made `every` steps or more since the last checkpoint."""
        for block in self.blocks:
            n = max(0, min(self._used, block.end) - block.start)
            late = (block.lanes.steps[:n] - block.kept[:n] >= every) & (block.last[:n] < FREE)
            yield from (np.flatnonzero(late) + block.start).tolist()
