"""Architecture: the immutable description of a network, with names and shapes of its arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

from .._core import Description
from ..arguments import TAKES, Choice, Flag, Integer, Optional, by_name
from ..errors import bad_type, bad_value
from .cells import (
    GATE_ACTIVATIONS,
    NONLINEARITIES,
    OPTIONS,
    STATE_DTYPES,
    Cell,
    GateActivation,
    Nonlinearity,
    StateDtype,
)
from .specs import KINDS, BatchNormSpec, LayerNormSpec, norm_spec

Norm = LayerNormSpec | BatchNormSpec | None
BLOCK = (8, 4)  # (outputs, inputs) of a block of sparse weights, as in include/lnrnn/kernels/table.h
WEIGHTS = ("weight_ih", "weight_hh")  # parameters that may be sparse
LIMIT = 2**31 - 1  # the largest size: products of two sizes do not overflow int64
_SIZE = Integer(1, LIMIT)
TAKES["Network"] = {
    "input_size": _SIZE, "hidden_size": _SIZE, "num_layers": Integer(1, 1024),
    "nonlinearity": Choice(NONLINEARITIES), "bias": Flag(), "batch_first": Flag(), "bidirectional": Flag(),
    "reverse": Flag(), "reset_after": Flag(), "num_heads": _SIZE, "proj_size": Integer(0, LIMIT),
    "gate_activation": Choice(GATE_ACTIVATIONS), "peepholes": Flag(), "exp_forget": Flag(),
    "state_dtype": Choice(STATE_DTYPES), "seed": Optional(Integer(0)),
}  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    """The cell and the checked arguments of a network's constructor. `checked` creates it.

    norm: a spec with the cell's defaults filled in. nonlinearity: "tanh" for a cell without this argument.

    The other fields are derived. arguments: the constructor's arguments by name, in its order,
    without dropout, seed and rng. suffixes: endings of parameter names (_l0_reverse), by layer and direction,
    in the order of the state's first axis. shapes: of all parameters, {name: shape}, layer after layer.

    A side is a position of a norm or bias. "ih" is W_ih x, "hh" is W_hh h, and "" is the sum of both.
    "c" is a cell state, and "y" an SLSTM's output h. sites: maps a side to the names, without suffix, of
    its "gain", "bias", "mean" and "variance". sides: maps a side to the width of batch norm's statistics;
    empty for other norms.
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
    reverse: bool = False
    reset_after: bool = True
    num_heads: int = 1
    proj_size: int = 0
    gate_activation: GateActivation = "sigmoid"
    peepholes: bool = False
    exp_forget: bool = False
    state_dtype: StateDtype = "float32"
    # These fields are not functools.cached_property, which holds a lock before Python 3.12. If another thread
    # forks while the lock is held, the lock is never released in the child process.
    arguments: Mapping[str, Any] = field(init=False, repr=False, compare=False)
    suffixes: tuple[str, ...] = field(init=False, repr=False, compare=False)
    shapes: Mapping[str, tuple[int, ...]] = field(init=False, repr=False, compare=False)
    sites: Mapping[str, Mapping[str, str]] = field(init=False, repr=False, compare=False)
    sides: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        arguments = {name: getattr(self, name) for name in argument_names(self.cell)}
        object.__setattr__(self, "arguments", arguments)
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
    def checked(cls, cell: Cell, *, norm: Any, **arguments: Any) -> Architecture:
        """Returns the architecture for a user's arguments. Raises ValueError or TypeError for wrong ones."""
        for name in {"nonlinearity", "bias"} & arguments.keys():
            value = arguments[name]
            named = isinstance(value, str) and value in KINDS
            if named or isinstance(value, (LayerNormSpec, BatchNormSpec)):
                raise bad_type(name, "no norm", value, "give the norm by name, norm=...")
        given = {**DEFAULTS, **by_name("Network", arguments)}
        hidden_size, num_heads, proj_size = (given[n] for n in ("hidden_size", "num_heads", "proj_size"))
        if cell.gates * hidden_size * max(hidden_size, given["input_size"]) > 2**40:
            raise bad_value(
                "hidden_size", "such that a weight matrix has at most 2**40 elements", hidden_size
            )
        if given["bidirectional"] and given["reverse"]:
            raise bad_value("reverse", "False with bidirectional=True", True)
        if hidden_size % num_heads:
            hint = "it is 4 by default" if cell.name == "SLSTM" else ""
            raise bad_value("num_heads", f"a divisor of hidden_size {hidden_size}", num_heads, hint)
        if proj_size >= hidden_size:
            raise bad_value("proj_size", f"smaller than hidden_size {hidden_size}", proj_size)
        if proj_size and num_heads > 1:
            raise bad_value("proj_size", f"0 with num_heads {num_heads}", proj_size)
        norm = norm_spec(norm, cell)
        if hasattr(norm, "bias"):
            given["bias"] = given["bias"] and norm.bias
            norm = replace(norm, bias=given["bias"])
        if not given["reset_after"] and isinstance(norm, LayerNormSpec):
            if norm.placement != "split":
                raise bad_value("reset_after", f"True with placement {norm.placement!r}", False)
            if norm.span is not None:
                raise bad_value("reset_after", f"True with span {norm.span!r}", False)
        if given["gate_activation"] != "sigmoid" and norm is not None:
            raise bad_value("gate_activation", "'sigmoid' with a norm", given["gate_activation"])
        return cls(cell, norm=norm, **given)

    def __str__(self) -> str:
        return f"{self.cell.name}({self.shown(self.norm)})"

    def shown(self, norm: Norm, **more: Any) -> str:
        """Returns constructor arguments as text for reprs, without default values, but always with the norm.

        norm: the norm with the current `overrun`. more: further arguments, shown if true.
        """
        kind = self.norm_kind
        named = {name: v for name, v in self.stated.items() if name not in USUAL or v != USUAL[name]}
        named |= {"norm": kind if norm == norm_spec(kind, self.cell) else norm}
        named |= {name: value for name, value in more.items() if value}
        sizes = [str(named.pop(name)) for name in ("input_size", "hidden_size")]
        return ", ".join([*sizes, *(f"{name}={value!r}" for name, value in named.items())])

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def reversed(self) -> tuple[bool, ...]:
        """Whether each layer and direction reads sequences from the last step."""
        return ((False, True) if self.bidirectional else (self.reverse,)) * self.num_layers

    @property
    def stated(self) -> dict[str, Any]:
        """The arguments stored in files: those with default values only if cell.written lists them."""
        usual = {n: v for n, v in DEFAULTS.items() if n not in self.cell.written}
        return {n: v for n, v in self.arguments.items() if n not in usual or v != usual[n]}

    @property
    def h_width(self) -> int:
        """The width of h, and of y in one direction: proj_size, or hidden_size."""
        return self.proj_size or self.hidden_size

    @property
    def widths(self) -> tuple[int, ...]:
        """The width of each state array in C: h, or h and the cell state (an SLSTM's c, n and m joined)."""
        return (self.h_width, self.cell.parts * self.hidden_size)[: self.cell.states]

    @property
    def state_widths(self) -> tuple[int, ...]:
        """The width of each state array in Python: h, c and so on."""
        return self.h_width, *(self.hidden_size for _ in self.cell.state_names[1:])

    @property
    def norm_kind(self) -> str | None:
        """The norm's name in arguments and files: "layer", "rms", "batch" or None."""
        return next((name for name, spec in KINDS.items() if type(self.norm) is spec), None)

    @property
    def batch_norm(self) -> BatchNormSpec | None:
        """The norm if it is batch norm, else None."""
        return self.norm if isinstance(self.norm, BatchNormSpec) else None

    def configuration(self, dtype: str, overrun: str | None) -> dict[str, Any]:
        """Returns the JSON configuration of a model file. file_format.architecture_of reads it back."""
        norm: dict[str, Any] | None = None
        if self.norm is not None:
            norm = {"kind": self.norm_kind, **vars(self.norm)}
            norm.pop("bias", None)  # the network's argument `bias` has this value
            norm |= {"overrun": overrun} if self.batch_norm else {}
        return {"dtype": dtype, **self.stated, "cell": self.cell.name, "norm": norm}

    def description(self, dtype: str, overrun: str | None, **options: Any) -> Description:
        """Returns the configuration as a _core.Description. options: further entries."""
        return Description(json.dumps({**self.configuration(dtype, overrun), **options}))


def suffixes(num_layers: int, bidirectional: bool) -> tuple[str, ...]:
    """Returns the endings of parameter names, by layer and direction in the order of the state's first axis:
    _l0, _l0_reverse, ..."""
    ends = ("", "_reverse") if bidirectional else ("",)
    return tuple(f"_l{k}{end}" for k in range(num_layers) for end in ends)


@lru_cache(maxsize=64)
def vectors(cell: Cell, hidden_size: int, norm: Norm, bias: bool) -> Mapping[str, int]:
    """Returns {name without suffix: length} of the gains and biases of one layer and direction."""
    made = Architecture(cell, hidden_size, hidden_size, 1, "tanh", bias, False, False, norm)
    return {name.removesuffix("_l0"): shape[0] for name, shape in made.shapes.items() if len(shape) == 1}


# Arguments that reprs omit if they have these values. Values of DEFAULTS are omitted too.
USUAL = {"num_layers": 1, "bias": True, "batch_first": False, "bidirectional": False}
# Arguments that older versions lacked. Files, reprs and fingerprints omit them if they have the default
# value.
DEFAULTS = {each.name: each.default for each in fields(Architecture) if each.default is not MISSING}
DEFAULTS["nonlinearity"] = "tanh"


@lru_cache
def argument_names(cell: Cell) -> tuple[str, ...]:
    """Returns the constructor's arguments that are fields of Architecture, in the constructor's order."""
    names = (each.name for each in fields(Architecture) if each.init and each.name != "cell")
    return tuple(name for name in names if name not in OPTIONS or name in cell.options)
