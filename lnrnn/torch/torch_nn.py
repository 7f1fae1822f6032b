"""Accelerated RNN, LSTM and GRU: subclasses of torch.nn's that lnrnn's kernels compute.

`accelerate_module` replaces a module's class. The module keeps its parameters, attributes and hooks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from . import cells, derived, operator
from .accelerated import Accelerated, network_of
from .common import LayerResult, contradicts_itself, layer_by_layer, run_packed, through_padding
from .kept import forget

Tensor = torch.Tensor


class AcceleratedLayer(Accelerated):
    """Base class of AcceleratedRNN, AcceleratedLSTM and AcceleratedGRU."""

    # (gates, steps, multiply-adds): torch trains faster up to these numbers (Zen 4).
    _least: tuple[int, int, float]
    # Attributes of torch.nn.RNNBase.
    proj_size: int
    num_layers: int
    mode: str
    batch_first: bool
    dropout: float
    bidirectional: bool

    @staticmethod
    def _names(module: Any) -> list[str]:
        """Returns the names of a module's parameters in lnrnn's order."""
        leaves = ["weight_ih", "weight_hh"]
        leaves += ["weight_hr"] if module.proj_size else []
        leaves += ["bias_ih", "bias_hh"] if module.bias else []
        ends = ("", "_reverse") if module.bidirectional else ("",)
        return [f"{leaf}_l{k}{end}" for k in range(module.num_layers) for end in ends for leaf in leaves]

    @staticmethod
    def _networks_of(module: Any) -> tuple[str, ...]:
        """Returns texts of `network_of`: the whole module time first, the module batch first, its first layer
        alone, a later layer alone.

        Raises ValueError if lnrnn has no such network.
        """
        cell, kind = module.mode.partition("_")[0], "relu" if module.mode == "RNN_RELU" else "tanh"

        def named(input_size: int, num_layers: int, batch_first: bool) -> str:
            return network_of(
                module, cell, input_size, num_layers=num_layers, batch_first=batch_first, nonlinearity=kind,
                bidirectional=bool(module.bidirectional), proj_size=module.proj_size,
            )  # fmt: skip

        whole = [named(module.input_size, module.num_layers, batch_first) for batch_first in (False, True)]
        below = (2 if module.bidirectional else 1) * (module.proj_size or module.hidden_size)
        return (*whole, named(module.input_size, 1, False), named(below, 1, False))

    @classmethod
    def _small_calls(cls, module: Any) -> tuple[int, int, float]:
        gates, steps, least = cls._least
        I, H = module.input_size, module.hidden_size  # noqa: E741
        return 1 if module.batch_first else 0, steps, least * I / (gates * H * (I + H))

    def _usual(self) -> str | None:
        return None if self.training and self.dropout else self._networks[self.batch_first]

    def _computed(self, input: Any, hx: Any, parameters: Sequence[Tensor]) -> Any:
        start = [] if hx is None else list(hx) if self.mode == "LSTM" else [hx]
        if isinstance(input, PackedSequence):
            if not (self.training and self.dropout):
                found = run_packed(self._networks[0], input, start, parameters, (), None, self)
                if found is not None:
                    return found
            return through_padding(
                input, False, lambda x, lengths: self._run(x, start, lengths, False, parameters, input)
            )
        unbatched, axis = input.dim() == 2, 0 if self.batch_first else 1  # axis of the sequences
        if unbatched:
            input, start = input.unsqueeze(axis), [s.unsqueeze(1) for s in start]
        y, end = self._run(input, start, None, self.batch_first, parameters)
        if unbatched:
            y = y.squeeze(axis)
            end = tuple(s.squeeze(1) for s in end) if isinstance(end, tuple) else end.squeeze(1)
        return y, end

    def _run(
        self, x: Tensor, start: list[Tensor], lengths: Tensor | None, batch_first: bool,
        parameters: Sequence[Tensor], packed: PackedSequence | None = None,
    ) -> tuple[Tensor, Any]:  # fmt: skip
        """Returns y, and h or (h, c). packed: the PackedSequence that was padded to x, or None."""
        if self.training and self.dropout and self.num_layers > 1:

            def layer(k: int, x: Tensor, start: Sequence[Tensor], own: Sequence[Tensor]) -> LayerResult:
                y, *end = operator.run(self._networks[3 if k else 2], x, start, lengths, own)
                return y, end, []

            y, end, _ = layer_by_layer(
                x.transpose(0, 1) if batch_first else x, start, self.dropout, self.num_layers,
                2 if self.bidirectional else 1, (parameters,), layer, packed,
            )  # fmt: skip
            y = y.transpose(0, 1) if batch_first else y
        else:
            y, *end = operator.run(self._networks[batch_first], x, start, lengths, parameters, module=self)
        return y, end[0] if len(end) == 1 else tuple(end)

    def _unsupported_arguments(self, x: Any, hx: Any) -> str | None:
        packed = isinstance(x, PackedSequence)
        data = x.data if packed else x
        if not isinstance(data, Tensor) or data.dim() not in ((2,) if packed else (2, 3)):
            return "x has the wrong number of dimensions"
        if data.shape[-1] != self.input_size or data.dtype is not torch.float32 or not data.is_cpu:
            return f"x must be of torch.float32 on cpu, its last axis of size {self.input_size}"
        if 0 in data.shape:
            return "x has no elements"
        if packed and (wrong := contradicts_itself(x)):
            return wrong
        axes: tuple[int, ...] = (self.num_layers * (2 if self.bidirectional else 1),)
        if packed or data.dim() == 3:
            # A symbolic size must stay symbolic: int(...) would make torch.export fix it.
            batch = int(x.batch_sizes[0]) if packed else data.shape[0 if self.batch_first else 1]
            axes = *axes, batch
        widths = (self.proj_size or self.hidden_size, self.hidden_size)[: 1 + (self.mode == "LSTM")]
        return self._unsupported_states(hx, [(*axes, width) for width in widths])


class AcceleratedRNN(AcceleratedLayer, torch.nn.RNN):
    """torch.nn.RNN on lnrnn's kernels: see lnrnn.torch.accelerate."""

    _replaces = torch.nn.RNN
    _least = 1, 4, 1e7


class AcceleratedLSTM(AcceleratedLayer, torch.nn.LSTM):
    """torch.nn.LSTM on lnrnn's kernels: see lnrnn.torch.accelerate."""

    _replaces = torch.nn.LSTM
    _least = 4, 0, 0.0


class AcceleratedGRU(AcceleratedLayer, torch.nn.GRU):
    """torch.nn.GRU on lnrnn's kernels: see lnrnn.torch.accelerate."""

    _replaces = torch.nn.GRU
    _least = 3, 2, 2e6


_LAYERS = AcceleratedRNN, AcceleratedLSTM, AcceleratedGRU
CLASSES: dict[Any, Any] = {cls._replaces: cls for cls in (*_LAYERS, *cells.CLASSES)}


def base_class(module: torch.nn.Module) -> Any:
    """Returns the torch.nn class from which a module's class derives, or None for other modules."""
    return next((base for base in type(module).__mro__ if base in CLASSES), None)


def parameter_names(module: torch.nn.Module) -> list[str]:
    """Returns the names of a module's parameters in lnrnn's order."""
    found: list[str] = CLASSES[base_class(module)]._names(module)
    return found


def accelerate_module(module: torch.nn.Module) -> None:
    """Lets lnrnn compute a module: replaces its class by a subclass that is also an Accelerated class.

    Raises ValueError if lnrnn has no such network.
    """
    own = CLASSES[base_class(module)]
    networks = own._networks_of(module)
    module.__class__ = derived.derived(type(module), own)
    vars(module).update(_networks=networks, _small=own._small_calls(module))
    forget(module)  # packed weights may remain from before


def restore_module(module: torch.nn.Module) -> None:
    derived.restore_class(module)
    for name in ("_networks", "_small", "_engine", "_kept", "_frozen"):
        vars(module).pop(name, None)
