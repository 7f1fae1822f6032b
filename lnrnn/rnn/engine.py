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

from .._core import Layer, empty
from ..errors import shaped
from .architecture import Architecture
from .batches import FLOAT32, as_caller, as_state, checked_batch, integers, states
from .checkpoints import Checkpoints
from .dropout import Masks
from .rows import Rows, call_rows
from .snapshot import Snapshot
from .statistics import StepStatistics

Array = np.ndarray

# Called with each layer, its input and its output before it runs; gives the statistics and the tape that the
# layer writes, each None if it is to write none.
Note = Callable[[Layer, Array, Array], tuple[Mapping[str, Any] | None, Array | Checkpoints | None]]


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
    snapshot: Snapshot,
    x: Array,
    rows: Rows,
    start: Sequence[Array],
    note: Note | None = None,
    threads: int = 0,
    out: Array | None = None,
    masks: Masks | None = None,
) -> tuple[Array, list[Array]]:
    """All layers and directions.

    x (T, B, D) float32; start: see `state_arrays`; threads: the most that are used, 0: as set for all calls.
    out: where to write y, float32, the last axis contiguous, without memory in common with x. masks: what is
    dropped, with a tape; x is then written to.
    -> y (T, B, directions * H), in memory (B, T, *) with batch_first, and the states at the sequences' ends.
    """
    made = snapshot.architecture
    T, B, _ = x.shape
    directions, H = made.directions, made.hidden_size
    end = [np.empty_like(s) for s in start]
    statistics = tape = None
    beside = None  # in training each layer runs before the next is prepared
    if note is None and masks is None:
        beside = snapshot.compiled().together(rows.table, threads)
    ends = []
    y = x
    for k, layer in enumerate(snapshot.layers()):
        d = k % directions
        if d == 0 and out is not None and k >= len(made.suffixes) - directions:
            x, y = y, out
        elif d == 0:
            x = y
            wide = directions * H
            y = empty((B, T, wide)).swapaxes(0, 1) if made.batch_first else empty((T, B, wide))
        if d == 0 and masks is not None and masks.drops_input(k // directions):
            whole = x  # of the first layer x itself: nobody else has it
            x = x if k == 0 else np.empty_like(whole)
            masks.on_input(k // directions, whole, x)
        part = y if directions == 1 else y[:, :, d * H : (d + 1) * H]
        if note is not None:
            statistics, tape = note(layer, x, part)
        before = [rows.begin(s[k], d == 1) for s in start]
        after = [e[k] for e in end] if rows.parts is None else [np.empty_like(s) for s in before]
        ends.append(after)
        dropped = None if masks is None else masks.of_layer(k)
        if beside is not None:
            beside.set(k, layer, x=x, y=part, h0=before[0], hn=after[0], c0=before[-1], cn=after[-1])
        elif isinstance(tape, Checkpoints):
            tape.forward(
                layer, d == 1, x=x, y=part, before=before, after=after, rows=rows.table,
                statistics=statistics, masks=dropped, threads=threads,
            )  # fmt: skip
        else:
            layer.forward(
                x=x, y=part, h0=before[0], hn=after[0], c0=before[-1], cn=after[-1], rows=rows.table,
                statistics=statistics, tape=tape, masks=dropped, threads=threads,
            )  # fmt: skip
    if beside is not None:
        beside.run()
    for k, after in enumerate(ends if rows.parts is not None else ()):
        for e, found in zip(end, after, strict=True):
            e[k] = rows.finish(found, k % directions == 1)
    return y, end


def call(snapshot: Snapshot, x: Any, h0: Any, lengths: Any, resets: Any, threads: int) -> Any:
    """Network.__call__ of that version of a network. threads: the most that are used, 0: as set."""
    if lengths is not None:
        lengths = integers("lengths", lengths)
    if resets is None:
        found = snapshot.compiled().call(x, h0, lengths, threads)
        if found is not None:
            return found
    made = snapshot.architecture
    x, lengths, unbatched = checked_batch(x, lengths, made.input_size, made.batch_first)
    rows = call_rows(resets, lengths, x, unbatched, made.batch_first)
    start = state_arrays(made, "h0", h0, x.shape[1], unbatched)
    snapshot.refuse_overrun(rows.table)
    y, end = run(snapshot, x, rows, start, threads=threads)
    return as_caller(y, unbatched, made.batch_first), as_state(end, unbatched)


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
