"""What networks answered, over several seeds, and the numbers that follow from it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lnrnn.demos.speakers import REFUSED

Chosen = slice | np.ndarray  # an index into the sequences
ALL = slice(None)


@dataclass(frozen=True)
class Outcome:
    """The answers of one kind of network to one set of N sequences, under S seeds.

    named: int64 (S, N), the class named or REFUSED. labels: int64 (N,), the right ones.
    """

    named: np.ndarray
    labels: np.ndarray

    def refusals(self, chosen: Chosen = ALL) -> int:
        """How many of the chosen sequences were refused. The same for every seed, for a refusal depends on
        lengths alone."""
        counts = np.unique((self.named[:, chosen] == REFUSED).sum(axis=1))
        if len(counts) != 1:
            raise ValueError(f"the seeds refused different numbers of sequences: {counts}")
        return int(counts[0])

    def accuracies(self, chosen: Chosen = ALL, *, answered_only: bool = False) -> np.ndarray:
        """Accuracy on the chosen sequences, one per seed: float64 (S,).

        chosen: an index into the sequences. A refusal is an error, or with ``answered_only`` it is left out;
        then the accuracy is NaN where nothing was answered.
        """
        named = self.named[:, chosen]
        right: np.ndarray = (named == self.labels[chosen]).sum(axis=1)
        asked = (named != REFUSED).sum(axis=1) if answered_only else np.full(len(named), named.shape[1])
        found: np.ndarray = np.divide(right, asked, out=np.full(len(named), np.nan), where=asked > 0)
        return found


def mean_and_deviation(values: np.ndarray) -> tuple[float, float | None]:
    """Mean and sample standard deviation over the seeds; None for the latter when there is one seed."""
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else None


# 0.975 quantiles of Student's t with 1, 2, ..., 30 degrees of freedom.
T_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def interval(differences: np.ndarray) -> tuple[float, float] | None:
    """The 95 % confidence interval of a mean: lowest, highest; None for a single value.

    differences: (S,), one per seed, as of two methods under the same seed. By Student's t, with the quantile
    of 30 degrees of freedom beyond 31 seeds: a little wide there.
    """
    if len(differences) < 2:
        return None
    quantile = T_QUANTILES[min(len(differences) - 1, len(T_QUANTILES)) - 1]
    mean = float(differences.mean())
    half = quantile * float(differences.std(ddof=1)) / len(differences) ** 0.5
    return mean - half, mean + half


def bounds(differences: np.ndarray) -> tuple[float, float]:
    """The ends of `interval`; infinite for a single value, which tells nothing."""
    return interval(differences) or (-math.inf, math.inf)


def format_points(differences: np.ndarray) -> str:
    """Differences of accuracy (S,), mean and 95 % interval in points: "-1.2 [-2.0, -0.4]"."""
    low, high = (100 * end for end in bounds(differences))
    return f"{100 * differences.mean():+.1f} [{low:+.1f}, {high:+.1f}]"


def compare(a: np.ndarray, b: np.ndarray) -> int | None:
    """Is a above b? 1 yes, -1 it is below, 0 neither is clear, None too few seeds to tell.

    a, b: accuracies (S,) under the same seeds. A difference is clear when the 95 % interval of its mean, seed
    by seed, does not hold 0; that takes at least three seeds.
    """
    between = interval(a - b)
    if between is None or len(a) < 3:
        return None
    lowest, highest = between
    return int(lowest > 0) - int(highest < 0)
