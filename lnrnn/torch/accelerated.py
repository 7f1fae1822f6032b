"""The base class of accelerated modules of torch.nn, which lnrnn's kernels compute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from ..arguments import Choice
from ..rnn import functional
from ..rnn.architecture import Architecture
from ..rnn.cells import CELLS
from .common import other_system
from .kept import COMPILES, SEQUENCES, STEPS, Keeping, counted, forget
from .twin import ENGINES

Tensor = torch.Tensor
# Attributes of torch.nn's modules on which the lnrnn network of a module depends.
_SIZES = {"bias", "bidirectional", "hidden_size", "input_size", "mode", "num_layers", "proj_size"}
_traced = torch.compiler.is_dynamo_compiling  # faster than torch.compiler.is_compiling


@cache
def _untraced() -> Any:
    """Returns Accelerated.forward with tracing by torch.compile disabled.

    torch.compile does not trace into modules of torch.nn, but would trace this function.
    """
    disable: Any = torch.compiler.disable
    return disable(Accelerated.forward)


def network_of(module: Any, cell: str, input_size: int, **options: Any) -> str:
    """Returns text of functional.described: a network without norm, with the sizes of a torch.nn module.

    Raises ValueError if lnrnn has no such network. cell: the name of lnrnn's cell.
    """
    arguments: dict[str, Any] = dict(num_layers=1, batch_first=False, bidirectional=False, norm=None)
    arguments |= dict(input_size=input_size, hidden_size=module.hidden_size, bias=bool(module.bias))
    return functional.described(Architecture.checked(CELLS[cell], **(arguments | options)))


class Accelerated(Keeping):
    """Base class of accelerated modules. torch_nn.accelerate_module replaces a module's class by a subclass.

    A subclass also derives from a class of torch.nn, and defines the first six methods.
    """

    _names: Any  # (module) -> names of its parameters in lnrnn's order
    _networks_of: Any  # (module) -> texts of `network_of` for its networks; may raise ValueError
    _usual: Any  # () -> text of the network that computes a call with tensors, or None
    # (module) -> (axis of steps, length, size). torch is faster in a call with gradients if x has at most
    # this length on this axis, and fewer elements than this size.
    _small_calls: Any
    _unsupported_arguments: Any  # (x, hx) -> why lnrnn cannot compute the call, or None
    _computed: Any  # (x, hx, parameters) -> the result of a call that lnrnn can compute
    _engine: str | None = None
    _networks: tuple[str, ...] = ()
    _small: tuple[int, int, float] = (0, 0, 0.0)
    # Attributes of torch.nn's modules.
    input_size: int
    hidden_size: int
    bias: bool
    training: bool

    @property
    def engine(self) -> str:
        """The engine of the next call: "lnrnn", the C kernels, or "torch", torch.nn's own forward.

        It is "lnrnn" if all weights are parameters in float32 on the CPU. torch.nn's forward still computes
        calls under autocast, torch.func, forward-mode derivatives and torch.jit.trace. It also computes calls
        with x or states that are empty, or that torch.nn refuses. Small calls with gradients are faster in
        torch, which computes them: `small_calls()` says which. The property may be set. "torch" uses
        torch.nn's forward for all calls. "lnrnn" raises ValueError for calls that the kernels cannot serve.
        None restores the default.
        """
        if self._engine is not None:
            return self._engine
        return "torch" if self._unsupported_parameters(self._parameter_list()) else "lnrnn"

    @engine.setter
    def engine(self, value: str | None) -> None:
        self._engine = Choice(ENGINES).check("engine", value)
        forget(self)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _SIZES and value != getattr(self, name, value) and "_networks" in vars(self):
            raise AttributeError(
                f"{name} must stay {getattr(self, name)!r} in an accelerated module, got {value!r}; call "
                "restore() of the report first"
            )
        super().__setattr__(name, value)

    def __prepare_scriptable__(self) -> Any:
        """torch.jit.script calls this method for each module."""
        raise RuntimeError(
            f"torch.jit.script cannot compile {type(self).__name__} of lnrnn.torch.accelerate: call "
            "restore() of its report first, or use torch.jit.trace"
        )

    def small_calls(self) -> str | None:
        """Returns a text: calls with gradients that torch computes because it is faster. None: no calls."""
        steps, numbers = self._small[1:]
        rows = math.ceil(numbers / self.input_size) - 1
        if rows < 1:
            return None
        return f"up to {rows} sequences" if self._steps else f"up to {steps} steps and {rows} frames"

    def forward(self, input: Any, hx: Any = None) -> Any:
        if not _traced():
            own = vars(self)
            if torch.is_grad_enabled():
                if self._engine is None and self._is_small(input, own["_parameters"]):
                    return self._by_torch(input, hx)
            elif (kept := own.get("_kept")) is not None and COMPILES() is None:
                network = self._usual()
                if network is not None:
                    axes = STEPS if self._steps else SEQUENCES
                    found = kept.call(network, [*own["_parameters"].values()], input, hx, axes)
                    if found is not None:
                        return found
            if COMPILES() is not None:
                return _untraced()(self, input, hx)
        return self._forward(input, hx)

    def _is_small(self, x: Any, parameters: dict[str, Any]) -> bool:
        """Returns whether a call needs gradients and is small enough for torch to be faster."""
        axis, most, numbers = self._small
        if type(x) is not Tensor or axis >= x.dim() or x.shape[axis] > most or x.numel() >= numbers:
            return False
        return x.requires_grad or any(p is not None and p.requires_grad for p in parameters.values())

    def _forward(self, input: Any, hx: Any) -> Any:
        if isinstance(input, torch.fx.Proxy):
            raise RuntimeError(
                f"torch.fx cannot trace {type(self).__name__} of lnrnn.torch.accelerate: call restore() of "
                "its report first"
            )
        if self._engine == "torch":
            return self._by_torch(input, hx)
        parameters: list[Any] = self._parameter_list()
        reason = other_system() or self._unsupported_parameters(parameters)
        reason = reason or self._unsupported_arguments(input, hx)
        if reason and self._engine == "lnrnn":
            raise ValueError(f"engine='lnrnn' cannot serve this call: {reason}")
        given = self._frozen or self._engine or torch.is_grad_enabled() or torch.compiler.is_compiling()
        if reason or not (given or counted(parameters)):  # otherwise each call would pack the weights
            return self._by_torch(input, hx)
        return self._computed(input, hx, parameters)

    def _by_torch(self, input: Any, hx: Any) -> Any:
        """Computes a call with torch.nn's own forward."""
        return super().forward(input, hx)

    def _parameter_list(self) -> list[Tensor | None]:
        own = self._parameters
        return [own.get(name) for name in self._names(self)]

    def _unsupported_parameters(self, parameters: Sequence[Tensor | None]) -> str | None:
        for p in parameters:
            if p is None:
                return "its weights must be parameters, got one that is computed or missing"
            if p.dtype is not torch.float32 or not p.is_cpu:
                return f"its parameters must be torch.float32 on cpu, got {p.dtype} on {p.device}"
        return None

    def _unsupported_states(self, hx: Any, shapes: Sequence[tuple[int, ...]]) -> str | None:
        """Returns the reason why lnrnn cannot take hx, or None. shapes: the required shape of each state."""
        if hx is None:
            return None
        if len(shapes) == 2 and not (isinstance(hx, (tuple, list)) and len(hx) == 2):
            return "hx must be a pair (h, c)"
        for s, shape in zip(hx if len(shapes) == 2 else (hx,), shapes, strict=True):
            if not isinstance(s, Tensor) or s.shape != shape or s.dtype is not torch.float32 or not s.is_cpu:
                return f"states must be of torch.float32 on cpu, of shape {shape}"
        return None
