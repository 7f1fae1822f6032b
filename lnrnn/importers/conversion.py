"""`from_torch` and `from_keras` convert models of PyTorch and Keras to networks of lnrnn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ..errors import message
from ..rnn.cells import Nonlinearity
from ..rnn.models import Model, Norm
from .checking import Differs, checked, from_graph, is_own
from .computed_weights import with_plain_weights
from .keras_weights import LayerName, RecurrentActivation, convert_keras
from .systems import SystemName, UnknownCell
from .torch_weights import convert_torch
from .weights import Converted

__all__ = ["from_keras", "from_torch"]


def from_torch(
    module_or_state_dict: Any,
    *,
    kind: SystemName | None = None,
    prefix: str = "",
    names: Mapping[str, str] | None = None,
    norm: Norm | Literal["auto"] = "auto",
    eps: float | None = None,
    nonlinearity: Nonlinearity | None = None,
    zoneout: float | None = None,
    batch_first: bool | None = None,
    check: Any = None,
) -> Model:
    """Converts a recurrent model of torch, or of a library on top of torch, for inference.

    The systems below are recognised by the names and shapes of their parameters. These do not show how
    forward uses the parameters, so the module is also run and compared (see check). It is refused if its
    graph has an operator such as clamp, which may have no effect in the check. If the names are of no system,
    the equation is read from this graph, a trace of torch.fx. Norms may be at any place, and gates in
    any order. W_ih and W_hh may be one matrix or two, and forward may add constants to gates. The graphs for
    two lengths and two batches must agree. A UserWarning names the norm. This is tested with torch 2.13.

    Parameters
    ----------
    module_or_state_dict : torch.nn.Module or mapping
        A module, or a state dict: a mapping of names to tensors (any device, any floating dtype, quantised)
        or NumPy arrays, as safetensors and torch.load return, or to quantised weights (q, scale, zero_point)
        as in `load_state_dict`. All become float32. A state dict does not have the module's attributes, such
        as eps; give them as arguments here. Weights that parametrizations or weight_norm compute are used as
        computed, also from a state dict with weight_norm. The systems::

            "torch"       torch.nn.RNN, LSTM, GRU and their cells, with any arguments. A state dict of an RNN
                          needs nonlinearity=. Also these modules after torch.ao's dynamic quantisation:
                          weights become float32, and to_dtype("int8") finds torch's integers again.
            "fastrnns"    LayerNormLSTMCell of pytorch's benchmarks/fastrnns, or a stack of such cells.
            "nemo"        LayerNormLSTMCell of NeMo, which is the same.
            "torchaudio"  _CustomLSTM of its RNN-T. A ModuleList is converted as layers of one network.
            "icefall"     LayerNormLSTM and LayerNormGRU of transducer/rnn.py. They are batch_first.
                          proj_size > 0 is refused.
            "haste"       LayerNormLSTM and LayerNormGRU. Their zoneout also acts at inference: it becomes the
                          model's `zoneout` (of h; c has none). A state dict needs zoneout=.
            "speechbrain" LiGRU, SLiGRU and their layers, as modules, with relu or tanh. They are batch_first.
                          Batch norm is folded into weight_ih and bias_ih: norm is None, and training goes on
                          without it. An SLiGRU must have ff_normalization="layernorm". Both directions get
                          copies of the same weights; their last state is lnrnn's.
            "xlstm"       sLSTMCell of the package xlstm, whose x is W x already, and its sLSTMLayer without
                          the convolution (conv1d_kernel_size=0). They are batch_first.
            "lnrnn"       the modules of lnrnn.torch. Their state dict needs the model's norm= (and
                          nonlinearity=).
    kind : str, optional
        Accept only this system.
    prefix : str
        For a state dict: use only the keys that begin with this string ("encoder.rnn."), without the string.
    names : mapping, optional
        Replacements for keys of a state dict, {"w_ih": "weight_ih_l0"}, made before `prefix` is used.
    norm : {"auto", "layer"}, LayerNormSpec, RMSNormSpec, BatchNormSpec or None
        "auto" takes the norms that the cell has. A spec replaces the system's norm and eps, and the
        parameters must fit the spec. "layer" means that the cell has layer norms, at any places, and None
        that it has no norm.
    eps : float, optional
        The eps of the layer norms, at least 0. Default: the module's; for a state dict 1e-5.
    nonlinearity : str, optional
        The nonlinearity of an RNN or LiGRU, one of lnrnn.RNN's.
    zoneout : float, optional
        The zoneout rate of haste's cells, in [0, 1).
    batch_first : bool, optional
        Whether the model takes x as (B, T, I). Default: as the module; for a state dict as the system.
    check : bool or array, optional
        Whether to run the module and compare its outputs with lnrnn.reference. None and True compare them on
        random inputs, the probes below. None leaves out classes of torch.nn, torch.ao and lnrnn.torch, and
        gives a UserWarning for a module that cannot be run. False compares nothing. An input x is used in
        place of the probes; it should have several steps, in the module's order of axes, or be (B, I) for a
        cell. True and x raise a ValueError for a state dict, for a module whose x and h are rounded to 8
        bits, and for a module that cannot be run.

    Returns
    -------
    RNN, LSTM, GRU or another class of lnrnn
        The model. Dropout between the layers of torch.nn's modules becomes the model's `dropout`. Other
        dropout and initial states are left out.

    Raises
    ------
    ValueError
        For a state dict that is unknown, ambiguous or incomplete, or that has extra keys or wrong shapes; the
        message names the keys. For numbers beyond float32, tensors without numbers, and options that change
        the equation. For a module with another equation; the message has the input and the difference.
    TypeError
        For arguments of other types.

    Notes
    -----
    Most probes are N(0, 1): several steps, one step, one sequence, 263 sequences, some frames of zeros, one
    NaN, or 220 steps (60 for a cell or over 10^6 parameters). Two are of 1e-6 to 0.1 and of 10 to
    10,000. One has parameters 8 times as large. A module that takes initial states is also given states in
    (-0.9, 0.9) and of 1 to 100. Probes that make the module raise an exception are left out, and so are steps
    without statistics of batch norm. A copy of the module runs in float64. If that is impossible, the module
    runs in its own dtype, and each step may differ by rounding.

    The probes miss a difference that needs other conditions: larger numbers, one exact value, more steps or
    sequences, or other arguments of forward. They also miss a dependence on time, on random numbers, or on
    state outside of the module. For these, compare model(x) with module(x) on inputs of your own.

    The module runs on its device, in evaluation mode and without gradients. Its flags, attributes, parameters
    and buffers, and torch's random state, are restored.

    Examples
    --------
    >>> import numpy as np
    >>> import lnrnn
    >>> rng = np.random.default_rng(0)
    >>> state = {"weight_ih_l0": rng.standard_normal((16, 3)), "weight_hh_l0": rng.standard_normal((16, 4))}
    >>> lstm = lnrnn.from_torch(state)
    >>> y, (h, c) = lstm(np.zeros((5, 2, 3)))
    >>> y.shape
    (5, 2, 4)
    """

    given = None if isinstance(norm, str) and norm == "auto" else norm

    def convert(source: Any, norm: Any = given) -> Converted:
        return convert_torch(
            source, kind=kind, prefix=prefix, names=names, norm=norm, eps=eps, nonlinearity=nonlinearity,
            zoneout=zoneout, batch_first=batch_first,
        )  # fmt: skip

    module_or_state_dict = with_plain_weights(module_or_state_dict)
    try:
        model = checked(module_or_state_dict, convert, check, batch_first)
    except (UnknownCell, Differs) as refusal:
        said = any(v is not None for v in (kind, names, zoneout))
        other = isinstance(refusal, Differs) and refusal.cell != "GRU"
        if said or other or not is_own(module_or_state_dict):
            raise
        model = from_graph(module_or_state_dict, refusal, given, eps, nonlinearity, batch_first, check)
    if norm is None and model.norm is not None:
        raise ValueError(message("norm", f"'auto' or {model.norm!r} for this cell", "None"))
    return model


def from_keras(
    arrays_or_layer: Any,
    *,
    kind: LayerName | None = None,
    bidirectional: bool = False,
    reset_after: bool | None = None,
    nonlinearity: Nonlinearity | None = None,
    eps: float | None = None,
    batch_first: bool | None = None,
    recurrent_activation: RecurrentActivation | None = None,
    layer: str | list[str] | None = None,
) -> Model:
    """Converts a recurrent layer of Keras, for inference.

    It may be Keras' SimpleRNN, LSTM or GRU, or LayerNormLSTMCell or LayerNormSimpleRNNCell of TensorFlow
    Addons. These may be in keras.layers.RNN, StackedRNNCells, or Bidirectional with merge_mode="concat".

    Parameters
    ----------
    arrays_or_layer : layer, cell, sequence of arrays, mapping, or path
        A layer or cell that has been built; or its arrays in the order of get_weights(); or a mapping of
        names ("lstm/lstm_cell/kernel:0") to arrays. A list of layers becomes a network with that many layers.
        Or the path of an HDF5 file (.h5) of Keras 2, which needs h5py. Arrays of Keras 2's CuDNNLSTM and
        CuDNNGRU are read too.
    kind : str, optional
        "SimpleRNN", "LSTM", "GRU", "LayerNormLSTMCell" or "LayerNormSimpleRNNCell". It is needed if arrays
        fit two of them: a SimpleRNN with a bias, and a LayerNormSimpleRNNCell without a bias.
    bidirectional : bool
        Whether the arrays or names are for two directions, forward first. A layer does not need it.
    reset_after : bool, optional
        As in Keras; needed for the arrays of a GRU without bias, which do not show it.
    nonlinearity : str, optional
        One of lnrnn.RNN's. Needed with the arrays of a SimpleRNN or LayerNormSimpleRNNCell; of a GRU's arrays
        the default is "tanh". LSTM must have activation "tanh", which is checked for a layer.
    eps : float, optional
        The eps of the layer norms, at least 0. Default: TensorFlow Addons' 1e-3 for LSTM, 1e-5 for RNN.
    batch_first : bool, optional
        Whether the model takes x as (B, T, I). Default: True, but False for a layer with time_major.
    recurrent_activation : {"sigmoid", "hard_sigmoid", "keras2_hard_sigmoid"}, optional
        The gate activation of an LSTM or GRU. Default: the layer's; with arrays
        "sigmoid". "hard_sigmoid" is Keras 3's,
        min(max(a / 6 + 1/2, 0), 1), and the third Keras 2's, min(max(a / 5 + 1/2, 0), 1): the weights of its
        gates are multiplied by 1.2. Both become gate_activation="hard_sigmoid".
    layer : str or list of str, optional
        The layers of a file, by name; needed if it has several recurrent layers.

    Returns
    -------
    RNN, LSTM or GRU
        The model. It ignores return_sequences and return_state: a call returns all outputs and the last
        state. Dropout, stateful, masks and initial states are left out. A layer with go_backwards becomes a
        network with reverse=True: y has the order of x, and Keras' outputs have the reverse order.

    Raises
    ------
    ValueError
        For a layer or array without an equivalent in lnrnn, which the message names.
    TypeError
        For arguments of other types.

    Examples
    --------
    >>> import numpy as np
    >>> import lnrnn
    >>> rng = np.random.default_rng(0)
    >>> kernel, recurrent, bias = (rng.standard_normal(shape) for shape in ((3, 16), (4, 16), (16,)))
    >>> lstm = lnrnn.from_keras([kernel, recurrent, bias])
    >>> y, (h, c) = lstm(np.zeros((2, 5, 3)))
    >>> y.shape
    (2, 5, 4)
    """
    return convert_keras(
        arrays_or_layer, kind=kind, bidirectional=bidirectional, reset_after=reset_after,
        nonlinearity=nonlinearity, eps=eps, batch_first=batch_first,
        recurrent_activation=recurrent_activation, layer=layer,
    ).model()  # fmt: skip
