"""The data set that travels with lnrnn, and the padding that turns it into batches."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["JapaneseVowels", "Utterances", "japanese_vowels", "pad_sequence"]

_FILE = Path(__file__).with_name("japanese_vowels.npz")
_SHA256 = "c69a09b39bde332d5215029194e47382313591f93dc572e7c5ba71d25e5de3a1"


@dataclass(frozen=True)
class Utterances:
    """One half of a data set.

    x: one float32 array per utterance, (T_i, 12): steps, channels.
    labels: int64, (N,): the speaker of each utterance, 0..8.
    """

    x: list[np.ndarray]
    labels: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Steps in each utterance: int64, (N,)."""
        return np.array([len(utterance) for utterance in self.x], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        """Counts, for a prompt: the values would be thousands of lines."""
        if not self.x:
            return "Utterances(0)"
        least, most = self.lengths.min(), self.lengths.max()
        steps = f"{most} steps" if least == most else f"{least} to {most} steps"
        counts = [(self.x[0].shape[-1], "channel"), (len(np.unique(self.labels)), "speaker")]
        told = ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts)
        return f"Utterances({len(self)} of {steps}, {told})"


@dataclass(frozen=True)
class JapaneseVowels:
    """Japanese Vowels as it was published: 270 utterances to train on, 370 to test with."""

    train: Utterances
    test: Utterances

    def __repr__(self) -> str:
        return f"JapaneseVowels(\n  train={self.train!r},\n  test={self.test!r})"


def japanese_vowels() -> JapaneseVowels:
    """Japanese Vowels: nine men say /ae/; who is speaking?

    ``.train`` holds 270 utterances of 7 to 26 steps (30 of each speaker), ``.test`` 370 of 7 to 29 steps (24
    to 88 of each). A step is 6.4 ms of speech (frames of 25.6 ms, sampled at 10 kHz), a channel one of twelve
    LPC cepstrum coefficients, dimensionless, about -1.9 to 2.2, published with six decimals. Every call
    returns new arrays.

    Source: M. Kudo, J. Toyama, M. Shimbo, Japanese Vowels, UCI Machine Learning Repository,
    doi:10.24432/C5NS47, licensed CC BY 4.0; its README.md, which a wheel has among its licences, says
    what was changed (the file format only).

    Raises FileNotFoundError if the file is missing and ValueError if it is not the one that was shipped.
    """
    return _read(_FILE)


def pad_sequence(
    sequences: Iterable[ArrayLike], max_steps: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Puts sequences side by side, in the layout that the recurrent models read.

    sequences: N arrays (T_i, C) with the same C.
    max_steps: keep only the first ``max_steps`` steps of each (default: all).
    Returns ``(x, lengths)``: x float32, (T, N, C), where T is the longest length kept and everything past a
    sequence's own end is 0; lengths int64, (N,).
    Raises ValueError for no sequences at all, for a shape that does not fit, and for max_steps < 1.
    """
    if max_steps is not None and max_steps < 1:
        raise ValueError(f"max_steps must be at least 1, got {max_steps}")
    arrays = [np.asarray(sequence, dtype=np.float32)[:max_steps] for sequence in sequences]
    if not arrays:
        raise ValueError("sequences is empty: expected at least one array of shape (steps, channels)")
    for index, array in enumerate(arrays):
        if array.ndim != 2 or array.shape[1] != arrays[0].shape[-1]:
            raise ValueError(
                f"sequences[{index}] has shape {array.shape}: expected (steps, channels), with as many "
                f"channels as sequences[0], which has shape {arrays[0].shape}"
            )
    lengths = np.array([len(array) for array in arrays], dtype=np.int64)
    x = np.zeros((lengths.max(), len(arrays), arrays[0].shape[1]), dtype=np.float32)
    for index, array in enumerate(arrays):
        x[: len(array), index] = array
    return x, lengths


def _read(path: Path) -> JapaneseVowels:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing: lnrnn ships it, please reinstall lnrnn") from None
    digest = hashlib.sha256(content).hexdigest()
    if digest != _SHA256:
        raise ValueError(
            f"{path} is damaged: {len(content)} bytes with SHA-256 {digest}, expected {_SHA256}; "
            "please reinstall lnrnn"
        )
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return JapaneseVowels(*(_half(file, name) for name in ("train", "test")))


def _half(file: Any, name: str) -> Utterances:
    # The file counts millionths, for whole numbers hold the published six decimals exactly, and their bytes
    # by rank compress better. Dividing in float64 gives the very number that reading the decimal text gives.
    millionths = np.ascontiguousarray(file[f"{name}_bytes"].T).view("<i4")[..., 0]
    values = (millionths / 1e6).astype(np.float32)
    ends = np.cumsum(file[f"{name}_lengths"])
    return Utterances(
        [part.copy() for part in np.split(values, ends[:-1])], file[f"{name}_labels"].astype(np.int64)
    )
