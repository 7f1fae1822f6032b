"""Draws the arguments of a training step, the same for every contender, and computes the right results.

`Problem.results` defines the order of results: y, then the gradients of x, of the initial states, and of the
parameters. These are sorted by the peers' names (`cell.for_peers`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from cells import Cell


@dataclass
class Problem:
    cell: Cell
    p: dict[str, np.ndarray]  # parameters by lnrnn's names
    x: np.ndarray  # (T, B, I)
    states: tuple[np.ndarray, ...]  # each (B, H)
    gy: np.ndarray  # gradient of y, (T, B, H)
    lengths: np.ndarray | None = None  # (B,)
    plain: bool = False  # whether the cell has no norm
    names: list[str] = field(init=False)  # names of the peers' parameters, in the order of results

    def __post_init__(self):
        self.names = sorted(self.for_peers(self.p))

    def for_peers(self, p) -> dict[str, np.ndarray]:
        """Returns parameters, or their gradients, in the order and arrays that the peers' equations need."""
        return p if self.plain else self.cell.for_peers(p)

    def results(self, y, gx, gstates, grads) -> tuple:
        """Returns the results in order. grads: gradients by the peers' names."""
        return y, gx, *gstates, *(grads[name] for name in self.names)

    @cached_property
    def alive(self) -> np.ndarray:
        """Returns bool (T, B, 1): whether sequence b is longer than t."""
        steps, batch = self.x.shape[:2]
        lengths = np.full(batch, steps) if self.lengths is None else self.lengths
        return (np.arange(steps)[:, None] < lengths)[:, :, None]

    def answer(self) -> tuple[np.ndarray, ...]:
        options = {"norm": None} if self.plain else {}
        y, tape = self.cell.forward(self.p, self.x, self.states, lengths=self.lengths, **options)
        gx, gstates, grads = self.cell.backward(tape, self.gy)
        return self.results(y, gx, gstates, self.for_peers(grads))

    @property
    def operations(self) -> int:
        """Returns the operations, without padding, of six products: W_ih x, W_hh h, gradients of factors."""
        inputs, hidden = self.x.shape[2], self.gy.shape[2]
        return 3 * 2 * int(self.alive.sum()) * self.cell.GATES * hidden * (inputs + hidden)


class Packed:
    """Converts arrays to batches without padding, like torch's PackedSequence: step after step, the longest
    sequence first. counts[t]: the number of sequences longer than t."""

    def __init__(self, problem: Problem):
        alive = problem.alive[:, :, 0]
        self.order = np.argsort(-alive.sum(0), kind="stable")
        self.counts = [int(n) for n in alive.sum(1) if n]
        self.steps = np.repeat(np.arange(len(self.counts)), self.counts)
        self.columns = np.concatenate([self.order[:n] for n in self.counts])
        self.shape = alive.shape

    def pack(self, values) -> np.ndarray:
        return np.ascontiguousarray(values[self.steps, self.columns])

    def unpack(self, values) -> np.ndarray:
        """Converts (N, width) to (T, B, width), 0 past a length."""
        padded = np.zeros((*self.shape, values.shape[-1]), values.dtype)
        padded[self.steps, self.columns] = values
        return padded

    def sort(self, states) -> tuple[np.ndarray, ...]:
        """Sorts states (B, H), the longest sequence first."""
        return tuple(s[self.order] for s in states)

    def unsort(self, states) -> tuple[np.ndarray, ...]:
        back = np.argsort(self.order)
        return tuple(s[back] for s in states)


def problem(cell, batch, hidden, steps, *, ragged=False, plain=False) -> Problem:
    """Returns a problem with random numbers and I = H."""
    random = np.random.default_rng(7)
    p = cell.plain_parameters(hidden) if plain else cell.parameters(hidden, hidden)
    x, gy = (random.standard_normal((steps, batch, hidden), np.float32) for _ in range(2))
    half = np.float32(0.5)
    states = tuple(half * random.standard_normal((batch, hidden), np.float32) for _ in range(cell.STATES))
    lengths = np.random.default_rng(3).integers(1, steps + 1, batch) if ragged else None
    return Problem(cell, p, x, states, gy, lengths, plain)
