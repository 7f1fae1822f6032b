"""The unchanging description of a network: its cell, arguments, and the names and shapes of its arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from typing import Any

from .._core import Description
from ..errors import bad_type, bad_value, choice, flag, integer
from .cells import NONLINEARITIES, STATE_DTYPES, Cell, Nonlinearity, StateDtype
from .specs import BatchNormSpec, LayerNormSpec, norm_spec

Norm = LayerNormSpec | BatchNormSpec | None
LIMIT = 2**31 - 1  # of a size, so that no product of two overflows


@dataclass(frozen=True)
class Architecture:
    """The cell and the checked arguments of a model's constructor. `checked` makes it.

    norm: resolved for the cell. nonlinearity: "tanh" for a cell without a choice.

    The other fields follow from these. arguments: of the model's constructor by name, in its order, without
    dropout, seed and rng; stated: without those of DEFAULTS too. suffixes: the endings of names for each
    layer and direction, in the order of the state's first axis. shapes: of the trainable parameters by name,
    layer after layer.

    A side is a place of a norm or bias. "ih" and "hh" are the products W_ih x and W_hh h. "" is their sum,
    "c" a cell state, "y" an SLSTM's h on its way to y. sites: by side the names, without suffix, of its
    "gain", "bias", "mean" and "variance". sides: the widths of batch norm's statistics in each layer; empty
    for other norms.
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
    num_heads: int = 1
    exp_forget: bool = False
    state_dtype: StateDtype = "float32"
    # Not functools.cached_property: its lock for the class (before Python 3.12) may stay locked in a child
    # that another thread forks.
    arguments: Mapping[str, Any] = field(init=False, repr=False, compare=False)
    stated: Mapping[str, Any] = field(init=False, repr=False, compare=False)
    suffixes: tuple[str, ...] = field(init=False, repr=False, compare=False)
    shapes: Mapping[str, tuple[int, ...]] = field(init=False, repr=False, compare=False)
    sites: Mapping[str, Mapping[str, str]] = field(init=False, repr=False, compare=False)
    sides: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        arguments = {name: getattr(self, name) for name in argument_names(self.cell)}
        usual = {n: v for n, v in DEFAULTS.items() if n != "num_heads" or self.cell.parts == 1}
        stated = {name: v for name, v in arguments.items() if name not in usual or v != usual[name]}
        object.__setattr__(self, "arguments", arguments)
        object.__setattr__(self, "stated", stated)
        table = self.description("float32", "raise").arrays()
        at_sites: dict[int, dict[str, str]] = {}
        for name, _, use, site in table[: len(table) // (self.num_layers * self.directions)]:
            if site >= 0:
                at_sites.setdefault(site, {})[use] = name.removesuffix("_l0")
        sites = {next(iter(names.values())).partition("_")[2]: names for names in at_sites.values()}
        widths = {name: shape[1] for name, shape, use, _ in table if use == "mean"}
        follows = {
            "suffixes": suffixes(self.num_layers, self.bidirectional),
            "shapes": {n: shape for n, shape, use, _ in table if use not in ("mean", "variance", "count")},
            "sites": sites,
            "sides": {side: widths[at["mean"] + "_l0"] for side, at in sites.items() if widths},
        }
        for name, value in follows.items():
            object.__setattr__(self, name, value)

    @classmethod
    def checked(
        cls, cell: Cell, *, input_size: Any, hidden_size: Any, num_layers: Any, nonlinearity: Any = "tanh",
        bias: Any, batch_first: Any, bidirectional: Any, norm: Any, num_heads: Any = 1,
        exp_forget: Any = False, state_dtype: Any = "float32",
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
        num_heads = integer("num_heads", num_heads, 1, LIMIT)
        if hidden_size % num_heads:
            raise bad_value("num_heads", f"a divisor of hidden_size {hidden_size}", num_heads)
        return cls(
            cell, input_size, hidden_size, num_layers, nonlinearity, flag("bias", bias),
            flag("batch_first", batch_first), flag("bidirectional", bidirectional), norm_spec(norm, cell),
            num_heads,
            flag("exp_forget", exp_forget), choice("state_dtype", state_dtype, STATE_DTYPES),
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
    def h_width(self) -> int:
        """The values of h, and of y in each direction."""
        return self.hidden_size

    @property
    def widths(self) -> tuple[int, ...]:
        """The values of each array of a state in the engine: of h, or of h and the cell state."""
        return (self.h_width, self.cell.parts * self.hidden_size)[: self.cell.states]

    @property
    def state_widths(self) -> tuple[int, ...]:
        """The same of each array of the user's state."""
        return self.h_width, *(self.hidden_size for _ in self.cell.state_names[1:])

    @property
    def batch_norm(self) -> BatchNormSpec | None:
        """The norm, if it is batch norm."""
        return self.norm if isinstance(self.norm, BatchNormSpec) else None

    def configuration(self, dtype: str, overrun: str | None) -> dict[str, Any]:
        """The network as JSON has it: pyx/file/model_file.c and file_format.architecture_of read it."""
        norm: dict[str, Any] | None = None
        if self.norm is not None:
            norm = {"kind": "batch" if self.batch_norm else "layer", **vars(self.norm)}
            norm |= {"overrun": overrun} if self.batch_norm else {}
        return {"dtype": dtype, **self.stated, "cell": self.cell.name, "norm": norm}

    def description(self, dtype: str, overrun: str | None, **options: Any) -> Description:
        """For the compiled module. options: more of the configuration."""
        return Description(json.dumps({**self.configuration(dtype, overrun), **options}))


def suffixes(num_layers: int, bidirectional: bool) -> tuple[str, ...]:
    """The endings of names for each layer and direction, in the order of the state's first axis: _l0,
    _l0_reverse, ..."""
    ends = ("", "_reverse") if bidirectional else ("",)
    return tuple(f"_l{k}{end}" for k in range(num_layers) for end in ends)


@lru_cache(maxsize=64)
def vectors(cell: Cell, hidden_size: int, norm: Norm, bias: bool) -> Mapping[str, int]:
    """Length of each gain and bias of one layer in one direction, by name without suffix. norm: resolved for
    the cell."""
    made = Architecture(cell, hidden_size, hidden_size, 1, "tanh", bias, False, False, norm)
    return {name.removesuffix("_l0"): shape[0] for name, shape in made.shapes.items() if len(shape) == 1}


# Arguments that older versions did not have. Files, reprs and fingerprints have them only with another value.
DEFAULTS = {each.name: each.default for each in fields(Architecture) if each.default is not MISSING}


@lru_cache
def argument_names(cell: Cell) -> tuple[str, ...]:
    """The arguments of that cell's model that describe a network, in the constructor's order."""
    names = (each.name for each in fields(Architecture) if each.init and each.name != "cell")
    missing = {"num_heads"} if cell.nonlinear else {"nonlinearity"}
    missing |= {"exp_forget", "state_dtype"} if cell.parts == 1 else set()
    return tuple(name for name in names if name not in missing)
