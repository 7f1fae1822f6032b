"""Tests the study ``saturation``: measures on cases with known answers."""

import depth as study
import numpy as np
import pytest
from depth import DEPTH, NORMS

EVERY_NORM = pytest.mark.parametrize("name", NORMS)


def images(count=20, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (count, 64)).astype(np.float32), rng.integers(0, 10, count)


def test_drift_is_the_wasserstein_distance_over_the_spread():
    old = np.array([[[0.0, 0.0], [1.0, 1.0]], [[5.0, 5.0], [2.0, 4.0]]])
    np.testing.assert_allclose(study.drift(old, old + [[[0.1], [0.0]]]), [-1, -np.log10(10 * 10**0.5)])
    wider = old.copy()
    wider[0, 1] = 7.0  # moved by 6, with the spread sqrt((1 + 49) / 2)
    np.testing.assert_allclose(study.drift(old, wider)[0], np.log10(6 / 5))
    # Scaling both arguments changes nothing. If both are equal, the result is finite.
    np.testing.assert_allclose(study.drift(30 * old, 30 * wider)[0], np.log10(6 / 5))
    assert np.isfinite(study.drift(old, old)).all() and np.isfinite(study.drift(0 * old, old)).all()


def test_saturated_units_are_counted():
    # 4 s (1 - s) is 0.1 at +-3.637.
    after = np.array([[-9.0, 0.0], [3.7, 3.6]])
    found = study.examined([after - 1, after], [after, np.eye(2)], [10.0, 0.1])
    np.testing.assert_array_equal(found["saturated"], [0.5, 0])
    np.testing.assert_allclose(found["before"][0, 0], [-3.65, 0.8])
    np.testing.assert_allclose(found["after"][0, 1], [6.35, 1.8])
    assert found["spread"][0] == pytest.approx(0.5 * np.log10((6.35**2 + 1.8**2) / 2))
    np.testing.assert_allclose(found["gradient"], [1, -1])


@EVERY_NORM
def test_the_sigmoids_of_the_summed_inputs_are_the_rnn_s_outputs(name):
    x, labels = images()
    network = study.make_recurrent(name, 3, 2.0)
    network.rnn.weight_hh_l0 = 3 * network.rnn.weight_hh_l0
    steps, lengths = study.as_sequences(x)
    np.testing.assert_array_equal(steps[1, 2], x[2, 4:8])
    y = network.rnn.forward_train(steps)[0]
    _, after = study.summed_inputs(network.rnn.parameters(), NORMS[name], steps, y)
    np.testing.assert_allclose(1 / (1 + np.exp(-np.stack(after))), y, rtol=0, atol=1e-5)
    assert y.std() > 0.1

    found = study.examine_recurrent(network, name, x, labels)
    np.testing.assert_allclose(found["after"][5, 0], after[5].mean(axis=0), atol=1e-5)
    gx = network.loss_and_all_gradients(steps, lengths, labels)[2]
    np.testing.assert_allclose(found["gradient"][0], np.log10(np.linalg.norm(gx[0])), rtol=1e-4)


@EVERY_NORM
def test_examining_changes_nothing(name):
    x, labels = images()
    deep = study.make_deep("deep", name, 0, [(1, 0.1), (4, 0.1)])
    deep.losses_and_gradients(np.repeat(x[:, None], 2, 1), np.repeat(labels[:, None], 2, 1))
    before, own, other = deep.logits(x), deep.part([0]), deep.part([0])
    other.values *= 1.01
    study.examine_deep(deep, x, labels)
    study.gradient_shift(own, deep.values[:1].copy(), x, labels)
    study.correlation_from_below(own, other, x)
    np.testing.assert_array_equal(deep.logits(x), before)
    np.testing.assert_array_equal(own.logits(x), before[:, :1])

    recurrent, (steps, lengths) = study.make_recurrent(name, 0, 1), study.as_sequences(x)
    recurrent.loss_and_gradients(steps, lengths, labels)
    outputs = recurrent.rnn(steps)[0]
    study.examine_recurrent(recurrent, name, x, labels)
    np.testing.assert_array_equal(recurrent.rnn(steps)[0], outputs)


def test_the_factor_scales_the_hidden_weights_or_the_gains():
    settings = [(1, 0.1), (4, 0.1)]
    plain, normed = (study.make_deep("deep", name, 0, settings) for name in ("no norm", "LN"))
    pairs = zip(plain.layers(plain.values), normed.layers(normed.values), strict=True)
    for place, (layer, other) in enumerate(pairs):
        np.testing.assert_allclose(layer.weight[1], (4 if place < DEPTH else 1) * layer.weight[0])
        np.testing.assert_array_equal(other.weight[1], layer.weight[0])
        assert place == DEPTH or (other.gain[1] == 4 * other.gain[0]).all()
    one, four = (study.make_recurrent("no norm", 0, factor).rnn.weight_hh_l0 for factor in (1, 4))
    np.testing.assert_allclose(four, 4 * one)


def test_the_shift_of_a_gradient_comes_from_the_layers_below():
    x, labels = images()
    old = study.make_deep("deep", "LN", 0, [(4, 0.1)])
    new, layer = old.part([0]), 3
    new.layers(new.values)[layer].weight[...] *= 1.5
    new.layers(new.values)[layer].bias[...] += 0.3
    found = study.gradient_shift(new, old.values, x, labels)
    assert found.shape == (DEPTH - 1,)
    assert (found[:layer] < -30).all() and (found[layer:] > -3).all()
    # Computes the change of the gradient of the layer above by definition.
    gradients = [stack.losses_and_gradients(x[:, None], labels[:, None])[1] for stack in (old, new)]
    usual, moved = (old.layers(g)[layer + 1].weight.astype(float) for g in gradients)
    expected = np.log10(np.linalg.norm(moved - usual) / np.linalg.norm(usual))
    assert found[layer] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("net", ["deep", "ReLU"])
def test_changes_from_below_are_those_with_fixed_weights(net):
    rng = np.random.default_rng(0)
    common, own = rng.standard_normal((1000, 1)), rng.standard_normal((1000, 4))
    assert study.correlation(common * [1, -2, 3, 4]) == pytest.approx(1)
    assert study.correlation(own) < 0.01
    assert study.correlation(common + own) == pytest.approx(0.25, abs=0.05)

    x, _ = images()
    old = study.make_deep(net, "no norm", 0, [(1, 0.1)])
    new = old.part([0])
    for layer in new.layers(new.values)[:-1]:
        layer.weight[...] += 0.1 * rng.standard_normal(layer.weight.shape)

    def hidden(stack):
        h, found = x, []
        for layer in stack.layers(stack.values)[:-1]:
            z = h @ layer.weight[0].T + layer.bias[0]
            h = np.maximum(z, 0) if net == "ReLU" else 1 / (1 + np.exp(-z))
            found.append(h)
        return found

    weights = [layer.weight[0] for layer in old.layers(old.values)[1:-1]]
    moved = [(b - a) @ w.T for a, b, w in zip(hidden(old), hidden(new), weights, strict=False)]
    expected = np.mean([study.correlation(change) for change in moved])
    assert len(moved) == DEPTH - 1
    assert study.correlation_from_below(old, new, x) == pytest.approx(expected, rel=1e-3)


def test_epochs_are_counted_from_chance_and_interpolated():
    found = study.passes_to(np.array([[0.5, 0.9, 0.7], [0.9, 1.0, 1.0], [0.2, 0.3, 0.3]]), 0.7)
    np.testing.assert_allclose(found, [1.5, 0.75, 3])
