"""The norms inside a recurrent cell and their places, dropout and zoneout."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, get_args

from ..errors import bad_type, bad_value, choice, flag, integer, number
from ..state import Named, frozen_by_name
from .cells import Cell

Placement = Literal["joint", "split", "gate", "output"]
CellNorm = Literal["out", "carry"]
Span = Literal["all"]
Overrun = Literal["raise", "last", "mean", "batch"]
PLACEMENTS: tuple[Placement, ...] = ("joint", "split", "gate")  # of RNN, LSTM and GRU
OVERRUNS: tuple[Overrun, ...] = get_args(Overrun)


@frozen_by_name
@dataclass(frozen=True)
class LayerNormSpec(Named):
    """Layer norm inside a cell: where it is, and its options.

    x_ = W_ih x_t and h_ = W_hh h_{t-1} are the two products, with H units for each of G gates. The equations
    are in the docstrings of RNN, LSTM, GRU and SLSTM.

    Parameters
    ----------
    placement : {"split", "joint", "gate", "output"} or None
        "split" normalises x_ and h_ separately. "joint" normalises their sum over all gates, and "gate"
        each gate of the sum. None is the choice of Ba et al. 2016: "joint" for an RNN, else "split". For an
        RNN, "gate" is the same as "joint". An SLSTM has "output" alone: a norm of each head on the way to y.
    cell : {"out", "carry"} or None
        The norm of an LSTM's c. "out" normalises c on its way to h only. "carry" also passes the normalised c
        to the next step. None has no such norm. Other cells take "out" and None, with no effect.
    eps : float
        Added to the variance; at least 0.
    span : {"all"} or None
        For a GRU with placement "split". None has one norm over the 2H units of r and z and one over the H of
        n, on each side, as in the paper. "all" has one norm over all 3H of a side.
    inner_bias : bool
        Whether x_ and h_ have biases before the norms, as those of torch.nn.Linear. They are the parameters
        inner_bias_ih and inner_bias_hh, (G * H,).

    Examples
    --------
    >>> import lnrnn
    >>> lnrnn.LSTM(3, 4, norm=lnrnn.LayerNormSpec("gate", cell="carry")).norm.placement
    'gate'
    """

    placement: Placement | None = None
    cell: CellNorm | None = "out"
    eps: float = 1e-5
    _: KW_ONLY
    span: Span | None = None
    inner_bias: bool = False

    def __post_init__(self) -> None:
        choice("placement", self.placement, (*PLACEMENTS, "output", None))
        choice("cell", self.cell, ("out", "carry", None))
        choice("span", self.span, ("all", None))
        object.__setattr__(self, "eps", number("eps", self.eps, 0))
        object.__setattr__(self, "inner_bias", flag("inner_bias", self.inner_bias))

    def resolved(self, cell: Cell) -> LayerNormSpec:
        """The spec for that cell: placement is a string, and cell is None without a cell state."""
        behind = cell.placement == "output"
        known = ("output",) if behind else PLACEMENTS
        placement = choice("placement", self.placement or cell.placement, known)
        if behind and self.inner_bias:
            raise bad_value("inner_bias", f"False for {cell.name}, whose norm is behind the cell", True)
        if cell.gates == 1 and placement == "gate":
            placement = "joint"
        has_cell_state = cell.states == 2 and not behind
        if self.cell == "carry" and not has_cell_state:
            raise bad_value("cell", f"'out' or None for {cell.name}, which has no norm of a c", self.cell)
        if self.span is not None and (len(cell.spans) == 1 or placement != "split"):
            raise bad_value("span", "None unless a GRU has placement 'split'", self.span)
        return replace(self, placement=placement, cell=self.cell if has_cell_state else None)


@frozen_by_name
@dataclass(frozen=True)
class BatchNormSpec(Named):
    """Batch norm inside a cell, with separate statistics for each time step.

    Parameters
    ----------
    max_steps : int or None
        Limit on the length of training sequences. None has no limit.
    overrun : {"raise", "last", "mean", "batch"}
        The statistics of a step beyond all training sequences: SequenceTooLongError, those of the last known
        step, their mean over time, or those of the current batch.
    momentum : float or None
        Weight of a new batch in the running statistics, in [0, 1]. None pools all batches so far.
    eps : float
        Added to the variance; at least 0.

    Notes
    -----
    Cooijmans et al. 2016, arXiv 1603.09025, use "last".

    Examples
    --------
    >>> import lnrnn
    >>> lnrnn.RNN(3, 4, norm=lnrnn.BatchNormSpec(overrun="last")).overrun
    'last'
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
    """Dropout rates of a training run: the argument `dropout` of `Network.forward_train`.

    A value is set to 0 with the probability of its rate, in [0, 1). The others are multiplied by
    1 / (1 - rate).

    Parameters
    ----------
    between : float
        Rate of the outputs of all layers but the last, drawn for each step, as in torch.nn.LSTM.
    inputs : float
        Rate of the inputs of every layer, drawn once for a sequence.
    states : float
        Rate of h_{t-1} in the product with W_hh, drawn once for a sequence in each layer and direction.

    Notes
    -----
    `between` is from Zaremba et al. 2014, arXiv 1409.2329. `inputs` and `states` are the variational dropout
    of Gal and Ghahramani 2016, arXiv 1512.05287. The h_{t-1} in a GRU's z h_{t-1} and an LSTM's c are not
    dropped. Dropout enlarges the variances that batch norm stores; `calibrate` then measures them without it.

    Examples
    --------
    >>> import numpy as np
    >>> import lnrnn
    >>> spec = lnrnn.DropoutSpec(states=0.5)
    >>> y, h, tape = lnrnn.RNN(3, 4).forward_train(np.ones((5, 2, 3)), dropout=spec, seed=0)
    """

    between: float = 0.0
    _: KW_ONLY
    inputs: float = 0.0
    states: float = 0.0

    def __post_init__(self) -> None:
        for name in ("between", "inputs", "states"):
            object.__setattr__(self, name, number(name, getattr(self, name), 0, below=1))


def dropout_spec(dropout: Any) -> DropoutSpec:
    """The argument `dropout` of forward_train as a spec: a rate between layers, a spec or None."""
    if dropout is None or isinstance(dropout, DropoutSpec):
        return dropout or DropoutSpec()
    return DropoutSpec(number("dropout", dropout, 0, below=1))


def zoneout_rates(zoneout: Any, cell: Cell) -> tuple[float, ...]:
    """The value of `Network.zoneout` as a rate for each state of the cell, or () if all are 0."""
    if cell.parts > 1:
        if number("zoneout", zoneout, 0, below=1):
            raise bad_value("zoneout", f"0 for {cell.name}, whose states belong together", zoneout)
        return ()
    if isinstance(zoneout, (tuple, list)):
        if cell.states == 1 or len(zoneout) != 2:
            expected = "a number, or a pair of them, of h and of c" if cell.states == 2 else "a number"
            raise bad_type("zoneout", f"{expected}, for {cell.name}", zoneout)
        rates = tuple(number(f"zoneout[{k}]", rate, 0, below=1) for k, rate in enumerate(zoneout))
    else:
        rates = (number("zoneout", zoneout, 0, below=1),) * cell.states
    return rates if any(rates) else ()


def norm_spec(norm: Any, cell: Cell) -> LayerNormSpec | BatchNormSpec | None:
    """The argument `norm` of a recurrent model as a spec for that cell, or None."""
    if isinstance(norm, str):
        norm = (
            LayerNormSpec() if choice("norm", norm, ("layer", "batch", None)) == "layer" else BatchNormSpec()
        )
    if isinstance(norm, LayerNormSpec):
        return norm.resolved(cell)
    if isinstance(norm, BatchNormSpec) and cell.placement == "output":
        raise bad_value("norm", f"'layer', None or a LayerNormSpec for {cell.name}", norm)
    if norm is None or isinstance(norm, BatchNormSpec):
        return norm
    raise bad_type("norm", "'layer', 'batch', None, a LayerNormSpec or a BatchNormSpec", norm)
