"""ModelStream: an ONNX file whose states are kept for many sequences, from call to call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ...arguments import TAKES, Integer, check
from ...arguments import Array as Takes
from ...errors import bad_type, bad_value, message
from ...rnn.batches import different_lanes
from ...rnn.stream import StreamState
from ...state import Closed
from .bound import Run, States, bound
from .states import REMEDY

if TYPE_CHECKING:
    from .file_session import FileSession

Array = np.ndarray
TAKES["onnx.Model.stream"] = {"lanes": Integer(1, 2**31 - 1)}


class ModelStream(Closed):
    """An ONNX file whose states are kept from call to call, for endless sequences in constant memory.

    ``stream = model.stream(lanes)`` creates a stream. Each of the independent sequences has a lane, which
    holds its states. ``y = stream(x)`` computes one step or several.

    Parameters
    ----------
    x : array_like, or mapping of str to array_like
        The input, or all inputs by name. With the axes that the file declares, the file runs once. If an
        input has one axis more, its first axis is time, and the file runs once for each step.
    lanes : array_like of int of shape (R,), optional
        The indices of R different lanes to compute, all by default. x has R lanes. Other lanes do not change.
        The file must have a free axis of lanes. R is at least 1 if the file has recurrent nodes.

    Returns
    -------
    y : array, or dict of str to array
        The output, or all outputs by name. If an input has the axis of time, it is the first axis of y.

    Raises
    ------
    TypeError, ValueError
        If an input or a lane does not fit the file; the message names it, with its shape.

    Notes
    -----
    The outputs equal, bit for bit, the outputs of ``model.session.run`` with the same states. Several threads
    may call a stream at once if no lane is in two of the calls. A copy or a pickle is an independent stream.
    After an error, no lane has changed.
    """

    __slots__ = ("_file", "_lanes", "_kept", "_bound", "_shapes", "_runs")

    def __init__(self, file: FileSession, lanes: int) -> None:
        self._file = file
        self._lanes: int = check("onnx.Model.stream", {"lanes": lanes})[0]
        # One tuple: states, steps of each lane, steps to add to all lanes. Replacing it is
        # atomic and fast. A small file takes 50 us, and a NumPy addition would take 5 us more.
        self._kept = [(self._file.zeros(self._lanes), np.zeros(self._lanes, np.int64), 0)]
        self._bound: Run | None = None
        self._shapes: list[tuple[int, ...]] = []  # of the inputs of the last unbound run
        self._runs = 0  # number of unbound runs with these shapes

    def __call__(self, x: Any, lanes: ArrayLike | None = None) -> Any:
        if lanes is None and self._bound:
            states, before, more = self._kept[0]
            if found := self._bound(x, states):
                results, states = found
                self._kept[0] = states, before, more + 1
                return (
                    results[0] if len(results) == 1 else dict(zip(self._file.outputs, results, strict=True))
                )
        feed, steps = self._file.feed(x)
        chosen = None if lanes is None else self._chosen(lanes)
        states, before, more = self._kept[0]
        if chosen is not None:
            states = self._taken(chosen)
        elif steps is not None:  # the run may overwrite these arrays, and an error must not change states
            self._kept[0] = {name: array.copy() for name, array in states.items()}, before, more
        run, every = self._run if chosen is None else self._file.run, []
        for step in range(1 if steps is None else steps):
            results, states = run(self._file.at(feed, step), states)
            every.append(results)
        if steps == 0:  # run zeros to learn the shapes of outputs
            every.append(self._file.run(self._file.at(feed, 0), states)[0])
        if steps is not None:
            outputs = zip(self._file.outputs, zip(*every, strict=True), strict=False)
            results = [_stacked(name, y)[:steps] for name, y in outputs]
        count = 1 if steps is None else steps
        if chosen is None:
            self._kept[0] = states, before, more + count
        else:
            self._put(states, chosen, before[chosen] + more + count)
        return results[0] if len(results) == 1 else dict(zip(self._file.outputs, results, strict=True))

    def _run(self, feed: Mapping[str, Array], states: States) -> tuple[list[Any], States]:
        """Runs the file for all lanes. Uses bound arrays after two runs with the same shapes."""
        if self._bound and (found := self._bound(feed, states)):
            return found
        results, following = self._file.run(feed, states)
        shapes = [array.shape for array in feed.values()]
        if shapes != self._shapes:
            self._shapes, self._runs = shapes, 0
        self._runs += 1  # more than 2 if shapes of outputs vary
        self._bound = bound(self._file, feed, states, results) if self._runs == 2 else None
        return results, following

    def _chosen(self, lanes: Any) -> Array | None:
        """Returns the argument lanes, checked, as an int64 array (R,); None if it selects the only lane."""
        found = different_lanes(lanes, self._lanes)
        shared = [name for name, state in self._file.states.items() if state.lane_axis is None]
        if not shared:
            return found
        if self._lanes == len(found) == 1:
            return None
        expected = f"None, because the file does not say which axis of state {shared[0]!r} has the lanes"
        raise bad_value("lanes", expected, lanes, REMEDY)

    @property
    def lanes(self) -> int:
        """The number of lanes."""
        return self._lanes

    @property
    def state(self) -> States:
        """The states by input name, as copies. Assign a dict to replace them."""
        return {name: array.copy() for name, array in self._kept[0][0].items()}

    @state.setter
    def state(self, value: Mapping[str, ArrayLike]) -> None:
        self._put(self._file.checked_states("state", value, self._lanes), None, self.steps_done)

    @property
    def steps_done(self) -> Array:
        """A copy of the number of steps of each lane since its start or reset, (lanes,) int64.

        A run on a chunk of several steps, as one input of the file, counts as one step.
        """
        _, steps, more = self._kept[0]
        return steps + more

    def reset(self, lanes: ArrayLike | None = None) -> None:
        """Set the states and `steps_done` of some lanes to 0. All is as in `lnrnn.Stream.reset`."""
        chosen = None if lanes is None else self._chosen(lanes)
        states, steps = self._copied(chosen)
        self._put({name: np.zeros_like(a) for name, a in states.items()}, chosen, np.zeros_like(steps))

    def get_state(self, lanes: ArrayLike | None = None) -> StreamState[Any]:
        """Return a copy of the states of some lanes, as in `lnrnn.Stream.get_state`, for this file."""
        states, steps = self._copied(None if lanes is None else self._chosen(lanes))
        return StreamState(states, steps, self._file.fingerprint())

    def set_state(self, lanes: ArrayLike | None, state: StreamState[Any]) -> None:
        """Set the states of some lanes. Arguments and errors are as in `Stream.set_state`."""
        chosen = None if lanes is None else self._chosen(lanes)
        if not isinstance(state, StreamState):
            raise bad_type("state", "a StreamState", state, "get_state returns one")
        if state.fingerprint != self._file.fingerprint():
            raise ValueError(message("state", "a state of this file", "one of another file or other states"))
        count = self._lanes if chosen is None else len(chosen)
        steps = Takes("R").check("state.steps_done", state.steps_done, {"R": count, "dtype": np.int64})
        self._put(self._file.checked_states("state.state", state.state, count), chosen, steps.copy())

    def _put(self, states: States, lanes: Array | None, steps: Array) -> None:
        """Stores states and step counts of these lanes; None selects all lanes."""
        if lanes is None:
            self._kept[0] = states, steps, 0
            return
        kept, before, more = self._kept[0]
        for name, array in states.items():
            axis = self._file.states[name].lane_axis or 0  # lanes are None without this axis
            np.moveaxis(kept[name], axis, 0)[lanes] = np.moveaxis(array, axis, 0)
        before[lanes] = steps - more

    def _copied(self, lanes: Array | None) -> tuple[States, Array]:
        return (
            (self.state, self.steps_done) if lanes is None else (self._taken(lanes), self.steps_done[lanes])
        )

    def _taken(self, lanes: Array) -> States:
        """Returns copies of the states of these lanes."""
        return {n: a.take(lanes, self._file.states[n].lane_axis or 0) for n, a in self._kept[0][0].items()}

    def __repr__(self) -> str:
        return f"ModelStream({self._file.path!r}, lanes={self._lanes})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _stream, (self._file, self._lanes, self.state, self.steps_done)


def _stream(file: FileSession, lanes: int, state: States, steps: Array) -> ModelStream:
    """Recreates a ModelStream when it is copied or unpickled."""
    stream = ModelStream(file, lanes)
    stream._put(state, None, steps.copy())
    return stream


def _stacked(name: str, ys: Sequence[Any]) -> Array:
    """Stacks the outputs `ys` of all steps along a new time axis 0. name: for messages."""
    for y in ys:
        if not isinstance(y, np.ndarray) or y.shape != ys[0].shape:
            expected = "an array of the same shape at all steps"
            raise bad_value(f"output {name!r}", expected, y, "call the stream for each step")
    return np.stack(ys)
