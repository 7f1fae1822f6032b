"""The structure of calls and results of custom modules, and the mapping of their parameters to lnrnn's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..importers.running import Leaf
from ..importers.torch_weights import convert_torch
from ..rnn.architecture import Architecture

Tensor = torch.Tensor


@dataclass(frozen=True)
class Form:
    """A way to call a module, and the structure of its result.

    given: whether there is a second argument, the state. signature: the `signature` of this argument. state,
    result: the argument and the result of the module, with a Leaf in place of each tensor.
    """

    given: bool
    signature: Any
    state: Any
    result: Any


def signature(value: Any) -> Any:
    """Returns the structure of a state, with the number of dimensions in place of each tensor."""
    if isinstance(value, Tensor):
        return value.dim()
    if isinstance(value, (tuple, list)):
        return tuple([signature(part) for part in value])
    return value if value is None else "unknown"


def collect(template: Any, value: Any, result: dict[Leaf, Tensor]) -> None:
    """Adds each tensor of a value to `result`, by the Leaf that the template has in its place."""
    if isinstance(template, Leaf):
        result[template] = value
    elif isinstance(template, (tuple, list)):
        for part, own in zip(template, value, strict=True):
            collect(part, own, result)


def built(template: Any, y: Tensor, ends: Sequence[Tensor]) -> Any:
    """Replaces each Leaf in a template by a tensor. ends: h, or h and c, (layers * directions, B, H)."""
    if isinstance(template, Leaf):
        if template.kind is None:
            return y
        whole = ends[template.kind]
        return whole if template.place is None else whole[template.place]
    if isinstance(template, dict):
        return {key: built(part, y, ends) for key, part in template.items()}
    if isinstance(template, (tuple, list)):
        parts = [built(part, y, ends) for part in template]
        return parts if isinstance(template, list) else tuple(parts)
    return template


# --- parameters ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """The conversion of a module's parameters to one parameter of lnrnn.

    If index is None, the result is the parameter at paths[0]. Otherwise the parameters at `paths` and a zero
    are joined into one vector, and the result is vector[index].
    """

    paths: tuple[tuple[str, ...], ...]
    index: Tensor | None

    def parameter(self, module: Any) -> Tensor:
        parts: list[Tensor] = []
        for path in self.paths:
            part = module
            for name in path:
                part = getattr(part, name)
            parts.append(part)
        if self.index is None:
            return parts[0]
        flat = torch.cat([*(part.reshape(-1) for part in parts), parts[0].new_zeros(1)])
        result: Tensor = flat[self.index]
        return result


class _Numbered:
    """A module with the parameters 1, 2, 3 ..., to see where convert_torch moves each number."""

    def __init__(self, module: torch.nn.Module, state: dict[str, Any]) -> None:
        self.modules, self.named_modules, self._state = module.modules, module.named_modules, state

    def state_dict(self) -> dict[str, Any]:
        return self._state


def recipes(module: torch.nn.Module, arch: Architecture) -> list[Recipe]:
    """Returns a Recipe for each of lnrnn's parameters. Raises ValueError if the state dict has buffers."""
    paths = {id(p): tuple(name.split(".")) for name, p in module.named_parameters(remove_duplicate=False)}
    given, numbered, at = module.state_dict(keep_vars=True), {}, 1
    for name, p in given.items():
        if id(p) not in paths:
            raise ValueError(f"{name} of its state dict is no parameter")
        numbered[name] = np.arange(at, at + p.numel(), dtype=float).reshape(p.shape)
        at += p.numel()
    converted = convert_torch(_Numbered(module, numbered)).state
    result = []
    for name in arch.shapes:
        places = converted[name].astype(np.int64)
        same = [key for key, value in numbered.items() if np.array_equal(value, places)]
        if same:
            result.append(Recipe((paths[id(given[same[0]])],), None))
            continue
        among = [key for key, value in numbered.items() if np.isin(value, places).any()]
        used = among or [next(iter(numbered))]  # if there are only zeros: for their dtype and device
        index, offset = np.full(places.shape, sum(numbered[key].size for key in used)), 0
        for key in used:
            first, size = int(numbered[key].flat[0]), numbered[key].size
            inside = (places >= first) & (places < first + size)
            index[inside] = places[inside] - first + offset
            offset += size
        result.append(Recipe(tuple(paths[id(given[key])] for key in used), torch.from_numpy(index)))
    return result
