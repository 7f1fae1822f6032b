"""The rows of a call: a table of sequences and their steps, for the compiled module.

A row is a sequence, or the part of a sequence between two resets (lnrnn_row in pyx/rnn/layer.h). Rows are
independent of each other. A line is one layer and direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..arguments import check

Array = np.ndarray

# Columns of the table.
SEQUENCE, FIRST, LENGTH, END, STATE, START = range(6)


def _sorted(columns: Sequence[Any], rows: int) -> Array:
    """Returns a table (rows, 6) int64, sorted by descending length. columns: numbers or arrays."""
    table = np.empty((rows, 6), np.int64)
    for k, column in enumerate(columns):
        table[:, k] = column
    return table[np.argsort(-table[:, LENGTH], kind="stable")]


@dataclass(frozen=True)
class Parts:
    """Parts of sequences between resets. Each part is a row of the call and has a state of the same index.

    count: the number R of parts. first, last (B,): indices of each sequence's first and last part. fresh
    (B,): whether a sequence is reset before its first step.
    """

    count: int
    first: Array
    last: Array
    fresh: Array

    def reached(self, reverse: bool) -> Array:
        """Returns (B,): the index of each sequence's part that a layer and direction reads last."""
        return self.first if reverse else self.last

    def begun(self, reverse: bool) -> Array:
        """Returns (B,): the index of each sequence's part that a layer and direction reads first."""
        return self.last if reverse else self.first

    def begin_backward(self, ghn: Array, reversed_: Sequence[bool]) -> Array:
        """Maps ghn (lines, B, H), gradients of sequences' last states, to those of parts (lines, R, H)."""
        found = np.zeros((len(ghn), self.count, ghn.shape[2]), ghn.dtype)
        for k, given in enumerate(ghn):
            found[k, self.reached(reversed_[k])] = given
        return found

    def finish_backward(self, gh0: Array, reversed_: Sequence[bool]) -> Array:
        """Maps gh0 (lines, R, H), gradients of parts' initial states, to those of sequences (lines, B, H)."""
        found: Array = np.stack([g[self.begun(reversed_[k])] for k, g in enumerate(gh0)])
        for k, g in enumerate(found):
            if not reversed_[k]:
                g[self.fresh] = 0
        return found


@dataclass(frozen=True)
class Rows:
    """Independent runs of steps. table: (R, 6) int64, longest rows first. parts: the division by resets, or
    None; then each row is a sequence."""

    table: Array
    parts: Parts | None = None

    @property
    def longest(self) -> int:
        return int(self.table[0, LENGTH]) if len(self.table) else 0

    def arrays(self) -> list[Array]:
        parts = self.parts
        return [self.table] + ([] if parts is None else [parts.first, parts.last, parts.fresh])

    def after(self, steps: Array) -> Rows:
        """Returns these rows for a stream whose sequence b has already run steps[b] steps. steps: int64 (B,).

        Rows with equal lengths and equal numbers of past steps become adjacent.
        """
        table, parts = np.array(self.table), self.parts
        goes_on = table[:, FIRST] == 0
        if parts is not None:
            goes_on &= ~parts.fresh[table[:, SEQUENCE]]
        table[:, START] = np.where(goes_on, steps[table[:, SEQUENCE]], 0)
        return Rows(table[np.lexsort((table[:, START], -table[:, LENGTH]))], parts)

    def steps(self) -> Array:
        """Returns (B,): each sequence's number of steps from its last reset to its end."""
        taken = np.empty(len(self.table), np.int64)
        taken[self.table[:, STATE]] = self.table[:, START] + self.table[:, LENGTH]
        return taken if self.parts is None else taken[self.parts.last]

    def begin(self, h0: Array, reversed_: Sequence[bool]) -> Array:
        """Returns the rows' initial states (lines, R, H) from the sequences' h0 (lines, B, H).

        reversed_: Architecture.reversed. A forward line starts with a sequence's first part, a reverse line
        with its last part. Other parts start from zeros.
        """
        parts = self.parts
        if parts is None:
            return h0
        found = np.zeros((len(h0), parts.count, h0.shape[2]), h0.dtype)
        for k, given in enumerate(h0):
            if reversed_[k]:
                found[k, parts.last] = given
            else:
                found[k, parts.first[~parts.fresh]] = given[~parts.fresh]
        return found

    def finish(self, hn: Array, reversed_: Sequence[bool]) -> Array:
        """Returns the sequences' last states (lines, B, H) from the rows' hn (lines, R, H)."""
        parts = self.parts
        if parts is None:
            return hn
        return np.stack([given[parts.reached(reversed_[k])] for k, given in enumerate(hn)])


def padded(lengths: Array | None, T: int, B: int) -> Rows:
    """Returns the Rows of B sequences of T steps. lengths (B,): the rest is padding; None: no padding."""
    if lengths is None:
        return _whole(T, B)
    place = np.arange(B)
    return Rows(_sorted((place, 0, lengths, T, place, 0), B))


@lru_cache(16)
def _whole(T: int, B: int) -> Rows:
    place = np.arange(B)
    table = _sorted((place, 0, T, T, place, 0), B)
    table.setflags(write=False)
    return Rows(table)


def reset(resets: Array, lengths: Array | None, T: int, B: int) -> Rows:
    """Returns the Rows of `padded`, split before each step where resets (T, B) is True."""
    within: Array = resets.T if lengths is None else resets.T & (np.arange(T) < lengths[:, None])
    fresh = np.array(within[:, 0]) if T else np.zeros(B, bool)
    cut = np.array(within)
    if T:
        cut[:, 0] = True
        sequence, first = np.nonzero(cut)
    else:
        sequence, first = np.arange(B), np.zeros(B, np.int64)
    count = len(sequence)
    last = np.searchsorted(sequence, np.arange(B), "right") - 1
    length = np.empty(count, np.int64)
    length[:-1] = np.diff(first)
    length[last] = (T if lengths is None else lengths) - first[last]
    end = first + length
    end[last] = T
    parts = Parts(count, np.searchsorted(sequence, np.arange(B)), last, fresh)
    return Rows(_sorted((sequence, first, length, end, np.arange(count), 0), count), parts)


def ragged(offsets: Array) -> Rows:
    """Returns Rows for x (N, 1, D): sequence i has steps offsets[i] .. offsets[i + 1] - 1."""
    count = len(offsets) - 1
    return Rows(_sorted((0, offsets[:-1], np.diff(offsets), offsets[1:], np.arange(count), 0), count))


def by_state(table: Array) -> Array:
    """Returns a table of `ragged` with the index of each sequence in column SEQUENCE, for error messages."""
    named = np.array(table)
    named[:, SEQUENCE] = named[:, STATE]
    return named


def checked_resets(resets: Any, shape: tuple[int, ...], unbatched: bool, batch_first: bool) -> Array:
    """Returns a copy of the argument resets as bool (T, B). shape: (T, B)."""
    T, B = shape
    expected = (T,) if unbatched else (B, T) if batch_first else (T, B)
    (given,) = check("Network.__call__", {"resets": resets}, {"steps": expected})
    found: Array = given[:, None] if unbatched else given.T if batch_first else given
    return found


def call_rows(resets: Any, lengths: Array | None, x: Array, unbatched: bool, batch_first: bool) -> Rows:
    """Returns the Rows of a call. x (T, B, D) and lengths are checked; resets is the user's argument."""
    T, B = x.shape[:2]
    if resets is None:
        return padded(lengths, T, B)
    return reset(checked_resets(resets, (T, B), unbatched, batch_first), lengths, T, B)
