"""How modules of other people are called and what they return: where the state, y, h and c stand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Tensor = torch.Tensor


@dataclass(frozen=True)
class Leaf:
    """A tensor in what goes in or out: y; or h (kind 0) or c (kind 1), of one layer and direction (place),
    (B, H), or of all (None), (places, B, H)."""

    kind: int | None = None
    place: int | None = None


@dataclass(frozen=True)
class Form:
    """A way to call a module. given: whether there is a second argument, the state. signature: its, as
    `signature` has it. state: Leafs as tensors stand in it. result: the same for what is returned."""

    given: bool
    signature: Any
    state: Any
    result: Any


def signature(value: Any) -> Any:
    """What tells the ways apart in which a state may be given: how tensors lie in it, their dimensions."""
    if isinstance(value, Tensor):
        return value.dim()
    if isinstance(value, (tuple, list)):
        return tuple([signature(part) for part in value])
    return value if value is None else "unknown"


def collect(template: Any, value: Any, found: dict[Leaf, Tensor]) -> None:
    if isinstance(template, Leaf):
        found[template] = value
    elif isinstance(template, tuple):
        for part, own in zip(template, value, strict=True):
            collect(part, own, found)


def built(template: Any, y: Tensor, ends: Sequence[Tensor]) -> Any:
    """What a call returns. ends: h, or h and c, (places, B, H)."""
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


def filled(template: Any, states: Sequence[Tensor]) -> Any:
    """The state as an argument. states: h, or h and c, (places, B, H) each."""
    if isinstance(template, Leaf):
        whole = states[template.kind or 0]
        return whole if template.place is None else whole[template.place]
    return tuple(filled(part, states) for part in template)


def arrangements(kinds: int, layers: int, directions: int) -> Iterator[Any]:
    """States as people give them, as Leafs: as torch.nn does; a cell's; a list of the layers', of the
    directions', or both."""

    def cell(place: int | None) -> Any:
        found = tuple(Leaf(kind, place) for kind in range(kinds))
        return found if kinds > 1 else found[0]

    yield cell(None)
    if layers * directions == 1:
        yield cell(0)
    if directions == 1:
        yield tuple(cell(k) for k in range(layers))
    else:
        yield tuple(tuple(cell(k * directions + d) for d in range(directions)) for k in range(layers))
        if layers == 1:
            yield tuple(cell(d) for d in range(directions))
