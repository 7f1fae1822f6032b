"""Tests tapes with checkpoint=K, which store the states only every K steps, and the sizes of tapes."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from helpers import relative_error, using_threads
from networks import (
    STARTS,
    VARIANTS,
    calm,
    drawn_state,
    each_variant,
    equal,
    equal_arrays,
    named_gradients,
    normal,
    same,
    widths,
)

T, B = 9, 12
# With checkpoints, the terms of the weights' gradients are added in another order, so the last bits differ.
# The largest measured difference is 6e-7.
SUMS = 2e-6


def drawn(rng, rnn, ragged=True):
    """Returns (arguments of forward_train without resets, arguments of backward)."""
    x, gy = normal(rng, T, B, 5), normal(rng, T, B, widths(rnn)[0] * rnn.num_directions)
    ends = np.r_[[T] * 8, rng.integers(0, T + 1, B - 8)] if ragged else None
    return (x, drawn_state(rng, rnn, B), ends), (gy, drawn_state(rng, rnn, B))


def twins(variant, **options):
    return [calm(5, 17, num_layers=2, bidirectional=True, **VARIANTS[variant], **options) for _ in range(2)]


def zone_out(rnn):
    if not isinstance(rnn, lnrnn.SLSTM):
        rnn.zoneout = (0.1, 0.2) if isinstance(rnn, lnrnn.LSTM) else 0.1


@pytest.mark.parametrize(
    "variant, every", [(v, every) for k, v in enumerate(VARIANTS) for every in (4, (1, 20)[k % 2])]
)
def test_checkpoints_change_no_result(rng, variant, every):
    """Gradients of parameters are equal except for rounding errors. All other results have the same bits."""
    whole, kept = twins(variant)
    given, grads = drawn(rng, whole)
    resets = None if "batch" in variant else rng.random((T, B)) < 0.1
    options = {}
    if every == 4:
        options = dict(dropout=lnrnn.DropoutSpec(0.2, inputs=0.1, states=0.1), seed=3)
        zone_out(whole), zone_out(kept)
    y, h, tape = whole.forward_train(*given, resets, **options)
    again, end, short = kept.forward_train(*given, resets, checkpoint=every, **options)
    equal(whole, (again, end), (y, h))
    equal_arrays(kept.state_dict(), whole.state_dict())
    want = named_gradients(whole, whole.backward(tape, *grads))
    for _ in range(2):  # backward can read a tape twice
        got = named_gradients(kept, kept.backward(short, *grads))
        assert list(got) == list(want)
        for name, g in want.items():
            if name in ("x", *STARTS):
                same(got[name], g, err_msg=name)
            else:
                assert relative_error(got[name], g) < SUMS, name


def test_checkpoints_give_the_same_bits_on_any_number_of_threads(rng):
    rnn = calm(65, 97, cell="LSTM", num_layers=2)
    x, gy = normal(rng, 12, 60, 65), normal(rng, 12, 60, 97)
    found = []
    for threads in (1, 2, 4):
        with using_threads(threads):
            _, _, tape = rnn.forward_train(x, checkpoint=5)
            found.append(named_gradients(rnn, rnn.backward(tape, gy)))
    for other in found[1:]:
        equal_arrays(other, found[0])


def test_checkpoints_with_grad_x_false_and_with_out(rng):
    rnn, _ = twins("GRU split")
    given, grads = drawn(rng, rnn)
    _, _, tape = rnn.forward_train(*given, checkpoint=4)
    gx, _, want = rnn.backward(tape, *grads)
    assert gx is not None
    out = {name: g.copy() for name, g in want.items()}
    gx, _, got = rnn.backward(tape, *grads, grad_x=False, add_to=out)
    assert gx is None and got is out
    for name, g in want.items():
        assert relative_error(out[name], 2 * g) < SUMS, name


@each_variant
def test_tape_bytes_is_the_size_of_a_tape(rng, variant):
    rnn, _ = twins(variant)
    given, _ = drawn(rng, rnn, ragged=False)
    for steps, batch, every in ((T, B, None), (T, B, 1), (T, B, 4), (0, 3, 20), (1, 1, None)):
        _, _, tape = rnn.forward_train(given[0][:steps, :batch], checkpoint=every)
        assert tape.nbytes == rnn.tape_bytes(steps, batch, checkpoint=every)


def test_checkpoints_save_memory():
    rnn = lnrnn.LSTM(64, 64)
    assert rnn.tape_bytes(400, 32, checkpoint=20) < rnn.tape_bytes(400, 32) / 5
