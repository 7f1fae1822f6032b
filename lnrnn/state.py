"""Base classes that check attributes, checks of state dicts, and the lock for changes by several threads."""

from __future__ import annotations

import copyreg
import difflib
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import FrozenInstanceError, fields
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from ._core import copied
from .arguments import Array as Takes
from .errors import bad_type, bad_value, message

Made = TypeVar("Made")

# The largest count of sequences or batches, at which training stops counting. Counts up to it are exact in
# float64, in which statistics are pooled.
MOST_COUNTED = 2**53

# A thread holds this lock while it replaces the state of an object, so that no change of another thread is
# lost. Readers do not need it. All objects share one lock, so that objects can be copied and pickled. A fork
# waits until the lock is free, because a lock that another thread holds would stay locked in the child. An
# import that a fork must not interrupt holds the lock too.
CHANGES = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=CHANGES.acquire, after_in_parent=CHANGES.release, after_in_child=CHANGES.release
    )  # fmt: skip


# Methods of torch.nn.Module that a network does not need -> the hint.
_MODES = "a call infers, and forward_train trains"
_OF_TORCH = {"eval": _MODES, "train": _MODES, "to": "it runs on the CPU, and to_dtype rounds weights"}


def no_attribute(
    owner: Any, name: str, known: Iterable[str], error: type[AttributeError] = AttributeError
) -> AttributeError:
    """Returns the error for an unknown attribute of `owner`, with the nearest name of `known` as a hint."""
    known = set(known)
    near = nearest(name, tuple(sorted(known)))
    hint = f"; did you mean {near[0]!r}?" if near else ""
    if "forward_train" in known and name in _OF_TORCH:
        hint = f"; {_OF_TORCH[name]}"
    # The argument obj is omitted, so that Python does not add a second hint.
    return error(f"{type(owner).__name__!r} object has no attribute {name!r}{hint}", name=name)


# `hasattr` and `getattr` with a default ask for the same missing names again.
@lru_cache(256)
def nearest(name: str, known: tuple[str, ...]) -> list[str]:
    return difflib.get_close_matches(name, known, 1)


class Named:
    """Base of classes whose error for an unknown attribute suggests the nearest name."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        # Names with an underscore get no hint: copy and pickle ask for them before attributes exist.
        raise no_attribute(self, name, () if name.startswith("_") else self._public())

    def _public(self) -> list[str]:
        return [name for name in dir(self) if not name.startswith("_")]


class Closed(Named):
    """Base of classes without unknown attributes: to set a misspelt name raises AttributeError.

    Each of these classes has __slots__. As usual in Python, instances of a subclass without __slots__ accept
    attributes of any name.
    """

    __slots__ = ("__weakref__",)

    @property
    def _fixed(self) -> tuple[str, ...]:
        """The names of attributes that only the constructor may set."""
        return ()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._fixed and name in self._slots():
            kind = type(self).__name__
            raise AttributeError(f"{name} is set by the constructor only; create a new {kind}")
        try:
            object.__setattr__(self, name, value)
        except AttributeError:
            if hasattr(type(self), name):  # a method, or a property without a setter
                raise
            raise no_attribute(self, name, self._public()) from None

    def __delattr__(self, name: str) -> None:
        if name not in getattr(self, "__dict__", ()):
            raise AttributeError(f"{name} of a {type(self).__name__} cannot be deleted")
        object.__delattr__(self, name)

    def _slots(self) -> dict[str, Any]:
        found = {}
        # This function of pickle includes private names of subclasses. typeshed does not declare it.
        for name in copyreg._slotnames(type(self)):  # type: ignore[attr-defined]
            with suppress(AttributeError):  # not set yet
                found[name] = object.__getattribute__(self, name)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return getattr(self, "__dict__", {}) | self._slots()

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)


def frozen_by_name(made: type[Made]) -> type[Made]:
    """Decorates a frozen dataclass: the error for an unknown field suggests the nearest name."""
    refuse: Callable[[Any, str, Any], None] = made.__setattr__
    names = tuple(field.name for field in fields(made))  # type: ignore[arg-type]  # made is a dataclass

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if name not in names:
            raise no_attribute(self, name, names, FrozenInstanceError)
        refuse(self, name, value)

    made.__setattr__ = __setattr__  # type: ignore[method-assign]
    return made


def checked(state: Any, expected: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns copies of the arrays of `state`, with the names, shapes and dtypes of `expected`.

    Raises ValueError that lists missing and unexpected names, and TypeError.
    """
    if not isinstance(state, Mapping):
        raise bad_type("state", "a mapping of names to arrays", state)
    named = {
        "missing": sorted(set(expected) - set(state)),
        "unexpected": sorted(map(str, set(state) - set(expected))),
    }
    if any(named.values()):
        parts = [f"{what} {', '.join(names)}" for what, names in named.items() if names]
        wanted = "a mapping with the names of state_dict()"
        raise ValueError(message("state", wanted, " and ".join(parts)) + inner_hint(state))
    return {
        name: copied(Takes("shape").check(name, state[name], {"shape": like.shape, "dtype": like.dtype}))
        for name, like in expected.items()
    }


def inner_hint(state: Mapping[Any, Any]) -> str:
    """Returns a hint for messages: the keys of `state` whose values are mappings, perhaps the state dict."""
    inner = [f"[{name!r}]" for name, value in state.items() if isinstance(value, Mapping)]
    return f"; did you mean the mapping at {' or '.join(inner)} of it?" if inner else ""


def counted(name: str, count: np.ndarray) -> np.ndarray:
    """Returns the integers `count` if all are from 0 to 2**53, else raises ValueError."""
    if np.any(count < 0) or np.any(count > MOST_COUNTED):
        raise bad_value(name, "at least 0 and at most 2**53", count if count.ndim else int(count))
    return count
