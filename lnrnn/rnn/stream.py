"""A recurrent network one step a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic

import numpy as np
from numpy.typing import ArrayLike

from .. import _core
from ..errors import bad_value, integer, output, real, shaped
from ..state import Closed
from .batches import FLOAT32, State, as_state, longest_first, states
from .snapshot import Snapshot


class _Run:
    """What a call works with: apart from the stream, whose __getattr__ makes each attribute a little slower.

    row (B, D): where the first layer reads. layers: all of them. y (B, H), y_flat (H,): what the last one
    writes where `out` is not contiguous.
    """

    __slots__ = ("layers", "refused_from", "row", "shape", "step", "y", "y_flat")
    layers: tuple[_core.Step, ...]
    refused_from: int
    row: np.ndarray
    shape: tuple[int, ...]
    step: int
    y: np.ndarray
    y_flat: np.ndarray


class Stream(Closed, Generic[State]):
    """Feeds a network one step a call, for ever, in constant memory: s = rnn.stream(batch_size); y_t =
    s(x_t).

    x_t: (B, D), or (D,) if B is 1. out: where to write, a float32 array of y_t's shape, in any layout; it may
    be x_t's own memory. -> y_t: (B, H), or (H,), float32, bit for bit what the whole sequence would give: a
    new array, or `out`. With an `out`, a call allocates nothing for a float32 x_t.

    A stream keeps the parameters and statistics that the network had when it was made. Under batch norm it
    carries its step, and past the known ones it does what `overrun` says. Streams of one network may run in
    several threads at once; one stream may not. Where a call, `reset` or a new state is interrupted or fails,
    the stream is as before it or as after it.

    A copy, by the module copy or by pickle, is a stream of its own, with the same network, state and step.
    """

    __slots__ = ("_snapshot", "_state", "_run")

    def __init__(
        self, snapshot: Snapshot, batch_size: int, state: Sequence[np.ndarray] | None = None, step: int = 0
    ) -> None:
        """snapshot: of a network with one direction. state: arrays (num_layers, B, H), zeros if None."""
        made, layers = snapshot.architecture, snapshot.layers()
        self._snapshot = snapshot
        shape = (len(layers), batch_size, made.hidden_size)
        self._state = [np.zeros(shape, FLOAT32) for _ in range(made.cell.states)]
        self._run = run = _Run()
        statistics, overrun = snapshot.statistics.get("_l0"), snapshot.overrun
        run.refused_from = 2**63
        if statistics is not None and (overrun == "raise" or (overrun != "batch" and not statistics.known)):
            run.refused_from = statistics.known
        x = np.zeros((1, batch_size, made.input_size), FLOAT32)
        run.row, run.shape = x[0], x[0].shape
        steps = []
        for k, layer in enumerate(layers):
            y = np.empty((1, batch_size, made.hidden_size), FLOAT32)
            steps.append(_core.Step(layer, x, y, *(s[k] for s in self._state)))
            x = y
        run.layers = tuple(steps)
        run.y, run.y_flat, run.step = x[0], x[0, 0], step
        if state is not None:
            for own, given in zip(self._state, state, strict=True):
                own[...] = given

    def __call__(self, x: ArrayLike, *, out: np.ndarray | None = None) -> np.ndarray:
        if type(x) is not np.ndarray or x.dtype is not FLOAT32:
            x = real("x", x)
        run = self._run
        own, shape = run.y, run.shape
        if x.shape != shape:
            if x.shape != shape[1:] or shape[0] > 1:
                expected = f"{shape} or {shape[1:]}" if shape[0] == 1 else f"{shape}"
                raise bad_value("x", f"of shape {expected}", x)
            own = run.y_flat
        if out is None:
            y = result = _core.empty_like(own)
        elif _core.takes_floats(out, own):
            y = result = out
        else:
            y, result = own, output("out", out, own.shape, FLOAT32)
        step = run.step
        if step >= run.refused_from:
            self._snapshot.refuse_overrun(*longest_first(None, step + 1, shape[0]))
        run.row[...] = x
        _core.advance(run.layers, run, y)
        if y is not result:
            result[...] = y
        return result if out is None else out

    @property
    def state(self) -> State:
        """The hidden state h, (num_layers, B, H), or (h, c) with a cell state: copies. Assign to set it."""
        return as_state([s.copy() for s in self._state])

    @state.setter
    def state(self, value: Any) -> None:
        shape, cell = self._state[0].shape, self._snapshot.architecture.cell
        found = [shaped(name, v, shape, FLOAT32) for name, v in states("state", value, cell)]
        _core.put(self._state, found, self._run, None)

    @property
    def step(self) -> int:
        """How many steps the stream has taken. Assign to set it: batch norm's statistics go by it."""
        return self._run.step

    @step.setter
    def step(self, value: int) -> None:
        self._run.step = integer("step", value, 0, 2**62)

    def reset(self) -> None:
        """Back to a zero state and step 0."""
        _core.put(self._state, [None] * len(self._state), self._run, 0)

    def __reduce__(self) -> tuple[Any, ...]:
        state = [s.copy() for s in self._state]
        return type(self), (self._snapshot, state[0].shape[1], state, self.step)
