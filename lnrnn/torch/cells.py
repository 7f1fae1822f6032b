"""Accelerated RNNCell, LSTMCell and GRUCell: subclasses of torch.nn's that lnrnn's kernels compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import operator
from .accelerated import Accelerated, network_of

Tensor = torch.Tensor


class AcceleratedCell(Accelerated):
    """Base class of accelerated RNNCell, LSTMCell and GRUCell. A call computes one step."""

    _steps = True
    _cell: str  # the name of the cell in lnrnn
    _states = 1
    _nonlinearities: tuple[str, ...] = ("tanh",)
    # The gates; the multiply-adds above which a step with gradients is faster than in torch (Zen 4).
    _gates: int
    _least = 6e6

    @staticmethod
    def _names(module: Any) -> list[str]:
        return ["weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if module.bias else [])]

    @classmethod
    def _networks_of(cls, module: Any) -> tuple[str, ...]:
        kinds = cls._nonlinearities
        return tuple(network_of(module, cls._cell, module.input_size, nonlinearity=kind) for kind in kinds)

    def _usual(self) -> str | None:
        return self._networks[0]

    @classmethod
    def _small_calls(cls, module: Any) -> tuple[int, int, float]:
        I, H = module.input_size, module.hidden_size  # noqa: E741
        return 0, 1 << 30, cls._least * I / (cls._gates * H * (I + H))

    def _computed(self, input: Any, hx: Any, parameters: Sequence[Tensor]) -> Any:
        start = [] if hx is None else [hx] if self._states == 1 else list(hx)
        axes = (0,) if input.dim() == 2 else (0, 1)
        network = self._usual()
        assert network is not None
        x, *start = (t[(None,) * len(axes)] for t in (input, *start))
        _, *end = operator.run(network, x, start, None, parameters, module=self)
        end = [s.squeeze(axes) for s in end]
        return end[0] if len(end) == 1 else tuple(end)

    def _by_torch(self, input: Any, hx: Any) -> Any:
        # With a 2-D state and a 1-D input, torch's LSTMCell and GRUCell raise an error or crash.
        h = hx[0] if self._states == 2 and isinstance(hx, (tuple, list, Tensor)) and len(hx) else hx
        if self._gates > 1 and [getattr(t, "ndim", None) for t in (input, h)] == [1, 2]:
            raise ValueError(f"{self._cell}Cell: Expected hidden to be 1D, as the input, got 2D instead")
        return super()._by_torch(input, hx)

    def _unsupported_arguments(self, x: Any, hx: Any) -> str | None:
        if self._usual() is None:
            return "nonlinearity has no kernel"
        if not isinstance(x, Tensor) or x.dim() not in (1, 2):
            return "x has the wrong number of dimensions"
        if x.shape[-1] != self.input_size or x.dtype is not torch.float32 or not x.is_cpu:
            return f"x must be of torch.float32 on cpu, its last axis of size {self.input_size}"
        if 0 in x.shape:
            return "x has no elements"
        return self._unsupported_states(hx, [(*x.shape[:-1], self.hidden_size)] * self._states)


class AcceleratedRNNCell(AcceleratedCell, torch.nn.RNNCell):
    """torch.nn.RNNCell on lnrnn's kernels: see lnrnn.torch.accelerate."""

    _replaces = torch.nn.RNNCell
    _cell = "RNN"
    _nonlinearities = ("tanh", "relu")
    _gates, _least = 1, 6e7
    nonlinearity: str

    def _usual(self) -> str | None:
        kinds = self._nonlinearities
        return self._networks[kinds.index(self.nonlinearity)] if self.nonlinearity in kinds else None


class AcceleratedLSTMCell(AcceleratedCell, torch.nn.LSTMCell):
    """torch.nn.LSTMCell on lnrnn's kernels: see lnrnn.torch.accelerate."""

    _replaces = torch.nn.LSTMCell
    _cell = "LSTM"
    _states = 2
    _gates = 4


class AcceleratedGRUCell(AcceleratedCell, torch.nn.GRUCell):
    """torch.nn.GRUCell on lnrnn's kernels: see lnrnn.torch.accelerate."""

    _replaces = torch.nn.GRUCell
    _cell = "GRU"
    _gates = 3


CLASSES = AcceleratedRNNCell, AcceleratedLSTMCell, AcceleratedGRUCell
