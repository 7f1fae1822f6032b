"""What other people's modules were like when their forward was learned: rates, flags, functions and parts,
which may be changed afterwards."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

_SIMPLE = (bool, int, float, complex, str, bytes, type(None))
# What every module has, and of these the parts, and what is called around the forward of one.
_TORCH = frozenset(vars(torch.nn.Module())) | {"forward", "__prepare_scriptable__"}
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
MOST = 300  # that are looked at in each call, those nearest to the module first
_gone = object()


class Settings:
    """The attributes of a module and of its parts, and what is in dicts, lists, tuples and objects there."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._parts = list(module.modules())
        self._attributes: list[tuple[Any, str, Any]] = []
        self._items: list[tuple[Any, Any, Any]] = []
        self._sizes: list[tuple[Any, int]] = []
        inside: deque[Any] = deque()
        for part in self._parts:
            for name, value in _attributes(part, part is module):
                self._attributes.append((part, name, value))
                inside.append(value)
        seen = {id(part) for part in self._parts}
        while inside and len(self._attributes) + len(self._items) < MOST:
            value = inside.popleft()
            if id(value) in seen or isinstance(value, (torch.Tensor, torch.nn.Module, type)):
                continue
            seen.add(id(value))
            if isinstance(value, (dict, list, tuple)):
                found = list(value.items() if isinstance(value, dict) else enumerate(value))
                self._sizes.append((value, len(value)))
                self._items += [(value, key, inner) for key, inner in found]
            else:
                found = list(getattr(value, "__dict__", {}).items())
                self._attributes += [(value, name, inner) for name, inner in found]
            inside.extend(inner for _, inner in found)

    def hold(self, training: bool) -> bool:
        """Whether all are what they were. training: whether modules may be in training."""
        for of, name, value in self._attributes:
            now = getattr(of, name, _gone)
            if now is not value and not _same(now, value):
                return False
        for of, size in self._sizes:
            if len(of) != size:
                return False
        for of, key, value in self._items:
            now = of.get(key, _gone) if isinstance(of, dict) else of[key]
            if now is not value and not _same(now, value):
                return False
        return training or not any(part.training for part in self._parts)


def _attributes(part: torch.nn.Module, outermost: bool) -> Iterator[tuple[str, Any]]:
    """Those of the object, and the simple ones of its classes. The hooks of the outermost module, which take
    no part in its forward, are left out."""
    own = vars(part)
    for name, value in own.items():
        if name not in _TORCH:
            yield name, value
    for name in ("_modules", *(() if outermost else _HOOKS)):
        yield name, own[name]
    for cls in type(part).__mro__:
        if cls.__module__.startswith("torch.nn.") or cls is object:
            break
        for name, value in vars(cls).items():
            if name not in own and type(value) in _SIMPLE and not name.startswith("__"):
                yield name, getattr(part, name)


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and type(a) in _SIMPLE and bool(a == b)
