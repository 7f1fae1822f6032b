"""Options of recurrent networks: norms inside the cell, dropout and zoneout."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from ..arguments import TAKES, Choice, Flag, Integer, Number, Optional, by_name, check
from ..errors import bad_type, bad_value
from .cells import Cell

Placement = Literal["joint", "split", "gate", "input", "output"]
CellNorm = Literal["out", "carry"]
Span = Literal["all"]
Overrun = Literal["raise", "last", "mean", "batch"]
PLACEMENTS: tuple[Placement, ...] = ("joint", "split", "gate", "input")  # of all cells except SLSTM
OVERRUNS: tuple[Overrun, ...] = get_args(Overrun)

_RATE = Number(0, below=1)
TAKES["LayerNormSpec"] = {
    "placement": Choice((*PLACEMENTS, "output", None)), "cell": Choice(("out", "carry", None)),
    "eps": Number(0), "span": Choice(("all", None)), "inner_bias": Flag(),
}  # fmt: skip
TAKES["RMSNormSpec"] = TAKES["LayerNormSpec"] | {"eps": Optional(Number(0)), "bias": Flag()}
TAKES["BatchNormSpec"] = {
    "max_steps": Optional(Integer(1, 2**31 - 1)), "overrun": Choice(OVERRUNS),
    "momentum": Optional(Number(0, 1)), "eps": Number(0),
}  # fmt: skip
TAKES["DropoutSpec"] = {"between": _RATE, "inputs": _RATE, "states": _RATE}
TAKES["Network.rates"] = {"dropout": _RATE, "zoneout": _RATE}


def _check_fields(spec: Any, function: str) -> None:
    """Checks the fields of a new spec, and replaces them by converted values."""
    for name, value in by_name(function, vars(spec)).items():
        object.__setattr__(spec, name, value)


def _call(spec: Any) -> str:
    """Returns the repr of a spec: a constructor call without default arguments."""
    usual = vars(type(spec)())
    given = [f"{name}={value!r}" for name, value in vars(spec).items() if value != usual[name]]
    return f"{type(spec).__name__}({', '.join(given)})"


@dataclass(frozen=True)
class LayerNormSpec:
    """Layer norm inside a cell: its placement and its options.

    x_ = W_ih x_t and h_ = W_hh h_{t-1} are the two products, with H units for each of G gates. The equations
    are in the docstrings of RNN, LSTM, GRU and SLSTM.

    Parameters
    ----------
    placement : {"split", "joint", "gate", "input", "output"} or None
        "split" normalises x_ and h_ separately. "joint" normalises their sum over all gates, and "gate"
        each gate of the sum. "input" normalises x_ alone, in a LiGRU. None is the choice of the papers:
        "joint" for an RNN, "input" for a LiGRU, else "split". For an RNN, "gate" is the same as "joint".
        An SLSTM has "output" alone: a norm of each head of h on its way to y.
    cell : {"out", "carry"} or None
        The norm of an LSTM's c. With "out", h is computed from the normalised c. With "carry", the next step
        also gets the normalised c. None does not normalise c. Other cells ignore "out" and None.
    eps : float
        Added to the variance; at least 0. With 0, rows of equal or subnormal numbers give NaN.
    span : {"all"} or None
        For a GRU with placement "split". None normalises the 2H units of r and z together, and the H of n, in
        x_ and in h_, as the paper does. "all" normalises all 3H units together.
    inner_bias : bool
        Whether biases are added to x_ and h_ before the norms, as torch.nn.Linear does. They are the
        parameters inner_bias_ih and inner_bias_hh, (G * H,).

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above.

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
    __repr__ = _call

    def __post_init__(self) -> None:
        _check_fields(self, type(self).__name__)


@dataclass(frozen=True)
class RMSNormSpec(LayerNormSpec):
    """RMS norm inside a cell: layer norm without the mean, in the same places.

    In the equations, LN(a; g, b) becomes g a / sqrt(mean(a^2) + eps) + b. An SLSTM has no RMS norm.

    Parameters
    ----------
    placement, cell, span, inner_bias
        As in `LayerNormSpec`.
    eps : float or None
        Added to the mean square; at least 0. With 0, zeros and subnormals give NaN. None: float32's epsilon.
    bias : bool
        Whether the norms have biases b. The argument `bias` of the network must be true too.

    Notes
    -----
    Zhang and Sennrich 2019, arXiv 1910.07467.

    Examples
    --------
    >>> import lnrnn
    >>> sorted(lnrnn.LSTM(3, 4, norm=lnrnn.RMSNormSpec("joint", cell=None)).state_dict())
    ['gain_l0', 'weight_hh_l0', 'weight_ih_l0']
    """

    eps: float | None = None  # type: ignore[assignment]  # __post_init__ replaces None
    _: KW_ONLY
    bias: bool = False
    __repr__ = _call

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eps is None:
            # 1.1920929e-07 has the same float32 bits as the number with 16 digits.
            object.__setattr__(self, "eps", float(str(np.finfo(np.float32).eps)))


@dataclass(frozen=True)
class BatchNormSpec:
    """Batch norm inside a cell, with separate statistics for each time step.

    Parameters
    ----------
    max_steps : int or None
        Limit on the steps of training sequences. None is no limit.
    overrun : {"raise", "last", "mean", "batch"}
        The policy for a step without statistics, because no training sequence was as long. "raise" raises
        SequenceTooLongError. "last" uses the statistics of the last known step, "mean" the mean over all
        known steps, "batch" the statistics of the current batch.
    momentum : float or None
        Weight of a new batch in the running statistics, in [0, 1]. None pools the sequences of all batches.
    eps : float
        Added to the variance; at least 0.

    Notes
    -----
    Cooijmans et al. 2016, arXiv 1603.09025, use "last". Errors are as in `LayerNormSpec`.

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
    __repr__ = _call

    def __post_init__(self) -> None:
        _check_fields(self, "BatchNormSpec")


@dataclass(frozen=True)
class DropoutSpec:
    """Dropout rates, for the argument `dropout` of `Network.forward_train`.

    Each value is set to 0 with the probability `rate`, and else multiplied by 1 / (1 - rate).

    Parameters
    ----------
    between : float
        Rate in [0, 1) for the outputs of all layers but the last, with a mask for each step, as in torch.
    inputs : float
        Rate in [0, 1) for the inputs of every layer, with one mask for all steps of a sequence.
    states : float
        Rate in [0, 1) for h_{t-1} in the product with W_hh, with one mask for all steps of a sequence.

    Notes
    -----
    `between` is from Zaremba et al. 2014, arXiv 1409.2329. `inputs` and `states` are the variational dropout
    of Gal and Ghahramani 2016, arXiv 1512.05287. The h_{t-1} in a GRU's z h_{t-1} and an LSTM's c are not
    dropped. Dropout increases the variances that batch norm stores. `calibrate` measures them without it.
    Errors are as in `LayerNormSpec`.

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
    __repr__ = _call

    def __post_init__(self) -> None:
        _check_fields(self, "DropoutSpec")


def dropout_spec(dropout: Any) -> DropoutSpec:
    """Returns the argument `dropout` of forward_train (rate between layers, spec or None) as DropoutSpec."""
    if dropout is None or isinstance(dropout, DropoutSpec):
        return dropout or DropoutSpec()
    return DropoutSpec(*check("Network.rates", {"dropout": dropout}))


def zoneout_rates(zoneout: Any, cell: Cell) -> tuple[float, ...]:
    """Returns the argument of `Network.zoneout` as a rate for each state of the cell, or () if all are 0."""
    if cell.parts > 1:
        if _RATE.check("zoneout", zoneout):
            raise bad_value("zoneout", f"0 for {cell.name}, whose states belong together", zoneout)
        return ()
    if isinstance(zoneout, (tuple, list)):
        if cell.states == 1 or len(zoneout) != 2:
            expected = "a number, or a pair of numbers for h and c" if cell.states == 2 else "a number"
            raise bad_type("zoneout", f"{expected}, for {cell.name}", zoneout)
        rates = tuple(_RATE.check(f"zoneout[{k}]", rate) for k, rate in enumerate(zoneout))
    else:
        rates = (_RATE.check("zoneout", zoneout),) * cell.states
    return rates if any(rates) else ()


# Names of norms in arguments and files.
KINDS: dict[str, type[LayerNormSpec | BatchNormSpec]] = {
    "layer": LayerNormSpec, "rms": RMSNormSpec, "batch": BatchNormSpec,
}  # fmt: skip


def _resolved(spec: LayerNormSpec, cell: Cell) -> LayerNormSpec:
    """Returns the spec with a cell's defaults filled in. The field placement is then a string, and
    the field cell is None for networks without a cell state c."""
    behind = cell.placement == "output"
    known = ("output",) if behind else PLACEMENTS
    placement = Choice(known).check("placement", spec.placement or cell.placement)
    if behind and spec.inner_bias:
        raise bad_value("inner_bias", f"False for {cell.name}, whose norm follows the cell", True)
    if placement == "input" != cell.placement:
        raise bad_value("placement", f"'split', 'joint' or 'gate' for {cell.name}", placement)
    if cell.gates == 1 and placement == "gate":
        placement = "joint"
    has_cell_state = cell.states == 2 and not behind
    if spec.cell == "carry" and not has_cell_state:
        expected = f"'out' or None for {cell.name}, which does not normalise a cell state c"
        raise bad_value("cell", expected, spec.cell)
    if spec.span is not None and (len(cell.spans) == 1 or placement != "split"):
        raise bad_value("span", "None unless a GRU has placement 'split'", spec.span)
    return replace(spec, placement=placement, cell=spec.cell if has_cell_state else None)


def norm_spec(norm: Any, cell: Cell) -> LayerNormSpec | BatchNormSpec | None:
    """Returns the argument `norm` of a network as a spec with this cell's defaults filled in, or None."""
    if isinstance(norm, str):
        norm = KINDS[Choice((*KINDS, None)).check("norm", norm)]()
    if isinstance(norm, (BatchNormSpec, RMSNormSpec)) and cell.placement == "output":
        raise bad_value("norm", f"'layer', None or a LayerNormSpec for {cell.name}", norm)
    if isinstance(norm, LayerNormSpec):
        return _resolved(norm, cell)
    if norm is None or isinstance(norm, BatchNormSpec):
        return norm
    raise bad_type(
        "norm", "'layer', 'rms', 'batch', None, a LayerNormSpec, a RMSNormSpec or a BatchNormSpec", norm
    )
