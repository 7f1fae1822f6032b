"""Models that were trained elsewhere, as lnrnn's: `from_torch` and `from_keras`."""

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
    """A recurrent model of lnrnn with the weights of one of torch's world, for inference.

    module_or_state_dict: a module, or a mapping of names to tensors (any device, any floating dtype) or NumPy
    arrays, as safetensors and torch.load give them. Everything is converted to float32. What a module says
    itself has to be said here beside a state dict, where it makes a difference. The systems, which are told
    apart by their names:

        "torch"       torch.nn.RNN, LSTM, GRU and their cells; every layer, direction, bias, batch_first.
                      proj_size > 0 is refused. A state dict of an RNN wants nonlinearity=.
        "fastrnns"    LayerNormLSTMCell of pytorch's benchmarks/fastrnns, alone or in its stacks of one or two
        "nemo"        directions; NeMo's is the same.
        "torchaudio"  _CustomLSTM of its RNN-T; a ModuleList of them is a stack.
        "icefall"     LayerNormLSTM and LayerNormGRU of transducer/rnn.py. They are batch_first. proj_size > 0
                      is refused.
        "haste"       LayerNormLSTM and LayerNormGRU. haste's zoneout is at work at inference too: the model's
                      `zoneout` is set to it (of h; c has none), and beside a state dict it must be given.
        "lnrnn"       the modules of lnrnn.torch. Their state dict wants norm= (and nonlinearity=) as the
                      model had it.

    A module with other names is run to find its equation. Its norms may stand anywhere, its gates in any
    order, its matrices for x and h apart or together, and constants may be added to gates. The search gives
    up after some 8 s of one core. A UserWarning says which norm was found; if none agrees, a ValueError says
    which came nearest.

    kind: refuse what is not of this system. prefix: of a state dict, only the keys that begin with it,
    without it ("encoder.rnn."). names: other names for some of the keys, {"w_ih": "weight_ih_l0"}, before
    anything else is done. norm: a LayerNormSpec, where the norms stand in the cell if not where the system
    has them (LayerNormSpec(cell="out"), say); the parameters must fit it, and its eps counts. The name
    "layer" says only that there are some. eps: of the layer norms; beside a state dict 1e-5 if not given.
    batch_first: whether the new model takes x as (B, T, I); the module's own if not given (False beside a
    state dict, True for icefall).

    check: names and shapes do not say what a module's forward does with its parameters, so the module is run
    beside lnrnn.reference, and a ValueError tells on which input, and by how much, they differ if not by
    rounding alone. None: on probes, if the module's class is not torch.nn's or lnrnn.torch's own; one that
    runs in none of the usual ways gets a UserWarning. True: always, on probes. An input x, (B, I) of a cell
    or in the module's order of axes, preferably of several steps: always, on x alone. False: never. With True
    or x a module that does not run is a ValueError, as is a state dict, which cannot.

    The probes are random: ordinary input N(0, 1); one step; 100 steps, 40 for more than a million parameters;
    one sequence; frames of zeros; input of 1e-6 to 0.1 and of 10 to 10,000; a NaN; parameters 8 times as
    large; and where states can be given, some in (-0.9, 0.9) and of 1 to 100. Those that the module itself
    refuses with an exception are left out, and steps beyond those that batch norm knows. A copy of the module
    runs in float64; a module that cannot be copied or does not compute in float64 runs in its own dtype, and
    each step may differ by what rounding explains there. The probes do not see: conditions that they do not
    meet (a threshold beyond these numbers, more steps or sequences, one exact value), state that is kept
    outside of the module, what depends on time or chance, and forward's other arguments. For these compare
    with module(x) on inputs of your own.

    The module runs on its device, in evaluation mode and without gradients; its flags, attributes, parameters
    and buffers and torch's random state are afterwards what they were.

    Dropout acts in training only. That between the layers of torch.nn's own modules becomes the model's
    `dropout`, other dropout is left out. So are initial states: lnrnn's are zeros if not given.

    Raises ValueError, naming the keys, for a state dict that is unknown, ambiguous, incomplete, has keys too
    many or shapes that do not fit, for numbers beyond float32 and tensors without numbers, for options that
    would make another equation, and for a module that computes another; TypeError for what is no state dict,
    and no numbers.
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
    """A recurrent model of lnrnn with the weights of a recurrent layer of Keras, for inference.

    arrays_or_layer: a layer or cell that has been built; or its arrays in the order of get_weights(); or a
    mapping of names ("lstm/lstm_cell/kernel:0") to arrays. A list of any of these is a network of as many
    layers. Known are Keras' SimpleRNN, LSTM and GRU, the LayerNormLSTMCell and LayerNormSimpleRNNCell of
    TensorFlow Addons, keras.layers.RNN around them, StackedRNNCells, and Bidirectional with
    merge_mode="concat".

    kind: "SimpleRNN", "LSTM", "GRU", "LayerNormLSTMCell" or "LayerNormSimpleRNNCell", where number and shapes
    of the arrays leave it open (SimpleRNN with a bias, LayerNormSimpleRNNCell without one).
    bidirectional: whether arrays (or names) are those of two directions, forward first; a layer says it
    itself.
    reset_after: of a GRU without bias. reset_after=False is another equation, in which r is multiplied into h
    before the matrix, and is refused. nonlinearity: "tanh", "relu", "sigmoid" or "identity", must be given
    beside the arrays of a SimpleRNN or LayerNormSimpleRNNCell. LSTM and GRU must have activation "tanh" and
    recurrent_activation "sigmoid": of a layer this is checked. eps: of the layer norms, if not given their
    default in TensorFlow Addons: 1e-3 for the LSTM, 1e-5 for the RNN. batch_first: whether the new model
    takes x as (B, T, I); as the layer does if not given, and that is True but for time_major.

    Dropout acts in training only and is left out; stateful, masks and initial states are the caller's. The
    model returns whole sequences and the last state, whatever return_sequences and return_state say.

    Raises ValueError, naming what it is about, and TypeError for what is no layer, and no numbers.
    """
    return convert_keras(
        arrays_or_layer, kind=kind, bidirectional=bidirectional, reset_after=reset_after,
        nonlinearity=nonlinearity, eps=eps, batch_first=batch_first,
    ).model()  # fmt: skip
