"""ModelStream: an ONNX file whose states are kept for many sequences, from call to call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ...arguments import TAKES, Integer, check
from ...arguments import Array as Takes
from ...errors import bad_type, bad_value, message
from ...rnn.batches import different_rows
from ...rnn.stream import StreamState
from ...state import Closed

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
    rows : array_like of int of shape (R,), optional
        The indices of R different lanes to compute, all by default. x has R lanes. Other lanes do not change.
        The file must have a free axis of lanes. R is at least 1 if the file has recurrent nodes.

    Returns
    -------
    y : array, or dict of str to array
        The output, or all outputs by name. If an input has the axis of time, it is the first axis of y.

    Raises
    ------
    ValueError, TypeError
        For a wrong argument, or if onnxruntime refuses the inputs. No lane has changed then.

    Notes
    -----
    The outputs have the bits of ``model.session.run`` with the same states. Several threads may call a stream
    at once if no lane is in two of the calls. A copy or a pickle is an independent stream.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import onnx.parser
    >>> import lnrnn
    >>> sums = onnx.parser.parse_model(
    ...     '<ir_version: 8, opset_import: ["": 17]>'
    ...     "sums (float[B, 3] x, float[B, 3] state) => (float[B, 3] y, float[B, 3] stateN)"
    ...     "{ y = Add (x, state) stateN = Identity (y) }"
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     onnx.save(sums, f"{folder}/sums.onnx")
    ...     stream = lnrnn.onnx.Model(f"{folder}/sums.onnx").stream(3)
    >>> y = stream(np.ones((3, 3)))
    >>> y = stream(np.ones((1, 3)), rows=[1])
    >>> stream.state["state"][:, 0]
    array([1., 2., 1.], dtype=float32)
    """

    __slots__ = ("_file", "_lanes", "_kept")
    _lanes: int

    def __init__(self, file: FileSession, lanes: int) -> None:
        self._file = file
        (self._lanes,) = check("onnx.Model.stream", {"lanes": lanes})
        self._kept = self._file.zeros(self._lanes), np.zeros(self._lanes, np.int64)  # states and steps

    def __call__(self, x: Any, rows: ArrayLike | None = None) -> Any:
        feed, steps = self._file.feed(x)
        return self._advance(feed, steps, None if rows is None else self._chosen(rows))

    def _advance(self, feed: Mapping[str, Array], steps: int | None, rows: Array | None) -> Any:
        """Runs the file once, or for steps that are not None once for each step, and keeps the states."""
        kept, before = self._kept
        states = kept if rows is None else self._taken(rows)
        if steps is None:
            results, states = self._file.run(feed, states)
        elif not steps:
            found, _ = self._file.run(self._file.empty_step(feed), states)
            results = [np.empty((0, *y.shape), y.dtype) for y in map(self._array, found)]
        else:
            results = []
            for step in range(steps):
                found, states = self._file.run(self._file.at(feed, step), states)
                if not results:
                    results = [np.empty((steps, *y.shape), y.dtype) for y in map(self._array, found)]
                for name, result, y in zip(self._file.outputs, results, found, strict=True):
                    if y.shape != result.shape[1:]:
                        expected = f"of shape {result.shape[1:]} at all steps"
                        raise bad_value(f"output {name!r}", expected, y, "call the stream for each step")
                    result[step] = y
        before = before if rows is None else before[rows]
        self._put(states, rows, before + (1 if steps is None else steps))
        return results[0] if len(results) == 1 else dict(zip(self._file.outputs, results, strict=True))

    def _array(self, y: Any) -> Array:
        if not isinstance(y, np.ndarray):
            raise bad_type("an output of several steps", "a tensor", y, "call the stream for each step")
        return y

    def _chosen(self, rows: Any) -> Array | None:
        """Returns the argument rows, checked, as (R,) int64."""
        found = different_rows(rows, self._lanes)
        if self._file.apart:
            return found
        if self._lanes == len(found) == 1:
            return None
        shared = next(name for name, state in self._file.states.items() if state.lane_axis is None)
        expected = f"None, because the file does not say which axis of state {shared!r} has the lanes"
        raise bad_value("rows", expected, rows, self._file.remedy())

    @property
    def lanes(self) -> int:
        """The number of lanes."""
        return self._lanes

    @property
    def state(self) -> dict[str, Array]:
        """A copy of the states by the names of their inputs. It may be set."""
        return {name: array.copy() for name, array in self._kept[0].items()}

    @state.setter
    def state(self, value: Mapping[str, ArrayLike]) -> None:
        self._put(self._file.checked_states("state", value, self._lanes), None, self._kept[1])

    @property
    def step(self) -> Array:
        """A copy of the number of steps of each lane since its start or reset, (lanes,) int64.

        A run on a chunk of steps in the file's own axes counts as one.
        """
        return self._kept[1].copy()

    def reset(self, rows: ArrayLike | None = None) -> None:
        """Set the states and the step to 0, for the lanes `rows` or by default for all lanes."""
        lanes = None if rows is None else self._chosen(rows)
        count = self._lanes if lanes is None else len(lanes)
        self._put(self._file.zeros(count) if count else {}, lanes, np.zeros(count, np.int64))

    def get_state(self, rows: ArrayLike | None = None) -> StreamState[Any]:
        """Return a copy of the states of the lanes `rows`, by default of all lanes, as a StreamState.

        It is an argument for `set_state` of any stream of the same file.
        """
        lanes = None if rows is None else self._chosen(rows)
        states = self.state if lanes is None else self._taken(lanes)
        steps = self.step if lanes is None else self._kept[1][lanes]
        return StreamState(states, steps, self._file.fingerprint())

    def set_state(self, rows: ArrayLike | None, state: StreamState[Any]) -> None:
        """Set the states of the lanes `rows`, or for None of all lanes, to a result of `get_state`.

        Raises
        ------
        ValueError, TypeError
            For the state of another file, or wrong arrays. No lane has changed then.
        """
        lanes = None if rows is None else self._chosen(rows)
        if not isinstance(state, StreamState):
            raise bad_type("state", "a StreamState", state, "get_state returns one")
        if state.fingerprint != self._file.fingerprint():
            raise ValueError(message("state", "a state of this file", "one of another file or other states"))
        count = self._lanes if lanes is None else len(lanes)
        known = {"R": count, "dtype": np.int64}
        steps = Takes("R").check("state.step", state.step, known)
        self._put(self._file.checked_states("state.state", state.state, count), lanes, steps.copy())

    def _put(self, states: dict[str, Array], rows: Array | None, steps: Array) -> None:
        """Sets the states and steps of the lanes `rows`."""
        if rows is None:
            self._kept = states, steps
            return
        for name, array in states.items():
            axis = self._axis(name)
            np.moveaxis(self._kept[0][name], axis, 0)[rows] = np.moveaxis(array, axis, 0)
        self._kept[1][rows] = steps

    def _taken(self, rows: Array) -> dict[str, Array]:
        """Returns copies of the states of the lanes `rows`."""
        return {name: array.take(rows, self._axis(name)) for name, array in self._kept[0].items()}

    def _axis(self, name: str) -> int:
        axis = self._file.states[name].lane_axis
        assert axis is not None  # _chosen returns rows of files with such an axis only
        return axis

    def __repr__(self) -> str:
        return f"ModelStream({self._file.path!r}, lanes={self._lanes})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _stream, (self._file, self._lanes, self.state, self.step)


def _stream(file: FileSession, lanes: int, state: dict[str, Array], steps: Array) -> ModelStream:
    """Creates a ModelStream from a copy or a pickle."""
    stream = ModelStream(file, lanes)
    stream._put(state, None, steps.copy())
    return stream
