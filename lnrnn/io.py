"""Models in files: `save` and `load`. The format is in lnrnn.rnn.file_format."""

from __future__ import annotations

import os
from typing import Any

from .rnn import file_format
from .rnn.models import CLASSES, Model
from .rnn.network import Network, made_of, snapshot


def save(model: Network[Any], path: str | os.PathLike[str]) -> None:
    """Writes model to path.

    The file is written whole or not at all: a new file in the same folder takes its place when it is complete
    and on the disk. A symbolic link stays and its file is replaced; permissions are as open(path, "wb")
    leaves them. Raises ImportError without the safetensors package. Raises OSError, with errno and path, if
    it cannot be written, or if path is not that of a regular file; then nothing changes.
    """
    file_format.write(snapshot(model), path)


def load(path: str | os.PathLike[str]) -> Model:
    """The model that `save` wrote to path. NumPy is all that this needs.

    Raises FileNotFoundError, MemoryError, or ValueError if the file cannot be read, is damaged, not an lnrnn
    model, or of a newer schema.
    """
    stored = file_format.read(path)
    return made_of(CLASSES[stored.architecture.cell.name], stored)
