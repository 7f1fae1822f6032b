"""A batch of sequences as the engine wants it: time first, float32, lengths checked, longest first."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ._errors import bad_type, bad_value, real

Array = np.ndarray


def sequences(
    x: ArrayLike, lengths: ArrayLike | None, input_size: int, batch_first: bool
) -> tuple[Array, Array, bool]:
    """-> x (T, B, D) float32, lengths (B,) int64, whether it came without a batch axis."""
    x = real("x", x)
    shape = "(B, T, input_size)" if batch_first else "(T, B, input_size)"
    if x.ndim not in (2, 3) or x.shape[-1] != input_size:
        raise bad_value("x", f"{shape} or (T, input_size) with input_size {input_size}", x)
    unbatched = x.ndim == 2
    x = x[:, None] if unbatched else x.swapaxes(0, 1) if batch_first else x
    if x.dtype != np.float32 or not x.flags.aligned or x.strides[-1] != 4 or any(s % 4 for s in x.strides):
        x = np.array(x, np.float32, order="C")
    T, B = x.shape[:2]
    if lengths is None:
        return x, np.full(B, T, np.int64), unbatched
    given = real("lengths", lengths)
    if given.dtype.kind not in "iu" and given.size:
        raise bad_type("lengths", "an array of integers", given)
    if given.shape != (B,) and not (unbatched and given.shape == ()):
        raise bad_value("lengths", f"of shape ({B},), one for each sequence", given)
    if given.size and (given.min() < 0 or given.max() > T):
        raise bad_value("lengths", f"between 0 and the {T} steps of x", int(given.max() if given.max() > T else given.min()))
    return x, given.reshape(B).astype(np.int64), unbatched


def longest_first(lengths: Array) -> tuple[Array, Array]:
    """-> the order of the sequences, longest first and otherwise as they came, and their lengths in it."""
    order = np.argsort(-lengths, kind="stable").astype(np.int64)
    return order, np.ascontiguousarray(lengths[order])
