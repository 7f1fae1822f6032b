"""Detects changes of a custom module's attributes and buffers after its forward was replaced.

After a change, e.g. of a rate or flag, the new forward could give wrong results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from types import MemberDescriptorType, ModuleType
from typing import Any

import numpy as np
import torch

from .layouts import identical

_SIMPLE = (bool, int, float, complex, str, bytes, type(None))
_SEQUENCES = (list, tuple, deque)
# Attributes to ignore: those of all modules, such as submodules, and replaced forwards.
_TORCH = frozenset(vars(torch.nn.Module())) | {"forward", "__prepare_scriptable__", "_compiled_call_impl"}
_NONE: frozenset[str] = frozenset()
_END = (object(),)  # separates views: an element cannot move from one view to the next unnoticed
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
MOST = 300  # limit of recorded objects; objects nearest to the module come first


class Settings:
    """Records attributes and buffers of a module and its submodules, to detect later changes.

    Contents of dicts, lists, tuples and objects are recorded too. unseen: names of attributes that cannot be
    recorded: arrays, sets and objects with slots.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._parts = list(module.modules())
        # Entries: an object, dict or sequence. Its values, by name unless it is a sequence. Names to ignore.
        # The name of the module's attribute, or the path of a submodule with a dot at its end.
        self._contents: list[tuple[Any, Any, frozenset[str], str]] = []
        self._tensors: list[list[Any]] = []  # [tensor, version, copy, attribute's name]
        self._constants: list[tuple[Any, str, Any]] = []  # (module, name, value) of class attributes
        self._views: list[Any] = []  # views of the objects in _contents
        self._empty: list[Any] = []  # dicts without keys
        self._objects: list[Any] = []  # contents of these views when nothing had changed
        self.unseen: list[str] = []
        inside: deque[tuple[Any, str]] = deque()
        seen = {id(part) for part in self._parts}
        for path, part in module.named_modules():
            before, own = f"{path}." if path else "", vars(part)
            named = {name: value for name, value in own.items() if name not in _TORCH}
            absent = {name: p for name, p in part._parameters.items() if p is None}
            for of, then in ((part, named), (part._parameters, absent)):
                names = own if of is part else part._parameters
                self._contents.append((of, then, frozenset(names.keys() - then.keys()), before))
            # Hooks of the outermost module are ignored: torch calls them outside of forward.
            for name in ("_buffers", "_modules", *(() if part is module else _HOOKS)):
                self._contents.append((own[name], {**own[name]}, _NONE, before + name.lstrip("_")))
            inside.extend((value, before + name) for name, value in {**named, **part._buffers}.items())
            self._constants += _constants(part)
        most = len(self._contents) + MOST
        while inside and len(self._contents) < most:
            value, name = inside.popleft()
            if id(value) in seen or isinstance(value, (*_SIMPLE, torch.nn.Module, type, ModuleType)):
                continue
            seen.add(id(value))
            inside.extend((inner, name) for inner in self._note(value, name))

    def _note(self, value: Any, name: str) -> Sequence[Any]:
        """Records the value of an attribute. Returns the values inside of it, to be recorded next."""
        if isinstance(value, torch.Tensor):
            if not isinstance(value, torch.nn.Parameter):
                t = value
                version = -1 if t.is_inference() else t._version
                self._tensors.append([t, version, t.detach().clone(), name])
            return []
        if isinstance(value, (np.ndarray, bytearray, set)) or _has_slots(type(value)):
            self.unseen.append(name)
            return []
        if isinstance(value, _SEQUENCES):
            self._contents.append((value, [*value], _NONE, name))
            return [*value]
        if not isinstance(value, dict) and not hasattr(value, "__dict__"):
            return []
        own = {**(value if isinstance(value, dict) else vars(value))}
        self._contents.append((value, own, _NONE, name))
        return [*own.values()]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_views": [], "_empty": [], "_objects": []}

    def same(self) -> bool:
        """A fast test: True if all values are the objects of the last `hold`. Equal values may give False."""
        now = [*chain.from_iterable(self._views)]
        return (
            len(now) > 0
            and identical(now, self._objects)
            and not any(self._empty)
            and all(version != -1 and t._version == version for t, version, *_ in self._tensors)
            and all(getattr(part, name, ...) is value for part, name, value in self._constants)
        )

    def hold(self, training: bool) -> bool:
        """Returns whether attributes are as recorded, and no module in training mode unless `training`."""
        if not self.same():
            if next(self.changed(), None) is not None:
                return False
            known = [of for of, *_ in self._contents]
            self._empty = [of for of in known if isinstance(of, dict) and not of]
            self._views = [part for of in known for view in _views(of) for part in (view, _END)]
            self._objects = [*chain.from_iterable(self._views)]
        return training or not any(part.training for part in self._parts)

    def changed(self, written: bool = False) -> Iterator[str]:
        """Yields the names of attributes that have changed since the record.

        written: compare all numbers of tensors, because tensor.data.add_(1) does not increase the version.
        """
        for of, then, others, where in self._contents:
            if isinstance(then, list):
                now, then = dict(enumerate(of)), dict(enumerate(then))
            else:
                now = of if isinstance(of, dict) else vars(of)
            new = now.keys() - then.keys() - others - {"_compiled_call_impl"}
            for name in (*new, *then):
                if name in new or name not in now or not _same(now[name], then[name]):
                    yield where if where and not where.endswith(".") else f"{where}{name}"
        for entry in self._tensors:
            t, version, copy, where = entry
            current = -1 if t.is_inference() else t._version
            if current != version or current == -1 or written:
                if not _equal(t, copy):
                    yield where
                else:
                    entry[1] = current
        for part, name, value in self._constants:
            if not _same(getattr(part, name, ...), value):
                yield name


def _views(of: Any) -> tuple[Any, ...]:
    if isinstance(of, _SEQUENCES):
        return (of,)
    if not isinstance(of, dict):
        return (vars(of).values(),)
    return (of, of.values()) if of else ()


def _constants(part: torch.nn.Module) -> Iterator[tuple[Any, str, Any]]:
    """Yields (module, name, value) of class attributes that are numbers, strings or None."""
    for cls in type(part).__mro__:
        if cls.__module__.startswith("torch.nn.") or cls is object:
            break
        for name, value in vars(cls).items():
            if type(value) in _SIMPLE and not (name.startswith("__") or name in vars(part)):
                yield part, name, getattr(part, name)  # subclasses may override it


def _has_slots(cls: type) -> bool:
    return any(isinstance(own, MemberDescriptorType) for base in cls.__mro__ if "__slots__" in vars(base)
               for own in vars(base).values())  # fmt: skip


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and type(a) in _SIMPLE and bool(a == b))


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether all numbers are equal, where NaN equals NaN."""
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())
