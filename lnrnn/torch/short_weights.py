"""bfloat16 and int8 weights of modules that lnrnn computes, for calls without gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch

from ..importers.running import numbers, tensors, unchanged
from ..rnn.functional import with_dtype
from ..rnn.snapshot import Dtype
from ..rounding import Rounding, compared, timed
from .accelerated import Accelerated
from .custom_forward import Forward
from .twin import Twin


def use(module: torch.nn.Module, dtype: Dtype) -> list[Callable[[], None]]:
    """Sets the dtype of a module's packed weights, if lnrnn computes it. Returns functions that undo this."""
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
    if name in holder:  # otherwise another report has restored the module
        holder[name] = old


def _changed(value: Any, dtype: Dtype) -> Any:
    """Replaces the dtype in texts of functional.described, also within tuples."""
    if isinstance(value, tuple):
        return tuple(_changed(each, dtype) for each in value)
    return with_dtype(value, dtype) if isinstance(value, str) else value


def measured(
    model: torch.nn.Module, once: Callable[[], Any], original: Sequence[np.ndarray], dtype: Dtype,
    tolerance: float | None, threshold: float,
) -> Rounding:  # fmt: skip
    """Sets the dtype of all modules that lnrnn computes, except `kept` of the returned Rounding report.

    once: calls the model on the input `check`. original: outputs of torch.
    """
    modules = dict(model.named_modules())
    parts = [name for name, module in modules.items() if use(module, "float32")]

    def choose(short: Sequence[str]) -> None:
        for name in parts:
            use(modules[name], dtype if name in short else "float32")

    def run(short: Sequence[str]) -> tuple[list[np.ndarray], float]:
        choose(short)
        with unchanged(model, torch):
            found = [
                numbers(t).astype(float if t.is_floating_point() or t.is_complex() else int)
                for t in tensors(once())
            ]
        seconds = math.nan
        with suppress(Exception), unchanged(model, torch):  # a stateful model may fail
            _, seconds = timed(once)
        return found, seconds

    report = compared(run, parts, dtype, original, tolerance, threshold)
    choose([name for name in parts if name not in report.kept])
    return report
