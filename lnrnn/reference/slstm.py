"""The sLSTM of lnrnn.reference. __init__.py explains the symbols.

The cell is from Beck et al. 2024 (arXiv 2405.04517), followed by a layer norm of each head. Gates are
i, f, z, o.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from .cells import (
    Gradients,
    block_diagonal,
    diagonal_blocks,
    gates,
    join,
    sum_of_sides,
    sum_of_sides_backward,
)
from .norms import Array, affine, real, sigmoid, standardize, standardize_backward
from .time_loop import Norm, Options, Site, State, Tape, run, run_backward

__all__ = ["slstm", "slstm_backward"]

SITES: dict[str, Site] = {"ih": Site(None, "bias_ih", (4,)), "hh": Site(None, "bias_hh", (4,))}


def log_sigmoid(a: Array) -> Array:
    """Returns log(1 / (1 + exp(-a))) without overflow in exp."""
    return np.asarray(np.minimum(a, 0) - np.log1p(np.exp(-np.abs(a))))


def as_bfloat16(a: Array) -> Array:
    """Rounds each number to the nearest bfloat16, ties to even. The dtype of `a` stays."""
    bits = a.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(a), a, rounded.astype(np.uint32).view(np.float32)).astype(a.dtype)


def by_head(a: Array, heads: int) -> Array:
    """Reshapes a (..., H) to (..., heads, H / heads)."""
    return a.reshape(*a.shape[:-1], heads, a.shape[-1] // heads)


def alive(tape: Tape, y: Array) -> Array:
    """Returns bool (T, B, 1): whether each sequence has each step. y: (T, B, *)."""
    return (np.arange(len(y))[:, None] < tape.lengths)[..., None]


def slstm_step(options: Options, x_: Array, h_: Array, state: State, norm: Norm) -> tuple[State, State]:
    """Computes one step with exponential gates i and f, scaled by exp(-m) so that neither exceeds 1.

    lf = log sigmoid(f), or f with exp_forget::

        m' = max(i, lf + m)         i' = exp(i - m')    f' = exp(lf + m - m')
        c' = f' c + i' tanh(z)      n' = f' n + i'      h' = sigmoid(o) c' / n'

    A unit with n = 0 has no past: m' = i and f' = 0.
    """
    i, f, z, o = gates(sum_of_sides(options, x_, h_, norm), 4)
    _, c, n, m = state
    lf = f if options["exp_forget"] else log_sigmoid(f)
    fresh = n == 0
    m_new = np.where(fresh, i, np.maximum(i, lf + m))
    i_gate, f_gate = np.exp(i - m_new), np.where(fresh, 0, np.exp(np.where(fresh, 0, lf + m - m_new)))
    z, o = np.tanh(z), sigmoid(o)
    c_new, n_new = f_gate * np.where(fresh, 0, c) + i_gate * z, f_gate * n + i_gate
    new: State = (o * c_new / n_new, c_new, n_new, m_new)
    if options["state_dtype"] == "bfloat16":
        new = tuple(as_bfloat16(s) for s in new)
    keeps = ~fresh & (lf + m > i)  # m' is lf + m
    return new, (i_gate, f_gate, z, o, f, np.where(fresh, 0, c), n, c_new, n_new, keeps)


def slstm_step_backward(options: Options, gstate: State, kept: State, norm: Norm) -> Gradients:
    gh, gc, gn, gm = gstate
    i_gate, f_gate, z, o, f, c, n, c_new, n_new, keeps = kept
    go = gh * c_new / n_new * o * (1 - o)
    gc, gn = gc + gh * o / n_new, gn - gh * o * c_new / n_new**2
    gi, gf = (gc * z + gn) * i_gate, (gc * c + gn * n) * f_gate
    gm = gm - gi - gf  # m' divides both gates
    gi, gf = gi + np.where(keeps, 0, gm), gf + np.where(keeps, gm, 0)
    slope = 1 if options["exp_forget"] else sigmoid(-f)
    ga = join(gi, gf * slope, gc * i_gate * (1 - z * z), go)
    return *sum_of_sides_backward(options, ga, norm), (0, gc * f_gate, gn * f_gate, gf)


def slstm(
    x: ArrayLike,
    parameters: Mapping[str, ArrayLike | None],
    *,
    num_heads: int = 4,
    norm: str | None = "layer",
    exp_forget: bool = False,
    state_dtype: str = "float32",
    eps: float = 1e-5,
    h0: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    n0: ArrayLike | None = None,
    m0: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    reverse: bool = False,
    states_mask: ArrayLike | None = None,
) -> tuple[Array, State, Tape]:
    """Run an sLSTM of one layer and direction. `slstm_step` has its equation.

    Parameters
    ----------
    x : array_like of shape (T, B, I)
        Inputs.
    parameters : dict of str to array_like
        weight_ih (4H, I), weight_hh (4H, H / num_heads), bias_ih, bias_hh (4H,); with norm "layer" gain_y,
        bias_y (H,). Gates are i, f, z, o.
    num_heads : int
        W_hh is block-diagonal: see `block_diagonal`.
    norm : {"layer"} or None
        "layer" normalises h over each head on its way to y. The norm of y does not recur.
    exp_forget : bool
        Whether the forget gate is exponential, lf = f, instead of a sigmoid.
    state_dtype : {"float32", "bfloat16"}
        "bfloat16" rounds all states after each step. The gradient ignores the rounding.
    eps : float
        Added to the variance.
    h0, c0, n0, m0 : array_like of shape (B, H), optional
        Initial state. A unit with n0 of 0 has no past: its c0 and m0 have no effect.
    lengths, reverse, states_mask
        As in `rnn`.

    Returns
    -------
    y : array of shape (T, B, H)
        Outputs, 0 past a length.
    state : (h, c, n, m)
        Arrays (B, H), at each sequence's end.
    tape : Tape
        The argument of `slstm_backward`.

    Notes
    -----
    The cell is that of Beck et al. 2024, arXiv 2405.04517.

    Examples
    --------
    >>> import numpy as np
    >>> from lnrnn import reference
    >>> weights = {"weight_ih": np.eye(16, 3), "weight_hh": np.eye(16, 2)}
    >>> y, (h, c, n, m), tape = reference.slstm(np.ones((5, 2, 3)), weights, num_heads=2)
    >>> y.shape
    (5, 2, 4)
    """
    given = {name: real(v) for name, v in parameters.items() if v is not None}
    inside = given | {"weight_hh": block_diagonal(given["weight_hh"], num_heads)}
    output = {name: inside.pop(name) for name in ("gain_y", "bias_y") if name in inside}
    options = dict(placement="split", exp_forget=exp_forget, state_dtype=state_dtype, num_heads=num_heads)
    how = (None, eps, lengths, None, "raise", reverse, states_mask, (None,) * 4)
    cell = slstm_step, slstm_step_backward
    h, state, tape = run(cell, options, SITES, x, inside, (h0, c0, n0, m0), *how)
    tape.options = options | dict(h=h, output=output, eps=eps, norm=norm)
    if norm is None:
        return h, state, tape
    ahat = standardize(by_head(h, num_heads), -1, eps)[0].reshape(h.shape)
    y = affine(ahat, output.get("gain_y"), output.get("bias_y"))
    return np.where(alive(tape, h), y, 0), state, tape


def slstm_backward(
    tape: Tape,
    gy: ArrayLike,
    gh: ArrayLike | None = None,
    gc: ArrayLike | None = None,
    gn: ArrayLike | None = None,
    gm: ArrayLike | None = None,
) -> tuple[Array, State, dict[str, Array]]:
    """Return gx, (gh0, gc0, gn0, gm0) and the parameters' gradients, else as in `rnn_backward`.

    Parameters
    ----------
    gc, gn, gm : array_like of shape (B, H), optional
        Gradients of the last c, n and m, zeros by default.
    """
    options, more = tape.options, {}
    heads, h, output = options["num_heads"], options["h"], options["output"]
    gy = real(gy)
    if options["norm"] is not None:
        gy = np.where(alive(tape, h), gy, 0)
        ahat, _, var = standardize(by_head(h, heads), -1, options["eps"])
        if "gain_y" in output:
            more["gain_y"] = (gy * ahat.reshape(gy.shape)).sum((0, 1))
        if "bias_y" in output:
            more["bias_y"] = gy.sum((0, 1))
        gy = by_head(gy * output.get("gain_y", 1), heads)
        gy = standardize_backward(gy, ahat, var, -1, options["eps"]).reshape(h.shape)
    gx, gstate, grads = run_backward(tape, gy, (gh, gc, gn, gm))
    grads["weight_hh"] = diagonal_blocks(grads["weight_hh"], heads)
    return gx, gstate, grads | more
