"""Models in files: `save` and `load`. What stands in a file is written in lnrnn.rnn.file_format."""

from __future__ import annotations

import os
from typing import Any

from .rnn import file_format
from .rnn.models import CLASSES, Model
from .rnn.network import Network, snapshot


def save(model: Network[Any], path: str | os.PathLike[str]) -> None:
    """Writes model to path.

    The file is written whole or not at all: a new file beside path takes its place when it is complete and on
    the disk. A symbolic link stays and its file is replaced; permissions are as open(path, "wb") leaves them.
    Raises ImportError without the safetensors package; OSError, with errno and path, if it cannot be written
    or if what stands there is no regular file; then that stays as it was.
    """
    file_format.write(snapshot(model), path)


def load(path: str | os.PathLike[str]) -> Model:
    """The model that `save` wrote to path.

    Raises ImportError without the safetensors package, FileNotFoundError, or ValueError if the file is
    damaged, not an lnrnn model, or of a newer schema.
    """
    path = os.fspath(path)
    with file_format.loading(path):
        stored = file_format.read(path)
        model = CLASSES[stored.architecture.cell.name](**stored.architecture.arguments)
        model.load_state_dict(stored.state)
        model.zoneout, model.dropout = stored.zoneout, stored.dropout
        return model.to_dtype(stored.dtype, stored.activation_bits)
