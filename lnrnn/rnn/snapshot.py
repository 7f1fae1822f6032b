"""What a network computes with at one moment, in one object, and the compiled layers made of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np

from .. import _core
from .._core import Activation, CellKind, CellNorm, NormKind, Placement, Span, WeightType
from .architecture import Architecture
from .sites import norm_sites
from .specs import BatchNormSpec, LayerNormSpec, Overrun
from .statistics import StepStatistics

Array = np.ndarray
Dtype = Literal["float32", "bfloat16", "int8"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
# Bits that what weights of int8 multiply is rounded to: the first if nobody says.
ActivationBits = Literal[14, 8]
ACTIVATION_BITS: tuple[ActivationBits, ...] = get_args(ActivationBits)
LAST_STEP = _core.LAST_STEP  # that a stream counts


def frozen(array: Array) -> Array:
    array.setflags(write=False)
    return array


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One version of a network: its parameters by name, statistics by suffix, overrun, dtype, with "int8" the
    activation bits, zoneout, a rate for each state, or () for none, and dropout, a rate between layers, in
    training.

    Nothing in it changes. A network holds its current version in one attribute; whoever sets something puts
    another one there, made by `changed`. So a thread that took a version once computes with that one to the
    end, whatever others set meanwhile, and streams and copies share one, its packed weights included.
    """

    architecture: Architecture
    parameters: Mapping[str, Array]
    statistics: Mapping[str, StepStatistics]
    overrun: Overrun | None
    dtype: Dtype
    zoneout: tuple[float, ...] = ()
    activation_bits: ActivationBits | None = None
    dropout: float = 0.0
    # Made when they are first needed. Two threads may both make them: they are alike, and one of them stays.
    _compiled: _core.Network | None = field(default=None, init=False, repr=False)
    _fingerprint: str | None = field(default=None, init=False, repr=False)

    def changed(self, **what: Any) -> Snapshot:
        return replace(self, **what)

    def state(self) -> dict[str, Array]:
        """Parameters and statistics by name, not copied."""
        found = dict(self.parameters)
        for suffix, statistics in self.statistics.items():
            found |= {name + suffix: array for name, array in statistics.arrays.items()}
        return found

    def refuse_overrun(self, table: Array, what: str = "sequence") -> None:
        """Raises SequenceTooLongError for a sequence that has no statistics. table: of rows.Rows; what: its
        sequences are called."""
        for statistics in self.statistics.values():
            statistics.refuse_overrun(table, self.overrun, what)

    def fingerprint(self) -> str:
        """Of all that results depend on but the kernels: equal for equal networks, in other processes and on
        other machines too. 64 hexadecimal digits of SHA-256."""
        found = self._fingerprint
        if found is None:
            made = self.architecture
            said = {name: value for name, value in sorted(made.arguments.items()) if name != "batch_first"}
            facts: tuple[Any, ...] = made.cell.name, said, self.overrun, self.dtype
            facts += (self.zoneout,) if self.zoneout else ()
            facts += (f"{self.activation_bits} bits",) if self.activation_bits == 8 else ()
            digest = hashlib.sha256(repr(facts).encode())
            for name, array in sorted(self.state().items()):
                digest.update(f"{name} {array.dtype.name} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).data)
            found = digest.hexdigest()
            object.__setattr__(self, "_fingerprint", found)
        return found

    @property
    def refused_from(self) -> int:
        """The first step, from 0, that no sequence may take: under batch norm, as `overrun` says."""
        statistics = self.statistics.get("_l0")
        if statistics is None or self.overrun == "batch" or (self.overrun != "raise" and statistics.known):
            return LAST_STEP
        return min(each.known for each in self.statistics.values())

    def compiled(self) -> _core.Network:
        """The compiled form of every layer and direction."""
        made = self._compiled
        if made is None:
            own = self.architecture
            layers = tuple(map(self._layer, own.suffixes))
            together = self.overrun == "batch"
            made = _core.Network(layers, own.directions, own.batch_first, self.refused_from, together)
            object.__setattr__(self, "_compiled", made)
        return made

    def layers(self) -> tuple[Any, ...]:
        return self.compiled().layers

    @property
    def packed_bytes(self) -> int:
        return sum(layer.nbytes for layer in (self._compiled.layers if self._compiled else ()))

    def _weight_type(self) -> WeightType:
        return WeightType.INT8_OF_8_BITS if self.activation_bits == 8 else WeightType[self.dtype.upper()]

    def _layer(self, suffix: str) -> Any:
        made, norm, own = self.architecture, self.architecture.norm, self.parameters
        options, sides = _layer_options(made)
        given = {side: (own.get(f"{gain}{suffix}"), own.get(f"{bias}{suffix}")) for side, gain, bias in sides}
        of_h, of_c = (*self.zoneout, 0.0, 0.0)[:2]
        layer = _core.Layer(
            CellKind[made.cell.name], own["weight_ih" + suffix], own["weight_hh" + suffix], given,
            inner_bias_ih=own.get("inner_bias_ih" + suffix), inner_bias_hh=own.get("inner_bias_hh" + suffix),
            reverse=suffix.endswith("_reverse"), dtype=self._weight_type(),
            zoneout_h=of_h, zoneout_c=of_c, **options,
        )  # fmt: skip
        if isinstance(norm, BatchNormSpec):
            cut = len(suffix)
            named = {name[:-cut]: value for name, value in own.items() if name.endswith(suffix)}
            layer.set_steps(
                *self.statistics[suffix].folded(named, norm_sites(made.cell, norm), norm.eps, self.overrun)
            )
        return layer

    def __deepcopy__(self, memo: dict[int, Any]) -> Snapshot:
        return self

    def __getstate__(self) -> dict[str, Any]:
        # What is packed is packed for this machine, and made again where it is needed.
        return self.__dict__ | {"_compiled": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for array in self.parameters.values():
            frozen(array)
        self.__dict__["statistics"] = {end: StepStatistics(s.arrays) for end, s in self.statistics.items()}


@lru_cache(maxsize=64)
def _layer_options(
    made: Architecture,
) -> tuple[dict[str, Any], tuple[tuple[str, str | None, str | None], ...]]:
    """What is the same for each layer and direction: the arguments of the compiled layer, and the names of
    gain and bias by side."""
    norm = made.norm
    options: dict[str, Any] = {"norm": NormKind.NONE, "eps": 0.0}
    if isinstance(norm, LayerNormSpec):
        options = {
            "norm": NormKind.LAYER, "eps": norm.eps, "placement": Placement[str(norm.placement).upper()],
            "span": Span[(norm.span or "paper").upper()],
            "cell_norm": CellNorm[(norm.cell or "none").upper()],
        }  # fmt: skip
    elif isinstance(norm, BatchNormSpec):
        options = {
            "norm": NormKind.BATCH, "eps": norm.eps, "placement": Placement[made.cell.placement.upper()],
            "cell_norm": CellNorm.OUT if "c" in made.sides else CellNorm.NONE,
        }  # fmt: skip
    sides = tuple((site.side, site.gain, site.bias) for site in norm_sites(made.cell, norm))
    return {"act": Activation[made.nonlinearity.upper()], **options}, sides
