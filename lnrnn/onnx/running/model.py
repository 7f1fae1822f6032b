"""Model: runs an ONNX file in onnxruntime and keeps the file's states. model_stream.py has its streams."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...arguments import TAKES, THREADS, Flag, Instance, check
from ...packages import require
from ...state import Closed
from .model_stream import ModelStream
from .states import Dims

Array = np.ndarray
TAKES["onnx.Model"] = {
    "path": Instance((str, os.PathLike), "the path of an ONNX file"), "threads": THREADS.of, "plugin": Flag(),
}  # fmt: skip


class Model(Closed):
    """An ONNX file that runs in onnxruntime, whose states are kept from call to call.

    A state is an input of the file whose next value is an output, such as h_in and h_out of a policy.
    ``model.stream(lanes)`` keeps the states for endless sequences. ``y, state = model(x)`` computes whole
    sequences.

    Parameters
    ----------
    path : str or os.PathLike
        The file.
    states : mapping of str to str, optional
        The inputs that are states, and for each the output with its next value. {} is for a file without
        states. By default names and shapes tell. If they do not, a ValueError has the mapping to give.
    constants : mapping of str to array_like, optional
        Inputs that are the same in all calls, such as the sample rate of silero-vad: ``{"sr": 16000}``.
    shapes : mapping of str to tuple, optional
        Shapes of inputs, for files that declare too little. None is a free size, and in a state the axis of
        lanes: ``{"state": (2, None, 128)}``.
    threads : int
        Threads of onnxruntime, and of the plug-in, 1 to 1024.
    plugin : bool
        Whether lnrnn's plug-in computes the recurrent nodes that it supports. It needs onnxruntime 1.25;
        older versions compute all nodes themselves. Outputs with and without the plug-in differ by rounding
        errors: of float32, but of 8 bits in DynamicQuantizeLSTM.

    Raises
    ------
    ValueError, TypeError
        For a wrong argument, a damaged file (OnnxFileError), and ambiguous states.

    Notes
    -----
    All states are 0 at the start. Outputs equal, bit for bit, the outputs of ``model.session.run``.

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
    ...     model = lnrnn.onnx.Model(f"{folder}/sums.onnx")
    >>> y, state = model(np.ones((4, 2, 3)))
    >>> y[:, 0, 0]
    array([1., 2., 3., 4.], dtype=float32)
    >>> stream = model.stream(2)
    >>> y = stream(np.ones((2, 3)))
    """

    __slots__ = ("_file",)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        states: Mapping[str, str] | None = None,
        constants: Mapping[str, ArrayLike] | None = None,
        shapes: Mapping[str, Dims] | None = None,
        threads: int = 1,
        plugin: bool = True,
    ) -> None:
        path, threads, plugin = check("onnx.Model", locals())
        require("onnx_ir", "lnrnn.onnx.Model", "onnx")
        from .file_session import FileSession

        self._file = FileSession(os.fspath(path), states, constants, shapes, threads, plugin)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs of a call, without states and constants."""
        return tuple(self._file.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs of a call, without states."""
        return self._file.outputs

    @property
    def states(self) -> dict[str, str]:
        """The inputs that are states, and for each the output with its next value."""
        return {name: state.output for name, state in self._file.states.items()}

    @property
    def session(self) -> Any:
        """The onnxruntime.InferenceSession that computes."""
        return self._file.session

    def __call__(
        self, x: Any, state: Mapping[str, ArrayLike] | None = None, *, lanes: int | None = None
    ) -> tuple[Any, dict[str, Array]]:
        """Compute whole sequences. x, y and errors are as in `ModelStream`.

        Parameters
        ----------
        state : mapping of str to array_like, optional
            The states before the first step, by input name; 0 by default.
        lanes : int, optional
            The number of independent sequences. By default the file's names of axes tell, or it is 1.

        Returns
        -------
        y, state
            The outputs, and a dict of the states after the last step.
        """
        feed, steps = self._file.feed(x)
        stream = ModelStream(self._file, self._file.lanes_of(feed, state) if lanes is None else lanes)
        if state is not None:
            stream.state = state
        if (steps or 0) > 1:
            self._warn()
        return stream(feed), stream.state

    def stream(self, lanes: int = 1) -> ModelStream:
        """Return a `ModelStream`. `lanes` is as in `Network.stream`; a file of fixed sizes has one lane."""
        stream = ModelStream(self._file, lanes)
        self._warn()
        return stream

    def _warn(self) -> None:
        """Warns, once, of recurrent nodes that start at 0 in each run, since their state is no input."""
        nodes, self._file.restarting = self._file.restarting, []
        if nodes:
            names = ", ".join(nodes[:3]) + f" and {len(nodes) - 3} more" * (len(nodes) > 3)
            warnings.warn(
                f"the state of {names} starts at 0 in each run of {self._file.path!r}, because the file does "
                "not take it as an input: no run continues the one before",
                stacklevel=3,
            )

    def __repr__(self) -> str:
        states = ", ".join(f"{name} -> {output}" for name, output in self.states.items())
        return f"Model({self._file.path!r}, inputs={self.inputs}, outputs={self.outputs}, states=({states}))"
