"""With reverse=True, results have the bits of a forward network on reversed sequences."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from helpers import relative_error
from lnrnn import reference as ref
from networks import (
    STARTS,
    VARIANTS,
    drawn_state,
    each_cell,
    each_variant,
    equal,
    equal_arrays,
    learn,
    named_gradients,
    network,
    normal,
    parts,
    same,
    whole,
)

D, H, T, B = 3, 17, 9, 8
# The two networks add the terms of gradients in different orders. The largest measured difference is 6e-7.
SUMS = 2e-6


def pair(variant, **options):
    """Returns a forward network, and a reverse one with the same parameters."""
    forward, back = (network(D, H, reverse=r, **VARIANTS[variant], **options) for r in (False, True))
    equal_arrays(back.state_dict(), forward.state_dict())
    return forward, back


def turned(resets, lengths):
    """Returns the resets that divide the reversed sequences into the same parts."""
    found = np.zeros_like(resets)
    for b, n in enumerate(lengths):
        found[1:n, b] = resets[1:n, b][::-1]
    return found


@each_variant
@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_training_equals_that_of_reversed_sequences(rng, variant, layers, resets):
    forward, back = pair(variant, num_layers=layers)
    x, start, lengths = normal(rng, T, B, D), drawn_state(rng, forward, B), rng.integers(0, T + 1, B)
    gy, gend = normal(rng, T, B, getattr(forward, "proj_size", 0) or H), drawn_state(rng, forward, B)
    cut = rng.random((T, B)) < 0.3 if resets else None
    other = turned(cut, lengths) if resets else None
    x_, gy_ = (ref.reverse_sequences(a, lengths) for a in (x, gy))
    if resets and back.known_steps is not None:
        return  # the parts of a sequence, and so sums over the batch, have another order
    results = []
    for rnn, inputs, gradient, where in ((forward, x_, gy_, other), (back, x, gy, cut)):
        y, end, tape = rnn.forward_train(inputs, start, lengths, where)
        results.append(((y, end), named_gradients(rnn, rnn.backward(tape, gradient, gend))))
    (want, grads), (got, found) = results
    equal(back, got, (ref.reverse_sequences(want[0], lengths), want[1]))
    grads["x"] = ref.reverse_sequences(grads["x"], lengths)
    for name, value in grads.items():
        error = relative_error(found[name], value)
        assert error <= (SUMS if resets and name not in ("x", *STARTS) else 0), (name, error)
    equal_arrays(back.state_dict(), forward.state_dict())


@each_variant
def test_reverse_is_the_second_of_two_directions(rng, variant):
    both = network(D, H, bidirectional=True, **VARIANTS[variant])
    learn(both, rng, T, 16)
    back = network(D, H, reverse=True, **VARIANTS[variant])
    back.load_state_dict(
        {n.removesuffix("_reverse"): v for n, v in both.state_dict().items() if n.endswith("_reverse")}
    )
    x, start, lengths = normal(rng, T, B, D), drawn_state(rng, both, B), rng.integers(0, T + 1, B)
    own = whole(back, [s[1:] for s in parts(both, start)])
    y, end = both(x, start, lengths)
    got, last = back(x, own, lengths)
    same(got, y[..., y.shape[-1] // 2 :])
    for a, b in zip(parts(back, last), parts(both, end), strict=True):
        same(a, b[1:])


@each_cell
def test_reverse_works_with_dropout_and_checkpoints(rng, cell):
    back = network(D, H, cell=cell, reverse=True, num_layers=2)
    back.zoneout = 0.2
    x, lengths, gy = normal(rng, T, B, D), rng.integers(0, T + 1, B), normal(rng, T, B, H)
    options = dict(dropout=lnrnn.DropoutSpec(0.2, states=0.1), seed=3)
    y, end, tape = back.forward_train(x, None, lengths, **options)
    again, last, short = back.forward_train(x, None, lengths, **options, checkpoint=4)
    equal(back, (again, last), (y, end))
    whole, parts = (back.backward(t, gy)[2] for t in (tape, short))
    for name, value in whole.items():
        np.testing.assert_allclose(parts[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@each_cell
def test_files_and_pickles_without_reverse(cell, tmp_path):
    pytest.importorskip("safetensors", reason="models are saved by the safetensors package")
    forward, back = pair(cell if cell == "RNN" else f"{cell} split" + " out" * (cell == "LSTM"))
    assert "reverse=True" in repr(back) and "reverse" not in repr(forward)
    assert not any("reverse" in name for name in back.state_dict())
    forward.save(tmp_path / "n")
    assert b"reverse" not in (tmp_path / "n").read_bytes()
    assert lnrnn.load(tmp_path / "n").reverse is False
    state = forward.__getstate__()
    state.pop("reverse")  # a pickle of an earlier version
    old = type(forward).__new__(type(forward))
    old.__setstate__(state)
    assert old.reverse is False
