"""A sequence with resets has the results of its parts as separate sequences. Also tests rnn.ragged."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lnrnn
from helpers import using_threads
from networks import (
    VARIANTS,
    drawn_state,
    each_cell,
    each_variant,
    equal,
    equal_arrays,
    network,
    newer_arguments,
    normal,
    parts,
    same,
    taken,
    unchanged,
    whole,
    widths,
    zone_out,
)

D, H, T, B = 3, 17, 9, 8


def cuts(resets, lengths, b):
    """Returns [(first step, end)] of the parts of sequence b."""
    at = [0, *(t for t in range(1, lengths[b]) if resets[t, b]), lengths[b]]
    return list(zip(at[:-1], at[1:], strict=True))


def in_parts(rnn, x, start, lengths, resets):
    """Returns (y, final states) of a network with one layer, computed part by part. x is (T, B, D)."""
    y = np.zeros((*x.shape[:2], rnn.num_directions * widths(rnn)[0]), np.float32)
    ends = [s.copy() for s in parts(rnn, start)]
    for b in range(x.shape[1]):
        pieces = cuts(resets, lengths, b)
        for k, (first, end) in enumerate(pieces):
            begin = taken(rnn, start, slice(b, b + 1))
            found = [s.copy() for s in parts(rnn, begin)]
            for s in found:
                if k or (lengths[b] and resets[0, b]):
                    s[0] = 0
                if rnn.bidirectional and k < len(pieces) - 1:
                    s[1] = 0
            part, end_state = rnn(x[first:end, b : b + 1], whole(rnn, found))
            y[first:end, b : b + 1] = part
            for e, s in zip(ends, parts(rnn, end_state), strict=True):
                if k == len(pieces) - 1:
                    e[0, b] = s[0, 0]
                if rnn.bidirectional and k == 0:
                    e[1, b] = s[1, 0]
    return y, ends


def laid(rnn, a):
    return a.swapaxes(0, 1) if rnn.batch_first else a


@pytest.mark.parametrize("bidirectional", [False, True])
@each_variant
def test_resets_give_the_bits_of_separate_sequences(rng, variant, bidirectional):
    rnn = network(D, H, trained=4, bidirectional=bidirectional, batch_first=True, **VARIANTS[variant])
    if rnn.known_steps is not None:
        rnn.overrun = "last"
    zone_out(rnn, 0.25 if bidirectional else 0)
    x, start = normal(rng, T, B, D), drawn_state(rng, rnn, B)
    resets = rng.random((T, B)) < 0.3
    resets[0] = np.arange(B) % 2
    lengths = np.array([T, T, 0, 0, 1, 5, 7, T])
    y, end = rnn(laid(rnn, x), start, lengths, laid(rnn, resets))
    want, ends = in_parts(lnrnn_twin(rnn), x, start, lengths, resets)
    equal(rnn, (laid(rnn, y), end), (want, whole(rnn, ends)))


def lnrnn_twin(rnn):
    """Returns the same network with batch_first=False."""
    names = ["input_size", "hidden_size", "num_layers", "norm", "bias", "bidirectional"]
    names += ["nonlinearity"] if hasattr(rnn, "nonlinearity") else []
    twin = type(rnn)(seed=0, **{name: getattr(rnn, name) for name in names}, **newer_arguments(rnn))
    twin.load_state_dict(rnn.state_dict())
    twin.zoneout = rnn.zoneout
    if rnn.overrun:
        twin.overrun = rnn.overrun
    return twin


@pytest.mark.parametrize("bidirectional", [False, True])
@each_cell
def test_every_layer_is_reset(rng, cell, bidirectional):
    """Two layers equal two networks of one layer, one after the other, with the same resets."""
    rnn = network(D, H, cell=cell, num_layers=2, bidirectional=bidirectional)
    x, resets = normal(rng, T, B, D), rng.random((T, B)) < 0.3
    lengths = rng.integers(0, T + 1, B)
    inner, below = rnn.num_directions * H, x
    for k in range(2):
        one = getattr(lnrnn, cell)(D if k == 0 else inner, H, bidirectional=bidirectional)
        one.load_state_dict(
            {n.replace(f"_l{k}", "_l0"): v for n, v in rnn.state_dict().items() if f"_l{k}" in n}
        )
        below, _ = one(below, None, lengths, resets)
    same(rnn(x, None, lengths, resets)[0], below)


def test_resets_that_are_all_false_change_nothing(rng):
    rnn = network(D, H, cell="LSTM", num_layers=2, bidirectional=True)
    x, start, lengths = normal(rng, T, B, D), drawn_state(rng, rnn, B), rng.integers(0, T + 1, B)
    want = rnn(x, start, lengths)
    late = np.arange(T)[:, None] >= lengths
    for resets in (np.zeros((T, B), bool), late, list(map(list, np.zeros((T, B), bool)))):
        equal(rnn, rnn(x, start, lengths, resets), want)


def test_resets_of_one_sequence_and_of_an_empty_batch(rng):
    rnn = network(D, H)
    x, resets = normal(rng, T, D), rng.random(T) < 0.5
    same(rnn(x, resets=resets)[0], rnn(x[:, None], resets=resets[:, None])[0][:, 0])
    start = normal(rng, 1, B, H)
    y, h = rnn(np.zeros((0, B, D)), start, resets=np.zeros((0, B), bool))
    same(h, start)
    assert rnn(np.zeros((T, 0, D)), resets=np.zeros((T, 0), bool))[0].shape == (T, 0, H)


@each_variant
@pytest.mark.parametrize("bidirectional", [False, True])
def test_training_with_resets_equals_training_on_the_parts(rng, variant, bidirectional):
    rnn = network(D, H, bidirectional=bidirectional, **VARIANTS[variant])
    x, gy = normal(rng, T, B, D), normal(rng, T, B, rnn.num_directions * widths(rnn)[0])
    start, gend = drawn_state(rng, rnn, B), drawn_state(rng, rnn, B)
    resets, lengths = rng.random((T, B)) < 0.3, rng.integers(0, T + 1, B)
    pieces = [(b, k, cut) for b in range(B) for k, cut in enumerate(cuts(resets, lengths, b))]
    counts = [sum(p[0] == b for p in pieces) for b in range(B)]
    px, pg = (np.zeros((T, len(pieces), a.shape[2]), np.float32) for a in (x, gy))
    shapes = [(rnn.num_directions, len(pieces), width) for width in widths(rnn)]
    pstart, pend = ([np.zeros(shape, np.float32) for shape in shapes] for _ in range(2))
    for i, (b, k, (first, end)) in enumerate(pieces):
        px[: end - first, i], pg[: end - first, i] = x[first:end, b], gy[first:end, b]
        for d in range(rnn.num_directions):
            at_start = k == (counts[b] - 1 if d else 0) and (d or not (lengths[b] and resets[0, b]))
            at_end = k == (0 if d else counts[b] - 1)
            for j in range(len(pstart)):
                pstart[j][d, i] = parts(rnn, start)[j][d, b] if at_start else 0
                pend[j][d, i] = parts(rnn, gend)[j][d, b] if at_end else 0
    twin = network(D, H, bidirectional=bidirectional, **VARIANTS[variant])
    y, _, tape = rnn.forward_train(x, start, lengths, resets)
    gx, gh0, grads = rnn.backward(tape, gy, gend)
    of_parts = np.array([end - first for _, _, (first, end) in pieces])
    py, _, ptape = twin.forward_train(px, whole(rnn, pstart), of_parts)
    pgx, pgh0, pgrads = twin.backward(ptape, pg, whole(rnn, pend))
    for i, (b, k, (first, end)) in enumerate(pieces):
        same(y[first:end, b], py[: end - first, i])
        same(gx[first:end, b], pgx[: end - first, i])
        for d in range(rnn.num_directions):
            if k == (counts[b] - 1 if d else 0):
                for got, want in zip(parts(rnn, gh0), parts(rnn, pgh0), strict=True):
                    fresh = not d and lengths[b] and resets[0, b]
                    same(got[d, b], 0 * want[d, i] if fresh else want[d, i])
    equal_arrays(grads, pgrads)
    equal_arrays(rnn.state_dict(), twin.state_dict())  # includes batch norm's statistics


def of_parts(x, lengths, resets):
    """Returns (x, lengths) of the parts as separate sequences."""
    pieces = [(b, cut) for b in range(x.shape[1]) for cut in cuts(resets, lengths, b)]
    found = np.zeros((len(x), len(pieces), x.shape[2]), np.float32)
    for i, (b, (first, end)) in enumerate(pieces):
        found[: end - first, i] = x[first:end, b]
    return found, np.array([end - first for _, (first, end) in pieces])


@pytest.mark.parametrize("bidirectional", [False, True])
@each_cell
def test_calibration_with_resets_equals_calibration_on_the_parts(rng, cell, bidirectional):
    """Each part counts as a sequence, in any batch."""
    rnn, twin = (
        network(D, H, cell=cell, norm="batch", num_layers=2, bidirectional=bidirectional, batch_first=first)
        for first in (True, False)
    )
    x, resets, lengths = normal(rng, T, B, D), rng.random((T, B)) < 0.3, rng.integers(1, T + 1, B)
    resets[0] = np.arange(B) % 2
    twin.calibrate([of_parts(x, lengths, resets)])
    batches = [
        (laid(rnn, x[:, :3]), lengths[:3], laid(rnn, resets[:, :3])),
        (laid(rnn, x[:, 3:4]), lengths[3:4], laid(rnn, resets[:, 3:4]).tolist()),
        (laid(rnn, x[:, 4:]), lengths[4:], laid(rnn, resets[:, 4:])),
    ]
    rnn.calibrate(iter(batches))
    assert rnn.count_l0.tolist() == twin.count_l0.tolist() and rnn.count_l0[0] > B
    for name, value in twin.state_dict().items():
        np.testing.assert_allclose(rnn.state_dict()[name], value, rtol=0, atol=1e-6, err_msg=name)


def test_the_longest_part_must_fit_the_statistics(rng):
    known = network(D, H, norm="batch", trained=4)
    rnn = network(D, H, norm=lnrnn.BatchNormSpec(max_steps=4))
    x, resets = normal(rng, T, 2, D), np.zeros((T, 2), bool)
    resets[[3, 6]] = True
    known(x, resets=resets)
    rnn.calibrate([(x, None, resets)])
    assert rnn.count_l0.tolist() == [6, 6, 6, 0]
    rnn.forward_train(x, resets=resets)
    resets[3, 1] = False
    for call in (
        lambda: known(x, resets=resets),
        lambda: rnn.calibrate([(x, None, resets)]),
        lambda: rnn.forward_train(x, resets=resets),
    ):
        with unchanged(rnn), pytest.raises(lnrnn.SequenceTooLongError) as caught:
            call()
        assert (caught.value.sequence, caught.value.length, caught.value.known_steps) == (1, 6, 4)


@settings(max_examples=60)
@given(data=st.data())
def test_ragged_gives_the_bits_of_a_padded_call(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    name = data.draw(st.sampled_from(sorted(VARIANTS)))
    rnn = network(
        D, H, num_layers=data.draw(st.integers(1, 2)), bidirectional=data.draw(st.booleans()), trained=T,
        batch_first=data.draw(st.booleans()), **VARIANTS[name],
    )  # fmt: skip
    zone_out(rnn, data.draw(st.sampled_from([0, 0.25])))
    lengths = np.array(data.draw(st.lists(st.integers(0, T), max_size=90)), int)
    lengths = lengths[: data.draw(st.sampled_from([3, 90]))]
    skipped = data.draw(st.integers(0, 2))
    offsets = skipped + np.concatenate([[0], np.cumsum(lengths)])
    values = normal(rng, offsets[-1] + data.draw(st.integers(0, 2)), D)
    start = drawn_state(rng, rnn, len(lengths))
    x = np.zeros((T, len(lengths), D), np.float32)
    for b, n in enumerate(lengths):
        x[:n, b] = values[offsets[b] : offsets[b + 1]]
    with using_threads(data.draw(st.integers(1, 3))):
        want, end = rnn(laid(rnn, x), start, lengths)
        y, h = rnn.ragged(values, offsets, start)
    assert y.shape == (len(values), rnn.num_directions * widths(rnn)[0])
    for b, n in enumerate(lengths):
        same(y[offsets[b] : offsets[b + 1]], laid(rnn, want)[:n, b])
    assert not y[: offsets[0]].any() and not y[offsets[-1] :].any()
    equal(rnn, (0, h), (0, end))
