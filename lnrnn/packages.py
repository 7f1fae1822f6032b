"""Imports optional packages that only some functions need."""

from __future__ import annotations

import importlib
from typing import Any

# Packages for `pip install`, as pyproject.toml lists them for each extra.
EXTRAS = {
    "demo": "matplotlib tqdm scikit-learn scipy",
    "score": "pyarrow tqdm fsspec",
    "onnx": "onnx onnx-ir",
}


def require(package: str, user: str, extra: str, otherwise: str = "") -> Any:
    """Imports and returns an optional package. user: the command or class that needs it. extra: see EXTRAS.

    Raises ImportError with the command that installs the extra. otherwise: an alternative for the message.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        alternative = f", or {otherwise}" if otherwise else ""
        raise ImportError(
            f"{user} needs {package}, of the extra {extra!r}: pip install {EXTRAS[extra]}, or in lnrnn's "
            f"sources pip install '.[{extra}]'{alternative} ({error})"
        ) from error
