"""Stream: a recurrent network that keeps the states of many sequences from call to call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
from numpy.typing import ArrayLike

from .. import _core
from ..arguments import TAKES, Integer, check
from ..errors import bad_type, bad_value, message, real
from ..runtime import thread_limit
from ..state import Closed
from . import engine
from .architecture import Architecture
from .batches import (
    FLOAT32,
    State,
    as_caller,
    as_state,
    checked_batch,
    different_lanes,
    integers,
    rows_as_they_are,
    side_by_side,
    states,
)  # fmt: skip
from .rows import LENGTH, SEQUENCE, START, Rows, call_rows, padded
from .snapshot import LAST_STEP, Snapshot, frozen
from .state_bytes import decode, encode

Array = np.ndarray
TAKES["Network.stream"] = {"lanes": Integer(1, 2**31 - 1)}


@dataclass(frozen=True, eq=False, repr=False)
class StreamState(Generic[State]):
    """The state of R lanes of a stream, returned by `Stream.get_state`. len() is R.

    It can be pickled. `to_bytes` makes bytes that are safe to load from anywhere.

    Attributes
    ----------
    state : array of float32 of shape (num_layers, R, P), or a pair (h, c)
        The hidden states.
    steps_done : array of int64 of shape (R,)
        The number of steps since the start or the last reset.
    fingerprint : str
        Hash of the network, equal on all machines.

    Notes
    -----
    A state has no instruction set: it may be set on another machine, which continues with its own kernels.

    Examples
    --------
    >>> import numpy as np
    >>> import lnrnn
    >>> rnn = lnrnn.RNN(3, 4, seed=0)
    >>> stream, other = rnn.stream(2), rnn.stream(2)
    >>> y = stream(np.ones((2, 3)))
    >>> data = stream.get_state([0]).to_bytes()
    >>> other.set_state([1], lnrnn.StreamState.from_bytes(data))
    >>> other.steps_done
    array([0, 1])
    """

    state: State
    steps_done: Array
    fingerprint: str

    def to_bytes(self) -> bytes:
        """Return the state as bytes in the form of a safetensors file, little-endian on every machine.

        The metadata have the format's version, the fingerprint, and a digest that shows damage.
        """
        return encode(self.state, self.steps_done, self.fingerprint)

    @classmethod
    def from_bytes(cls, data: bytes) -> StreamState[Any]:
        """Read a state from bytes. Nothing in them is executed.

        Parameters
        ----------
        data : bytes
            A result of `to_bytes`.

        Returns
        -------
        StreamState
            With new arrays, and NaN and infinity as they were. `set_state` refuses it for another network.

        Raises
        ------
        ValueError, TypeError
            If `data` is not a result of `to_bytes`, or is damaged.
        """
        return cls(*decode(data)[:3])

    def __len__(self) -> int:
        return len(self.steps_done)

    def __repr__(self) -> str:
        short = f"{self.fingerprint[:8]!r}..."
        return f"StreamState(lanes={len(self)}, steps_done={_shown(self.steps_done)}, fingerprint={short})"


def _shown(steps: Array) -> str:
    """Returns lanes' step numbers as text: one number, or the smallest and the largest."""
    if not len(steps):
        return "()"
    least, most = int(np.min(steps)), int(np.max(steps))
    return str(least) if least == most else f"{least}..{most}"


class Stream(Closed, _core.StreamBase, Generic[State]):
    """A network that keeps its state from call to call, for endless sequences in constant memory.

    ``stream = rnn.stream(lanes)`` creates a stream for that many sequences. A lane holds the state of one
    sequence. ``y = stream(x)`` computes one time step or several.

    Parameters
    ----------
    x : array_like of shape (R, D)
        Inputs of one step for R lanes, or (D,) if R is 1. A chunk of T steps is (T, R, D), or (R, T, D) with
        batch_first.
    lanes : array_like of int of shape (R,), optional
        The indices of R different lanes to compute, all by default. Other lanes do not change.
    out : array of float32 of y's shape, optional
        Where to write y. It may be the memory of x.
    lengths : array_like of int of shape (R,), optional
        For a chunk: the number of steps of each lane, 0 to T. y is 0 past a length.
    resets : array_like of bool of shape (R,), optional
        True where a lane's state and step number are set to 0 before the step. For a chunk (T, R).
    threads : int, optional
        Maximum number of threads in this call, 1 to 1024; by default `get_num_threads()`.

    Returns
    -------
    y : array of float32 of shape (R, P)
        Outputs, with the axes of x; equal bit for bit to a call on whole sequences. It is `out` if given.

    Raises
    ------
    ValueError, TypeError
        For a wrong argument.
    SequenceTooLongError
        If batch norm has no statistics for a step, and `overrun` is "raise". No lane has changed then.

    Notes
    -----
    The result of a lane does not depend on the other lanes, to the last bit. A stream keeps the parameters
    and statistics that the network had when the stream was created. Under batch norm each lane counts its own
    steps. With overrun="batch" all lanes must have the same step, so lanes, lengths and resets are refused.
    NaN stays in the state of a lane until its reset.

    A step with `out` allocates no memory if x and `out` are float32 and C-contiguous, and lanes is None or
    int64. The first such call for a new number of lanes may allocate.

    Several threads may call a stream at once if no lane is in two of the calls. If a call is interrupted or
    fails, all lanes have their states from before the call, or all have the new states. A copy or a pickle is
    an independent stream.

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

    __slots__ = ("_snapshot", "_all", "_together")

    def __init__(
        self,
        snapshot: Snapshot,
        lanes: int,
        state: Sequence[Array] | None = None,
        steps_done: int | Array = 0,
    ) -> None:
        """Creates a stream. All arguments are checked, because they may come from a pickle.

        snapshot: of a network with one forward direction. state: h, or h and c, (num_layers, B, *) each.
        steps_done: an integer or (B,).
        """
        (lanes,) = check("Network.stream", {"lanes": lanes})
        self._snapshot = snapshot
        self._together = snapshot.overrun == "batch"
        self._lanes = _core.Lanes(snapshot.compiled(), lanes, lanes)
        self._all = np.arange(lanes, dtype=np.int64)
        if state is not None:
            cell = snapshot.architecture.cell
            arrays = self._shaped("state", as_state(state, cell), lanes)
            self._lanes.put(self._all, arrays, self._steps("steps_done", steps_done, lanes))

    def _converted(self, x: Any, lanes: Any, out: Any, lengths: Any, resets: Any, threads: Any) -> Array:
        """Computes a call whose arguments the compiled `__call__` does not accept, after converting them."""
        most = 0 if threads is None else thread_limit(threads)
        if lanes is not None:
            lanes = integers("lanes", lanes)
            lanes = lanes if lanes.ndim else lanes.reshape(1)
        if resets is not None:
            resets = real("resets", resets)
        if lengths is None and (not self._together or (lanes is None and resets is None)):
            y = self._lanes.step(x, lanes, out, resets, most)
            if y is not None:
                return y
        return self._checked(x, lanes, out, lengths, resets, most)

    def _checked(self, x: Any, lanes: Any, out: Any, lengths: Any, resets: Any, threads: int) -> Array:
        """Computes a call whose arguments the compiled `Lanes.step` does not accept, or raises an error."""
        if self._together:
            for name, value in (("lanes", lanes), ("lengths", lengths), ("resets", resets)):
                self._refuse_apart(name, value)
        lanes = self._chosen(lanes)
        x = real("x", x)[...]
        step = len(lanes), self._snapshot.architecture.input_size
        if x.shape != step and (len(lanes) != 1 or x.shape != step[1:]):  # faster than `check`
            check("Stream.__call__", {"x": x}, self._axes(len(lanes)))
        if x.ndim == 3:
            return self._chunk(x, lanes, out, lengths, resets, threads)
        if lengths is not None:
            raise bad_value("lengths", "None for one step", lengths, "a chunk has an x of three dimensions")
        fresh = np.zeros(len(lanes), bool)
        if resets is not None:
            (fresh,) = check("Stream.__call__", {"resets": resets}, {"R": len(lanes)})
        result = self._result(x, out)
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
        """Computes a call with several steps: x has three axes, in the caller's order."""
        made = self._snapshot.architecture
        batch, lengths, _ = checked_batch(x, lengths, made.input_size, made.batch_first)
        rows = call_rows(resets, lengths, batch, False, made.batch_first).after(self._lanes.steps[lanes])
        self._refuse_overrun(rows, lanes)
        direct, result = None, self._result(x, out)
        if result is not None and rows_as_they_are(result) and not np.may_share_memory(result, batch):
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

    def _axes(self, lanes: int) -> dict[str, Any]:
        """Returns the named sizes that the constraint on x refers to."""
        made = self._snapshot.architecture
        outer, inner = (lanes, "T") if made.batch_first else ("T", lanes)
        one = (made.input_size,) if lanes == 1 else None
        return {"R": lanes, "D": made.input_size, "one": one, "outer": outer, "inner": inner}

    def _result(self, x: Array, out: Any) -> Array | None:
        """Returns the argument `out`, checked, or None. x: checked already."""
        if out is None:
            return None
        known = {"y": (*x.shape[:-1], self._snapshot.architecture.h_width), "dtype of y": FLOAT32}
        found: Array | None = check("Stream.__call__", {"out": out}, known)[0]
        return found

    def _next_input(self, pair: str, x: Any) -> Array:
        """Returns a copy of x for `step_all`, checked. pair: the text for (self, x) in messages."""
        axes = self._axes(len(self._all)) | {"outer": None}
        x = TAKES["Stream.__call__"]["x"].check(f"{pair}[1]", x, axes)[...]
        rows = padded(None, 1, len(self._all)).after(self._lanes.steps)
        self._refuse_overrun(rows, self._all, f"{pair}[0], lane")
        return np.array(x, FLOAT32, order="C")

    def _refuse_apart(self, name: str, value: Any) -> None:
        if value is not None:
            raise bad_value(name, "None with overrun='batch'", value, "all lanes have the same step")

    def _refuse_overrun(self, rows: Rows, lanes: Array, lane: str = "lane") -> None:
        table = np.array(rows.table)
        table[:, SEQUENCE] = lanes[table[:, SEQUENCE]]
        self._snapshot.refuse_overrun(table, lane)
        beyond = np.flatnonzero(table[:, LENGTH] > LAST_STEP - table[:, START])
        if len(beyond):
            row = table[beyond[0]]
            name, expected = f"the steps of {lane} {row[SEQUENCE]}", f"at most {LAST_STEP}"
            got = f"{row[LENGTH]} after {row[START]}"
            raise ValueError(message(name, expected, got, "reset the lane"))

    def _chosen(self, lanes: Any) -> Array:
        """Returns the argument lanes as an int64 array (R,), checked. None gives all lanes."""
        return self._all if lanes is None else different_lanes(lanes, len(self._all))

    @property
    def state(self) -> State:
        """A copy of h, (num_layers, lanes, P) float32, of (h, c) or (h, c, n, m). It can be assigned."""
        return self._as_state([s.copy() for s in self._lanes.states])

    @state.setter
    def state(self, value: Any) -> None:
        self._lanes.put(self._all, self._shaped("state", value, len(self._all)), None)

    def _shaped(self, name: str, value: Any, lanes: int) -> list[Array]:
        return stream_states(name, value, lanes, self._snapshot.architecture)

    def _as_state(self, found: list[Array]) -> State:
        return as_state(found, self._snapshot.architecture.cell)

    @property
    def steps_done(self) -> Array:
        """The number of steps of each lane since its start or reset, (lanes,) int64, a read-only view.

        The view is live: its values change with each call, so copy values to keep. It may outlive the stream.
        `steps_done` may be set, to an integer or one for each lane. Batch norm uses the statistics of this
        step.
        """
        return frozen(self._lanes.steps.view())

    @steps_done.setter
    def steps_done(self, value: ArrayLike) -> None:
        self._lanes.put(self._all, [], self._steps("steps_done", value, len(self._all)))

    def _steps(self, name: str, value: Any, lanes: int, do: str = "") -> Array:
        """Returns argument `name`, an integer or one for each lane, as int64 (lanes,).

        do: advice in the message for a wrong shape.
        """
        if not isinstance(value, (np.ndarray, list, tuple)) or not np.ndim(value):
            value = Integer(0, LAST_STEP).check(name, value)
        given = np.array(real(name, value))
        if given.dtype.kind not in "iu" and given.size:
            raise bad_type(name, "an integer, or an array of one for each lane", given)
        if given.shape not in ((), (lanes,)):
            raise bad_value(name, f"of shape ({lanes},), or an integer", given, do)
        for most in (given.min(), given.max()) if given.size else ():
            Integer(0, LAST_STEP).check(name, int(most))
        if self._together and given.size and given.min() != given.max():
            raise bad_value(name, "the same for all lanes with overrun='batch'", given)
        return np.ascontiguousarray(np.broadcast_to(given, lanes).astype(np.int64))

    def reset(self, lanes: ArrayLike | None = None) -> None:
        """Set state and `steps_done` of some lanes to 0. Errors are as in `Stream.set_state`.

        Parameters
        ----------
        lanes : array_like of int, optional
            The indices of different lanes; all by default.
        """
        if self._together:
            self._refuse_apart("lanes", lanes)
        chosen = self._chosen(lanes)
        self._lanes.put(chosen, [None] * len(self._lanes.states), np.zeros(len(chosen), np.int64))

    def get_state(self, lanes: ArrayLike | None = None) -> StreamState[State]:
        """Return a copy of the state of some lanes. `lanes` and errors are as in `reset`.

        Returns
        -------
        StreamState
            An argument for `set_state` of this stream, or of a stream of an equal network in any process.
        """
        chosen = self._chosen(lanes)
        found = [s.take(chosen, axis=1) for s in self._lanes.states]
        return StreamState(self._as_state(found), self._lanes.steps[chosen], self._snapshot.fingerprint())

    def set_state(self, lanes: ArrayLike | None, state: StreamState[State]) -> None:
        """Set the state of some lanes.

        Parameters
        ----------
        lanes : array_like of int or None
            The indices of different lanes, as many as the state has. None is all lanes.
        state : StreamState
            A result of `get_state`.

        Raises
        ------
        ValueError, TypeError
            For the state of another network, or wrong arrays or steps. No lane has changed then.
        """
        if self._together:
            self._refuse_apart("lanes", lanes)
        chosen = self._chosen(lanes)
        if not isinstance(state, StreamState):
            raise bad_type("state", "a StreamState", state, "get_state returns one")
        if state.fingerprint != self._snapshot.fingerprint():
            other = "one of another network, with other parameters, statistics or dtype"
            raise ValueError(message("state", "a state of this network", other))
        do = "lanes must name as many lanes as the state has"
        steps = self._steps("state.steps_done", state.steps_done, len(chosen), do)
        self._lanes.put(chosen, self._shaped("state.state", state.state, len(chosen)), steps)

    def __repr__(self) -> str:
        lanes, steps = len(self._all), _shown(self._lanes.steps)
        return f"Stream({self._snapshot}, lanes={lanes}, steps_done={steps})"

    def __reduce__(self) -> tuple[Any, ...]:
        state = [s.copy() for s in self._lanes.states]
        return type(self), (self._snapshot, state[0].shape[1], state, self.steps_done)


def stream_states(name: str, value: Any, lanes: int, made: Architecture) -> list[Array]:
    """Returns argument `name`, the state of `lanes` lanes, as engine arrays: [h] or [h, cell state]."""
    known = [{"state": (made.num_layers, lanes, width), "dtype": FLOAT32} for width in made.state_widths]
    named = states(name, value, made.cell)
    takes = TAKES["Stream.state"]["state"]
    found = [takes.check(n, v, each) for (n, v), each in zip(named, known, strict=True)]
    return side_by_side(found, made.cell)


def step_all(steps: Iterable[tuple[Stream[Any], ArrayLike]], *, threads: int | None = None) -> list[Array]:
    """Compute one time step of several streams in one call, which costs less than a call for each.

    The gain is large for small networks, whose step takes less time than a call from Python.

    Parameters
    ----------
    steps : iterable of (Stream, array_like)
        The streams, each once, and the inputs of all lanes of each: (R, D), or (D,) for one lane.
    threads : int, optional
        Limit on the threads of each step, 1 to 1024; by default `get_num_threads()`. The streams are
        computed one after the other, so one may not depend on the result of another.

    Returns
    -------
    list of array of float32 of shape (R, P), or (P,)
        The outputs, in the order of the streams, equal bit for bit to ``stream(x)``. P is hidden_size, or
        proj_size if that is not 0.

    Raises
    ------
    ValueError, TypeError
        For a wrong argument; the message has its number. No lane of any stream has changed then.
    SequenceTooLongError
        For a step without statistics, if `overrun` is "raise". No lane has changed either.

    Examples
    --------
    >>> import numpy as np
    >>> import lnrnn
    >>> one, other = lnrnn.GRU(3, 4, seed=0).stream(), lnrnn.LSTM(5, 2, seed=0).stream(8)
    >>> y, z = lnrnn.step_all([(one, np.ones(3)), (other, np.ones((8, 5)))])
    >>> y.shape, z.shape
    ((4,), (8, 2))
    """
    most = 0 if threads is None else thread_limit(threads)
    try:
        pairs = list(steps)
    except TypeError:
        raise bad_type("steps", "an iterable of pairs (stream, x)", steps) from None
    return _core.step_all(pairs, most) or _step_all_checked(pairs, most)


def _step_all_checked(pairs: list[Any], threads: int) -> list[Array]:
    streams: list[Stream[Any]] = []
    for i, pair in enumerate(pairs):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], Stream):
            raise bad_type(f"steps[{i}]", "a pair (stream, x)", pair)
        if pair[0] in streams:
            raise bad_value(f"steps[{i}][0]", "a stream that no other pair has", pair[0])
        streams.append(pair[0])
    inputs = [stream._next_input(f"steps[{i}]", pairs[i][1]) for i, stream in enumerate(streams)]
    y = _core.step_all(list(zip(streams, inputs, strict=True)), threads)
    if y is None:  # pragma: no cover - another thread uses the lanes at this moment
        raise RuntimeError("a stream was changed by another thread, which used the same lanes")
    return y
