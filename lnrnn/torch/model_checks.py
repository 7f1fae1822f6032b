"""Compares a model's outputs, times and weights, for the argument `check` of accelerate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from timeit import timeit
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from ..errors import bad_type
from ..importers.running import numbers, tensors, unchanged
from ..recognise.proof import Unchecked, disagreement
from ..rounding import INPUT
from .custom_forward import keeper
from .derived import restore_class

Tensor = torch.Tensor
Arrays = list[np.ndarray]


def call(model: torch.nn.Module, check: Any) -> Callable[[], Any]:
    """Returns a function without arguments that calls the model on the input `check`."""
    if isinstance(check, dict):
        return partial(model, **check)
    if isinstance(check, (Tensor, PackedSequence)):
        return partial(model, check)
    if isinstance(check, tuple):
        return partial(model, *check)
    raise bad_type(
        "check", "None, a tensor, a tuple of arguments or a dict of keyword arguments", check, INPUT
    )


def outputs(model: torch.nn.Module, once: Callable[[], Any]) -> Arrays:
    """Returns the tensors of a call's result as arrays. once: from `call`."""
    with unchanged(model, torch):
        result = [*map(numbers, tensors(once()))]
    if not result:
        raise ValueError("check must be for a model that returns tensors, got a model that returns none")
    return result


def gain(model: torch.nn.Module, once: Callable[[], Any], replaced: Sequence[str]) -> float | None:
    """Returns the speed-up of a call: its time with torch's forward in `replaced`, over its time now.

    Both alternate, up to 6 times in 0.2 s. Each first call packs weights, and counts only if the first two
    take 1 s. Returns None if a call fails, as for a stateful model.
    """
    modules = [*map(model.get_submodule, replaced)]
    now = [(module, type(module), vars(module).get("forward")) for module in modules]
    for module in modules:
        restore_class(module)
    before = [(module, type(module), None) for module in modules]
    times: tuple[list[float], list[float]] = [], []

    def use(state: Sequence[tuple[Any, type, Any]]) -> None:
        for module, cls, forward in state:
            module.__class__ = cls
            vars(module).pop("forward", None)
            vars(module).update({"forward": forward} if forward else {})

    try:
        with unchanged(model, torch):
            while sum(map(sum, times)) < (1 if len(times[0]) < 2 else 0.2) and len(times[0]) < 6:
                for state, of_state in zip((before, now), times, strict=True):
                    use(state)
                    of_state.append(timeit(once, number=1))
    except Exception:
        return None
    finally:
        use(now)
    return min(times[0][1:] or times[0]) / min(times[1][1:] or times[1])


def compare_outputs(
    model: torch.nn.Module, run: Callable[[], Arrays], before: Arrays, replaced: Sequence[str], report: str
) -> None:
    """Raises ValueError if outputs of run() differ from `before`, the outputs before the modules changed.

    replaced: names of the changed modules. report: text for messages.
    """
    weights = [p for name in replaced for p in model.get_submodule(name).parameters()]
    weights = weights or list(model.parameters()) if replaced else []
    if not weights:
        return
    eps = max(torch.finfo(p.dtype).eps for p in weights)
    generator = torch.Generator().manual_seed(1)

    def finite(outputs: Arrays) -> Arrays:
        """Joins outputs to one row (1, n), with 0 where the outputs before are not finite."""
        return [np.concatenate([np.where(np.isfinite(b), a, 0).ravel()
                                for a, b in zip(outputs, before, strict=True)])[None]]  # fmt: skip

    def disturbed() -> Arrays:
        with unchanged(model, torch):  # restores the weights at its end
            for p in {id(p): p for p in weights}.values():
                signs = torch.randint(0, 2, p.shape, generator=generator) * 2 - 1
                p.mul_((1 + eps * signs).to(p))
            return finite(run())

    after = run()
    shapes, now = ([a.shape for a in outputs] for outputs in (before, after))
    if shapes != now:
        raise ValueError(f"outputs must keep the shapes {shapes}, got {now}; the model is restored")
    others = ([np.where(np.isfinite(a), 0, a) for a in outputs] for outputs in (before, after))
    if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(*others, strict=True)):
        raise ValueError(
            f"outputs have NaN or infinity at other places than before; the model is restored:\n{report}"
        )
    try:
        difference = disagreement(finite(before), finite(after), disturbed, eps, True)
    except Unchecked as reason:
        raise ValueError(f"the model could not be checked, and is restored: {reason}; {INPUT}") from None
    if difference:
        raise ValueError(
            f"the model's outputs on the input of check differ by up to {difference[0]:.3g} from those "
            f"before, where rounding explains {difference[1]:.1g}; the model is restored. A replaced module "
            f"has other results than before:\n{report}"
        )


def compare_weights(model: torch.nn.Module, run: Callable[[], Arrays]) -> None:
    """Raises ValueError if outputs of run() show that modules have cached outdated weights.

    Afterwards, all modules that lnrnn computes read their weights again.
    """
    kept = {name: forget for name, module in model.named_modules() if (forget := keeper(module))}

    def fresh() -> Arrays:
        for forget in kept.values():
            forget()
        return run()

    if not kept:
        return
    before, now = run(), fresh()
    if not _equal(before, now) and _equal(now, fresh()):  # otherwise outputs are random
        raise ValueError(
            f"model has weights that were written without notice, as through p.data or NumPy, in "
            f"{', '.join(name or 'the model' for name in kept)}. Calls since then used their former numbers, "
            "and the next calls use the present ones"
        )


def _equal(one: Arrays, other: Arrays) -> bool:
    return len(one) == len(other) and all(map(partial(np.array_equal, equal_nan=True), one, other))
