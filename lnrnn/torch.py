"""Trainable twins of lnrnn's recurrent models: torch modules in plain torch operations, for any device and
dtype. Train them with torch, then run `lnrnn.from_torch(module)`. Needs torch; nothing else in lnrnn does.

They have the arguments, the parameters (names, shapes, start values) and the results of lnrnn's classes,
whose docstrings have the equations. They are written to be read and differentiated, not to be fast: one time
step after another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

try:
    import torch
    from torch.nn import functional as F
except ImportError:
    raise ImportError("lnrnn.torch needs PyTorch: pip install torch (https://pytorch.org)") from None

from .errors import bad_type, bad_value, choice
from .rnn import models
from .rnn.architecture import Architecture
from .rnn.batches import as_caller, checked_batch, refuse_packed, states, time_first
from .rnn.cells import Nonlinearity
from .rnn.network import architecture
from .rnn.rows import padded
from .rnn.sites import norm_sites
from .rnn.specs import OVERRUNS, BatchNormSpec, LayerNormSpec, Overrun
from .rnn.statistics import StepStatistics, blank, named_shapes, refuse_beyond

Tensor = torch.Tensor

__all__ = ["GRU", "LSTM", "RNN"]


class Norms:
    """The norms and biases of one layer in one direction, called by side, which sites.py names. Keeps, under
    batch norm, the statistics of the batch."""

    def __init__(self, twin: Twin, suffix: str, alive: Tensor, learning: bool) -> None:
        cut = len(suffix)
        self.spec, self.hidden_size = twin.norm, twin.hidden_size
        self.sites = {site.side: site for site in norm_sites(twin.architecture.cell, twin.norm)}
        self.parameters = {name[:-cut]: p for name, p in twin.named_parameters() if name.endswith(suffix)}
        self.buffers = {name[:-cut]: b for name, b in twin.named_buffers() if name.endswith(suffix)}
        self.overrun, self.known = twin.overrun, 0 if learning else twin.known_steps or 0
        self.alive, self.counts = alive[..., None], alive.sum(1)  # alive: (T, B)
        self.learning, self.step = learning, 0
        self.seen = blank(twin.sides, len(alive)) if learning else {}

    def __call__(self, side: str, a: Tensor, rows: slice = slice(None)) -> Tensor:
        """a (B, width): those rows of a side, normalised, scaled and shifted."""
        site, H = self.sites[side], self.hidden_size
        if isinstance(self.spec, BatchNormSpec):
            a = self._over_batch(side, a)
        elif isinstance(self.spec, LayerNormSpec):
            each = set(site.spans) == {1}  # then some of the rows are some of the spans
            sizes = [H] * (a.shape[-1] // H) if each else [gates * H for gates in site.spans]
            parts = torch.split(a, sizes, -1)
            a = torch.cat([F.layer_norm(part, part.shape[-1:], eps=self.spec.eps) for part in parts], -1)
        if site.gain in self.parameters:
            a = a * self.parameters[site.gain][rows]
        if site.bias in self.parameters:
            a = a + self.parameters[site.bias][rows]
        return a

    def _over_batch(self, side: str, a: Tensor) -> Tensor:
        t, end = self.step, f"_{side}" if side else ""
        if self.learning or (t >= self.known and self.overrun == "batch"):
            alive, n = self.alive[t], self.counts[t]
            mean = torch.where(alive, a, 0).sum(0) / n
            var = torch.where(alive, a - mean, 0).square().sum(0) / n
            if self.learning:
                for array, value in zip(self.seen[side], (mean, var), strict=True):
                    array[t] = value.detach().cpu()
        else:
            found = (self.buffers[f"running_{what}{end}"] for what in ("mean", "var"))
            if t < self.known:
                mean, var = (b[t] for b in found)
            elif self.overrun == "last":
                mean, var = (b[self.known - 1] for b in found)
            else:
                mean, var = (b[: self.known].mean(0) for b in found)
        return (a - mean) / torch.sqrt(var + self.spec.eps)


class Twin(torch.nn.Module):
    """The base of the twins, which say only what one step computes."""

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
    _overrun: Overrun | None

    def _make(self, device: Any, dtype: Any, seed: int | None, **arguments: Any) -> None:
        super().__init__()
        if seed is None:
            seed = int(torch.randint(2**62, ()))  # so that torch.manual_seed decides
        # It checks the arguments, and knows names, shapes and start values.
        model = self._served(**arguments, seed=seed)
        self.architecture = architecture(model)
        for name, value in self.architecture.arguments.items():
            setattr(self, name, value)
        self.num_directions = model.num_directions
        self._overrun = model.overrun
        trained = model.parameters()
        for name, value in model.state_dict().items():
            if name in trained:
                self.register_parameter(
                    name, torch.nn.Parameter(torch.tensor(value, device=device, dtype=dtype))
                )
            else:
                kind = torch.int64 if name.startswith("count") else dtype or torch.get_default_dtype()
                self.register_buffer(name, torch.tensor(value, device=device, dtype=kind))

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
        return self._overrun

    @overrun.setter
    def overrun(self, value: Overrun) -> None:
        if not self.sides:
            raise ValueError("overrun belongs to batch norm, and this network has none")
        self._overrun = choice("overrun", value, OVERRUNS)

    def lnrnn_arguments(self) -> tuple[str, dict[str, Any]]:
        """The name of lnrnn's class, and the arguments of its constructor: for lnrnn.from_torch."""
        arguments = {name: getattr(self, name) for name in self.architecture.arguments}
        if self.sides:
            arguments["norm"] = replace(self.norm, overrun=self._overrun)
        return self._served.__name__, arguments

    def forward(self, x: Tensor, h0: Any = None, lengths: Any = None) -> tuple[Tensor, Any]:
        """As a call of lnrnn's class: x (T, B, D), (B, T, D) with batch_first, or (T, D); h0, or with a cell
        state (h0, c0); lengths (B,), integers. -> y, and h or (h, c).

        Under batch norm, in training, a step is normalised with the mean and biased variance of the sequences
        that live at it, and the running statistics are updated; in evaluation with the running ones, as
        BatchNormSpec says.
        """
        if not isinstance(x, Tensor):
            refuse_packed(x, self.batch_first)
            raise bad_type("x", "a torch tensor", x)
        if x.dim() not in (2, 3) or x.shape[-1] != self.input_size:
            raise bad_value("x", f"of two or three dimensions, the last of size {self.input_size}", x)
        without = np.empty((*x.shape[:-1], 0), np.float32)  # the shape of x, to check the lengths against
        _, ends, unbatched = checked_batch(
            without, lengths.cpu() if isinstance(lengths, Tensor) else lengths, 0, self.batch_first
        )
        x = time_first(x, unbatched, self.batch_first)
        T, B, _ = x.shape
        ends = np.full(B, T) if ends is None else ends
        learning = bool(self.sides) and self.training
        self._refuse(ends, T, B, learning)
        lengths = torch.from_numpy(ends).to(x.device)
        times = torch.arange(T, device=x.device)[:, None]
        alive = times < lengths  # (T, B)
        backwards = torch.where(alive, lengths - 1 - times, times)[..., None]
        x = torch.where(alive[..., None], x, 0)  # what lies past a length may be anything, NaN too
        start = self._start(h0, x, unbatched)
        found, norms = [], []
        for k, suffix in enumerate(self.architecture.suffixes):
            d = k % self.num_directions
            if d == 0:
                inputs, outputs = x, []
            norms.append(Norms(self, suffix, alive, learning))
            own = inputs.gather(0, backwards.expand_as(inputs)) if d else inputs
            y, end = self._layer(own, [s[k] for s in start], norms[-1], int(ends.max(initial=0)))
            outputs.append(y.gather(0, backwards.expand_as(y)) if d else y)
            found.append(end)
            x = torch.cat(outputs, -1)
        if learning:
            self._learn(norms)
        end = [torch.stack(part) for part in zip(*found, strict=True)]
        if unbatched:
            end = [part[:, 0] for part in end]
        y = as_caller(x, unbatched, self.batch_first)
        return y, end[0] if len(end) == 1 else tuple(end)

    def _refuse(self, ends: np.ndarray, T: int, B: int, learning: bool) -> None:
        """Raises SequenceTooLongError for a sequence that has no statistics, or for those of which there is
        no room."""
        table = padded(ends, T, B).table
        if learning:
            refuse_beyond(self.norm.max_steps, table)
        elif self.sides:
            self._statistics("_l0").refuse_overrun(table, self._overrun)

    def _start(self, h0: Any, x: Tensor, unbatched: bool) -> list[Tensor]:
        """What an argument says of h, or of h and c: (num_layers * directions, B, H), zeros for None."""
        shape = (len(self.architecture.suffixes), x.shape[1], self.hidden_size)
        if h0 is None:
            h0 = (None, None) if self.architecture.cell.states == 2 else None
        found = []
        for name, value in states("h0", h0, self.architecture.cell):
            if value is None:
                value = x.new_zeros(shape)
            elif not isinstance(value, Tensor):
                raise bad_type(name, "a torch tensor", value)
            elif value.shape != (wanted := (shape[0], shape[2]) if unbatched else shape):
                raise bad_value(name, f"of shape {tuple(wanted)}", value)
            found.append(value.reshape(shape))
        return found

    def _layer(self, x: Tensor, state: list[Tensor], norms: Norms, steps: int) -> tuple[Tensor, list[Tensor]]:
        """One layer in one direction, which has been turned round already: x (T, B, D) -> y (T, B, H), last
        states (B, H)."""
        p = norms.parameters
        x_ = F.linear(x, p["weight_ih"], p.get("inner_bias_ih"))
        found = []
        for t in range(steps):
            norms.step, alive = t, norms.alive[t]
            h_ = F.linear(state[0], p["weight_hh"], p.get("inner_bias_hh"))
            new = self._step(x_[t], h_, state, norms)
            state = [torch.where(alive, n, old) for n, old in zip(new, state, strict=True)]
            found.append(torch.where(alive, new[0], 0))
        blank_steps = x.new_zeros(len(x) - steps, x.shape[1], self.hidden_size)
        return torch.cat([torch.stack(found), blank_steps]) if found else blank_steps, state

    def _step(self, x_: Tensor, h_: Tensor, state: list[Tensor], norm: Norms) -> list[Tensor]:
        """x_, h_: the two products (B, gates * H) -> the next state."""
        raise NotImplementedError

    def _sum(self, x_: Tensor, h_: Tensor, norm: Norms) -> Tensor:
        """What all gates of a cell are functions of, where they are functions of one sum."""
        return norm("", x_ + h_) if "" in norm.sites else norm("ih", x_) + norm("hh", h_)

    # --- batch norm's statistics ----------------------------------------------------------------------------

    def _statistics(self, suffix: str) -> StepStatistics:
        names = named_shapes(self.sides, 0)
        return StepStatistics(
            {
                n: getattr(self, n + suffix).cpu().numpy().astype(np.int64 if n == "count" else float)
                for n in names
            }
        )

    def _learn(self, norms: list[Norms]) -> None:
        for suffix, norm in zip(self.architecture.suffixes, norms, strict=True):
            norm.seen["count"] = norm.counts.cpu().numpy()
            for name, value in self._statistics(suffix).updated(norm.seen, self.norm.momentum).arrays.items():
                old = getattr(self, name + suffix)
                setattr(self, name + suffix, torch.from_numpy(value.copy()).to(old.device, old.dtype))

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        if self.sides and self.norm.max_steps is None:
            # The statistics are as long as the longest training sequence was.
            for name, old in self.named_buffers():
                new = state_dict.get(prefix + name)
                if isinstance(new, Tensor) and new.dim() == old.dim():
                    setattr(self, name, old.new_zeros((len(new), *old.shape[1:])))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        named = [f"{name}={getattr(self, name)!r}" for name in list(self.architecture.arguments)[2:]]
        return ", ".join([str(self.input_size), str(self.hidden_size), *named])


class RNN(Twin):
    """lnrnn.RNN, trainable. device, dtype: of the parameters, torch's defaults if not given. seed: as
    lnrnn's, the same weights; None: torch's generator decides."""

    _served = models.RNN

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: Nonlinearity = "tanh",
        norm: models.Norm = "layer", bias: bool = True, batch_first: bool = False,
        bidirectional: bool = False, seed: int | None = None, *, device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        self._make(
            device, dtype, seed, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers,
            nonlinearity=nonlinearity, norm=norm, bias=bias, batch_first=batch_first,
            bidirectional=bidirectional,
        )  # fmt: skip

    def _step(self, x_: Tensor, h_: Tensor, state: list[Tensor], norm: Norms) -> list[Tensor]:
        a = self._sum(x_, h_, norm)
        return [a if self.nonlinearity == "identity" else getattr(torch, self.nonlinearity)(a)]


class _Gated(Twin):
    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, norm: models.Norm = "layer",
        bias: bool = True, batch_first: bool = False, bidirectional: bool = False, seed: int | None = None,
        *, device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        self._make(
            device, dtype, seed, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers,
            norm=norm, bias=bias, batch_first=batch_first, bidirectional=bidirectional,
        )  # fmt: skip


class LSTM(_Gated):
    """lnrnn.LSTM, trainable. device, dtype, seed: see RNN."""

    _served = models.LSTM

    def _step(self, x_: Tensor, h_: Tensor, state: list[Tensor], norm: Norms) -> list[Tensor]:
        i, f, g, o = self._sum(x_, h_, norm).chunk(4, -1)
        c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        seen = norm("c", c) if "c" in norm.sites else c
        carry = isinstance(self.norm, LayerNormSpec) and self.norm.cell == "carry"
        return [torch.sigmoid(o) * torch.tanh(seen), seen if carry else c]


class GRU(_Gated):
    """lnrnn.GRU, trainable. device, dtype, seed: see RNN."""

    _served = models.GRU

    def _step(self, x_: Tensor, h_: Tensor, state: list[Tensor], norm: Norms) -> list[Tensor]:
        H = self.hidden_size
        place = "split" if self.sides or self.norm is None else self.norm.placement
        if place == "joint":
            a_rz, a_n = torch.split(norm("", x_ + h_), [2 * H, H], -1)
            r, z = torch.sigmoid(a_rz).chunk(2, -1)
            n = torch.tanh(r * a_n)
        elif place == "gate":
            (x_rz, x_n), (h_rz, h_n) = torch.split(x_, [2 * H, H], -1), torch.split(h_, [2 * H, H], -1)
            r, z = torch.sigmoid(norm("", x_rz + h_rz, slice(2 * H))).chunk(2, -1)
            n = torch.tanh(norm("", x_n + r * h_n, slice(2 * H, None)))
        else:
            X, Y = norm("ih", x_), norm("hh", h_)
            (x_rz, x_n), (h_rz, h_n) = torch.split(X, [2 * H, H], -1), torch.split(Y, [2 * H, H], -1)
            r, z = torch.sigmoid(x_rz + h_rz).chunk(2, -1)
            n = torch.tanh(x_n + r * h_n)
        return [(1 - z) * n + z * state[0]]
