"""`from_torch` and `from_keras`: models that were trained elsewhere, as models of lnrnn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..rnn.cells import Nonlinearity
from ..rnn.models import Model, Norm
from .checking import checked
from .keras_weights import LayerName, convert_keras
from .search.networks import from_search, searchable
from .systems import SystemName
from .torch_weights import UnknownCell, convert_torch
from .weights import Converted

__all__ = ["convert_keras", "convert_torch", "from_keras", "from_torch"]


def from_torch(
    module_or_state_dict: Any,
    *,
    kind: SystemName | None = None,
    prefix: str = "",
    names: Mapping[str, str] | None = None,
    norm: Norm = None,
    eps: float | None = None,
    nonlinearity: Nonlinearity | None = None,
    zoneout: float | None = None,
    batch_first: bool | None = None,
    check: Any = None,
) -> Model:
    """Converts a recurrent model of torch, or of a library on top of it, for inference.

    Names and shapes of the parameters identify the system. They do not show how forward uses the
    parameters, so the module is also run (see check). A module with other names is run to find its equation.
    Its norms may stand anywhere, and its gates in any order. Its matrices for x and h may be one or two, and
    it may add constants to gates. The search takes at most 8 s of one core. A UserWarning names the norm that
    it finds.

    Parameters
    ----------
    module_or_state_dict : torch.nn.Module or mapping
        A module, or names with tensors (any device, any floating dtype) or NumPy arrays, as safetensors and
        torch.load return them. All become float32. With a state dict, the options that are attributes of a
        module must be arguments here, if they make a difference. The systems::

            "torch"       torch.nn.RNN, LSTM, GRU and their cells; every layer, direction, bias, batch_first.
                          proj_size > 0 is refused. A state dict of an RNN needs nonlinearity=.
            "fastrnns"    LayerNormLSTMCell of pytorch's benchmarks/fastrnns, alone or in its stacks of one or
            "nemo"        two directions; NeMo's is the same.
            "torchaudio"  _CustomLSTM of its RNN-T; a ModuleList of them is a stack.
            "icefall"     LayerNormLSTM and LayerNormGRU of transducer/rnn.py. They are batch_first.
                          proj_size > 0 is refused.
            "haste"       LayerNormLSTM and LayerNormGRU. Their zoneout also acts at inference: it becomes the
                          model's `zoneout` (of h; c has none). A state dict needs zoneout=.
            "xlstm"       sLSTMCell of the package xlstm, whose x is W x already, and its sLSTMLayer without
                          the convolution (conv1d_kernel_size=0). They are batch_first.
            "lnrnn"       the modules of lnrnn.torch. Their state dict needs the model's norm= (and
                          nonlinearity=).
    kind : str, optional
        Accept only this system.
    prefix : str
        With a state dict: use only the keys that begin with it, and remove it from them ("encoder.rnn.").
    names : mapping, optional
        Other names for some keys, {"w_ih": "weight_ih_l0"}, applied first.
    norm : LayerNormSpec, optional
        Where the norms stand in the cell, if not where the system has them. The parameters must fit, and its
        eps is used. The name "layer" says only that there are norms.
    eps : float, optional
        Of the layer norms. Default: the module's; with a state dict 1e-5.
    nonlinearity : {"tanh", "relu", "sigmoid", "identity"}, optional
        Of an RNN.
    zoneout : float, optional
        In [0, 1), of haste's cells.
    batch_first : bool, optional
        Whether the model takes x as (B, T, I). Default: as the module; with a state dict False, for icefall
        and xlstm True.
    check : bool or array, optional
        Whether to run the module and compare it with lnrnn.reference. None: on probes, unless its class is
        torch.nn's or lnrnn.torch's own; a module that runs in no usual way gets a UserWarning. True: always,
        on probes. An input x, (B, I) for a cell, else in the module's order of axes: always, on x alone; it
        should have several steps. False: never. True and x raise a ValueError for a state dict, and for a
        module that does not run.

    Returns
    -------
    RNN, LSTM, GRU or another class of lnrnn
        The model. Dropout between the layers of torch.nn's own modules becomes its `dropout`; other dropout
        and initial states are left out.

    Raises
    ------
    ValueError
        That names the keys, for a state dict that is unknown, ambiguous or incomplete, or that has extra keys
        or wrong shapes. Also for numbers beyond float32, tensors without numbers, and options that change the
        equation. For a module with another equation, it names the input and the difference.
    TypeError
        For arguments of other types.

    Notes
    -----
    The probes are random. They are ordinary input N(0, 1), one step, and 100 steps (40 for more than a
    million parameters). Others are one sequence, frames of zeros, and input of 1e-6 to 0.1 and of 10 to
    10,000. There is a NaN, and there are parameters 8 times as large. If states can be given, there are also
    states in (-0.9, 0.9) and of 1 to 100. Probes that make the module raise an exception are left out, and so
    are steps without statistics of batch norm. A copy of the module runs in float64. If that is impossible,
    the module runs in its own dtype, and each step may differ by rounding.

    The probes cannot show a condition that they do not meet: a threshold beyond these numbers, more steps or
    sequences, one exact value. Nor do they show state that is kept outside the module, dependence on time or
    chance, and other arguments of forward. For these compare with module(x) on inputs of your own.

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

    def convert(source: Any, norm: Any = norm) -> Converted:
        return convert_torch(
            source, kind=kind, prefix=prefix, names=names, norm=norm, eps=eps, nonlinearity=nonlinearity,
            zoneout=zoneout, batch_first=batch_first,
        )  # fmt: skip

    try:
        return checked(module_or_state_dict, convert, check, batch_first)
    except UnknownCell as refusal:
        said = any(v is not None for v in (kind, names, zoneout))
        if said or not searchable(module_or_state_dict):
            raise
        return from_search(module_or_state_dict, refusal, norm, eps, nonlinearity, batch_first, check)


def from_keras(
    arrays_or_layer: Any,
    *,
    kind: LayerName | None = None,
    bidirectional: bool = False,
    reset_after: bool | None = None,
    nonlinearity: Nonlinearity | None = None,
    eps: float | None = None,
    batch_first: bool | None = None,
) -> Model:
    """Converts a recurrent layer of Keras, for inference.

    Known are Keras' SimpleRNN, LSTM and GRU, and the LayerNormLSTMCell and LayerNormSimpleRNNCell of
    TensorFlow Addons. Known are also keras.layers.RNN around them, StackedRNNCells, and Bidirectional with
    merge_mode="concat".

    Parameters
    ----------
    arrays_or_layer : layer, cell, sequence of arrays, or mapping
        A layer or cell that has been built; its arrays in the order of get_weights(); or names
        ("lstm/lstm_cell/kernel:0") with arrays. A list of any of these is a network with that many layers.
    kind : str, optional
        "SimpleRNN", "LSTM", "GRU", "LayerNormLSTMCell" or "LayerNormSimpleRNNCell", if the number and shapes
        of the arrays do not decide (SimpleRNN with a bias, LayerNormSimpleRNNCell without one).
    bidirectional : bool
        Whether arrays (or names) are those of two directions, forward first. A layer decides by itself.
    reset_after : bool, optional
        Of a GRU without bias. reset_after=False is refused: it multiplies r into h before the matrix.
    nonlinearity : {"tanh", "relu", "sigmoid", "identity"}, optional
        Needed with the arrays of a SimpleRNN or LayerNormSimpleRNNCell. LSTM and GRU must have activation
        "tanh" and recurrent_activation "sigmoid", which is checked for a layer.
    eps : float, optional
        Of the layer norms. Default: that of TensorFlow Addons, 1e-3 for the LSTM, 1e-5 for the RNN.
    batch_first : bool, optional
        Whether the model takes x as (B, T, I). Default: as the layer, which is True unless time_major.

    Returns
    -------
    RNN, LSTM or GRU
        The model. It returns whole sequences and the last state, with any return_sequences and return_state.
        Dropout, stateful, masks and initial states are left out.

    Raises
    ------
    ValueError
        That names the layer or array that has no equivalent.
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
    ).model()  # fmt: skip
