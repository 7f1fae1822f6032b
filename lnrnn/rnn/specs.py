"""Which norm stands inside a recurrent cell, and where."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, get_args

from ..errors import bad_type, bad_value, choice, flag, integer, number
from ..state import Named, frozen_by_name
from .cells import Cell

Placement = Literal["joint", "split", "gate"]
CellNorm = Literal["out", "carry"]
Span = Literal["all"]
Overrun = Literal["raise", "last", "mean", "batch"]
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)
OVERRUNS: tuple[Overrun, ...] = get_args(Overrun)


@frozen_by_name
@dataclass(frozen=True)
class LayerNormSpec(Named):
    """Layer norm inside a cell. x_ = W_ih x_t and h_ = W_hh h_{t-1} are the two products, of G gates by H
    units.

    placement: which rows are normalised. "split": x_ and h_, each for itself, before they are added. "joint":
    their sum, over all gates at once. "gate": their sum, each gate for itself. None: as in Ba et al. 2016,
    "joint" for an RNN, "split" for the cells with several gates. An RNN has one gate, so "gate" says "joint".
    What stands where is written out in the classes of the cells.
    cell: the norm of a cell state c. "out": on the way to h only, what is carried on is not normalised;
    "carry": the normalised state is carried; None: no such norm. In a cell without a cell state: None or
    "out", which says nothing there.
    eps: inside the root, >= 0.
    span: for a GRU with placement "split". None: one norm over the 2H units of r and z and one over the H of
    n, on each side (the paper's). "all": one norm over all 3H of a side.
    inner_bias: biases inside the norms, as torch.nn.Linear brings them: x_ = W_ih x_t + inner_bias_ih and
    h_ = W_hh h_{t-1} + inner_bias_hh, two more parameters (G*H), whether or not there are biases after the
    norms.
    """

    placement: Placement | None = None
    cell: CellNorm | None = "out"
    eps: float = 1e-5
    _: KW_ONLY
    span: Span | None = None
    inner_bias: bool = False

    def __post_init__(self) -> None:
        choice("placement", self.placement, (*PLACEMENTS, None))
        choice("cell", self.cell, ("out", "carry", None))
        choice("span", self.span, ("all", None))
        object.__setattr__(self, "eps", number("eps", self.eps, 0))
        object.__setattr__(self, "inner_bias", flag("inner_bias", self.inner_bias))

    def resolved(self, cell: Cell) -> LayerNormSpec:
        """What it means in that cell: placement is a string, and cell None where there is no cell state."""
        placement = choice("placement", self.placement or cell.placement, PLACEMENTS)
        if cell.gates == 1 and placement == "gate":
            placement = "joint"
        has_cell_state = cell.states == 2
        if self.cell == "carry" and not has_cell_state:
            raise bad_value(
                "cell", f"'out' or None where there is no cell state, as in {cell.name}", self.cell
            )
        if self.span is not None and (len(cell.spans) == 1 or placement != "split"):
            raise bad_value("span", "None but in a GRU with placement 'split'", self.span)
        return replace(self, placement=placement, cell=self.cell if has_cell_state else None)


@frozen_by_name
@dataclass(frozen=True)
class BatchNormSpec(Named):
    """Batch norm inside a cell, with statistics of its own for every time step.

    max_steps: for how many steps there is room; None: as many as the longest training sequence. overrun: what
    a sequence gets that is longer than any in training: "raise" (SequenceTooLongError), "last" (the
    statistics of the last known step, Cooijmans et al. 2016), "mean" (their mean over time), "batch" (those
    of the batch it came with). momentum: weight of a new batch, in [0, 1], or None for statistics pooled over
    all batches so far. eps: inside the root, >= 0.
    """

    max_steps: int | None = None
    overrun: Overrun = "raise"
    momentum: float | None = 0.1
    eps: float = 1e-5

    def __post_init__(self) -> None:
        if self.max_steps is not None:
            object.__setattr__(self, "max_steps", integer("max_steps", self.max_steps, 1, 2**31 - 1))
        choice("overrun", self.overrun, OVERRUNS)
        if self.momentum is not None:
            object.__setattr__(self, "momentum", number("momentum", self.momentum, 0, 1))
        object.__setattr__(self, "eps", number("eps", self.eps, 0))


@frozen_by_name
@dataclass(frozen=True)
class DropoutSpec(Named):
    """What a training run drops: the argument `dropout` of `Network.forward_train`. Rates in [0, 1): a value
    is dropped with that probability, which sets it to 0; what stays is multiplied by 1 / (1 - rate).

    between: of the outputs of every layer but the last, on their way to the next one, drawn anew for each
    step (Zaremba et al. 2014, arXiv 1409.2329), as `dropout=` of torch.nn.LSTM. inputs: of the inputs of
    every layer, drawn once for all steps of a sequence. states: of h_{t-1} where W_hh takes it, drawn once
    for all steps of a sequence, in each layer and direction. These two are the variational dropout of Gal,
    Ghahramani 2016, arXiv 1512.05287. The h_{t-1} in a GRU's z h_{t-1} and a cell state are not dropped.

    Batch norm's statistics are of what is left, whose variance is larger than without dropout:
    `calibrate` makes them those of a network that drops nothing.
    """

    between: float = 0.0
    _: KW_ONLY
    inputs: float = 0.0
    states: float = 0.0

    def __post_init__(self) -> None:
        for name in ("between", "inputs", "states"):
            object.__setattr__(self, name, number(name, getattr(self, name), 0, below=1))


def dropout_spec(dropout: Any) -> DropoutSpec:
    """The argument `dropout` of forward_train, a rate between layers, a spec or None, as a spec."""
    if dropout is None or isinstance(dropout, DropoutSpec):
        return dropout or DropoutSpec()
    return DropoutSpec(number("dropout", dropout, 0, below=1))


def zoneout_rates(zoneout: Any, cell: Cell) -> tuple[float, ...]:
    """The value of `Network.zoneout` as a rate for each state of the cell, or () where none is kept."""
    if isinstance(zoneout, (tuple, list)):
        if cell.states == 1 or len(zoneout) != 2:
            expected = "a number, or a pair of them, of h and of c" if cell.states == 2 else "a number"
            raise bad_type("zoneout", f"{expected}, for {cell.name}", zoneout)
        rates = tuple(number(f"zoneout[{k}]", rate, 0, below=1) for k, rate in enumerate(zoneout))
    else:
        rates = (number("zoneout", zoneout, 0, below=1),) * cell.states
    return rates if any(rates) else ()


def norm_spec(norm: Any, cell: Cell) -> LayerNormSpec | BatchNormSpec | None:
    """The argument `norm` of a recurrent model, a name, a spec or None, as what it means for that cell."""
    if isinstance(norm, str):
        norm = (
            LayerNormSpec() if choice("norm", norm, ("layer", "batch", None)) == "layer" else BatchNormSpec()
        )
    if isinstance(norm, LayerNormSpec):
        return norm.resolved(cell)
    if norm is None or isinstance(norm, BatchNormSpec):
        return norm
    raise bad_type("norm", "'layer', 'batch', None, a LayerNormSpec or a BatchNormSpec", norm)
