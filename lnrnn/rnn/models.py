"""RNN, LSTM and GRU: what each computes, and how it is made. All else they share, in network.py."""

from __future__ import annotations

from typing import Literal, TypeVar

import numpy as np

from . import cells
from .cells import Nonlinearity
from .network import Network, no_projection
from .specs import BatchNormSpec, LayerNormSpec

Norm = Literal["layer", "batch"] | LayerNormSpec | BatchNormSpec | None
T = TypeVar("T")


class RNN(Network[np.ndarray]):
    """A recurrent network with a norm inside the cell. As torch.nn.RNN, and more. With D inputs and H units:

        norm None    h_t = f(W_ih x_t + bias_ih + W_hh h_{t-1} + bias_hh)
        "layer"      h_t = f(LN(W_ih x_t + W_hh h_{t-1}; gain, bias))
          "split"    h_t = f(LN(W_ih x_t; gain_ih, bias_ih) + LN(W_hh h_{t-1}; gain_hh, bias_hh))
        "batch"      h_t = f(BN_t(W_ih x_t + W_hh h_{t-1}; gain, bias))

    norm None is torch's own; "layer" is Ba et al. 2016, arXiv 1607.06450, equation 4; "batch" is Cooijmans et
    al. 2016, arXiv 1603.09025.

    f: nonlinearity, "tanh", "relu", "sigmoid" or "identity". LN(a; g, b) = g (a - mu) / sqrt(var + eps) + b,
    mu and the biased variance over the H units of one sample at one step; BN_t the same over the batch, for
    each time step t and unit by itself. norm: the name, or a LayerNormSpec for "split", another eps or biases
    inside the norms, or a BatchNormSpec.

    input_size D, hidden_size H, num_layers. bias: whether the cell has any. batch_first: x and y are (B, T,
    *) instead of (T, B, *). dropout: the rate in [0, 1) that `forward_train` drops between layers;
    UserWarning with one layer. bidirectional: a second network reads from each sequence's own end. The order
    of these arguments is that of torch.nn. seed, an integer of at least 0, or rng, a NumPy generator, draws
    the start values: weights, and biases that no norm follows, uniform in +-1/sqrt(H) as in torch; None draws
    others each time. Gains start at 1, biases of norms at 0.

    Parameters are attributes with torch's names: weight_ih_l0 (H, D), weight_hh_l0 (H, H), and the gains and
    biases above, each (H,), gain_l0 and so on; _l1 .. for more layers, _reverse for the other direction. They
    read as read-only float32 arrays; assign to set one (it is copied, and packed again at the next call). A
    name that is none of these raises AttributeError. Batch norm's statistics are attributes too:
    running_mean_l0, running_var_l0 (steps, H) and count_l0 (steps,).

    Everything is computed in float32. Under layer norm, no norm, and batch norm at inference (but
    overrun="batch") the result for a sequence does not depend on the rest of the batch, to the last bit. What
    a norm inside takes, W x and W h, may be as large as 1e38; beyond the largest float32 it is infinite, and
    layer norm makes the whole row NaN.
    """

    __slots__ = ("nonlinearity",)
    _cell = cells.RNN
    nonlinearity: Nonlinearity

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Nonlinearity = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        norm: Norm = "layer",
        seed: int | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self._make(
            dropout, seed, rng, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers,
            nonlinearity=nonlinearity, bias=bias, batch_first=batch_first, bidirectional=bidirectional,
            norm=norm,
        )  # fmt: skip


def _with_arguments(model: type[T]) -> type[T]:
    """model, its docstring with the paragraph of RNN's that says what the arguments are."""
    if model.__doc__ and RNN.__doc__:  # not under python -OO
        found = next(text for text in RNN.__doc__.split("\n\n") if text.lstrip().startswith("input_size"))
        model.__doc__ = f"{model.__doc__.rstrip()}\n\n{found}\n    "
    return model


@_with_arguments
class LSTM(Network[tuple[np.ndarray, np.ndarray]]):
    """A long short-term memory with norms inside the cell. As torch.nn.LSTM, and more. With x_ = W_ih x_t and
    h_ = W_hh h_{t-1}, both (4H,), H rows for each of the gates i, f, g, o in this order:

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

    Of cell, "out" is the default, and without a norm it is always None. The equations of the cell are from
    Hochreiter, Schmidhuber 1997 and Gers et al. 2000; norm None is torch's own; "layer" is Ba et al. 2016,
    arXiv 1607.06450; "batch" is Cooijmans et al. 2016, arXiv 1603.09025.

    LN(a; g, b) = g (a - mu) / sqrt(var + eps) + b, mu and the biased variance over the units of one sample at
    one step: all 4H in "layer" and "joint". BN_t is the same over the batch, for each time step t and unit by
    itself. norm: the name, or a LayerNormSpec (placement, cell, eps, inner_bias), or a BatchNormSpec.

    The state is a pair: y, (h, c) = lstm(x, (h0, c0)), h and c (num_layers * directions, B, H) each.

    The arguments are those of RNN, less nonlinearity; proj_size must be 0, a projection of h is not supported
    yet. Parameters are attributes as there: weight_ih_l0 (4H,
    D), weight_hh_l0 (4H, H), the gains and biases above, (4H,) each, H numbers for gate after gate, but
    gain_c_l0, bias_c_l0 (H,). Batch norm's statistics too: running_mean_ih_l0, running_var_ih_l0 and those of
    hh, (steps, 4H), those of c, (steps, H), and count_l0 (steps,). What RNN says of bits that do not depend
    on the batch holds here.
    """

    __slots__ = ()
    _cell = cells.LSTM

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        *,
        norm: Norm = "layer",
        seed: int | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        no_projection(proj_size)
        self._make(
            dropout, seed, rng, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers,
            bias=bias, batch_first=batch_first, bidirectional=bidirectional, norm=norm,
        )  # fmt: skip


@_with_arguments
class GRU(Network[np.ndarray]):
    """A gated recurrent unit with norms inside the cell. As torch.nn.GRU, and more. With x_ = W_ih x_t and
    h_ = W_hh h_{t-1}, both (3H,), H rows for each of the gates r, z, n in this order, X and Y standing for
    what the norm makes of each of the two:

        norm None      X = x_ + bias_ih                  Y = h_ + bias_hh
        "layer"        X = LN(x_; gain_ih, bias_ih)      Y = LN(h_; gain_hh, bias_hh)
        "batch"        X = BN_t(x_; gain_ih) + bias      Y = BN_t(h_; gain_hh)
                       r, z = sigmoid(X_rz + Y_rz)       n = tanh(X_n + r Y_n)
          "joint"      a = LN(x_ + h_; gain, bias)       r, z = sigmoid(a_rz)      n = tanh(r a_n)
          "gate"       r = sigmoid(LN(x_r + h_r; gain_r, bias_r)), z likewise
                       n = tanh(LN(x_n + r h_n; gain_n, bias_n))

        h_t = (1 - z) n + z h_{t-1}

    The cell is that of Cho et al. 2014, arXiv 1406.1078; norm None is torch's own; "layer" is Ba et al. 2016,
    arXiv 1607.06450; "batch" follows Cooijmans et al. 2016, arXiv 1603.09025.

    LN(a; g, b) = g (a - mu) / sqrt(var + eps) + b, mu and the biased variance over the units of one sample at
    one step: in "layer" over the 2H of r and z and over the H of n, each side for itself (span "all": over
    all 3H of a side), in "joint" over all 3H, in "gate" over H. BN_t is the same over the batch, for each
    time step t and unit by itself. r stands after the product with W_hh, as torch has it, and z says how
    much is kept. norm: the name, or a LayerNormSpec (placement, span, eps, inner_bias), or a BatchNormSpec.

    The arguments are those of RNN, less nonlinearity. Parameters are attributes as there: weight_ih_l0 (3H,
    D), weight_hh_l0 (3H, H), and the gains and biases above, (3H,) each, H numbers for gate after gate. Batch
    norm's statistics too: running_mean_ih_l0, running_var_ih_l0 and those of hh, (steps, 3H), and count_l0
    (steps,). What RNN says of bits that do not depend on the batch holds here.
    """

    __slots__ = ()
    _cell = cells.GRU

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        norm: Norm = "layer",
        seed: int | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self._make(
            dropout, seed, rng, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers,
            bias=bias, batch_first=batch_first, bidirectional=bidirectional, norm=norm,
        )  # fmt: skip


Model = RNN | LSTM | GRU
CLASSES: dict[str, type[Model]] = {model._cell.name: model for model in (RNN, LSTM, GRU)}
