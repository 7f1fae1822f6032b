"""Packages that lnrnn can do without, but for one of its parts."""

from __future__ import annotations

import importlib
from typing import Any

# Words for `pip install`: what pyproject.toml lists for each extra.
EXTRAS = {
    "demo": "matplotlib tqdm scikit-learn scipy",
    "score": "pyarrow tqdm",
    "dask": "'dask[dataframe,distributed]' pyarrow tqdm",
    "ray": "'ray[data]' pyarrow tqdm",
}


def require(package: str, what: str, extra: str, otherwise: str = "") -> Any:
    """Imports a package of an extra. Raises ImportError, which says that `what` needs it, how all packages of
    the extra are installed, and what can be done `otherwise`, if anything."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        alternative = f", or {otherwise}" if otherwise else ""
        raise ImportError(
            f"{what} needs {package}, of the extra {extra!r}: pip install {EXTRAS[extra]}, or in lnrnn's "
            f"sources pip install '.[{extra}]'{alternative} ({error})"
        ) from error
