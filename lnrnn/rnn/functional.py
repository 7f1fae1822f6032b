"""Networks as functions of their parameters, for the custom operators of lnrnn.torch.

All that `forward` saves for `backward` are arrays. `described` converts an architecture to text, which
operators accept as an argument. Parameters are arrays in the order of `Architecture.shapes`. Statistics are
arrays in the order of statistics.named_shapes, for each layer and direction. `lengths` is None or (B,) int64.
With resets it is (1 + T, B): row 0 has lengths, row 1 + t is 1 for states that are reset before step t.
If x is (N, D), the data of a torch PackedSequence, it is the table (B, 6) of packed_rows. y has x's order.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .. import _core
from ..arguments import check
from ..errors import bad_value
from . import engine, training
from .architecture import Architecture
from .batches import FLOAT32, as_caller, as_state, checked_batch, time_first
from .file_format import architecture_of
from .rows import LENGTH, Rows, by_state, padded, reset
from .settings import checked_activation_bits
from .snapshot import Dtype, Snapshot, tape_width
from .specs import Overrun
from .statistics import StepStatistics, blank, named_shapes, of_steps, refuse_beyond

Array = np.ndarray


def described(made: Architecture) -> str:
    """Returns an architecture as JSON text, for torch operators. `architecture` converts the text back.

    The text has the weights' dtype float32; `with_dtype` replaces it.
    """
    overrun = made.batch_norm.overrun if made.batch_norm else None
    return json.dumps(made.configuration("float32", overrun))


@lru_cache(maxsize=256)
def architecture(network: str) -> Architecture:
    return architecture_of(json.loads(network))


@lru_cache(maxsize=256)
def with_dtype(network: str, dtype: Dtype) -> str:
    """Returns JSON text of `described` with another dtype of the packed weights."""
    check("Network.to_dtype", {"dtype": dtype})
    return json.dumps(json.loads(network) | {"dtype": dtype})


@lru_cache(maxsize=256)
def dtype_of(network: str) -> Dtype:
    found: Dtype = json.loads(network)["dtype"]
    return found


def whole(array: Array) -> Array:
    """Returns a parameter as a C-contiguous float32 array, copied only if needed."""
    if array.dtype is FLOAT32 and array.flags.carray:
        return array  # np.require would return the same, but slower
    return np.require(array, FLOAT32, ["C", "A"])


def divided(lengths: Array | None) -> tuple[Array | None, Array | None]:
    """Splits an operator's `lengths`, (B,) or (1 + T, B), into lengths (B,) and bool resets (T, B)."""
    if lengths is None or lengths.ndim == 1:
        return lengths, None
    return lengths[0], lengths[1:] != 0


def _apart(made: Architecture, array: Array, table: Any) -> Array:
    """Returns PackedSequence data (N, *) sequence after sequence, as in ragged calls."""
    return as_caller(_core.by_sequence(whole(array), table)[:, None], False, made.batch_first)  # type: ignore[no-any-return]


def _together(array: Array, table: Any) -> Array:
    """Returns an array in the order of PackedSequence data: the inverse of `_apart`."""
    return _core.by_step(array.reshape(-1, array.shape[-1]), table)


def _batch(made: Architecture, x: Array, lengths: Any) -> tuple[Array, Rows]:
    """Returns (x (T, B, D), Rows) of a call, checked."""
    if x.ndim == 2:
        return time_first(_apart(made, x, lengths), False, made.batch_first), Rows(lengths)
    lengths, resets = divided(lengths)
    x, lengths, _ = checked_batch(x, lengths, made.input_size, made.batch_first)
    T, B, _ = x.shape
    return x, padded(lengths, T, B) if resets is None else reset(resets, lengths, T, B)


# --- inference ----------------------------------------------------------------------------------------------


def call_packed(snapshot: Snapshot, x: Array, h0: Any, table: Array) -> tuple[Array, Any]:
    """Runs a network on PackedSequence data x (N, D). table: from packed_rows. Returns y and last state."""
    made = snapshot.architecture
    batch, rows = _batch(made, x, table)
    start = engine.state_arrays(made, "h0", h0, len(table), False)
    snapshot.refuse_overrun(by_state(table))
    y, end = engine.run(snapshot, batch, rows, start)
    return _together(y, table), as_state(end, made.cell)


class Served:
    """A network with copies of its arrays, cached so that weights are packed only once."""

    def __init__(
        self, made: Architecture, parameters: Sequence[Array], statistics: Sequence[Array], overrun: Any,
        dtype: Dtype = "float32",
    ) -> None:  # fmt: skip
        self._made, self._overrun = made, overrun
        given = [np.array(a, order="C") for a in (*parameters, *statistics)]
        arrays = _named(made, given[: len(parameters)])
        for array in arrays.values():
            array.setflags(write=False)
        kept = _by_suffix(made, given[len(parameters) :])
        bits = checked_activation_bits(dtype, None)
        self.snapshot = Snapshot(made, arrays, kept, overrun, dtype, activation_bits=bits)

    def computes(self, made: Architecture, overrun: Any, dtype: Dtype) -> bool:
        return made == self._made and overrun == self._overrun and dtype == self.snapshot.dtype


def _by_suffix(made: Architecture, statistics: Sequence[Array]) -> dict[str, StepStatistics]:
    if not made.sides:
        return {}
    names = list(named_shapes(made.sides, 0))
    found = {}
    for k, suffix in enumerate(made.suffixes):
        own = zip(names, statistics[k * len(names) :], strict=False)
        found[suffix] = StepStatistics(
            {name: a.astype(np.int64 if name == "count" else float, order="C") for name, a in own}
        )
    return found


def updated(made: Architecture, statistics: Sequence[Array], seen: Sequence[Array]) -> list[Array]:
    """Returns running statistics after a training batch. seen: the batch's statistics, from `forward`."""
    momentum = made.batch_norm.momentum if made.batch_norm else None
    found: list[Array] = []
    for old, batch in zip(_by_suffix(made, statistics).values(), _seen(made, seen), strict=True):
        found += old.updated(batch, momentum).arrays.values()
    return found


def _seen(made: Architecture, arrays: Sequence[Array]) -> list[dict[str, Array]]:
    """Returns a batch's statistics as {name: array} for each layer and direction, as statistics.blank."""
    names = list(named_shapes(made.sides, 0)) if made.sides else []
    return [
        dict(zip(names, arrays[k : k + len(names)], strict=True))
        for k in range(0, len(arrays), len(names) or 1)
    ]


# --- training -----------------------------------------------------------------------------------------------


def saved_arrays(made: Architecture) -> int:
    """Returns the number of arrays that `forward` saves for `backward`."""
    return made.num_layers - 1 + len(made.suffixes) + (made.cell.parts > 1)


class _Kept(NamedTuple):
    """Objects of a `forward` call that `backward` reuses, because creating them takes time."""

    snapshot: Snapshot  # with packed weights
    rows: Rows
    start: tuple[Array, ...]
    addresses: Sequence[int] | None  # of parameters that the snapshot uses in place; None: it has copies


# {address of a call's first tape: its weak reference and objects}. An entry is deleted with its tape.
_kept: dict[int, tuple[weakref.ref[Array], _Kept]] = {}


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _keep(tape: Array, kept: _Kept) -> None:
    address = _address(tape)

    def forget(reference: weakref.ref[Array]) -> None:
        entry = _kept.get(address)
        if entry is not None and entry[0] is reference:
            del _kept[address]

    _kept[address] = weakref.ref(tape, forget), kept


def _snapshot(made: Architecture, arrays: dict[str, Array]) -> Snapshot:
    blanks = {end: StepStatistics.empty(made.sides, 0) for end in made.suffixes if made.sides}
    overrun: Overrun | None = made.batch_norm.overrun if made.batch_norm else None
    return Snapshot(made, arrays, blanks, overrun, "float32")


def _named(made: Architecture, parameters: Sequence[Array]) -> dict[str, Array]:
    for (name, shape), array in zip(made.shapes.items(), parameters, strict=True):
        if array.shape != shape:
            raise bad_value(name, f"of shape {shape}", array)
    return dict(zip(made.shapes, map(whole, parameters), strict=True))


def forward(
    made: Architecture,
    parameters: Sequence[Array],
    x: Array,
    start: Sequence[Array],
    lengths: Array | None,
    record: bool = True,
    snapshot: Snapshot | None = None,
    addresses: Sequence[int] | None = None,
) -> tuple[Array, list[Array], list[Array], list[Array]]:
    """Computes Network.forward_train.

    start: [h0] or [h0, c0], or [] for zeros. snapshot: a network with equal parameters whose packed weights
    are reused, or None; not for batch norm. addresses: of the parameters, which `backward`
    compares.

    Returns (y, last states, batch statistics, saved arrays). Batch norm's statistics are (T, width) float64
    and counts (T,) for each layer and direction. With `record`, the saved arrays are the outputs (T, B, *) of
    all layers but the last, and the tape of each layer and direction. An SLSTM's last cell state follows.
    Shapes do not depend on the lengths. x must not change before `backward`.
    """
    shared = None if snapshot else addresses
    snapshot = snapshot or _snapshot(made, _named(made, parameters))
    if record and lengths is None and not made.batch_norm and (made.cell.parts == 1 or not start):
        found = snapshot.compiled().train(x, _state(start), None)
        if found is not None:
            y, state, begin, _, table, outputs, tapes = found
            between = outputs[:-1]
            for array in between + tapes:
                array.setflags(write=True)
            _keep(tapes[0], _Kept(snapshot, Rows(table), begin, shared))
            return y, _ends(made, _arrays(state)), [], between + tapes + _kept_end(made, _arrays(state))
    packed: Any = lengths if x.ndim == 2 else None
    x, rows = _batch(made, x, lengths)
    T, B, _ = x.shape
    if made.batch_norm:
        refuse_beyond(made.batch_norm.max_steps, rows.table)
    states = engine.state_arrays(made, "h0", _state(start), B if packed is None else len(packed), False)
    active = int(rows.table[:, LENGTH].sum())
    seen = [blank(made.sides, T) for _ in made.suffixes] if made.sides else []
    outputs = [engine.empty_outputs(made, T, B) for _ in range(made.num_layers)] if record else []
    floats = T * B * tape_width(made) if record else 0
    tapes = [_core.aligned(floats) for _ in made.suffixes] if record else []
    wanted = engine.Training(
        [of_steps(each, 0, rows.longest) for each in seen] if seen else None,
        [_active(tape, T * B, active) for tape in tapes] if record else None,
        outputs=outputs if record else None,
        dropped=[None] * made.num_layers,
    )
    y, end = engine.run(snapshot, x, rows, states, wanted, out=outputs[-1] if record else None)
    between = [as_caller(one, False, made.batch_first) for one in outputs[:-1]]
    if record and T * B:
        _keep(tapes[0], _Kept(snapshot, rows, tuple(states), shared))
    flat = [array for each in seen for array in each.values()]
    saved = between + tapes + (_kept_end(made, end) if record else [])
    y = as_caller(y, False, made.batch_first) if packed is None else _together(y, packed)
    return y, _ends(made, end), flat, saved


def _ends(made: Architecture, end: Sequence[Array]) -> list[Array]:
    """Converts a state from engine arrays to the user's arrays [h, c, ...]."""
    return list(_arrays(as_state(end, made.cell)))


def _kept_end(made: Architecture, end: Sequence[Array]) -> list[Array]:
    """Returns [the last cell state] of an SLSTM, [] for other cells."""
    return [end[1]] if made.cell.parts > 1 else []


def _active(tape: Array, rows: int, active: int) -> Array:
    """Returns the used part of a tape that has memory for T * B rows. active: the number of steps without
    padding."""
    return tape[: len(tape) // max(rows, 1) * active]


def _arrays(value: Any) -> tuple[Array, ...]:
    return value if isinstance(value, tuple) else (value,)


def _state(arrays: Sequence[Any]) -> Any:
    """Converts a list of arrays to the argument h0: None, h, or (h, c)."""
    return None if not arrays or all(a is None for a in arrays) else arrays[0] if len(arrays) == 1 else arrays


def backward(
    made: Architecture,
    parameters: Callable[[], Sequence[Array]],
    x: Array,
    start: Sequence[Array],
    lengths: Array | None,
    y: Array,
    seen: Sequence[Array],
    saved: Sequence[Array],
    gy: Array | None,
    gend: Sequence[Array | None],
    grad_x: bool,
    addresses: Sequence[int],
) -> tuple[Array | None, list[Array], list[Array]]:
    """Computes Network.backward, after `forward` with the same arguments.

    parameters: a function that returns them. Their addresses differ from `addresses` if their storage was
    replaced meanwhile. Returns (gx, gradients of initial states, gradients of parameters).
    """
    entry = _kept.get(_address(saved[made.num_layers - 1])) if x.size else None
    if entry is not None and entry[1].addresses not in (None, addresses):
        entry = None
    table: Any = lengths if x.ndim == 2 else None
    if table is not None:
        y, gy = _apart(made, y, table), None if gy is None else _apart(made, gy, table)
    if entry is None:
        x, rows = _batch(made, x, lengths)
        sequences = x.shape[1] if table is None else len(table)
        states = tuple(engine.state_arrays(made, "h0", _state(start), sequences, False))
        snapshot = _snapshot(made, _named(made, parameters()))
    else:
        snapshot, rows, states, _ = entry[1]
        x = x if table is None else _apart(made, x, table)
        # NumPy ignores the stride of an axis of length 1, but C checks it. reshape sets the usual stride.
        x = time_first(whole(x).reshape(-1).reshape(x.shape), False, made.batch_first)
    T, B, _ = x.shape
    active = int(rows.table[:, LENGTH].sum())
    outputs = [time_first(a, False, made.batch_first) for a in (*saved[: made.num_layers - 1], y)]
    tapes = saved[made.num_layers - 1 :][: len(made.suffixes)]
    end = saved[-1] if made.cell.parts > 1 else None
    batches = [of_steps(each, 0, rows.longest) for each in _seen(made, seen)]
    wanted = engine.Training(
        batches or None,
        [_active(tape, T * B, active) for tape in tapes],
        None,
        outputs,
        [None] * made.num_layers,
    )
    remembered = training.Tape(
        None, snapshot.compiled(), made, rows, (False, y.shape), states, None, x, wanted, end
    )
    gstart: Any
    gx, gstart, grads = training.backward(remembered, gy, _state(gend), grad_x, None)
    if gx is not None and table is not None:
        gx = _together(gx, table)
    return gx, list(_arrays(gstart)), [*grads.values()]
