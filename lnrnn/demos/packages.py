"""Packages that only demos need."""

from __future__ import annotations

from typing import Any

from lnrnn import packages


def require(package: str, otherwise: str = "") -> Any:
    """Imports a package that only demos need, or says how to install it, and how to do without it."""
    return packages.require(package, "the demo", "demo", otherwise)
