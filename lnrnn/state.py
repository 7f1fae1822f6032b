"""Base classes that check attributes, checks of state dicts, and the lock for changes by several threads."""

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


def no_attribute(owner: Any, name: str) -> AttributeError:
    """Returns the error for an unknown attribute of `owner`. Its traceback suggests the nearest name."""
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if hasattr(type(owner), "forward_train") and name in _OF_TORCH:
        return AttributeError(f"{text}; {_OF_TORCH[name]}", name=name)  # without obj, Python adds no name
    return AttributeError(text, name=name, obj=owner)


class Closed:
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
            if hasattr(type(self), name):  # the name is a method, or a property that cannot be set
                raise
            raise no_attribute(self, name) from None

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
