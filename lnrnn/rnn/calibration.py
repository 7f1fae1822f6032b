"""Exact statistics for batch norm inside a cell, over any number of sequences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import bad_type
from .batches import longest_first, sequences
from .statistics import StepStatistics, blank, refuse_beyond

if TYPE_CHECKING:
    from .network import Network


def calibrate(model: Network[Any], batches: Iterable[Any]) -> None:
    """See Network.calibrate."""
    batch_norm = model._batch_norm
    if batch_norm is None:
        raise ValueError("calibrate belongs to batch norm, and this network has none")
    if hasattr(batches, "ndim") or not isinstance(batches, Iterable):
        raise bad_type("batches", "an iterable of x or (x, lengths), not one array", batches)
    parts = []
    for batch in batches:
        x, lengths = batch if isinstance(batch, tuple) and len(batch) == 2 else (batch, None)
        x, lengths, _ = sequences(x, lengths, model.input_size, model.batch_first)
        # A copy: an iterator may fill one array again and again.
        parts.append((np.array(x), np.full(x.shape[1], len(x)) if lengths is None else lengths))
    lengths = np.concatenate([n for _, n in parts]) if parts else np.empty(0, np.int64)
    T, B = int(lengths.max(initial=0)), len(lengths)
    if T == 0:
        raise ValueError("batches must hold at least one sequence of at least one step, got none")
    order, ends = longest_first(lengths, T, B)
    refuse_beyond(batch_norm.max_steps, order, ends)
    x, at = np.zeros((T, B, model.input_size), np.float32), 0
    for part, n in parts:
        x[: min(len(part), T), at : at + len(n)] = part[:T]
        at += len(n)
    seen: list[dict[str, Any]] = []

    def note(layer: Any, x: np.ndarray, y: np.ndarray) -> tuple[Any, None]:
        seen.append(blank(model._sides, T))
        return seen[-1], None

    model._run(x, order, ends, model._states("h0", None, B, False), note)
    nothing = StepStatistics.empty(model._sides, max(T, batch_norm.max_steps or 0))
    found = {end: nothing.updated(batch, None) for end, batch in zip(model._suffixes, seen, strict=True)}
    model._change(lambda old: old.changed(statistics=found))
