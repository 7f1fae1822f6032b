"""Handwritten digits for feed-forward networks, and the one split of them that all demos use."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lnrnn.demos.packages import require

FOLDS = 5
PIXELS, CLASSES = 64, 10
PARTS = 9  # no common divisor with the ten digits, which take turns in the published order


@dataclass(frozen=True)
class Digits:
    """scikit-learn's digits: 1797 images of 8 x 8 pixels as rows of 64, scaled from 0..16 to -1..1.

    train_x float32 (1000, 64), train_labels int64 (1000,), fold int64 (1000,): the training fold, 0 to 4,
    that an image belongs to; every fold has 200. test_x (797, 64), test_labels (797,).

    Source: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
    Repository, doi:10.24432/C50P49, CC BY 4.0: its test part.
    """

    train_x: np.ndarray
    train_labels: np.ndarray
    fold: np.ndarray
    test_x: np.ndarray
    test_labels: np.ndarray

    def without_fold(self, held: int) -> np.ndarray:
        """Indices of the 800 training images outside fold ``held``."""
        return np.flatnonzero(self.fold != held)


def load_digits() -> Digits:
    """The digits of the installed scikit-learn: image i is in part i mod 9; parts 0 to 4 are the training
    folds, the others the test data."""
    found = require("sklearn.datasets").load_digits()
    x = (found.data / 8 - 1).astype(np.float32)
    labels = found.target.astype(np.int64)
    part = np.arange(len(x)) % PARTS
    trained = part < FOLDS
    return Digits(x[trained], labels[trained], part[trained], x[~trained], labels[~trained])
