"""State dicts: names and shapes are checked before anything is set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ._errors import bad_type, shaped


def checked(state: Any, expected: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """state as new arrays of the expected names, shapes and dtypes; KeyError is never raised, ValueError names the keys."""
    if not isinstance(state, Mapping):
        raise bad_type("state", "a mapping of names to arrays", state)
    missing = sorted(set(expected) - set(state))
    foreign = sorted(map(str, set(state) - set(expected)))
    if missing or foreign:
        parts = [f"missing {', '.join(missing)}"] * bool(missing) + [f"unexpected {', '.join(foreign)}"] * bool(foreign)
        raise ValueError(f"state does not fit: {'; '.join(parts)}")
    return {name: np.array(shaped(name, state[name], like.shape, like.dtype)) for name, like in expected.items()}


def load_into(owner: Any, state: Any, expected: Mapping[str, np.ndarray]) -> None:
    for name, array in checked(state, expected).items():
        setattr(owner, name, array)
