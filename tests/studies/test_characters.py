"""Tests the study ``characters``: its text, models and measures on cases with known answers."""

import help_text as study
import numpy as np
import pytest
from characters import saved
from help_text import BATCH, STEPS, SYMBOLS, WARM_UP
from recurrent import StepClassifier

from lnrnn.speakers import CELLS, MODELS


def test_topics_are_sorted_and_paragraphs_are_unique():
    topics = {"b": "One\n***\n\n\nsame\n\n   two", "a": "\nsame\n\nfirst\n"}
    assert study.join_topics(topics) == "same\n\nfirst\n\nOne\n***\n\n   two\n\n"


def test_the_parts_are_contiguous_and_the_symbols_are_the_training_text_s():
    common = [chr(ord("0") + number) for number in range(SYMBOLS - 1)]
    text = "".join(character * (100 - rank) for rank, character in enumerate(common)) + "é" * 1080
    (train, held_out, test), others = study.split_text(text)
    size = len(text)
    first, second = int(0.8 * size), int(0.88 * size)
    assert [len(train), len(held_out), len(test)] == [first, second - first, size - second]
    assert (train[:101] == [0] * 100 + [1]).all()
    # All characters but the 63 most frequent ones of the training text are one symbol.
    assert (test == SYMBOLS - 1).all() and others == 1.0


def test_a_window_s_labels_are_the_characters_that_follow():
    x, following = study.cut(np.arange(50), np.array([3, 40]), 4)
    assert x.shape == (4, 2, SYMBOLS) and (x.sum(axis=2) == 1).all()
    assert x.argmax(axis=2).T.tolist() == [[3, 4, 5, 6], [40, 41, 42, 43]]
    assert following.T.tolist() == [[4, 5, 6, 7], [41, 42, 43, 44]]


def test_each_character_is_predicted_in_one_window_after_the_warm_up():
    size = 1234
    starts = study.fresh_starts(np.zeros(size))
    places = starts + np.arange(1, STEPS + 1)[:, None]  # indices of the characters that the steps predict
    found = study.by_character(places.astype(float), starts, size)
    known = np.flatnonzero(~np.isnan(found))
    assert (found[known] == known).all()
    assert known[0] == WARM_UP + 1 and (np.diff(known) == 1).all() and known[-1] > size - WARM_UP - 2
    long = study.long_starts(size, 400)
    assert len(long) == BATCH and len(set(long)) > BATCH // 2
    assert long[0] + 1 == known[0] and long[-1] + 400 == known[-1]
    with pytest.raises(ValueError, match="1234 characters, too few for sequences of 1200 steps"):
        study.long_starts(size, 1200)


@pytest.mark.parametrize("norm", ["LN", "no norm"])
def test_a_network_without_memory_does_not_depend_on_the_step(norm):
    text = np.random.default_rng(0).integers(0, SYMBOLS, 900)
    rnn = MODELS["rnn"](SYMBOLS, 8, norm=study.NORMS[norm], seed=0)
    rnn.weight_hh_l0 = np.zeros((8, 8))
    model = StepClassifier(rnn, SYMBOLS, np.random.default_rng(0))
    found = study.run_over(model, norm, text, 300)
    assert found["lost"].keys() == {norm} and "apart" not in found
    np.testing.assert_allclose(found["lost"][norm], 0, rtol=0, atol=1e-6)
    # Computes the bits by definition, from the softmax.
    bits = study.bits(model, text, np.array([50]), 1)[0, 0]
    x = np.eye(SYMBOLS, dtype=np.float32)[text[50]][None, None]
    logits = model.logits(rnn(x)[0])[0, 0].astype(float)
    assert bits == pytest.approx(-np.log2(np.exp(logits[text[51]]) / np.exp(logits).sum()), rel=1e-5)


@pytest.mark.parametrize("cell", CELLS)
def test_averaged_statistics_equal_the_policy_mean(cell):
    text = np.random.default_rng(0).integers(0, SYMBOLS, 600)
    rnn = MODELS[cell](SYMBOLS, 8, norm="batch", seed=0)
    rnn.calibrate([study.cut(text, np.arange(40), 5)[0]])
    # From the same state, step 6 with "mean" equals a step with averaged statistics.
    rnn.overrun = "mean"
    x = study.cut(text, np.arange(3), 6)[0]
    _, before = rnn(x[:5])
    expected = rnn(x)[0][5]
    study.average_over_time(rnn)
    assert rnn.known_steps == 1
    np.testing.assert_allclose(rnn(x[5:], before)[0][0], expected, rtol=0, atol=1e-6)


def test_updates_are_counted_until_ten_losses_average_to_the_target():
    losses = np.array([5.0] * 20 + [3.0] * 30)
    assert study.updates_needed(losses, 5.0) == 10
    assert study.updates_needed(losses, 4.0) == 25  # five of the last ten losses are 3, five are 5
    assert study.updates_needed(losses, 3.0) == 30
    assert study.updates_needed(losses, 2.9) == 51  # the target is never reached
    results = {"needed": {"rnn": {"LN": np.array([50, 80]), "no norm": np.array([100, 100])}}}
    np.testing.assert_allclose(saved(results, "rnn"), [0.5, 0.2])


def test_ranges_of_steps_meet_at_the_length_of_training():
    firsts = study.edges(3000)
    assert firsts[0] == 1 and firsts[-1] < 3000 and STEPS + 1 in firsts and (np.diff(firsts) > 0).all()
    values = np.arange(1.0, 7.0)[None]
    assert study.in_ranges(values, [1, 2, 4]).tolist() == [[1.0, 2.5, 5.0]]
