"""A recurrent network that keeps its state from call to call, for many sequences: each has a lane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
from numpy.typing import ArrayLike

from .. import _core
from ..errors import bad_type, bad_value, integer, message, output, real, shaped
from ..runtime import thread_limit
from ..state import Closed
from . import engine
from .batches import (
    FLOAT32,
    State,
    as_caller,
    as_state,
    checked_batch,
    integers,
    rows_as_they_are,
    side_by_side,
    states,
)  # fmt: skip
from .rows import LENGTH, SEQUENCE, START, Rows, booleans, call_rows, padded
from .snapshot import LAST_STEP, Snapshot

Array = np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class StreamState(Generic[State]):
    """The state of R lanes of a stream, returned by `Stream.get_state`. It can be pickled; len() is R.

    Attributes
    ----------
    state : array of float32 of shape (num_layers, R, H), or a pair (h, c)
        The hidden states.
    step : array of int64 of shape (R,)
        The number of steps since the start or the last reset.
    fingerprint : str
        Hash of the network, equal on all machines.

    Examples
    --------
    >>> import numpy as np
    >>> import lnrnn
    >>> rnn = lnrnn.RNN(3, 4, seed=0)
    >>> stream, other = rnn.stream(2), rnn.stream(2)
    >>> y = stream(np.ones((2, 3)))
    >>> other.set_state([1], stream.get_state([0]))
    >>> other.step
    array([0, 1])
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
    """The steps of some lanes for a repr: one number, or the least and the largest."""
    if not len(steps):
        return "()"
    least, most = int(np.min(steps)), int(np.max(steps))
    return str(least) if least == most else f"{least}..{most}"


class Stream(Closed, Generic[State]):
    """A network that keeps its state from call to call, for endless sequences in constant memory.

    ``stream = rnn.stream(batch_size)`` makes one. Each of the batch_size sequences has a lane, which holds
    its state. ``y = stream(x)`` computes one time step or several.

    Parameters
    ----------
    x : array_like of shape (R, D)
        Inputs of one step for R lanes, or (D,) if R is 1. A chunk of T steps is (T, R, D), or (R, T, D) with
        batch_first.
    rows : array_like of int of shape (R,), optional
        The lanes of this call, different integers; all by default. Other lanes do not change.
    out : array of float32 of y's shape, optional
        Where to write y. It may be the memory of x.
    lengths : array_like of int of shape (R,), optional
        For a chunk: the steps of each lane, 0 to T. y is 0 past a length.
    resets : array_like of bool of shape (R,), or of a chunk (T, R)
        Where a lane's state and step number are set to 0 before the step.
    threads : int, optional
        Limit on the threads of this call; by default that of `set_num_threads`.

    Returns
    -------
    y : array of float32 of shape (R, H)
        The same bits as from the whole sequence; shaped like x. It is `out`, if that is given.

    Raises
    ------
    ValueError, TypeError
        For a wrong argument.
    SequenceTooLongError
        For a step without statistics, if `overrun` is "raise". No lane has changed then.

    Notes
    -----
    The result of a lane does not depend on the other lanes, to the last bit. A stream keeps the parameters
    and statistics that the network had when the stream was made. Under batch norm each lane has its own step.
    With overrun="batch" all lanes go together, and rows, lengths and resets are refused.

    A step with `out` allocates nothing if x and `out` are float32 and C-contiguous, and rows is None or
    int64. The first such call for a new number of rows may allocate.

    Several threads may call a stream at once if no lane is in two of the calls. If a call is interrupted or
    fails, all lanes are as before or as after it. A copy or a pickle is an independent stream.

    Examples
    --------
    >>> import numpy as np
    >>> import lnrnn
    >>> rnn = lnrnn.LSTM(3, 4, seed=0)
    >>> x = np.ones((5, 2, 3), np.float32)
    >>> stream = rnn.stream(2)
    >>> y = [stream(x_t) for x_t in x]
    >>> bool(np.all(y == rnn(x)[0]))
    True
    """

    __slots__ = ("_snapshot", "_lanes", "_all", "_together")

    def __init__(
        self,
        snapshot: Snapshot,
        batch_size: int,
        state: Sequence[Array] | None = None,
        step: int | Array = 0,
    ) -> None:
        """snapshot: of a network with one direction. state: h, or h and c, (num_layers, B, H) each. step: an
        integer or (B,). All arguments are checked, for they may come from a pickle."""
        batch_size = integer("batch_size", batch_size, 1, 2**31 - 1)
        self._snapshot = snapshot
        self._together = snapshot.overrun == "batch"
        self._lanes = _core.Lanes(snapshot.compiled(), batch_size)
        self._all = np.arange(batch_size)
        if state is not None:
            cell = snapshot.architecture.cell
            arrays = self._shaped("state", as_state(state, cell), batch_size)
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
        """A call with any arguments."""
        if self._together:
            for name, value in (("rows", rows), ("lengths", lengths), ("resets", resets)):
                self._refuse_apart(name, value)
        lanes = self._chosen(rows)
        x = real("x", x)[...]
        if x.ndim == 3:
            return self._chunk(x, lanes, out, lengths, resets, threads)
        if lengths is not None:
            raise bad_value("lengths", "None for one step", lengths, "a chunk has an x of three dimensions")
        shape = len(lanes), self._snapshot.architecture.input_size
        if x.shape != shape and (shape[0] != 1 or x.shape != shape[1:]):
            expected = f"{shape} or {shape[1:]}" if shape[0] == 1 else f"{shape}"
            raise bad_value("x", f"of shape {expected}, or a chunk of three dimensions", x)
        fresh = np.zeros(shape[0], bool)
        if resets is not None:
            fresh = booleans("resets", resets, fresh.shape, f"{fresh.shape}, one for each lane")
        result = None
        if out is not None:
            wide = (*x.shape[:-1], self._snapshot.architecture.h_width)
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
        """A call with x of three dimensions, in the caller's layout."""
        made = self._snapshot.architecture
        axes = "(R, T, input_size)" if made.batch_first else "(T, R, input_size)"
        if x.shape[0 if made.batch_first else 1] != len(lanes) or x.shape[2] != made.input_size:
            raise bad_value("x", f"{axes} with R {len(lanes)} and input_size {made.input_size}", x)
        batch, lengths, _ = checked_batch(x, lengths, made.input_size, made.batch_first)
        rows = call_rows(resets, lengths, batch, False, made.batch_first).after(self._lanes.steps[lanes])
        self._refuse_overrun(rows, lanes)
        direct = result = None
        if out is not None:
            result = output("out", out, (*x.shape[:2], made.h_width), FLOAT32)
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
            raise bad_value(name, "None with overrun='batch'", value, "all lanes go together")

    def _refuse_overrun(self, rows: Rows, lanes: Array) -> None:
        table = np.array(rows.table)
        table[:, SEQUENCE] = lanes[table[:, SEQUENCE]]
        self._snapshot.refuse_overrun(table, "lane")
        beyond = np.flatnonzero(table[:, LENGTH] > LAST_STEP - table[:, START])
        if len(beyond):
            row = table[beyond[0]]
            name, expected = f"the steps of lane {row[SEQUENCE]}", f"at most {LAST_STEP}"
            got = f"{row[LENGTH]} after {row[START]}"
            raise ValueError(message(name, expected, got, "reset the lane"))

    def _chosen(self, rows: Any) -> Array:
        """The argument rows as different lanes of this stream, (R,) int64."""
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
            raise ValueError(message("rows", "different lanes", f"lane {each[times > 1][0]} twice"))
        return found

    @property
    def state(self) -> State:
        """A copy of h of all lanes, (num_layers, batch_size, H) float32, or of (h, c). It may be set."""
        return self._as_state([s.copy() for s in self._lanes.states])

    @state.setter
    def state(self, value: Any) -> None:
        self._lanes.put(self._all, self._shaped("state", value, len(self._all)), None)

    def _shaped(self, name: str, value: Any, lanes: int) -> list[Array]:
        made = self._snapshot.architecture
        named = zip(states(name, value, made.cell), made.state_widths, strict=True)
        found = [shaped(n, v, (made.num_layers, lanes, width), FLOAT32) for (n, v), width in named]
        return side_by_side(found, made.cell)

    def _as_state(self, found: list[Array]) -> State:
        return as_state(found, self._snapshot.architecture.cell)

    @property
    def step(self) -> Array:
        """A copy of the number of steps of each lane, (batch_size,) int64, since its start or reset.

        It may be set to an integer, or one for each lane. It selects batch norm's statistics.
        """
        found: Array = self._lanes.steps.copy()
        return found

    @step.setter
    def step(self, value: ArrayLike) -> None:
        self._lanes.put(self._all, [], self._steps("step", value, len(self._all)))

    def _steps(self, name: str, value: Any, lanes: int) -> Array:
        """The steps of some lanes as (lanes,) int64, from an integer or one for each lane."""
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
        """Set the state and step of these lanes to 0; by default of all."""
        if self._together:
            self._refuse_apart("rows", rows)
        lanes = self._chosen(rows)
        self._lanes.put(lanes, [None] * len(self._lanes.states), np.zeros(len(lanes), np.int64))

    def get_state(self, rows: ArrayLike | None = None) -> StreamState[State]:
        """Return a copy of the state of these lanes, by default of all, as a StreamState.

        `set_state` takes it, in this stream or another stream of an equal network, in any process.
        """
        lanes = self._chosen(rows)
        found = [s.take(lanes, axis=1) for s in self._lanes.states]
        return StreamState(self._as_state(found), self._lanes.steps[lanes], self._snapshot.fingerprint())

    def set_state(self, rows: ArrayLike | None, state: StreamState[State]) -> None:
        """Set the state of these lanes, or of all for None, to one that `get_state` returned.

        Raises
        ------
        ValueError, TypeError
            For the state of another network, or wrong arrays or steps. No lane has changed then.
        """
        if self._together:
            self._refuse_apart("rows", rows)
        lanes = self._chosen(rows)
        if not isinstance(state, StreamState):
            raise bad_type("state", "a StreamState", state, "get_state returns one")
        if state.fingerprint != self._snapshot.fingerprint():
            other = "one of another network, with other parameters, statistics or dtype"
            raise ValueError(message("state", "a state of this network", other))
        steps = self._steps("state.step", state.step, len(lanes))
        self._lanes.put(lanes, self._shaped("state.state", state.state, len(lanes)), steps)

    def __repr__(self) -> str:
        lanes, steps = len(self._all), _shown(self._lanes.steps)
        return f"Stream({self._snapshot.architecture}, batch_size={lanes}, step={steps})"

    def __reduce__(self) -> tuple[Any, ...]:
        state = [s.copy() for s in self._lanes.states]
        return type(self), (self._snapshot, state[0].shape[1], state, self.step)
