"""Training: forward calls that record a tape, and back-propagation through time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from .._core import Network, aligned, copied, empty, isa
from ..arguments import Integer, Optional, check
from ..errors import bad_type, bad_value, is_masked, message
from . import engine
from .architecture import LIMIT, Architecture
from .batches import FLOAT32, State, as_caller, as_state, checked_batch, integers, time_first
from .checkpoints import Checkpoints
from .dropout import Masks, checked_seed, draw
from .rows import LENGTH, Rows, call_rows
from .snapshot import Snapshot, tape_width
from .specs import dropout_spec
from .statistics import blank, refuse_beyond

Array = np.ndarray
CHECKPOINT = Optional(Integer(1, LIMIT))


class Run(NamedTuple):
    """The arrays of one layer and direction from a forward call."""

    statistics: Any  # the batch's statistics, in arrays from statistics.blank, or None
    record: Any  # the tape that C writes in forward and reads in backward, or Checkpoints
    x: Array  # (T, B, inputs)
    y: Array  # (T, B, P)

    def arrays(self) -> Iterator[Array]:
        yield from (self.x, self.y)
        yield from self.kept()

    def kept(self) -> Iterator[Array]:
        yield from self.record.arrays() if isinstance(self.record, Checkpoints) else (self.record,)
        yield from (self.statistics or {}).values()


@dataclass(frozen=True, eq=False, repr=False)
class Tape:
    """The record of `forward_train` for `backward`, which may use it several times.

    A tape is for one network in one process. copy.copy returns it; pickle and copy.deepcopy raise TypeError.
    """

    owner: object  # a network of lnrnn
    network: Network  # its compiled form
    architecture: Architecture
    rows: Rows
    layout: tuple[bool, tuple[int, ...]]  # whether x has no batch axis, and the shape of the caller's y
    start: tuple[Array, ...]  # h0, or h0 and c0
    masks: Masks | None
    x: Array  # (T, B, D)
    training: engine.Training  # training.tapes: arrays, or Checkpoints
    end: Array | None = None  # an SLSTM's last cell state
    isa: str = field(default_factory=isa)  # the instruction set, on which the tape's layout depends

    @property
    def runs(self) -> tuple[Run, ...]:
        """The Runs (arrays of a forward call), one for each layer and direction."""
        D, P, own = self.architecture.directions, self.architecture.h_width, self.training
        found = []
        for k, record in enumerate(own.tapes or ()):
            statistics = None if own.statistics is None else own.statistics[k]
            y = (own.outputs or ())[k // D]
            y = y if D == 1 else y[:, :, k % D * P : (k % D + 1) * P]
            found.append(Run(statistics, record, self.inputs(k // D), y))
        return tuple(found)

    def inputs(self, layer: int) -> Array:
        """Returns the input (T, B, *) of a layer: x, or outputs of the layer below, after dropout."""
        dropped = self.training.dropped[layer]
        if dropped is not None:
            return dropped[0]
        return (self.training.outputs or ())[layer - 1] if layer else self.x

    @property
    def nbytes(self) -> int:
        """The size of the record in bytes."""
        directions = self.architecture.directions
        held = [*self.rows.arrays(), *self.start, *([] if self.masks is None else self.masks.arrays())]
        for k, run in enumerate(self.runs):
            held += [run.y, *run.kept()]
            dropped = self.masks is not None and self.masks.drops_input(k // directions)
            if k % directions == 0 and (k == 0 or dropped):  # otherwise x is y of the layer below
                held.append(run.x)
        return sum(array.nbytes for array in held)

    def __repr__(self) -> str:
        T, B, _ = self.x.shape
        return f"Tape({self.architecture}, steps={T}, batch_size={B}, nbytes={self.nbytes})"

    def __copy__(self) -> Tape:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a Tape cannot be pickled or deep-copied: keep the arguments of forward_train, and call it again"
        )


def _refuse(snapshot: Snapshot) -> None:
    if snapshot.dtype != "float32":
        raise bad_value("dtype", "'float32' for training", snapshot.dtype, "use to_dtype('float32')")


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
    """Computes Network.forward_train. owner: the network of the snapshot.

    The fourth result is the batch's statistics for each layer and direction, in arrays from
    statistics.blank; [] without batch norm.
    """
    _refuse(snapshot)
    made = snapshot.architecture
    if dropout is None and snapshot.dropout and made.num_layers > 1:
        dropout = snapshot.dropout
    simple = dropout is None and seed is None and checkpoint is None and resets is None
    if simple and not made.batch_norm and not snapshot.zoneout:
        found: Any = short(owner, snapshot, x, h0, None if lengths is None else integers("lengths", lengths))
        if found is not None:
            return *found, []
    spec, entropy = dropout_spec(dropout), checked_seed(seed)
    every = CHECKPOINT.check("checkpoint", checkpoint)
    x, lengths, unbatched = checked_batch(x, lengths, made.input_size, made.batch_first)
    x = copied(x)  # the caller may change x before `backward`
    T, B, _ = x.shape
    start = [np.array(s) for s in engine.state_arrays(made, "h0", h0, B, unbatched)]
    rows = call_rows(resets, lengths, x, unbatched, made.batch_first)
    rows = Rows(np.array(rows.table), rows.parts)  # copy the rows too
    if made.batch_norm:
        refuse_beyond(made.batch_norm.max_steps, rows.table)
    masks = draw(made, spec, snapshot.zoneout, entropy, T, B)
    if masks is not None and masks.drops_input(0):
        masks.on_input(0, x, x)
    seen = [blank(made.sides, rows.longest) for _ in made.suffixes] if made.sides else []
    outputs = [engine.empty_outputs(made, T, B) for _ in range(made.num_layers)]
    steps, width, lines = int(rows.table[:, LENGTH].sum()), tape_width(made), range(len(made.suffixes))
    records: Any = [aligned(steps * width) if every is None else Checkpoints(every, width) for _ in lines]
    wanted = engine.Training(
        seen or None,
        records,
        None if masks is None else [masks.of_layer(k) for k in lines],
        outputs,
        [_dropped(masks, n, outputs) for n in range(made.num_layers)],
    )
    y = as_caller(outputs[-1], unbatched, made.batch_first)
    tape = Tape(
        owner, snapshot.compiled(), made, rows, (unbatched, y.shape), tuple(start), masks, x, wanted
    )  # fmt: skip
    if every is None:
        _, end = engine.run(snapshot, x, rows, start, wanted, out=outputs[-1])
    else:
        end = _forward_checkpoints(tape)
    tape = _ended(tape, end)
    kept = [array for one in tape.runs for array in one.arrays()] + ([] if masks is None else masks.arrays())
    for array in (*rows.arrays(), *start, *outputs, *kept):
        array.setflags(write=False)
    return copied(y), as_state(end, made.cell, unbatched), tape, seen


def _ended(tape: Tape, end: Sequence[Array]) -> Tape:
    """Returns the tape with an SLSTM's last cell state, which its gradients need; else the tape unchanged."""
    return tape if tape.architecture.cell.parts == 1 else replace(tape, end=end[1])


def _move_m(cells: Array, gradients: Array, sign: int) -> None:
    """Converts an SLSTM's gradients of c, n and m, in place, to the compiled module's gradients or back.

    The module varies m at constant c exp(m) and n exp(m). Its gradient of m is 0 unless a loss depends on the
    last c, n or m. The usual gradient of m is larger by gc c + gn n. sign: -1 to the module's, 1 back.
    """
    (gc, gn, gm), (c, n, _) = (np.split(a, 3, axis=-1) for a in (gradients, cells))
    gm += FLOAT32.type(sign) * (gc * np.where(n == 0, 0, c) + gn * n)


def _dropped(masks: Masks | None, layer: int, outputs: Sequence[Array]) -> Any:
    """Returns the item of engine.Training.dropped for this layer: None, or arrays for C."""
    if masks is None or not layer or not masks.drops_input(layer):
        return None
    return np.empty_like(outputs[layer - 1]), *masks.of_input(layer)


def short(
    owner: object, snapshot: Snapshot, x: Any, h0: Any, lengths: Any
) -> tuple[Array, State, Tape] | None:
    """Computes `forward` without options by one call of C. None if C does not accept the arguments."""
    compiled, made = snapshot.compiled(), snapshot.architecture
    found = compiled.train(x, h0, lengths) if made.cell.parts == 1 or h0 is None else None
    if found is None:
        return None
    y, end, start, x, table, outputs, tapes = found
    if made.batch_first:
        x, *outputs = (time_first(a, False, True) for a in (x, *outputs))
    wanted = engine.Training(None, tapes, None, outputs, [None] * made.num_layers)
    tape = Tape(owner, compiled, made, Rows(table), (False, y.shape), start, None, x, wanted)
    if made.cell.parts == 1:
        return y, end, tape
    return y, as_state(end, made.cell), _ended(tape, end)


def _forward_checkpoints(tape: Tape) -> list[Array]:
    """Runs all layers with Checkpoints. Returns the sequences' last states."""
    masks, D, outputs = tape.masks, tape.architecture.directions, tape.training.outputs or ()
    reverse = tape.architecture.reversed
    before = [tape.rows.begin(s, reverse) for s in tape.start]
    after = [np.empty_like(s) for s in before]
    for k, run in enumerate(tape.runs):
        if k % D == 0 and k and masks is not None and masks.drops_input(k // D):
            masks.on_input(k // D, outputs[k // D - 1], run.x)
        run.record.forward(
            tape.network, k, reverse[k], x=run.x, y=run.y, before=[s[k] for s in before],
            after=[s[k] for s in after], rows=tape.rows.table, statistics=run.statistics,
            masks=None if masks is None else masks.of_layer(k),
        )  # fmt: skip
    return [tape.rows.finish(s, reverse) for s in after]


def tape_bytes(snapshot: Snapshot, steps: int, batch: int, every: int | None) -> int:
    _refuse(snapshot)
    made = snapshot.architecture
    states = sum(made.widths)
    rows, parts = steps * batch, 0 if every is None else -(-steps // every)
    floats = rows * (made.input_size + made.num_layers * made.directions * made.h_width)
    width = tape_width(made) if every is None else 0
    floats += len(made.suffixes) * (batch * states * (1 + parts) + width * rows)
    statistics = 8 * steps * (2 * sum(made.sides.values()) + 1) * len(made.suffixes) if made.sides else 0
    return 4 * floats + 48 * batch + statistics


def backward(
    tape: Tape, gy: Any, gh: Any, grad_x: bool, add_to: Any
) -> tuple[Array | None, State, dict[str, Array]]:
    if tape.isa != isa():
        raise RuntimeError(f"the tape is of instruction set {tape.isa}, backward is called with {isa()}")
    made, (unbatched, shape), masks = tape.architecture, tape.layout, tape.masks
    P, D = made.h_width, made.directions
    T, B, _ = tape.x.shape
    if gy is None:
        grad = np.zeros((T, B, D * P), FLOAT32)
    else:
        (gy,) = check("Network.backward", {"gy": gy}, {"y": shape, "dtype": FLOAT32})
        grad = time_first(gy, unbatched, made.batch_first)
    gend: list[Array] | None = (
        None if gh is None else engine.state_arrays(made, "gh", gh, tape.start[0].shape[1], unbatched)
    )
    if gend is not None and made.cell.parts > 1:
        if tape.end is None:
            raise AssertionError("internal error: a gradient of a cell state, but the tape lacks this state")
        gend[1] = gend[1].copy()
        _move_m(tape.end, gend[1], -1)
    if add_to is not None:
        refuse_gradients(add_to, made)
        grad = _apart(grad, add_to)
        gend = None if gend is None else [_apart(g, add_to) for g in gend]
    rows, parts = tape.rows, tape.rows.parts
    before, gafter = list(tape.start), gend
    if parts is not None:
        before = [rows.begin(s, made.reversed) for s in before]
        gafter = gend and [parts.begin_backward(g, made.reversed) for g in gend]
    gbefore = [empty(s.shape) for s in before]
    shapes = made.shapes
    given = [*map(empty, shapes.values())] if add_to is None else [add_to[name] for name in shapes]
    grads = dict(zip(shapes, given, strict=True)) if add_to is None else add_to
    gx: Array | None = empty(tape.x.shape) if grad_x else None
    wanted = tape.training
    if wanted.tapes and isinstance(wanted.tapes[0], Checkpoints):
        _backward_checkpoints(tape, before, grad, gafter, gx, gbefore, given, add_to is not None)
    else:
        ends: Sequence[Any] = [None] if gafter is None else gafter
        tape.network.backward(
            x=tape.x, y=(wanted.outputs or ())[-1], h0=before[0], c0=before[-1], rows=rows.table,
            training=wanted.arrays(made), gy=grad, ghn=ends[0], gcn=ends[-1], gx=gx, gh0=gbefore[0],
            gc0=gbefore[-1],
            grads=given, add=add_to is not None,
        )  # fmt: skip
    gstart = gbefore if parts is None else [parts.finish_backward(g, made.reversed) for g in gbefore]
    if made.cell.parts > 1:
        _move_m(tape.start[1], gstart[1], 1)
    if gx is not None and masks is not None and masks.drops_input(0):
        masks.on_input(0, gx, gx)
    if gx is not None:
        gx = np.ascontiguousarray(as_caller(gx, unbatched, made.batch_first))
    return gx, as_state(gstart, made.cell, unbatched), grads


def _backward_checkpoints(
    tape: Tape,
    before: list[Array],
    grad: Array,
    gafter: list[Array] | None,
    gx: Array | None,
    gbefore: list[Array],
    given: list[Array],
    add: bool,
) -> None:
    """Computes Network.backward of the compiled module, layer by layer, for Checkpoints. grad: of y."""
    made, masks, table = tape.architecture, tape.masks, tape.rows.table
    P, D = made.h_width, made.directions
    count = len(given) // len(made.suffixes)
    below: Array | None = None
    runs = tape.runs
    for k in reversed(range(len(runs))):
        run, d = runs[k], k % D
        if d == D - 1 and below is not None:
            grad, below = below, None
        own: Array | None = None
        if k >= D or gx is not None:
            own = empty(run.x.shape)
            own[...] = 0
        run.record.backward(
            tape.network, k, made.reversed[k], x=run.x, rows=table, statistics=run.statistics,
            masks=None if masks is None else masks.of_layer(k), gy=grad[:, :, d * P : (d + 1) * P],
            gafter=[None] if gafter is None else [g[k] for g in gafter], gx=own,
            gbefore=[g[k] for g in gbefore],
            grads=given[k * count : (k + 1) * count], add=add,
        )  # fmt: skip
        below = own if below is None or own is None else below + own
        if d == 0 and k and below is not None and masks is not None and masks.drops_input(k // D):
            masks.on_input(k // D, below, below)
    if gx is not None and below is not None:
        gx[...] = below


def _apart(array: Array, add_to: dict[str, Array]) -> Array:
    """Returns array, or a copy if it may share memory with an array in `add_to`."""
    return array.copy() if any(np.may_share_memory(array, g) for g in add_to.values()) else array


def refuse_gradients(add_to: Any, made: Architecture) -> None:
    """Raises ValueError or TypeError unless `add_to` has arrays to which gradients can be added.

    Names and shapes must equal the parameters'. Arrays must be float32, C-contiguous and writeable, and
    share no memory.
    """
    if not isinstance(add_to, dict):
        raise bad_type("add_to", "a dict of arrays by parameter name", add_to)
    if missing := [name for name in made.shapes if name not in add_to]:
        raise bad_value("add_to", "a dict with all parameters", sorted(add_to), f"add {missing[0]}")
    if unknown := [name for name in add_to if name not in made.shapes]:
        raise bad_value("add_to", "a dict whose keys are parameter names", unknown[0])
    for name, shape in made.shapes.items():
        g = add_to[name]
        if not isinstance(g, np.ndarray) or g.dtype != FLOAT32 or is_masked(g):
            raise bad_type(f"add_to[{name!r}]", "an array of float32", g)
        if g.shape != shape or not g.flags.c_contiguous or not g.flags.writeable or not g.flags.aligned:
            raise bad_value(f"add_to[{name!r}]", f"of shape {shape}, C-contiguous and writeable", g)
    spans = sorted((g.__array_interface__["data"][0], g.nbytes, name) for name, g in add_to.items())
    for (at, size, name), (other, _, of) in zip(spans, spans[1:], strict=False):
        if at + size > other:
            raise ValueError(message(f"add_to[{name!r}]", "separate memory", f"memory of add_to[{of!r}]"))
