"""Classes derived from torch.nn's RNN, LSTM and GRU that compute with lnrnn's kernels.

`accelerate_module` sets the class of a module, which keeps its parameters, attributes and hooks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn.utils.rnn import PackedSequence

from ..errors import choice
from ..rnn import functional
from ..rnn.architecture import Architecture
from ..rnn.cells import CELLS
from . import computed, derived, operator
from .common import LayerResult, layer_by_layer, through_padding
from .derived import Like
from .kept import Keeping
from .modules import ENGINES

Tensor = torch.Tensor
_callback = torch._C._dynamo.eval_frame.get_eval_frame_callback  # None: torch.compile does not trace
_jit: Any = torch.jit


def parameter_names(module: Any) -> list[str]:
    """Returns the names of a module's parameters, in lnrnn's order."""
    leaves = ["weight_ih", "weight_hh"]
    leaves += ["weight_hr"] if module.proj_size else []
    leaves += ["bias_ih", "bias_hh"] if module.bias else []
    ends = ("", "_reverse") if module.bidirectional else ("",)
    return [f"{leaf}_l{k}{end}" for k in range(module.num_layers) for end in ends for leaf in leaves]


def other_system() -> str | None:
    """Returns the reason if an active transform of torch is not supported by lnrnn's operators, else None."""
    if torch.is_autocast_enabled("cpu"):
        return "it is under torch.autocast"
    if not torch.compiler.is_compiling():
        if torch._C._are_functorch_transforms_active() or getattr(forward_ad, "_current_level", 0) >= 0:
            return "it is under torch.func or has derivatives in forward mode"
        if _jit.is_tracing():
            return "it is traced by torch.jit"
    return None


@cache
def _untraced() -> Any:
    """Returns Accelerated._forward, with tracing by torch.compile disabled.

    torch.compile does not trace modules of torch.nn, but it would trace functions that such a module calls.
    """
    disable: Any = torch.compiler.disable
    return disable(Accelerated._forward)


def networks(module: torch.nn.RNNBase) -> tuple[str, ...]:
    """Returns texts of four networks: the module's time first and batch first, its first layer's, a later
    layer's.

    Raises ValueError if lnrnn has no such network.
    """
    directions = 2 if module.bidirectional else 1

    def named(input_size: int, num_layers: int, batch_first: bool) -> str:
        return functional.described(
            Architecture.checked(
                CELLS[module.mode.partition("_")[0]], input_size=input_size, hidden_size=module.hidden_size,
                num_layers=num_layers, norm=None, bias=bool(module.bias), batch_first=batch_first,
                nonlinearity="relu" if module.mode == "RNN_RELU" else "tanh",
                bidirectional=bool(module.bidirectional), proj_size=module.proj_size,
            )
        )  # fmt: skip

    whole = [named(module.input_size, module.num_layers, batch_first) for batch_first in (False, True)]
    below = directions * (module.proj_size or module.hidden_size)
    return (*whole, named(module.input_size, 1, False), named(below, 1, False))


class Accelerated(Keeping):
    """The base of the classes of this file, to which `accelerate_module` sets the class of a module."""

    _engine: str | None = None
    _networks: tuple[str, ...]
    # The attributes of torch.nn.RNNBase.
    input_size: int
    hidden_size: int
    proj_size: int
    num_layers: int
    mode: str
    bias: bool
    batch_first: bool
    dropout: float
    bidirectional: bool
    training: bool

    @property
    def engine(self) -> str:
        """The engine of the next call: "lnrnn", the C kernels, or "torch", torch.nn's own forward.

        It is "lnrnn" if all parameters are float32 and on the CPU. torch.nn's forward still computes calls
        under autocast, torch.func, forward-mode derivatives and torch.jit.trace. It also computes calls with
        x or states that are empty, or that torch.nn refuses. The property may be set. "torch" uses torch.nn's
        forward for all calls. "lnrnn" raises ValueError for calls that the kernels cannot serve. None
        restores the default.
        """
        if self._engine is not None:
            return self._engine
        with computed.without_effects(self):
            return "torch" if self._unsupported_parameters(self._parameter_list()) else "lnrnn"

    @engine.setter
    def engine(self, value: str | None) -> None:
        self._engine = choice("engine", value, ENGINES)
        self._forget()

    def __prepare_scriptable__(self) -> Any:
        """torch.jit.script calls this for each module."""
        raise RuntimeError(
            f"torch.jit.script cannot compile {type(self).__name__} of lnrnn.torch.accelerate: call "
            "restore() of its report first, or use torch.jit.trace"
        )

    def forward(self, input: Any, hx: Any = None) -> Any:
        if torch.compiler.is_compiling():
            return self._forward(input, hx)
        if _callback() is not None:
            return _untraced()(self, input, hx)
        kept = self._kept
        if kept is not None and not (self.training and self.dropout):
            found = kept.call(self._networks[self.batch_first], self._parameters, input, hx)
            if found is not None:
                return found
        return self._forward(input, hx)

    def _forward(self, input: Any, hx: Any) -> Any:
        if self._engine == "torch":
            return super().forward(input, hx)
        parameters = self._parameter_list()
        reason = self._unsupported_parameters(parameters) or self._unsupported_arguments(input, hx)
        if reason:
            if self._engine == "lnrnn":
                raise ValueError(f"engine='lnrnn' cannot serve this call: {reason}")
            return super().forward(input, hx)
        start = [] if hx is None else list(hx) if self.mode == "LSTM" else [hx]
        if isinstance(input, PackedSequence):
            return through_padding(
                input, False, lambda x, lengths: self._run(x, start, lengths, False, parameters, input)
            )
        unbatched, axis = input.dim() == 2, 0 if self.batch_first else 1  # the axis of the sequences
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
        """Returns y, and h or (h, c), for a batch. packed: the PackedSequence that was padded to x."""
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

    def _parameter_list(self) -> list[Tensor]:
        if "parametrizations" in self._modules and not computed.fixed(self):
            return computed.as_torch(self, parameter_names(self))
        return [getattr(self, name) for name in parameter_names(self)]

    # --- calls that the kernels do not serve ----------------------------------------------------------------

    def _unsupported_parameters(self, parameters: Sequence[Tensor]) -> str | None:
        for p in parameters:
            if p.dtype is not torch.float32 or not p.is_cpu:
                return f"it has parameters of {p.dtype} on {p.device}, not of torch.float32 on cpu"
        return None

    def _unsupported_arguments(self, x: Any, hx: Any) -> str | None:
        """Returns the reason why lnrnn cannot compute a call with these arguments, or None if it can."""
        system = other_system()
        if system:
            return system
        packed = isinstance(x, PackedSequence)
        data = x.data if packed else x
        if not isinstance(data, Tensor) or data.dim() not in ((2,) if packed else (2, 3)):
            return "x has the wrong number of dimensions"
        if data.shape[-1] != self.input_size or data.dtype is not torch.float32 or not data.is_cpu:
            return f"x must be of torch.float32 on cpu, its last axis of size {self.input_size}"
        if 0 in data.shape:
            return "x has no elements"
        if hx is None:
            return None
        axes: tuple[int, ...] = (self.num_layers * (2 if self.bidirectional else 1),)
        if packed or data.dim() == 3:
            batch = x.batch_sizes[0] if packed else data.shape[0 if self.batch_first else 1]
            axes = *axes, int(batch)
        given = hx if self.mode == "LSTM" else (hx,)
        if self.mode == "LSTM" and not (isinstance(hx, (tuple, list)) and len(hx) == 2):
            return "hx must be a pair (h, c)"
        for s, width in zip(given, (self.proj_size or self.hidden_size, self.hidden_size), strict=False):
            shape = *axes, width
            if not isinstance(s, Tensor) or s.shape != shape or s.dtype is not torch.float32 or not s.is_cpu:
                return f"states must be of torch.float32 on cpu, of shape {shape}"
        return None


class AcceleratedRNN(Accelerated, torch.nn.RNN, metaclass=Like):
    """torch.nn.RNN on lnrnn's kernels: see lnrnn.torch.accelerate."""

    _replaces = torch.nn.RNN


class AcceleratedLSTM(Accelerated, torch.nn.LSTM, metaclass=Like):
    """torch.nn.LSTM on lnrnn's kernels: see lnrnn.torch.accelerate."""

    _replaces = torch.nn.LSTM


class AcceleratedGRU(Accelerated, torch.nn.GRU, metaclass=Like):
    """torch.nn.GRU on lnrnn's kernels: see lnrnn.torch.accelerate."""

    _replaces = torch.nn.GRU


CLASSES: dict[Any, Any] = {cls._replaces: cls for cls in (AcceleratedRNN, AcceleratedLSTM, AcceleratedGRU)}


def base_class(module: torch.nn.Module) -> Any:
    """Returns the class of torch.nn from which a module's class is derived, or None for other modules."""
    return next((base for base in type(module).__mro__ if base in CLASSES), None)


def accelerate_module(module: torch.nn.RNNBase) -> None:
    """Sets the class of a module to one that is derived from it and from a class of this file."""
    names = networks(module)
    derived.set_class(module, CLASSES[base_class(module)])
    module._networks = names


def restore_module(module: torch.nn.RNNBase) -> None:
    derived.restore_class(module)
    for name in ("_networks", "_engine", "_kept", "_frozen"):
        vars(module).pop(name, None)
