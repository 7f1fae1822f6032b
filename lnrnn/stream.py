"""A recurrent network one step a call."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import _core
from ._errors import bad_value, integer, real, shaped
from .cells import Cell
from .sequences import FLOAT32, longest_first, states
from .statistics import StepStatistics


class Stream:
    """Feeds a network one step a call, for ever, in constant memory: s = rnn.stream(batch_size); y_t = s(x_t).

    x_t: (B, D), or (D,) if B is 1. -> y_t: (B, H), or (H,), float32, bit for bit what the whole sequence would give. It
    is the stream's own buffer: the next call overwrites it, so copy what is to be kept. A call allocates nothing for a
    float32 x_t.

    A stream keeps the parameters and statistics that the network had when it was made. Under batch norm it carries its
    step, and past the known ones it does what `overrun` says. Streams of one network may run in several threads at once;
    one stream may not.
    """

    def __init__(self, layers: tuple[Any, ...], cell: Cell, batch_size: int, input_size: int, hidden_size: int,
                 statistics: StepStatistics | None, overrun: str | None) -> None:  # fmt: skip
        self._cell = cell
        self._state = [np.zeros((len(layers), batch_size, hidden_size), np.float32) for _ in range(cell.states)]
        self._statistics = statistics
        self._overrun = overrun
        refuses = statistics is not None and (overrun == "raise" or (overrun != "batch" and not statistics.known))
        self._refused_from = statistics.known if refuses else 2**63
        x = np.zeros((1, batch_size, input_size), np.float32)
        self._row = x[0]
        self._steps = []
        for k, layer in enumerate(layers):
            y = np.empty((1, batch_size, hidden_size), np.float32)
            self._steps.append(_core.Step(layer, x, y, *(s[k] for s in self._state)))
            x = y
        self._shape = self._row.shape
        self._y = x[0]
        self._y_flat = x[0, 0]
        self._step = 0

    def __call__(self, x: ArrayLike) -> np.ndarray:
        if type(x) is not np.ndarray or x.dtype is not FLOAT32:
            x = real("x", x)
        y = self._y
        if x.shape != self._shape:
            if x.shape != self._shape[1:] or self._shape[0] > 1:
                expected = f"{self._shape} or {self._shape[1:]}" if self._shape[0] == 1 else f"{self._shape}"
                raise bad_value("x", f"of shape {expected}", x)
            y = self._y_flat
        step = self._step
        if step >= self._refused_from:
            self._statistics.refuse_overrun(*longest_first(None, step + 1, self._shape[0]), self._overrun)
        self._row[...] = x
        for run in self._steps:
            run(step)
        self._step = step + 1
        return y

    @property
    def state(self) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """The hidden state h, (num_layers, B, H), of an LSTM (h, c): copies. Assign to set it."""
        copies = [s.copy() for s in self._state]
        return copies[0] if len(copies) == 1 else (copies[0], copies[1])

    @state.setter
    def state(self, value: Any) -> None:
        shape = self._state[0].shape
        found = [shaped(name, v, shape, FLOAT32) for name, v in states("state", value, self._cell)]
        for own, new in zip(self._state, found, strict=True):
            own[...] = new

    @property
    def step(self) -> int:
        """How many steps the stream has taken. Assign to set it: batch norm's statistics go by it."""
        return self._step

    @step.setter
    def step(self, value: int) -> None:
        self._step = integer("step", value, 0, 2**62)

    def reset(self) -> None:
        """Back to a zero state and step 0."""
        for own in self._state:
            own[...] = 0
        self._step = 0
