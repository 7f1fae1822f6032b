"""Runs a converted network with lnrnn.reference in float64, to compare it with others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any, NamedTuple

import numpy as np

from .. import reference
from ..importers.weights import Array, Converted, disturbed
from ..rnn.architecture import Architecture
from ..rnn.settings import architecture


@dataclass(frozen=True)
class Leaf:
    """A placeholder for an array in a structure of tuples and lists: y (kind None), h (kind 0) or c (kind 1).

    place: for a state (B, H), the index of layer and direction; None for all, (layers * directions, B, H). A
    slice is for some of these.
    """

    kind: int | None = None
    place: Any = None

    def of(self, y: Any, states: Any) -> Any:
        """Returns the array of this place. states: h, or h and c, (layers * directions, B, H) each."""
        whole = y if self.kind is None else states[self.kind]
        return whole if self.place is None else whole[self.place]


_OPTIONS = "nonlinearity", "num_heads", "reset_after", "gate_activation", "exp_forget", "state_dtype"


class Run(NamedTuple):
    """y: (T, B, directions * H). ends: the last (h,) or (h, c), (layers * directions, B, H) each."""

    y: Array
    ends: tuple[Array, ...]


@dataclass(frozen=True)
class ReferenceNetwork:
    """The architecture of a network, its state dict with lnrnn's names, and its zoneout."""

    arch: Architecture
    state: Mapping[str, Array]
    zoneout: float | tuple[float, float] = 0.0
    _kept: dict[Any, Run] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, converted: Converted) -> ReferenceNetwork:
        state = {name: v.astype(float) if v.dtype.kind == "f" else v for name, v in converted.state.items()}
        return cls(architecture(converted.model()), state, converted.zoneout)

    def disturbed(self, eps: float, rng: np.random.Generator) -> ReferenceNetwork:
        """Returns a copy in which each parameter differs by a random relative eps or -eps."""
        return replace(self, state=disturbed(self.state, eps, rng))

    def forward(self, x: Array, states: Sequence[Array] | None = None, lengths: Array | None = None) -> Run:
        """Runs x (T, B, I). states: initial h, or h and c, (layers * directions, B, *); None for zeros.

        Several calls of a module have the same inputs, and the same result.
        """
        key = tuple(None if a is None else (a.shape, a.tobytes()) for a in (x, lengths, *(states or ())))
        if key not in self._kept:
            self._kept[key] = self._forward(x, states, lengths)
        return self._kept[key]

    def _forward(self, x: Array, states: Sequence[Array] | None, lengths: Array | None) -> Run:
        ends, y = [], np.asarray(x, float)
        call = getattr(reference, self.arch.cell.name.lower())
        with np.errstate(all="ignore"):  # inputs may be NaN, or overflow in a sigmoid
            for k, suffix in enumerate(self.arch.suffixes):
                if k % self.arch.directions == 0:
                    inputs, outputs = y, []
                own, options = self._part(suffix)
                start = () if states is None else [part[k] for part in states]
                names = (f"{name}0" for name in self.arch.cell.state_names)
                options |= dict(zip(names, start, strict=False)) | {"lengths": lengths}
                if self.arch.cell.name == "RNN":
                    result = call(inputs, **own, **options)
                else:
                    result = call(inputs, own, **options)
                outputs.append(result[0])
                ends.append(result[1] if isinstance(result[1], tuple) else (result[1],))
                y = np.concatenate(outputs, axis=-1)
        return Run(y, tuple(np.array(part) for part in zip(*ends, strict=True)))

    def _part(self, suffix: str) -> tuple[dict[str, Array], dict[str, Any]]:
        """Returns the parameters of one layer in one direction, and its options for lnrnn.reference."""
        norm, stated = self.arch.norm, self.arch.stated
        options: dict[str, Any] = {name: stated[name] for name in _OPTIONS if name in stated}
        options |= {"norm": None, "reverse": self.arch.reverse or suffix.endswith("_reverse")}
        own = {name.removesuffix(suffix): v for name, v in self.state.items() if name.endswith(suffix)}
        if self.zoneout not in (0, (0, 0)):
            options["zoneout"] = self.zoneout
        if norm is not None:
            taken = signature(getattr(reference, self.arch.cell.name.lower())).parameters
            options |= {name: value for name, value in vars(norm).items() if name in taken and name != "bias"}
            options["norm"] = self.arch.norm_kind
        if self.arch.batch_norm:
            known = int((own.pop("count") > 0).sum())
            running = {name: own.pop(name)[:known] for name in list(own) if name.startswith("running")}
            result = {
                name.removeprefix("running_mean").lstrip("_"): (mean, running[name.replace("mean", "var")])
                for name, mean in running.items()
                if "mean" in name
            }
            options["statistics"] = result.get("", result)
        return own, options
