"""Forward runs that are remembered, and back-propagation through time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .._core import Layer, empty
from ..errors import bad_type, bad_value, integer, shaped
from ..state import copied
from . import engine
from .architecture import LIMIT, Architecture
from .batches import FLOAT32, State, as_caller, as_state, checked_batch, integers, time_first
from .checkpoints import Checkpoints
from .dropout import Masks, checked_seed, draw
from .rows import LENGTH, Rows, call_rows
from .snapshot import Snapshot
from .specs import dropout_spec
from .statistics import blank, refuse_beyond

Array = np.ndarray


class Run(NamedTuple):
    """One layer in one direction of a forward run."""

    layer: Layer  # the packed one that ran
    statistics: dict[str, Any] | None  # of the batch, as statistics.blank has them
    record: Array | Checkpoints  # the tape of the compiled module, or what makes it again
    x: Array  # (T, B, inputs)
    y: Array  # (T, B, H)

    def arrays(self) -> Iterator[Array]:
        yield from (self.x, self.y)
        yield from self.kept()

    def kept(self) -> Iterator[Array]:
        """All but x and y."""
        yield from self.record.arrays() if isinstance(self.record, Checkpoints) else (self.record,)
        for value in (self.statistics or {}).values():
            yield from value if isinstance(value, tuple) else (value,)


@dataclass(frozen=True, eq=False, repr=False)
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
    masks: Masks | None
    runs: tuple[Run, ...]  # by layer and direction

    @property
    def nbytes(self) -> int:
        """Bytes of all that it keeps."""
        directions = self.architecture.directions
        held = [*self.rows.arrays(), *self.start, *([] if self.masks is None else self.masks.arrays())]
        for k, run in enumerate(self.runs):
            held += [run.y, *run.kept()]
            dropped = self.masks is not None and self.masks.drops_input(k // directions)
            if k % directions == 0 and (k == 0 or dropped):  # else it is the y of the layer below
                held.append(run.x)
        return sum(array.nbytes for array in held)

    def __repr__(self) -> str:
        T, B, _ = self.runs[0].x.shape
        return f"Tape({self.architecture}, steps={T}, batch_size={B}, nbytes={self.nbytes})"

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


def forward(
    owner: object,
    snapshot: Snapshot,
    x: Any,
    h0: Any,
    lengths: Any,
    resets: Any,
    dropout: Any = None,
    seed: Any = None,
    checkpoint: Any = None,
) -> tuple[Array, State, Tape, list[dict[str, Any]]]:
    """See Network.forward_train. owner: the network, whose version the snapshot is. -> also the statistics of
    this batch, by layer and direction as statistics.blank has them; none without batch norm."""
    _refuse(snapshot)
    made = snapshot.architecture
    if dropout is None and snapshot.dropout and made.num_layers > 1:
        dropout = snapshot.dropout
    simple = dropout is None and seed is None and checkpoint is None and resets is None
    if simple and not made.batch_norm and not snapshot.zoneout:
        found = snapshot.compiled().train(x, h0, None if lengths is None else integers("lengths", lengths))
        if found is not None:
            y, state, begin, table, parts = found
            tape = Tape(owner, made, Rows(table), (False, y.shape), begin, None, _runs(made, parts))
            return y, state, tape, []
    spec, entropy, every = dropout_spec(dropout), checked_seed(seed), checked_checkpoint(checkpoint)
    x, lengths, unbatched = checked_batch(x, lengths, made.input_size, made.batch_first)
    x = copied(x)  # the tape's own: the caller may go on with x
    T, B, _ = x.shape
    start = [np.array(s) for s in engine.state_arrays(made, "h0", h0, B, unbatched)]
    rows = call_rows(resets, lengths, x, unbatched, made.batch_first)
    rows = Rows(np.array(rows.table), rows.parts)  # a copy, as of x
    if made.batch_norm:
        refuse_beyond(made.batch_norm.max_steps, rows.table)
    masks = draw(made, spec, snapshot.zoneout, entropy, T, B)
    alive, runs = int(rows.table[:, LENGTH].sum()), []

    def note(layer: Layer, x: Array, y: Array) -> tuple[dict[str, Any] | None, Array | Checkpoints]:
        statistics = blank(made.sides, rows.longest) if made.sides else None
        record = layer.tape(alive) if every is None else Checkpoints(every)
        runs.append(Run(layer, statistics, record, x, y))
        return runs[-1].statistics, runs[-1].record

    y, end = engine.run(snapshot, x, rows, start, note, masks=masks)
    shown = as_caller(y, unbatched, made.batch_first)
    kept = [array for one in runs for array in one.arrays()] + ([] if masks is None else masks.arrays())
    for array in (*rows.arrays(), *start, *kept):
        array.setflags(write=False)
    tape = Tape(owner, made, rows, (unbatched, shown.shape), tuple(start), masks, tuple(runs))
    seen = [one.statistics for one in runs if one.statistics is not None]
    return copied(shown), as_state(end, unbatched), tape, seen


def checked_checkpoint(checkpoint: Any) -> int | None:
    """The argument `checkpoint` of forward_train and tape_bytes."""
    return None if checkpoint is None else integer("checkpoint", checkpoint, 1, LIMIT)


def tape_bytes(snapshot: Snapshot, steps: int, batch: int, every: int | None) -> int:
    """See Network.tape_bytes."""
    _refuse(snapshot)
    made = snapshot.architecture
    states = made.cell.states * made.hidden_size
    rows, parts = steps * batch, 0 if every is None else -(-steps // every)
    floats = rows * (made.input_size + made.num_layers * made.directions * made.hidden_size)
    for layer in snapshot.layers():
        floats += batch * states * (1 + parts) + (layer.tape_width * rows if every is None else 0)
    statistics = 8 * steps * (2 * sum(made.sides.values()) + 1) * len(made.suffixes) if made.sides else 0
    return 4 * floats + 48 * batch + statistics


def _runs(made: Architecture, parts: Iterable[tuple[Layer, Array, Array, Array]]) -> tuple[Run, ...]:
    """Of what the compiled module says of each layer and direction: it, its record, and what it read and what
    those beside it wrote, laid out as the caller's x."""
    D, H = made.directions, made.hidden_size
    found = []
    for k, (layer, record, x, y) in enumerate(parts):
        x, y = time_first(x, False, made.batch_first), time_first(y, False, made.batch_first)
        own = y if D == 1 else y[:, :, k % D * H : (k % D + 1) * H]
        found.append(Run(layer, None, record, x, own))
    return tuple(found)


def backward(
    tape: Tape, gy: Any, gh: Any, grad_x: bool, out: Any
) -> tuple[Array | None, State, dict[str, Array]]:
    """See Network.backward."""
    made, (unbatched, shape), masks = tape.architecture, tape.layout, tape.masks
    H, D = made.hidden_size, made.directions
    T, B, _ = tape.runs[0].x.shape
    if gy is None:
        grad = np.zeros((T, B, D * H), FLOAT32)
    else:
        shown = shaped("gy", gy, shape, FLOAT32)
        grad = np.ascontiguousarray(time_first(shown, unbatched, made.batch_first))
        # An axis of length 1 may have any stride: contiguous to NumPy, not to the compiled module.
        grad = grad.reshape(-1).reshape(T, B, D * H)
    gend = None if gh is None else engine.state_arrays(made, "gh", gh, B, unbatched)
    if out is not None:
        refuse_gradients(out, made)
        grad = _apart(grad, out)
        gend = None if gend is None else [_apart(g, out) for g in gend]
    gstart = [np.empty(s.shape, FLOAT32) for s in tape.start]
    grads: dict[str, Any] = dict.fromkeys(made.shapes)  # in their order
    gx: Array | None = None
    table = tape.rows.table
    whole = tape.rows.parts is None and len(table) > 0 and int(table[-1, LENGTH]) == T  # the shortest
    for k in reversed(range(len(tape.runs))):
        run, d, names = tape.runs[k], k % D, made.gradients[k]
        if d == D - 1 and gx is not None:
            grad, gx = gx, None
        below: Array | None = None
        if grad_x or k >= D:
            below = empty(run.x.shape)
            if not whole:
                below[...] = 0
        rows, parts, reverse = tape.rows, tape.rows.parts, d == 1
        before, gbefore = [s[k] for s in tape.start], [g[k] for g in gstart]
        gafter = [None] if gend is None else [g[k] for g in gend]
        if parts is not None:  # states are those of the parts
            before = [rows.begin(s, reverse) for s in before]
            gafter = [g if g is None else parts.begin_backward(g, reverse) for g in gafter]
            gbefore = [np.empty_like(s) for s in before]
        dropped = None if masks is None else masks.of_layer(k)
        given = None if out is None else [out[name] for name in names]
        own = grad[:, :, d * H : (d + 1) * H]
        if isinstance(run.record, Checkpoints):
            found = run.record.backward(
                run.layer, reverse, x=run.x, rows=rows.table, statistics=run.statistics, masks=dropped,
                gy=own, gafter=gafter, gx=below, gbefore=gbefore, grads=given,
            )  # fmt: skip
        else:
            found = run.layer.backward(
                x=run.x, y=run.y, h0=before[0], c0=before[-1], rows=rows.table,
                statistics=run.statistics, tape=run.record, masks=dropped, gy=own,
                ghn=gafter[0], gcn=gafter[-1], gx=below, gh0=gbefore[0], gc0=gbefore[-1],
                grads=given, add=given is not None,
            )  # fmt: skip
        if parts is not None:
            for g, made_of in zip(gstart, gbefore, strict=True):
                g[k] = parts.finish_backward(made_of, reverse)
        gx = below if gx is None or below is None else gx + below
        if d == 0 and gx is not None and masks is not None and masks.drops_input(k // D):
            masks.on_input(k // D, gx, gx)
        grads.update(zip(names, found, strict=True))
    if gx is not None:
        gx = np.ascontiguousarray(as_caller(gx, unbatched, made.batch_first))
    return gx, as_state(gstart, unbatched), grads if out is None else out


def _apart(array: Array, out: dict[str, Array]) -> Array:
    """array, or a copy of it if gradients are written to its memory while it is still read."""
    return array.copy() if any(np.may_share_memory(array, g) for g in out.values()) else array


def refuse_gradients(out: Any, made: Architecture) -> None:
    """Raises ValueError or TypeError for arrays that gradients cannot be added to: they must have the names
    and shapes of the parameters, be float32, C-contiguous and writeable, and have no memory in common."""
    if not isinstance(out, dict):
        raise bad_type("out", "a dict of arrays by parameter name", out)
    if missing := [name for name in made.shapes if name not in out]:
        raise bad_value("out", f"with all parameters, also {missing[0]}", sorted(out))
    if unknown := [name for name in out if name not in made.shapes]:
        raise bad_value("out", "with the names of the parameters alone", unknown[0])
    for name, shape in made.shapes.items():
        g = out[name]
        if not isinstance(g, np.ndarray) or g.dtype != FLOAT32:
            raise bad_type(f"out[{name!r}]", "an array of float32", g)
        if g.shape != shape or not g.flags.c_contiguous or not g.flags.writeable or not g.flags.aligned:
            raise bad_value(f"out[{name!r}]", f"of shape {shape}, C-contiguous and writeable", g)
    spans = sorted((g.__array_interface__["data"][0], g.nbytes, name) for name, g in out.items())
    for (at, size, name), (other, _, of) in zip(spans, spans[1:], strict=False):
        if at + size > other:
            raise ValueError(f"out[{name!r}] and out[{of!r}] must not share memory")
