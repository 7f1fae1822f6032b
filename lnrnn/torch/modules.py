"""RNN, LSTM and GRU as torch modules."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from ..errors import bad_type, bad_value, choice, number, real, unexpected
from ..rnn import functional, models
from ..rnn.architecture import Architecture
from ..rnn.batches import states
from ..rnn.cells import Nonlinearity
from ..rnn.network import DROPS_NOTHING, architecture
from ..rnn.specs import OVERRUNS, Overrun
from ..rnn.statistics import named_shapes
from . import operator, plain
from .packed import through_padding
from .stacked import Found, layer_by_layer

if TYPE_CHECKING:
    from typing_extensions import Never

Tensor = torch.Tensor
ENGINES = ("lnrnn", "torch", None)


def _statistics_names(made: Architecture) -> list[str]:
    names = named_shapes(made.sides, 0) if made.sides else ()
    return [name + end for end in made.suffixes for name in names]


class Twin(torch.nn.Module):
    """The base of the modules."""

    _served: ClassVar[type[models.Model]]
    architecture: Architecture
    # What `_make` sets; torch.nn.Module calls whatever it does not know a tensor or a module.
    input_size: int
    hidden_size: int
    num_layers: int
    nonlinearity: str  # of an RNN
    norm: Any  # a LayerNormSpec, resolved for the cell, a BatchNormSpec, or None
    bias: bool
    batch_first: bool
    bidirectional: bool
    num_directions: int
    _engine: str | None = None
    _dropout: float = 0.0
    _network: str  # and how many states the cell has: what is traced asks for no more
    _states: int
    _layers: tuple[tuple[Architecture, str], ...]  # each as a network of its own, and the text for it

    def _make(
        self, device: Any, dtype: Any, seed: int | None, rng: Any, engine: str | None, dropout: float,
        **arguments: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self._engine = choice("engine", engine, ENGINES)
        self.dropout = dropout
        if seed is None and rng is None:
            seed = int(torch.randint(2**62, ()))  # so that torch.manual_seed decides
        # It checks the arguments, and knows names, shapes and start values.
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
                self.register_parameter(
                    name, torch.nn.Parameter(torch.tensor(value, device=device, dtype=dtype))
                )
            else:
                kind = torch.int64 if name.startswith("count") else dtype or torch.get_default_dtype()
                self.register_buffer(name, torch.tensor(value, device=device, dtype=kind))

    def _describe(self) -> None:
        made = self.architecture
        self._network = functional.described(made)
        self._states = made.cell.states
        widths = made.input_size, made.directions * made.hidden_size
        of_one = [replace(made, input_size=width, num_layers=1, batch_first=False) for width in widths]
        first, later = ((one, functional.described(one)) for one in of_one)
        self._layers = (first, *(later,) * (made.num_layers - 1))

    @property
    def sides(self) -> Mapping[str, int]:
        """What batch norm keeps statistics of in each layer, and how wide; nothing for another norm."""
        return self.architecture.sides

    @property
    def known_steps(self) -> int | None:
        """Batch norm: for how many time steps there are statistics. None without batch norm."""
        return int((self.get_buffer("count_l0") > 0).sum()) if self.sides else None

    @property
    def overrun(self) -> Overrun | None:
        """Batch norm: what happens past the known steps in evaluation; may be set. None without it."""
        return self.norm.overrun if self.sides else None

    @overrun.setter
    def overrun(self, value: Overrun) -> None:
        if not self.sides:
            raise ValueError("overrun belongs to batch norm, and this network has none")
        self.norm = replace(self.norm, overrun=choice("overrun", value, OVERRUNS))

    @property
    def engine(self) -> str:
        """What a call now would compute with: "lnrnn", the C kernels, or "torch", torch's operations.

        "lnrnn" where all parameters are float32 and on the CPU, except for batch norm in evaluation while
        gradients are wanted (use torch.no_grad). It may be set: "torch" forces torch's operations; "lnrnn"
        insists, and a call that the kernels cannot serve raises ValueError; None chooses.
        """
        if self._engine is not None:
            return self._engine
        return "torch" if self._beyond(self._parameter_list(), False) else "lnrnn"

    @engine.setter
    def engine(self, value: str | None) -> None:
        self._engine = choice("engine", value, ENGINES)

    @property
    def dropout(self) -> float:
        """The rate in [0, 1) of what is dropped, in training, from the outputs of all layers but the last, as
        dropout= of torch.nn.LSTM; may be set, and counts from the next call on."""
        return self._dropout

    @dropout.setter
    def dropout(self, value: float) -> None:
        self._dropout = number("dropout", value, 0, below=1)

    def _parameter_list(self) -> list[Tensor]:
        own: dict[str, Any] = (
            self._parameters
        )  # Module.__getattr__ looks there last; a parametrization is not there
        return [own[n] if n in own else getattr(self, n) for n in self.architecture.shapes]

    def _statistics(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in _statistics_names(self.architecture)}

    def _beyond(self, parameters: list[Tensor], inputs_learn: bool) -> str | None:
        """Why the C engine cannot serve a call; None if it can. inputs_learn: gradients of x or h0 are
        wanted."""
        for p in parameters:
            if p.dtype is not torch.float32 or not p.is_cpu:
                return f"it has parameters of {p.dtype} on {p.device}, not of torch.float32 on cpu"
        if not self.sides or self.training or not torch.is_grad_enabled():
            return None
        if inputs_learn or any(p.requires_grad for p in parameters):
            return "it has no derivative of batch norm in evaluation: call it under torch.no_grad()"
        return None

    def lnrnn_arguments(self) -> tuple[str, dict[str, Any]]:
        """The name of lnrnn's class, and the arguments of its constructor: for lnrnn.from_torch."""
        names = [*self.architecture.arguments]
        if self._dropout and self.num_layers > 1:
            names.append("dropout")
        return self._served.__name__, {name: getattr(self, name) for name in names}

    def __prepare_scriptable__(self) -> Any:
        """What torch.jit.script asks of each module."""
        raise RuntimeError(
            f"torch.jit.script cannot compile lnrnn.torch.{type(self).__name__}: use torch.jit.trace, or "
            "torch.export"
        )

    # --- a call ---------------------------------------------------------------------------------------------

    def forward(self, x: Any, h0: Any = None, lengths: Any = None, **unknown: Never) -> tuple[Any, Any]:
        """As a call of lnrnn's class: x (T, B, D), (B, T, D) with batch_first, or (T, D); h0, or with a cell
        state (h0, c0); lengths (B,), integers. -> y, and h or (h, c). x may also be a PackedSequence, without
        lengths: then y is one.

        In training, `dropout` draws from torch's generator, the same masks on both engines.

        Under batch norm, in training, a step is normalised with the mean and biased variance of the sequences
        that live at it, and the running statistics are updated; in evaluation with the running ones, as
        BatchNormSpec says.

        On the C engine (see `engine`): no more threads than torch.get_num_threads() and
        lnrnn.get_num_threads() both allow; under torch.autocast x and the state are taken as float32, and
        float32 comes back; y must not be changed in place before backward; second derivatives take the time
        of engine="torch"; RuntimeError for those of batch norm, derivatives in forward mode and torch.vmap,
        which want engine="torch".
        """
        if unknown:
            raise unexpected("forward", unknown, {"hx": "h0"})
        if isinstance(x, PackedSequence):
            return self._packed(x, h0, lengths)
        if not isinstance(x, Tensor):
            raise bad_type("x", "a torch tensor or a PackedSequence", x)
        if x.dim() not in (2, 3) or x.shape[-1] != self.input_size:
            raise bad_value("x", f"of two or three dimensions, the last of size {self.input_size}", x)
        unbatched, axis = x.dim() == 2, 0 if self.batch_first else 1  # that of the sequences
        if unbatched:
            x = x.unsqueeze(axis)
        start = self._start(h0, x, x.shape[axis], unbatched)
        ends = self._lengths(lengths, x.shape[axis], unbatched)
        y, end = self._computed(x, start, ends)
        if unbatched:
            y, end = y.squeeze(axis), [part.squeeze(1) for part in end]
        return y, end[0] if len(end) == 1 else tuple(end)

    def _computed(
        self, x: Tensor, start: list[Tensor], lengths: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        parameters, statistics = self._parameter_list(), [*self._statistics().values()]
        beyond = self._beyond(parameters, any(t.requires_grad for t in (x, *start)))
        if beyond and self._engine == "lnrnn":
            raise ValueError(f"engine='lnrnn' cannot serve this call: {beyond}")
        learns = bool(self.sides) and self.training
        if learns and self.norm.max_steps is None and torch.compiler.is_compiling():
            raise ValueError(
                "batch norm with max_steps=None cannot be trained under torch.compile or torch.export, where "
                "buffers cannot grow: give BatchNormSpec(max_steps=...)"
            )
        if beyond or self._engine == "torch":
            run = self._plainly
        else:
            if torch.is_autocast_enabled("cpu"):
                x, start = x.float(), [s.float() for s in start]
            for k, t in enumerate((x, *start)):
                if t.dtype is not torch.float32 or not t.is_cpu:
                    name = ("x", "h0", "c0")[k]
                    raise bad_type(name, "of the parameters' dtype and device, torch.float32 on cpu", t)
            if lengths is not None:
                lengths = lengths.cpu()
            run = self._on_engine
        if self.training and self._dropout and self.num_layers > 1:
            y, end, seen = self._dropping(run, x, start, lengths, parameters, statistics)
        else:
            y, end, seen = run(self.architecture, self._network, x, start, lengths, parameters, statistics)
        if learns:
            self._learn(seen)
        return y, end

    def _on_engine(
        self, made: Architecture, network: str, x: Tensor, start: Sequence[Tensor], lengths: Tensor | None,
        parameters: Sequence[Tensor], statistics: Sequence[Tensor],
    ) -> Found:  # fmt: skip
        found = operator.run(network, x, start, lengths, parameters, statistics, self.overrun, self.training)
        return found[0], found[1 : 1 + self._states], found[1 + self._states :]

    def _plainly(
        self, made: Architecture, network: str, x: Tensor, start: Sequence[Tensor], lengths: Tensor | None,
        parameters: Sequence[Tensor], statistics: Sequence[Tensor],
    ) -> Found:  # fmt: skip
        if not start:
            shape = len(made.suffixes), x.shape[0 if made.batch_first else 1], self.hidden_size
            start = [x.new_zeros(shape) for _ in range(self._states)]
        named = dict(zip(made.shapes, parameters, strict=True))
        kept = dict(zip(_statistics_names(made), statistics, strict=True))
        return plain.run(made, x, start, lengths, named, kept, self.overrun, self.training)

    def _dropping(
        self, run: Callable[..., Found], x: Tensor, start: Sequence[Tensor], lengths: Tensor | None,
        parameters: Sequence[Tensor], statistics: Sequence[Tensor],
    ) -> Found:  # fmt: skip
        """What `run` computes, one layer after another, with dropout between them."""

        # Masks are drawn as torch.nn's modules draw them on a CPU: with time first whatever batch_first says.
        def layer(k: int, x: Tensor, start: Sequence[Tensor], *own: Sequence[Tensor]) -> Found:
            return run(*self._layers[k], x, start, lengths, *own)

        y, end, seen = layer_by_layer(
            x.transpose(0, 1) if self.batch_first else x, start, self._dropout, self.num_layers,
            self.num_directions, (parameters, statistics), layer,
        )  # fmt: skip
        return y.transpose(0, 1).contiguous() if self.batch_first else y, end, seen

    def _packed(self, x: PackedSequence, h0: Any, lengths: Any) -> tuple[PackedSequence, Any]:
        if lengths is not None:
            raise ValueError("lengths must be None with a PackedSequence, which has its own")
        return through_padding(x, self.batch_first, lambda padded, lengths: self.forward(padded, h0, lengths))

    def _start(self, h0: Any, x: Tensor, batch: int, unbatched: bool) -> list[Tensor]:
        """What an argument says of h, or of h and c: (num_layers * directions, B, H) each, or nothing for
        zeros."""
        if h0 is None:
            return []
        shape = (len(self.architecture.suffixes), batch, self.hidden_size)
        wanted = (shape[0], shape[2]) if unbatched else shape
        found = []
        for name, value in states("h0", h0, self.architecture.cell):
            if value is None:
                value = x.new_zeros(wanted)
            elif not isinstance(value, Tensor):
                raise bad_type(name, "a torch tensor", value)
            elif value.shape != wanted:
                raise bad_value(name, f"of shape {tuple(wanted)}", value)
            found.append(value.reshape(shape))
        return found

    def _lengths(self, lengths: Any, batch: int, unbatched: bool) -> Tensor | None:
        """(B,) int64. What they may be, the engine looks at: while a call is traced nobody knows."""
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
        found: Tensor = lengths.reshape(batch).to(torch.int64)
        return found

    # --- batch norm's statistics ----------------------------------------------------------------------------

    def _learn(self, seen: list[Tensor]) -> None:
        """Takes in the statistics of a batch: those of each layer and direction, as buffers are ordered."""
        if self.norm.max_steps is None:
            count = seen[len(named_shapes(self.sides, 0)) - 1]
            steps, have = int(count.count_nonzero()), len(self.get_buffer("count_l0"))
            if steps > have:
                for name, old in self._statistics().items():
                    new = old.new_zeros((steps, *old.shape[1:]))
                    new[: len(old)] = old
                    setattr(self, name, new)
        operator.update_statistics(self._network, [*self._statistics().values()], seen)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        if self.sides and self.norm.max_steps is None:
            # The statistics are as long as the longest training sequence was.
            for name, old in self.named_buffers():
                new = state_dict.get(prefix + name)
                if isinstance(new, Tensor) and new.dim() == old.dim():
                    setattr(self, name, old.new_zeros((len(new), *old.shape[1:])))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if "_layers" not in self.__dict__:  # older pickles
            self._describe()

    def extra_repr(self) -> str:
        named = [f"{name}={getattr(self, name)!r}" for name in list(self.architecture.arguments)[2:]]
        if self._dropout:
            named.append(f"dropout={self._dropout!r}")
        if self._engine is not None:
            named.append(f"engine={self._engine!r}")
        return ", ".join([str(self.input_size), str(self.hidden_size), *named])


class RNN(Twin):
    """lnrnn.RNN, trainable: the same arguments in the same order, all of them torch.nn.RNN's but norm, seed
    and rng. device, dtype: of the parameters, torch's defaults if not given. seed, rng: as lnrnn's, the same
    weights; without either torch's generator draws them. engine, dropout: see the properties; UserWarning
    for dropout with one layer, which drops nothing."""

    _served = models.RNN

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: Nonlinearity = "tanh",
        bias: bool = True, batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, *,
        norm: models.Norm = "layer", seed: int | None = None, rng: np.random.Generator | None = None,
        device: Any = None, dtype: torch.dtype | None = None, engine: str | None = None,
    ) -> None:  # fmt: skip
        self._make(
            device, dtype, seed, rng, engine, dropout, input_size=input_size, hidden_size=hidden_size,
            num_layers=num_layers, nonlinearity=nonlinearity, bias=bias, batch_first=batch_first,
            bidirectional=bidirectional, norm=norm,
        )  # fmt: skip


class LSTM(Twin):
    """lnrnn.LSTM, trainable: the same arguments in the same order. device, dtype, seed, rng, engine, dropout:
    see RNN."""

    _served = models.LSTM

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0, *,
        norm: models.Norm = "layer", seed: int | None = None, rng: np.random.Generator | None = None,
        device: Any = None, dtype: torch.dtype | None = None, engine: str | None = None,
    ) -> None:  # fmt: skip
        self._make(
            device, dtype, seed, rng, engine, dropout, input_size=input_size, hidden_size=hidden_size,
            num_layers=num_layers, bias=bias, batch_first=batch_first, bidirectional=bidirectional,
            proj_size=proj_size, norm=norm,
        )  # fmt: skip


class GRU(Twin):
    """lnrnn.GRU, trainable: the same arguments in the same order. device, dtype, seed, rng, engine, dropout:
    see RNN."""

    _served = models.GRU

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, *,
        norm: models.Norm = "layer", seed: int | None = None, rng: np.random.Generator | None = None,
        device: Any = None, dtype: torch.dtype | None = None, engine: str | None = None,
    ) -> None:  # fmt: skip
        self._make(
            device, dtype, seed, rng, engine, dropout, input_size=input_size, hidden_size=hidden_size,
            num_layers=num_layers, bias=bias, batch_first=batch_first, bidirectional=bidirectional, norm=norm,
        )  # fmt: skip
