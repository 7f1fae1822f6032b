"""The reference implementation: each equation of lnrnn as a short function in float64 NumPy.

It is slow, and uses no other module of lnrnn. Tests compare the kernels with it, and compare it with finite
differences, PyTorch and the ONNX node tests. The functions do not check their arguments.

Symbols: T steps, B sequences, I inputs, H hidden units; sequences are (T, B, features). x_ = W_ih x and
h_ = W_hh h, plus the biases inner_bias_ih and inner_bias_hh if these are given. Numbers are float64, or
longdouble for arguments of longdouble.

The activations and norms are in norms.py, the RNN and LSTM in cells.py. Other cells have files of their own.
The time loop is in time_loop.py.
"""

from __future__ import annotations

# Types and parts of the cells can be imported from here too.
# ruff: noqa: F401, F405
from .cells import *  # noqa: F403
from .gru import *  # noqa: F403
from .ligru import *  # noqa: F403
from .norms import (
    ACTIVATIONS,
    Array,
    batch_norm,
    batch_norm_backward,
    layer_norm,
    layer_norm_backward,
    pool_statistics,
    real,
    rms_norm,
    rms_norm_backward,
    sigmoid,
    standardize,
    standardize_backward,
    statistics_at,
    update_step_statistics,
)
from .slstm import slstm, slstm_backward
from .time_loop import (
    Norm,
    Options,
    Site,
    State,
    Step,
    Tape,
    reverse_sequences,
    run,
    run_backward,
)

__all__ = [
    "batch_norm", "batch_norm_backward", "calibrate", "gru", "gru_backward", "layer_norm",
    "layer_norm_backward", "ligru", "ligru_backward", "lstm", "lstm_backward", "rms_norm",
    "rms_norm_backward", "rnn", "rnn_backward", "slstm", "slstm_backward",
]  # fmt: skip
__dir__ = __all__.copy  # dir() lists public names only
