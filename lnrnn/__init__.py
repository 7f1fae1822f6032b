"""lnrnn: layer norm, batch norm and recurrent networks with either inside, fast on a CPU.

Public are the names of `__all__` here, in lnrnn.torch, lnrnn.reference and lnrnn.data, and all names in
docs/api/. Other modules may change with any version. Their names have no underscore, except the compiled
_core.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from . import startup, threadpools  # noqa: F401  # startup before NumPy is imported
from .errors import SequenceTooLongError
from .io import load, save
from .norm.functional import (
    batch_norm,
    batch_norm_backward,
    exp,
    layer_norm,
    layer_norm_backward,
    rms_norm,
    sigmoid,
    tanh,
)
from .norm.layers import BatchNorm, LayerNorm
from .rnn.models import GRU, LSTM, RNN, SLSTM
from .rnn.network import Network
from .rnn.specs import BatchNormSpec, DropoutSpec, LayerNormSpec
from .rnn.stream import Stream, StreamState
from .runtime import cpu_info, get_include, get_library, get_num_threads, num_threads, set_num_threads

__version__ = "0.2.0"
threadpools.register(__version__)

__all__ = [
    "BatchNorm",
    "BatchNormSpec",
    "DropoutSpec",
    "GRU",
    "LSTM",
    "LayerNorm",
    "LayerNormSpec",
    "Network",
    "RNN",
    "SLSTM",
    "Scorer",
    "SequenceTooLongError",
    "Stream",
    "StreamState",
    "batch_norm",
    "batch_norm_backward",
    "cpu_info",
    "data",
    "exp",
    "from_keras",
    "from_torch",
    "get_include",
    "get_library",
    "get_num_threads",
    "layer_norm",
    "layer_norm_backward",
    "load",
    "num_threads",
    "rms_norm",
    "save",
    "set_num_threads",
    "sigmoid",
    "tanh",
]


def __dir__() -> list[str]:
    dunders = (name for name in globals() if name.startswith("__") and name.endswith("__"))
    return sorted({*__all__, "torch", *dunders})


# Imported at first use, because they take as long to import as all the rest. lnrnn.torch needs PyTorch.
_LATER = {
    "Scorer": "lnrnn.scoring.scorer",
    "data": "lnrnn.data",
    "from_keras": "lnrnn.importers",
    "from_torch": "lnrnn.importers",
    "torch": "lnrnn.torch",
}

if TYPE_CHECKING:
    from . import data
    from . import torch as torch
    from .importers import from_keras, from_torch
    from .scoring.scorer import Scorer
else:  # hidden from type checkers, which would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            # From these two Python suggests the nearest name.
            who = {"name": name, "obj": sys.modules[__name__]}
            raise AttributeError(f"module 'lnrnn' has no attribute {name!r}", **who)
        module = importlib.import_module(_LATER[name])
        if _LATER[name] == f"lnrnn.{name}":
            return module
        return globals().setdefault(name, getattr(module, name))
