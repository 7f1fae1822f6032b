"""The unchanging description of a network: its cell, arguments, and the names and shapes of its arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from ..errors import bad_type, bad_value, choice, flag, integer
from .cells import NONLINEARITIES, Cell, Nonlinearity
from .parameters import suffixes, vectors
from .sites import Norm, norm_sites, statistics_sides
from .specs import BatchNormSpec, LayerNormSpec, norm_spec

LIMIT = 2**31 - 1  # of a size, so that no product of two overflows


@dataclass(frozen=True)
class Architecture:
    """The cell and the checked arguments of a model's constructor. `checked` makes it.

    norm: resolved for the cell. nonlinearity: "tanh" for a cell without a choice.

    The other fields follow from these. arguments: of the model's constructor by name, in its order, without
    dropout, seed and rng. suffixes: the endings of names for each layer and direction, in the order of the
    state's first axis. sides: the widths of batch norm's statistics in each layer, by side; empty for other
    norms. gradients: the names of the gradients from the compiled module, in its order, for each layer and
    direction. shapes: of the trainable parameters by name, layer after layer.
    """

    cell: Cell
    input_size: int
    hidden_size: int
    num_layers: int
    nonlinearity: Nonlinearity
    bias: bool
    batch_first: bool
    bidirectional: bool
    norm: Norm
    # Not functools.cached_property: its lock for the class (before Python 3.12) may stay locked in a child
    # that another thread forks.
    arguments: Mapping[str, Any] = field(init=False, repr=False, compare=False)
    suffixes: tuple[str, ...] = field(init=False, repr=False, compare=False)
    sides: Mapping[str, int] = field(init=False, repr=False, compare=False)
    gradients: tuple[tuple[str, ...], ...] = field(init=False, repr=False, compare=False)
    shapes: Mapping[str, tuple[int, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        follows = {
            "arguments": {name: getattr(self, name) for name in argument_names(self.cell)},
            "suffixes": suffixes(self.num_layers, self.bidirectional),
            "sides": statistics_sides(self.cell, self.norm, self.hidden_size),
        }
        for name, value in follows.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "shapes", self._shapes())
        at_sites = [name for site in norm_sites(self.cell, self.norm) for name in site.parameters if name]
        vectors = (*at_sites, "inner_bias_ih", "inner_bias_hh")
        names = ("weight_ih", "weight_hh", *(name for name in vectors if f"{name}_l0" in self.shapes))
        object.__setattr__(self, "gradients", tuple(tuple(n + s for n in names) for s in self.suffixes))

    @classmethod
    def checked(
        cls, cell: Cell, *, input_size: Any, hidden_size: Any, num_layers: Any, nonlinearity: Any = "tanh",
        bias: Any, batch_first: Any, bidirectional: Any, norm: Any,
    ) -> Architecture:  # fmt: skip
        """The architecture for a user's arguments. Raises ValueError or TypeError for a wrong one."""
        for name, value in (("nonlinearity", nonlinearity), ("bias", bias)):
            named = isinstance(value, str) and value in ("layer", "batch")
            if named or isinstance(value, (LayerNormSpec, BatchNormSpec)):
                raise bad_type(name, "no norm", value, "give the norm by name, norm=...")
        nonlinearity = choice("nonlinearity", nonlinearity, NONLINEARITIES)
        input_size = integer("input_size", input_size, 1, LIMIT)
        hidden_size = integer("hidden_size", hidden_size, 1, LIMIT)
        num_layers = integer("num_layers", num_layers, 1, 1024)
        if cell.gates * hidden_size * max(hidden_size, input_size) > 2**40:
            raise bad_value(
                "hidden_size", "such that a weight matrix has at most 2**40 elements", hidden_size
            )
        return cls(
            cell, input_size, hidden_size, num_layers, nonlinearity, flag("bias", bias),
            flag("batch_first", batch_first), flag("bidirectional", bidirectional), norm_spec(norm, cell),
        )  # fmt: skip

    def __str__(self) -> str:
        """For reprs on one line."""
        kinds = {LayerNormSpec: "layer", BatchNormSpec: "batch"}
        sizes = f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}"
        return f"{self.cell.name}({sizes}, norm={kinds.get(type(self.norm))!r})"

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def batch_norm(self) -> BatchNormSpec | None:
        """The norm, if it is batch norm."""
        return self.norm if isinstance(self.norm, BatchNormSpec) else None

    def _shapes(self) -> Mapping[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        rows = self.cell.gates * self.hidden_size
        of_one = vectors(self.cell, self.hidden_size, self.norm, self.bias)
        for index, suffix in enumerate(self.suffixes):
            wide = self.input_size if index < self.directions else self.directions * self.hidden_size
            found[f"weight_ih{suffix}"] = (rows, wide)
            found[f"weight_hh{suffix}"] = (rows, self.hidden_size)
            found |= {name + suffix: (length,) for name, length in of_one.items()}
        return found


@lru_cache
def argument_names(cell: Cell) -> tuple[str, ...]:
    """The arguments of that cell's model that describe a network, in the constructor's order."""
    names = (each.name for each in fields(Architecture) if each.init and each.name != "cell")
    return tuple(name for name in names if cell.nonlinear or name != "nonlinearity")
