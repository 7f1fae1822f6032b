"""Data of the studies: scikit-learn's digits, and joined utterances."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lnrnn.data import Utterances, japanese_vowels, pad_sequence
from lnrnn.packages import require

FOLDS = 5
PIXELS, CLASSES = 64, 10


@dataclass(frozen=True)
class Digits:
    """scikit-learn's digits: 1797 images of 8 x 8 pixels as rows of 64, scaled from 0..16 to -1..1.

    train_x float32 (1000, 64), train_labels int64 (1000,), test_x (797, 64), test_labels (797,). fold int64
    (1000,): the fold, 0 to 4, of each training image; every fold has 200 images.

    Source: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
    Repository, doi:10.24432/C50P49, CC BY 4.0: the test set."""

    train_x: np.ndarray
    train_labels: np.ndarray
    fold: np.ndarray
    test_x: np.ndarray
    test_labels: np.ndarray

    def learnt(self, seed: int) -> np.ndarray:
        """Returns the indices of the 800 images that networks of ``seed`` train on: those outside its
        fold."""
        return np.flatnonzero(self.fold != seed % FOLDS)

    def held(self, seed: int) -> np.ndarray:
        """Returns the indices of the 200 images of the fold of ``seed``, which settings are chosen on."""
        return np.flatnonzero(self.fold == seed % FOLDS)


def load_digits() -> Digits:
    """Loads the digits. Image i is in training fold i mod 9 if that is below 5, else in the test data."""
    found = require("sklearn.datasets", "this study", "demo").load_digits()
    x = (found.data / 8 - 1).astype(np.float32)
    labels = found.target.astype(np.int64)
    part = np.arange(len(x)) % 9
    trained = part < FOLDS
    return Digits(x[trained], labels[trained], part[trained], x[~trained], labels[~trained])


def join_utterances(utterances: Utterances, count: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Joins each utterance with ``count - 1`` others of its speaker, drawn with replacement. Each utterance
    is the end of one sequence, so the sequences have the labels of ``utterances``."""
    joined = []
    for index, label in enumerate(utterances.labels):
        same = np.flatnonzero(utterances.labels == label)
        before = rng.choice(same[same != index], count - 1)
        joined.append(np.concatenate([utterances.x[other] for other in (*before, index)]))
    return joined


def standardised_utterances() -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Returns (x, lengths, labels) of Japanese Vowels for training and for tests, padded and standardised."""
    data = japanese_vowels()
    frames = np.concatenate(data.train.x)
    mean, deviation = frames.mean(axis=0), frames.std(axis=0)
    halves = ((half, [(u - mean) / deviation for u in half.x]) for half in (data.train, data.test))
    return [(*pad_sequence(x), half.labels) for half, x in halves]
