"""State that is set and read: which attributes an object has, state dicts, and how several threads change one
object."""

from __future__ import annotations

import copyreg
import difflib
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import FrozenInstanceError, fields
from typing import Any, TypeVar

import numpy as np

from . import _core
from .errors import bad_type, bad_value, message, shaped

Made = TypeVar("Made")

# Counts of sequences or batches that statistics may hold: all that float64, in which they are pooled, can
# tell apart. Training stops counting here.
MOST_COUNTED = 2**53

# Held while an object is given a changed version of its state, so that no change is lost where two threads
# make one each. Readers do without: they take the version that is there, once. One lock for all objects: it
# is held for microseconds, and is no part of what is copied or pickled. A fork waits for it, or the child
# might find it held by a thread that the child does not have; so what else a fork must not cut in two, such
# as an import, is done under it too.
CHANGES = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=CHANGES.acquire, after_in_parent=CHANGES.release, after_in_child=CHANGES.release
    )  # fmt: skip


def no_attribute(
    owner: Any, name: str, known: Iterable[str], error: type[AttributeError] = AttributeError
) -> AttributeError:
    """The error for an attribute that owner does not have; it names the nearest of the known ones."""
    near = difflib.get_close_matches(name, sorted(set(known)), 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    # name is given, and no object: else Python adds the same hint again when it prints the error.
    return error(f"{type(owner).__name__!r} object has no attribute {name!r}{hint}", name=name)


class Named:
    """Base of classes that answer a misspelt name with the nearest they have."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        # Underscores first: copy and pickle look for their methods in objects that hold nothing yet.
        raise no_attribute(self, name, () if name.startswith("_") else self._public())

    def _public(self) -> list[str]:
        return [name for name in dir(self) if not name.startswith("_")]


class Closed(Named):
    """Base of the classes whose instances have the attributes that they are made with, and take no others: a
    misspelt name raises AttributeError instead of doing nothing.

    It works by __slots__, which each of these classes states. As ever with __slots__, a subclass that states
    none has a __dict__, and its instances take attributes of any name.
    """

    __slots__ = ("__weakref__",)

    @property
    def _fixed(self) -> tuple[str, ...]:
        """Attributes that are set when the object is made, and never again."""
        return ()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._fixed and name in self._slots():
            kind = type(self).__name__
            raise AttributeError(f"{name} is fixed when the {kind} is made; make a new {kind}")
        try:
            object.__setattr__(self, name, value)
        except AttributeError:
            if hasattr(type(self), name):  # a method, or a property without a setter: Python says so
                raise
            raise no_attribute(self, name, self._public()) from None

    def __delattr__(self, name: str) -> None:
        if name not in getattr(self, "__dict__", ()):
            raise AttributeError(f"{name} of a {type(self).__name__} cannot be deleted")
        object.__delattr__(self, name)

    def _slots(self) -> dict[str, Any]:
        """What stands in slots, by name."""
        found = {}
        # As pickle finds them, private ones of subclasses too; typeshed does not know the function.
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
    """Decorates a frozen dataclass: to set what is not a field of it names the nearest field."""
    refuse: Callable[[Any, str, Any], None] = made.__setattr__
    names = tuple(field.name for field in fields(made))  # type: ignore[arg-type]  # which are dataclasses

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if name not in names:
            raise no_attribute(self, name, names, FrozenInstanceError)
        refuse(self, name, value)

    made.__setattr__ = __setattr__  # type: ignore[method-assign]
    return made


def checked(state: Any, expected: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """state as new arrays of the expected names, shapes and dtypes; KeyError is never raised, ValueError
    names the keys."""
    if not isinstance(state, Mapping):
        raise bad_type("state", "a mapping of names to arrays", state)
    named = {
        "missing": sorted(set(expected) - set(state)),
        "unexpected": sorted(map(str, set(state) - set(expected))),
    }
    if any(named.values()):
        parts = [f"{what} {', '.join(names)}" for what, names in named.items() if names]
        expected = "a mapping with the names of state_dict()"
        raise ValueError(message("state", expected, " and ".join(parts)) + inner_hint(state))
    return {
        name: copied(shaped(name, state[name], like.shape, like.dtype)) for name, like in expected.items()
    }


def inner_hint(state: Mapping[Any, Any]) -> str:
    """What to add to a message about a state dict: the mappings inside it, one of which may be meant, as in a
    training program's checkpoint."""
    inner = [f"[{name!r}]" for name, value in state.items() if isinstance(value, Mapping)]
    return f"; what is at {' or '.join(inner)} of it may be meant" if inner else ""


def copied(array: np.ndarray) -> np.ndarray:
    """A copy in C order. A large one, as weights are that an optimiser sets in each step, in memory that was
    used before, whose pages nobody has to clear."""
    found = _core.empty_like(array)
    found[...] = array
    return found


def counted(name: str, count: np.ndarray) -> np.ndarray:
    """count, integers, if none is negative or beyond what can be counted."""
    if np.any(count < 0) or np.any(count > MOST_COUNTED):
        raise bad_value(name, "at least 0 and at most 2**53", count if count.ndim else int(count))
    return count
