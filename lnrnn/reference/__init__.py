"""The readable truth: every equation of lnrnn in float64 NumPy, one short function each.

Slow on purpose, and independent of the rest of the package: the kernels are tested against this package, and
this package against finite differences, PyTorch and the ONNX node tests. Nothing here validates its input.

The activations and norms are in norms.py, the cells in cells.py, the time loop that all cells share in
time_loop.py; everything public can be had from here.

Symbols: T steps, B sequences, I input features, H hidden units; sequences are time-major, (T, B, features).
x_ = W_ih x and h_ = W_hh h, with a bias inside the norms if there is one: inner_bias_ih, inner_bias_hh.
Numbers are float64, or longdouble where the caller passes longdouble (to judge the float64 kernels).

Sources. LSTM: Hochreiter, Schmidhuber 1997, with Gers' forget gate. GRU: Cho et al. 2014, with the reset
gate after the product as in cuDNN and torch. Gates lie in torch's order: i, f, g, o and r, z, n. Placements
of layer norm: "split" with the norm of c for the output is Ba, Kiros, Hinton 2016 (arXiv 1607.06450,
supplement); "carry" is the LSTM of PyTorch's fastrnns benchmark and TensorFlow Addons; "gate" is that of
Lingvo and icefall; "joint" of torchaudio's LSTM and DreamerV2's GRU. Batch norm: Cooijmans et al. 2016
(arXiv 1603.09025).
"""

from __future__ import annotations

from .cells import (
    GRU_GATES,
    GRU_SITES,
    LSTM_SITES,
    RNN_SITES,
    Gradients,
    GruGates,
    calibrate,
    gates,
    gru,
    gru_backward,
    gru_gate,
    gru_gate_backward,
    gru_joint,
    gru_joint_backward,
    gru_split,
    gru_split_backward,
    gru_step,
    gru_step_backward,
    join,
    lstm,
    lstm_backward,
    lstm_step,
    lstm_step_backward,
    rnn,
    rnn_backward,
    rnn_step,
    rnn_step_backward,
    sum_of_sides,
    sum_of_sides_backward,
)
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
    "Array",
    "GRU_GATES",
    "GRU_SITES",
    "Gradients",
    "GruGates",
    "LSTM_SITES",
    "Norm",
    "Options",
    "RNN_SITES",
    "Site",
    "State",
    "Step",
    "Tape",
    "batch_norm",
    "batch_norm_backward",
    "calibrate",
    "gates",
    "gru",
    "gru_backward",
    "gru_gate",
    "gru_gate_backward",
    "gru_joint",
    "gru_joint_backward",
    "gru_split",
    "gru_split_backward",
    "gru_step",
    "gru_step_backward",
    "join",
    "layer_norm",
    "layer_norm_backward",
    "lstm",
    "lstm_backward",
    "lstm_step",
    "lstm_step_backward",
    "pool_statistics",
    "real",
    "reverse_sequences",
    "rms_norm",
    "rnn",
    "rnn_backward",
    "rnn_step",
    "rnn_step_backward",
    "run",
    "run_backward",
    "sigmoid",
    "standardize",
    "standardize_backward",
    "statistics_at",
    "sum_of_sides",
    "sum_of_sides_backward",
    "update_step_statistics",
]
