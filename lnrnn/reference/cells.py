"""The RNN and LSTM of lnrnn.reference, and functions that other cells share. __init__.py explains symbols.

Sources. LSTM: Hochreiter, Schmidhuber 1997, with Gers' forget gate. Gates are in torch's order: i, f, g, o.
Peepholes: Gers, Schraudolph, Schmidhuber 2002; o reads the new c. Layer norm: "split" with the norm of c for
the output is Ba, Kiros, Hinton 2016, arXiv 1607.06450, supplement. "carry" is the LSTM of PyTorch's fastrnns
benchmark and TensorFlow Addons. "gate" is in Lingvo and icefall. "joint" is in torchaudio's LSTM. Batch norm:
Cooijmans et al. 2016 (arXiv 1603.09025).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .norms import ACTIVATIONS, BY_ROW, GATE_ACTIVATIONS, Activation, Array, real
from .time_loop import Norm, Options, Site, State, Tape, run, run_backward

__all__ = [
    "Gradients", "LSTM_SITES", "RNN_SITES", "block_diagonal", "calibrate", "diagonal_blocks", "gates", "join",
    "lstm", "lstm_backward", "lstm_step", "lstm_step_backward", "rnn", "rnn_backward", "rnn_step",
    "rnn_step_backward", "sites_of", "sum_of_sides", "sum_of_sides_backward",
]  # fmt: skip

# Gradients of one step: of x_ = W_ih x, of h_ = W_hh h, and of the old state without its part through h_.
Gradients = tuple[Array, Array, tuple[Any, ...]]
Function = Callable[[Array], Array]


def gates(a: Array, n: int) -> list[Array]:
    """Splits `a` (L, n H) into n arrays (L, H)."""
    return np.split(a, n, axis=-1)


def join(*parts: Array) -> Array:
    return np.concatenate(parts, axis=-1)


def sites_of(num_gates: int) -> dict[str | None, dict[str, Site]]:
    """Returns {placement: {position: Site}} of a cell. Key "batch": batch norm; key None: no norm."""
    n = (num_gates,)
    return {
        None: {"ih": Site(None, "bias_ih", n), "hh": Site(None, "bias_hh", n)},
        "split": {"ih": Site("gain_ih", "bias_ih", n), "hh": Site("gain_hh", "bias_hh", n)},
        "joint": {"": Site("gain", "bias", n)},
        "gate": {"": Site("gain", "bias", (1,) * num_gates)},
        "batch": {"ih": Site("gain_ih", "bias", n), "hh": Site("gain_hh", None, n)},
    }


def sum_of_sides(options: Options, x_: Array, h_: Array, norm: Norm) -> Array:
    """Returns pre-activations of RNN and LSTM: norm(x_) + norm(h_) if split, else norm(x_ + h_)."""
    return norm("ih", x_) + norm("hh", h_) if options["placement"] == "split" else norm("", x_ + h_)


def sum_of_sides_backward(options: Options, ga: Array, norm: Norm) -> tuple[Array, Array]:
    """Returns the gradients of x_ and h_. ga: the gradient of the pre-activations."""
    return (norm("ih", ga), norm("hh", ga)) if options["placement"] == "split" else (norm("", ga),) * 2


def gate_activation(options: Options) -> Activation:
    """Returns the activation of the gates i, f, o or r, z, with its derivative."""
    return GATE_ACTIVATIONS[options.get("gate_activation", "sigmoid")]


# --- heads --------------------------------------------------------------------------------------------------


def block_diagonal(weight: Array, num_heads: int) -> Array:
    """Return weight_hh (G H, H / num_heads) as a matrix (G H, H): a unit reads the units of its own head.

    Examples
    --------
    >>> import numpy as np
    >>> from lnrnn import reference
    >>> reference.block_diagonal(np.array([[1.0, 2], [3, 4], [5, 6], [7, 8]]), 2)
    array([[1., 2., 0., 0.],
           [3., 4., 0., 0.],
           [0., 0., 5., 6.],
           [0., 0., 7., 8.]])
    """
    if num_heads == 1:
        return weight
    units = weight.shape[1]
    blocks = weight.reshape(-1, num_heads, units, 1, units)
    own = np.eye(num_heads, dtype=weight.dtype)[:, None, :, None]
    whole: Array = (blocks * own).reshape(len(weight), num_heads * units)
    return whole


def diagonal_blocks(weight: Array, num_heads: int) -> Array:
    """Return the inverse of `block_diagonal`: (G H, H) -> (G H, H / num_heads)."""
    if num_heads == 1:
        return weight
    units = weight.shape[1] // num_heads
    blocks = weight.reshape(-1, num_heads, units, num_heads, units)
    own = [blocks[:, k, :, k] for k in range(num_heads)]
    return np.stack(own, axis=1).reshape(len(weight), units)


def with_heads(parameters: Mapping[str, ArrayLike | None], num_heads: int) -> dict[str, ArrayLike]:
    """Returns the parameters with weight_hh as a block-diagonal matrix (G H, H)."""
    given = {name: value for name, value in parameters.items() if value is not None}
    return given | {"weight_hh": block_diagonal(real(given["weight_hh"]), num_heads)}


def heads_backward(tape: Tape, grads: dict[str, Array]) -> dict[str, Array]:
    """Returns the parameters' gradients: weight_hh's as diagonal blocks (G H, H / num_heads)."""
    return grads | {"weight_hh": diagonal_blocks(grads["weight_hh"], tape.options["num_heads"])}


# --- RNN ----------------------------------------------------------------------------------------------------

RNN_SITES: dict[str, dict[str, Site]] = {
    "joint": {"": Site("gain", "bias")},
    "split": {"ih": Site("gain_ih", "bias_ih"), "hh": Site("gain_hh", "bias_hh")},
}


def rnn_step(options: Options, x_: Array, h_: Array, state: State, norm: Norm) -> tuple[State, Array]:
    """Computes h' = f(a) with `a` from `sum_of_sides`."""
    f, _ = ACTIVATIONS[options["nonlinearity"]]
    h = f(sum_of_sides(options, x_, h_, norm))
    return (h,), h


def rnn_step_backward(options: Options, gstate: State, h: Array, norm: Norm) -> Gradients:
    _, df = ACTIVATIONS[options["nonlinearity"]]
    return *sum_of_sides_backward(options, gstate[0] * df(h), norm), (0,)


def rnn(
    x: ArrayLike,
    weight_ih: ArrayLike,
    weight_hh: ArrayLike,
    *,
    norm: str | None = "layer",
    placement: str = "joint",
    gain: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    gain_ih: ArrayLike | None = None,
    bias_ih: ArrayLike | None = None,
    gain_hh: ArrayLike | None = None,
    bias_hh: ArrayLike | None = None,
    inner_bias_ih: ArrayLike | None = None,
    inner_bias_hh: ArrayLike | None = None,
    h0: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    nonlinearity: str = "tanh",
    eps: float = 1e-5,
    statistics: tuple[ArrayLike, ArrayLike] | None = None,
    overrun: str = "raise",
    reverse: bool = False,
    states_mask: ArrayLike | None = None,
    zoneout: ArrayLike | None = None,
) -> tuple[Array, Array, Tape]:
    """Run an RNN of one layer and direction: h_t = f(gain (a_t - mu) / sigma + bias), a_t = x_ + h_.

    Parameters
    ----------
    x : array_like of shape (T, B, I)
        Inputs.
    weight_ih, weight_hh : array_like of shape (H, I) and (H, H)
        Weights.
    norm : {"layer", "rms", "batch"} or None
        None is torch's cell: h_t = f(a_t + bias_ih + bias_hh).
    placement : {"joint", "split"}
        "split" is h_t = f(LN(x_; gain_ih, bias_ih) + LN(h_; gain_hh, bias_hh)).
    gain, bias, gain_ih, bias_ih, gain_hh, bias_hh, inner_bias_ih, inner_bias_hh : array_like of shape (H,)
        Parameters of the norms, each optional.
    h0 : array_like of shape (B, H), optional
        Initial state.
    lengths : array_like of shape (B,), optional
        The number of steps of each sequence, 0 to T.
    nonlinearity : str
        The name of f in ACTIVATIONS.
    eps : float
        Added to the variance.
    statistics : (mean, var), optional
        Batch norm: arrays (known steps, H). By default, each step uses the statistics of its active
        sequences.
    overrun : {"raise", "last", "mean", "batch"}
        The statistics beyond the known steps; see `statistics_at`.
    reverse : bool
        Whether to read each sequence from its end. The k-th step from the end uses the k-th statistics.
    states_mask : array_like of shape (B, H), optional
        Dropout mask: factors of h_{t-1} in the product with W_hh.
    zoneout : array_like, optional
        d in h_t = d h_{t-1} + (1 - d) h'_t: a rate, or a mask (T, B, H).

    Returns
    -------
    y : array of shape (T, B, H)
        Outputs, 0 past a length.
    h : array of shape (B, H)
        The state at each sequence's end.
    tape : Tape
        The argument of `rnn_backward`.

    Raises
    ------
    ValueError
        If shapes do not fit each other, or with overrun "raise" for a step without statistics.

    Examples
    --------
    >>> import numpy as np
    >>> from lnrnn import reference
    >>> y, h, tape = reference.rnn(np.ones((5, 2, 4)), np.eye(3, 4), np.eye(3))
    >>> y.shape
    (5, 2, 3)
    """
    if norm is None:
        biases = [real(b) for b in (bias_ih, bias_hh) if b is not None]
        gain, bias = None, sum(biases) if biases else None
    placement = "split" if norm in BY_ROW and placement == "split" else "joint"
    parameters = dict(weight_ih=weight_ih, weight_hh=weight_hh, gain=gain, bias=bias)
    parameters |= dict(gain_ih=gain_ih, bias_ih=bias_ih, gain_hh=gain_hh, bias_hh=bias_hh)
    parameters |= dict(inner_bias_ih=inner_bias_ih, inner_bias_hh=inner_bias_hh)
    options = dict(nonlinearity=nonlinearity, placement=placement, norm=norm, **parameters)
    cell, by_site = (rnn_step, rnn_step_backward), None if statistics is None else {"": statistics}
    how = (norm, eps, lengths, by_site, overrun, reverse, states_mask, (zoneout,))
    y, (h,), tape = run(cell, options, RNN_SITES[placement], x, parameters, (h0,), *how)
    return y, h, tape


def rnn_backward(
    tape: Tape, gy: ArrayLike, gh: ArrayLike | None = None
) -> tuple[Array, Array, dict[str, Array]]:
    """Back-propagate through time.

    Parameters
    ----------
    tape
        The record that `rnn` returned.
    gy : array_like of shape (T, B, H)
        Gradient of y. Values past a length have no effect, for y is constant there.
    gh : array_like of shape (B, H), optional
        Gradient of the last h, zeros by default.

    Returns
    -------
    gx, gh0 : array of float64 of the shapes of x and h0
        Gradients of x and h0.
    gradients : dict of str to array of float64
        The gradients of the given parameters.

    Raises
    ------
    ValueError
        If gy or gh has another shape than y or h.

    Examples
    --------
    >>> import numpy as np
    >>> from lnrnn import reference
    >>> y, h, tape = reference.rnn(np.ones((5, 2, 4)), np.eye(3, 4), np.eye(3))
    >>> gx, gh0, gradients = reference.rnn_backward(tape, np.ones_like(y))
    >>> gx.shape, sorted(gradients)
    ((5, 2, 4), ['weight_hh', 'weight_ih'])
    """
    gx, (gh0,), grads = run_backward(tape, gy, (gh,))
    if tape.options["norm"] is None and "bias" in grads:
        gbias = grads.pop("bias")
        grads |= {name: gbias for name in ("bias_ih", "bias_hh") if name in grads}
    return gx, gh0, grads


# --- LSTM ---------------------------------------------------------------------------------------------------

LSTM_SITES = sites_of(4)


def lstm_step(options: Options, x_: Array, h_: Array, state: State, norm: Norm) -> tuple[State, State]:
    """Computes c' = sig(f) c + sig(i) tanh(g) and h' = sig(o) tanh(norm(c')). With "carry" the new c is
    norm(c'). With peepholes p: sig(i + p_i c), sig(f + p_f c), sig(o + p_o c')."""
    i, f, g, o = gates(sum_of_sides(options, x_, h_, norm), 4)
    sig, _ = gate_activation(options)
    if options["peepholes"]:
        i, f = i + norm("peephole i", state[1]), f + norm("peephole f", state[1])
    i, f, g = sig(i), sig(f), np.tanh(g)
    raw = f * state[1] + i * g
    o = sig(o + norm("peephole o", raw) if options["peepholes"] else o)
    seen = norm("c", raw)
    tanh_c = np.tanh(seen)
    c = seen if options["cell"] == "carry" else raw
    return (o * tanh_c, c), (i, f, g, o, state[1], tanh_c)


def lstm_step_backward(options: Options, gstate: State, kept: State, norm: Norm) -> Gradients:
    gh, gc = gstate
    i, f, g, o, c, tanh_c = kept
    _, slope = gate_activation(options)
    gseen = gh * o * (1 - tanh_c * tanh_c)
    gc = norm("c", gseen + gc) if options["cell"] == "carry" else norm("c", gseen) + gc
    go = gh * tanh_c * slope(o)
    if options["peepholes"]:
        gc = gc + norm("peephole o", go)
    gi, gf, gg = gc * g * slope(i), gc * c * slope(f), gc * i * (1 - g * g)
    gold = gc * f
    if options["peepholes"]:
        gold = gold + norm("peephole i", gi) + norm("peephole f", gf)
    return *sum_of_sides_backward(options, join(gi, gf, gg, go), norm), (0, gold)


def lstm(
    x: ArrayLike,
    parameters: Mapping[str, ArrayLike | None],
    *,
    norm: str | None = "layer",
    placement: str = "split",
    cell: str | None = "out",
    eps: float = 1e-5,
    h0: ArrayLike | None = None,
    c0: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    statistics: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    overrun: str = "raise",
    reverse: bool = False,
    states_mask: ArrayLike | None = None,
    zoneout: tuple[ArrayLike | None, ArrayLike | None] | None = None,
    num_heads: int = 1,
    gate_activation: str = "sigmoid",
) -> tuple[Array, State, Tape]:
    """Run an LSTM of one layer and direction. `lstm_step` has its equation.

    Parameters
    ----------
    x : array_like of shape (T, B, I)
        Inputs.
    parameters : dict of str to array_like
        weight_ih (4H, I), weight_hh (4H, H / num_heads), and some of these, (4H,) each. With weight_hr
        (P, H), h is its product with o tanh(c), (P), and weight_hh is (4H, P)::

            norm None             bias_ih, bias_hh
            "layer" split         gain_ih, bias_ih, gain_hh, bias_hh; inner_bias_ih, inner_bias_hh
            "layer" joint, gate   gain, bias; inner_bias_ih, inner_bias_hh
            "batch"               gain_ih, gain_hh, bias

        The norm of c has gain_c and bias_c, (H,). peephole (3H,) has the peepholes of i, f and o.
    norm : {"layer", "rms", "batch"} or None
        The kind of norm. None is torch's cell.
    placement : {"split", "joint", "gate"}
        The placement of layer norm. Means are over 4H units, in "gate" over the H units of each gate.
    cell : {"out", "carry"} or None
        The norm of c under layer norm. Batch norm has "out".
    h0, c0 : array_like of shape (B, P) and (B, H), optional
        Initial state. P is H without weight_hr.
    statistics : dict of str to (mean, var), optional
        Batch norm: arrays (known steps, 4H) for "ih" and "hh", (known steps, H) for "c". Default as in `rnn`.
    eps, lengths, overrun, reverse, states_mask
        As in `rnn`.
    zoneout : pair of array_like, optional
        As in `rnn`, for h and for c. With cell "carry" it acts on the normalised c.
    num_heads : int
        With several heads W_hh is block-diagonal: see `block_diagonal`.
    gate_activation : {"sigmoid", "hard_sigmoid"}
        The function of the gates. The hard sigmoid is min(max(a / 6 + 1/2, 0), 1).

    Returns
    -------
    y : array of shape (T, B, P)
        Outputs, 0 past a length.
    state : (h, c)
        Arrays (B, P) and (B, H), at each sequence's end.
    tape : Tape
        The argument of `lstm_backward`.

    Examples
    --------
    >>> import numpy as np
    >>> from lnrnn import reference
    >>> weights = {"weight_ih": np.eye(12, 4), "weight_hh": np.eye(12, 3)}
    >>> y, (h, c), tape = reference.lstm(np.ones((5, 2, 4)), weights)
    >>> y.shape
    (5, 2, 3)
    """
    cell = cell if norm in BY_ROW else {"batch": "out", None: None}[norm]
    options: dict[str, Any] = dict(
        placement=placement if norm in BY_ROW else "split", cell=cell, num_heads=num_heads
    )
    options |= dict(gate_activation=gate_activation, peepholes=parameters.get("peephole") is not None)
    sites = dict(LSTM_SITES[placement if norm in BY_ROW else norm])
    if options["peepholes"]:
        for k, gate in enumerate("ifo"):
            sites[f"peephole {gate}"] = Site("peephole", None, first=k, normed=False)
    if cell:
        sites["c"] = Site("gain_c", "bias_c")
    how = (norm, eps, lengths, statistics, overrun, reverse, states_mask, zoneout or (None, None))
    return run(
        (lstm_step, lstm_step_backward), options, sites, x, with_heads(parameters, num_heads), (h0, c0), *how
    )


def lstm_backward(
    tape: Tape, gy: ArrayLike, gh: ArrayLike | None = None, gc: ArrayLike | None = None
) -> tuple[Array, State, dict[str, Array]]:
    """Return gx, (gh0, gc0) and the parameters' gradients, with other arguments as in `rnn_backward`.

    Parameters
    ----------
    gy, gh, gc : array_like of shapes (T, B, P), (B, P) and (B, H)
        Gradients of y, and of the last h and c, zeros by default.
    """
    gx, state, grads = run_backward(tape, gy, (gh, gc))
    return gx, state, heads_backward(tape, grads)


# --- calibration --------------------------------------------------------------------------------------------


def calibrate(
    batches: Iterable[tuple[ArrayLike, ArrayLike | None]],
    *parameters: Any,
    cell: Callable[..., Any] = rnn,
    **options: Any,
) -> tuple[Any, ...]:
    """Return mean, biased variance and count of each step, over the active sequences of all batches.

    All sequences run as one batch, so their division into batches has no effect. Errors are as in `rnn`.

    Parameters
    ----------
    batches : iterable of (x, lengths)
        lengths None means whole sequences.
    cell : {rnn, lstm, gru, ligru}
        The function to call with `parameters` and `options`.

    Returns
    -------
    mean, var, count
        For `rnn`. For other cells a dict of (mean, var) by name of the norm, "ih", "hh" or "c", and count.

    Examples
    --------
    >>> import numpy as np
    >>> from lnrnn import reference
    >>> batches = [(np.ones((5, 2, 4)), None), (np.zeros((3, 1, 4)), None)]
    >>> mean, var, count = reference.calibrate(batches, np.eye(3, 4), np.eye(3))
    >>> count
    array([3, 3, 3, 2, 2])
    """
    arrays = [(real(x), n) for x, n in batches]
    whole = [(x, np.full(x.shape[1], x.shape[0]) if n is None else np.asarray(n)) for x, n in arrays]
    t_max = max(x.shape[0] for x, _ in whole)
    x = np.concatenate([np.pad(x, ((0, t_max - x.shape[0]), (0, 0), (0, 0))) for x, _ in whole], axis=1)
    lengths = np.concatenate([n for _, n in whole])
    _, _, tape = cell(x, *parameters, norm="batch", lengths=lengths, **options)
    return (tape.mean, tape.var, tape.count) if cell is rnn else (tape.statistics, tape.count)
