"""What a stream's call returns: a new array, or `out`, in any layout."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from helpers import bad_outs, layouts, named
from networks import NORMS, network, normal

T = 9


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("batch, hidden, layers", [(1, 1, 1), (1, 33, 2), (5, 48, 1), (70, 17, 3)])
def test_out_in_every_layout(family, rng, norm, batch, hidden, layers):
    """The bits of a fresh array, in `out` itself, and nowhere beside it."""
    rnn = network(3, hidden, norm=norm, num_layers=layers, trained=T)
    x = normal(rng, T, batch, 3)
    y = rnn(x)[0]
    blank = np.zeros((batch, hidden), np.float32)
    for layout, out in layouts(blank).items():
        if out.flags.writeable and out.dtype == np.float32:  # not those that are refused, below
            stream = rnn.stream(batch)
            for row, want in zip(x, y, strict=True):
                assert stream(row, out=out) is out
                np.testing.assert_array_equal(out, want, err_msg=layout)
            np.testing.assert_array_equal(stream.state, rnn(x)[1])
    around = np.full((batch + 2, hidden + 2), 7, np.float32)
    stream = rnn.stream(batch)
    for row, want in zip(x, y, strict=True):
        stream(row, out=around[1:-1, 1:-1])
        np.testing.assert_array_equal(around[1:-1, 1:-1], want)
    around[1:-1, 1:-1] = 7
    assert (around == 7).all()
    everything = np.zeros((T, batch, hidden), np.float32)
    stream = rnn.stream(batch)
    for row, out in zip(x, everything, strict=True):
        stream(row, out=out)
    np.testing.assert_array_equal(everything, y)


def test_out_without_a_batch_axis_and_over_the_input(rng):
    rnn = network(5, 5)
    x = normal(rng, T, 5)
    y, stream, row = rnn(x)[0], rnn.stream(), np.zeros(5, np.float32)
    wide = np.zeros(10, np.float32)
    for given, want in zip(x, y, strict=True):
        state, step = stream.state, stream.step
        row[...] = given
        assert stream(row, out=row) is row
        np.testing.assert_array_equal(row, want)
        stream.state, stream.step = state, step
        wide[::2] = given
        np.testing.assert_array_equal(stream(wide[::2], out=wide[::2]), want)
    row[...] = np.nan  # what one gave as out is not the stream's
    assert np.isfinite(stream(x[0])).all()


BAD_OUTS = [*bad_outs(np.zeros((2, 5), np.float32)), (ValueError, np.zeros(5, np.float32))]


@pytest.mark.parametrize("error, out", BAD_OUTS, ids=lambda v: str(v)[:40])
def test_a_bad_out_is_refused_and_no_step(rng, error, out):
    rnn, x = network(3, 5, norm="batch", trained=2), normal(rng, 2, 2, 3)
    stream = rnn.stream(2)
    before = np.array(out)
    with pytest.raises(error, match=named("out")):
        stream(x[0], out=out)
    np.testing.assert_array_equal(np.array(out), before)
    assert (stream.step == 0).all() and not stream.state.any()
    np.testing.assert_array_equal([stream(row) for row in x], rnn(x)[0])
    kept = np.full((2, 5), 7, np.float32)
    for bad in (x[0, :1], np.zeros((2, 4)), "ab", x[0]):  # the last is a step too many
        with pytest.raises((ValueError, TypeError)):
            stream(bad, out=kept)
    assert (kept == 7).all()


@pytest.mark.parametrize("layout", ["contiguous", "flat", "strided"])
def test_with_out_no_object_is_made(rng, layout):
    """By Python's own count of its blocks of memory, which rises with fresh arrays that are kept."""
    batch, hidden = (1, 33) if layout == "flat" else (4, 33)
    stream, x = network(3, hidden, num_layers=2).stream(batch), normal(rng, batch, 3)
    out = normal(rng, batch, 2 * hidden)[:, ::2] if layout == "strided" else normal(rng, batch, hidden)
    if layout == "flat":
        x, out = x[0], out[0]
    kept = [None] * 200

    def rise(out):
        for k in range(len(kept)):  # the second round starts where the first one ended
            kept[k] = stream(x, out=out)
        before = sys.getallocatedblocks()
        for k in range(len(kept)):
            kept[k] = stream(x, out=out)
        return sys.getallocatedblocks() - before

    assert rise(out) <= 3  # a step is an int
    assert all(y is out for y in kept)
    before = sys.getallocatedblocks()
    for k in range(len(kept)):
        kept[k] = stream(x)
    assert sys.getallocatedblocks() - before >= len(kept)
