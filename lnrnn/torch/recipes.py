"""How the parameters of lnrnn's networks are made of those of other people's modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..importers.torch_weights import convert_torch
from ..rnn.architecture import Architecture

Tensor = torch.Tensor


@dataclass(frozen=True)
class Recipe:
    """How one of lnrnn's parameters is made of a module's: it is the one at paths[0]; or those at paths one
    after the other, and a zero, at the places of index, in its shape."""

    paths: tuple[tuple[str, ...], ...]
    index: Tensor | None

    def made(self, module: Any) -> Tensor:
        parts: list[Tensor] = []
        for path in self.paths:
            part = module
            for name in path:
                part = getattr(part, name)
            parts.append(part)
        if self.index is None:
            return parts[0]
        flat = torch.cat([*(part.reshape(-1) for part in parts), parts[0].new_zeros(1)])
        found: Tensor = flat[self.index]
        return found


class _Numbered:
    """A module whose parameters are the numbers 1, 2, 3 ... to convert_torch, which moves them about."""

    def __init__(self, module: torch.nn.Module, state: dict[str, Any]) -> None:
        self.modules, self.named_modules, self._state = module.modules, module.named_modules, state

    def state_dict(self) -> dict[str, Any]:
        return self._state


def recipes(module: torch.nn.Module, made: Architecture) -> list[Recipe]:
    """How each of lnrnn's parameters comes from the module's. ValueError if its state dict has what is no
    parameter."""
    paths = {id(p): tuple(name.split(".")) for name, p in module.named_parameters(remove_duplicate=False)}
    given, numbered, at = module.state_dict(keep_vars=True), {}, 1
    for name, p in given.items():
        if id(p) not in paths:
            raise ValueError(f"{name} of its state dict is no parameter")
        numbered[name] = np.arange(at, at + p.numel(), dtype=float).reshape(p.shape)
        at += p.numel()
    converted = convert_torch(_Numbered(module, numbered)).state
    found = []
    for name in made.shapes:
        places = converted[name].astype(np.int64)
        same = [key for key, value in numbered.items() if np.array_equal(value, places)]
        if same:
            found.append(Recipe((paths[id(given[same[0]])],), None))
            continue
        among = [key for key, value in numbered.items() if np.isin(value, places).any()]
        used = among or [next(iter(numbered))]  # of zeros alone: whose dtype and device they have
        index, offset = np.full(places.shape, sum(numbered[key].size for key in used)), 0
        for key in used:
            first, size = int(numbered[key].flat[0]), numbered[key].size
            inside = (places >= first) & (places < first + size)
            index[inside] = places[inside] - first + offset
            offset += size
        found.append(Recipe(tuple(paths[id(given[key])] for key in used), torch.from_numpy(index)))
    return found
