"""Tests the study ``two_digits``: pairs, statistics beyond step 64."""

import numpy as np
import pixels
import pytest
import two_digits
from recurrent import PixelLSTM
from study_data import PIXELS
from two_digits import AGAIN, BATCH, FIRST, LAST, MEAN, PAIRS, WAYS, after_another, use_statistics_of

from lnrnn.speakers import SequenceClassifier


@pytest.fixture
def lstm(rng):
    """Returns a network with batch norm, whose statistics of 64 steps differ from step to step."""
    rnn = PixelLSTM(pixels.HIDDEN, pixels.NORMS["BN"], 0.5, 0, pixels.NOISE)
    rnn.calibrate_noisily(images(rng, 60).T[:, :, None], 0)
    return rnn


def images(rng, count):
    return (rng.standard_normal((count, PIXELS)) * np.linspace(0.5, 2, PIXELS)).astype(np.float32)


def test_every_image_is_first_once_and_last_once_and_never_twice(rng):
    x = images(rng, 30)
    pairs = after_another(x, 5)[:, :, 0].T
    np.testing.assert_array_equal(pairs[:, PIXELS:], x)
    np.testing.assert_array_equal(np.sort(pairs[:, :PIXELS], axis=0), np.sort(x, axis=0))
    assert (pairs[:, :PIXELS] != x).any(axis=1).all()
    assert not np.array_equal(pairs, after_another(x, 6)[:, :, 0].T)


def test_repeating_steps_1_to_64_equals_a_second_call_with_the_state(lstm, rng):
    pairs = after_another(images(rng, 20), 0)
    y, state = lstm(pairs[:PIXELS])
    expected = np.concatenate([y, lstm(pairs[PIXELS:], state)[0]])
    use_statistics_of(lstm, np.concatenate([FIRST, FIRST]))
    np.testing.assert_array_equal(lstm(pairs)[0], expected)


def test_choices_of_statistics_do_not_affect_each_other(lstm, rng):
    """A choice has the same results alone and after another choice in the same network."""
    x = images(rng, 40)
    pairs, labels = after_another(x, 0), rng.integers(10, size=40)
    known = lstm.state_dict()
    network = SequenceClassifier(lstm, 10, rng)
    found = two_digits.by_statistics(network, x, pairs, labels, 0)
    assert (
        set(found) == {LAST, MEAN, AGAIN, BATCH, PAIRS, "repeated"} == {*WAYS, "repeated"} - {"LN", "no norm"}
    )
    assert found["repeated"][-1] == found[LAST]
    for way, overrun in ((LAST, "last"), (MEAN, "mean"), (BATCH, "batch")):
        lstm.load_state_dict(known)
        lstm.overrun = overrun
        assert pixels.accuracy(network, pairs, labels) == found[way]
    lstm.load_state_dict(known)
    use_statistics_of(lstm, np.concatenate([FIRST, FIRST]))
    assert pixels.accuracy(network, pairs, labels) == found[AGAIN]
