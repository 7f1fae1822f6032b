"""Network.calibrate: exact batch norm statistics of any number of sequences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..errors import bad_type, bad_value, message
from . import engine
from .architecture import Architecture
from .batches import checked_batch
from .rows import Rows, checked_resets, padded, reset
from .snapshot import Snapshot
from .statistics import StepStatistics, blank, refuse_beyond

Array = np.ndarray


def joined(made: Architecture, batches: Iterable[Any]) -> tuple[Array, Rows]:
    """Joins batches into one. Returns x (T, B, D) and its Rows. batches: as in Network.calibrate.

    Raises ValueError, TypeError or SequenceTooLongError for an invalid batch.
    """
    if made.batch_norm is None:
        raise bad_value("norm", "batch norm for calibrate", made.norm)
    if hasattr(batches, "ndim") or not isinstance(batches, Iterable):
        expected = "an iterable of x, (x, lengths) or (x, lengths, resets)"
        raise bad_type("batches", expected, batches, "put one array into a list")
    parts = []
    for batch in batches:
        x, lengths, resets = batch, None, None
        if isinstance(batch, tuple) and len(batch) in (2, 3):
            x, lengths, resets = (*batch, None)[:3]
        x, lengths, unbatched = checked_batch(x, lengths, made.input_size, made.batch_first)
        if resets is not None:
            resets = checked_resets(resets, x.shape[:2], unbatched, made.batch_first)
        # Copies x, because an iterator may yield the same array with new contents.
        parts.append((np.array(x), np.full(x.shape[1], len(x)) if lengths is None else lengths, resets))
    lengths = np.concatenate([n for _, n, _ in parts]) if parts else np.empty(0, np.int64)
    T, B = int(lengths.max(initial=0)), len(lengths)
    if T == 0:
        raise ValueError(message("batches", "at least one sequence of at least one step", "none"))
    x, fresh, at = np.zeros((T, B, made.input_size), np.float32), np.zeros((T, B), bool), 0
    for part, n, resets in parts:
        x[: min(len(part), T), at : at + len(n)] = part[:T]
        if resets is not None:
            fresh[: min(len(part), T), at : at + len(n)] = resets[:T]
        at += len(n)
    rows = reset(fresh, lengths, T, B) if fresh.any() else padded(lengths, T, B)
    refuse_beyond(made.batch_norm.max_steps, rows.table)
    return x, rows


def statistics(snapshot: Snapshot, x: Array, rows: Rows) -> dict[str, StepStatistics]:
    """Returns {suffix: StepStatistics}, computed with all rows of x as one batch."""
    made, T, B = snapshot.architecture, rows.longest, x.shape[1]
    seen = [blank(made.sides, T) for _ in made.suffixes]
    start = engine.state_arrays(made, "h0", None, B, False)
    engine.run(snapshot, x, rows, start, engine.Training(seen))
    room = made.batch_norm.max_steps or 0 if made.batch_norm else 0
    nothing = StepStatistics.empty(made.sides, max(T, room))
    return {end: nothing.updated(batch, None) for end, batch in zip(made.suffixes, seen, strict=True)}
