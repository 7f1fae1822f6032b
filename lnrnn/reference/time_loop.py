"""The time loop of all cells of lnrnn.reference, forward and back, over the active sequences of each step.

A cell consists of two functions, for one step of L active sequences with H hidden units:

    forward(options, x_, h_, state, norm) -> new state, kept
    backward(options, gstate, kept, norm) -> gx_, gh_, gold

x_ = W_ih x + inner_bias_ih and h_ = W_hh h + inner_bias_hh are (L, gates * H). A state is a tuple of (L, H);
the output h is first. With weight_hr (P, H) the state's h is W_hr times that output, (L, P) (Sak et al. 2014,
arXiv 1402.1128). norm(site, a) is the norm at that site of the cell, and in backward its gradient.
`kept` is passed from forward to backward. gx_ is the gradient of x_, and so on. gold is the gradient of the
old state, without its part through h_.

All cells have two kinds of dropout. Variational dropout of the states is h_ = W_hh (m h) with one m (B, H)
for all steps (Gal and Ghahramani 2016, arXiv 1512.05287). Other uses of the old state are not dropped.
Zoneout (Krueger et al. 2017, arXiv 1606.01305) replaces the new state s' by d s + (1 - d) s', with the old
state s. In training d is 0 or 1, drawn for each step, sequence and unit. At inference it is the expectation.
An LSTM computes h' from c', and projects it, before zoneout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .norms import (
    Array,
    Moments,
    affine,
    real,
    standardize,
    standardize_backward,
    statistics_at,
)

State = tuple[Array, ...]
Zoneout = tuple[Array | None, ...]  # d (T, B, H) or None for each state, in the order of computation
Options = Mapping[str, Any]
Norm = Callable[[str, Array], Array]
# A cell's functions. If reset_after is False, they also take Reset.forward or Reset.backward.
Forward = Callable[..., tuple[State, Any]]  # (options, x_, h_, state, norm)
Backward = Callable[..., tuple[Array, Array, tuple[Any, ...]]]  # (options, gradient of the state, kept, norm)

# --- the norms inside a cell --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Site:
    """One position of a norm in a cell: names of gain and bias, and the gates that share statistics.

    spans: the first spans[0] gates (H units each) share one mean and variance, the next spans[1] gates the
    next, and so on. first: the index of the gate where the site's slice of gain and bias begins. normed:
    False for a site with a gain but no norm.
    """

    gain: str | None
    bias: str | None
    spans: tuple[int, ...] = (1,)
    first: int = 0
    normed: bool = True

    def cut(self, a: Array) -> list[Array]:
        """Splits `a` (..., gates * H) by the spans into a list of arrays."""
        hidden = a.shape[-1] // sum(self.spans)
        return np.split(a, hidden * np.cumsum(self.spans)[:-1], axis=-1)

    def share(self, width: int) -> slice:
        """Returns this site's slice of gain and bias. width: the number of units of its input."""
        start = self.first * width // sum(self.spans)
        return slice(start, start + width)


@dataclass
class Normed:
    """Results of `normalize` that `normalize_backward` needs."""

    ahat: Array  # (L, W) standardised input; without a norm the input
    mean: Array | None
    var: Array | None  # mean and var: broadcast to (L, W)
    axis: int | None  # axis of the mean; None for given statistics


def normalize(a: Array, kind: str | None, eps: float, site: Site, given: Moments | None = None) -> Normed:
    """Returns the norm of `a` (L, W) before gain and bias, as Normed.

    kind "layer": statistics of each row, for each of the site's spans. "rms": the same with a mean of 0.
    "batch": statistics over the rows, or the `given` (mean, variance) of this step. None: no norm.
    """
    if kind is None:
        return Normed(a, None, None, None)
    if kind == "batch" and given is not None:
        mean, var = given
        return Normed((a - mean) / np.sqrt(var + eps), mean, var, None)
    if kind == "batch":
        ahat, mean, var = standardize(a, 0, eps)
        return Normed(ahat, mean, var, 0)
    centred = kind == "layer"
    pieces = [np.broadcast_arrays(*standardize(piece, -1, eps, centred)) for piece in site.cut(a)]
    ahat, mean, var = (np.concatenate(part, axis=-1) for part in zip(*pieces, strict=True))
    return Normed(ahat, mean, var, -1)


def normalize_backward(g: Array, normed: Normed, kind: str | None, eps: float, site: Site) -> Array:
    """Returns the gradient of `a` of `normalize`. g: the gradient of ahat."""
    if kind is None or normed.var is None:
        return g
    if normed.axis != -1:
        return standardize_backward(g, normed.ahat, normed.var, normed.axis, eps)
    pieces = zip(*map(site.cut, (g, normed.ahat, normed.var)), strict=True)
    found = [standardize_backward(gpart, ahat, var, -1, eps, kind == "layer") for gpart, ahat, var in pieces]
    return np.concatenate(found, axis=-1)


@dataclass
class Norms:
    """The norms of a cell at one step: gain (a - mu) / sigma + bias at each of the `sites`.

    For names that are not in `sites`, `forward` returns its input. Gain and bias are optional.
    """

    sites: dict[str, Site]
    kind: str | None
    eps: float
    parameters: dict[str, Array]
    given: dict[str, Moments | None]  # by site; None: moments of the batch
    at: dict[str, Normed] = field(default_factory=dict)

    def forward(self, name: str, a: Array) -> Array:
        site = self.sites.get(name)
        if site is None:
            return a
        kind = self.kind if site.normed else None
        self.at[name] = normalize(a, kind, self.eps, site, self.given.get(name))
        share = site.share(a.shape[-1])
        found = (None if name is None else self.parameters.get(name) for name in (site.gain, site.bias))
        gain, bias = (p if p is None else p[share] for p in found)
        return affine(self.at[name].ahat, gain, bias)

    def backward(self, grads: dict[str, Array], name: str, gz: Array) -> Array:
        """Returns the input's gradient. gz: the output's. Adds the gradients of gain and bias to `grads`."""
        site = self.sites.get(name)
        if site is None:
            return gz
        normed, share, g = self.at[name], site.share(gz.shape[-1]), gz
        if site.gain is not None and site.gain in grads:
            grads[site.gain][share] += (gz * normed.ahat).sum(0)
            g = gz * self.parameters[site.gain][share]
        if site.bias is not None and site.bias in grads:
            grads[site.bias][share] += gz.sum(0)
        return normalize_backward(g, normed, self.kind, self.eps, site)


# --- sequences ----------------------------------------------------------------------------------------------


def reverse_sequences(x: Array, lengths: Array) -> Array:
    """Reverse each sequence of x (T, B, ...) within its length. Later steps of the result are 0."""
    y = np.zeros_like(x)
    for b, n in enumerate(lengths):
        y[:n, b] = x[:n, b][::-1]
    return y


def product(p: dict[str, Array], v: Array, rows: slice) -> Array:
    """Returns W_hh v + inner_bias_hh for v (L, H), restricted to these rows of W_hh."""
    bias = p.get("inner_bias_hh")
    return affine(v @ p["weight_hh"][rows].T, None, None if bias is None else bias[rows])


def product_backward(p: dict[str, Array], grads: dict[str, Array], g: Array, v: Array, rows: slice) -> Array:
    """Returns the gradient of v. g: of the result. Adds gradients of weight_hh and bias to `grads`."""
    if "inner_bias_hh" in grads:
        grads["inner_bias_hh"][rows] += g.sum(0)
    grads["weight_hh"][rows] += g.T @ v
    gv: Array = g @ p["weight_hh"][rows]
    return gv


@dataclass
class Reset:
    """Computes U_n (r h) of one step of a GRU with reset_after=False.

    h (L, H): the old state after dropout, by which W_hh's other rows are multiplied.
    """

    parameters: dict[str, Array]
    h: Array
    r: Array = field(init=False)
    gh: Array = field(init=False)  # the part of h's gradient through this product

    @property
    def rows(self) -> slice:
        return slice(2 * self.h.shape[1], None)

    def forward(self, r: Array) -> Array:
        self.r = r
        return product(self.parameters, r * self.h, self.rows)

    def backward(self, grads: dict[str, Array], g: Array) -> Array:
        """Returns the gradient of r. g: the gradient of the product."""
        gv: Array = product_backward(self.parameters, grads, g, self.r * self.h, self.rows)
        self.gh = gv * self.r
        gr: Array = gv * self.h
        return gr


@dataclass
class Step:
    """The values of one step that `backward` needs. Rows are the L active sequences."""

    alive: Array  # (L,) indices of active sequences
    x: Array  # (L, I)
    h: Array  # (L, P) multiplied by W_hh
    norms: Norms
    kept: Any
    output: Array  # (L, H) the cell's output before W_hr
    reset: Reset | None = None

    @property
    def ahat(self) -> Array:
        """The result (L, H) of an RNN's norm before gain and bias; without a norm the pre-activation."""
        return self.norms.at[""].ahat


@dataclass
class Tape:
    """The record of a forward run: options, parameters, steps, and batch norm's statistics.

    Statistics are over active sequences, at steps that used the batch's own statistics.
    """

    options: Options
    parameters: dict[str, Array]
    backward: Backward
    lengths: Array
    shape: tuple[int, ...]
    reverse: bool
    steps: list[Step] = field(default_factory=list)
    statistics: dict[str, Moments] | None = None  # site -> (mean, var), each (steps, W)
    count: Array | None = None  # (steps,)
    states_mask: Array | None = None  # (B, P)
    widths: tuple[int, ...] = ()  # of the states
    zoneout: Zoneout = ()

    @property
    def mean(self) -> Array | None:
        """The means (steps, H) of an RNN's norm."""
        return None if self.statistics is None else self.statistics[""][0]

    @property
    def var(self) -> Array | None:
        """The biased variances (steps, H) of an RNN's norm."""
        return None if self.statistics is None else self.statistics[""][1]


def run(
    cell: tuple[Forward, Backward],
    options: Options,
    sites: dict[str, Site],
    x: ArrayLike,
    parameters: Mapping[str, ArrayLike | None],
    state: Sequence[ArrayLike | None],
    norm: str | None,
    eps: float,
    lengths: ArrayLike | None,
    statistics: Mapping[str, tuple[ArrayLike, ArrayLike]] | None,
    overrun: str,
    reverse: bool,
    states_mask: ArrayLike | None,
    zoneout: Sequence[ArrayLike | None],
) -> tuple[Array, State, Tape]:
    """Run one layer in one direction on x (T, B, I), from states (B, *), where None means zeros.

    statistics: maps each site to (mean, var), each of shape (known steps, width of the site), or is None.
    states_mask (B, P): the dropout mask of the old h; None is 1. zoneout: for each state the rate or mask,
    broadcast to (T, B, *), in the order of x; None is 0. Returns y, 0 past a length, the state at each
    sequence's end, and the tape.
    """
    forward, backward = cell
    x, p = real(x), {name: real(v) for name, v in parameters.items() if v is not None}
    dtype, (t_max, batch), wide = np.result_type(x, *p.values()), x.shape[:2], p["weight_hh"].shape[1]
    project = p.get("weight_hr")
    hidden = wide if project is None else project.shape[1]
    lengths = np.full(batch, t_max) if lengths is None else np.asarray(lengths)
    steps = int(lengths.max(initial=0))
    rows = (
        slice(None) if options.get("reset_after", True) else slice(2 * hidden)
    )  # rows of W_hh that multiply h
    given: dict[str, Moments] = {}
    if norm == "batch" and statistics is not None:
        given = {name: (real(mean), real(var)) for name, (mean, var) in statistics.items()}
        for known in given.values() if steps else ():
            statistics_at(steps - 1, known, overrun)  # raises before any computation

    tape = Tape(options, p, backward, lengths, x.shape, reverse)
    if states_mask is not None:
        tape.states_mask = real(states_mask)
    tape.widths = (wide, *[hidden] * (len(state) - 1))
    shapes = [(t_max, batch, width) for width in tape.widths]
    tape.zoneout = tuple(
        None if d is None else np.broadcast_to(real(d), shape)
        for d, shape in zip(zoneout, shapes, strict=True)
    )
    if reverse:
        x = reverse_sequences(x, lengths)
        tape.zoneout = tuple(None if d is None else reverse_sequences(d, lengths) for d in tape.zoneout)
    now = [np.zeros(shape[1:], dtype) if s is None else real(s).astype(dtype)
           for s, shape in zip(state, shapes, strict=True)]  # fmt: skip
    y = np.zeros(shapes[0], dtype)
    for t in range(steps):
        alive = np.flatnonzero(lengths > t)
        old = tuple(s[alive] for s in now)
        x_ = affine(x[t, alive] @ p["weight_ih"].T, None, p.get("inner_bias_ih"))
        h = old[0] if tape.states_mask is None else tape.states_mask[alive] * old[0]
        h_ = product(p, h, rows)
        norms = Norms(sites, norm, eps, p, {name: statistics_at(t, s, overrun) for name, s in given.items()})
        reset = None if rows.stop is None else Reset(p, h)
        more = () if reset is None else (reset.forward,)
        new, kept = forward(options, x_, h_, old, norms.forward, *more)
        tape.steps.append(Step(alive, x[t, alive], h, norms, kept, new[0], reset))
        if project is not None:
            new = (new[0] @ project.T, *new[1:])
        new = zoned(tape.zoneout, t, alive, old, new)
        for whole, part in zip(now, new, strict=True):
            whole[alive] = part
        y[t, alive] = new[0]
    if norm == "batch":
        tape.statistics, tape.count = used_statistics(tape.steps, sites, hidden)
    return (reverse_sequences(y, lengths) if reverse else y), tuple(now), tape


def zoned(zoneout: Zoneout, t: int, alive: Array, old: State, new: State) -> State:
    """Applies zoneout: returns d old + (1 - d) new for each state. d: the mask or rate at step t."""
    each = zip(zoneout, old, new, strict=True)
    return tuple(n if d is None else d[t, alive] * o + (1 - d[t, alive]) * n for d, o, n in each)


def zoned_backward(zoneout: Zoneout, t: int, alive: Array, g: State) -> tuple[State, State]:
    """Returns the gradients of new and old states. g: the gradient of `zoned`'s result."""
    factors = [np.zeros(1) if d is None else d[t, alive] for d in zoneout]
    each = list(zip(factors, g, strict=True))
    return tuple((1 - d) * part for d, part in each), tuple(d * part for d, part in each)


def used_statistics(
    steps: Sequence[Step], sites: Mapping[str, Site], hidden: int
) -> tuple[dict[str, Moments], Array]:
    """Returns Tape's fields `statistics` and `count`."""
    used = [s for s in steps if any(normed.axis == 0 for normed in s.norms.at.values())]
    statistics = {}
    for name, site in [(n, s) for n, s in sites.items() if s.normed]:
        normed, shape = [s.norms.at[name] for s in used], (len(used), hidden * sum(site.spans))
        mean, var = ([getattr(n, v) for n in normed] for v in ("mean", "var"))
        statistics[name] = np.reshape(mean, shape), np.reshape(var, shape)
    return statistics, np.array([len(s.alive) for s in used], np.int64)


def run_backward(
    tape: Tape, gy: ArrayLike, gstate: Sequence[ArrayLike | None]
) -> tuple[Array, State, dict[str, Array]]:
    """Back-propagates through time, from gy (T, B, P) and the gradient of the last state.

    gstate: the last states' gradients, (B, *) each, or None for zeros. Returns gx, the gradient of the
    initial state, and the gradients of the parameters of the forward run. Values of gy past a length have no
    effect, because y is constant after the end.
    """
    p, gy = tape.parameters, real(gy)
    if tape.reverse:
        gy = reverse_sequences(gy, tape.lengths)
    gx = np.zeros(tape.shape, gy.dtype)
    gnow = [np.zeros((gy.shape[1], width), gy.dtype) if g is None else real(g).copy()
            for g, width in zip(gstate, tape.widths, strict=True)]  # fmt: skip
    grads = {name: np.zeros(v.shape, np.result_type(v, gy)) for name, v in p.items()}
    for t in reversed(range(len(tape.steps))):
        s = tape.steps[t]
        first, *others = (g[s.alive] for g in gnow)
        new, held = zoned_backward(tape.zoneout, t, s.alive, (first + gy[t, s.alive], *others))
        if "weight_hr" in p:
            grads["weight_hr"] += new[0].T @ s.output
            new = (new[0] @ p["weight_hr"], *new[1:])
        more = () if s.reset is None else (partial(s.reset.backward, grads),)
        gx_, gh_, gold = tape.backward(tape.options, new, s.kept, partial(s.norms.backward, grads), *more)
        if "inner_bias_ih" in grads:
            grads["inner_bias_ih"] += gx_.sum(0)
        grads["weight_ih"] += gx_.T @ s.x
        gx[t, s.alive] = gx_ @ p["weight_ih"]
        gh = product_backward(p, grads, gh_, s.h, slice(gh_.shape[1]))
        if s.reset is not None:
            gh = gh + s.reset.gh
        if tape.states_mask is not None:
            gh = tape.states_mask[s.alive] * gh
        gold = (gh + gold[0], *gold[1:])
        for whole, part, kept in zip(gnow, gold, held, strict=True):
            whole[s.alive] = part + kept
    return (reverse_sequences(gx, tape.lengths) if tape.reverse else gx), tuple(gnow), grads
