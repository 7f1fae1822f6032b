"""Tests dropout in forward_train: masks, the number of dropped values, seeds, and errors."""

from __future__ import annotations

import hashlib
import math
import pickle

import numpy as np
import pytest

import lnrnn
from lnrnn import DropoutSpec
from networks import (
    VARIANTS,
    drawn_state,
    each_cell,
    each_norm,
    equal,
    equal_arrays,
    network,
    normal,
    same,
    zone_out,
)

ALL = DropoutSpec(0.3, inputs=0.2, states=0.4)
D, H, T, B = 5, 17, 9, 8


def deep(cell="LSTM", zoneout=0.25, **options):
    rnn = network(D, H, cell=cell, num_layers=2, bidirectional=True, **options)
    rnn.zoneout = zoneout
    return rnn


def masks_of(rnn, seed=0, T=T, B=B, dropout=ALL, **more):
    return rnn.forward_train(np.zeros((T, B, D)), dropout=dropout, seed=seed, **more)[2].masks


def within(dropped, rate):
    """Returns True if the probability of so many dropped values is above 1e-6. The probability is Chernoff's
    bound for the tails of the binomial distribution."""
    n, found = dropped.size, dropped.mean()
    if found in (0, 1):
        return rate == found
    distance = found * math.log(found / rate) + (1 - found) * math.log((1 - found) / (1 - rate))
    return n * distance < math.log(2e6)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_rate_is_the_fraction_of_dropped_values(rate):
    rnn = lnrnn.LSTM(300, 64, num_layers=2, bidirectional=True, seed=0)
    rnn.zoneout = rate, 1 - rate
    spec = DropoutSpec(rate, inputs=rate, states=rate)
    masks = rnn.forward_train(np.zeros((20, 50, 300)), dropout=spec, seed=1)[2].masks
    assert [m.shape for m in masks.inputs] == [(50, 300), (50, 128)]
    assert masks.between[0] is None and masks.between[1].shape == (20, 50, 128)
    assert [m.shape for m in masks.states] == [(50, 64)] * 4
    assert [[m.shape for m in pair] for pair in masks.zoneout] == [[(20, 50, 64)] * 2] * 4
    for mask in (*masks.inputs, *masks.states):
        assert within(mask == 0, rate)
        same(np.unique(mask), np.float32([0, 1 / (1 - rate)]))
    assert within(~masks.between[1], rate) and masks.scale == 1 / (1 - rate)
    for h, c in masks.zoneout:
        assert within(h, rate) and within(c, 1 - rate)


def test_masks_are_numbers_of_philox():
    """Other programs can draw the masks of each kind, layer and direction by Philox, a documented
    generator."""
    rnn = lnrnn.GRU(64, 64, seed=0)
    zone_out(rnn, 0.3)
    masks = rnn.forward_train(np.zeros((20, 60, 64)), dropout=DropoutSpec(inputs=0.3), seed=[7, 8])[2].masks
    for kind, rate, dropped in ((1, 0.3, masks.inputs[0] == 0), (3, 0.3, masks.zoneout[0][0])):
        stream = np.random.Philox(np.random.SeedSequence([7, 8], spawn_key=(kind, 0, 0)))
        words = stream.random_raw(dropped.size // 2)
        halves = np.stack([words & 0xFFFFFFFF, words >> np.uint64(32)], axis=1).reshape(dropped.shape)
        same(dropped, halves < round(rate * 2**32))


def test_masks_of_a_seed_never_change():
    """The expected masks are stored, because later versions must drop the same values for a seed."""
    drawn = masks_of(deep(), seed=12345, T=2, B=1).arrays()
    digest = hashlib.sha256(b"".join(np.packbits(m > 0).tobytes() for m in drawn))
    assert digest.hexdigest()[:32] == "876f8c86110abefc57dec1152a48499c"


@each_cell
def test_the_same_seed_drops_the_same_values(rng, cell):
    rnn = deep(cell)
    x, h0, lengths = normal(rng, T, B, D), drawn_state(rng, rnn, B), rng.integers(0, T + 1, B)
    run = lambda **more: rnn.forward_train(x, h0, lengths, **dict(dropout=ALL, seed=5) | more)  # noqa: E731
    want = run()[:2]
    equal(rnn, run()[:2], want)
    for seed in ((5,), [5], np.array([5]), np.int64(5), np.array(5)):
        equal(rnn, run(seed=seed)[:2], want)
    for other in (run(seed=6), run(seed=[5, 1]), run(seed=None), run(seed=2**70)):
        assert (other[0] != want[0]).any()
    assert (run(seed=None)[0] != run(seed=None)[0]).any()


@pytest.mark.parametrize("variant", [name for name in VARIANTS if "batch" not in name])
def test_masks_do_not_depend_on_padding(rng, variant):
    """Masks do not depend on the lengths of other sequences, nor on values of x past a length."""
    rnn = network(D, H, num_layers=2, bidirectional=True, **VARIANTS[variant])
    zone_out(rnn, 0.25)
    x, lengths = normal(rng, T, B, D), rng.integers(0, T + 1, B)
    y, state, _ = rnn.forward_train(x, None, lengths, dropout=ALL, seed=5)
    longer = np.full((T + 4, B, D), np.nan, np.float32)
    for b, n in enumerate(lengths):
        longer[:n, b] = x[:n, b]
    padded, end, tape = rnn.forward_train(longer, None, lengths, dropout=ALL, seed=5)
    same(padded[:T], y)
    equal(rnn, (padded[:T], end), (y, state))
    assert not padded[T:].any()
    gx, _, grads = rnn.backward(tape, np.ones_like(padded))
    assert all(np.isfinite(g).all() for g in (gx, *grads.values()))
    others = np.where(np.arange(B) == 3, lengths, T)
    alone, _, _ = rnn.forward_train(x, None, others, dropout=ALL, seed=5)
    same(alone[: lengths[3], 3], y[: lengths[3], 3])


@each_cell
@each_norm
def test_rates_of_zero_change_nothing(rng, cell, norm):
    rnn = network(D, H, cell=cell, norm=norm, num_layers=2)
    x, gy = normal(rng, T, B, D), normal(rng, T, B, H)
    *want, tape = rnn.forward_train(x)
    gradients = rnn.backward(tape, gy)[2]
    for dropout in (0, 0.0, None, DropoutSpec(), np.float64(0)):
        *got, tape = rnn.forward_train(x, dropout=dropout, seed=3)
        equal(rnn, got, want)
        assert tape.masks is None
        equal_arrays(rnn.backward(tape, gy)[2], gradients)


def test_masks_of_a_tape_are_read_only():
    for mask in (masks := masks_of(deep())).arrays():
        assert not mask.flags.writeable
    assert len(masks.arrays()) == 2 + 1 + 4 + 8


def test_dropout_between_layers_needs_two_layers():
    rnn = network(D, H)
    with pytest.warns(UserWarning, match="dropout between layers has no effect: RNN has one layer") as caught:
        tape = rnn.forward_train(np.zeros((T, B, D)), dropout=0.5)[2]
    assert caught[0].filename == __file__ and tape.masks is None


def test_dropout_specs_compare_by_value():
    spec = DropoutSpec(0.3, inputs=np.float32(0.25), states=0)
    assert spec == DropoutSpec(0.3, inputs=0.25) and hash(spec) == hash(DropoutSpec(0.3, inputs=0.25))
    assert repr(spec) == "DropoutSpec(between=0.3, inputs=0.25)"
    assert pickle.loads(pickle.dumps(spec)) == spec
