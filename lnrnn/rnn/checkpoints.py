"""Training with checkpoints: states are stored at every K-th step (Chen et al. 2016, arXiv 1604.06174).

The backward pass recomputes the steps between two checkpoints, from the last checkpoint to the first. In
this file, `line` is the index of a layer and direction. rows.py defines a row: a sequence or a part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .._core import Network, aligned, empty
from .dropout import MaskArrays
from .rows import END, FIRST, LENGTH, SEQUENCE, START, STATE
from .statistics import of_steps

Array = np.ndarray


def _training(statistics: Any, masks: MaskArrays | None, tape: Array | None = None) -> list[Array | None]:
    """Returns the arrays of engine.Training for one layer and direction, in C's order."""
    return [tape, *(masks or (None, None, None)), *(statistics or {}).values(), *[None] * 5]


class Checkpoints:
    """States of one layer and direction that `forward` stores before steps 0, K, 2 K ... of each row."""

    def __init__(self, every: int, tape_width: int) -> None:
        self.every, self.tape_width = every, tape_width
        self.states: list[tuple[Array, ...]] = []  # (rows that reach this step, *): h, or h and c

    def arrays(self) -> Iterator[Array]:
        for pair in self.states:
            yield from pair

    def _parts(self, table: Array) -> Iterator[tuple[int, int, Array]]:
        """Yields (t0, t1, rows that have step t0) for t0 = 0, K, 2 K ... and t1 = t0 + K."""
        longest = int(table[0, LENGTH]) if len(table) else 0
        for t0 in range(0, longest, self.every):
            yield t0, min(t0 + self.every, longest), table[table[:, LENGTH] > t0]

    def forward(
        self, network: Network, line: int, reverse: bool, *, x: Array, y: Array, before: list[Array],
        after: list[Array], rows: Array, statistics: Mapping[str, Array] | None, masks: MaskArrays | None,
    ) -> None:  # fmt: skip
        """Runs Network.forward for one layer and direction. before, after: [h] or [h, c], (rows, *) each."""
        for old, new in zip(before, after, strict=True):
            new[...] = old
        _blank_past_the_end(y, rows)
        for t0, t1, some in self._parts(rows):
            self.states.append(tuple(s[some[:, STATE]] for s in after))
            table = _steps(some, t0, t1, reverse)
            found = [s[None].copy() for s in self.states[-1]]
            table[:, STATE] = np.arange(len(table))
            network.forward(
                x=x, y=y, h0=found[0], hn=found[0], c0=found[-1], cn=found[-1], rows=table,
                training=_training(of_steps(statistics, t0, t1), masks), line=line,
            )  # fmt: skip
            for whole, part in zip(after, found, strict=True):
                whole[some[:, STATE]] = part[0]

    def backward(
        self, network: Network, line: int, reverse: bool, *, x: Array, rows: Array,
        statistics: Mapping[str, Array] | None, masks: MaskArrays | None, gy: Array,
        gafter: list[Array | None], gx: Array | None, gbefore: list[Array], grads: list[Array], add: bool,
    ) -> None:  # fmt: skip
        """Runs Network.backward for one layer and direction. gafter, gbefore: gradients of last and initial
        states, (rows, *) each."""
        for g, given in zip(gbefore, gafter * len(gbefore), strict=False):
            g[...] = 0 if given is None else given
        parts = list(self._parts(rows))
        if not parts and not add:
            for g in grads:
                g[...] = 0
        for (t0, t1, some), begin in zip(reversed(parts), reversed(self.states), strict=True):
            table = _steps(some, t0, t1, reverse)
            steps, who = table[:, FIRST] + np.arange(t1 - t0)[:, None], table[:, SEQUENCE].copy()
            within = np.arange(t1 - t0)[:, None] < table[:, LENGTH]
            steps = np.where(within, steps, 0)
            own = np.arange(len(table))
            table[:, SEQUENCE] = table[:, STATE] = own
            table[:, FIRST], table[:, END] = 0, table[:, LENGTH]
            own_masks = None if masks is None else (
                _picked(masks[0], who), _picked(masks[1], (steps, who)), _picked(masks[2], (steps, who)),
            )  # fmt: skip
            own_x, own_statistics = x[steps, who], of_steps(statistics, t0, t1, copy=True)
            y, record = empty((*steps.shape, gy.shape[2])), aligned(int(within.sum()) * self.tape_width)
            begin = [s[None] for s in begin]
            end, last = [np.empty_like(s) for s in begin], [g[some[:, STATE]][None] for g in gbefore]
            training = _training(own_statistics, own_masks, record)
            network.forward(
                x=own_x, y=y, h0=begin[0], hn=end[0], c0=begin[-1], cn=end[-1], rows=table, training=training,
                line=line,
            )  # fmt: skip
            own_gx = None if gx is None else empty(own_x.shape)
            first = [np.empty_like(g) for g in last]
            network.backward(
                x=own_x, y=y, h0=begin[0], c0=begin[-1], rows=table, training=training, gy=gy[steps, who],
                ghn=last[0], gcn=last[-1], gx=own_gx, gh0=first[0], gc0=first[-1], grads=grads, add=add,
                line=line,
            )  # fmt: skip
            add = True
            for whole, part in zip(gbefore, first, strict=True):
                whole[some[:, STATE]] = part[0]
            if gx is not None and own_gx is not None:
                at, row = np.nonzero(within)
                gx[steps[at, row], who[row]] = own_gx[at, row]


def _steps(rows: Array, t0: int, t1: int, reverse: bool) -> Array:
    """Returns `rows` restricted to steps t0 .. t1 - 1, counted from the last step if reverse."""
    found, end = rows.copy(), np.minimum(rows[:, LENGTH], t1)
    found[:, FIRST] += rows[:, LENGTH] - end if reverse else t0
    found[:, LENGTH] = end - t0
    found[:, START] += t0
    found[:, END] = found[:, FIRST] + found[:, LENGTH]
    return found


def _picked(mask: Array | None, where: Any) -> Array | None:
    return None if mask is None else mask[where]


def _blank_past_the_end(y: Array, rows: Array) -> None:
    for sequence, first, length, end in rows[:, [SEQUENCE, FIRST, LENGTH, END]]:
        if first + length < end:
            y[first + length : end, sequence] = 0
