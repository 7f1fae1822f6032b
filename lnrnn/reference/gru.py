"""The GRU of lnrnn.reference. cells.py has the RNN and the LSTM.

Source: Cho et al. 2014; by default with the reset gate after the product, as in cuDNN and torch. Gates are in
torch's order: r, z, n. DreamerV2's GRU has layer norm in placement "joint".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .cells import Function, Gradients, gate_activation, gates, heads_backward, join, sites_of, with_heads
from .norms import ACTIVATIONS, BY_ROW, Array, real
from .time_loop import Norm, Options, Site, State, Tape, run, run_backward

__all__ = [
    "GRU_GATES", "GRU_SITES", "GruGates", "gru", "gru_backward", "gru_gate", "gru_gate_backward", "gru_joint",
    "gru_joint_backward", "gru_reset_step", "gru_reset_step_backward", "gru_split", "gru_split_backward",
    "gru_step", "gru_step_backward", "sites_of_reset",
]  # fmt: skip

GruGates = tuple[Array, Array, Array, Array]  # r, z, n, and the factor of r in the argument of n's f
GRU_SITES = sites_of(3) | {
    "split": {"ih": Site("gain_ih", "bias_ih", (2, 1)), "hh": Site("gain_hh", "bias_hh", (2, 1))},
    "all": sites_of(3)["split"],
    "gate": {"rz": Site("gain", "bias", (1, 1)), "n": Site("gain", "bias", (1,), first=2)},
}


def sites_of_reset(sites: Mapping[str, Site]) -> dict[str, Site]:
    """Returns {name: Site} of a GRU with reset_after=False: norms of W h for r and z, of W (r h) for n."""
    gain, bias = sites["hh"].gain, sites["hh"].bias
    return {"ih": sites["ih"], "rz": Site(gain, bias, (2,)), "n": Site(gain, bias, (1,), first=2)}


def gru_split(x_: Array, h_: Array, norm: Norm, sig: Function, f: Function) -> GruGates:
    """Returns r, z = sig(X + Y), n = f(X_n + r Y_n), and Y_n, with X = norm(x_) and Y = norm(h_)."""
    xr, xz, xn = gates(norm("ih", x_), 3)
    hr, hz, hn = gates(norm("hh", h_), 3)
    r, z = sig(xr + hr), sig(xz + hz)
    return r, z, f(xn + r * hn), hn


def gru_split_backward(
    gn: Array, gz: Array, r: Array, hn: Array, norm: Norm, slope: Function
) -> tuple[Array, Array]:  # fmt: skip
    """Returns the gradients of x_ and h_. gn, gz: gradients of the arguments of n's f and of z's sigmoid."""
    gr = gn * hn * slope(r)
    return norm("ih", join(gr, gz, gn)), norm("hh", join(gr, gz, gn * r))


def gru_joint(x_: Array, h_: Array, norm: Norm, sig: Function, f: Function) -> GruGates:
    """Computes r, z = sig(a) and n = f(r a_n), with a = norm(x_ + h_). Returns r, z, n, a_n."""
    ar, az, an = gates(norm("", x_ + h_), 3)
    r, z = sig(ar), sig(az)
    return r, z, f(r * an), an


def gru_joint_backward(
    gn: Array, gz: Array, r: Array, an: Array, norm: Norm, slope: Function
) -> tuple[Array, Array]:  # fmt: skip
    ga = norm("", join(gn * an * slope(r), gz, gn * r))
    return ga, ga


def gru_gate(x_: Array, h_: Array, norm: Norm, sig: Function, f: Function) -> GruGates:
    """Computes r, z = sig(norm(x_ + h_)) and n = f(norm(x_n + r h_n)), with a norm over H for each gate."""
    xr, xz, xn = gates(x_, 3)
    hr, hz, hn = gates(h_, 3)
    r, z = (sig(a) for a in gates(norm("rz", join(xr + hr, xz + hz)), 2))
    return r, z, f(norm("n", xn + r * hn)), hn


def gru_gate_backward(
    gn: Array, gz: Array, r: Array, hn: Array, norm: Norm, slope: Function
) -> tuple[Array, Array]:  # fmt: skip
    gn = norm("n", gn)
    grz = norm("rz", join(gn * hn * slope(r), gz))
    return join(grz, gn), join(grz, gn * r)


GRU_GATES: dict[str, tuple[Callable[..., GruGates], Callable[..., tuple[Array, Array]]]] = {
    "split": (gru_split, gru_split_backward),
    "joint": (gru_joint, gru_joint_backward),
    "gate": (gru_gate, gru_gate_backward),
}


def gru_step(options: Options, x_: Array, h_: Array, state: State, norm: Norm) -> tuple[State, State]:
    """Computes h' = (1 - z) n + z h."""
    (h,) = state
    functions = gate_activation(options)[0], ACTIVATIONS[options["nonlinearity"]][0]
    r, z, n, factor = GRU_GATES[options["placement"]][0](x_, h_, norm, *functions)
    return ((1 - z) * n + z * h,), (r, z, n, factor, h)


def gru_step_backward(options: Options, gstate: State, kept: State, norm: Norm) -> Gradients:
    (gh,) = gstate
    r, z, n, factor, h = kept
    _, slope = gate_activation(options)
    _, df = ACTIVATIONS[options["nonlinearity"]]
    gn, gz = gh * (1 - z) * df(n), gh * (h - n) * slope(z)
    return *GRU_GATES[options["placement"]][1](gn, gz, r, factor, norm, slope), (gh * z,)


def gru_reset_step(
    options: Options, x_: Array, h_: Array, state: State, norm: Norm, product: Callable[[Array], Array]
) -> tuple[State, State]:
    """Computes r, z = sig(X + norm(U_rz h)), n = f(X_n + norm(U_n (r h))) and h' = (1 - z) n + z h, with
    X = norm(x_).

    h_ is U_rz h. product(r) returns U_n (r h).
    """
    (h,) = state
    xr, xz, xn = gates(norm("ih", x_), 3)
    hr, hz = gates(norm("rz", h_), 2)
    sig, _ = gate_activation(options)
    r, z = sig(xr + hr), sig(xz + hz)
    n = ACTIVATIONS[options["nonlinearity"]][0](xn + norm("n", product(r)))
    return ((1 - z) * n + z * h,), (r, z, n, h)


def gru_reset_step_backward(
    options: Options, gstate: State, kept: State, norm: Norm, product: Callable[[Array], Array]
) -> Gradients:
    """Returns the gradients of gru_reset_step. product(g) returns r's gradient. g: gradient of U_n (r h)."""
    (gh,) = gstate
    r, z, n, h = kept
    _, slope = gate_activation(options)
    _, df = ACTIVATIONS[options["nonlinearity"]]
    gn, gz = gh * (1 - z) * df(n), gh * (h - n) * slope(z)
    gr = product(norm("n", gn)) * slope(r)
    return norm("ih", join(gr, gz, gn)), norm("rz", join(gr, gz)), (gh * z,)


def gru(
    x: ArrayLike,
    parameters: Mapping[str, ArrayLike | None],
    *,
    norm: str | None = "layer",
    placement: str = "split",
    span: str | None = None,
    eps: float = 1e-5,
    h0: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    statistics: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    overrun: str = "raise",
    reverse: bool = False,
    states_mask: ArrayLike | None = None,
    zoneout: ArrayLike | None = None,
    num_heads: int = 1,
    reset_after: bool = True,
    gate_activation: str = "sigmoid",
    nonlinearity: str = "tanh",
) -> tuple[Array, Array, Tape]:
    """Run a GRU of one layer and direction. `gru_step` and `gru_reset_step` (Cho et al.) have its equations.

    Parameters
    ----------
    x : array_like of shape (T, B, I)
        Inputs.
    parameters : dict of str to array_like
        weight_ih (3H, I), weight_hh (3H, H / num_heads), and some of the vectors of `lstm`, (3H,) each.
    norm : {"layer", "rms", "batch"} or None
        The kind of norm. None is torch's cell.
    placement : {"split", "joint", "gate"}
        The placement of layer norm. Means of "joint" are over 3H units, of "gate" over the H of each gate.
    span : {"all"} or None
        For "split". None normalises the 2H units of r and z together, and the H of n, in x_ and in h_. "all"
        normalises all 3H units together.
    statistics : dict of str to (mean, var), optional
        Batch norm: arrays (known steps, 3H) for "ih" and "hh". The default is as in `rnn`.
    eps, h0, lengths, overrun, reverse, states_mask, zoneout
        As in `rnn`. The h_{t-1} in z h_{t-1} is not dropped.
    num_heads : int
        As in `lstm`.
    reset_after : bool
        Whether the reset gate acts after the product. False needs norm None, "batch", or "split".
    gate_activation : {"sigmoid", "hard_sigmoid"}
        As in `lstm`.
    nonlinearity : str
        The name of f in ACTIVATIONS.

    Returns
    -------
    y, h, tape
        As from `rnn`.

    Examples
    --------
    >>> import numpy as np
    >>> from lnrnn import reference
    >>> weights = {"weight_ih": np.eye(9, 4), "weight_hh": np.eye(9, 3)}
    >>> y, h, tape = reference.gru(np.ones((5, 2, 4)), weights)
    >>> y.shape
    (5, 2, 3)
    """
    options: dict[str, Any] = dict(
        placement=placement if norm in BY_ROW else "split",
        reset_after=reset_after,
        num_heads=num_heads,
        gate_activation=gate_activation,
        nonlinearity=nonlinearity,
    )
    kind = "all" if placement == "split" and span == "all" else placement
    sites = GRU_SITES[kind if norm in BY_ROW else norm]
    cell: Any = gru_step, gru_step_backward
    if not reset_after:
        cell, sites = (gru_reset_step, gru_reset_step_backward), sites_of_reset(sites)
        if statistics is not None:
            rz, n = zip(
                *(np.split(real(a), [2 * np.shape(a)[1] // 3], 1) for a in statistics["hh"]), strict=True
            )
            statistics = {"ih": statistics["ih"], "rz": rz, "n": n}
    how = (norm, eps, lengths, statistics, overrun, reverse, states_mask, (zoneout,))
    y, (h,), tape = run(cell, options, sites, x, with_heads(parameters, num_heads), (h0,), *how)
    if not reset_after and tape.statistics is not None:
        (mean, var), own = tape.statistics.pop("rz"), tape.statistics.pop("n")
        tape.statistics["hh"] = join(mean, own[0]), join(var, own[1])
    return y, h, tape


def gru_backward(
    tape: Tape, gy: ArrayLike, gh: ArrayLike | None = None
) -> tuple[Array, Array, dict[str, Array]]:
    """Return gx, gh0 and the parameters' gradients. Arguments and results are as in `rnn_backward`."""
    gx, (gh0,), grads = run_backward(tape, gy, (gh,))
    return gx, gh0, heads_backward(tape, grads)
