"""The structure of calls and results of custom modules, and the mapping of their parameters to lnrnn's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from .. import _core
from ..importers.torch_weights import convert_torch
from ..recognise.reference_network import Leaf
from ..rnn.architecture import Architecture

Tensor = torch.Tensor
NOTHING, NONE, ONE, TWO, PAIR, WAYS = _core.STEP_WAYS


@dataclass(frozen=True)
class Form:
    """A way to call a module, and the structure of its result.

    states: the arguments after x; result: the result. Both have a Leaf in place of each tensor. signature:
    the `signature` of the arguments after x. step: 0 if x is a sequence; else x is one step, with 2 axes
    (B, I) or 3 axes (1, B, I).
    """

    states: tuple[Any, ...]
    signature: Any
    result: Any
    step: int = 0

    @property
    def started(self) -> bool:
        """Whether the arguments have states."""
        found: dict[Leaf, Any] = {}
        collect(self.states, self.states, found)
        return bool(found)

    @property
    def way(self) -> int:
        """The bit of this form in the `_ways` of a Forward; 0 if `quick_step` does not know it."""
        place = 0 if self.step == 2 else None
        one, two = Leaf(0, place), (Leaf(0, place), Leaf(1, place))
        if not self.step or self.result not in (one, two):
            return 0
        known = {NOTHING: (), NONE: (None,), ONE: (one,), TWO: two}
        # Other states are a pair in one argument, which may be a list.
        number = next((n for n, states in known.items() if states == self.states), PAIR)
        return 1 << number << (0 if self.step == 2 else WAYS)


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
        return template.of(y, ends)
    if isinstance(template, dict):
        return {key: built(part, y, ends) for key, part in template.items()}
    if isinstance(template, (tuple, list)):
        parts = [built(part, y, ends) for part in template]
        return parts if isinstance(template, list) else tuple(parts)
    return template


# --- parameters ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """The conversion of a module's parameters to one parameter of lnrnn: selected * sign + constant.

    If index is None, there is one parameter p at `paths`, and p[rows, columns] is selected. If `turned`, p is
    transposed before. rows are pairs (first, last + 1), one after another, and columns one pair; None is for
    all. Otherwise the parameters and a zero are joined into one vector, and vector[index] is selected.
    """

    paths: tuple[tuple[str, ...], ...]
    index: Tensor | None = None
    turned: bool = False
    rows: tuple[tuple[int, int], ...] | None = None
    columns: tuple[int, int] | None = None
    sign: Tensor | None = None
    constant: Tensor | None = None

    @property
    def whole(self) -> bool:
        """Whether the result is a parameter of the module."""
        parts = self.index, self.rows, self.columns, self.sign, self.constant
        return not self.turned and all(part is None for part in parts)

    def sources(self, module: Any) -> list[Tensor]:
        result = []
        for path in self.paths:
            part = module
            for name in path:
                part = getattr(part, name)
            result.append(part)
        return result

    def parameter(self, module: Any) -> Tensor:
        parts = self.sources(module)
        result: Tensor = parts[0]
        if self.index is not None:
            flat = torch.cat([*(part.reshape(-1) for part in parts), parts[0].new_zeros(1)])
            result = flat[self.index]
        if self.turned:
            result = result.t()
        if self.columns is not None:
            result = result[:, slice(*self.columns)]
        if self.rows is not None:
            result = torch.cat([result[first:end] for first, end in self.rows])
        if self.sign is not None:
            result = result * self.sign.to(result)
        if self.constant is not None:
            result = result + self.constant.to(result)
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
    zeros = {name: np.zeros(value.shape) for name, value in numbered.items()}
    constants = convert_torch(_Numbered(module, zeros)).state
    converted = convert_torch(_Numbered(module, numbered)).state
    result = []
    for name in arch.shapes:
        signed, constant = converted[name] - constants[name], constants[name].astype(float)
        places, sign = np.abs(signed).astype(np.int64), np.where(signed < 0, -1.0, 1.0)
        among = [key for key, value in numbered.items() if np.isin(value, places).any()]
        used = among or [next(iter(numbered))]  # if there are only zeros: for their dtype and device
        recipe = _block(places, numbered[used[0]]) if len(used) == 1 else None
        if recipe is None:
            index, offset = np.full(places.shape, sum(numbered[key].size for key in used)), 0
            for key in used:
                first, size = int(numbered[key].flat[0]), numbered[key].size
                inside = (places >= first) & (places < first + size)
                index[inside] = places[inside] - first + offset
                offset += size
            recipe = Recipe((), torch.from_numpy(index))
        recipe = replace(
            recipe,
            paths=tuple(paths[id(given[key])] for key in used),
            sign=torch.from_numpy(sign) if (sign < 0).any() else None,
            constant=torch.from_numpy(constant) if constant.any() else None,
        )
        result.append(recipe)
    return result


_MOST = 16  # blocks of rows; an index is faster for more


def _block(places: np.ndarray, source: np.ndarray) -> Recipe | None:
    """Returns a Recipe without paths if `places` are blocks of rows of a source or its transpose, else None.

    source: the numbers n, n + 1 ..., in an array of one or two axes.
    """
    at = places - int(source.flat[0])
    if places.ndim != source.ndim or not 1 <= places.ndim <= 2 or (at < 0).any() or (at >= source.size).any():
        return None
    size = source.shape if source.ndim == 2 else (len(source), 1)
    for turned in (False, True)[: places.ndim]:
        rows, columns = np.divmod(at.reshape(len(at), -1), size[1])[:: -1 if turned else 1]
        height, width = size[:: -1 if turned else 1]
        first, across = rows[:, 0], columns[0]
        if (rows != first[:, None]).any() or (columns != across).any() or (np.diff(across) != 1).any():
            continue
        breaks = [0, *(np.flatnonzero(np.diff(first) != 1) + 1), len(first)]
        blocks = tuple((int(first[a]), int(first[b - 1]) + 1) for a, b in pairwise(breaks))
        if len(blocks) > _MOST:
            return None
        part = int(across[0]), int(across[-1]) + 1
        all_rows, all_columns = blocks == ((0, height),), part == (0, width)
        return Recipe((), None, turned, None if all_rows else blocks, None if all_columns else part)
    return None
