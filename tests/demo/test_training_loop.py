"""Tests the training of the demo and the studies.

Tests gradients, Adam, clipping, the loop (with a model that records its batches), networks of speakers, and
training in parallel.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

import lnrnn
from lnrnn import speakers
from lnrnn.data import japanese_vowels, pad_sequence
from lnrnn.speakers import (
    CELLS,
    MODELS,
    Adam,
    SequenceClassifier,
    SpeakerNetwork,
    SpeakerSettings,
    TrainingSettings,
    clip,
    cross_entropy,
    one_thread,
    side_by_side,
    train,
    updates,
)
from slopes import assert_slopes, mild

NORMS = pytest.mark.parametrize("norm", ["layer", "batch", None])
EACH_CELL = pytest.mark.parametrize("cell", CELLS)
SHORT = SpeakerSettings(training=TrainingSettings(epochs=3, learning_rate=1e-2, noise=0.3))


class Listener:
    """A model that records the batches of its training, but does not learn."""

    def __init__(self):
        self.seen = []

    def parameters(self):
        return {"w": np.zeros(1, np.float32)}

    def set_parameters(self, values):
        pass

    def loss_and_gradients(self, x, lengths, labels):
        self.seen.append(x.copy())
        return float(labels.mean()), {"w": np.zeros(1, np.float32)}


def test_the_loss_of_an_epoch_is_the_mean_over_its_sequences():
    """There are five sequences, in batches of three, and two epochs."""
    settings, x = TrainingSettings(2, 3, 0.1, 1.0, 0.0), np.zeros((4, 5, 2), np.float32)
    losses = train(Listener(), x, np.full(5, 4), np.arange(5.0), settings, np.random.default_rng(0))
    np.testing.assert_allclose(losses, [2.0, 2.0], rtol=1e-12)


@EACH_CELL
@NORMS
def test_the_gradient_is_the_slope_of_the_loss(cell, norm):
    rng = np.random.default_rng(5)
    model = SequenceClassifier(MODELS[cell](3, 8, norm=mild(cell, norm), seed=1), 4, rng)
    # There are ten sequences of each length: with few, batch norm is too curved for central differences.
    lengths = np.repeat([5, 4, 2], 10)
    x, lengths = pad_sequence([rng.standard_normal((steps, 3)) for steps in lengths])
    # The measured error of 8e-4 comes from the curvature of the loss and from float32.
    assert_slopes(model, (x, lengths, np.arange(30) % 4), rel=2e-3)


def test_the_answer_is_that_of_the_last_step_of_a_sequence():
    rng = np.random.default_rng(0)
    model = SequenceClassifier(lnrnn.RNN(3, 8, seed=1), 4, rng)
    sequences = [rng.standard_normal((steps, 3)) for steps in (9, 4, 6, 1)]
    x, lengths = pad_sequence(sequences)
    y, _ = model.rnn(x, lengths=lengths)
    ends = y[lengths - 1, np.arange(4)]
    assert model.predict(x, lengths).tolist() == model.logits(ends).argmax(axis=1).tolist()
    want = ends @ model.head_weight.T + model.head_bias
    np.testing.assert_allclose(model.logits(ends), want, rtol=0, atol=1e-6)


def test_adam_computes_the_steps_of_the_paper():
    optimiser = Adam(0.1)
    value, first, second = np.float64(1.0), 0.0, 0.0
    parameters = {"w": np.array([1.0])}
    for step, gradient in enumerate([0.5, -2.0, 0.01], start=1):
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        value -= 0.1 * (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)) ** 0.5 + 1e-8)
        parameters = optimiser.step(parameters, {"w": np.array([gradient])})
        assert parameters["w"][0] == pytest.approx(value, rel=1e-12)


def test_clip_scales_all_gradients_by_one_factor():
    gradients = {"a": np.float32([3, 0]), "b": np.float32([[4]])}
    assert clip(gradients, 5.0) is gradients
    clipped = clip(gradients, 1.0)
    np.testing.assert_allclose(clipped["a"], [0.6, 0], rtol=1e-6)
    np.testing.assert_allclose(clipped["b"], [[0.8]], rtol=1e-6)


def test_a_batch_is_drawn_after_the_update_of_the_last_one():
    told = []

    class Model:
        def parameters(self):
            return {"w": np.zeros(1)}

        def set_parameters(self, values):
            told.append(float(values["w"][0]))

        def loss_and_gradients(self, x, lengths, labels):
            return 7.0, {"w": np.full(1, 3.0)}

    def batches():
        for count in (2, 5):
            told.append("drawn")
            yield np.zeros(1), np.zeros(count), np.zeros(count)

    found = updates(Model(), batches(), Adam(0.1), 1.0)
    assert told == []  # no batch is drawn before the first request
    assert list(found) == [(7.0, 2), (7.0, 5)]
    assert told == ["drawn", pytest.approx(-0.1), "drawn", pytest.approx(-0.1)]


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_training_adds_new_noise_to_every_batch(noise):
    x = np.full((50, 20, 12), 3, np.float32)
    settings = TrainingSettings(2, 10, 1e-2, 1.0, noise)
    model = Listener()
    train(model, x, np.full(20, 50), np.zeros(20, np.int64), settings, np.random.default_rng(0))
    assert len(model.seen) == 4 and (x == 3).all()
    for batch in model.seen:
        # Five standard errors of the mean and of the standard deviation of 6000 values are allowed.
        assert abs(batch.mean() - 3) <= 5 * noise / 6000**0.5
        assert abs((batch - 3).std() - noise) <= 5 * noise / 12000**0.5
    if noise:
        apart = [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in combinations(model.seen, 2)]
        assert np.abs(apart).max() < 5 / 6000**0.5


def test_the_cross_entropy_of_large_logits():
    logits = np.float32([[1000, 0, -1000], [0, 0, 0]])
    losses, gradients = cross_entropy(logits, np.array([1, 2]))
    np.testing.assert_allclose(losses, [1000, np.log(3)], rtol=1e-6)
    np.testing.assert_allclose(gradients, [[1, -1, 0], [1 / 3, 1 / 3, -2 / 3]], rtol=1e-6)


@pytest.fixture(scope="module")
def vowels():
    return japanese_vowels()


@EACH_CELL
@NORMS
def test_training_lowers_the_loss(vowels, cell, norm):
    epochs = []
    settings = replace(SHORT, cell=cell, training=replace(SHORT.training, epochs=15))
    network = SpeakerNetwork(
        vowels.train, norm, settings, seed=3, max_steps=10, on_epoch=lambda: epochs.append(1)
    )
    assert type(network.classifier.rnn).__name__ == cell.upper()
    assert len(network.losses) == len(epochs) == 15
    assert network.losses[-1] < 0.8 * network.losses[0]
    named = network.name_speakers([x[:10] for x in vowels.train.x], "last" if norm == "batch" else None)
    assert (named == vowels.train.labels).mean() > 3 / 9  # three times the accuracy of guessing


def test_the_input_scale_is_that_of_the_training_steps(vowels):
    network = SpeakerNetwork(vowels.train, "layer", SHORT, seed=0, max_steps=10)
    heard = np.concatenate([x[:10] for x in vowels.train.x]).astype(np.float64)
    np.testing.assert_allclose(network.mean, heard.mean(axis=0), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(network.deviation, heard.std(axis=0), rtol=1e-6)


def test_policies_give_the_answers_of_the_network(vowels):
    network = SpeakerNetwork(vowels.train, "batch", SHORT, seed=0, max_steps=10)
    rnn, asked = network.classifier.rnn, vowels.test.x[:100]
    x, lengths = pad_sequence([(sequence - network.mean) / network.deviation for sequence in asked])
    named = {policy: network.name_speakers(asked, policy) for policy in ("raise", "last", "mean", "batch")}
    for policy in ("last", "mean", "batch"):
        rnn.overrun = policy
        assert named[policy].tolist() == network.classifier.predict(x, lengths).tolist()
    assert len({answers.tobytes() for answers in named.values()}) == 4  # or the check above is trivial
    assert (named["raise"] == np.where(lengths > 10, speakers.REFUSED, named["last"])).all()
    heard = [(sequence - network.mean) / network.deviation for sequence in vowels.train.x]
    learnt = rnn.state_dict()
    rnn.calibrate([pad_sequence(heard, max_steps=10)])
    for name, value in rnn.state_dict().items():  # the statistics are those of a calibration
        np.testing.assert_allclose(learnt[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.fixture
def two_threads():
    threads = lnrnn.get_num_threads()
    lnrnn.set_num_threads(2)
    yield
    lnrnn.set_num_threads(threads)


def test_results_are_in_the_order_of_the_items(two_threads):
    together = threading.Barrier(2, timeout=30)  # the barrier breaks unless two jobs run at the same time

    def job(item):
        together.wait()
        return item**2, lnrnn.get_num_threads()

    with one_thread() as jobs:
        assert side_by_side(job, range(6), jobs) == [(item**2, 1) for item in range(6)]
    assert lnrnn.get_num_threads() == 2


def test_one_job_at_a_time_with_one_thread(two_threads):
    lnrnn.set_num_threads(1)
    at_work = []

    def job(item):
        at_work.append(item)
        assert at_work == [item]
        at_work.remove(item)

    with one_thread() as jobs:
        side_by_side(job, range(50), jobs)


def test_a_job_that_fails_stops_the_remaining_ones(two_threads):
    begun = []

    def job(item):
        begun.append(item)
        if item == 1:
            raise ValueError("job 1")
        return threading.Event().wait(0.05)

    with pytest.raises(ValueError, match="job 1"), one_thread() as jobs:
        side_by_side(job, range(100), jobs)
    assert len(begun) < 50 and lnrnn.get_num_threads() == 2


def test_networks_trained_in_parallel_equal_those_trained_one_by_one(two_threads):
    x = np.random.default_rng(0).standard_normal((40, 5, 7), dtype=np.float32)

    def job(seed):
        rnn = lnrnn.LSTM(7, 24, seed=seed)
        y, _, tape = rnn.forward_train(x)
        return rnn.backward(tape, y)[2]["weight_hh_l0"].tobytes()

    with one_thread() as jobs:
        assert side_by_side(job, range(20), jobs) == [job(seed) for seed in range(20)]
