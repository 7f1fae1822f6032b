"""Forward runs that are remembered, and back-propagation through time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import bad_type, shaped
from .batches import FLOAT32, State, longest_first, sequences
from .sites import norm_sites
from .specs import LayerNormSpec
from .statistics import blank, refuse_beyond

if TYPE_CHECKING:
    from .network import Network

Array = np.ndarray


@dataclass(frozen=True)
class Run:
    """One layer in one direction of a forward run."""

    layer: Any  # the packed one that ran
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
    """What `forward_train` keeps for `backward`. Its arrays are read-only; it can be read as often as one likes.

    It belongs to the network that made it, in the process that did: copy.copy gives the tape itself, pickle and
    copy.deepcopy raise TypeError.
    """

    owner: Network[Any]
    order: Array
    ends: Array  # lengths in that order
    layout: tuple[bool, tuple[int, ...]]  # unbatched, shape of y as the caller has it
    start: tuple[Array, ...]  # h0, or h0 and c0
    runs: tuple[Run, ...]  # by layer and direction

    def __post_init__(self) -> None:
        for array in (self.order, self.ends, *self.start):
            array.setflags(write=False)
        for run in self.runs:
            for array in run.arrays():
                array.setflags(write=False)

    def __copy__(self) -> Tape:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a Tape cannot be pickled or deep-copied: it belongs to the network that made it; keep the arguments of "
            "forward_train instead, and call it again"
        )


def _refuse(model: Network[Any]) -> None:
    """Raises ValueError for a network that cannot be trained here."""
    if model.dtype != "float32":
        raise ValueError(f"training wants float32 weights, these are {model.dtype}: use to_dtype('float32')")
    norm, cell = model.norm, model._cell
    if isinstance(norm, LayerNormSpec) and norm != LayerNormSpec(eps=norm.eps).resolved(cell):
        raise ValueError(
            f"forward_train cannot train {cell.name} with norm={norm}: train it with lnrnn.torch"
        )


def forward(model: Network[State], x: Any, h0: Any, lengths: Any) -> tuple[Array, State, Tape]:
    """See Network.forward_train."""
    _refuse(model)
    x, lengths, unbatched = sequences(x, lengths, model.input_size, model.batch_first)
    x = np.array(x, order="C")  # the tape's own: the caller may go on with x
    T, B, _ = x.shape
    start = [np.array(s) for s in model._states("h0", h0, B, unbatched)]
    order, ends = map(np.array, longest_first(lengths, T, B))  # copies, as of x
    if model._batch_norm:
        refuse_beyond(model._batch_norm.max_steps, order, ends)
    alive, runs = int(ends.sum()), []

    def note(layer: Any, x: Array, y: Array) -> tuple[Any, Array]:
        run = Run(layer, blank(model._sides, T) if model._sides else None, layer.tape(alive), x, y)
        runs.append(run)
        return run.statistics, run.record

    y, end = model._run(x, order, ends, start, note)
    shown = model._as_caller(y, unbatched)
    tape = Tape(model, order, ends, (unbatched, shown.shape), tuple(start), tuple(runs))
    found = np.array(shown), model._as_state(end, unbatched), tape
    if model._sides:  # last of all: who interrupts the call finds the statistics as they were
        model._learn([run.statistics for run in runs if run.statistics is not None])
    return found


def backward(model: Network[State], tape: Tape, gy: Any, gh: Any) -> tuple[Array, State, dict[str, Array]]:
    """See Network.backward."""
    if not isinstance(tape, Tape) or tape.owner is not model:
        raise bad_type("tape", "what this network's forward_train returned", tape)
    (unbatched, shape), H, D = tape.layout, model.hidden_size, model.num_directions
    T, B, _ = tape.runs[0].x.shape
    if gy is None:
        grad = np.zeros((T, B, D * H), FLOAT32)
    else:
        given = shaped("gy", gy, shape, FLOAT32)
        given = given[:, None] if unbatched else given.swapaxes(0, 1) if model.batch_first else given
        grad = np.ascontiguousarray(given)
    gend = model._states("gh", gh, B, unbatched)
    gstart = [np.empty_like(g) for g in gend]
    sites = norm_sites(model._cell, model.norm)
    grads: dict[str, Array] = {}
    gx = grad
    for k in reversed(range(len(tape.runs))):
        run, d = tape.runs[k], k % D
        if d == D - 1:
            grad, gx = gx, np.zeros(run.x.shape, FLOAT32)
        g_ih, g_hh = (np.empty(w.shape, FLOAT32) for w in _weights(model, k))
        found: dict[str, Array] = {
            name: np.empty(site.width(H)) for site in sites for name in site.parameters if name
        }
        below = np.zeros(run.x.shape, FLOAT32)
        c0, gcn, gc0 = (tape.start[1][k], gend[1][k], gstart[1][k]) if len(gend) > 1 else (None, None, None)
        run.layer.backward(
            x=run.x, y=run.y, h0=tape.start[0][k], c0=c0, order=tape.order, length=tape.ends,
            statistics=run.statistics, tape=run.record, gy=grad[:, :, d * H : (d + 1) * H], ghn=gend[0][k], gcn=gcn,
            gx=below, gh0=gstart[0][k], gc0=gc0, gw_ih=g_ih, gw_hh=g_hh,
            sites={site.side: tuple(found.get(name or "") for name in site.parameters) for site in sites},
        )  # fmt: skip
        gx += below
        found |= {"weight_ih": g_ih, "weight_hh": g_hh}
        grads |= {name + model._suffixes[k]: np.array(g, np.float32) for name, g in found.items()}
    gx = np.ascontiguousarray(model._as_caller(gx, unbatched))
    return gx, model._as_state(gstart, unbatched), {name: grads[name] for name in model._parameters}


def _weights(model: Network[Any], k: int) -> tuple[Array, Array]:
    suffix = model._suffixes[k]
    return model._parameters[f"weight_ih{suffix}"], model._parameters[f"weight_hh{suffix}"]
