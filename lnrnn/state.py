"""Closed, a base class that rejects unknown attributes, checks of state dicts, and the lock for changes."""

from __future__ import annotations

import copyreg
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from ._core import copied
from .arguments import Array as Takes
from .errors import bad_type, bad_value, message

# Largest count of sequences or batches, at which training stops counting. Up to it, integers are exact in
# float64, in which statistics are pooled.
MOST_COUNTED = 2**53

# A thread holds this lock while it replaces an object's state, so that no other thread's change is
# lost. Readers do not need it. All objects share the lock, so that they can be copied and pickled. A fork
# waits until it is free: a lock held by another thread would stay locked in the child. Imports
# that a fork must not interrupt hold it too.
CHANGES = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=CHANGES.acquire, after_in_parent=CHANGES.release, after_in_child=CHANGES.release
    )  # fmt: skip


# {method of torch.nn.Module that networks lack: hint}.
_MODES = "a call infers, and forward_train trains"
_OF_TORCH = {"eval": _MODES, "train": _MODES, "to": "it runs on the CPU, and to_dtype rounds weights"}


def no_attribute(owner: Any, name: str) -> AttributeError:
    """Returns an AttributeError for an unknown attribute of `owner`. Python adds the most similar name."""
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if hasattr(type(owner), "forward_train") and name in _OF_TORCH:
        return AttributeError(f"{text}; {_OF_TORCH[name]}", name=name)  # without obj, Python suggests no name
    return AttributeError(text, name=name, obj=owner)


class Closed:
    """Base of classes without unknown attributes: assigning a misspelt name raises AttributeError.

    Each of these classes has __slots__. As usual in Python, a subclass without __slots__ accepts
    attributes of any name.
    """

    __slots__ = ("__weakref__",)

    @property
    def _fixed(self) -> tuple[str, ...]:
        """Names of attributes that only the constructor may set."""
        return ()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._fixed and name in self._slots():
            kind = type(self).__name__
            raise AttributeError(f"{name} is set by the constructor only; create a new {kind}")
        try:
            object.__setattr__(self, name, value)
        except AttributeError:
            if hasattr(type(self), name):  # a method, or a property without setter
                raise
            raise no_attribute(self, name) from None

    def __delattr__(self, name: str) -> None:
        if name not in getattr(self, "__dict__", ()):
            raise AttributeError(f"{name} of a {type(self).__name__} cannot be deleted")
        object.__delattr__(self, name)

    def _slots(self) -> dict[str, Any]:
        found = {}
        # copyreg._slotnames includes subclasses' private names. typeshed does not declare it.
        for name in copyreg._slotnames(type(self)):  # type: ignore[attr-defined]
            with suppress(AttributeError):  # not set yet
                found[name] = object.__getattribute__(self, name)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return getattr(self, "__dict__", {}) | self._slots()

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)


def checked(state: Any, expected: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns copies of the arrays in `state`, with the names, shapes and dtypes of `expected`.

    Raises ValueError, which lists missing and unexpected names, or TypeError.
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
    """Returns a hint for messages: keys of `state` whose values are mappings, perhaps the state dict."""
    inner = [f"[{name!r}]" for name, value in state.items() if isinstance(value, Mapping)]
    return f"; did you mean the mapping at {' or '.join(inner)} of it?" if inner else ""


def counted(name: str, count: np.ndarray) -> np.ndarray:
    """Returns the integer array `count` if all values are from 0 to 2**53, else raises ValueError."""
    if np.any(count < 0) or np.any(count > MOST_COUNTED):
        raise bad_value(name, "at least 0 and at most 2**53", count if count.ndim else int(count))
    return count
