"""Forward runs that are remembered, and back-propagation through time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from .._core import Layer
from ..errors import shaped
from . import engine
from .architecture import Architecture
from .batches import FLOAT32, State, as_caller, as_state, checked_batch, time_first
from .cells import Cell
from .rows import LENGTH, Rows, call_rows
from .sites import Norm, norm_sites
from .snapshot import Snapshot
from .specs import LayerNormSpec
from .statistics import blank, refuse_beyond

Array = np.ndarray


@dataclass(frozen=True)
class Run:
    """One layer in one direction of a forward run."""

    layer: Layer  # the packed one that ran
    statistics: dict[str, Any] | None  # of the batch, as statistics.blank has them
    record: Array  # the tape of the compiled module
    x: Array  # (T, B, inputs)
    y: Array  # (T, B, H)

    def arrays(self) -> Iterator[Array]:
        yield from (self.record, self.x, self.y)
        for value in (self.statistics or {}).values():
            yield from value if isinstance(value, tuple) else (value,)


@dataclass(frozen=True)
class Tape:
    """What `forward_train` keeps for `backward`. Its arrays are read-only; it can be read as often as one
    likes.

    It belongs to the network that made it, in the process that did: copy.copy gives the tape itself, pickle
    and copy.deepcopy raise TypeError.
    """

    owner: object  # that network
    architecture: Architecture
    rows: Rows
    layout: tuple[bool, tuple[int, ...]]  # unbatched, shape of y as the caller has it
    start: tuple[Array, ...]  # h0, or h0 and c0
    runs: tuple[Run, ...]  # by layer and direction

    def __post_init__(self) -> None:
        for array in (*self.rows.arrays(), *self.start):
            array.setflags(write=False)
        for run in self.runs:
            for array in run.arrays():
                array.setflags(write=False)

    def __copy__(self) -> Tape:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a Tape cannot be pickled or deep-copied: it belongs to the network that made it; "
            "keep the arguments of forward_train instead, and call it again"
        )


def _refuse(snapshot: Snapshot) -> None:
    """Raises ValueError for a network that cannot be trained here."""
    if snapshot.dtype != "float32":
        raise ValueError(
            f"training wants float32 weights, these are {snapshot.dtype}: use to_dtype('float32')"
        )
    norm, cell = snapshot.architecture.norm, snapshot.architecture.cell
    if not _has_gradients(cell, norm):
        raise ValueError(
            f"forward_train cannot train {cell.name} with norm={norm}: train it with lnrnn.torch"
        )


@lru_cache
def _has_gradients(cell: Cell, norm: Norm) -> bool:
    """Whether the compiled module has the derivative: of layer norm as in the paper alone."""
    return not isinstance(norm, LayerNormSpec) or norm == LayerNormSpec(eps=norm.eps).resolved(cell)


def forward(
    owner: object, snapshot: Snapshot, x: Any, h0: Any, lengths: Any, resets: Any
) -> tuple[Array, State, Tape, list[dict[str, Any]]]:
    """See Network.forward_train. owner: the network, whose version the snapshot is. -> also the statistics of
    this batch, by layer and direction as statistics.blank has them; none without batch norm."""
    _refuse(snapshot)
    made = snapshot.architecture
    x, lengths, unbatched = checked_batch(x, lengths, made.input_size, made.batch_first)
    x = np.array(x, order="C")  # the tape's own: the caller may go on with x
    T, B, _ = x.shape
    start = [np.array(s) for s in engine.state_arrays(made, "h0", h0, B, unbatched)]
    rows = call_rows(resets, lengths, x, unbatched, made.batch_first)
    rows = replace(rows, table=np.array(rows.table))  # a copy, as of x
    if made.batch_norm:
        refuse_beyond(made.batch_norm.max_steps, rows.table)
    alive, runs = int(rows.table[:, LENGTH].sum()), []

    def note(layer: Layer, x: Array, y: Array) -> tuple[dict[str, Any] | None, Array]:
        runs.append(
            Run(layer, blank(made.sides, rows.longest) if made.sides else None, layer.tape(alive), x, y)
        )
        return runs[-1].statistics, runs[-1].record

    y, end = engine.run(snapshot, x, rows, start, note)
    shown = as_caller(y, unbatched, made.batch_first)
    tape = Tape(owner, made, rows, (unbatched, shown.shape), tuple(start), tuple(runs))
    seen = [one.statistics for one in runs if one.statistics is not None]
    return np.array(shown), as_state(end, unbatched), tape, seen


def backward(tape: Tape, gy: Any, gh: Any) -> tuple[Array, State, dict[str, Array]]:
    """See Network.backward."""
    made, (unbatched, shape) = tape.architecture, tape.layout
    H, D = made.hidden_size, made.directions
    T, B, _ = tape.runs[0].x.shape
    if gy is None:
        grad = np.zeros((T, B, D * H), FLOAT32)
    else:
        given = shaped("gy", gy, shape, FLOAT32)
        grad = np.ascontiguousarray(time_first(given, unbatched, made.batch_first))
        # An axis of length 1 may have any stride: contiguous to NumPy, not to the compiled module.
        grad = grad.reshape(-1).reshape(T, B, D * H)
    gend = engine.state_arrays(made, "gh", gh, B, unbatched)
    gstart = [np.empty_like(g) for g in gend]
    sites = norm_sites(made.cell, made.norm)
    grads: dict[str, Array] = {}
    gx: Array = grad
    for k in reversed(range(len(tape.runs))):
        run, suffix, d = tape.runs[k], made.suffixes[k], k % D
        if d == D - 1:
            grad = gx
        g_ih, g_hh = (np.empty(made.shapes[f"weight_{side}{suffix}"], FLOAT32) for side in ("ih", "hh"))
        found: dict[str, Array] = {
            name: np.empty(site.width(H)) for site in sites for name in site.parameters if name
        }
        below = np.zeros(run.x.shape, FLOAT32)
        rows, reverse = tape.rows, d == 1
        before = [rows.begin(s[k], reverse) for s in tape.start]
        gafter = [rows.begin_backward(g[k], reverse) for g in gend]
        gbefore = [np.empty_like(g) for g in gafter]
        run.layer.backward(
            x=run.x, y=run.y, h0=before[0], c0=before[-1], rows=rows.table,
            statistics=run.statistics, tape=run.record, gy=grad[:, :, d * H : (d + 1) * H],
            ghn=gafter[0], gcn=gafter[-1], gx=below, gh0=gbefore[0], gc0=gbefore[-1], gw_ih=g_ih, gw_hh=g_hh,
            sites={s.side: (found.get(s.gain or ""), found.get(s.bias or "")) for s in sites},
        )  # fmt: skip
        for g, made_of in zip(gstart, gbefore, strict=True):
            g[k] = rows.finish_backward(made_of, reverse)
        gx = below if d == D - 1 else gx + below
        found |= {"weight_ih": g_ih, "weight_hh": g_hh}
        grads |= {name + suffix: np.asarray(g, np.float32) for name, g in found.items()}
    gx = np.ascontiguousarray(as_caller(gx, unbatched, made.batch_first))
    return gx, as_state(gstart, unbatched), {name: grads[name] for name in made.shapes}
