"""Optional packages, each for a part of lnrnn."""

from __future__ import annotations

import importlib
from typing import Any

# Words for `pip install`: the packages that pyproject.toml lists for each extra.
EXTRAS = {
    "demo": "matplotlib tqdm scikit-learn scipy",
    "score": "pyarrow tqdm",
    "dask": "'dask[dataframe,distributed]' pyarrow tqdm",
    "ray": "'ray[data]' pyarrow tqdm",
}


def require(package: str, user: str, extra: str, otherwise: str = "") -> Any:
    """Imports a package of an extra for `user`, a part of lnrnn.

    Raises ImportError, which names the command that installs all packages of the extra, and `otherwise`, an
    alternative.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        alternative = f", or {otherwise}" if otherwise else ""
        raise ImportError(
            f"{user} needs {package}, of the extra {extra!r}: pip install {EXTRAS[extra]}, or in lnrnn's "
            f"sources pip install '.[{extra}]'{alternative} ({error})"
        ) from error
