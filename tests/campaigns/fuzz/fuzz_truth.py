"""Compares networks with the reference, and bounds the error of float32."""

from __future__ import annotations

import copy
import sys
from unittest import mock

import numpy as np

from lnrnn import reference as ref
from lnrnn.reference.norms import sigmoid
from networks import cell_of, nudged, options_of, parts, reference_forward, whole
from short_weights import flushed, to_bfloat16, to_bits, to_int8

# The tolerance of tests/rnn/test_forward.py, relative to a value or to 1.
WHOLE = 3e-6
DRAWS, FACTOR = 12, 16


def nudged_network(rng, rnn):
    """Returns a copy of rnn whose parameters differ by at most one ULP."""
    other = copy.copy(rnn)
    changed = {name: nudged(rng, value) for name, value in rnn.parameters().items()}
    other.load_state_dict(rnn.state_dict() | changed)
    return other


def compare(judge, kind, compute, got, rnn, states, label: str, factor=1.0, cancels=0.0, want=None) -> None:
    """Counts one execution, and compares its results with `want` or with the reference, compute(rnn,
    *states).

    Each number is judged by its own size, or by 1 if it is smaller. If the network amplifies roundings,
    errors may exceed factor * WHOLE. The bound then grows by FACTOR times the largest change of the number
    in the reference if arguments change by one ULP. It also grows by `cancels`, for terms that cancel. A
    change need not reach every number, as roundings within the steps do. So gradients, with `cancels`, have
    the largest change of a result, and several layers have its largest size too."""
    judge.counts[kind] += 1
    want, changes = compute(rnn, *states) if want is None else want, None
    one = rnn.num_layers == 1
    own = one and not cancels
    for k, g in enumerate(got):
        w = np.asarray(want[k])
        size = np.abs(w) if one else np.abs(w).max(initial=0)
        allowed = factor * WHOLE * np.maximum(1, size)
        if not (np.abs(g - w) <= allowed).all():
            if changes is None:
                changes = amplification(compute, want, rnn, states, own)
            allowed = allowed + FACTOR * (changes[k] if own else changes[k].max()) + cancels
        judge.within(g, w, allowed, f"{label}, result {k}", f"{kind}, amplified" if changes else kind)


def amplification(compute, want, rnn, states, alone: bool) -> list[np.ndarray]:
    """Returns the largest changes of each result if the arguments change by one ULP.

    alone: each number is judged by its own change, so the gates of a LiGRU change too. A gate that is 1 in
    float32 stays 1: then h is z h, however large the candidate is."""
    rng, changes = np.random.default_rng(0), [np.zeros(np.shape(w)) for w in want]

    def rounded_gate(a):
        z = np.float32(sigmoid(a))
        return np.where(z == 1, z, nudged(rng, z)).astype(float)

    module = sys.modules["lnrnn.reference.ligru"]  # the package has a function of this name
    with mock.patch.object(module, "sigmoid", rounded_gate if alone else sigmoid):
        for _ in range(DRAWS):
            near = [None if s is None else s if s.dtype.kind == "i" else nudged(rng, s) for s in states]
            for k, value in enumerate(compute(nudged_network(rng, rnn), *near)):
                changes[k] = np.maximum(changes[k], np.abs(value - want[k]))
    return changes


def forward(ends, training: bool = False, masks=None):
    """Returns the argument `compute` of `compare` that runs the reference on x (T, B, D) and a state."""

    def compute(rnn, x, *state):
        h0 = None if state[0] is None else whole(rnn, list(state))
        y, h, _ = reference_forward(rnn, x, h0, ends, training, masks)
        return [y, *parts(rnn, h)]

    return compute


def rounded(rnn):
    """Returns a float32 network with the weights of rnn.to_dtype("bfloat16")."""
    other = copy.copy(rnn)
    short = {name: to_bfloat16(np.array(w)) for name, w in rnn.parameters().items() if "weight" in name}
    other.load_state_dict(rnn.state_dict() | short)
    return other


def rounded_rows(rnn, a, bits: int = 0):
    """Rounds rows as products with rnn's type of weights do: to bfloat16, or to integers of ``bits`` bits, or
    as weights."""
    if rnn.dtype == "bfloat16":
        return to_bfloat16(flushed(np.asarray(a, np.float32))).astype(float)
    a = np.asarray(a, np.float32)
    numbers, scale = to_bits(a, bits) if bits else to_int8(a)
    return numbers * scale.astype(float)


def short_step(rnn, x, state):
    """x (1, B, D), states (1, B, H). Returns y and the new state in double precision.

    rnn has one layer and direction, weights of int8 or bfloat16, and products that also round x and h. The
    reference gets the rounded arrays. A GRU's z h has no rounding of h, so z times the rounding error of h is
    added."""
    p, options = options_of(rnn, "_l0")
    p = dict(p) | {name: rounded_rows(rnn, p[name]) for name in ("weight_ih", "weight_hh")}
    rounded_x, rounded_h = (rounded_rows(rnn, a, rnn.activation_bits) for a in (x, state[0][0]))
    start = dict(zip(("h0", "c0"), [rounded_h, *(s[0] for s in state[1:])], strict=False))
    if cell_of(rnn) == "RNN":
        y, h, _ = ref.rnn(rounded_x, **p, **options, **start)
        return [y, h[None]]
    y, h, tape = getattr(ref, cell_of(rnn).lower())(rounded_x, p, **options, **start)
    if cell_of(rnn) == "LSTM":
        return [y, *(s[None] for s in h)]
    z = tape.steps[0].kept[0 if cell_of(rnn) == "LiGRU" else 1]
    h = h + z * (state[0][0].astype(float) - start["h0"])
    return [h[None], h[None]]
