"""Imports optional packages, which only some functions of lnrnn need."""

from __future__ import annotations

import importlib
from typing import Any

# Arguments for `pip install`: the packages that pyproject.toml lists for each extra.
EXTRAS = {
    "demo": "matplotlib tqdm scikit-learn scipy",
    "score": "pyarrow tqdm fsspec",
    "onnx": "onnx onnx-ir",
}


def require(package: str, user: str, extra: str, otherwise: str = "") -> Any:
    """Imports and returns a package of an extra (see EXTRAS), for `user`, a command or class of lnrnn.

    Raises ImportError with the command that installs the extra, and with `otherwise`, an alternative to it.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        alternative = f", or {otherwise}" if otherwise else ""
        raise ImportError(
            f"{user} needs {package}, of the extra {extra!r}: pip install {EXTRAS[extra]}, or in lnrnn's "
            f"sources pip install '.[{extra}]'{alternative} ({error})"
        ) from error
