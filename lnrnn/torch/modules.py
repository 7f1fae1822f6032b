"""RNN, LSTM, GRU, LiGRU and SLSTM as torch modules. Here are the constructors, in twin.py all else."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..errors import bad_type, bad_value
from ..rnn import models
from ..rnn.cells import GateActivation, Nonlinearity, StateDtype
from ..rnn.settings import architecture
from .twin import Twin


class RNN(Twin):
    """lnrnn.RNN as a torch module for training, with the same parameters, initial values and results.

    Parameters
    ----------
    input_size, hidden_size, num_layers, nonlinearity, bias, batch_first, dropout, bidirectional
        As in torch.nn.RNN.
    norm, reverse
        As in `lnrnn.RNN`.
    seed : int, optional
        Seed of the initial parameters, then as in lnrnn.RNN. Default: torch's generator.
    rng : optional
        A numpy.random.Generator for the initial parameters, instead of seed.
    device, dtype
        Device and dtype of the parameters, as in torch.nn.
    engine : {"lnrnn", "torch"}, optional
        The value of the property `engine`. Default: "lnrnn" for each call that the kernels can serve.

    Raises
    ------
    TypeError, ValueError
        For a wrong argument, which the message names. Dropout with one layer is a UserWarning.

    Examples
    --------
    >>> import torch
    >>> import lnrnn.torch
    >>> rnn = lnrnn.torch.RNN(3, 4, norm="layer", seed=0)
    >>> y, h = rnn(torch.zeros(5, 2, 3))
    >>> y.shape, rnn.engine
    (torch.Size([5, 2, 4]), 'lnrnn')
    """

    _served = models.RNN

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: Nonlinearity = "tanh",
        bias: bool = True, batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, *,
        norm: models.Norm = "layer", reverse: bool = False, seed: int | None = None,
        rng: np.random.Generator | None = None, device: Any = None, dtype: torch.dtype | None = None,
        engine: str | None = None,
    ) -> None:  # fmt: skip
        self._make(locals())


class LSTM(Twin):
    """lnrnn.LSTM as a torch module for training, with the same parameters, initial values and results.

    Parameters
    ----------
    input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size
        As in torch.nn.LSTM.
    norm, reverse, seed, rng, device, dtype, engine
        As in `RNN`.
    num_heads, gate_activation, peepholes
        As in `lnrnn.LSTM`.

    Examples
    --------
    >>> import torch
    >>> import lnrnn.torch
    >>> lstm = lnrnn.torch.LSTM(3, 4, seed=0)
    >>> y, (h, c) = lstm(torch.zeros(5, 2, 3))
    >>> y.sum().backward()
    >>> lstm.weight_hh_l0.grad.shape
    torch.Size([16, 4])
    """

    _served = models.LSTM

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0, *,
        norm: models.Norm = "layer", reverse: bool = False, num_heads: int = 1,
        gate_activation: GateActivation = "sigmoid", peepholes: bool = False, seed: int | None = None,
        rng: np.random.Generator | None = None, device: Any = None, dtype: torch.dtype | None = None,
        engine: str | None = None,
    ) -> None:  # fmt: skip
        self._make(locals())


class GRU(Twin):
    """lnrnn.GRU as a torch module for training, with the same parameters, initial values and results.

    Parameters
    ----------
    input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional
        As in torch.nn.GRU.
    norm, reverse, reset_after
        As in `lnrnn.GRU`.
    seed, rng, device, dtype, engine
        As in `RNN`.
    num_heads, gate_activation, nonlinearity
        As in `lnrnn.GRU`.

    Examples
    --------
    >>> import torch
    >>> import lnrnn.torch
    >>> gru = lnrnn.torch.GRU(3, 4, batch_first=True, seed=0)
    >>> y, h = gru(torch.zeros(2, 5, 3))
    >>> y.shape
    torch.Size([2, 5, 4])
    """

    _served = models.GRU

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, *,
        norm: models.Norm = "layer", reverse: bool = False, reset_after: bool = True, num_heads: int = 1,
        gate_activation: GateActivation = "sigmoid", nonlinearity: Nonlinearity = "tanh",
        seed: int | None = None, rng: np.random.Generator | None = None, device: Any = None,
        dtype: torch.dtype | None = None, engine: str | None = None,
    ) -> None:  # fmt: skip
        self._make(locals())


class LiGRU(Twin):
    """lnrnn.LiGRU as a torch module for training, with the same parameters, initial values and results.

    Parameters
    ----------
    input_size, hidden_size, num_layers, nonlinearity, bias, batch_first, dropout, bidirectional
        As in `lnrnn.LiGRU`.
    norm, reverse, seed, rng, device, dtype, engine
        As in `RNN`.

    Examples
    --------
    >>> import torch
    >>> import lnrnn.torch
    >>> rnn = lnrnn.torch.LiGRU(3, 4, seed=0)
    >>> y, h = rnn(torch.zeros(5, 2, 3))
    >>> y.shape
    torch.Size([5, 2, 4])
    """

    _served = models.LiGRU

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "relu",
        bias: bool = True, batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, *,
        norm: models.Norm = "layer", reverse: bool = False, seed: int | None = None,
        rng: np.random.Generator | None = None, device: Any = None, dtype: torch.dtype | None = None,
        engine: str | None = None,
    ) -> None:  # fmt: skip
        self._make(locals())


class SLSTM(Twin):
    """lnrnn.SLSTM as a torch module for training, with the same parameters, initial values and results.

    Parameters
    ----------
    input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional
        As in torch.nn.LSTM.
    num_heads, norm, reverse, exp_forget, state_dtype
        As in `lnrnn.SLSTM`.
    seed, rng, device, dtype, engine
        As in `RNN`.

    Examples
    --------
    >>> import torch
    >>> import lnrnn.torch
    >>> slstm = lnrnn.torch.SLSTM(3, 8, seed=0)
    >>> y, (h, c, n, m) = slstm(torch.zeros(5, 2, 3))
    >>> y.sum().backward()
    >>> slstm.weight_hh_l0.grad.shape
    torch.Size([32, 2])
    """

    _served = models.SLSTM

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, *,
        num_heads: int = 4, norm: Any = "layer", reverse: bool = False, exp_forget: bool = False,
        state_dtype: StateDtype = "float32", seed: int | None = None,
        rng: np.random.Generator | None = None, device: Any = None, dtype: torch.dtype | None = None,
        engine: str | None = None,
    ) -> None:  # fmt: skip
        self._make(locals())


def from_network(network: models.Model) -> Twin:
    """Return a module of lnrnn.torch with the arguments, parameters and results of a network.

    Parameters
    ----------
    network : lnrnn.RNN, LSTM, GRU, LiGRU or SLSTM
        Its parameters are copied, and statistics of batch norm too, rounded to float32. `lnrnn.from_torch`
        converts the module back.

    Returns
    -------
    RNN, LSTM, GRU, LiGRU or SLSTM of lnrnn.torch
        A module in float32 on the CPU, in training mode, as new modules are.

    Raises
    ------
    TypeError, ValueError
        For other objects, and for networks with zoneout, or with weights of bfloat16 or int8.

    Examples
    --------
    >>> import lnrnn.torch
    >>> network = lnrnn.GRU(3, 4, norm=lnrnn.LayerNormSpec("joint"), seed=0)
    >>> module = lnrnn.torch.from_network(network)
    >>> module.norm == network.norm, [*module.state_dict()] == [*network.state_dict()]
    (True, True)
    """
    cls = next((c for c in (RNN, LSTM, GRU, LiGRU, SLSTM) if isinstance(network, c._served)), None)
    if cls is None:
        do = "lnrnn.from_torch and from_keras convert other modules and state dicts to networks"
        raise bad_type("network", "an RNN, LSTM, GRU, LiGRU or SLSTM of lnrnn", network, do)
    if network.dtype != "float32":
        do = "network.to_dtype('float32') has the weights before rounding"
        raise bad_value("dtype", "'float32' for training", network.dtype, do)
    if any(np.ravel(network.zoneout)):
        raise bad_value("zoneout", "0, as in all modules", network.zoneout, "set network.zoneout = 0")
    arguments: Any = {name: getattr(network, name) for name in architecture(network).arguments}
    module = cls(**arguments, seed=0, device="cpu", dtype=torch.float32)
    module.dropout = network.dropout
    module.load_state_dict(network.state_dict())
    return module
