"""Computes weights that torch derives from other parameters: parametrizations and weight_norm.

This file does not import torch: a module's caller has imported it.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from .weights import Array, array

# Matches the magnitude g of weight_norm: weight_hh_l0_g, or parametrizations.weight_hh_l0.original0.
_LENGTH = re.compile(r"(?P<path>.*?)(?:parametrizations\.(?P<new>[^.]+)\.original0|(?P<old>[^.]+)_g)")


def with_plain_weights(module: Any) -> Any:
    """Returns a copy of a module with derived weights as parameters, or the module if it has none."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(module, torch.nn.Module):
        return module
    changed, memo = False, {}
    for part in module.modules():
        changed = changed or torch.nn.utils.parametrize.is_parametrized(part) or bool(_weight_norms(part))
        for value in vars(part).values():  # tensors with a grad_fn cannot be deep-copied
            for t in value if isinstance(value, list) else [value]:
                if isinstance(t, torch.Tensor) and not t.is_leaf:
                    memo[id(t)] = t.detach()
    if not changed:
        return module
    try:
        copied = copy.deepcopy(module, memo).eval()
    except Exception:  # copying a module may raise any exception
        return module
    for part in list(copied.modules()):
        for name in _weight_norms(part):
            with suppress(ValueError):  # these names may belong to plain parameters
                torch.nn.utils.remove_weight_norm(part, name)
        if torch.nn.utils.parametrize.is_parametrized(part):
            # torch's remove_parametrizations would also change the class of the original module.
            weights = {name: getattr(part, name).detach() for name in part.parametrizations}
            part.__class__ = torch.nn.utils.parametrize.type_before_parametrizations(part)
            del part.parametrizations
            for name, weight in weights.items():
                part.register_parameter(name, torch.nn.Parameter(weight))
    return copied


def _weight_norms(part: Any) -> list[str]:
    """Returns names w of weights that weight_norm may compute: w_g and w_v are parameters."""
    own = {name for name, _ in part.named_parameters(recurse=False)}
    return [name[:-2] for name in own if name.endswith("_g") and name[:-1] + "v" in own]


def with_weight_norm(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a state dict with weights g v / |v| in place of weight_norm's g and v.

    The norm |v| is over all axes along which g has size 1.
    """
    result = dict(state)
    for name in state:
        match = _LENGTH.fullmatch(name)
        other = name[:-1] + ("1" if match and match["new"] else "v")
        if match is None or other not in state:
            continue
        g, v = (array(key, state[key]).astype(np.float64) for key in (name, other))
        if g.shape not in _length_shapes(v):
            continue
        axes = tuple(k for k in range(v.ndim) if g.ndim == 0 or g.shape[k] == 1)
        with np.errstate(all="ignore"):  # v may be zero: the result is NaN, as in torch
            weight = g * v / np.sqrt((v * v).sum(axis=axes, keepdims=g.ndim > 0))
        del result[name], result[other]
        result[match["path"] + (match["new"] or match["old"])] = weight
    return result


def _length_shapes(v: Array) -> list[tuple[int, ...]]:
    one = [tuple(n if k == axis else 1 for k, n in enumerate(v.shape)) for axis in range(v.ndim)]
    return [(), *one]
