"""Batch norm's running statistics, which a cell has for every time step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import SequenceTooLongError
from ..state import MOST_COUNTED
from .rows import LENGTH, SEQUENCE, START

Array = np.ndarray


def _names(side: str) -> tuple[str, str]:
    end = f"_{side}" if side else ""
    return f"running_mean{end}", f"running_var{end}"


def named_shapes(sides: Mapping[str, int], steps: int) -> dict[str, tuple[int, ...]]:
    """Returns {name without suffix: shape} of the statistics of one layer and direction.

    sides: as in Architecture: the width of the statistics at each position of a norm.
    """
    found: dict[str, tuple[int, ...]] = {
        name: (steps, width) for s, width in sides.items() for name in _names(s)
    }
    return found | {"count": (steps,)}


def blank(sides: Mapping[str, int], steps: int) -> dict[str, Array]:
    """Returns zeros with the names and shapes of `named_shapes`, to which C writes a batch's statistics."""
    shapes = named_shapes(sides, steps)
    return {name: np.zeros(shape, np.int64 if name == "count" else float) for name, shape in shapes.items()}


def of_steps(batch: Mapping[str, Array] | None, t0: int, t1: int, *, copy: bool = False) -> Any:
    """Returns steps t0 .. t1 - 1 of arrays from `blank`, as views or copies. None gives None."""
    if batch is None:
        return None
    return {name: array[t0:t1].copy() if copy else array[t0:t1] for name, array in batch.items()}


def refuse_beyond(max_steps: int | None, table: Array) -> None:
    """Raises SequenceTooLongError for a sequence longer than max_steps. table: of rows.Rows."""
    if max_steps is not None:
        _refuse(max_steps, table, "raise max_steps of the BatchNormSpec")


def _refuse(known: int, table: Array, hint: str, what: str = "sequence") -> None:
    """Raises SequenceTooLongError for the first sequence or lane (`what`) with more than `known` steps."""
    ends = np.where(table[:, LENGTH] > 0, table[:, START] + table[:, LENGTH], 0)
    over = ends > known
    if over.any():
        sequence = int(table[over, SEQUENCE].min())
        raise SequenceTooLongError(
            sequence, int(ends[table[:, SEQUENCE] == sequence].max()), known, hint, what
        )


class StepStatistics:
    """Batch norm's running statistics of one layer and direction.

    Statistics are mean and biased variance, float64 (steps, width), for each position of a norm, and count
    (steps,). count[t] is the number of training sequences that had a step t. It never rises with t, so the
    known steps come first. An object never changes, because other threads may use it.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        """arrays: named as in `named_shapes`. They are not copied, and become read-only."""
        for array in arrays.values():
            array.setflags(write=False)
        self.arrays = dict(arrays)
        self.count = self.arrays["count"]
        dead = np.flatnonzero(self.count == 0)
        self.known = int(dead[0]) if len(dead) else len(self.count)

    @classmethod
    def empty(cls, sides: Mapping[str, int], steps: int) -> StepStatistics:
        return cls(blank(sides, steps))

    def updated(self, batch: Mapping[str, Array], momentum: float | None) -> StepStatistics:
        """Returns the running statistics after a training batch. batch: its statistics, from `blank`.

        A step without old statistics gets the batch's values, others (1 - momentum) old + momentum batch.
        momentum None pools both by their counts (Chan, Golub, LeVeque 1979). Counts do not exceed 2**53.
        """
        count = batch["count"]
        steps = int(np.count_nonzero(count))
        more = max(steps - len(self.count), 0)
        new_count = np.minimum(np.pad(self.count, (0, more)), MOST_COUNTED)
        seen, here = new_count[:steps, None], count[:steps, None]
        arrays = {}
        for mean_name in (name for name in self.arrays if name.startswith("running_mean")):
            names = mean_name, mean_name.replace("mean", "var", 1)
            old = [np.pad(self.arrays[name], ((0, more), (0, 0))) for name in names]
            (mean, var), (m, v) = (o[:steps] for o in old), (batch[name][:steps] for name in names)
            joined: tuple[Array, ...]
            if momentum is None:
                share, apart = here / (seen + here), m - mean
                joined = mean + share * apart, (1 - share) * var + share * v + share * (1 - share) * apart**2
            else:
                joined = tuple(
                    np.where(seen > 0, (1 - momentum) * o + momentum * n, n) for o, n in ((mean, m), (var, v))
                )
            for name, array, values in zip(names, old, joined, strict=True):
                array[:steps] = values
                arrays[name] = array
        new_count[:steps] += np.minimum(count[:steps], MOST_COUNTED - new_count[:steps])
        return StepStatistics(arrays | {"count": new_count})

    def refuse_overrun(self, table: Array, overrun: str | None, what: str = "sequence") -> None:
        """Raises SequenceTooLongError if a step lacks statistics, unless `overrun` permits this.

        table: of rows.Rows. The last argument is "sequence" or "lane", for the message.
        """
        if overrun == "batch" or (overrun != "raise" and self.known):
            return
        _refuse(
            self.known, table,
            "train on longer sequences, or set rnn.overrun to 'last', 'mean' or 'batch'" if self.known
            else "train, calibrate, or load statistics first",
            what,
        )  # fmt: skip
