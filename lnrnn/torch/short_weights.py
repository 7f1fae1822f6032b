"""Weights of bfloat16 and int8 in modules that lnrnn computes: packed weights for calls without gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from ..rnn.functional import with_dtype
from ..rnn.snapshot import Dtype
from .accelerated import Accelerated
from .custom_forward import Forward
from .twin import Twin

Array = np.ndarray


class Rounding(NamedTuple):
    """How much the outputs of a model differ with shorter weights, on the input `check`.

    largest : float
        The largest difference of a number.
    rms : float
        The root mean square of the differences.
    size : float
        The root mean square of the outputs, with float32 weights.
    """

    largest: float
    rms: float
    size: float


def use(module: torch.nn.Module, dtype: Dtype) -> list[Callable[[], None]]:
    """Sets the dtype of a module's packed weights, if lnrnn computes it. Returns functions that undo it."""
    forward = vars(module).get("forward")
    holder = vars(forward if isinstance(forward, Forward) else module)
    if not (isinstance(forward, Forward) or isinstance(module, (Accelerated, Twin))):
        return []
    undo: list[Callable[[], None]] = []
    for name in ("_network", "_networks", "_layers"):
        old = holder.get(name)
        if old is not None:
            undo.append(partial(_restore, holder, name, old))
            holder[name] = _changed(old, dtype)
    return undo


def _restore(holder: dict[str, Any], name: str, old: Any) -> None:
    if name in holder:  # else another report has restored the module
        holder[name] = old


def _changed(value: Any, dtype: Dtype) -> Any:
    """Returns a text of functional.described with another dtype, and tuples with such texts."""
    if isinstance(value, tuple):
        return tuple(_changed(each, dtype) for each in value)
    return with_dtype(value, dtype) if isinstance(value, str) else value


def rounding(exact: Sequence[Array], short: Sequence[Array], dtype: Dtype) -> Rounding:
    """Compares a model's outputs with float32 weights and with weights of a dtype.

    Raises ValueError if these have other shapes, or if numbers are no longer finite.
    """
    shapes = [[a.shape for a in outputs] for outputs in (exact, short)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"dtype must keep the shapes of the outputs on check, {shapes[0]}, got {shapes[1]} with {dtype!r}"
        )
    before, after = (np.concatenate([a.ravel().astype(np.float64) for a in each]) for each in (exact, short))
    known = np.isfinite(before)
    if not np.isfinite(after[known]).all():
        raise ValueError(f"dtype must keep the outputs on check finite, got NaN or infinity with {dtype!r}")
    before, difference = before[known], (after - before)[known]
    rms, size = (float(np.sqrt(np.square(a).mean())) for a in (difference, before))
    return Rounding(float(np.abs(difference).max()), rms, size)
