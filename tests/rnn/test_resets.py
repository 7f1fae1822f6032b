"""A sequence with resets has the results of its parts as separate sequences. Also tests rnn.ragged."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from networks import (
    VARIANTS,
    drawn_state,
    each_cell,
    each_variant,
    equal_arrays,
    network,
    normal,
    parts,
    same,
    unchanged,
    whole,
    widths,
)

D, H, T, B = 3, 17, 9, 8


def cuts(resets, lengths, b):
    """Returns [(first step, end)] of the parts of sequence b."""
    at = [0, *(t for t in range(1, lengths[b]) if resets[t, b]), lengths[b]]
    return list(zip(at[:-1], at[1:], strict=True))


def laid(rnn, a):
    return a.swapaxes(0, 1) if rnn.batch_first else a


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
        assert isinstance(caught.value, ValueError)
