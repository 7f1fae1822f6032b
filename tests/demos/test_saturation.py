"""The study of saturation: its measures on cases with known answers, its verdict on made-up numbers, and a
quick run of it."""

from __future__ import annotations

import numpy as np
import pytest

from lnrnn import demos
from lnrnn.demos import saturation
from lnrnn.demos import saturation_experiment as experiment
from lnrnn.demos.saturation import ANSWERS, NORMED
from lnrnn.demos.saturation_experiment import NETS, NORMS, Course, Inside, Results, Setting
from lnrnn.demos.study import VERDICTS

EVERY_NORM = pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)


def images(count=20, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (count, 64)).astype(np.float32), rng.integers(0, 10, count)


def test_drift_is_wasserstein_s_distance_over_the_spread():
    old = np.array([[[0.0, 0.0], [1.0, 1.0]], [[5.0, 5.0], [2.0, 4.0]]])
    np.testing.assert_allclose(experiment.drift(old, old + [[[0.1], [0.0]]]), [-1, -np.log10(10 * 10**0.5)])
    wider = old.copy()
    wider[0, 1] = 7.0  # moved by 6, spread the root of (1 + 49) / 2
    np.testing.assert_allclose(experiment.drift(old, wider)[0], np.log10(6 / 5))
    # Scaling everything changes nothing; where nothing moves there is no infinity.
    np.testing.assert_allclose(experiment.drift(30 * old, 30 * wider)[0], np.log10(6 / 5))
    assert np.isfinite(experiment.drift(old, old)).all() and np.isfinite(experiment.drift(0 * old, old)).all()


def test_a_look_counts_what_is_saturated():
    # 4 s (1 - s) is 0.1 at +-3.637.
    after = np.array([[-9.0, 0.0], [3.7, 3.6]])
    inside = experiment.look([after - 1, after], [after, np.zeros((2, 2))], [10.0, 0.1])
    np.testing.assert_array_equal(inside.saturated, [0.5, 0])
    np.testing.assert_allclose(inside.before[0, 0], [-3.65, 0.8])
    np.testing.assert_allclose(inside.after[0, 1], [6.35, 1.8])
    assert inside.spread[0] == pytest.approx(((6.35**2 + 1.8**2) / 2) ** 0.5)
    assert inside.quantiles[0, 1] == pytest.approx(1.8) and inside.reach == pytest.approx(2)


@EVERY_NORM
def test_the_sigmoids_of_the_summed_inputs_are_the_rnn_s_answers(norm):
    x, labels = images()
    network = experiment.make_recurrent(norm, 3, 2.0)
    network.rnn.weight_hh_l0 = 3 * network.rnn.weight_hh_l0
    steps, lengths = experiment.as_sequences(x)
    np.testing.assert_array_equal(steps[1, 2], x[2, 4:8])
    y = network.rnn.forward_train(steps)[0]
    _, after = experiment.summed_inputs(network.rnn.parameters(), norm, steps, y)
    np.testing.assert_allclose(1 / (1 + np.exp(-np.stack(after))), y, rtol=0, atol=1e-5)
    assert y.std() > 0.1

    inside = experiment.look_into_recurrent(network, norm, x, labels)
    np.testing.assert_allclose(inside.after[5, 0], after[5].mean(axis=0), atol=1e-5)
    gx = network.loss_and_all_gradients(steps, lengths, labels)[2]
    np.testing.assert_allclose(inside.gradient[0], np.log10(np.linalg.norm(gx[0])), rtol=1e-4)


@EVERY_NORM
def test_looking_changes_nothing(norm):
    x, labels = images()
    deep = experiment.make_deep(norm, 0, [Setting(1.0, 0.1), Setting(4.0, 0.1)])
    deep.losses_and_gradients(np.repeat(x[:, None], 2, 1), np.repeat(labels[:, None], 2, 1))
    before = deep.logits(x)
    experiment.look_into_deep(deep, x, labels)
    experiment.gradient_shift(deep.part([0]), deep.values[:1].copy(), x, labels)
    np.testing.assert_array_equal(deep.logits(x), before)

    recurrent = experiment.make_recurrent(norm, 0, 1.0)
    steps, lengths = experiment.as_sequences(x)
    recurrent.loss_and_gradients(steps, lengths, labels)
    named = recurrent.rnn(steps)[0]
    experiment.look_into_recurrent(recurrent, norm, x, labels)
    np.testing.assert_array_equal(recurrent.rnn(steps)[0], named)


def test_the_factor_is_a_gain_or_multiplies_the_hidden_weights():
    settings = [Setting(1.0, 0.1), Setting(4.0, 0.1)]
    plain, normed = experiment.make_deep(None, 0, settings), experiment.make_deep("layer", 0, settings)
    for place, (layer, other) in enumerate(
        zip(plain.layers(plain.values), normed.layers(normed.values), strict=True)
    ):
        hidden = place < experiment.DEPTH
        np.testing.assert_allclose(layer.weight[1], (4 if hidden else 1) * layer.weight[0])
        np.testing.assert_array_equal(other.weight[1], layer.weight[0])
        if hidden:
            assert (other.gain[0] == 1).all() and (other.gain[1] == 4).all()
    one, four = (experiment.make_recurrent(None, 0, factor).rnn.parameters() for factor in (1.0, 4.0))
    for name, value in one.items():
        np.testing.assert_allclose(four[name], (4 if name.startswith("weight") else 1) * value)
    assert (experiment.make_recurrent("batch", 0, 4.0).rnn.gain_l0 == 4).all()


def test_the_gradient_at_a_layer_shifts_only_with_the_layers_below():
    x, labels = images()
    old = experiment.make_deep("layer", 0, [Setting(4.0, 0.1)])
    new = old.part([0])
    place = 3
    new.layers(new.values)[place].weight[...] *= 1.5
    new.layers(new.values)[place].bias[...] += 0.3
    found = experiment.gradient_shift(new, old.values, x, labels)
    assert found.shape == (experiment.DEPTH - 1,)
    assert (found[:place] < -30).all() and (found[place:] > -3).all()
    # By its definition, for the layer above.
    first = old.losses_and_gradients(x[:, None], labels[:, None])[1]
    second = new.losses_and_gradients(x[:, None], labels[:, None])[1]
    usual, moved = (old.layers(g)[place + 1].weight.astype(float) for g in (first, second))
    expected = np.log10(np.linalg.norm(moved - usual) / np.linalg.norm(usual))
    assert found[place] == pytest.approx(expected, abs=1e-4)


def test_passes_are_counted_from_chance_and_interpolated():
    assert saturation.passes_to(np.array([0.5, 0.9, 0.7]), 0.7) == pytest.approx(1.5)
    assert saturation.passes_to(np.array([0.9]), 0.5) == pytest.approx(0.5)
    assert saturation.passes_to(np.array([0.2, 0.3]), 0.5) == 2


def inside(saturated, reach, moved):
    """A look at two places of two units, at the ``moved``-th of places one spread apart."""
    moments = np.array([[[moved, moved], [1.0, 1.0]]] * 2)
    return Inside(
        moments,
        moments,
        np.full(2, saturated),
        np.array([[-1.0, 0.0, 1.0]] * 2),
        np.array([float(reach), 0.0]),
    )


WORSE = {"saturation": 0.5, "gradients": -3.0, "speed": 10, "drift": 1.0}
BETTER = {"saturation": 0.1, "gradients": 0.5, "speed": 3, "drift": 0.1}


def made_up(held) -> Results:
    """Results of 5 seeds in which the answers in ``held`` are yes, the others no."""
    results = Results(5, 12, ())
    results.grid = experiment.GRID
    for net in NETS:
        for name in NORMS:
            results.held_out[net, name] = np.linspace(0, 0.95, 20) * np.ones((5, 1))
            case = {q: (BETTER if (q, net, name) in held else WORSE)[q] for q in WORSE}
            courses = []
            for seed in range(5):
                noise = (0, 0.01, -0.01, 0.02, -0.02)[seed]
                course = Course()
                for time in range(3):
                    course.insides.append(
                        inside(case["saturation"] + noise, case["gradients"] + noise, time * case["drift"])
                    )
                course.accuracies = [0.2 if k + 1 < case["speed"] else 0.9 for k in range(12)]
                course.shifts = [np.full(7, -1.0)] if net == "deep" else []
                courses.append(course)
            results.courses[net, name] = courses
            results.usual[net, name] = [course.insides[0] for course in courses]
            results.chosen[net, name] = Setting(4.0, 0.01)
    return results


@pytest.mark.parametrize(
    ("held", "verdict", "depends_on"),
    [
        (ANSWERS, "confirmed", ""),
        ((), "not confirmed", ""),
        ([a for a in ANSWERS if a[0] == "speed"], "depends", "what is asked"),
        ([a for a in ANSWERS if a[1] == "deep"], "depends", "the network"),
        ([a for a in ANSWERS if a[2] == "BN"], "depends", "the norm"),
        (
            [a for a in ANSWERS if a[2] == "BN" and a[0] == "drift"],
            "depends",
            "what is asked and on the norm",
        ),
        (ANSWERS[1:], "depends", "what is asked and on the network and on the norm"),
    ],
)
def test_the_verdict_follows_the_rule(held, verdict, depends_on):
    found = saturation.report(made_up(held))
    assert (found.verdict, found.depends_on) == (verdict, depends_on)
    for question in WORSE:
        assert f"{question} {sum(answer[0] == question for answer in held)}" in found.number
    assert max(map(len, found.text.splitlines())) <= 80


def test_tables_tell_the_numbers():
    results = made_up(ANSWERS)
    for course in results.courses["deep", "BN"]:
        course.shifts = [np.full(7, -1.5)]
    text = saturation.report_text(results)
    assert "LN 1.00 (95 % interval 1.00 to 1.00), BN 3.16 (95 %" in " ".join(text.split())
    # The grid's rates run faster than its factors; the last of each four is the best.
    assert saturation.factor_table(results).splitlines()[-1].split()[2:] == ["15", "35", "55", "75", "95"]
    # From 9 + 6/7 passes to 2 + 6/7.
    row = next(line for line in text.splitlines() if line.startswith("speed, deep, BN"))
    assert row.split()[3:] == ["+1.79", "+1.79", "+1.79", "+0.32", "yes"]


def test_a_gain_within_its_margin_is_none():
    results = made_up(())
    for net in NETS:
        for name in NORMED:
            for course in results.courses[net, name]:
                course.insides = [
                    Inside(i.before, i.after, i.saturated - 0.04, i.quantiles, i.gradient + [0.4, 0])
                    for i in course.insides
                ]
    assert saturation.gain(results, ("saturation", "deep", "LN")).min() == pytest.approx(0.04)
    assert saturation.gain(results, ("gradients", "deep", "LN")).min() == pytest.approx(0.4)
    assert saturation.report(results).verdict == "not confirmed"


def test_gradients_that_explode_reach_no_further():
    results = made_up([a for a in ANSWERS if a[0] == "gradients"])
    for name in NORMED:
        for course in results.courses["deep", name]:
            course.insides = [
                Inside(i.before, i.after, i.saturated, i.quantiles, np.array([3.0, 0.0]))
                for i in course.insides
            ]
    assert np.abs(saturation.gain(results, ("gradients", "deep", "LN"))).max() < 0.1


def test_one_seed_confirms_nothing():
    results = made_up(ANSWERS)
    results.courses = {key: courses[:1] for key, courses in results.courses.items()}
    assert saturation.report(results).verdict == "not confirmed"


def test_a_quick_run(tmp_path, capsys):
    pytest.importorskip("sklearn")
    pytest.importorskip("tqdm")
    pytest.importorskip("matplotlib")
    report = demos.run("saturation", seeds=2, output_dir=tmp_path, quick=True)
    printed = capsys.readouterr().out
    assert (tmp_path / "saturation.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert report.verdict in VERDICTS and report.text in printed
    lines = printed.splitlines()
    assert max(len(line) for line in lines if not line.startswith("Figure: ")) <= 80
    again = demos.run("saturation", seeds=2, output_dir=tmp_path, quick=True, figure=False)
    assert again == report
