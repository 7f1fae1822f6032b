"""Tapes that keep the states every K steps, and the size of tapes."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from bad_values import NO_INTEGER, label
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
)

T, B = 9, 12
# Gradients of weights are the same sums in another order. Measured at most: 6e-7.
SUMS = 2e-6


def drawn(rng, rnn, ragged=True):
    """Arguments of forward_train except resets, and of backward."""
    x, gy = normal(rng, T, B, 5), normal(rng, T, B, 17 * rnn.num_directions)
    ends = np.r_[[T] * 8, rng.integers(0, T + 1, B - 8)] if ragged else None
    return (x, drawn_state(rng, rnn, B), ends), (gy, drawn_state(rng, rnn, B))


def twins(variant, **options):
    """Two equal networks."""
    return [calm(5, 17, num_layers=2, bidirectional=True, **VARIANTS[variant], **options) for _ in range(2)]


def zone_out(rnn):
    if not isinstance(rnn, lnrnn.SLSTM):
        rnn.zoneout = (0.1, 0.2) if isinstance(rnn, lnrnn.LSTM) else 0.1


@pytest.mark.parametrize("every", [1, 4, T, 20])
@each_variant
def test_the_same_run(rng, variant, every):
    """The gradients of parameters are summed in another order. All other results have the same bits."""
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
    for _ in range(2):  # the tape can be read again
        got = named_gradients(kept, kept.backward(short, *grads))
        assert list(got) == list(want)
        for name, g in want.items():
            if name in ("x", *STARTS):
                same(got[name], g, err_msg=name)
            else:
                assert relative_error(got[name], g) < SUMS, name


def test_threads(rng):
    rnn = calm(65, 97, cell="LSTM", num_layers=2)
    x, gy = normal(rng, 12, 60, 65), normal(rng, 12, 60, 97)
    found = []
    for threads in (1, 2, 4):
        with using_threads(threads):
            _, _, tape = rnn.forward_train(x, checkpoint=5)
            found.append(named_gradients(rnn, rnn.backward(tape, gy)))
    for other in found[1:]:
        equal_arrays(other, found[0])


def test_gradients_that_are_not_wanted_or_added(rng):
    rnn, _ = twins("GRU split")
    given, grads = drawn(rng, rnn)
    _, _, tape = rnn.forward_train(*given, checkpoint=4)
    gx, _, want = rnn.backward(tape, *grads)
    assert gx is not None
    out = {name: g.copy() for name, g in want.items()}
    gx, _, got = rnn.backward(tape, *grads, grad_x=False, out=out)
    assert gx is None and got is out
    for name, g in want.items():
        assert relative_error(out[name], 2 * g) < SUMS, name


@each_variant
@pytest.mark.parametrize("every", [None, 1, 4, 20])
def test_bytes(rng, variant, every):
    rnn, _ = twins(variant)
    given, _ = drawn(rng, rnn, ragged=False)
    for steps, batch in ((T, B), (0, 3), (1, 1)):
        x = given[0][:steps, :batch]
        assert rnn.forward_train(x, checkpoint=every)[2].nbytes == rnn.tape_bytes(
            steps, batch, checkpoint=every
        )


def test_checkpoints_save_memory():
    rnn = lnrnn.LSTM(64, 64)
    assert rnn.tape_bytes(400, 32, checkpoint=20) < rnn.tape_bytes(400, 32) / 5


@pytest.mark.parametrize("wrong", [0, -1, *NO_INTEGER], ids=label)
def test_wrong_numbers(wrong):
    rnn = lnrnn.RNN(3, 4)
    if wrong is not None:
        for call in (
            lambda: rnn.forward_train(np.zeros((2, 1, 3)), checkpoint=wrong),
            lambda: rnn.tape_bytes(2, 1, checkpoint=wrong),
        ):
            with pytest.raises((TypeError, ValueError), match="checkpoint must"):
                call()
    if not isinstance(wrong, int) or isinstance(wrong, bool) or wrong < 0:
        for name, sizes in (("T", (wrong, 1)), ("B", (1, wrong))):
            with pytest.raises((TypeError, ValueError), match=f"{name} must"):
                rnn.tape_bytes(*sizes)
