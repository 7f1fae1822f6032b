"""Weights that parametrizations of torch compute, in recurrent modules of torch.nn."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.utils import parametrize

from .. import _core
from ..importers.running import unchanged
from .freshness import seen

Tensor = torch.Tensor


def fixed(module: Any) -> bool:
    """Returns whether the weights of a parametrized module depend on nothing but its tensors.

    This is so for torch's own parametrizations in evaluation. Others may draw random numbers, and
    spectral_norm changes buffers in training.
    """
    return not any(
        part.training
        or not (
            isinstance(part, parametrize.ParametrizationList)
            or type(part).__module__ == "torch.nn.utils.parametrizations"
        )
        for whole in module.parametrizations.values()
        for part in whole.modules()
    )


# The weights of parametrized modules, with the record of the tensors from which they were computed.
_computed: WeakKeyDictionary[Any, tuple[_core.Seen | None, list[Tensor]]] = WeakKeyDictionary()


def kept(module: Any, names: Sequence[str]) -> list[Tensor]:
    """Returns the weights of a `fixed` module without gradients. They are computed again after a change."""
    owners = [own for part in module.modules() for own in (part._parameters, part._buffers)]
    tensors = [t for own in owners for t in own.values() if t is not None]
    record, weights = _computed.get(module, (None, []))
    if record is None or not record.holds(tensors):
        with torch.inference_mode(False), torch.no_grad():  # for weights with a count of writes
            record, weights = seen(tensors, True), [getattr(module, name) for name in names]
        _computed[module] = record, weights
    return weights


def forget(module: Any) -> None:
    """Lets the next call compute the weights of a module."""
    _computed.pop(module, None)


def as_torch(module: Any, names: Sequence[str]) -> list[Tensor]:
    """Returns the weights of a parametrized module, computed as often as torch.nn's forward computes them.

    torch.nn computes some weights up to four times in a call, which draws more random numbers.
    """
    module._update_flat_weights()
    weights = dict(zip(module._flat_weights_names, module._flat_weights, strict=True))
    return [weights[name] for name in names]


def without_effects(module: Any) -> AbstractContextManager[None]:
    """Returns a context in which weights of a module may be read without an effect on the next call."""
    return unchanged(module, torch) if parametrize.is_parametrized(module) else nullcontext()
