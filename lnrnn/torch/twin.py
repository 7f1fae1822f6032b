"""The base class of lnrnn.torch's modules, which run on lnrnn's kernels or on torch operations."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Never

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from ..arguments import TAKES, Choice, check
from ..errors import bad_type, bad_value, real, unexpected
from ..rnn import functional, models
from ..rnn.architecture import Architecture
from ..rnn.batches import states
from ..rnn.settings import DROPS_NOTHING, architecture
from ..rnn.specs import Overrun
from ..rnn.statistics import named_shapes
from . import operator, plain
from .common import LayerResult, contradicts_itself, exporting, layer_by_layer, run_packed, through_padding
from .kept import SEQUENCES, Keeping, forget

Tensor = torch.Tensor
ENGINES = ("lnrnn", "torch", None)
TAKES["torch.modules"] = {"engine": Choice(ENGINES)}


def _statistics_names(arch: Architecture) -> list[str]:
    names = named_shapes(arch.sides, 0) if arch.sides else ()
    return [name + end for end in arch.suffixes for name in names]


def _tensor(name: str, value: Any) -> Tensor:
    """Returns an array as a new tensor, in native byte order and C order, which torch requires."""
    array = real(name, value)
    kind = array.dtype.newbyteorder("=") if array.dtype.kind in "biuf" else np.dtype(np.float32)  # bfloat16
    return torch.from_numpy(np.array(array, kind, order="C"))


class Twin(Keeping):
    """Base class of RNN, LSTM, GRU, LiGRU and SLSTM in lnrnn.torch."""

    _served: ClassVar[type[models.Model]]
    architecture: Architecture
    # Set by `_make`. The annotations tell type checkers that these are no tensors or modules.
    input_size: int
    hidden_size: int
    num_layers: int
    nonlinearity: str  # of an RNN
    proj_size: int  # of an LSTM
    norm: Any  # a LayerNormSpec with the cell's defaults, a BatchNormSpec, or None
    bias: bool
    batch_first: bool
    bidirectional: bool
    num_directions: int
    reverse: bool
    num_heads: int  # of an LSTM or GRU
    gate_activation: str  # of an LSTM or GRU
    peepholes: bool  # of an LSTM
    reset_after: bool  # of a GRU
    _engine: str | None = None
    _dropout: float = 0.0
    # Traced code uses only _network (text of functional.described) and _states (the number of states).
    _network: str
    _states: int
    _layers: tuple[tuple[Architecture, str], ...]  # (architecture, text) of each layer as a network

    def _make(self, arguments: dict[str, Any]) -> None:
        """Initialises the module. arguments: the constructor's locals()."""
        names = ("device", "dtype", "seed", "rng", "engine", "dropout")
        device, dtype, seed, rng, engine, dropout = (arguments.pop(name) for name in names)
        del arguments["self"]
        super().__init__()
        (self._engine,) = check("torch.modules", {"engine": engine})
        self.dropout = dropout
        if seed is None and rng is None:
            seed = int(torch.randint(2**62, ()))  # so that torch.manual_seed controls initial values
        # lnrnn's network checks the arguments and draws the initial values.
        model = self._served(**arguments, seed=seed, rng=rng)
        self.architecture = architecture(model)
        self._describe()
        if self.dropout and self.architecture.num_layers == 1:
            warnings.warn(f"dropout={self.dropout} {DROPS_NOTHING}", UserWarning, stacklevel=3)
        for name, value in self.architecture.arguments.items():
            setattr(self, name, value)
        self.num_directions = model.num_directions
        trained = model.parameters()
        for name, value in model.state_dict().items():
            if name in trained:
                own = torch.tensor(value, device=device, dtype=dtype)
                self.register_parameter(name, torch.nn.Parameter(own))
            else:
                kind = torch.int64 if name.startswith("count") else dtype or torch.get_default_dtype()
                self.register_buffer(name, torch.tensor(value, device=device, dtype=kind))

    def _describe(self) -> None:
        arch = self.architecture
        self._network = functional.described(arch)
        self._states = len(arch.cell.state_names)
        widths = arch.input_size, arch.directions * arch.h_width
        alone = [replace(arch, input_size=width, num_layers=1, batch_first=False) for width in widths]
        first, later = ((layer, functional.described(layer)) for layer in alone)
        self._layers = (first, *(later,) * (arch.num_layers - 1))

    @property
    def sides(self) -> Mapping[str, int]:
        """The positions of batch norm in each layer, with the widths of their statistics; empty without batch
        norm."""
        return self.architecture.sides

    @property
    def known_steps(self) -> int | None:
        """The number of time steps with batch norm statistics; None without batch norm."""
        return int((self.get_buffer("count_l0") > 0).sum()) if self.sides else None

    @property
    def overrun(self) -> Overrun | None:
        """The policy for steps without statistics (BatchNormSpec); None without batch norm. Assignable."""
        return self.norm.overrun if self.sides else None

    @overrun.setter
    def overrun(self, value: Overrun) -> None:
        if not self.sides:
            raise ValueError("overrun must not be set without batch norm, which this network does not have")
        self.norm = replace(self.norm, overrun=value)

    @property
    def engine(self) -> str:
        """The engine of the next call: "lnrnn", the C kernels, or "torch", torch's operations.

        It is "lnrnn" if all parameters are float32 and on the CPU. It is "torch" in torch.onnx.export, and
        for batch norm in evaluation with gradients (use torch.no_grad). The property may be set. "torch" uses
        torch's operations for all calls. "lnrnn" raises ValueError for calls that the kernels cannot serve.
        None restores the default.
        """
        if self._engine is not None:
            return self._engine
        return "torch" if self._unsupported(self._parameter_list(), False) else "lnrnn"

    @engine.setter
    def engine(self, value: str | None) -> None:
        (self._engine,) = check("torch.modules", {"engine": value})
        forget(self)

    @property
    def dropout(self) -> float:
        """The rate of dropout between layers in training, in [0, 1), as in torch.nn.LSTM. Assignable."""
        return self._dropout

    @dropout.setter
    def dropout(self, value: float) -> None:
        (self._dropout,) = check("Network.rates", {"dropout": value})

    def _parameter_list(self) -> list[Tensor]:
        # _parameters is read first, because getattr is slower; only getattr returns parametrized parameters.
        own: dict[str, Any] = self._parameters
        return [own[n] if n in own else getattr(self, n) for n in self.architecture.shapes]

    def _statistics(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in _statistics_names(self.architecture)}

    def _unsupported(self, parameters: list[Tensor], inputs_learn: bool) -> str | None:
        """Returns why C cannot compute a call, or None. inputs_learn: x or a state needs gradients."""
        for p in parameters:
            if p.dtype is not torch.float32 or not p.is_cpu:
                return f"its parameters must be torch.float32 on cpu, got {p.dtype} on {p.device}"
        evaluates = self.sides and not self.training and torch.is_grad_enabled()
        if evaluates and (inputs_learn or any(p.requires_grad for p in parameters)):
            why = "it has no derivative of batch norm in evaluation: call it under torch.no_grad()"
            return exporting() or why
        return exporting()

    def lnrnn_arguments(self) -> tuple[str, dict[str, Any]]:
        """Returns (name of lnrnn's class, its constructor's arguments), for lnrnn.from_torch."""
        names = [*self.architecture.arguments]
        if self._dropout and self.num_layers > 1:
            names.append("dropout")
        return self._served.__name__, {name: getattr(self, name) for name in names}

    def __prepare_scriptable__(self) -> Any:
        """torch.jit.script calls this method for each module."""
        raise RuntimeError(
            f"torch.jit.script cannot compile lnrnn.torch.{type(self).__name__}: use torch.jit.trace, or "
            "torch.export"
        )

    # --- a call ---------------------------------------------------------------------------------------------

    def forward(
        self, x: Any, h0: Any = None, lengths: Any = None, resets: Any = None, **unknown: Never
    ) -> tuple[Any, Any]:
        """Runs the network on whole sequences, as a call of lnrnn's class does.

        Parameters
        ----------
        x : tensor or PackedSequence
            (T, B, D), (B, T, D) with batch_first, or (T, D) for one sequence.
        h0 : tensor or pair of tensors, optional
            The initial state, (num_layers * directions, B, P); for an LSTM (h0, c0). Default: zeros.
        lengths : tensor or array, optional
            Steps of each sequence, (B,) integers; not for a PackedSequence. y is 0 past a length.
        resets : tensor or array of bool, optional
            (T, B), with the axes of x: True where the state is set to 0 before a step, as in a call of
            lnrnn's class. No gradient passes a reset. Not for a PackedSequence.

        Returns
        -------
        y : tensor or PackedSequence
            The outputs of the last layer, (T, B, directions * P), with the axes of x. P is an LSTM's
            proj_size, or hidden_size.
        state : tensor or pair of tensors
            The final h, or (h, c), with the shape of h0.

        Raises
        ------
        TypeError, ValueError
            For an argument with a wrong type, shape or dtype, which the message names.
        RuntimeError
            With engine "lnrnn", for second derivatives of batch norm, derivatives in forward mode and
            torch.vmap; use engine="torch".

        Notes
        -----
        In training, `dropout` draws from torch's generator. Both engines draw the same masks.

        Batch norm in training normalises step t with mean and biased variance over the sequences that have a
        step t. Then it updates the running statistics, which evaluation uses as BatchNormSpec describes.

        The engine "lnrnn" uses at most the smaller of torch.get_num_threads() and lnrnn.get_num_threads().
        Under torch.autocast it converts x and the state to float32 and returns float32. y must not be changed
        in place before backward. Second derivatives take the time of engine="torch".
        """
        if unknown:
            raise unexpected("forward", unknown, {"hx": "h0"})
        whole = lengths is None and resets is None and not torch.compiler.is_compiling()
        kept = self._kept if whole else None
        if kept is not None and not (self.training and self._dropout):
            found = kept.call(self._network, [*self._parameters.values()], x, h0, SEQUENCES)
            if found is not None:
                return found  # type: ignore[no-any-return]
        if isinstance(x, PackedSequence):
            return self._run_packed(x, h0, lengths, resets)
        if not isinstance(x, Tensor):
            raise bad_type("x", "a torch tensor or a PackedSequence", x)
        if x.dim() not in (2, 3) or x.shape[-1] != self.input_size:
            raise bad_value("x", f"of two or three dimensions, the last of size {self.input_size}", x)
        unbatched, axis = x.dim() == 2, 0 if self.batch_first else 1  # axis of the sequences
        if unbatched:
            x = x.unsqueeze(axis)
        start = self._start(h0, x, x.shape[axis], unbatched)
        ends = self._lengths(lengths, x.shape[axis], unbatched)
        if resets is not None:
            ends = self._with_resets(ends, resets, x, unbatched)
        y, end = self._computed(x, start, ends)
        if unbatched:
            y, end = y.squeeze(axis), [part.squeeze(1) for part in end]
        return y, end[0] if len(end) == 1 else tuple(end)

    def _computed(
        self, x: Tensor, start: list[Tensor], lengths: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        parameters, statistics = self._parameter_list(), [*self._statistics().values()]
        reason = self._unsupported(parameters, any(t.requires_grad for t in (x, *start)))
        if reason and self._engine == "lnrnn":
            raise ValueError(f"engine='lnrnn' cannot serve this call: {reason}")
        learns = bool(self.sides) and self.training
        if learns and self.norm.max_steps is None and torch.compiler.is_compiling():
            raise ValueError(
                "max_steps must be given for training with batch norm under torch.compile or torch.export, "
                "where buffers cannot grow, got None; give BatchNormSpec(max_steps=...)"
            )
        if reason or self._engine == "torch":
            run = self._plainly
        else:
            if torch.is_autocast_enabled("cpu"):
                x, start = x.float(), [s.float() for s in start]
            for k, t in enumerate((x, *start)):
                if t.dtype is not torch.float32 or not t.is_cpu:
                    name = "x" if k == 0 else f"{self.architecture.cell.state_names[k - 1]}0"
                    raise bad_type(name, "of the parameters' dtype and device, torch.float32 on cpu", t)
            if lengths is not None:
                lengths = lengths.cpu()
            run = self._on_kernels
        if self.training and self._dropout and self.num_layers > 1:
            y, end, seen = self._dropping(run, x, start, lengths, parameters, statistics)
        else:
            y, end, seen = run(self.architecture, self._network, x, start, lengths, parameters, statistics)
        if learns:
            self._learn(seen)
        return y, end

    def _on_kernels(
        self, arch: Architecture, network: str, x: Tensor, start: Sequence[Tensor], lengths: Tensor | None,
        parameters: Sequence[Tensor], statistics: Sequence[Tensor],
    ) -> LayerResult:  # fmt: skip
        whole = self if network == self._network else None  # a single layer caches no weights
        result = operator.run(
            network, x, start, lengths, parameters, statistics, self.overrun, self.training, whole
        )
        return result[0], result[1 : 1 + self._states], result[1 + self._states :]

    def _plainly(
        self, arch: Architecture, network: str, x: Tensor, start: Sequence[Tensor], lengths: Tensor | None,
        parameters: Sequence[Tensor], statistics: Sequence[Tensor],
    ) -> LayerResult:  # fmt: skip
        if not start:
            B = x.shape[0 if arch.batch_first else 1]
            start = [x.new_zeros(len(arch.suffixes), B, width) for width in arch.state_widths]
        named = dict(zip(arch.shapes, parameters, strict=True))
        kept = dict(zip(_statistics_names(arch), statistics, strict=True))
        return plain.run(arch, x, start, lengths, named, kept, self.overrun, self.training)

    def _dropping(
        self, run: Callable[..., LayerResult], x: Tensor, start: Sequence[Tensor], lengths: Tensor | None,
        parameters: Sequence[Tensor], statistics: Sequence[Tensor],
    ) -> LayerResult:  # fmt: skip
        """Calls `run` for each layer in turn, with dropout between. Returns y, last states, statistics."""

        # Masks are drawn time first, even with batch_first, as in torch.nn on a CPU.
        def layer(k: int, x: Tensor, start: Sequence[Tensor], *own: Sequence[Tensor]) -> LayerResult:
            return run(*self._layers[k], x, start, lengths, *own)

        y, end, seen = layer_by_layer(
            x.transpose(0, 1) if self.batch_first else x, start, self._dropout, self.num_layers,
            self.num_directions, (parameters, statistics), layer,
        )  # fmt: skip
        return y.transpose(0, 1).contiguous() if self.batch_first else y, end, seen

    def _run_packed(
        self, x: PackedSequence, h0: Any, lengths: Any, resets: Any
    ) -> tuple[PackedSequence, Any]:
        for name, given in (("lengths", lengths), ("resets", resets)):
            if given is not None:
                raise ValueError(f"{name} must be None with a PackedSequence, which has lengths of its own")
        if wrong := contradicts_itself(x):
            raise ValueError(wrong)
        data, parameters = x.data, self._parameter_list()
        learns = self.training and (bool(self._dropout) or bool(self.sides))
        if self._engine != "torch" and not learns and data.dim() == 2 and data.shape[1] == self.input_size:
            start = self._start(h0, data, int(x.batch_sizes[0]), False)
            if not self._unsupported(parameters, any(t.requires_grad for t in (data, *start))):
                statistics = [*self._statistics().values()]
                found = run_packed(self._network, x, start, parameters, statistics, self.overrun, self)
                if found is not None:
                    return found
        return through_padding(x, self.batch_first, lambda padded, lengths: self.forward(padded, h0, lengths))

    def _start(self, h0: Any, x: Tensor, batch: int, unbatched: bool) -> list[Tensor]:
        """Returns the initial state [h] or [h, c], (num_layers * directions, B, *) each; [] for zeros."""
        if h0 is None:
            return []
        arch = self.architecture
        result = []
        for (name, value), width in zip(states("h0", h0, arch.cell), arch.state_widths, strict=True):
            shape = (len(arch.suffixes), batch, width)
            wanted = (shape[0], shape[2]) if unbatched else shape
            if value is None:
                value = x.new_zeros(wanted)
            elif not isinstance(value, Tensor):
                raise bad_type(name, "a torch tensor", value)
            elif value.shape != wanted:
                raise bad_value(name, f"of shape {tuple(wanted)}", value)
            result.append(value.reshape(shape))
        return result

    def _lengths(self, lengths: Any, batch: int, unbatched: bool) -> Tensor | None:
        """Returns lengths as int64 (B,). The engine checks the values later: tracing has no values."""
        if lengths is None:
            return None
        if not isinstance(lengths, Tensor):
            if torch.compiler.is_compiling():
                lengths = torch.as_tensor(lengths)
            else:
                lengths = torch.from_numpy(np.array(real("lengths", lengths)))
        kind = lengths.dtype
        if (kind.is_floating_point or kind.is_complex or kind is torch.bool) and lengths.numel():
            raise bad_type("lengths", "an array of integers", lengths)
        if lengths.shape != (batch,) and not (unbatched and lengths.dim() == 0):
            raise bad_value("lengths", f"of shape ({batch},), one for each sequence", lengths)
        result: Tensor = lengths.reshape(batch).to(torch.int64)
        return result

    def _with_resets(self, lengths: Tensor | None, resets: Any, x: Tensor, unbatched: bool) -> Tensor:
        """Returns lengths and resets as one int64 tensor (1 + T, B). x: (T, B, D) or (B, T, D)."""
        if not isinstance(resets, Tensor):
            resets = torch.as_tensor(real("resets", resets))
        expected = (x.shape[int(self.batch_first)],) if unbatched else x.shape[:2]
        if resets.dtype is not torch.bool and resets.numel():
            raise bad_type("resets", "an array of booleans", resets)
        if resets.shape != expected:
            raise bad_value("resets", f"of shape {tuple(expected)}, as x", resets)
        resets = (resets[:, None] if unbatched else resets.T if self.batch_first else resets).long()
        if lengths is None:
            lengths = torch.ones_like(resets).sum(0)  # T for each sequence, but symbolic in traces
        return torch.cat([lengths.to(resets.device)[None], resets])

    # --- batch norm's statistics ----------------------------------------------------------------------------

    def _learn(self, seen: list[Tensor]) -> None:
        """Updates the running statistics. seen: the batch's statistics, in the order of the buffers."""
        if self.norm.max_steps is None:
            count = seen[len(named_shapes(self.sides, 0)) - 1]
            steps, have = int(count.count_nonzero()), len(self.get_buffer("count_l0"))
            if steps > have:
                for name, old in self._statistics().items():
                    new = old.new_zeros((steps, *old.shape[1:]))
                    new[: len(old)] = old
                    setattr(self, name, new)
        operator.update_statistics(self._network, [*self._statistics().values()], seen)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        names = [n for own in (*self._parameters, *self._buffers) if (n := prefix + own) in state_dict]
        own = {n: _tensor(n, v) for n in names if isinstance(v := state_dict[n], np.ndarray)}
        state_dict = {**state_dict, **own}
        if self.sides and self.norm.max_steps is None:
            # Without max_steps, buffers get as many steps as the state dict has.
            for name, old in self.named_buffers():
                new = state_dict.get(prefix + name)
                if isinstance(new, Tensor) and new.dim() == old.dim():
                    setattr(self, name, old.new_zeros((len(new), *old.shape[1:])))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        return self.architecture.shown(self.norm, dropout=self._dropout, engine=self._engine)
