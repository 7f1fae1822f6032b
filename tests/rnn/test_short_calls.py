"""Calls that compute little go straight to C: the bits, the errors and the arrays of all other calls."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lnrnn
from helpers import layouts, together, using_threads
from networks import VARIANTS, drawn_state, network, normal, parts, whole

D, H = 5, 17


def twice(array):
    """The same numbers as float64, which no short way takes."""
    return None if array is None else np.array(array, np.float64)


@settings(max_examples=150)
@given(data=st.data())
def test_the_bits_of_the_long_way(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    name, batch_first = data.draw(st.sampled_from(sorted(VARIANTS))), data.draw(st.booleans())
    rnn = network(
        D, H, num_layers=data.draw(st.integers(1, 3)), bidirectional=data.draw(st.booleans()),
        batch_first=batch_first, trained=4, **VARIANTS[name],
    )  # fmt: skip
    if rnn.known_steps is not None:
        rnn.overrun = data.draw(st.sampled_from(["last", "mean", "batch"]))
    T, B = data.draw(st.integers(1, 9)), data.draw(st.sampled_from([1, 2, 3, 8, 63, 64, 65]))
    x = normal(rng, *((B, T, D) if batch_first else (T, B, D)))
    start = drawn_state(rng, rnn, B) if data.draw(st.booleans()) else None
    lengths = rng.integers(0, T + 1, B) if data.draw(st.booleans()) else None
    kept = [None if s is None else s.copy() for s in parts(rnn, start)]
    with using_threads(data.draw(st.integers(1, 3))):
        y, h = rnn(x, start, lengths)
        want, end = rnn(twice(x), None if start is None else whole(rnn, list(map(twice, kept))), lengths)
    np.testing.assert_array_equal(y, want)
    assert y.dtype == np.float32 and y.shape == want.shape and y.flags.writeable
    for got, e, before, after in zip(parts(rnn, h), parts(rnn, end), kept, parts(rnn, start), strict=True):
        np.testing.assert_array_equal(got, e)
        assert got.flags.c_contiguous and got.flags.owndata
        assert before is None or np.array_equal(before, after)


@pytest.mark.parametrize("cell", ["RNN", "LSTM"])
def test_arrays_of_every_kind(rng, cell):
    rnn = network(D, H, cell=cell)
    x, start, lengths = normal(rng, 4, 3, D), drawn_state(rng, rnn, 3), np.array([4, 0, 3])
    want = rnn(x, start, lengths)[0]
    for name, found in layouts(x).items():
        np.testing.assert_array_equal(rnn(found, start, lengths)[0], want, err_msg=name)
    for name, found in layouts(parts(rnn, start)[0]).items():
        other = whole(rnn, [found, *parts(rnn, start)[1:]])
        np.testing.assert_array_equal(rnn(x, other, lengths)[0], want, err_msg=name)
    for found in (list(lengths), lengths.astype(np.int32), np.repeat(lengths, 2)[::2]):
        np.testing.assert_array_equal(rnn(x, start, found)[0], want)

    class Other(np.ndarray):
        pass

    y = rnn(x.view(Other), start, lengths)[0]
    assert type(y) is np.ndarray
    np.testing.assert_array_equal(y, want)


def test_what_is_wrong_is_said_as_ever(rng):
    rnn = network(D, H, cell="LSTM", norm="batch", trained=3)
    x, good = normal(rng, 3, 2, D), drawn_state(rng, rnn, 2)
    wrong = [
        (ValueError, "x must be", dict(x=normal(rng, 3, 2, D + 1))),
        (ValueError, r"h0\[0\] must be of shape", dict(h0=(good[0][:, :1], good[1]))),
        (ValueError, r"h0\[1\] must be of shape", dict(h0=(good[0], good[1][0]))),
        (TypeError, "h0 must be a pair", dict(h0=good[0])),
        (TypeError, "h0 must be a pair", dict(h0=(*good, good[0]))),
        (ValueError, "lengths must be between", dict(lengths=np.array([3, 4]))),
        (ValueError, "lengths must be between", dict(lengths=np.array([-1, 3]))),
        (ValueError, "lengths must be of shape", dict(lengths=np.array([3]))),
        (lnrnn.SequenceTooLongError, "sequence 0 has 4 steps", dict(x=normal(rng, 4, 2, D))),
        (ValueError, "threads must be", dict(threads=0)),
    ]
    for error, words, changed in wrong:
        with pytest.raises(error, match=words):
            rnn(**{"x": x, "h0": good, "lengths": None, **changed})
    # Longer than is known, but for the lengths.
    rnn(normal(rng, 4, 2, D), good, np.array([3, 2]))


def test_calls_of_several_threads_share_nothing(rng):
    """Short enough to keep the interpreter's lock, and calls that let it go."""
    for hidden in (17, 60):
        rnn = network(D, hidden, cell="GRU", num_layers=2)
        x = normal(rng, 4, 10, 20, D)
        want = [rnn(part)[0] for part in x]

        def work(k, rnn=rnn, x=x, want=want):
            for _ in range(30):
                np.testing.assert_array_equal(rnn(x[k])[0], want[k])

        together(work, 4)
