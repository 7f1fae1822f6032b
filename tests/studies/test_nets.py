"""Tests stacks of feed-forward networks, the classifier of steps, and the split of the digits."""

import numpy as np
import pytest
from nets import FeedForward, train
from recurrent import StepClassifier
from study_data import load_digits

from lnrnn.speakers import MODELS, cross_entropy
from slopes import assert_slopes, mild

NORMS = pytest.mark.parametrize("norm", ["layer", "batch", None])
SIZES = (5, 8, 7, 3)


def batch(images=24, networks=2, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((images, networks, SIZES[0])).astype(np.float32)
    return x, rng.integers(0, SIZES[-1], (images, networks))


def varied(norm, networks=2, nonlinearity="relu"):
    """Returns a stack with random biases and gains."""
    stack = FeedForward(range(networks), norm, SIZES, nonlinearity=nonlinearity)
    stack.values += 0.2 * np.random.default_rng(9).standard_normal(stack.values.shape, dtype=np.float32)
    return stack


@NORMS
@pytest.mark.parametrize("nonlinearity", ["relu", "sigmoid"])
def test_the_gradient_is_the_slope_of_the_loss(norm, nonlinearity):
    x, labels = batch()
    stack = varied(norm, nonlinearity=nonlinearity)
    start = stack.values.copy()
    losses, gradients, _ = stack.losses_and_gradients(x, labels)
    assert gradients.shape == start.shape and np.abs(gradients).max(axis=1).min() > 1e-2
    for name in ("weight", "bias", "gain"):
        for place, layer in enumerate(stack.layers(gradients)):
            if getattr(layer, name) is None:
                assert name == "gain" and (norm is None or place == 2)
                continue
            # The slope along the gradient is the gradient's norm.
            direction = np.zeros_like(start)
            getattr(stack.layers(direction)[place], name)[...] = getattr(layer, name)
            size = np.linalg.norm(direction, axis=1, keepdims=True)
            found = []
            for sign in (1, -1):
                stack.values = start + np.float32(sign * 4e-3) * direction / size
                found.append(stack.losses_and_gradients(x, labels)[0])
            slope = (found[0].astype(float) - found[1]) / 8e-3
            np.testing.assert_allclose(slope, size[:, 0], rtol=1e-2, err_msg=f"{name} {place}")
    assert losses.shape == (2,)


@NORMS
@pytest.mark.parametrize("nonlinearity", ["relu", "sigmoid"])
def test_logits_and_summed_inputs_follow_the_definition(norm, nonlinearity):
    x, labels = batch()
    stack = varied(norm, nonlinearity=nonlinearity)
    (*hidden, last), axis = stack.layers(stack.values), 1 if norm == "layer" else 0
    logits = stack.logits(x, training=True)
    for index in range(2):
        h = x[:, index]
        for (z, normalised), layer in zip(stack.summed_inputs(x), hidden, strict=True):
            own = h @ layer.weight[index].T
            np.testing.assert_allclose(z[:, index], own, rtol=1e-4, atol=1e-5)
            if norm:
                own = (own - own.mean(axis, keepdims=True)) / np.sqrt(own.var(axis, keepdims=True) + 1e-5)
                own = own * layer.gain[index]
            own = own + layer.bias[index]
            np.testing.assert_allclose(normalised[:, index], own, rtol=1e-4, atol=1e-4)
            h = np.maximum(own, 0) if nonlinearity == "relu" else 1 / (1 + np.exp(-own))
        expected = h @ last.weight[index].T + last.bias[index]
        np.testing.assert_allclose(logits[:, index], expected, rtol=1e-4, atol=1e-5)
    assert norm == "batch" or np.array_equal(stack.logits(x), logits)
    # The networks are independent. One input (B, in) is the same input for each.
    alone, same = stack.part([1]), stack.logits(x[:, 1])
    np.testing.assert_allclose(same[:, 1:], alone.logits(x[:, 1:]), rtol=1e-5, atol=1e-5)
    both, one = (s.losses_and_gradients(x[:, k], labels[:, k]) for s, k in ((stack, [0, 1]), (alone, [1])))
    for several, single, index in zip(both, one, (np.s_[1:], np.s_[1:], np.s_[:, 1:]), strict=True):
        np.testing.assert_allclose(several[index], single, rtol=1e-5, atol=1e-6)


def test_running_statistics_change_only_in_training():
    x, labels = batch()
    stack = varied("batch")
    before = [np.array(pair) for pair in stack.running]
    stack.logits(x)
    stack.logits(x, training=True)
    for old, new in zip(before, stack.running, strict=True):
        np.testing.assert_array_equal(old, new)
    stack.losses_and_gradients(x, labels)
    z = np.einsum("bmi,moi->bmo", x, stack.layers(stack.values)[0].weight).reshape(len(x), -1)
    np.testing.assert_allclose(stack.running[0][0], 0.1 * z.mean(axis=0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(stack.running[0][1], 0.9 + 0.1 * z.var(axis=0, ddof=1), rtol=1e-4)


def test_calibrated_batch_norm_answers_its_batch_as_in_training():
    x, _ = batch(images=4000)
    stack = varied("batch")
    stack.calibrate(x)
    # The logits differ by 1/8000 of their values, which are up to 8, per layer: training divides by the
    # biased deviation, inference by the unbiased one.
    np.testing.assert_allclose(stack.logits(x), stack.logits(x, training=True), rtol=0, atol=4e-3)
    assert np.abs(stack.logits(x[:4]) - stack.logits(x[:4], training=True)).max() > 0.2


def test_networks_of_one_seed_start_alike_and_scale_multiplies():
    stack = FeedForward([3, 3, 4], None, SIZES, scale=np.array([1, 10, 1]))
    layers = stack.layers(stack.values)
    for layer in layers:
        np.testing.assert_allclose(layer.weight[1], 10 * layer.weight[0], rtol=1e-6)
        assert (layer.weight[2] != layer.weight[0]).all()
    by_layer = FeedForward([3, 3], None, SIZES, scale=np.array([[1, 1, 1], [2, 1, 5]]))
    for layer, factor in zip(by_layer.layers(by_layer.values), (2, 1, 5), strict=True):
        np.testing.assert_allclose(layer.weight[1], factor * layer.weight[0], rtol=1e-6)
    gained = FeedForward([3, 3], "layer", SIZES, gain=np.array([1, 7]))
    for layer in gained.layers(gained.values)[:-1]:
        assert (layer.gain[0] == 1).all() and (layer.gain[1] == 7).all()
    normed = FeedForward([3], "batch", SIZES)
    np.testing.assert_array_equal(normed.layers(normed.values)[1].weight[0], layers[1].weight[0])


@NORMS
def test_statistics_of_all_images_are_those_of_a_whole_batch(norm):
    x, labels = batch(networks=1)
    x, labels, chosen = x[:, 0], labels[:, 0], [np.arange(24), np.arange(24)[::-1]]
    stacks = {}
    for size, whole in ((24, False), (24, True), (8, True)):
        stacks[size, whole] = stack = FeedForward([1, 2], norm, SIZES)
        train(stack, x, labels, chosen, [1, 2], [0.01, 0.02], size, 2, whole=whole)
    np.testing.assert_allclose(stacks[24, True].values, stacks[24, False].values, rtol=1e-3, atol=1e-5)
    assert norm != "batch" or all(np.isfinite(s).all() for pair in stacks[8, True].running for s in pair)


@NORMS
def test_training_learns_and_repeats_itself(norm):
    rng = np.random.default_rng(2)
    x = rng.standard_normal((90, SIZES[0])).astype(np.float32)
    labels, start = x[:, :3].argmax(axis=1), FeedForward([1], norm, SIZES)

    def run():
        stack = FeedForward([1, 1], norm, SIZES)
        told = train(stack, x, labels, [np.arange(90)] * 2, [1, 1], [1e-2, 0.0], 8, 20)
        return stack.values, told

    (values, told), again = run(), run()
    assert told.shape == (20 * 88, 2)  # only full batches of 8, so each epoch omits two images
    assert told[-88:, 0].mean() > 0.8 > told[:88, 0].mean()
    np.testing.assert_array_equal(values[1], start.values[0])
    assert np.array_equal(values, again[0]) and np.array_equal(told, again[1])


def step_model(cell, norm):
    return StepClassifier(MODELS[cell](3, 8, norm=mild(cell, norm), seed=1), 4, np.random.default_rng(5))


@pytest.mark.parametrize("cell", MODELS)
@NORMS
def test_the_gradient_of_steps_is_the_slope_of_the_loss(cell, norm):
    rng = np.random.default_rng(5)
    lengths = np.repeat([5, 4, 2], 10)
    x, labels = rng.standard_normal((5, 30, 3), dtype=np.float32), rng.integers(0, 4, (5, 30))
    assert_slopes(step_model(cell, norm), (x, lengths, labels), rel=3e-3)


def test_the_loss_of_steps_is_the_mean_over_active_steps():
    model = step_model("gru", "layer")
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((6, 3, 3), dtype=np.float32), rng.integers(0, 4, (6, 3))
    each = model.losses(x, labels)
    np.testing.assert_array_equal(each, cross_entropy(model.logits(model.rnn(x)[0]), labels)[0])
    loss, gradients = model.loss_and_gradients(x, np.array([6, 6, 6]), labels)
    assert loss == pytest.approx(each.mean(), rel=1e-6)
    alive = np.arange(6)[:, None] < [6, 1, 3]
    loss, gradients = model.loss_and_gradients(x, np.array([6, 1, 3]), labels)
    assert loss == pytest.approx(each[alive].mean(), rel=1e-6)
    # Labels past a length have no effect.
    other, same = model.loss_and_gradients(x, np.array([6, 1, 3]), np.where(alive, labels, 0))
    assert other == loss and all(np.array_equal(same[name], gradients[name]) for name in same)


def test_the_split_of_the_digits():
    digits = load_digits()
    assert digits.train_x.shape == (1000, 64) and digits.test_x.shape == (797, 64)
    assert digits.train_x.dtype == np.float32 and (digits.train_x.min(), digits.train_x.max()) == (-1, 1)
    assert np.bincount(digits.fold).tolist() == [200] * 5
    for fold in range(5):  # the expected number is 20 per digit
        assert np.bincount(digits.train_labels[digits.fold == fold], minlength=10).min() >= 10
    assert (
        len(digits.learnt(8)) == 800
        and not {*digits.learnt(8)} & {*digits.held(8)}
        and (digits.fold[digits.held(8)] == 3).all()
    )
    rows = {row.tobytes() for row in digits.train_x}
    assert not rows & {row.tobytes() for row in digits.test_x}
