"""Sequences: rows of a column, concatenated in one array for the model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from ..rnn.models import Model
from ..rnn.settings import architecture
from ..runtime import get_num_threads

Array = np.ndarray
Into = Literal["last", "mean", "all"]
INTO: tuple[Into, ...] = get_args(Into)
Bad = Literal["raise", "null"]
BAD: tuple[Bad, ...] = get_args(Bad)

PIECE = 2**24  # numbers of y computed at a time: 64 MiB for each layer; no result depends on it

ROWS = 32  # least mean number of rows in a thread's batches; no result depends on it


@dataclass
class Sequences:
    """B rows of a column.

    values (N, D) float32. offsets (B + 1,) int64 from 0 to N: row b is values[offsets[b]:offsets[b + 1]].
    null (B,) bool: whether a row is null. bad: {row: reason why it is bad}. Null and bad rows have
    no steps here, and get no result.
    """

    values: Array
    offsets: Array
    null: Array
    bad: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.null)

    @classmethod
    def of(cls, values: Array, offsets: Array, null: Array, bad: dict[int, str]) -> Sequences:
        """Creates Sequences without steps of null and bad rows, and without values outside of the offsets."""
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
        """The number of steps of each row, (B,) int64."""
        return np.diff(self.offsets)

    @property
    def absent(self) -> Array:
        """(B,) bool: whether a row is null or bad and so gets no result."""
        result = self.null.copy()
        result[list(self.bad)] = True
        return result

    def less_long(self, model: Model) -> Sequences:
        """Returns Sequences in which rows with more steps than batch norm has statistics for are bad, too."""
        known = model.known_steps
        if known is None or (model.overrun != "raise" and known):
            return self
        lengths = self.lengths
        reasons = {
            int(row): f"it has {lengths[row]} steps, and statistics are known for {known} only"
            for row in np.flatnonzero(lengths > known)
        }
        return self.of(self.values, self.offsets, self.null, self.bad | reasons) if reasons else self


def float32(values: Array) -> tuple[Array, dict[int, str]]:
    """Returns (values (N, width) as float32, {step with a finite number beyond float32's range: reason})."""
    with np.errstate(over="ignore"):  # numbers out of range become infinite, and are found below
        result = np.ascontiguousarray(values, np.float32)
    if values.dtype.itemsize <= 4:
        return result, {}
    wrong = np.flatnonzero((np.isinf(result) & np.isfinite(values)).any(1))
    return result, dict.fromkeys(wrong.tolist(), "holds a number beyond float32")


def bad_rows(offsets: Array, null: Array, wrong: dict[int, str]) -> dict[int, str]:
    """Returns {row: reason of its first invalid step}. wrong: {step: reason}."""
    reasons: dict[int, str] = {}
    places = sorted(wrong)
    rows = np.searchsorted(offsets, places, side="right") - 1
    for place, row in zip(places, rows.tolist(), strict=True):
        if 0 <= row < len(null) and not null[row]:
            reasons.setdefault(row, f"step {place - offsets[row]} {wrong[place]}")
    return reasons


def result_width(model: Model) -> int:
    return model.num_directions * architecture(model).h_width


def run(model: Model, given: Sequences, into: Into, threads: int | None) -> Array:
    """Returns each row's result (B, directions * H) float32, or for "all" y (N, directions * H).

    Rows without steps get zeros. Rows are computed in batches, which limits the memory for y. They are
    sorted by length first, so that a batch has rows of similar length. If one batch suffices, values
    are not copied. With many batches of many rows, each thread computes its own batches, so that copies
    and results are parallel too.
    """
    lengths, wide = given.lengths, result_width(model)
    rows = len(given.values) if into == "all" else len(given)
    budget = max(PIECE // max(wide, model.input_size), 1)
    workers = min(threads or 1024, get_num_threads())
    pieces = _pieces(lengths, max(budget // (2 * workers), 1)) if workers > 1 else []
    if len(given) < ROWS * len(pieces) or len(pieces) < 4 * workers:
        if len(given.values) <= budget and len(given) <= budget:
            return _result(model, given.values, given.offsets, into, threads)
        workers, pieces = 1, _pieces(lengths, budget)
    results = np.zeros((rows, wide), np.float32)

    def compute(piece: Array) -> None:
        own, starts = lengths[piece], given.offsets[:-1][piece]
        steps = _steps(starts, own)
        result = _result(model, given.values[steps], _offsets(own), into, threads if workers == 1 else 1)
        results[steps if into == "all" else piece] = result

    if workers == 1:
        for piece in pieces:
            compute(piece)
    else:
        with ThreadPoolExecutor(workers) as pool:
            for _ in pool.map(compute, pieces):
                pass
    return results


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
    """Returns the mean over each row's steps (B, W), computed in float64 and rounded to float32 once."""
    result = np.zeros((len(offsets) - 1, y.shape[1]), np.float32)
    with np.errstate(all="ignore"):  # infinities and NaN stay in their rows
        for row, (first, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
            if end > first:
                result[row] = y[first:end].sum(0, dtype=np.float64) / (end - first)
    return result


def _pieces(lengths: Array, budget: int) -> list[Array]:
    """Returns batches: arrays of row indices, longest rows first, with at most `budget` steps in each.

    A row counts as one step at least. A row of more than `budget` steps forms a batch alone.
    """
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(np.maximum(lengths[order], 1))
    pieces, first = [], 0
    while first < len(order):
        before = ends[first - 1] if first else 0
        end = max(int(np.searchsorted(ends, before + budget, side="right")), first + 1)
        pieces.append(order[first:end])
        first = end
    return pieces


def _offsets(lengths: Array) -> Array:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _steps(starts: Array, lengths: Array) -> Array:
    """Returns the step indices of all rows, concatenated. Row b begins at starts[b]."""
    ends = np.cumsum(lengths, dtype=np.int64)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)
