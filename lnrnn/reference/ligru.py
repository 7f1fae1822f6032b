"""The LiGRU of lnrnn.reference. cells.py has the RNN and the LSTM.

Source: Ravanelli et al. 2018 (arXiv 1803.10225). It is a GRU without reset gate, with relu in place of tanh,
and with a norm of W_ih x alone. Gates are in the order z, n.
"""

from __future__ import annotations

from collections.abc import Mapping

from numpy.typing import ArrayLike

from .cells import Gradients, gates, join, sites_of, sum_of_sides, sum_of_sides_backward
from .norms import ACTIVATIONS, BY_ROW, Array, sigmoid
from .time_loop import Norm, Options, Site, State, Tape, run, run_backward

__all__ = ["LIGRU_SITES", "ligru", "ligru_backward", "ligru_step", "ligru_step_backward"]

LIGRU_SITES = sites_of(2) | {"input": {"ih": Site("gain_ih", "bias_ih", (2,))}}


def ligru_step(options: Options, x_: Array, h_: Array, state: State, norm: Norm) -> tuple[State, State]:
    """Computes z = sig(a_z), n = f(a_n), h' = (1 - z) n + z h. For placement "input", a = norm(x_) + h_."""
    (h,) = state
    f, _ = ACTIVATIONS[options["nonlinearity"]]
    a = norm("ih", x_) + h_ if options["placement"] == "input" else sum_of_sides(options, x_, h_, norm)
    az, an = gates(a, 2)
    z, n = sigmoid(az), f(an)
    return ((1 - z) * n + z * h,), (z, n, h, an)


def ligru_step_backward(options: Options, gstate: State, kept: State, norm: Norm) -> Gradients:
    (gh,) = gstate
    z, n, h, _ = kept
    _, df = ACTIVATIONS[options["nonlinearity"]]
    ga = join(gh * (h - n) * z * (1 - z), gh * (1 - z) * df(n))
    sides = (
        (norm("ih", ga), ga) if options["placement"] == "input" else sum_of_sides_backward(options, ga, norm)
    )
    return *sides, (gh * z,)


def ligru(
    x: ArrayLike,
    parameters: Mapping[str, ArrayLike | None],
    *,
    norm: str | None = "layer",
    placement: str = "input",
    nonlinearity: str = "relu",
    eps: float = 1e-5,
    h0: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    statistics: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    overrun: str = "raise",
    reverse: bool = False,
    states_mask: ArrayLike | None = None,
    zoneout: ArrayLike | None = None,
) -> tuple[Array, Array, Tape]:
    """Run a LiGRU of one layer and direction. `ligru_step` has its equation.

    Parameters
    ----------
    x : array_like of shape (T, B, I)
        Inputs.
    parameters : dict of str to array_like
        weight_ih (2H, I), weight_hh (2H, H), and some of these, (2H,) each::

            norm None                  bias_ih, bias_hh
            "layer" input, "batch"     gain_ih, bias_ih
            "layer" split              gain_ih, bias_ih, gain_hh, bias_hh
            "layer" joint, gate        gain, bias
    norm : {"layer", "rms", "batch"} or None
        The norm.
    placement : str
        The placement of layer norm. "input" normalises x_ alone, over the 2H units. Others are as in `lstm`.
    nonlinearity : str
        The name of f in ACTIVATIONS.
    statistics : dict of str to (mean, var), optional
        Batch norm: arrays (known steps, 2H) for "ih". The default is as in `rnn`.
    eps, h0, lengths, overrun, reverse, states_mask, zoneout
        As in `rnn`. The h_{t-1} in z h_{t-1} is not dropped.

    Returns
    -------
    y, h, tape
        As from `rnn`.

    Examples
    --------
    >>> import numpy as np
    >>> from lnrnn import reference
    >>> weights = {"weight_ih": np.eye(6, 4), "weight_hh": np.eye(6, 3)}
    >>> y, h, tape = reference.ligru(np.ones((5, 2, 4)), weights)
    >>> y.shape
    (5, 2, 3)
    """
    placement = placement if norm in BY_ROW else {"batch": "input", None: "split"}[norm]
    options = dict(placement=placement, nonlinearity=nonlinearity)
    sites = LIGRU_SITES[placement if norm else None]
    how = (norm, eps, lengths, statistics, overrun, reverse, states_mask, (zoneout,))
    y, (h,), tape = run((ligru_step, ligru_step_backward), options, sites, x, parameters, (h0,), *how)
    return y, h, tape


def ligru_backward(
    tape: Tape, gy: ArrayLike, gh: ArrayLike | None = None
) -> tuple[Array, Array, dict[str, Array]]:
    """Return gx, gh0 and the parameters' gradients. Arguments and results are as in `rnn_backward`."""
    gx, (gh0,), grads = run_backward(tape, gy, (gh,))
    return gx, gh0, grads
