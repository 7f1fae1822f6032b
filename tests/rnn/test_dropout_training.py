"""Training with dropout and zoneout has the results of the reference with the same masks.

Compares outputs and gradients of every cell and norm, of layers and directions, with lengths and resets.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import lnrnn
from helpers import absolute_error, on_every_family, relative_error
from lnrnn import DropoutSpec
from networks import (
    KINK,
    VARIANTS,
    WITH_INNER_BIASES,
    calm,
    drawn_state,
    each_cell,
    kink,
    named_gradients,
    normal,
    parts,
    reference_backward,
    reference_forward,
    same,
    taken,
    widths,
)

T = 9

# The tolerance is that of tests/rnn/test_training.py.
GRADIENT = 3e-6

# {name of the test case: (DropoutSpec, whether zoneout is used too)}.
KINDS = {
    "states": (DropoutSpec(states=0.4), False),
    "zoneout": (DropoutSpec(), True),
    "inputs": (DropoutSpec(inputs=0.3), False),
    "all": (DropoutSpec(inputs=0.2, states=0.4), True),
}


def zoned(rnn):
    rnn.zoneout = (0.3, 0.2) if type(rnn) is lnrnn.LSTM else 0.3
    return rnn


def masks_of(rnn, x, spec, seed):
    return rnn.forward_train(x, dropout=spec, seed=seed)[2].masks


def truth(rnn, x, h0, ends, gy, gh, masks):
    """Returns (y, state, {name: gradient}) of the reference, or None if a value is near a kink of relu (see
    `kink`)."""
    y, h, tapes = reference_forward(rnn, x, h0, ends, training=True, masks=masks)
    found = named_gradients(rnn, reference_backward(rnn, tapes, gy, gh, masks))
    return (y, h, found) if kink(rnn, tapes) > KINK else None


def trained(rnn, x, h0, ends, gy, gh, spec, seed=5):
    """Returns (y, state, {name: gradient}) of lnrnn."""
    y, h, tape = rnn.forward_train(x, h0, ends, dropout=spec, seed=seed)
    return y, h, named_gradients(rnn, rnn.backward(tape, gy, gh))


# The kernels compute relu's slope from h. With zoneout h may be the state of an earlier step, so test relu
# too.
ALL = WITH_INNER_BIASES | {
    f"RNN {name}": dict(cell="RNN", nonlinearity=name) for name in ("relu", "sigmoid", "identity")
}


# Each variant meets all kinds together, and one kind alone.
@pytest.mark.parametrize("kind, variant", [
    *((k, v) for i, k in enumerate([*KINDS][:3]) for v in [*VARIANTS][i::3]), *(("all", v) for v in ALL),
])  # fmt: skip
def test_every_placement_equals_the_reference(variant, kind):
    """Sizes are near the widths of vectors. The plan divides 70 sequences into groups. All kinds together
    meet the first or the third size, or the second one, which the next variant has."""
    (spec, zoneout), sizes = KINDS[kind], [(33, 16, 9), (17, 7, 70), (48, 5, 12)]
    first = [*ALL].index(variant) % 2 if kind == "all" else 0
    for k, (hidden, inputs, batch) in [*enumerate(sizes)][first : 3 if kind == "all" else 1 : 2]:
        rng, want = np.random.default_rng(k), None
        rnn = calm(inputs, hidden, seed=k, **ALL[variant])
        if zoneout and not variant.startswith("SLSTM"):
            kept = ((0.3, 0.2), (0.4, 0), (0, 0.95))[k]  # or only one of them
            rnn.zoneout = kept if type(rnn) is lnrnn.LSTM else kept[0]
        h0, gh = drawn_state(rng, rnn, batch), drawn_state(rng, rnn, batch)
        ends = rng.integers(3 if batch > 64 else 0, T + 1, batch)
        ends[:8] = T
        while want is None:
            x, gy = normal(rng, T, batch, inputs), normal(rng, T, batch, widths(rnn)[0])
            want = truth(rnn, x, h0, ends, gy, gh, masks_of(rnn, x, spec, 5))
        y, h, want = want
        run = partial(trained, rnn, x, h0, ends, gy, gh, spec)
        for isa, got in on_every_family(run, large=k > 0).items():
            assert relative_error(got[0], y) < GRADIENT, isa
            for a, b in zip(parts(rnn, got[1]), parts(rnn, h), strict=True):
                assert relative_error(a, b) < GRADIENT, isa
            assert set(got[2]) == set(want)
            for name, g in got[2].items():
                scale = max(np.abs(want[name]).max(initial=0), 1 if "batch" in variant else 0)
                assert absolute_error(g, want[name]) < GRADIENT * scale, (isa, name, hidden)


@pytest.mark.parametrize("norm", ["layer", None])
@each_cell
def test_a_sequence_with_resets_has_one_mask(cell, norm):
    """A sequence with resets equals its parts as separate sequences with the same masks."""
    rng = np.random.default_rng(6)
    rnn = zoned(calm(5, 17, cell=cell, norm=norm))
    x, gy, resets = normal(rng, T, 4, 5), normal(rng, T, 4, 17), np.zeros((T, 4), bool)
    resets[4], resets[7, 1] = True, True
    spec, start = DropoutSpec(inputs=0.3, states=0.4), drawn_state(rng, rnn, 4)
    y, _, tape = rnn.forward_train(x, start, resets=resets, dropout=spec, seed=5)
    gx, gh0, grads = rnn.backward(tape, gy)
    total = {name: 0 for name in grads}
    for b in range(4):
        cuts = [0, *np.flatnonzero(resets[:, b]), T]
        for k, (first, end) in enumerate(zip(cuts[:-1], cuts[1:], strict=True)):
            masks = part_of(tape.masks, slice(first, end), slice(b, b + 1))
            own = taken(rnn, start, slice(b, b + 1)) if k == 0 else None
            piece = x[first:end, b : b + 1], own, None, gy[first:end, b : b + 1], None
            want_y, _, want = truth(rnn, *piece, masks)
            assert absolute_error(y[first:end, b], want_y[:, 0]) < GRADIENT
            assert absolute_error(gx[first:end, b], want["x"][:, 0]) < 3 * GRADIENT
            if k == 0:
                for got, name in zip(parts(rnn, gh0), ("h0", "c0"), strict=False):
                    assert absolute_error(got[0, b], want[name][0, 0]) < 3 * GRADIENT
            for name in total:
                total[name] = total[name] + want[name]
    for name, g in grads.items():
        assert relative_error(g, total[name]) < GRADIENT, name


def part_of(masks, steps, sequences):
    """Returns the masks of some steps of some sequences."""
    cut = lambda m, where: None if m is None else m[where]  # noqa: E731
    return type(masks)(
        tuple(cut(m, sequences) for m in masks.inputs),
        tuple(cut(m, (steps, sequences)) for m in masks.between),
        masks.scale,
        tuple(cut(m, sequences) for m in masks.states),
        tuple(tuple(cut(m, (steps, sequences)) for m in pair) for pair in masks.zoneout),
    )


@each_cell
def test_batch_norm_sees_values_after_dropout(cell):
    """Batch norm's statistics come from products of the values that dropout leaves. The statistics of an
    LSTM's c come from c before zoneout."""
    rng = np.random.default_rng(8)
    rnn = zoned(calm(5, 17, cell=cell, norm=lnrnn.BatchNormSpec(momentum=None)))
    x, spec = normal(rng, T, 20, 5), DropoutSpec(inputs=0.3, states=0.4)
    ends = np.r_[[T] * 10, rng.integers(1, T + 1, 10)]
    _, _, tape = rnn.forward_train(x, lengths=ends, dropout=spec, seed=5)
    _, _, tapes = reference_forward(rnn, x, None, ends, training=True, masks=tape.masks)
    for side, (mean, var) in tapes["_l0"].statistics.items():
        end = f"{side and '_'}{side}_l0"
        assert absolute_error(getattr(rnn, f"running_mean{end}"), mean) < GRADIENT
        assert absolute_error(getattr(rnn, f"running_var{end}"), var) < GRADIENT
    same(rnn.count_l0, tapes["_l0"].count)
