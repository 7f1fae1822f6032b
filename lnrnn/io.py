"""`save` and `load` of networks. lnrnn.rnn.file_format has the file format."""

from __future__ import annotations

import os
from typing import Any

from .rnn import file_format
from .rnn.models import CLASSES, Model
from .rnn.network import Network
from .rnn.settings import made_of, snapshot


def save(model: Network[Any], path: str | os.PathLike[str]) -> None:
    """Write a model's parameters, statistics and configuration to a .safetensors file.

    Parameters
    ----------
    model : Network
        The model.
    path : str or path-like
        The file. It is replaced only when the new file is complete. If it is a symbolic link, its target is
        replaced.

    Raises
    ------
    ImportError
        Without the package safetensors.
    OSError
        If path cannot be written, or is not a regular file. An old file is then unchanged.

    Notes
    -----
    A new file in the same folder replaces path when it is complete and on the disk. It has the permissions of
    the old file. Without an old file, umask gives them.

    Examples
    --------
    >>> import tempfile
    >>> import lnrnn
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lnrnn.save(lnrnn.GRU(3, 4), f"{folder}/model.safetensors")
    """
    file_format.write(snapshot(model), path)


def load(path: str | os.PathLike[str]) -> Model:
    """Read a model from a file that `save` wrote. This needs no package except NumPy.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    RNN, LSTM, GRU or SLSTM
        The model.

    Raises
    ------
    OSError
        If there is no such file, or it cannot be opened.
    ValueError
        If the file is damaged, is not a model of lnrnn, or has a newer format.
    MemoryError
        If the model does not fit into memory.

    Examples
    --------
    >>> import tempfile
    >>> import lnrnn
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lnrnn.GRU(3, 4).save(f"{folder}/model.safetensors")
    ...     lnrnn.load(f"{folder}/model.safetensors").hidden_size
    4
    """
    stored = file_format.read(path)
    return made_of(CLASSES[stored.architecture.cell.name], stored)
