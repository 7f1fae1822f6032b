"""The readable truth: every equation of lnrnn in float64 NumPy, one short function each.

Slow on purpose, and independent of the rest of the package: the kernels are tested against this package, and
this package against finite differences, PyTorch and the ONNX node tests. Nothing here validates its input.

The activations and norms are in norms.py, the cells in cells.py, the time loop that all cells share in
time_loop.py; everything public can be had from here.

Symbols: T steps, B sequences, I input features, H hidden units; sequences are time-major, (T, B, features).
x_ = W_ih x and h_ = W_hh h, with a bias inside the norms if there is one: inner_bias_ih, inner_bias_hh.
Numbers are float64, or longdouble where the caller passes longdouble (to judge the float64 kernels).
"""

from __future__ import annotations

# Names that are not in __all__ may be had from here too: types, and the steps of the cells.
# ruff: noqa: F401, F405
from .cells import *  # noqa: F403  # what its __all__ names
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
    sigmoid,
    standardize,
    standardize_backward,
    statistics_at,
    update_step_statistics,
)
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
    "ACTIVATIONS",
    "Step",
    "Tape",
    "batch_norm",
    "batch_norm_backward",
    "calibrate",
    "gru",
    "gru_backward",
    "layer_norm",
    "layer_norm_backward",
    "lstm",
    "lstm_backward",
    "pool_statistics",
    "real",
    "reverse_sequences",
    "rms_norm",
    "rnn",
    "rnn_backward",
    "sigmoid",
    "standardize",
    "standardize_backward",
    "statistics_at",
    "update_step_statistics",
]
