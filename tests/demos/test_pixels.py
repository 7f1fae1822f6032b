"""The study of pixels: its sequences and noise, its measures, its verdict on made-up numbers, a quick run."""

from __future__ import annotations

import numpy as np
import pytest

from lnrnn import demos
from lnrnn.demos import pixels
from lnrnn.demos.digits import PIXELS, load_digits
from lnrnn.demos.pixel_experiment import (
    BARE,
    BATCH,
    EVERY,
    EXTRA,
    FORGET_BIAS,
    HIDDEN,
    IN_ORDER,
    LAYER,
    METHODS,
    NORM_OF,
    ORDERS,
    PERMUTED,
    PLAIN,
    Extent,
    Job,
    NoisyStart,
    Results,
    Setting,
    constant_pixels,
    grid,
    permutation,
    run,
    sequences,
)
from lnrnn.demos.pixels import BETTER, FASTER, LEVEL, NO_WORSE, updates_to
from lnrnn.demos.study import VERDICTS

UPDATES = np.array([64, 128, 192, 256])
NOISE = np.array([0.0, 0.001, -0.001, 0.002, -0.002])


def made_up(curves=None, test=None):
    """Results of five seeds in which every network reaches LEVEL at update 192 and ends at 0.9, but for the
    curves and accuracies given by (method, order)."""
    results = Results(5, UPDATES, 4, 11.0)
    usual = [0.3, 0.6, LEVEL, 0.8]
    cells = [*((method, order) for order in ORDERS for method in METHODS), *EXTRA]
    for method, order in cells:
        key = method, order
        results.curves[key] = np.array((curves or {}).get(key, usual)) + np.zeros((5, 1))
        results.test[key] = (test or {}).get(key, 0.9) + np.roll(NOISE, list(NORM_OF).index(method))
        results.gradients[key] = np.full((5, 256), 0.3)
        results.setting[key] = Setting(0.01, 1.0)
        results.signs[key] = np.ones(5)
        results.found[key] = np.full((6, 2), 0.8)
        if NORM_OF[method] == "batch":
            results.silent[key] = results.test[key]
    return results


FAST = [0.6, LEVEL, 0.8, 0.9]
BOTH_FAST = {(BATCH, order): FAST for order in ORDERS}
SURE = {(BATCH, PERMUTED): 0.95}


@pytest.mark.parametrize(
    ("curves", "test", "verdict", "holding"),
    [
        (BOTH_FAST, SURE, "confirmed", ()),
        ({}, {}, "not confirmed", ()),
        ({}, {(BATCH, IN_ORDER): 0.99}, "not confirmed", ()),
        # A gain has to be clearly beyond the margin of one point.
        ({}, {(BATCH, PERMUTED): 0.91}, "not confirmed", ()),
        ({}, SURE, "depends", (NO_WORSE, BETTER)),
        (BOTH_FAST, {}, "depends", (FASTER[IN_ORDER], FASTER[PERMUTED], NO_WORSE)),
        (BOTH_FAST, {**SURE, (BATCH, IN_ORDER): 0.8}, "depends", (*FASTER.values(), BETTER)),
        ({(BATCH, IN_ORDER): FAST}, SURE, "depends", (FASTER[IN_ORDER], NO_WORSE, BETTER)),
    ],
)
def test_the_verdict_follows_the_rule(curves, test, verdict, holding):
    found = pixels.report(made_up(curves, test))
    assert found.verdict == verdict
    if verdict == "depends":
        assert found.depends_on.startswith(f"what is asked: {', '.join(holding)} holds")
    assert max(map(len, found.text.splitlines())) <= 80


def test_layer_norm_decides_nothing():
    test = {**SURE, (LAYER, PERMUTED): 0.2}
    assert pixels.report(made_up(BOTH_FAST, test)).verdict == "confirmed"


def test_one_seed_confirms_nothing():
    results = made_up(BOTH_FAST, SURE)
    for values in (results.test, results.silent, results.signs, results.curves, results.gradients):
        for key in values:
            values[key] = values[key][:1]
    assert pixels.report(results).verdict == "not confirmed"


def test_updates_to_a_level_lie_between_the_questions():
    assert updates_to(0.5, np.array([0.4, 0.6, 0.3, 0.9]), UPDATES) == pytest.approx(96)
    assert updates_to(0.5, np.array([0.8, 0.9, 0.9, 0.9]), UPDATES) == pytest.approx(40)
    assert updates_to(0.6, np.array([0.4, 0.6, 0.3, 0.9]), UPDATES) == pytest.approx(128)
    assert updates_to(0.95, np.array([0.4, 0.6, 0.3, 0.9]), UPDATES) == 256


def test_half_the_updates_are_a_logarithm_of_minus_one():
    results = made_up({(BATCH, IN_ORDER): [LEVEL, 0.8, 0.9, 0.9], (PLAIN, IN_ORDER): [0.6, LEVEL, 0.8, 0.9]})
    np.testing.assert_allclose(pixels.ratio(results, BATCH, IN_ORDER), -1)


# --- the experiment -----------------------------------------------------------------------------------------


def test_every_method_tries_as_many_settings():
    assert {len(grid(method)) for method in METHODS} == {6}


def test_sequences_are_the_pixels_one_by_one(rng):
    images = rng.standard_normal((3, PIXELS))
    for method, channels in ((PLAIN, 1), (BATCH, 1), (BARE, 1), (LAYER, 2)):
        assert sequences(images, IN_ORDER, method).shape == (PIXELS, 3, channels)
        np.testing.assert_array_equal(sequences(images, IN_ORDER, method)[:, 1, 0], images[1])
        np.testing.assert_array_equal(sequences(images, PERMUTED, method)[:, 1, 0], images[1, permutation()])
        assert (sequences(images, IN_ORDER, method)[:, :, 1:] == 1).all()
    assert sorted(permutation()) == list(range(PIXELS)) != list(permutation())


@pytest.mark.parametrize("method", [PLAIN, LAYER, BARE])
def test_layer_norm_of_one_number_keeps_its_sign_alone(method, rng):
    """Magnitudes large against eps: then only the network without a constant takes a pixel for its sign."""
    images = rng.uniform(50, 100, (6, PIXELS)) * rng.choice([-1, 1], (6, PIXELS))
    x, signs = (sequences(array, IN_ORDER, method).astype(np.float32) for array in (images, np.sign(images)))
    lstm = NoisyStart(NORM_OF[method], 1.0, 0.1, 0, x.shape[2])
    far = np.abs(lstm(x)[0] - lstm(signs)[0]).max()
    assert far < 1e-2 if method == BARE else far > 0.1


@pytest.mark.parametrize("norm", [None, "layer", "batch"])
def test_training_starts_from_noise_and_inference_from_zeros(norm, rng):
    x = rng.standard_normal((PIXELS, 8, 1)).astype(np.float32)
    lstm, silent = NoisyStart(norm, 0.5, 0.1, 3), NoisyStart(norm, 0.5, 0.0, 3)
    _, _, tape = lstm.forward_train(x)
    (h0, c0) = tape.start
    assert 0.05 < h0.std() < 0.15 and not c0.any()
    assert not silent.forward_train(x)[2].start[0].any()
    lstm.calibrate_noisily(x, 0)
    state = lstm.state_dict()
    silent.load_state_dict(state)
    np.testing.assert_array_equal(lstm(x)[0], silent(x)[0])
    biases = [value for name, value in lstm.parameters().items() if name.startswith("bias")]
    forget = sum(bias[HIDDEN : 2 * HIDDEN] for bias in biases if len(bias) == 4 * HIDDEN)
    np.testing.assert_array_equal(forget, FORGET_BIAS)
    assert sum(float(np.abs(bias).sum()) for bias in biases) == HIDDEN * FORGET_BIAS


def test_calibrating_draws_nothing_from_the_training_s_noise(rng):
    x = rng.standard_normal((PIXELS, 8, 1)).astype(np.float32)
    a, b = (NoisyStart("batch", 0.1, 0.1, 0) for _ in range(2))
    a.calibrate_noisily(x, 0)
    np.testing.assert_array_equal(a.forward_train(x)[0], b.forward_train(x)[0])


def test_weights_are_multiplied_only_without_norm():
    for norm in (None, "layer"):
        one, three = (NoisyStart(norm, start, 0.0, 0).parameters() for start in (1.0, 3.0))
        factor = 3 if norm is None else 1
        np.testing.assert_allclose(three["weight_hh_l0"], factor * one["weight_hh_l0"], rtol=1e-6)
    assert (three["gain_ih_l0"] == 3).all()


def test_a_training_asks_as_often_as_the_curve_has_points():
    pytest.importorskip("sklearn")
    data = load_digits()
    job = Job(BATCH, IN_ORDER, Setting(0.01, 0.1), 0, EVERY + 1, 60, test=True)
    found = run(job, data)
    assert found.held_out.shape == Extent(1, 60, 1, EVERY + 1).updates().shape == (2,)
    assert found.gradients.shape == (2 * (EVERY + 1),)
    assert 0 <= found.test <= 1 and 0 <= found.silent <= 1
    again = run(job, data)
    np.testing.assert_array_equal(found.gradients, again.gradients)


def test_some_pixels_are_the_same_in_all_images():
    pytest.importorskip("sklearn")
    data = load_digits()
    always, in_batch = constant_pixels(data)
    assert always == sum(len(set(column)) == 1 for column in data.train_x.T)
    assert 0 < always < in_batch < PIXELS


def test_a_quick_run(tmp_path, capsys):
    pytest.importorskip("sklearn")
    pytest.importorskip("tqdm")
    pytest.importorskip("matplotlib")
    report = demos.run("pixels", seeds=2, output_dir=tmp_path, quick=True)
    printed = capsys.readouterr().out
    assert (tmp_path / "pixels.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert report.verdict in VERDICTS and report.text in printed
    lines = printed.splitlines()
    assert max(len(line) for line in lines if not line.startswith("Figure: ")) <= 80
    again = demos.run("pixels", seeds=2, output_dir=tmp_path, quick=True, figure=False)
    assert again == report
