"""RNN, LSTM, GRU, LiGRU and SLSTM: equations and constructors. Network has all other methods."""

from __future__ import annotations

import inspect
import re
from typing import Literal, TypeVar

import numpy as np

from . import cells
from .cells import GateActivation, Nonlinearity, StateDtype
from .network import Network
from .settings import RNG
from .specs import BatchNormSpec, LayerNormSpec, RMSNormSpec

Norm = Literal["layer", "rms", "batch"] | LayerNormSpec | RMSNormSpec | BatchNormSpec | None
T = TypeVar("T")


class RNN(Network[np.ndarray]):
    """A recurrent network with a norm inside the cell, after torch.nn.RNN.

    Parameters
    ----------
    input_size : int
        D, the number of values of x at each step.
    hidden_size : int
        H, the number of hidden units of each layer and direction.
    num_layers : int
        Number of layers, 1 to 1024. Each layer reads the outputs of the layer below.
    nonlinearity : {"tanh", "relu", "sigmoid", "identity"}
        The function f of the equations.
    bias : bool
        Whether the cell has biases.
    batch_first : bool
        Whether x and y are (B, T, *) instead of (T, B, *).
    dropout : float
        Rate in [0, 1) at which `forward_train` drops outputs between layers. With one layer it has no effect:
        a UserWarning is raised.
    bidirectional : bool
        Whether each layer has a second direction, which reads each sequence from its end.
    norm : {"layer", "rms", "batch"}, LayerNormSpec, RMSNormSpec, BatchNormSpec or None
        The norm inside the cell. The specs have more options. "rms" is "layer" without means and biases.
    reverse : bool
        Whether the network reads each sequence from its end, as direction 1 of a bidirectional network does.
        y keeps the order of x, and h is the state after step 0. Refused with bidirectional, and by `stream`.
    seed : int, optional
        Seed of the initial parameters, at least 0.
    rng : optional
        A numpy.random.Generator, or another argument of numpy.random.default_rng, for the initial parameters.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above.

    Attributes
    ----------
    weight_ih_l0, weight_hh_l0 : array of float32
        Weights (H, D) and (H, H). Names end in _l1 for layer 1, and in _l0_reverse for the other direction.
    gain_l0, bias_l0 : array of float32
        Gains and biases (H,), with the names of the equations. All parameters are read-only arrays. To change
        a parameter, assign a new array, which is copied.
    running_mean_l0, running_var_l0, count_l0 : array
        Batch norm: statistics (steps, H) and the number of sequences at each step, (steps,). Read-only.

    Notes
    -----
    The equations of a time step, with LN and BN_t as below::

        norm None      h_t = f(W_ih x_t + bias_ih + W_hh h_{t-1} + bias_hh)
        "layer"        h_t = f(LN(W_ih x_t + W_hh h_{t-1}; gain, bias))
          "split"      h_t = f(LN(W_ih x_t; gain_ih, bias_ih) + LN(W_hh h_{t-1}; gain_hh, bias_hh))
        "batch"        h_t = f(BN_t(W_ih x_t + W_hh h_{t-1}; gain, bias))

        LN(a; g, b) = g (a - mu) / sqrt(var + eps) + b

    LN takes mean mu and biased variance var over the H units of one sequence at one step. BN_t takes them
    over the batch, for each time step t and unit. "split" is a placement of LayerNormSpec.

    norm None is torch's cell. "layer" is equation 4 of Ba et al. 2016, arXiv 1607.06450. "batch" is Cooijmans
    et al. 2016, arXiv 1603.09025.

    Initial weights, and biases without a norm, are uniform in +-1/sqrt(H); gains are 1, biases of norms 0.

    All arithmetic is float32. The result for a sequence does not depend on the rest of the batch, to the last
    bit. Batch norm in training and with overrun="batch" are the exceptions. W_ih x_t and W_hh h_{t-1} may be
    as large as 1e38. If a unit overflows, layer norm makes all units of the sequence NaN from that step on.

    Examples
    --------
    >>> import numpy as np
    >>> import lnrnn
    >>> rnn = lnrnn.RNN(3, 4, seed=0)
    >>> y, h = rnn(np.ones((5, 2, 3)))
    >>> y.shape, h.shape
    ((5, 2, 4), (1, 2, 4))
    """

    __slots__ = ("nonlinearity",)
    _cell = cells.RNN
    nonlinearity: Nonlinearity

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: Nonlinearity = "tanh",
        bias: bool = True, batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, *,
        norm: Norm = "layer", reverse: bool = False, seed: int | None = None, rng: RNG = None,
    ) -> None:  # fmt: skip
        self._make(locals())


def _with_arguments(model: type[T]) -> type[T]:
    """Adds RNN's arguments to `model`'s docstring if it lacks them, except nonlinearity. Returns model."""
    own, listed = inspect.getdoc(model), inspect.getdoc(RNN)
    if own and listed:  # not under python -OO
        shared = listed[listed.index("Parameters\n") : listed.index("Raises\n")]
        for name in ("nonlinearity", *re.findall(r"^(\w+) :", own, re.MULTILINE)):
            shared = re.sub(rf"(?m)^{name} :.*\n(?:    .*\n)+", "", shared)
        model.__doc__ = (
            own.replace("Parameters\n----------\n", shared.rstrip() + "\n")
            if "Parameters\n" in own
            else own.replace("Attributes\n", f"{shared}Attributes\n", 1)
        )
    return model


@_with_arguments
class LSTM(Network[tuple[np.ndarray, np.ndarray]]):
    """A long short-term memory with norms inside the cell, after torch.nn.LSTM.

    The state is a pair (h, c): ``y, (h, c) = lstm(x, (h0, c0))``. Each is (num_layers * directions, B, *):
    h has P values, which is H or proj_size, and c has H.

    Parameters
    ----------
    proj_size : int
        Values P of h, fewer than H, by a projection; 0 for none.
    num_heads : int
        Number of heads, a divisor of H. W_hh is block-diagonal: a unit reads h of the H / num_heads units of
        its head only, and a step takes less time. Norms are over all units.
    gate_activation : {"sigmoid", "hard_sigmoid"}
        The function of the gates. The hard sigmoid is min(max(a / 6 + 1/2, 0), 1), as in torch. It needs
        norm=None.
    peepholes : bool
        Whether i and f also read c_{t-1}, and o reads c', each by a weight for every unit.

    Attributes
    ----------
    weight_ih_l0, weight_hh_l0 : array of float32
        Weights (4H, D) and (4H, H / num_heads); H rows for each of the gates i, f, g, o. With
        several heads, row u of a gate belongs to head u // (H / num_heads). With proj_size weight_hh_l0 is
        (4H, P).
    weight_hr_l0 : array of float32
        The projection, (P, H), with proj_size.
    peephole_l0 : array of float32
        The peepholes (3H,) p_i, p_f and p_o, with peepholes=True. ONNX's P has the order i, o, f.
    gain_ih_l0, bias_ih_l0, gain_hh_l0, bias_hh_l0 : array of float32
        Gains and biases (4H,), with the names of the equations.
    gain_c_l0, bias_c_l0 : array of float32
        Gain and bias (H,) of the norm of c.
    running_mean_ih_l0, running_var_ih_l0, count_l0 : array
        Batch norm: statistics (steps, 4H) of x_, likewise hh for h_, and c (steps, H). count is (steps,).

    Notes
    -----
    The equations of a time step. x_ = W_ih x_t and h_ = W_hh h_{t-1} are both (4H,)::

        norm None      i, f, g, o = x_ + bias_ih + h_ + bias_hh
        "layer"        i, f, g, o = LN(x_; gain_ih, bias_ih) + LN(h_; gain_hh, bias_hh)
          "joint"      i, f, g, o = LN(x_ + h_; gain, bias)
          "gate"       i = LN(x_i + h_i; gain_i, bias_i), and f, g, o likewise, each over H
        "batch"        i, f, g, o = BN_t(x_; gain_ih) + BN_t(h_; gain_hh) + bias

        c' = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g)
        cell None      c_t = c'                        h_t = sigmoid(o) tanh(c')
        cell "out"     c_t = c'                        h_t = sigmoid(o) tanh(LN(c'; gain_c, bias_c))
        cell "carry"   c_t = LN(c'; gain_c, bias_c)    h_t = sigmoid(o) tanh(c_t)
        "batch"        c_t = c'                        h_t = sigmoid(o) tanh(BN_t(c'; gain_c, bias_c))

        LN(a; g, b) = g (a - mu) / sqrt(var + eps) + b

    With peepholes, i + p_i c_{t-1}, f + p_f c_{t-1} and o + p_o c' replace i, f and o in the last equations.
    So peepholes follow the norms of gates, and o reads c before its norm.

    With proj_size, h_t is W_hr times the h_t above. Then y, later layers, zoneout and dropout of states have
    the projected h.

    LN takes mean mu and biased variance var over units of one sequence at one step: over all 4H in "layer"
    and "joint". BN_t takes them over the batch, for each time step t and unit. Placements and cell are
    options of LayerNormSpec; the default of cell is "out", and without a norm it is None. Initial
    parameters, arithmetic and errors are as in `RNN`.

    The cell is that of Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 2000. norm None is
    torch's cell. "layer" is Ba et al. 2016, arXiv 1607.06450. "batch" is Cooijmans et al. 2016, arXiv
    1603.09025. The projection is Sak et al. 2014, arXiv 1402.1128. Peepholes are Gers, Schraudolph and
    Schmidhuber 2002, with o reading the new c, as in ONNX and TensorFlow's LSTMCell(use_peepholes=True).

    Examples
    --------
    >>> import numpy as np
    >>> import lnrnn
    >>> lstm = lnrnn.LSTM(3, 4, num_layers=2, seed=0)
    >>> y, (h, c) = lstm(np.ones((5, 2, 3)), lengths=[5, 3])
    >>> y.shape, h.shape, c.shape
    ((5, 2, 4), (2, 2, 4), (2, 2, 4))
    """

    __slots__ = ("gate_activation", "num_heads", "peepholes", "proj_size")
    _cell = cells.LSTM
    num_heads: int
    proj_size: int
    gate_activation: GateActivation
    peepholes: bool

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0, *,
        norm: Norm = "layer", reverse: bool = False, num_heads: int = 1,
        gate_activation: GateActivation = "sigmoid", peepholes: bool = False, seed: int | None = None,
        rng: RNG = None,
    ) -> None:  # fmt: skip
        self._make(locals())


@_with_arguments
class GRU(Network[np.ndarray]):
    """A gated recurrent unit with norms inside the cell, after torch.nn.GRU.

    Parameters
    ----------
    reset_after : bool
        Whether the reset gate r follows the product with W_hh, as in torch. False is the equation of Cho et
        al. 2014, Keras' reset_after=False and ONNX's linear_before_reset=0; not for "joint", "gate" and span
        "all".
    num_heads : int
        As in `LSTM`.
    gate_activation : {"sigmoid", "hard_sigmoid"}
        As in `LSTM`.
    nonlinearity : {"tanh", "relu", "sigmoid", "identity"}
        The function of the candidate n. With relu and identity h is not bounded.

    Attributes
    ----------
    weight_ih_l0, weight_hh_l0 : array of float32
        Weights (3H, D) and (3H, H / num_heads); H rows for each of the gates r, z, n. With
        several heads, row u of a gate belongs to head u // (H / num_heads).
    gain_ih_l0, bias_ih_l0, gain_hh_l0, bias_hh_l0 : array of float32
        Gains and biases (3H,), with the names of the equations.
    running_mean_ih_l0, running_var_ih_l0, count_l0 : array
        Batch norm: statistics (steps, 3H) of x_, likewise hh for h_. count is (steps,).

    Notes
    -----
    The equations of a time step. x_ = W_ih x_t and h_ = W_hh h_{t-1} are both (3H,); X and Y are their
    normalised forms::

        norm None      X = x_ + bias_ih                  Y = h_ + bias_hh
        "layer"        X = LN(x_; gain_ih, bias_ih)      Y = LN(h_; gain_hh, bias_hh)
        "batch"        X = BN_t(x_; gain_ih) + bias      Y = BN_t(h_; gain_hh)
                       r, z = sigmoid(X_rz + Y_rz)       n = tanh(X_n + r Y_n)
          reset_after=False                              n = tanh(X_n + Y_n), h_n = W_hh,n (r h_{t-1})
          "joint"      a = LN(x_ + h_; gain, bias)       r, z = sigmoid(a_rz)      n = tanh(r a_n)
          "gate"       r = sigmoid(LN(x_r + h_r; gain_r, bias_r)), z likewise
                       n = tanh(LN(x_n + r h_n; gain_n, bias_n))

        h_t = (1 - z) n + z h_{t-1}
        LN(a; g, b) = g (a - mu) / sqrt(var + eps) + b

    LN takes mean mu and biased variance var over units of one sequence at one step. In "layer", x_ and h_
    each have one LN over the 2H of r and z, and one over the H of n. With span "all" they have one LN each,
    over all 3H. "joint" is over 3H, "gate" over H. BN_t takes mean and variance over the batch, for each time
    step t and unit. As in torch, r multiplies after the product with W_hh, and z is the weight of h_{t-1}.
    Placements and span are in LayerNormSpec. Initial parameters, arithmetic and errors are as in `RNN`.

    The cell is that of Cho et al. 2014, arXiv 1406.1078. norm None is torch's cell. "layer" is Ba et al.
    2016, arXiv 1607.06450. "batch" follows Cooijmans et al. 2016, arXiv 1603.09025.

    Examples
    --------
    >>> import numpy as np
    >>> import lnrnn
    >>> gru = lnrnn.GRU(3, 4, bidirectional=True, norm=lnrnn.LayerNormSpec("joint"), seed=0)
    >>> y, h = gru(np.ones((5, 2, 3)))
    >>> y.shape, h.shape
    ((5, 2, 8), (2, 2, 4))
    """

    __slots__ = ("gate_activation", "nonlinearity", "num_heads", "reset_after")
    _cell = cells.GRU
    nonlinearity: Nonlinearity
    num_heads: int
    gate_activation: GateActivation
    reset_after: bool

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, *, norm: Norm = "layer",
        reverse: bool = False, reset_after: bool = True, num_heads: int = 1,
        gate_activation: GateActivation = "sigmoid", nonlinearity: Nonlinearity = "tanh",
        seed: int | None = None, rng: RNG = None,
    ) -> None:  # fmt: skip
        self._make(locals())


@_with_arguments
class LiGRU(Network[np.ndarray]):
    """A light gated recurrent unit: a GRU without reset gate, with relu for tanh.

    Parameters
    ----------
    nonlinearity : {"relu", "tanh", "sigmoid", "identity"}
        The function f of the equations.

    Attributes
    ----------
    weight_ih_l0, weight_hh_l0 : array of float32
        Weights (2H, D) and (2H, H); H rows for each of z and n.
    gain_ih_l0, bias_ih_l0 : array of float32
        Gains and biases (2H,), with the names of the equations.
    running_mean_ih_l0, running_var_ih_l0, count_l0 : array
        Batch norm: statistics (steps, 2H). count is (steps,).

    Notes
    -----
    The equations of a time step. x_ = W_ih x_t and h_ = W_hh h_{t-1} are both (2H,)::

        norm None      z, n = x_ + bias_ih + h_ + bias_hh
        "layer"        z, n = LN(x_; gain_ih, bias_ih) + h_
          "split"      z, n = LN(x_; gain_ih, bias_ih) + LN(h_; gain_hh, bias_hh)
          "joint"      z, n = LN(x_ + h_; gain, bias)
          "gate"       z = LN(x_z + h_z; gain_z, bias_z), n likewise, each over H
        "batch"        z, n = BN_t(x_; gain_ih, bias_ih) + h_

        h_t = (1 - sigmoid(z)) f(n) + sigmoid(z) h_{t-1}
        LN(a; g, b) = g (a - mu) / sqrt(var + eps) + b

    mu and the biased var of LN are taken over the 2H units of one sample at one step. BN_t takes them over
    the batch, for each time step t and unit. Ravanelli et al. have one batch norm for all steps. Initial
    parameters, arithmetic and errors are as in `RNN`. With relu h is not bounded.

    The cell is that of Ravanelli et al. 2018, arXiv 1803.10225. "split" is speechbrain's SLiGRU.

    Examples
    --------
    >>> import numpy as np
    >>> import lnrnn
    >>> rnn = lnrnn.LiGRU(3, 4, seed=0)
    >>> y, h = rnn(np.ones((5, 2, 3)))
    >>> y.shape, h.shape
    ((5, 2, 4), (1, 2, 4))
    """

    __slots__ = ("nonlinearity",)
    _cell = cells.LiGRU
    nonlinearity: Nonlinearity

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: Nonlinearity = "relu",
        bias: bool = True, batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, *,
        norm: Norm = "layer", reverse: bool = False, seed: int | None = None, rng: RNG = None,
    ) -> None:  # fmt: skip
        self._make(locals())


@_with_arguments
class SLSTM(Network[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]):
    """The sLSTM of xLSTM: an LSTM with exponential gates, and a layer norm of each head after it.

    The state is a tuple (h, c, n, m): ``y, (h, c, n, m) = slstm(x, (h0, c0, n0, m0))``. Each is
    (num_layers * directions, B, H).

    Parameters
    ----------
    norm : "layer", LayerNormSpec or None
        The norm of y. Batch norm is refused.
    num_heads : int
        Heads of H / num_heads units each, which the recurrence does not mix.
    exp_forget : bool
        Whether the forget gate is exponential too, lf = f, instead of a sigmoid.
    state_dtype : {"float32", "bfloat16"}
        "bfloat16" rounds h, c, n and m after each step. `backward` then ignores the rounding.

    Attributes
    ----------
    weight_ih_l0, weight_hh_l0 : array of float32
        Weights (4H, D) and (4H, H / num_heads); H rows for each of the gates i, f, z, o. Row u of a gate of
        weight_hh multiplies the h of the units of u's head.
    bias_ih_l0, bias_hh_l0 : array of float32
        Biases (4H,), with the names of the equations.
    gain_y_l0, bias_y_l0 : array of float32
        Gain and bias of the norm, (H,).

    Notes
    -----
    The equations of a time step::

        i, f, z, o = W_ih x_t + bias_ih + W_hh h_{t-1} + bias_hh
        lf = log(sigmoid(f))
        m_t = max(i, lf + m_{t-1})
        i' = exp(i - m_t)                      f' = exp(lf + m_{t-1} - m_t)
        c_t = f' c_{t-1} + i' tanh(z)          n_t = f' n_{t-1} + i'
        h_t = sigmoid(o) c_t / n_t

        norm None      y_t = h_t
        "layer"        y_t = LN(h_t; gain_y, bias_y)

        LN(a; g, b) = g (a - mu) / sqrt(var + eps) + b

    W_hh is block-diagonal: it has weight_hh's rows, and 0 between heads. mu and the biased var of LN are
    taken over the units of one head of one sample at one step. y is the output, and the input of the next
    layer; h recurs. Batch norm and zoneout are refused. Errors are as in `RNN`.

    A unit whose n_{t-1} is 0 has no past. There m_t = i and f' = 0, and c_{t-1} and m_{t-1} have no effect.
    This holds at the first step of a sequence, since states start at 0, and for such units of a given state.
    After a step n is at least 1, because one of i' and f' is 1 and the other is not larger. So nothing
    overflows, and nothing is divided by 0.

    Weights and the biases of gates start uniform in +-1/sqrt(H), as in torch.nn.LSTM, gain_y at 1 and bias_y
    at 0. The paper has larger biases of the forget gate: they are bias_ih_l0[H : 2 * H].

    The cell is that of Beck et al. 2024, arXiv 2405.04517.

    Examples
    --------
    >>> import numpy as np
    >>> import lnrnn
    >>> slstm = lnrnn.SLSTM(3, 4, seed=0)
    >>> y, (h, c, n, m) = slstm(np.ones((5, 2, 3)))
    >>> y.shape, n.shape
    ((5, 2, 4), (1, 2, 4))
    """

    __slots__ = ("num_heads", "exp_forget", "state_dtype")
    _cell = cells.SLSTM
    num_heads: int
    exp_forget: bool
    state_dtype: StateDtype

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, *, num_heads: int = 4,
        norm: Norm = "layer", exp_forget: bool = False, state_dtype: StateDtype = "float32",
        reverse: bool = False, seed: int | None = None, rng: RNG = None,
    ) -> None:  # fmt: skip
        self._make(locals())


Model = RNN | LSTM | GRU | LiGRU | SLSTM
CLASSES: dict[str, type[Model]] = {model._cell.name: model for model in (RNN, LSTM, GRU, LiGRU, SLSTM)}
