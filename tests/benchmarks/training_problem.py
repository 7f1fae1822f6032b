"""One training step as every contender is given it: parameters, sequences, the gradient that comes back, and
what the answer must be.

Results have one order for all contenders, which `Problem.results` makes: y, the gradients of x, of the states
before the first step, and of the parameters as the peers want them (`cell.for_peers`), by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from cells import Cell


@dataclass
class Problem:
    """p: parameters under lnrnn's names. x (T, B, I); states: of each (B,
    H); gy (T, B, H): the loss's gradient by y; lengths (B,) or None. plain: the cell without a norm."""

    cell: Cell
    p: dict[str, np.ndarray]
    x: np.ndarray
    states: tuple[np.ndarray, ...]
    gy: np.ndarray
    lengths: np.ndarray | None = None
    plain: bool = False
    names: list[str] = field(init=False)  # of the parameters, as peers get them, in the order of the results

    def __post_init__(self):
        self.names = sorted(self.for_peers(self.p))

    def for_peers(self, p) -> dict[str, np.ndarray]:
        """Parameters, or gradients of them, in the order and the parts that the peers' equations want."""
        return p if self.plain else self.cell.for_peers(p)

    def results(self, y, gx, gstates, grads) -> tuple:
        """grads: by the names that peers use."""
        return y, gx, *gstates, *(grads[name] for name in self.names)

    @cached_property
    def alive(self) -> np.ndarray:
        """(T, B, 1), whether a sequence lasts so long."""
        steps, batch = self.x.shape[:2]
        lengths = np.full(batch, steps) if self.lengths is None else self.lengths
        return (np.arange(steps)[:, None] < lengths)[:, :, None]

    def answer(self) -> tuple[np.ndarray, ...]:
        """The results in float64, by `lnrnn.reference`."""
        options = {"norm": None} if self.plain else {}
        y, tape = self.cell.forward(self.p, self.x, self.states, lengths=self.lengths, **options)
        gx, gstates, grads = self.cell.backward(tape, self.gy)
        return self.results(y, gx, gstates, self.for_peers(grads))

    @property
    def operations(self) -> int:
        """Of the six matrix products, in the steps that sequences really have: forward W_ih x and W_hh h;
        back the two gradients of each, by the weights and by what they are multiplied with."""
        inputs, hidden = self.x.shape[2], self.gy.shape[2]
        return 3 * 2 * int(self.alive.sum()) * self.cell.GATES * hidden * (inputs + hidden)


class Packed:
    """The steps that sequences really have, without padding, as torch's PackedSequence has them: sequences by
    falling length, step after step. counts[t]: how many sequences last beyond step t."""

    def __init__(self, problem: Problem):
        alive = problem.alive[:, :, 0]
        self.order = np.argsort(-alive.sum(0), kind="stable")
        self.counts = [int(n) for n in alive.sum(1) if n]
        self.steps = np.repeat(np.arange(len(self.counts)), self.counts)
        self.columns = np.concatenate([self.order[:n] for n in self.counts])
        self.shape = alive.shape

    def pack(self, values) -> np.ndarray:
        """(T, B, width) to (N, width)."""
        return np.ascontiguousarray(values[self.steps, self.columns])

    def unpack(self, values) -> np.ndarray:
        """(N, width) to (T, B, width), 0 past a length."""
        found = np.zeros((*self.shape, values.shape[-1]), values.dtype)
        found[self.steps, self.columns] = values
        return found

    def sort(self, states) -> tuple[np.ndarray, ...]:
        """States (B, H) by falling length of their sequences."""
        return tuple(s[self.order] for s in states)

    def unsort(self, states) -> tuple[np.ndarray, ...]:
        back = np.argsort(self.order)
        return tuple(s[back] for s in states)


def problem(cell, batch, hidden, steps, *, ragged=False, plain=False) -> Problem:
    """I = H, random numbers."""
    random = np.random.default_rng(7)
    p = cell.plain_parameters(hidden) if plain else cell.parameters(hidden, hidden)
    x, gy = (random.standard_normal((steps, batch, hidden), np.float32) for _ in range(2))
    half = np.float32(0.5)
    states = tuple(half * random.standard_normal((batch, hidden), np.float32) for _ in range(cell.STATES))
    lengths = np.random.default_rng(3).integers(1, steps + 1, batch) if ragged else None
    return Problem(cell, p, x, states, gy, lengths, plain)
