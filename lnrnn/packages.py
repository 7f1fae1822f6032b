"""Packages that lnrnn can do without, but for one of its parts."""

from __future__ import annotations

import importlib
from typing import Any


def require(package: str, what: str, install: str) -> Any:
    """Imports a package, or says that `what` needs it and that `pip install` of the words in `install` brings
    it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(
            f"{what} needs {package}: install it with  pip install {install}  ({error})"
        ) from error
