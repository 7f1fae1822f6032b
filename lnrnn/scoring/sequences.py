"""Sequences one after the other in one array, as all columns become before a model runs over them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from ..rnn.models import Model

Array = np.ndarray
Into = Literal["last", "mean", "all"]
INTO: tuple[Into, ...] = get_args(Into)
Bad = Literal["raise", "null"]
BAD: tuple[Bad, ...] = get_args(Bad)

# So many numbers of y at a time: 64 MiB for each layer. A result does not depend on it.
PIECE = 2**24


@dataclass
class Sequences:
    """B rows of a column.

    values (N, D) float32; offsets (B + 1,) int64 from 0 to N: row b is values[offsets[b]:offsets[b + 1]].
    null (B,) bool: rows that are null. bad: what is wrong with the rows that are no sequence for the model,
    by row. Both kinds have no steps here and no result.
    """

    values: Array
    offsets: Array
    null: Array
    bad: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.null)

    @classmethod
    def of(cls, values: Array, offsets: Array, null: Array, bad: dict[int, str]) -> Sequences:
        """Of offsets that may begin anywhere, and rows that may have steps although they are null or bad."""
        lengths = np.diff(offsets)
        without = null.copy()
        without[list(bad)] = True
        if lengths[without].any():
            lengths[without] = 0
            values = values[_steps(offsets[:-1], lengths)]
            offsets = _offsets(lengths)
        else:
            values, offsets = values[offsets[0] : offsets[-1]], offsets - offsets[0]
        return cls(values, offsets, null, bad)

    @property
    def lengths(self) -> Array:
        """(B,) int64."""
        return np.diff(self.offsets)

    @property
    def absent(self) -> Array:
        """(B,) bool: which rows have no result."""
        found = self.null.copy()
        found[list(self.bad)] = True
        return found

    def less_long(self, model: Model) -> Sequences:
        """The same, where a row that has more steps than batch norm has statistics for is bad."""
        known = model.known_steps
        if known is None or (model.overrun != "raise" and known):
            return self
        lengths = self.lengths
        found = {
            int(row): f"it has {lengths[row]} steps, and statistics are known for {known} only"
            for row in np.flatnonzero(lengths > known)
        }
        return self.of(self.values, self.offsets, self.null, self.bad | found) if found else self


def result_width(model: Model) -> int:
    """How many numbers the last layer gives for a step."""
    return model.num_directions * model.hidden_size


def run(model: Model, given: Sequences, into: Into, threads: int | None) -> Array:
    """What the model makes of each row: (B, directions * H), or of each step, (N, directions * H), for into
    "all". float32; a row without steps has zeros.

    The rows are computed in pieces, so that memory for y stays small, and each piece in sequences of nearly
    equal length, the longest first; where all fit in one piece, values are used as they are.
    """
    lengths, wide = given.lengths, result_width(model)
    rows = len(given.values) if into == "all" else len(given)
    budget = max(PIECE // max(wide, model.input_size), 1)
    if len(given.values) <= budget and len(given) <= budget:
        return _result(model, given.values, given.offsets, into, threads)
    found = np.zeros((rows, wide), np.float32)
    for part in _pieces(lengths, budget):
        own, starts = lengths[part], given.offsets[:-1][part]
        steps = _steps(starts, own)
        result = _result(model, given.values[steps], _offsets(own), into, threads)
        found[steps if into == "all" else part] = result
    return found


def _result(model: Model, values: Array, offsets: Array, into: Into, threads: int | None) -> Array:
    state: Any
    y, state = model.ragged(values, offsets, threads=threads)
    if into == "all":
        return y
    if into == "mean":
        return _means(y, offsets)
    h = state[0] if isinstance(state, tuple) else state
    last = h[-model.num_directions :].swapaxes(0, 1)  # (B, directions, H) of the last layer
    return np.ascontiguousarray(last).reshape(len(offsets) - 1, result_width(model))


def _means(y: Array, offsets: Array) -> Array:
    """The mean over each row's steps: sums in float64, step after step, rounded once."""
    found = np.zeros((len(offsets) - 1, y.shape[1]), np.float32)
    with np.errstate(all="ignore"):  # infinities and NaN stay in their rows
        for row, (first, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
            if end > first:
                found[row] = y[first:end].sum(0, dtype=np.float64) / (end - first)
    return found


def _pieces(lengths: Array, budget: int) -> list[Array]:
    """The rows, longest first, in parts with at most `budget` steps, a row counting for one at least; a row
    that has more is a part by itself."""
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(np.maximum(lengths[order], 1))
    parts, first = [], 0
    while first < len(order):
        before = ends[first - 1] if first else 0
        end = max(int(np.searchsorted(ends, before + budget, side="right")), first + 1)
        parts.append(order[first:end])
        first = end
    return parts


def _offsets(lengths: Array) -> Array:
    """(B,) -> (B + 1,) int64."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _steps(starts: Array, lengths: Array) -> Array:
    """The places of the steps of rows that begin at `starts`, one row after the other."""
    ends = np.cumsum(lengths, dtype=np.int64)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)
