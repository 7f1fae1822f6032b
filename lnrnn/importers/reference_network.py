"""Runs a converted network with lnrnn.reference in float64, forward and back, to compare it with modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from .. import reference
from ..rnn.architecture import Architecture
from ..rnn.settings import architecture
from ..rnn.specs import LayerNormSpec
from .weights import Array, Converted, disturbed

_FORWARD: dict[str, Any] = {
    "RNN": reference.rnn,
    "LSTM": reference.lstm,
    "GRU": reference.gru,
    "LiGRU": reference.ligru,
    "SLSTM": reference.slstm,
}
_BACKWARD: dict[str, Any] = {
    "RNN": reference.rnn_backward,
    "LSTM": reference.lstm_backward,
    "GRU": reference.gru_backward,
    "LiGRU": reference.ligru_backward,
    "SLSTM": reference.slstm_backward,
}


class Run(NamedTuple):
    """y: (T, B, directions * H). ends: the last (h,) or (h, c), (layers * directions, B, H) each."""

    y: Array
    ends: tuple[Array, ...]
    tapes: list[Any]


@dataclass(frozen=True)
class ReferenceNetwork:
    """The architecture of a network, its state dict with lnrnn's names, and its zoneout."""

    arch: Architecture
    state: Mapping[str, Array]
    zoneout: float | tuple[float, float] = 0.0

    @classmethod
    def of(cls, converted: Converted) -> ReferenceNetwork:
        return cls(architecture(converted.model()), converted.state, converted.zoneout)

    def disturbed(self, eps: float, rng: np.random.Generator) -> ReferenceNetwork:
        """Returns a copy in which each parameter differs by a random relative eps or -eps."""
        return replace(self, state=disturbed(self.state, eps, rng))

    def forward(self, x: Array, states: Sequence[Array] | None = None) -> Run:
        """Runs x (T, B, I). states: initial h, or h and c, (layers * directions, B, *); None for zeros."""
        tapes, ends, y = [], [], np.asarray(x, float)
        call = _FORWARD[self.arch.cell.name]
        with np.errstate(all="ignore"):  # inputs may be NaN, or overflow in a sigmoid
            for k, suffix in enumerate(self.arch.suffixes):
                if k % self.arch.directions == 0:
                    inputs, outputs = y, []
                own, options = self._part(suffix)
                start = () if states is None else [part[k] for part in states]
                names = (f"{name}0" for name in self.arch.cell.state_names)
                options |= dict(zip(names, start, strict=False))
                if self.arch.cell.name == "RNN":
                    result = call(inputs, **own, **options)
                else:
                    result = call(inputs, own, **options)
                outputs.append(result[0])
                ends.append(result[1] if isinstance(result[1], tuple) else (result[1],))
                tapes.append(result[2])
                y = np.concatenate(outputs, axis=-1)
        return Run(y, tuple(np.array(part) for part in zip(*ends, strict=True)), tapes)

    def backward(
        self, run: Run, gy: Array, gends: Sequence[Array]
    ) -> tuple[Array, tuple[Array, ...], dict[str, Array]]:
        """Returns the gradients of x, of the initial states, and of the parameters by name.

        gy, gends: the gradients of run.y and run.ends.
        """
        call, P, D = _BACKWARD[self.arch.cell.name], self.arch.h_width, self.arch.directions
        grads: dict[str, Array] = {}
        gstates = []
        with np.errstate(all="ignore"):
            for k, suffix in reversed(list(enumerate(self.arch.suffixes))):
                d = k % D
                if d == D - 1:
                    gout, gy = gy, np.zeros(1)
                part = gout[..., d * P : (d + 1) * P]
                gx, gstart, result = call(run.tapes[k], part, *(g[k] for g in gends))
                gy = gy + gx
                gstates.append(gstart if isinstance(gstart, tuple) else (gstart,))
                grads |= {name + suffix: value for name, value in result.items()}
        return gy, tuple(np.array(part[::-1]) for part in zip(*gstates, strict=True)), grads

    def _part(self, suffix: str) -> tuple[dict[str, Array], dict[str, Any]]:
        """Returns the parameters of one layer in one direction, and its options for lnrnn.reference."""
        cell, norm = self.arch.cell.name, self.arch.norm
        options: dict[str, Any] = {"norm": None, "reverse": self.arch.reverse or suffix.endswith("_reverse")}
        own = {name.removesuffix(suffix): v for name, v in self.state.items() if name.endswith(suffix)}
        if cell == "SLSTM":
            own_names = ("num_heads", "exp_forget", "state_dtype")
            options |= {name: getattr(self.arch, name) for name in own_names}
            options |= {"norm": "layer", "eps": norm.eps} if norm is not None else {}
            return own, options
        if self.arch.cell.nonlinear:
            options["nonlinearity"] = self.arch.nonlinearity
        if self.arch.num_heads > 1:
            options["num_heads"] = self.arch.num_heads
        if self.zoneout not in (0, (0, 0)):
            options["zoneout"] = self.zoneout
        if not self.arch.reset_after:
            options["reset_after"] = False
        if self.arch.gate_activation != "sigmoid":
            options["gate_activation"] = self.arch.gate_activation
        if isinstance(norm, LayerNormSpec):
            options |= {"norm": "layer", "eps": norm.eps, "placement": norm.placement}
            own_options: dict[str, dict[str, Any]] = {"LSTM": {"cell": norm.cell}, "GRU": {"span": norm.span}}
            options |= own_options.get(cell, {})
        elif norm is not None:
            options |= {"norm": "batch", "eps": norm.eps, "overrun": norm.overrun}
            known = int((own.pop("count") > 0).sum())
            running = {name: own.pop(name)[:known] for name in list(own) if name.startswith("running")}
            result = {
                name.removeprefix("running_mean").lstrip("_"): (mean, running[name.replace("mean", "var")])
                for name, mean in running.items()
                if "mean" in name
            }
            options["statistics"] = result.get("", result)
        return own, options
