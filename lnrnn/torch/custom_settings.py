"""Notices changes of a custom module's attributes and buffers after its forward was replaced.

After such a change, of a rate or a flag for example, the new forward may have wrong results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import MemberDescriptorType, ModuleType
from typing import Any

import numpy as np
import torch

from .._core import same_objects

_SIMPLE = (bool, int, float, complex, str, bytes, type(None))
# Attributes that are not compared: those of every module, such as its submodules, and replaced forwards.
_TORCH = frozenset(vars(torch.nn.Module())) | {"forward", "__prepare_scriptable__"}
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
# Attributes that accelerate and torch.nn.Module.compile set later.
_COMPILED = frozenset({"_compiled_call_impl"})
_LATER = _COMPILED | {"forward", "__prepare_scriptable__"}
MOST = 300  # limit on the values to compare in each call; values nearest to the module come first


class _Gone:
    """The value of an absent attribute: a class, because its copy is the same object."""


class Settings:
    """The attributes and buffers of a module and its submodules (parts), as they were at first.

    Contents of dicts, lists, tuples and objects in attributes are also compared. unseen: the names of
    attributes with arrays and sets.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        # Each list has tuples; the last entry of a tuple is the name of the module's attribute.
        self._parts = list(module.modules())
        # An object, the names of its attributes, and names that may come later.
        self._names: list[tuple[Any, set[str], frozenset[str], str]] = []
        self._sizes: list[tuple[Any, int, str]] = []
        self._attributes: list[tuple[Any, str, Any, str]] = []
        self._items: list[tuple[Any, Any, Any, str]] = []
        self._tensors: list[list[Any]] = []  # a tensor, its version, a copy
        self.unseen: list[str] = []
        inside: deque[tuple[Any, str]] = deque()
        seen = {id(part) for part in self._parts}
        for path, part in module.named_modules():
            before = f"{path}." if path else ""
            later = _LATER if part is module else _COMPILED
            self._names.append((part, vars(part).keys() - later, later, before))
            for name, value in _attributes(part, part is module):
                self._attributes.append((part, name, value, before + name))
                inside.append((value, before + name))
            for kind, own in (("parameters", part._parameters), ("buffers", part._buffers)):
                self._sizes.append((own, len(own), before + kind))
                for name, tensor in own.items():
                    if tensor is None or kind == "buffers":
                        self._items.append((own, name, tensor, before + name))
                    if tensor is not None and kind == "buffers":
                        seen.add(id(tensor))
                        self._tensor(tensor, before + name)
        while inside and len(self._attributes) + len(self._items) < MOST:
            value, name = inside.popleft()
            if id(value) in seen or isinstance(value, (*_SIMPLE, torch.nn.Module, type, ModuleType)):
                continue
            seen.add(id(value))
            inside.extend((inner, name) for inner in self._contents(value, name))
        # The arguments of `same_objects`.
        self.compared = self._attributes, self._names, self._sizes, self._items, self._tensors

    def _tensor(self, tensor: torch.Tensor, name: str) -> None:
        version = -1 if tensor.is_inference() else tensor._version
        self._tensors.append([tensor, version, tensor.detach().clone(), name])

    def _contents(self, value: Any, name: str) -> list[Any]:
        """Records a value. Returns the values inside of it."""
        if isinstance(value, torch.Tensor):
            if not isinstance(value, torch.nn.Parameter):
                self._tensor(value, name)
            return []
        if isinstance(value, (dict, list, tuple, deque)):
            items = list(value.items() if isinstance(value, dict) else enumerate(value))
            self._sizes.append((value, len(value), name))
            self._items += [(value, key, inner, name) for key, inner in items]
            return [inner for _, inner in items]
        if isinstance(value, (np.ndarray, bytearray, set)):
            self.unseen.append(name)
            return []
        by_name = {key: getattr(value, key, _Gone) for key in _slots(type(value))}
        if hasattr(value, "__dict__"):
            self._names.append((value, vars(value).keys() - _LATER, _LATER, name))
            by_name |= vars(value)
        self._attributes += [(value, key, inner, name) for key, inner in by_name.items()]
        return list(by_name.values())

    def hold(self, training: bool) -> bool:
        """Returns whether nothing has changed. training: whether modules may be in training mode."""
        compiling = torch.compiler.is_compiling()  # torch.compile traces Python only
        if compiling or not same_objects(*self.compared):
            for _ in self.changed():
                return False
        return training or not any(part.training for part in self._parts)

    def changed(self, written: bool = False) -> Iterator[str]:
        """Yields the names of changed attributes.

        written: whether to compare all numbers, because tensor.data.add_(1) does not change the version.
        """
        for of, name, value, where in self._attributes:
            now = getattr(of, name, _Gone)
            if now is not value and not _same(now, value):
                yield where
        for of, names, later, where in self._names:
            own = vars(of)
            if len(own) != len(names):
                for name in own.keys() - later - names:
                    yield where + name if where.endswith(".") or not where else where
        for of, size, where in self._sizes:
            if len(of) != size:
                yield where
        for of, key, value, where in self._items:
            now = of.get(key, _Gone) if isinstance(of, dict) else of[key] if key < len(of) else _Gone
            if now is not value and not _same(now, value):
                yield where
        for entry in self._tensors:
            tensor, version, copy, where = entry
            now = -1 if tensor.is_inference() else tensor._version
            if now != version or now == -1 or written:
                if not _equal(tensor, copy):
                    yield where
                else:
                    entry[1] = now


def _attributes(part: torch.nn.Module, outermost: bool) -> Iterator[tuple[str, Any]]:
    """Yields the attributes of a module, and those of its classes that are numbers, strings or None.

    Hooks of the outermost module are left out, because torch calls them before and after forward.
    """
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
                now = getattr(part, name)  # a derived class may replace the value
                if type(now) in _SIMPLE:
                    yield name, now


def _slots(cls: type) -> Iterator[str]:
    for base in cls.__mro__:
        if "__slots__" in vars(base):
            yield from (name for name, own in vars(base).items() if isinstance(own, MemberDescriptorType))


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and type(a) in _SIMPLE and bool(a == b)


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether all numbers are equal. Two NaNs are equal."""
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())
