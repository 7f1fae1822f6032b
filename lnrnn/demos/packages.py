"""Packages that only demos need."""

from __future__ import annotations

import importlib
from typing import Any


def require(package: str) -> Any:
    """Imports a package that only demos need, or says how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(
            f"the demo needs {package}: install it with  pip install matplotlib tqdm scikit-learn  ({error})"
        ) from error
