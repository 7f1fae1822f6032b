"""lnrnn: layer norm, batch norm, and recurrent networks with one of these inside the cell, fast on a CPU.

The public names are in `__all__` here and in lnrnn.torch, lnrnn.reference and lnrnn.data, and all names
in docs/api/. Other modules may change with any version, although their names have no underscore.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

if importlib.util.find_spec("lnrnn._core") is None:
    raise ImportError(
        f"lnrnn in {__path__[0]} is source code without its compiled module _core. "
        "Compile it by `pip install -e .` in the folder above. To use an installed lnrnn, start Python in "
        "another folder."
    )

from . import threadpools
from .errors import SequenceTooLongError
from .io import load, save
from .norm.functional import (
    batch_norm,
    batch_norm_backward,
    exp,
    layer_norm,
    layer_norm_backward,
    rms_norm,
    rms_norm_backward,
    sigmoid,
    tanh,
)
from .norm.layers import BatchNorm, LayerNorm, RMSNorm
from .rnn.models import GRU, LSTM, RNN, SLSTM, LiGRU
from .rnn.network import Network
from .rnn.pruning import GradualPruner
from .rnn.sparse import sparsify
from .rnn.specs import BatchNormSpec, DropoutSpec, LayerNormSpec, RMSNormSpec
from .rnn.stream import Stream, StreamState, step_all
from .runtime import cpu_info, get_include, get_library, get_num_threads, num_threads, set_num_threads

__version__ = "0.2.0"
threadpools.register(__version__)

__all__ = [
    "BatchNorm",
    "BatchNormSpec",
    "DropoutSpec",
    "GRU",
    "GradualPruner",
    "LSTM",
    "LayerNorm",
    "LayerNormSpec",
    "LiGRU",
    "Network",
    "RMSNorm",
    "RMSNormSpec",
    "RNN",
    "SLSTM",
    "Scorer",
    "SequenceTooLongError",
    "SessionPool",
    "Stream",
    "StreamState",
    "batch_norm",
    "batch_norm_backward",
    "cpu_info",
    "data",
    "exp",
    "from_keras",
    "from_onnx",
    "from_rnnoise",
    "from_torch",
    "get_include",
    "get_library",
    "get_num_threads",
    "layer_norm",
    "layer_norm_backward",
    "load",
    "num_threads",
    "rms_norm",
    "rms_norm_backward",
    "save",
    "set_num_threads",
    "sigmoid",
    "sparsify",
    "step_all",
    "tanh",
    "to_onnx",
]


def __dir__() -> list[str]:
    dunders = (name for name in globals() if name.startswith("__") and name.endswith("__"))
    return sorted({*__all__, "onnx", "onnxruntime", "torch", *dunders})


# Modules imported on first use: importing one of them takes as long as importing all other modules.
_LATER = {
    "Scorer": "lnrnn.scoring.scorer",
    "SessionPool": "lnrnn.sessions.pool",
    "data": "lnrnn.data",
    "from_keras": "lnrnn.importers.conversion",
    "from_onnx": "lnrnn.onnx",
    "from_rnnoise": "lnrnn.importers.rnnoise",
    "from_torch": "lnrnn.importers.conversion",
    "onnx": "lnrnn.onnx",
    "onnxruntime": "lnrnn.onnxruntime",
    "to_onnx": "lnrnn.onnx",
    "torch": "lnrnn.torch",
}

if TYPE_CHECKING:
    from . import data
    from . import onnx as onnx
    from . import onnxruntime as onnxruntime
    from . import torch as torch
    from .importers.conversion import from_keras, from_torch
    from .importers.rnnoise import from_rnnoise
    from .onnx import from_onnx, to_onnx
    from .scoring.scorer import Scorer
    from .sessions.pool import SessionPool
else:  # hidden from type checkers, which would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            # name and obj let Python's message suggest the most similar name.
            who = {"name": name, "obj": sys.modules[__name__]}
            raise AttributeError(f"module 'lnrnn' has no attribute {name!r}", **who)
        module = importlib.import_module(_LATER[name])
        if _LATER[name] == f"lnrnn.{name}":
            return module
        return globals().setdefault(name, getattr(module, name))
