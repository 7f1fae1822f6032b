"""What a network computes with: one version of it (snapshot.Snapshot), run over whole sequences.

This is all that training.py, calibration.py and network.py know of computing: a Snapshot holds the
description of the network (its `architecture`, which never changes), parameters and statistics; `run` runs
it; `with_batch` and `with_statistics` give the version that follows when statistics have been taken. Nothing
here changes a network: whoever owns one puts the new version in the place of the old.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .._core import Layer
from ..errors import shaped
from .architecture import Architecture
from .batches import FLOAT32, states
from .snapshot import Snapshot
from .statistics import StepStatistics

Array = np.ndarray

# Called with each layer, its input and its output before it runs; gives the statistics and the tape that the
# layer writes, each None if it is to write none.
Note = Callable[[Layer, Array, Array], tuple[Mapping[str, Any] | None, Array | None]]


def state_arrays(made: Architecture, name: str, value: Any, batch: int, unbatched: bool) -> list[Array]:
    """What an argument says of h, or of h and c: arrays (num_layers * directions, B, H) float32, zeros for
    None. Raises ValueError or TypeError that names the argument."""
    shape = (len(made.suffixes), batch, made.hidden_size)
    if value is None:
        return [np.zeros(shape, FLOAT32)] * made.cell.states  # one array twice: nobody writes to it
    outer = (shape[0], shape[2]) if unbatched else shape
    return [np.zeros(shape, FLOAT32) if v is None else shaped(n, v, outer, FLOAT32).reshape(shape)
            for n, v in states(name, value, made.cell)]  # fmt: skip


def run(
    snapshot: Snapshot, x: Array, order: Array, ends: Array, start: Sequence[Array], note: Note | None = None
) -> tuple[Array, list[Array]]:
    """All layers and directions.

    x (T, B, D) float32; order, ends: see batches.longest_first; start: see `state_arrays`.
    -> y (T, B, directions * H), in memory (B, T, *) with batch_first, and the states at the sequences' ends.
    """
    made = snapshot.architecture
    T, B, _ = x.shape
    directions, H = made.directions, made.hidden_size
    end = [np.empty_like(s) for s in start]
    c0 = cn = statistics = tape = None
    y = x
    for k, layer in enumerate(snapshot.layers()):
        d = k % directions
        if d == 0:
            x = y
            wide = directions * H
            y = (
                np.empty((B, T, wide), FLOAT32).swapaxes(0, 1)
                if made.batch_first
                else np.empty((T, B, wide), FLOAT32)
            )
        part = y if directions == 1 else y[:, :, d * H : (d + 1) * H]
        if len(start) > 1:
            c0, cn = start[1][k], end[1][k]
        if note is not None:
            statistics, tape = note(layer, x, part)
        layer.forward(
            x=x, y=part, h0=start[0][k], hn=end[0][k], c0=c0, cn=cn,
            order=order, length=ends, statistics=statistics, tape=tape,
        )  # fmt: skip
    return y, end


def with_batch(snapshot: Snapshot, seen: Sequence[Mapping[str, Any]]) -> Snapshot:
    """The version after training on one batch. seen: its statistics, by layer and direction, as
    statistics.blank has them."""
    made, old = snapshot.architecture, snapshot.statistics
    momentum = made.batch_norm.momentum if made.batch_norm else None
    pairs = zip(made.suffixes, seen, strict=True)
    return snapshot.changed(statistics={end: old[end].updated(batch, momentum) for end, batch in pairs})


def with_statistics(snapshot: Snapshot, found: Mapping[str, StepStatistics]) -> Snapshot:
    """The version with these statistics, by suffix, in the place of the old ones."""
    return snapshot.changed(statistics=found)
