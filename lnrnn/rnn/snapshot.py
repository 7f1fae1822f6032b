"""Snapshot: an immutable version of a network, with its packed weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np

from .. import _core
from ..rounding import Rounding
from .architecture import Architecture, Norm
from .specs import BatchNormSpec, Overrun
from .statistics import StepStatistics

Array = np.ndarray
Dtype = Literal["float32", "bfloat16", "int8"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
# Permitted bits of inputs and states with int8 weights. The first value is the default.
ActivationBits = Literal[14, 8]
ACTIVATION_BITS: tuple[ActivationBits, ...] = get_args(ActivationBits)
LAST_STEP = _core.LAST_STEP  # the largest step number of a stream


def frozen(array: Array) -> Array:
    array.setflags(write=False)
    return array


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One version of a network: parameters by name, statistics by suffix, and options.

    zoneout: a rate for each state, or (). activation_bits: as in to_dtype. dropout: rate between layers.
    rounding: the report of to_dtype for these parameters, or None.

    A snapshot never changes. A network refers to its current snapshot, and a setter replaces the snapshot by
    the result of `changed`. So a call uses the same values to its end, even if other threads set new
    values. Streams and copies share a snapshot and its packed weights.
    """

    architecture: Architecture
    parameters: Mapping[str, Array]
    statistics: Mapping[str, StepStatistics]
    overrun: Overrun | None
    dtype: Dtype
    zoneout: tuple[float, ...] = ()
    activation_bits: ActivationBits | None = None
    dropout: float = 0.0
    rounding: Rounding | None = None
    # Both fields are computed on first use. They need no lock, because all threads compute equal values.
    _compiled: _core.Network | None = field(default=None, init=False, repr=False)
    _fingerprint: str | None = field(default=None, init=False, repr=False)

    def changed(self, **fields: Any) -> Snapshot:
        return replace(self, **{"rounding": None} | fields)

    @property
    def norm(self) -> Norm:
        """The norm's spec with the current `overrun`, or None without a norm."""
        norm = self.architecture.norm
        if self.overrun and isinstance(norm, BatchNormSpec):
            return replace(norm, overrun=self.overrun)
        return norm

    def shown(self) -> str:
        """Returns arguments and options as text for reprs, without default values."""
        dtype = "" if self.dtype == "float32" else self.dtype
        rates = self.zoneout[0] if len(self.zoneout) == 1 else self.zoneout
        more = {"activation_bits": self.activation_bits, "dropout": self.dropout, "zoneout": rates}
        return self.architecture.shown(self.norm, dtype=dtype, **more)

    def __str__(self) -> str:
        return f"{self.architecture.cell.name}({self.shown()})"

    def state(self) -> dict[str, Array]:
        """Returns {name: array} of parameters and statistics, not copied."""
        found = dict(self.parameters)
        for suffix, statistics in self.statistics.items():
            found |= {name + suffix: array for name, array in statistics.arrays.items()}
        return found

    def refuse_overrun(self, table: Array, kind: str = "sequence") -> None:
        """Raises SequenceTooLongError if a step lacks statistics and `overrun` does not permit this.

        table: of rows.Rows. kind: "sequence" or "lane", for the message.
        """
        for statistics in self.statistics.values():
            statistics.refuse_overrun(table, self.overrun, kind)

    def fingerprint(self) -> str:
        """Returns a SHA-256 in hexadecimal of all that results depend on, except the kernels.

        Equal networks have equal fingerprints in all processes and on all machines.
        """
        found = self._fingerprint
        if found is None:
            made = self.architecture
            said = {name: value for name, value in sorted(made.stated.items()) if name != "batch_first"}
            said["norm"] = made.norm_kind, vars(made.norm) if made.norm else None
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

    def compiled(self) -> _core.Network:
        """Returns the _core.Network of this snapshot, which holds the packed weights."""
        made = self._compiled
        if made is None:
            description = _description(
                self.architecture, self.overrun, self.dtype, self.zoneout, self.activation_bits
            )
            # C needs only to know which steps have counts. These new arrays are private to the call.
            counts = {
                f"count{suffix}": (np.arange(len(s.count)) < s.known).astype(np.int64)
                for suffix, s in self.statistics.items()
            }
            made = _core.Network(description, self.state() | counts)
            object.__setattr__(self, "_compiled", made)
        return made

    @property
    def packed_bytes(self) -> int:
        return self._compiled.nbytes if self._compiled else 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Snapshot:
        return self

    def __getstate__(self) -> dict[str, Any]:
        # Packed weights depend on the machine, so pickles omit them.
        return self.__dict__ | {"_compiled": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for array in self.parameters.values():
            frozen(array)
        self.__dict__["statistics"] = {end: StepStatistics(s.arrays) for end, s in self.statistics.items()}


def zoneout_entry(made: Architecture, zoneout: tuple[float, ...]) -> Any:
    """Returns zoneout as in a configuration: a number, or a pair for an LSTM."""
    return (zoneout if made.cell.states == 2 else zoneout[0]) if zoneout else 0


@lru_cache(maxsize=64)
def _description(
    made: Architecture,
    overrun: Overrun | None,
    dtype: Dtype,
    zoneout: tuple[float, ...],
    activation_bits: ActivationBits | None,
) -> _core.Description:
    return made.description(
        dtype, overrun, zoneout=zoneout_entry(made, zoneout), activation_bits=activation_bits
    )


def tape_width(made: Architecture) -> int:
    """Returns the number of floats in a tape per step, sequence, layer and direction."""
    return _description(made, None if made.batch_norm is None else "raise", "float32", (), None).tape_width
