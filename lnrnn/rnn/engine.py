"""Runs whole sequences through a Snapshot, an immutable version of a network.

network.py, training.py and calibration.py call these functions. `run` computes outputs. `with_batch`
returns a snapshot with updated statistics, by which the caller replaces the old one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._core import empty
from .architecture import Architecture
from .batches import FLOAT32, STATE, as_caller, as_state, checked_batch, integers, side_by_side, states
from .dropout import MaskArrays
from .rows import Rows, call_rows
from .snapshot import Snapshot

Array = np.ndarray


class Training(NamedTuple):
    """Arrays of a call that records a tape or statistics. C reads the masks and writes all other arrays.

    statistics, tapes, masks: one item for each layer and direction. statistics.blank creates an item of
    statistics, Masks.of_layer an item of masks. outputs: for each layer, from `empty_outputs`. dropped: for
    each layer None, or (array to which C writes the input after dropout, *Masks.of_input). The first
    layer has None, because the caller applies dropout to x.
    """

    statistics: Sequence[Mapping[str, Any]] | None = None
    tapes: Sequence[Array | None] | None = None
    masks: Sequence[MaskArrays] | None = None
    outputs: Sequence[Array] | None = None
    dropped: Sequence[tuple[Array, Array | None, float, Array | None] | None] = ()

    def arrays(self, made: Architecture) -> list[Array | None]:
        """Returns all arrays in the order of lnrnn_training_array_of (network.h), None for unused arrays."""
        found: list[Array | None] = []
        for k in range(len(self.statistics or self.tapes or made.suffixes)):
            found.append(self.tapes[k] if self.tapes else None)
            found += self.masks[k] if self.masks else (None, None, None)
            found += self.statistics[k].values() if self.statistics else ()
        for k in range(made.num_layers):
            # The last layer needs no array: it writes its outputs to the call's y.
            y = self.outputs[k] if self.outputs and k < made.num_layers - 1 else None
            found.append(None if y is None else as_caller(y, False, made.batch_first))
            dropped = self.dropped[k] if self.dropped else None
            if dropped is None:
                found += (None, None, None, None)
            else:
                inputs, kept, scale, factors = dropped
                found += (
                    as_caller(inputs, False, made.batch_first),
                    kept,
                    np.array([scale], FLOAT32),
                    factors,
                )
        return found


def empty_outputs(made: Architecture, T: int, B: int) -> Array:
    """Returns an uninitialised array (T, B, directions * P). With batch_first, its memory is (B, T, *)."""
    wide = made.directions * made.h_width
    found: Array = empty((B, T, wide)).swapaxes(0, 1) if made.batch_first else empty((T, B, wide))
    return found


def state_arrays(made: Architecture, name: str, value: Any, batch: int, unbatched: bool) -> list[Array]:
    """Returns float32 arrays (num_layers * directions, B, *) of a state argument: h, or h and the cell state.

    value None means zeros. Raises ValueError or TypeError, which names the argument.
    """
    lines = len(made.suffixes)
    cell = made.cell
    named = [(name, None)] * len(cell.state_names) if value is None else states(name, value, cell)
    found = []
    for (n, v), width in zip(named, made.state_widths, strict=True):
        shape = lines, batch, width
        outer = (lines, width) if unbatched else shape
        given = STATE.check(n, v, {"state": outer, "dtype": FLOAT32})
        found.append(np.zeros(shape, FLOAT32) if given is None else given.reshape(shape))
    return side_by_side(found, cell)


def run(
    snapshot: Snapshot,
    x: Array,
    rows: Rows,
    start: Sequence[Array],
    training: Training | None = None,
    threads: int = 0,
    out: Array | None = None,
) -> tuple[Array, list[Array]]:
    """Runs all layers and directions on x (T, B, D) float32. Returns y and the sequences' last states.

    start: from `state_arrays`. threads: the thread limit; 0: the global limit. out: receives y; float32, last
    axis contiguous, no memory shared with x. y is (T, B, directions * P), with batch_first in memory
    (B, T, *).
    """
    made = snapshot.architecture
    y = empty_outputs(made, x.shape[0], x.shape[1]) if out is None else out
    before = [rows.begin(s, made.reversed) for s in start]
    after = [np.empty_like(s) for s in before]
    snapshot.compiled().forward(
        x=x, y=y, h0=before[0], hn=after[0], c0=before[-1], cn=after[-1], rows=rows.table,
        training=None if training is None else training.arrays(made), threads=threads,
    )  # fmt: skip
    return y, [rows.finish(s, made.reversed) for s in after]


def call(snapshot: Snapshot, x: Any, h0: Any, lengths: Any, resets: Any, threads: int) -> Any:
    """Runs Network.__call__ for this snapshot. threads: the thread limit; 0: the global limit."""
    if lengths is not None:
        lengths = integers("lengths", lengths)
    made = snapshot.architecture
    if resets is None and (made.cell.parts == 1 or h0 is None):
        found: Any = snapshot.compiled().call(x, h0, lengths, threads)
        if found is not None:
            return found if made.cell.parts == 1 else (found[0], as_state(found[1], made.cell))
    x, lengths, unbatched = checked_batch(x, lengths, made.input_size, made.batch_first)
    rows = call_rows(resets, lengths, x, unbatched, made.batch_first)
    start = state_arrays(made, "h0", h0, x.shape[1], unbatched)
    snapshot.refuse_overrun(rows.table)
    y, end = run(snapshot, x, rows, start, threads=threads)
    return as_caller(y, unbatched, made.batch_first), as_state(end, made.cell, unbatched)


def with_batch(snapshot: Snapshot, seen: Sequence[Mapping[str, Any]]) -> Snapshot:
    """Returns the snapshot with running statistics updated after a training batch. seen: its statistics
    for each layer and direction, under the names of statistics.blank."""
    made, old = snapshot.architecture, snapshot.statistics
    momentum = made.batch_norm.momentum if made.batch_norm else None
    pairs = zip(made.suffixes, seen, strict=True)
    return snapshot.changed(statistics={end: old[end].updated(batch, momentum) for end, batch in pairs})
