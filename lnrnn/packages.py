"""Packages that lnrnn can do without, but for one of its parts."""

from __future__ import annotations

import importlib
from typing import Any


def require(package: str, what: str, install: str, otherwise: str = "") -> Any:
    """Imports a package, or says that `what` needs it, that `pip install` of the words in `install` brings
    all that `what` needs, and what can be done `otherwise`, if anything."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        alternative = f"  or {otherwise}" if otherwise else ""
        needed = "it" if len(install.split()) == 1 else "all that it needs"
        raise ImportError(
            f"{what} needs {package}: install {needed} with  pip install {install}{alternative}  ({error})"
        ) from error
