"""Networks by the reference: how far float32 may be from it."""

from __future__ import annotations

import copy

import numpy as np

from lnrnn import reference as ref
from networks import cell_of, nudged, options_of, parts, reference_forward, whole
from short_weights import flushed, to_bfloat16, to_bits, to_int8

# As in tests/rnn/test_forward.py: relative to the largest number of its kind, at least 1.
WHOLE = 3e-6
DRAWS, FACTOR = 12, 16


def elsewhere(rng, rnn):
    """A copy of rnn, each parameter moved by at most one unit in its last place."""
    other = copy.copy(rnn)
    moved = {name: nudged(rng, value) for name, value in rnn.parameters().items()}
    other.load_state_dict(rnn.state_dict() | moved)
    return other


def compare(judge, kind, compute, got, rnn, states, what: str, factor=1.0, cancels=0.0, want=None) -> None:
    """One execution with several results. compute(rnn, *states) -> those of the reference; want: these,
    where they are known.

    Where an error is beyond WHOLE (times `factor`), the network may amplify roundings: then as much more is
    allowed as FACTOR times what the reference itself moves by, at most, when all that it is given is moved by
    a unit in the last place, and `cancels`, for roundings of what cancels and so does not move.
    """
    judge.counts[kind] += 1
    want, moved = compute(rnn, *states) if want is None else want, None
    for k, g in enumerate(got):
        w = np.asarray(want[k])
        allowed = factor * WHOLE * np.abs(w).max(initial=1)
        if g.size and not np.abs(g - w).max() <= allowed:
            if moved is None:
                moved = amplification(compute, want, rnn, states)
            allowed += FACTOR * moved[k] + cancels
        judge.within(g, w, allowed, f"{what}, result {k}", f"{kind}, amplified" if moved else kind)


def amplification(compute, want, rnn, states) -> list[float]:
    rng, moved = np.random.default_rng(0), [0.0] * len(want)
    for _ in range(DRAWS):
        near = [None if s is None else s if s.dtype.kind == "i" else nudged(rng, s) for s in states]
        for k, value in enumerate(compute(elsewhere(rng, rnn), *near)):
            moved[k] = max(moved[k], float(np.abs(value - want[k]).max(initial=0)))
    return moved


def forward(ends, training: bool = False):
    """-> compute for `compare`: of a network, x (T, B, D) and a state's arrays to y and the state."""

    def compute(rnn, x, *state):
        h0 = None if state[0] is None else whole(rnn, list(state))
        y, h, _ = reference_forward(rnn, x, h0, ends, training)
        return [y, *parts(rnn, h)]

    return compute


def rounded(rnn):
    """A network with float32 weights that computes what rnn.to_dtype("bfloat16") does."""
    other = copy.copy(rnn)
    short = {name: to_bfloat16(np.array(w)) for name, w in rnn.parameters().items() if "weight" in name}
    other.load_state_dict(rnn.state_dict() | short)
    return other


def held(rnn, w):
    """The rows of w as int8, or a unit for bfloat16, holds them, in double precision."""
    if rnn.dtype == "bfloat16":
        return to_bfloat16(flushed(np.asarray(w, np.float32))).astype(float)
    numbers, scale = to_int8(np.asarray(w, np.float32))
    return numbers * scale.astype(float)


def taken(rnn, a):
    """Rows of what such a product takes, in double precision."""
    if rnn.dtype == "bfloat16":
        return to_bfloat16(flushed(np.asarray(a, np.float32))).astype(float)
    numbers, step = to_bits(np.asarray(a, np.float32), rnn.activation_bits)
    return numbers * step.astype(float)


def short_step(rnn, x, state):
    """One step of a network of one layer and direction with weights of int8, or of bfloat16 on a unit:
    x (1, B, D) and the state's arrays (1, B, H) -> y and the state's arrays, in double precision.

    The reference gets what the products get, rounded. In a GRU the old h stands beside the products too, not
    rounded: z of the difference is added.
    """
    p, options = options_of(rnn, "_l0")
    p = dict(p) | {name: held(rnn, p[name]) for name in ("weight_ih", "weight_hh")}
    start = dict(zip(("h0", "c0"), [taken(rnn, state[0][0]), *(s[0] for s in state[1:])], strict=False))
    if cell_of(rnn) == "RNN":
        y, h, _ = ref.rnn(taken(rnn, x), **p, **options, **start)
        return [y, h[None]]
    y, h, tape = getattr(ref, cell_of(rnn).lower())(taken(rnn, x), p, **options, **start)
    if cell_of(rnn) == "LSTM":
        return [y, *(s[None] for s in h)]
    z = tape.steps[0].kept[1]
    h = h + z * (state[0][0].astype(float) - start["h0"])
    return [h[None], h[None]]
