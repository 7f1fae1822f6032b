"""The data set Japanese Vowels, and padding of sequences to batches."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..arguments import TAKES, Integer, Optional, check
from ..errors import bad_value, message, real

__all__ = ["JapaneseVowels", "Utterances", "japanese_vowels", "pad_sequence"]
__dir__ = __all__.copy  # dir() lists public names only

TAKES["data.pad_sequence"] = {"max_steps": Optional(Integer(1))}
_FILE = Path(__file__).with_name("japanese_vowels.npz")
_SHA256 = "1be75b88248d6038f8c67cfa673a1f1d226fdb70a4ef7ee2394e718a4e78942a"


@dataclass(frozen=True)
class Utterances:
    """The training utterances or the test utterances of a data set.

    Attributes
    ----------
    x : list of array of float32 of shape (T_i, 12)
        Steps and channels of each utterance; `lengths` has all T_i.
    labels : array of int64 of shape (N,)
        The speaker of each utterance, 0 to 8.

    Examples
    --------
    >>> from lnrnn.data import japanese_vowels
    >>> japanese_vowels().test
    Utterances(370 of 7 to 29 steps, 12 channels, 9 speakers)
    """

    x: list[np.ndarray]
    labels: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """The number of steps of each utterance, int64 (N,)."""
        return np.array([len(utterance) for utterance in self.x], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        """Shows counts only: values would take thousands of lines."""
        if not self.x:
            return "Utterances(0)"
        least, most = self.lengths.min(), self.lengths.max()
        steps = f"{most} steps" if least == most else f"{least} to {most} steps"
        counts = [(self.x[0].shape[-1], "channel"), (len(np.unique(self.labels)), "speaker")]
        shown = ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts)
        return f"Utterances({len(self)} of {steps}, {shown})"


@dataclass(frozen=True)
class JapaneseVowels:
    """Japanese Vowels as it is published: 270 utterances for training, 370 for tests.

    Attributes
    ----------
    train, test : Utterances
        The utterances for training, and those for tests.

    Examples
    --------
    >>> from lnrnn.data import japanese_vowels
    >>> len(japanese_vowels().train)
    270
    """

    train: Utterances
    test: Utterances

    def __repr__(self) -> str:
        return f"JapaneseVowels(\n  train={self.train!r},\n  test={self.test!r})"


def japanese_vowels() -> JapaneseVowels:
    """Return the data set Japanese Vowels: nine men say /ae/, and a model learns who speaks.

    Returns
    -------
    JapaneseVowels
        New arrays. ``train`` has 270 utterances of 7 to 26 steps, 30 of each speaker. ``test`` has 370 of 7
        to 29 steps, 24 to 88 of each speaker.

    Raises
    ------
    FileNotFoundError
        If the file is missing from the installation.
    ValueError
        If the file has other contents than the release.

    Notes
    -----
    A step is 6.4 ms of speech (frames of 25.6 ms, sampled at 10 kHz). A channel is one of twelve LPC cepstrum
    coefficients, dimensionless, about -1.9 to 2.2, with six decimals.

    Source: M. Kudo, J. Toyama, M. Shimbo, Japanese Vowels, UCI Machine Learning Repository,
    doi:10.24432/C5NS47, licence CC BY 4.0. lnrnn changed the file format only: see lnrnn/data/README.md.

    Examples
    --------
    >>> from lnrnn.data import japanese_vowels
    >>> japanese_vowels().train.x[0].shape
    (20, 12)
    """
    return _read(_FILE)


def pad_sequence(
    sequences: Iterable[ArrayLike], max_steps: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Pad sequences with zeros, to give them to a recurrent model as one batch.

    Parameters
    ----------
    sequences : iterable of array_like of shape (T_i, C)
        N sequences with the same number C of channels.
    max_steps : int, optional
        The largest number of steps to use of a sequence, at least 1. Later steps are left out.

    Returns
    -------
    x : array of float32 of shape (T, N, C)
        The batch; T is the longest length.
    lengths : array of int64 of shape (N,)
        The steps of each sequence.

    Raises
    ------
    ValueError, TypeError
        For a wrong argument, or no sequence.

    Examples
    --------
    >>> import numpy as np
    >>> from lnrnn.data import pad_sequence
    >>> x, lengths = pad_sequence([np.ones((2, 3)), np.ones((5, 3))])
    >>> x.shape, lengths
    ((5, 2, 3), array([2, 5]))
    """
    (max_steps,) = check("data.pad_sequence", {"max_steps": max_steps})
    given = (real(f"sequences[{k}]", sequence) for k, sequence in enumerate(sequences))
    arrays = [np.asarray(sequence, dtype=np.float32)[:max_steps] for sequence in given]
    if not arrays:
        raise ValueError(message("sequences", "at least one array of shape (T_i, C)", "none"))
    for index, array in enumerate(arrays):
        if array.ndim != 2 or array.shape[1] != arrays[0].shape[-1]:
            C = arrays[0].shape[-1] if arrays[0].ndim == 2 else "C"
            raise bad_value(f"sequences[{index}]", f"of shape (T_i, {C})", array)
    lengths = np.array([len(array) for array in arrays], dtype=np.int64)
    x = np.zeros((lengths.max(), len(arrays), arrays[0].shape[1]), dtype=np.float32)
    for index, array in enumerate(arrays):
        x[: len(array), index] = array
    return x, lengths


def _read(path: Path) -> JapaneseVowels:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing; reinstall lnrnn") from None
    digest = hashlib.sha256(content).hexdigest()
    if digest != _SHA256:
        raise ValueError(
            f"{path} is damaged: it must have SHA-256 {_SHA256}, got {len(content)} bytes with {digest}; "
            "reinstall lnrnn"
        )
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return JapaneseVowels(*(_half(file, name) for name in ("train", "test")))


def _half(file: Any, name: str) -> Utterances:
    # The file has differences of integer millionths, exact because the source has six decimals.
    # Their three bytes are in separate arrays, which compress better. float64 division restores the numbers.
    low, middle, high = file[f"{name}_bytes"].astype(np.int32)
    millionths = np.cumsum((high << 16 | middle << 8 | low) - 2**23, axis=1).T
    values = np.ascontiguousarray(millionths / 1e6, np.float32)
    ends = np.cumsum(file[f"{name}_lengths"])
    return Utterances(
        [part.copy() for part in np.split(values, ends[:-1])], file[f"{name}_labels"].astype(np.int64)
    )
