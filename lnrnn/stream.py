"""A recurrent network one step a call."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import _core
from ._errors import bad_value, integer, real, shaped
from .norms import StepStatistics


class Stream:
    """Feeds a network one step a call, for ever, in constant memory: s = rnn.stream(batch_size); y_t = s(x_t).

    x_t: (B, D), or (D,) if B is 1. -> y_t: (B, H), or (H,), float32, bit for bit what the whole sequence would give. It
    is the stream's own buffer: the next call overwrites it, so copy what is to be kept. A call allocates nothing for a
    float32 x_t.

    A stream keeps the parameters and statistics that the network had when it was made. Under batch norm it carries its
    step, and past the known ones it does what `overrun` says. Streams of one network may run in several threads at once;
    one stream may not.
    """

    def __init__(self, layers: list[Any], batch_size: int, input_size: int, hidden_size: int,
                 statistics: StepStatistics | None, overrun: str | None) -> None:  # fmt: skip
        self._input = np.zeros((1, batch_size, input_size), np.float32)
        self._h = np.zeros((len(layers), batch_size, hidden_size), np.float32)
        self._known = statistics
        self._overrun = overrun
        self._refuses = overrun == "raise" or (self._known is not None and not self._known.known and overrun != "batch")
        self._length = np.ones(batch_size, np.int64)
        self._steps = []
        x = self._input
        for k, layer in enumerate(layers):
            y = np.empty((1, batch_size, hidden_size), np.float32)
            self._steps.append(_core.Step(layer, x, y, self._h[k]))
            x = y
        self._row = self._input[0]
        self._y = x[0]
        self._y_flat = x[0, 0]
        self._step = 0

    def __call__(self, x: ArrayLike) -> np.ndarray:
        row = self._row
        if type(x) is not np.ndarray or x.dtype != np.float32:
            x = real("x", x)
        flat = x.ndim == 1 and row.shape[0] == 1
        if x.shape != (row.shape[1:] if flat else row.shape):
            expected = f"{row.shape} or {row.shape[1:]}" if row.shape[0] == 1 else f"{row.shape}"
            raise bad_value("x", f"of shape {expected}", x)
        if self._refuses and self._step >= self._known.known:
            self._known.refuse_overrun(self._length, self._step, self._overrun)
        row[...] = x
        for run in self._steps:
            run(self._step)
        self._step += 1
        return self._y_flat if flat else self._y

    @property
    def state(self) -> np.ndarray:
        """The hidden state, (num_layers, B, H): a copy. Assign to set it."""
        return self._h.copy()

    @state.setter
    def state(self, value: ArrayLike) -> None:
        self._h[...] = shaped("state", value, self._h.shape, np.float32)

    @property
    def step(self) -> int:
        """How many steps the stream has taken. Assign to set it: batch norm's statistics go by it."""
        return self._step

    @step.setter
    def step(self, value: int) -> None:
        self._step = integer("step", value, 0, 2**62)

    def reset(self) -> None:
        """Back to a zero state and step 0."""
        self._h[...] = 0
        self._step = 0
