"""Computes the parameters of lnrnn's network from a custom module's parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..importers.weights import Converted
from ..rnn.architecture import Architecture

Tensor = torch.Tensor
Array = np.ndarray
STEP = 4  # spacing of the numbers that identify elements; constants added by a module must be below STEP / 2


@dataclass(frozen=True)
class Recipe:
    """How to compute one parameter of lnrnn: a sum of the module's elements with signs, plus a constant.

    sources: indices of the module's parameters. terms: for each summand (index, signs or None). index:
    positions in the concatenated sources, which a zero follows. signs: None if all are positive. Without
    terms, the only source is lnrnn's parameter itself.
    """

    sources: tuple[int, ...]
    terms: tuple[tuple[Tensor, Tensor | None], ...] = ()
    constant: Tensor | None = None

    def parameter(self, given: Sequence[Tensor]) -> Tensor:
        """Computes the parameter. given: the module's parameters in the order of named_parameters()."""
        if not self.terms:
            return given[self.sources[0]]
        flat = torch.cat([*(given[k].reshape(-1) for k in self.sources), given[0].new_zeros(1)])
        result = None
        for index, sign in self.terms:
            term = flat[index] if sign is None else flat[index] * sign
            result = term if result is None else result + term
        assert result is not None
        return result if self.constant is None else result + self.constant


def recipes(module: torch.nn.Module, convert: Callable[[Any], Converted], arch: Architecture) -> list[Recipe]:
    """Returns a Recipe for each lnrnn parameter, found by converting copies of the module with known numbers.

    Raises ValueError if a parameter is no such sum, e.g. if it depends on batch norm's statistics.
    """
    copied = copy.deepcopy(module)
    parameters = [*copied.parameters()]

    def read(values: Sequence[Tensor]) -> dict[str, Array]:
        with torch.no_grad():
            for p, value in zip(parameters, values, strict=True):
                p.copy_(value)
        return {name: v.astype(np.float32) for name, v in convert(copied).state.items()}

    generator = torch.Generator().manual_seed(0)
    numbered = [STEP * (1 + torch.arange(p.numel()).reshape(p.shape)) for p in parameters]
    owned = [torch.full(p.shape, STEP * (1 + k)) for k, p in enumerate(parameters)]
    drawn = [torch.randn(p.shape, generator=generator) for p in parameters]
    places, owners, want = read(numbered), read(owned), read(drawn)

    def agrees(name: str, recipe: Recipe) -> bool:
        return np.array_equal(recipe.parameter(drawn).numpy(), want[name])

    def made(name: str, terms: Sequence[tuple[Array, Array]]) -> Recipe:
        """Returns a Recipe. terms: for each summand, signed numbers of sources from 1, and positions."""
        constant = owners[name] - STEP * sum(of for of, _ in terms)
        used = sorted({int(k) - 1 for of, _ in terms for k in np.unique(np.abs(of)) if k} or {0})
        ends = np.cumsum([0, *(parameters[k].numel() for k in used)])
        built = []
        for of, at in terms:
            index = np.full(at.shape, ends[-1])
            for k, first in zip(used, ends, strict=False):
                mine = np.abs(of) == k + 1
                index[mine] = first + np.minimum(at[mine], parameters[k].numel() - 1)
            sign = torch.tensor(np.where(of < 0, -1, 1), dtype=torch.float32) if (of < 0).any() else None
            built.append((torch.from_numpy(index), sign))
        whole = Recipe(tuple(used))
        if parameters[used[0]].shape == want[name].shape and agrees(name, whole):
            return whole
        added = torch.tensor(constant, dtype=torch.float32) if constant.any() else None
        return Recipe(tuple(used), tuple(built), added)

    def near(value: Array) -> Array:
        return np.rint(value / STEP).astype(np.int64)

    found = {
        name: made(name, [(np.clip(near(owners[name]), -len(parameters), len(parameters)),
                           np.maximum(np.abs(near(places[name])) - 1, 0))])
        for name in arch.shapes
    }  # fmt: skip
    summed = [name for name in found if not agrees(name, found[name])]
    terms: dict[str, list[tuple[Array, Array]]] = {name: [] for name in summed}
    for k in range(len(parameters)) if summed else ():
        moved = read(
            [t + number * (j == k) for j, (t, number) in enumerate(zip(drawn, numbered, strict=True))]
        )
        for name in summed:
            by = near(moved[name] - want[name])
            if by.any():
                terms[name].append((np.sign(by) * (1 + k), np.maximum(np.abs(by) - 1, 0)))
    found |= {name: made(name, terms[name]) for name in summed if terms[name]}
    if wrong := [name for name in found if not agrees(name, found[name])]:
        raise ValueError(f"{', '.join(wrong)} must be sums of the module's parameters, got other values")
    return [found[name] for name in arch.shapes]
