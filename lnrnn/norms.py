"""Which norm stands inside a recurrent cell, and the statistics that batch norm keeps for every time step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ._errors import SequenceTooLongError, bad_type, choice, integer, number

OVERRUNS = ("raise", "last", "mean", "batch")


@dataclass(frozen=True)
class LayerNormSpec:
    """Layer norm inside a cell.

    placement: "joint", one norm over the sum W_x x + W_h h: the paper's RNN, and for now the only one.
    cell: where the norm of a cell state goes; an RNN has none, so it says nothing here. eps: inside the root, >= 0.
    """

    placement: str | None = None
    cell: str | None = "out"
    eps: float = 1e-5

    def __post_init__(self) -> None:
        choice("placement", self.placement, ("joint", None))
        choice("cell", self.cell, ("out", "carry", None))
        object.__setattr__(self, "eps", number("eps", self.eps, 0))


@dataclass(frozen=True)
class BatchNormSpec:
    """Batch norm inside a cell, with statistics of its own for every time step.

    max_steps: for how many steps there is room; None: as many as the longest training sequence. overrun: what a sequence
    gets that is longer than any in training: "raise" (SequenceTooLongError), "last" (the statistics of the last known
    step, Cooijmans et al. 2016), "mean" (their mean over time), "batch" (those of the batch it came with). momentum:
    weight of a new batch, in [0, 1], or None for statistics pooled over all batches so far. eps: inside the root, >= 0.
    """

    max_steps: int | None = None
    overrun: str = "raise"
    momentum: float | None = 0.1
    eps: float = 1e-5

    def __post_init__(self) -> None:
        if self.max_steps is not None:
            object.__setattr__(self, "max_steps", integer("max_steps", self.max_steps, 1, 2**31 - 1))
        choice("overrun", self.overrun, OVERRUNS)
        if self.momentum is not None:
            object.__setattr__(self, "momentum", number("momentum", self.momentum, 0, 1))
        object.__setattr__(self, "eps", number("eps", self.eps, 0))


def norm_spec(norm: Any) -> LayerNormSpec | BatchNormSpec | None:
    """The argument `norm` of a recurrent model: a name, a spec or None."""
    if norm is None or isinstance(norm, (LayerNormSpec, BatchNormSpec)):
        return norm
    if not isinstance(norm, str):
        raise bad_type("norm", "'layer', 'batch', None, a LayerNormSpec or a BatchNormSpec", norm)
    return LayerNormSpec() if choice("norm", norm, ("layer", "batch", None)) == "layer" else BatchNormSpec()


class StepStatistics:
    """Mean, biased variance (steps, H) and count (steps,) of one layer in one direction, float64 and int64.

    count[t] is the number of training sequences that were seen alive at step t. Sequences end and never begin again, so
    counts fall with t and the known steps are the first ones. Nothing here changes: `updated` makes a new one, and a
    thread that computes with the old one goes on with it.
    """

    def __init__(self, mean: np.ndarray, var: np.ndarray, count: np.ndarray) -> None:
        """Takes the arrays over."""
        for array in (mean, var, count):
            array.setflags(write=False)
        self.mean, self.var, self.count = mean, var, count
        dead = np.flatnonzero(count == 0)
        self.known = int(dead[0]) if len(dead) else len(count)

    @classmethod
    def empty(cls, steps: int, hidden_size: int) -> StepStatistics:
        return cls(np.zeros((steps, hidden_size)), np.zeros((steps, hidden_size)), np.zeros(steps, np.int64))

    def updated(
        self, mean: np.ndarray, var: np.ndarray, count: np.ndarray, momentum: float | None
    ) -> StepStatistics:
        """Takes in the statistics of one training batch, (T, H) and (T,).

        A step seen for the first time takes the batch's. Later new = (1 - momentum) old + momentum batch; momentum None
        pools old and new by their counts (Chan, Golub, LeVeque 1979), as if all had been one batch.
        """
        steps = int(np.count_nonzero(count))
        more = max(steps - len(self.count), 0)
        wide = ((0, more), (0, 0))
        old_mean, old_var, old_count = np.pad(self.mean, wide), np.pad(self.var, wide), np.pad(self.count, (0, more))
        old = (old_mean[:steps], old_var[:steps])
        new = (mean[:steps], var[:steps])
        seen, here = old_count[:steps, None], count[:steps, None]
        if momentum is None:
            share = here / (seen + here)
            apart = new[0] - old[0]
            joined = (
                old[0] + share * apart,
                (1 - share) * old[1] + share * new[1] + share * (1 - share) * apart**2,
            )
        else:
            joined = tuple(np.where(seen > 0, (1 - momentum) * o + momentum * n, n) for o, n in zip(old, new))
        old_mean[:steps], old_var[:steps] = joined
        old_count[:steps] += count[:steps]
        return StepStatistics(old_mean, old_var, old_count)

    def refuse_overrun(self, lengths: np.ndarray, start: int, overrun: str) -> None:
        """Raises SequenceTooLongError if a sequence that begins at step `start` outlasts what `overrun` can serve."""
        ends = start + lengths
        longest = int(ends.max(initial=0))
        if longest <= self.known or overrun == "batch" or (overrun != "raise" and self.known):
            return
        sequence = int(np.flatnonzero(ends > self.known)[0])
        hint = (
            "train on longer sequences or choose overrun='last', 'mean' or 'batch'"
            if self.known
            else "train, calibrate, or load statistics first"
        )
        raise SequenceTooLongError(sequence, int(ends[sequence]), self.known, hint)

    def folded(
        self, gain: np.ndarray, bias: np.ndarray, eps: float, overrun: str
    ) -> tuple[np.ndarray, np.ndarray, int, int]:
        """What inference needs: a row of scale and shift for every known step, and the row for the steps beyond.

        -> scale, shift (rows, H) float32, such that scale * a + shift is the normalised a; known; beyond (-1: the batch).
        """
        mean, var = self.mean[: self.known], self.var[: self.known]
        beyond = -1 if overrun == "batch" else self.known - 1
        if overrun == "mean" and self.known:
            beyond = self.known
            mean = np.concatenate([mean, mean.mean(0, keepdims=True)])
            var = np.concatenate([var, var.mean(0, keepdims=True)])
        scale = gain / np.sqrt(var + eps)
        shift = bias - mean * scale
        return scale.astype(np.float32), shift.astype(np.float32), self.known, beyond
