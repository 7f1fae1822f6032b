"""Counts executions and compares results. An execution is a call of lnrnn whose result is checked."""

from __future__ import annotations

from collections import Counter

import numpy as np


class Judge:
    """Counts executions by kind. Records for each bound the largest ratio of error to bound."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.nearest: dict[str, float] = {}

    def same(self, kind: str, got: np.ndarray, want: np.ndarray, label: str) -> None:
        """Counts one execution, and asserts that `got` has the bits of `want`. All NaN are equal."""
        self.counts[kind] += 1
        alike(got, want, label)

    def near(
        self, kind: str, got: np.ndarray, want: np.ndarray, allowed, label: str, bound: str = ""
    ) -> None:
        """Counts one execution, and asserts that the error is at most `allowed`, a number or an array."""
        self.counts[kind] += 1
        self.within(got, want, allowed, label, bound or kind)

    def within(self, got, want, allowed, label: str, bound: str) -> None:
        """Asserts that the error is at most `allowed`, for a further result of an execution that is already
        counted.
        """
        share = share_of(got, want, allowed, label)
        self.nearest[bound] = max(share, self.nearest.get(bound, 0.0))
        assert share <= 1, f"{label}: the error is {share:.3g} times the tolerance, {describe(allowed)}"

    def true(self, kind: str, right: bool, label: str) -> None:
        self.counts[kind] += 1
        assert right, label


def alike(got: np.ndarray, want: np.ndarray, label: str) -> None:
    if got.dtype != want.dtype or got.shape != want.shape:
        raise AssertionError(f"{label}: {got.dtype}{got.shape}, expected {want.dtype}{want.shape}")
    if got.tobytes() == want.tobytes():
        return
    other = (np.isnan(got) != np.isnan(want)) | ((got != want) & ~np.isnan(want))
    other |= (np.signbit(got) != np.signbit(want)) & ~np.isnan(want)
    if other.any():
        at = tuple(int(i[0]) for i in np.nonzero(other))
        raise AssertionError(
            f"{label}: {other.sum()} of {got.size} values differ, the first at {at}: {got[at]!r}, "
            f"expected {want[at]!r}"
        )


def share_of(got, want, allowed, label: str) -> float:
    """Returns the largest ratio of error to allowed error. NaN and infinities must be equal."""
    assert got.shape == want.shape, f"{label}: shape {got.shape}, expected {want.shape}"
    if not got.size:
        return 0.0
    wide = np.asarray(got).astype(want.dtype)
    with np.errstate(all="ignore"):
        error = np.abs(wide - want)
        share = np.where(error == 0, 0, error / allowed)
        share = np.where((wide == want) | (np.isnan(wide) & np.isnan(want)), 0, share)
    worst = float(share.max())
    return np.inf if np.isnan(worst) else worst


def describe(allowed) -> str:
    return f"{float(np.max(allowed)):.3g} at most"
