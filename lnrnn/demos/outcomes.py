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


def compare(a: np.ndarray, b: np.ndarray) -> int | None:
    """Is a above b? 1 yes, -1 it is below, 0 neither is clear, None too few seeds to tell.

    a, b: accuracies (S,) under the same seeds. A difference is clear when its mean over the seeds is beyond
    two of its standard errors; that takes at least three seeds.
    """
    difference = a - b
    if len(difference) < 3:
        return None
    error = difference.std(ddof=1) / len(difference) ** 0.5
    return int(np.sign(difference.mean())) if abs(difference.mean()) > 2 * error else 0


# The 97.5 % quantile of Student's t distribution with 1, 2, ... degrees of freedom.
_QUANTILES = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)


def student_quantile(degrees: int) -> float:
    """The 97.5 % quantile of Student's t distribution: 95 % lie between it and its negative."""
    if degrees <= len(_QUANTILES):
        return _QUANTILES[degrees - 1]
    # Expansion in 1 / degrees around the normal quantile (Abramowitz and Stegun, 26.7.5): off by < 1e-4.
    z = 1.959964
    terms: tuple[float, ...] = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return math.fsum(term / degrees**power for power, term in enumerate(terms))


def confidence_interval(differences: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of the mean of paired differences, one per seed, (S,): Student's t, S - 1 degrees of
    freedom. With one seed nothing is known, and it is (-inf, inf)."""
    if len(differences) < 2:
        return -math.inf, math.inf
    error = float(differences.std(ddof=1)) / len(differences) ** 0.5
    half = student_quantile(len(differences) - 1) * error
    return float(differences.mean()) - half, float(differences.mean()) + half
