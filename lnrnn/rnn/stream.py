"""A recurrent network that goes on from call to call: many sequences, each in a lane of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
from numpy.typing import ArrayLike

from .. import _core
from ..errors import bad_type, bad_value, integer, output, real, shaped
from ..runtime import thread_limit
from ..state import Closed
from . import engine
from .batches import FLOAT32, State, as_caller, as_state, checked_batch, integers, rows_as_they_are, states
from .rows import LENGTH, SEQUENCE, START, Rows, booleans, call_rows, padded
from .snapshot import LAST_STEP, Snapshot

Array = np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class StreamState(Generic[State]):
    """What lanes of a stream hold between two calls. It can be pickled and set in another process.

    state: h (num_layers, R, H), or the pair (h, c), float32; step (R,): steps taken, int64; fingerprint: of
    the network that it belongs to, no matter on which machine. len() is R.
    """

    state: State
    step: Array
    fingerprint: str

    def __len__(self) -> int:
        return len(self.step)

    def __repr__(self) -> str:
        short = f"{self.fingerprint[:8]!r}..."
        return f"StreamState(lanes={len(self)}, step={_shown(self.step)}, fingerprint={short})"


def _shown(steps: Array) -> str:
    """The steps of some lanes for a repr, on one line: one number, or the least and the largest."""
    if not len(steps):
        return "()"
    least, most = int(np.min(steps)), int(np.max(steps))
    return str(least) if least == most else f"{least}..{most}"


class Stream(Closed, Generic[State]):
    """A network that is fed as its input comes, for ever, in constant memory: s = rnn.stream(batch_size);
    y_t = s(x_t). Each of the batch_size sequences has a lane, which holds its state.

    s(x, rows=None, *, out=None, lengths=None, resets=None, threads=None)

    rows: the lanes that take part, R different integers (or one), in any order; None is all of them, and R is
    batch_size. Others stay as they are. What a lane gives does not depend on the other ones, to the last bit.
    One step: x (R, D), or (D,) if R is 1 -> y (R, H), or (H,). A chunk of T steps: x (T, R, D), or (R, T, D)
    with batch_first -> y likewise, with `lengths` (R,), integers 0 .. T: y is 0 past a length, and a lane
    takes so many steps. resets: booleans, (R,) for a step, (T, R) or (R, T) for a chunk: the state of a lane
    is set to 0, and its step number too, before that step.
    out: where to write, a float32 array of y's shape, in any layout; it may be x's own memory. threads: how
    many this call may use; None: as set (set_num_threads).
    -> y, float32, bit for bit what the whole sequence would give: a new array, or `out`. A step with an
    `out` allocates nothing for x and `out` that are float32 and C-contiguous, and rows that are None or an
    int64 array, once as many rows have been served.

    A stream keeps the parameters and statistics that the network had when it was made. Under batch norm each
    lane carries its own step, and past the known ones it does what `overrun` says; "raise" refuses a call,
    naming the lane, before any lane moves, and "batch", for which all lanes have to go together, refuses
    rows, lengths and resets. Several threads may call one stream at once if no lane is in two of the calls.
    Where a call, `reset` or a new state is interrupted or fails, all lanes are as before it or as after it.

    A copy, by the module copy or by pickle, is a stream of its own, with the same network, states and steps.
    """

    __slots__ = ("_snapshot", "_lanes", "_all", "_together")

    def __init__(
        self,
        snapshot: Snapshot,
        batch_size: int,
        state: Sequence[Array] | None = None,
        step: int | Array = 0,
    ) -> None:
        """snapshot: of a network with one direction. batch_size: B, an integer of at least 1. state: arrays
        (num_layers, B, H), one or two, as the cell has states; zeros if None. step: an integer, or (B,).
        Raises ValueError or TypeError: what is unpickled is checked too."""
        batch_size = integer("batch_size", batch_size, 1, 2**31 - 1)
        self._snapshot = snapshot
        self._together = snapshot.overrun == "batch"
        self._lanes = _core.Lanes(snapshot.compiled(), batch_size)
        self._all = np.arange(batch_size)
        if state is not None:
            arrays = self._shaped("state", as_state(state), batch_size)
            self._lanes.put(self._all, arrays, self._steps("step", step, batch_size))

    def __call__(
        self,
        x: ArrayLike,
        rows: ArrayLike | None = None,
        *,
        out: Any = None,
        lengths: ArrayLike | None = None,
        resets: ArrayLike | None = None,
        threads: int | None = None,
    ) -> Array:
        most = 0 if threads is None else thread_limit(threads)
        if rows is not None:
            rows = integers("rows", rows)
            rows = rows if rows.ndim else rows.reshape(1)
        if resets is not None:
            resets = real("resets", resets)
        if lengths is None and (not self._together or (rows is None and resets is None)):
            y = self._lanes.step(x, rows, out, resets, most)
            if y is not None:
                return y
        return self._checked(x, rows, out, lengths, resets, most)

    def _checked(self, x: Any, rows: Any, out: Any, lengths: Any, resets: Any, threads: int) -> Array:
        """A call with arguments of every kind."""
        if self._together:
            for name, value in (("rows", rows), ("lengths", lengths), ("resets", resets)):
                self._refuse_apart(name, value)
        lanes = self._chosen(rows)
        x = real("x", x)[...]
        if x.ndim == 3:
            return self._chunk(x, lanes, out, lengths, resets, threads)
        if lengths is not None:
            raise bad_value(
                "lengths", "None for a step: they belong to a chunk, x of three dimensions", lengths
            )
        shape = len(lanes), self._snapshot.architecture.input_size
        if x.shape != shape and (shape[0] != 1 or x.shape != shape[1:]):
            expected = f"{shape} or {shape[1:]}" if shape[0] == 1 else f"{shape}"
            raise bad_value("x", f"of shape {expected}, or a chunk of three dimensions", x)
        fresh = np.zeros(shape[0], bool)
        if resets is not None:
            fresh = booleans("resets", resets, fresh.shape, f"{fresh.shape}, one for each lane")
        result = None
        if out is not None:
            wide = (*x.shape[:-1], self._snapshot.architecture.hidden_size)
            result = output("out", out, wide, FLOAT32)
        taken = np.where(fresh, 0, self._lanes.steps[lanes])
        self._refuse_overrun(padded(None, 1, len(lanes)).after(taken), lanes)
        y = self._lanes.step(np.array(x, FLOAT32, order="C"), lanes, None, fresh, threads)
        if y is None:  # pragma: no cover - another thread uses the lanes at this moment
            raise RuntimeError("the stream was changed by another thread, which used the same lanes")
        if result is None:
            return y
        result[...] = y
        found: Array = out
        return found

    def _chunk(self, x: Any, lanes: Array, out: Any, lengths: Any, resets: Any, threads: int) -> Array:
        """x of three dimensions, as the caller has it."""
        made = self._snapshot.architecture
        axes = "(R, T, input_size)" if made.batch_first else "(T, R, input_size)"
        if x.shape[0 if made.batch_first else 1] != len(lanes) or x.shape[2] != made.input_size:
            raise bad_value("x", f"{axes} with R {len(lanes)} and input_size {made.input_size}", x)
        batch, lengths, _ = checked_batch(x, lengths, made.input_size, made.batch_first)
        rows = call_rows(resets, lengths, batch, False, made.batch_first).after(self._lanes.steps[lanes])
        self._refuse_overrun(rows, lanes)
        direct = result = None
        if out is not None:
            result = output("out", out, (*x.shape[:2], made.hidden_size), FLOAT32)
            if rows_as_they_are(result) and not np.may_share_memory(result, batch):
                direct = as_caller(result, False, made.batch_first)
        y, end = engine.run(
            self._snapshot,
            batch,
            rows,
            [s.take(lanes, axis=1) for s in self._lanes.states],
            threads=threads,
            out=direct,
        )
        shown: Array = as_caller(y, False, made.batch_first)
        self._lanes.put(lanes, end, rows.steps())
        if result is None:
            return shown
        if direct is None:
            result[...] = shown
        found: Array = out
        return found

    def _refuse_apart(self, name: str, value: Any) -> None:
        if value is not None:
            raise ValueError(f"{name} cannot be given with overrun='batch', for which all lanes go together")

    def _refuse_overrun(self, rows: Rows, lanes: Array) -> None:
        table = np.array(rows.table)
        table[:, SEQUENCE] = lanes[table[:, SEQUENCE]]
        self._snapshot.refuse_overrun(table, "lane")
        beyond = np.flatnonzero(table[:, LENGTH] > LAST_STEP - table[:, START])
        if len(beyond):
            row = table[beyond[0]]
            raise ValueError(
                f"lane {row[SEQUENCE]} must be reset: it has taken {row[START]} steps of {LAST_STEP}"
            )

    def _chosen(self, rows: Any) -> Array:
        """The argument as (R,) int64, different lanes of this stream."""
        if rows is None:
            return self._all
        given, count = np.array(integers("rows", rows)), len(self._all)
        if given.dtype.kind not in "iu" and given.size:
            raise bad_type("rows", "an array of integers, or an integer", given)
        if given.ndim > 1:
            raise bad_value("rows", "of shape (R,)", given)
        given = given.reshape(-1)
        if given.size and (given.min() < 0 or given.max() >= count):
            raise bad_value(
                "rows", f"between 0 and {count - 1}", int(given.max() if given.min() >= 0 else given.min())
            )
        found: Array = given.astype(np.int64)
        each, times = np.unique(found, return_counts=True)
        if (times > 1).any():
            raise ValueError(f"rows must name each lane once, got lane {each[times > 1][0]} twice")
        return found

    @property
    def state(self) -> State:
        """The hidden state h of all lanes, (num_layers, batch_size, H), or (h, c) with a cell state: copies.
        Assign to set it."""
        return as_state([s.copy() for s in self._lanes.states])

    @state.setter
    def state(self, value: Any) -> None:
        self._lanes.put(self._all, self._shaped("state", value, len(self._all)), None)

    def _shaped(self, name: str, value: Any, lanes: int) -> list[Array]:
        made = self._snapshot.architecture
        shape = made.num_layers, lanes, made.hidden_size
        return [shaped(n, v, shape, FLOAT32) for n, v in states(name, value, made.cell)]

    @property
    def step(self) -> Array:
        """How many steps each lane has taken, (batch_size,) int64: a copy. Assign an integer, or one for each
        lane, to set it: batch norm's statistics go by it."""
        found: Array = self._lanes.steps.copy()
        return found

    @step.setter
    def step(self, value: ArrayLike) -> None:
        self._lanes.put(self._all, [], self._steps("step", value, len(self._all)))

    def _steps(self, name: str, value: Any, lanes: int) -> Array:
        """The steps of so many lanes, given as an integer or as one for each, as (lanes,) int64."""
        if not isinstance(value, (np.ndarray, list, tuple)) or not np.ndim(value):
            value = integer(name, value, 0, LAST_STEP)
        given = np.array(real(name, value))
        if given.dtype.kind not in "iu" and given.size:
            raise bad_type(name, "an integer, or an array of one for each lane", given)
        if given.shape not in ((), (lanes,)):
            raise bad_value(name, f"of shape ({lanes},), or an integer", given)
        for most in (given.min(), given.max()) if given.size else ():
            integer(name, int(most), 0, LAST_STEP)
        if self._together and given.size and given.min() != given.max():
            raise bad_value(name, "the same for all lanes with overrun='batch'", given)
        return np.ascontiguousarray(np.broadcast_to(given, lanes).astype(np.int64))

    def reset(self, rows: ArrayLike | None = None) -> None:
        """These lanes, or all, back to a zero state and step 0."""
        if self._together:
            self._refuse_apart("rows", rows)
        lanes = self._chosen(rows)
        self._lanes.put(lanes, [None] * len(self._lanes.states), np.zeros(len(lanes), np.int64))

    def get_state(self, rows: ArrayLike | None = None) -> StreamState[State]:
        """What these lanes, or all, hold, copied: to be set again, in this stream or in another of an equal
        network, in this process or in another."""
        lanes = self._chosen(rows)
        found = [s.take(lanes, axis=1) for s in self._lanes.states]
        return StreamState(as_state(found), self._lanes.steps[lanes], self._snapshot.fingerprint())

    def set_state(self, rows: ArrayLike | None, state: StreamState[State]) -> None:
        """These lanes, or all for None, go on from what `get_state` gave, one lane after the other. Raises
        ValueError for the state of another network, and ValueError or TypeError for arrays and steps that no
        stream can hold, before any lane changes."""
        if self._together:
            self._refuse_apart("rows", rows)
        lanes = self._chosen(rows)
        if not isinstance(state, StreamState):
            raise bad_type("state", "what get_state of a stream returned", state)
        if state.fingerprint != self._snapshot.fingerprint():
            raise ValueError("state belongs to another network: its parameters, statistics or type differ")
        steps = self._steps("state.step", state.step, len(lanes))
        self._lanes.put(lanes, self._shaped("state.state", state.state, len(lanes)), steps)

    def __repr__(self) -> str:
        lanes, steps = len(self._all), _shown(self._lanes.steps)
        return f"Stream({self._snapshot.architecture}, batch_size={lanes}, step={steps})"

    def __reduce__(self) -> tuple[Any, ...]:
        state = [s.copy() for s in self._lanes.states]
        return type(self), (self._snapshot, state[0].shape[1], state, self.step)
