"""The study of convolutions: its network's gradients, its measures, its verdict on made-up numbers, and a
quick run of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

import lnrnn
from lnrnn import demos
from lnrnn.demos import convolution
from lnrnn.demos.convolution import BATCH_NORM, LAYER_NORM, METHODS, PLAIN, RATES, Results
from lnrnn.demos.convolution_network import SHAPES, SIDE, ConvolutionalNetwork, Shape, add_patches, patches
from lnrnn.demos.study import VERDICTS

KINDS = pytest.mark.parametrize("kind", METHODS.values(), ids=METHODS)


def direct(x, weight, stride):
    """The convolution by definition, float64: x (B, side, side, inputs), weight (outputs, 3, 3, inputs)."""
    count, side = len(x), -(-x.shape[1] // stride)
    padded = np.zeros((count, x.shape[1] + 2, x.shape[2] + 2, x.shape[3]))
    padded[:, 1:-1, 1:-1] = x
    found = np.zeros((count, side, side, len(weight)))
    for row, column in np.ndindex(side, side):
        patch = padded[:, row * stride : row * stride + 3, column * stride : column * stride + 3]
        found[:, row, column] = np.tensordot(patch, weight, ([1, 2, 3], [1, 2, 3]))
    return found


@pytest.mark.parametrize("shape", [Shape(2, 3, 1, 8), Shape(2, 3, 2, 4)])
def test_patches_times_weights_is_the_convolution(shape):
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((2, 8, 8, 2)), rng.standard_normal((3, 3, 3, 2))
    product = patches(x, shape) @ weight.reshape(3, -1).T
    np.testing.assert_allclose(product.reshape(2, *shape.units), direct(x, weight, shape.stride), atol=1e-12)
    # The gradient's way back is the transpose.
    g = rng.standard_normal(patches(x, shape).shape)
    assert (add_patches(g, shape) * x).sum() == pytest.approx((g * patches(x, shape)).sum())


def varied(kind, seed=0):
    network = ConvolutionalNetwork(kind, seed)
    rng = np.random.default_rng(5)
    network.set_parameters(
        {
            name: value + 0.1 * rng.standard_normal(value.shape, dtype=np.float32)
            for name, value in network.parameters().items()
        }
    )
    return network


def batch(count=12):
    rng = np.random.default_rng(1)
    x = rng.uniform(0, 1, (count, SIDE**2)).astype(np.float32)
    return x, rng.integers(0, 10, count)


def by_definition(network, kind, x):
    """The logits in training mode, in float64."""
    values = {name: value.astype(np.float64) for name, value in network.parameters().items()}
    h = x.reshape(-1, SIDE, SIDE, 1).astype(np.float64)
    over = {"batch": (0, 1, 2), "layer": (1, 2, 3), "layer-shared": (1, 2, 3), "layer-channels": (3,)}
    for place, shape in enumerate(SHAPES):
        weight = values[f"weight_{place}"].reshape(shape.channels, 3, 3, shape.inputs)
        z = direct(h, weight, shape.stride)
        if kind:
            mean, var = z.mean(over[kind], keepdims=True), z.var(over[kind], keepdims=True)
            z = values[f"gain_{place}"] * (z - mean) / np.sqrt(var + 1e-5)
        h = np.maximum(z + values[f"bias_{place}"], 0)
    return h.reshape(len(h), -1) @ values["head_weight"].T + values["head_bias"]


def loss_of(logits, labels):
    logits = logits - logits.max(axis=1, keepdims=True)
    log_probability = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return -log_probability[np.arange(len(labels)), labels].mean()


@KINDS
def test_the_gradient_is_the_slope_of_the_defined_loss(kind):
    x, labels = batch()
    network = varied(kind)
    loss, gradients = network.loss_and_gradients(x[None], np.ones(12, int), labels)
    assert loss == pytest.approx(loss_of(by_definition(network, kind, x), labels), rel=1e-4)
    start = network.parameters()
    assert gradients.keys() == start.keys()
    for name, gradient in gradients.items():
        assert gradient.shape == start[name].shape
        size = float(np.linalg.norm(gradient))
        assert size > 1e-3, name
        found = []
        for sign in (1, -1):
            moved = start[name].astype(np.float64) + sign * 1e-4 * gradient / size
            network._values = {**start, name: moved}
            found.append(loss_of(by_definition(network, kind, x), labels))
        # A gradient's slope along itself is its length; 2 % for what a ReLU bends within the step.
        assert (found[0] - found[1]) / 2e-4 == pytest.approx(size, rel=2e-2), name


@KINDS
def test_inference_is_training_but_for_batch_norm(kind):
    x, labels = batch(64)
    network = varied(kind)
    if kind == "batch":
        before = network.logits(x)
        for _ in range(150):
            network.loss_and_gradients(x[None], np.ones(64, int), labels)
        assert np.abs(before - network.logits(x)).max() > 0.1
    tolerance = 0.02 if kind == "batch" else 1e-4  # running variances are unbiased ones
    np.testing.assert_allclose(network.logits(x), by_definition(network, kind, x), rtol=0, atol=tolerance)


def test_networks_of_one_seed_start_alike():
    plain, normed = ConvolutionalNetwork(None, 3).parameters(), ConvolutionalNetwork("layer", 3).parameters()
    for name, value in plain.items():
        if "weight" in name:
            np.testing.assert_array_equal(value, normed[name])
    assert not np.array_equal(plain["weight_1"], ConvolutionalNetwork(None, 4).parameters()["weight_1"])
    assert normed["gain_0"].shape == (8, 8, 8)
    assert ConvolutionalNetwork("batch", 3).parameters()["gain_0"].shape == (8,)


@pytest.mark.parametrize(("kind", "name"), [("batch", "batch_norm"), ("layer", "layer_norm")])
def test_lnrnn_is_the_one_that_computes(kind, name, monkeypatch):
    called = []

    def spied(function):
        real = getattr(lnrnn, function)

        def spy(*args, **kwargs):
            called.append(function)
            return real(*args, **kwargs)

        return spy

    for function in (name, f"{name}_backward"):
        monkeypatch.setattr(lnrnn, function, spied(function))
    x, labels = batch()
    varied(kind).loss_and_gradients(x[None], np.ones(12, int), labels)
    assert called.count(name) == called.count(f"{name}_backward") == len(SHAPES)


def test_images_until_counts_to_the_first_window_that_is_right():
    told = np.zeros((3, 10), bool)
    told[0, 4:] = True
    told[1, [1, 2, 3, 6]] = True
    np.testing.assert_array_equal(convolution.images_until(told, 1.0, 3), [7, 4, 10])
    np.testing.assert_array_equal(convolution.images_until(told, 0.5, 4), [6, 4, 10])
    np.testing.assert_allclose(convolution.running_share(told[:1], 5)[0], [0.2, 0.4, 0.6, 0.8, 1, 1])


def test_the_border_is_the_outermost_ring():
    active = np.zeros((2, SIDE, SIDE))
    active[1, 0], active[1, :, 7] = 0.28, 0.28
    at_border, inside = convolution.border(active)
    np.testing.assert_allclose(at_border, [0, 0.28 * 15 / 28])
    np.testing.assert_allclose(inside, 0)


def made_up(until: dict[str, int], accuracy: dict[str, float], never: tuple[str, ...] = ()) -> Results:
    """Results of 5 seeds in which a method needs about so many images (usually 1000) and reaches so much
    (usually 0.95)."""
    results = Results(5, 3, RATES)
    for place, name in enumerate(METHODS):
        told = np.zeros((5, 2400), bool)
        for seed in range(5):
            if name not in never:
                told[seed, until.get(name, 1000) + 10 * ((seed + place) % 3) - 190 :] = True
        results.told[name] = told
        noise = np.roll([0.0, 0.001, -0.001, 0.001, 0.0], place)
        results.accuracy[name] = accuracy.get(name, 0.95) + noise
        results.held_out[name] = np.full((5, len(RATES), 3), 0.95)
        results.chosen[name] = 0.01
        results.active[name] = np.full((5, 2, SIDE, SIDE), 0.4)
    return results


FAST = {PLAIN: 2000, LAYER_NORM: 1000, BATCH_NORM: 500}


@pytest.mark.parametrize(
    ("until", "accuracy", "verdict"),
    [
        (FAST, {BATCH_NORM: 0.97}, "confirmed"),
        ({}, {}, "not confirmed"),
        ({PLAIN: 500, BATCH_NORM: 1100}, {LAYER_NORM: 0.97}, "not confirmed"),
        ({PLAIN: 1150, BATCH_NORM: 900}, {BATCH_NORM: 0.953}, "not confirmed"),  # within the margins
        (FAST, {}, "depends"),
        (FAST, {BATCH_NORM: 0.9}, "depends"),
        ({**FAST, LAYER_NORM: 2000}, {BATCH_NORM: 0.97}, "depends"),
        ({PLAIN: 2000}, {}, "depends"),
    ],
)
def test_the_verdict_follows_the_rule(until, accuracy, verdict):
    found = convolution.report(made_up(until, accuracy))
    assert found.verdict == verdict
    assert found.depends_on == ("what is asked" if verdict == "depends" else "")


def test_the_hearsay_decides_nothing_and_is_told():
    results = made_up(FAST, {PLAIN: 0.99, BATCH_NORM: 0.97}, never=(convolution.SHARED,))
    assert convolution.answers(results)["LN ends worse than no norm"]
    found = convolution.report(results)
    assert found.verdict == "confirmed" and max(map(len, found.text.splitlines())) <= 80
    assert "LN ends worse than no norm: yes" in " ".join(found.text.split())
    row = next(line for line in found.text.splitlines() if line.startswith(convolution.SHARED))
    assert "2400±0" in row and row.split()[-3] == "5"
    assert "2.0" in found.number and "+2.0" in found.number


def test_one_seed_confirms_nothing():
    results = made_up(FAST, {BATCH_NORM: 0.97})
    for by_method in (results.told, results.accuracy, results.held_out, results.active):
        for name in METHODS:
            by_method[name] = by_method[name][:1]
    found = convolution.report(results)
    assert found.verdict == "not confirmed" and str(math.inf) in found.number


def test_a_quick_run(tmp_path, capsys):
    pytest.importorskip("sklearn")
    pytest.importorskip("tqdm")
    pytest.importorskip("matplotlib")
    report = demos.run("convolution", seeds=2, output_dir=tmp_path, quick=True)
    printed = capsys.readouterr().out
    assert (tmp_path / "convolution.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert report.verdict in VERDICTS and report.text in printed
    lines = printed.splitlines()
    assert max(len(line) for line in lines if not line.startswith("Figure: ")) <= 80
    again = demos.run("convolution", seeds=2, output_dir=tmp_path, quick=True, figure=False)
    assert again == report
