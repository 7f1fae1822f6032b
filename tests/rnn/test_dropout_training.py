"""Training with dropout and zoneout against the reference with the same masks: outputs and gradients of every
cell and norm, of layers and directions, lengths and resets."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import lnrnn
from helpers import absolute_error, on_every_family, relative_error, several_threads, using_threads
from lnrnn import DropoutSpec, _core
from networks import (
    CELLS,
    KINK,
    NORMS,
    VARIANTS,
    calm,
    drawn_state,
    kink,
    named_gradients,
    network,
    normal,
    parts,
    reference_backward,
    reference_forward,
    taken,
    whole,
)

same = np.testing.assert_array_equal
T = 9

# As without dropout: tests/rnn/test_training.py.
GRADIENT = 3e-6

# What is dropped, by a name for the test: the spec, and whether there is zoneout.
KINDS = {
    "states": (DropoutSpec(states=0.4), False),
    "zoneout": (DropoutSpec(), True),
    "inputs": (DropoutSpec(inputs=0.3), False),
    "all": (DropoutSpec(inputs=0.2, states=0.4), True),
}
DEEP = DropoutSpec(0.3, inputs=0.2, states=0.4)


def zoned(rnn):
    rnn.zoneout = (0.3, 0.2) if type(rnn) is lnrnn.LSTM else 0.3
    return rnn


def masks_of(rnn, x, spec, seed):
    return rnn.forward_train(x, dropout=spec, seed=seed)[2].masks


def truth(rnn, x, h0, ends, gy, gh, masks):
    """(y, state, {name: gradient}) of the reference, or None if x is not fit to compare by: see kink."""
    y, h, tapes = reference_forward(rnn, x, h0, ends, training=True, masks=masks)
    found = named_gradients(rnn, reference_backward(rnn, tapes, gy, gh, masks))
    return (y, h, found) if kink(rnn, tapes) > KINK else None


def trained(rnn, x, h0, ends, gy, gh, spec, seed=5):
    """(y, state, {name: gradient})."""
    y, h, tape = rnn.forward_train(x, h0, ends, dropout=spec, seed=seed)
    return y, h, named_gradients(rnn, rnn.backward(tape, gy, gh))


# --- precision ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_placement(variant, kind):
    """Sizes around the widths of vectors, one sequence and more than a group has."""
    spec, zoneout = KINDS[kind]
    for k, (hidden, inputs, batch) in enumerate([(17, 7, 70), (33, 16, 9), (48, 5, 12)]):
        rng = np.random.default_rng(k)
        rnn = calm(inputs, hidden, seed=k, **VARIANTS[variant])
        rnn = zoned(rnn) if zoneout else rnn
        x, gy = normal(rng, T, batch, inputs), normal(rng, T, batch, hidden)
        h0, gh = drawn_state(rng, rnn, batch), drawn_state(rng, rnn, batch)
        ends = rng.integers(3 if batch > 64 else 0, T + 1, batch)
        ends[:8] = T
        y, h, want = truth(rnn, x, h0, ends, gy, gh, masks_of(rnn, x, spec, 5))
        for isa, got in on_every_family(partial(trained, rnn, x, h0, ends, gy, gh, spec)).items():
            assert relative_error(got[0], y) < GRADIENT, isa
            for a, b in zip(parts(rnn, got[1]), parts(rnn, h), strict=True):
                assert relative_error(a, b) < GRADIENT, isa
            assert set(got[2]) == set(want)
            for name, g in got[2].items():
                scale = max(np.abs(want[name]).max(initial=0), 1 if "batch" in variant else 0)
                assert absolute_error(g, want[name]) < GRADIENT * scale, (isa, name, hidden)


@pytest.mark.parametrize("placement", ["split", "joint", "gate"])
@pytest.mark.parametrize("cell", CELLS)
def test_inner_biases(cell, placement):
    """W_hh (m h) + inner_bias_hh: the bias is not dropped."""
    rng = np.random.default_rng(9)
    rnn = zoned(calm(7, 33, cell=cell, norm=lnrnn.LayerNormSpec(placement, inner_bias=True)))
    x, gy, spec = normal(rng, T, 12, 7), normal(rng, T, 12, 33), KINDS["all"][0]
    y, _, want = truth(rnn, x, None, None, gy, None, masks_of(rnn, x, spec, 5))
    got = trained(rnn, x, None, None, gy, None, spec)
    assert relative_error(got[0], y) < GRADIENT
    for name, g in got[2].items():
        assert relative_error(g, want[name]) < GRADIENT, name


@pytest.mark.parametrize("nonlinearity", ["relu", "sigmoid", "identity"])
def test_every_nonlinearity(nonlinearity):
    """The slope of relu and its like is taken from h, which zoneout may have kept from a step before."""
    rng = np.random.default_rng(1)
    rnn = zoned(calm(7, 33, nonlinearity=nonlinearity))
    spec, h0, gh = KINDS["all"][0], drawn_state(rng, rnn, 12), drawn_state(rng, rnn, 12)
    want = None
    while want is None:
        x, gy = normal(rng, T, 12, 7), normal(rng, T, 12, 33)
        want = truth(rnn, x, h0, None, gy, gh, masks_of(rnn, x, spec, 5))
    y, _, got = trained(rnn, x, h0, None, gy, gh, spec)
    assert relative_error(y, want[0]) < GRADIENT
    for name, g in got.items():
        assert relative_error(g, want[2][name]) < GRADIENT, name


@pytest.mark.parametrize("kept", [(0.4, 0), (0, 0.4), (0.9, 0.95)])
@pytest.mark.parametrize("cell", ["out", "carry", None])
def test_zoneout_of_h_or_of_c(cell, kept):
    rng = np.random.default_rng(2)
    rnn = calm(7, 33, cell="LSTM", norm=lnrnn.LayerNormSpec("split", cell))
    rnn.zoneout = kept
    x, gy = normal(rng, 2 * T, 12, 7), normal(rng, 2 * T, 12, 33)
    h0, gh = drawn_state(rng, rnn, 12), drawn_state(rng, rnn, 12)
    _, _, want = truth(rnn, x, h0, None, gy, gh, masks_of(rnn, x, None, 5))
    for name, g in trained(rnn, x, h0, None, gy, gh, None)[2].items():
        assert relative_error(g, want[name]) < GRADIENT, name


@settings(max_examples=60)
@given(
    st.sampled_from(CELLS),
    st.sampled_from(NORMS),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.sampled_from((15, 17, 33)),
    st.sampled_from((9, 17, 67)),
    st.sampled_from((0, 0.1, 0.6)),
    st.sampled_from((0, 0.3)),
    st.sampled_from((0, 0.3)),
    st.booleans(),
    st.integers(0, 99),
)
@example("LSTM", "layer", 2, True, True, 17, 67, 0.1, 0.3, 0.3, True, 0)
@example("GRU", "batch", 2, True, False, 17, 67, 0.1, 0.3, 0.3, True, 0)
@example("RNN", None, 3, True, True, 17, 9, 0.6, 0, 0.3, False, 0)
def test_layers_and_directions(
    cell, norm, layers, both, batch_first, hidden, batch, between, inputs, states, zoneout, seed
):
    assume(layers > 1 or not between)
    rng = np.random.default_rng(seed)
    options = dict(cell=cell, norm=norm, num_layers=layers, bidirectional=both, batch_first=batch_first)
    rnn = calm(5, hidden, seed=seed, **options)
    rnn = zoned(rnn) if zoneout else rnn
    spec = DropoutSpec(between, inputs=inputs, states=states)
    x, gy = normal(rng, T, batch, 5), normal(rng, T, batch, hidden * (1 + both))
    h0, gh = drawn_state(rng, rnn, batch), drawn_state(rng, rnn, batch)
    ends = rng.integers(0, T + 1, batch)
    ends[:8] = T
    turned = (lambda a: a.swapaxes(0, 1)) if batch_first else np.asarray
    y, _, want = truth(rnn, x, h0, ends, gy, gh, masks_of(rnn, turned(x), spec, seed))
    for isa, got in on_every_family(
        lambda: trained(rnn, turned(x), h0, ends, turned(gy), gh, spec, seed)
    ).items():
        assert relative_error(turned(got[0]), y) < GRADIENT, isa
        got[2]["x"] = turned(got[2]["x"])
        for name, g in got[2].items():
            scale = np.abs(want[name]).max(initial=1)
            assert absolute_error(g, want[name]) < 2 * GRADIENT * scale, (isa, name)


# --- the same bits ------------------------------------------------------------------------------------------


@pytest.fixture
def small_parts():
    """Calls return after every few steps and go on."""
    _core.set_part(4096)
    yield
    _core.set_part(0)


def same_bits(rnn, got, want):
    same(got[0], want[0])
    for a, b in zip(parts(rnn, got[1]), parts(rnn, want[1]), strict=True):
        same(a, b)
    for name, g in want[2].items():
        np.testing.assert_array_equal(got[2][name], g, err_msg=name)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("cell", CELLS)
def test_threads_and_parts_do_not_matter(small_parts, cell, norm):
    rng = np.random.default_rng(3)
    rnn = zoned(network(7, 33, cell=cell, norm=norm, num_layers=2, bidirectional=True))
    ends = rng.integers(0, T + 1, 70)
    args = normal(rng, T, 70, 7), drawn_state(rng, rnn, 70), ends, normal(rng, T, 70, 66)
    run = partial(trained, rnn, *args, drawn_state(rng, rnn, 70), DEEP)
    with using_threads(1):
        want = run()
    _core.set_part(0)
    for threads in (1, 2, 3):
        with using_threads(threads):
            same_bits(rnn, run(), want)


@pytest.mark.parametrize("cell", CELLS)
def test_two_threads_at_work(cell):
    rng = np.random.default_rng(4)
    rnn = zoned(network(64, 200, cell=cell))
    args = normal(rng, T, 130, 64), None, None, normal(rng, T, 130, 200), None
    run = partial(trained, rnn, *args, DropoutSpec(inputs=0.2, states=0.3))
    with using_threads(1):
        want = run()
    with several_threads(2):
        same_bits(rnn, run(), want)


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_added_and_gx_not_wanted(cell):
    rng = np.random.default_rng(5)
    rnn = zoned(network(7, 17, cell=cell, num_layers=2, bidirectional=True))
    x, gy = normal(rng, T, 8, 7), normal(rng, T, 8, 34)
    _, _, tape = rnn.forward_train(x, dropout=DEEP, seed=5)
    gx, gh0, grads = rnn.backward(tape, gy)
    nothing, again, found = rnn.backward(tape, gy, grad_x=False)
    assert nothing is None
    same(parts(rnn, again)[0], parts(rnn, gh0)[0])
    out = {name: np.ones_like(g) for name, g in grads.items()}
    more, _, added = rnn.backward(tape, gy, out=out)
    same(more, gx)
    assert added is out
    for name, g in grads.items():
        same(found[name], g)
        assert absolute_error(out[name], g.astype(float) + 1) < 1e-5 * max(1, np.abs(g).max())


# --- resets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["layer", None])
@pytest.mark.parametrize("cell", CELLS)
def test_a_mask_belongs_to_a_sequence_and_not_to_its_parts(cell, norm):
    """A sequence that is reset is its parts as sequences of their own, each with the masks of its steps."""
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
    """Those of some steps of some sequences."""
    cut = lambda m, where: None if m is None else m[where]  # noqa: E731
    return type(masks)(
        tuple(cut(m, sequences) for m in masks.inputs),
        tuple(cut(m, (steps, sequences)) for m in masks.between),
        masks.scale,
        tuple(cut(m, sequences) for m in masks.states),
        tuple(tuple(cut(m, (steps, sequences)) for m in pair) for pair in masks.zoneout),
    )


@pytest.mark.parametrize("cell", CELLS)
def test_resets_in_either_direction_and_in_layers(cell):
    """No parts' gradients leave them: those of what comes after a reset do not depend on what was before."""
    rng = np.random.default_rng(7)
    rnn = zoned(network(5, 17, cell=cell, num_layers=2, bidirectional=True))
    x, gy, resets = normal(rng, T, 6, 5), normal(rng, T, 6, 34), np.zeros((T, 6), bool)
    resets[4] = True

    def late(x, start):
        y, state, tape = rnn.forward_train(x, start, resets=resets, dropout=DEEP, seed=5)
        gx, gh0, _ = rnn.backward(tape, np.where(np.arange(T)[:, None, None] < 4, 0, gy))
        assert not gx[:4].any()
        assert not parts(rnn, gh0)[0][::2].any()  # of the forward directions
        return y[4:], gx[4:]

    want = late(x, drawn_state(rng, rnn, 6))
    other = np.concatenate([normal(rng, 4, 6, 5), x[4:]])
    start = drawn_state(rng, rnn, 6)
    for s in parts(rnn, start):
        s[1::2] = 0
    want = late(x, start)
    for s in parts(rnn, start):
        s[::2] += 1
    got = late(other, whole(rnn, parts(rnn, start)))
    for a, b in zip(got, want, strict=True):
        same(a, b)


# --- batch norm ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", CELLS)
def test_statistics_are_those_of_what_is_dropped(cell):
    """What is normalised are the products of what was left, and of an LSTM the c before zoneout."""
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
