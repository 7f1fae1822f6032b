"""Checks arguments of calls, and converts sequences for C: time first, float32.

Other threads may change shapes and lengths of a caller's arrays at any time. So these functions check and
return a new view of x and a copy of lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike

from ..arguments import BOOLEANS, INTEGERS, TAKES, THREADS, Flag, Optional, Output, check
from ..arguments import Array as Takes
from ..errors import bad_type, bad_value, message, real
from .cells import Cell

Array = np.ndarray
FLOAT32 = np.dtype(np.float32)
INT64 = np.dtype(np.int64)

STATE = Optional(Takes("state"))
_LENGTHS = Takes("B|alone", INTEGERS, "T", "the {} steps of x", ", one for each sequence")
_LANES = Optional(Takes("R|", INTEGERS, "last lane"))
TAKES["Network.__call__"] = {
    "x": Takes("outer inner D|T D"), "h0": STATE, "lengths": Optional(_LENGTHS),
    "resets": Optional(Takes("steps", BOOLEANS, note=", as x")), "threads": THREADS,
}  # fmt: skip
TAKES["Network.ragged"] = {
    "values": Takes("N D"), "offsets": Takes("B+1", INTEGERS, "N", "the {} rows of values"), "h0": STATE,
    "threads": THREADS,
}  # fmt: skip
TAKES["Network.backward"] = {"gy": Optional(Takes("y")), "gh": STATE, "grad_x": Flag()}
TAKES["Stream.__call__"] = {
    "x": Takes("R D|one|outer inner D"), "lanes": _LANES, "out": Optional(Output("y")),
    "lengths": Optional(_LENGTHS), "resets": Optional(Takes("R", BOOLEANS, note=", one for each lane")),
    "threads": THREADS,
}  # fmt: skip
TAKES["Stream.state"] = {"state": STATE.of, "lanes": _LANES}

# The type of a state: h, (h, c) for an LSTM, or (h, c, n, m) for an SLSTM.
State = TypeVar("State", bound="Array | tuple[Array, ...]", covariant=True)


def refuse_packed(x: Any, batch_first: bool) -> None:
    if type(x).__name__ == "PackedSequence" and hasattr(x, "batch_sizes"):
        do = "x, lengths = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first="
        do += f"{batch_first}), and give lengths=lengths"
        raise TypeError(message("x", "an array of padded sequences", "a PackedSequence", do))


def rows_as_they_are(x: Array) -> bool:
    """Returns whether C can read float32 x (..., D) with two or three axes without a copy.

    x must be aligned, its last axis contiguous, and its other strides multiples of 4 bytes.
    """
    step = x.strides
    return step[-1] == 4 and not (step[0] | step[-2]) % 4 and x.flags.aligned


def integers(name: str, value: Any) -> Array:
    """Returns value as an array. Integers become C-contiguous int64, except uint64, which might overflow.
    Other dtypes are left for a later check.

    A contiguous int64 array is not copied.
    """
    given = real(name, value)
    kind = given.dtype
    if kind is INT64 and given.flags.c_contiguous:
        return given
    return given.astype(INT64, "C") if kind.kind == "i" or (kind.kind == "u" and kind.itemsize < 8) else given


def different_lanes(lanes: Any, count: int) -> Array:
    """Returns the argument lanes as a new int64 array (R,). Raises ValueError if an index occurs twice."""
    found: Array = check("Stream.state", {"lanes": lanes}, {"last lane": count - 1})[0].reshape(-1)
    each, times = np.unique(found, return_counts=True)
    if (times > 1).any():
        raise ValueError(message("lanes", "different lanes", f"lane {each[times > 1][0]} twice"))
    return found


def checked_batch(
    x: Any, lengths: ArrayLike | None, input_size: int, batch_first: bool
) -> tuple[Array, Array | None, bool]:
    """Returns x (T, B, D) float32, lengths (B,) int64 or None, and whether x had no batch axis."""
    if type(x) is not np.ndarray or x.dtype is not FLOAT32:
        refuse_packed(x, batch_first)
        x = real("x", x)
    x = x[...]
    if not 2 <= x.ndim <= 3 or x.shape[-1] != input_size:
        outer, inner = "BT" if batch_first else "TB"
        check("Network.__call__", {"x": x}, {"outer": outer, "inner": inner, "D": input_size})
    if x.dtype is not FLOAT32 or not rows_as_they_are(x):
        x = np.array(x, np.float32, order="C")
    unbatched = x.ndim == 2
    batch: Array = time_first(x, unbatched, batch_first)
    if lengths is None:
        return batch, None, unbatched
    T, B = batch.shape[:2]
    known = {"T": T, "B": B, "alone": () if unbatched else None}
    return batch, check("Network.__call__", {"lengths": lengths}, known)[0].reshape(B), unbatched


def checked_ragged(values: ArrayLike, offsets: ArrayLike, input_size: int) -> tuple[Array, Array]:
    """Returns values as (N, 1, D) float32, and a copy of offsets (B + 1,) int64."""
    x = check("Network.ragged", {"values": values}, {"D": input_size})[0][...]
    # NumPy ignores the stride of an axis of length 1, but C checks it. reshape sets the usual stride.
    x = np.require(x, FLOAT32, ["C", "A"]).reshape(-1).reshape(len(x), 1, input_size)
    return x, checked_offsets("offsets", offsets, TAKES["Network.ragged"]["offsets"], len(x))


def checked_offsets(name: str, value: Any, takes: Takes, steps: int) -> Array:
    """Returns an int64 copy of offsets (B + 1,) of sequences in `steps` rows. takes: their type and range."""
    found = takes.check(name, value, {"N": steps})
    if not found.size:
        raise bad_value(name, "of shape (B+1,)", found)
    falls = np.flatnonzero(np.diff(found) < 0)
    if len(falls):
        k = int(falls[0])
        got = f"{found[k]} and then {found[k + 1]}, of sequence {k}"
        raise ValueError(message(name, "in ascending order", got))
    return found


def states(name: str, value: Any, cell: Cell) -> list[tuple[str, Any]]:
    """Returns (name, value) of each array in a state argument, such as (name[0], h) and (name[1], c)."""
    if cell.states == 1:
        return [(name, value)]
    names = cell.state_names
    if not isinstance(value, (tuple, list)) or len(value) != len(names):
        kind = "pair" if len(names) == 2 else "tuple"
        raise bad_type(name, f"a {kind} ({', '.join(names)}) of arrays", value)
    return [(f"{name}[{k}]", v) for k, v in enumerate(value)]


def side_by_side(found: Sequence[Array], cell: Cell) -> list[Array]:
    """Converts a user's state arrays to the engine's: an SLSTM's c, n and m are joined on the last axis."""
    return list(found) if cell.parts == 1 else [found[0], np.concatenate(found[1:], axis=-1)]


def time_first(x: Any, unbatched: bool, batch_first: bool) -> Any:
    """Returns a view (T, B, *) of an array or tensor that has the caller's order of axes."""
    return x[:, None] if unbatched else x.swapaxes(0, 1) if batch_first else x


def as_caller(y: Any, unbatched: bool, batch_first: bool) -> Any:
    """Returns a view, in the caller's order of axes, of an array or tensor (T, B, *)."""
    return y[:, 0] if unbatched else y.swapaxes(0, 1) if batch_first else y


# mypy cannot see that the cell decides the type State.
def as_state(found: Sequence[Array], cell: Cell, unbatched: bool = False) -> State:  # type: ignore[type-var]
    """Converts engine arrays (num_layers * directions, B, *) to a user's state: h, or a tuple (h, c, ...).
    The axis B is removed if unbatched."""
    if cell.parts > 1:
        found = [found[0], *map(np.ascontiguousarray, np.split(found[1], cell.parts, axis=-1))]
    if unbatched:
        found = [s[:, 0] for s in found]
    return cast(State, found[0] if len(found) == 1 else tuple(found))
