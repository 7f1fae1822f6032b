"""The study of characters: its text, models and measures on known answers, its verdict, a quick run."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

import lnrnn
from lnrnn import demos
from lnrnn.demos import character_experiment as experiment
from lnrnn.demos import characters, help_text, softmax, training
from lnrnn.demos.cells import CELLS, MODELS
from lnrnn.demos.character_experiment import STEPS, WARM_UP, Extent, Results
from lnrnn.demos.characters import AVERAGING, LAYER, REPEATING
from lnrnn.demos.classifier import StepClassifier
from lnrnn.demos.help_text import SYMBOLS
from lnrnn.demos.length_experiment import LAYER_NORM, NO_NORM
from lnrnn.demos.speakers import NORMS
from lnrnn.demos.study import VERDICTS
from slopes import assert_slopes, mild

# --- the text -----------------------------------------------------------------------------------------------


def test_topics_stand_by_name_and_paragraphs_once():
    topics = {"b": "One\n***\n\n\nsame\n\n   two", "a": "\nsame\n\nfirst\n"}
    assert help_text.join_topics(topics) == "same\n\nfirst\n\nOne\n***\n\n   two\n\n"


def test_the_parts_are_contiguous_and_the_symbols_are_the_training_text_s():
    common = [chr(ord("0") + number) for number in range(SYMBOLS - 1)]
    text = "".join(character * (100 - rank) for rank, character in enumerate(common)) + "é" * 1080
    found = help_text.split_text(text, "made up")
    size = len(text)
    assert [len(part) for part in (found.train, found.held_out, found.test)] == [
        int(0.8 * size),
        int(0.88 * size) - int(0.8 * size),
        size - int(0.88 * size),
    ]
    assert (found.train[:101] == [0] * 100 + [1]).all()
    # All but the training text's 63 most frequent characters are one symbol.
    assert (found.test == SYMBOLS - 1).all() and found.others == 1.0
    assert found.sha256 == hashlib.sha256(text.encode()).hexdigest()
    short = found.shortened(7)
    assert [len(part) for part in (short.train, short.held_out, short.test)] == [7, 7, 7]
    assert found.shortened(None).test is not None and len(found.shortened(None).test) == len(found.test)


def test_the_running_python_s_text_is_named():
    found = help_text.load_help_text()
    assert found.source.startswith("Python 3.") and "topics" in found.source
    for part in (found.train, found.held_out, found.test):
        assert part.min() >= 0 and part.max() < SYMBOLS
    assert set(found.train) == set(range(SYMBOLS)) and found.others < 0.05
    assert len(found.test) > 3000 + 2 * STEPS  # enough for the long reading


def test_a_window_s_answers_are_the_characters_that_follow():
    x, following = experiment.cut(np.arange(50), np.array([3, 40]), 4)
    assert x.shape == (4, 2, SYMBOLS) and (x.sum(axis=2) == 1).all()
    assert x.argmax(axis=2).T.tolist() == [[3, 4, 5, 6], [40, 41, 42, 43]]
    assert following.T.tolist() == [[4, 5, 6, 7], [41, 42, 43, 44]]


def test_windows_begin_anywhere():
    batches = list(experiment.random_windows(np.arange(64).repeat(10), 50, np.random.default_rng(0)))
    firsts = np.concatenate([x[0].argmax(axis=1) for x, _, _ in batches])
    assert len(batches) == 50 and set(firsts) == set(range((640 - STEPS) // 10))
    for x, lengths, labels in batches:
        assert x.shape == (STEPS, experiment.TOGETHER, SYMBOLS) and (lengths == STEPS).all()
        assert labels.shape == x.shape[:2]


# --- the model ----------------------------------------------------------------------------------------------


def test_the_gradient_of_cross_entropy_is_its_slope():
    rng = np.random.default_rng(0)
    logits, labels = rng.standard_normal((3, 4, 5)), rng.integers(0, 5, (3, 4))
    losses, gradients = softmax.cross_entropy(logits, labels)
    probability = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(
        losses, -np.log(np.take_along_axis(probability, labels[..., None], -1))[..., 0]
    )
    for klass in range(5):
        moved = logits.copy()
        moved[..., klass] += 1e-6
        slope = (softmax.cross_entropy(moved, labels)[0] - losses) / 1e-6
        np.testing.assert_allclose(gradients[..., klass], slope, atol=1e-5)


def test_cross_entropy_of_large_logits_is_finite():
    losses, gradients = softmax.cross_entropy(np.float32([[1000, 0], [0, 1000]]), np.array([0, 0]))
    assert losses.tolist() == [0, 1000] and gradients.tolist() == [[0, 0], [-1, 1]]


def step_model(cell, norm):
    return StepClassifier(MODELS[cell](3, 8, norm=mild(cell, norm), seed=1), 4, np.random.default_rng(5))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("norm", NORMS)
def test_the_gradient_is_the_slope_of_the_loss(cell, norm):
    rng = np.random.default_rng(5)
    model = step_model(cell, norm)
    lengths = np.repeat([5, 4, 2], 10)
    x, labels = rng.standard_normal((5, 30, 3), dtype=np.float32), rng.integers(0, 4, (5, 30))
    assert_slopes(model, (x, lengths, labels), rel=3e-3)


def test_the_loss_is_the_mean_over_all_steps_that_live():
    model = step_model("gru", "layer")
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((6, 3, 3), dtype=np.float32), rng.integers(0, 4, (6, 3))
    each = model.losses(x, labels)
    loss, gradients = model.loss_and_gradients(x, np.array([6, 6, 6]), labels)
    assert loss == pytest.approx(each.mean(), rel=1e-6)
    alive = np.arange(6)[:, None] < [6, 1, 3]
    loss, gradients = model.loss_and_gradients(x, np.array([6, 1, 3]), labels)
    assert loss == pytest.approx(each[alive].mean(), rel=1e-6)
    # What lies past a length does not count.
    other, same = model.loss_and_gradients(x, np.array([6, 1, 3]), np.where(alive, labels, 0))
    assert other == loss and all(np.array_equal(same[name], gradients[name]) for name in same)


def test_a_batch_is_drawn_after_the_update_by_the_one_before():
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

    found = training.updates(Model(), batches(), training.Adam(0.1), 1.0)
    assert told == []  # nothing before one asks
    assert list(found) == [(7.0, 2), (7.0, 5)]
    assert told == ["drawn", pytest.approx(-0.1), "drawn", pytest.approx(-0.1)]


# --- the measure --------------------------------------------------------------------------------------------


def test_every_character_has_one_fresh_window_after_the_warm_up():
    size = 1234
    starts = experiment.fresh_starts(np.zeros(size))
    places = starts + np.arange(1, STEPS + 1)[:, None]  # of the character that each step predicts
    found = experiment.by_character(places.astype(float), starts, size)
    known = np.flatnonzero(~np.isnan(found))
    assert (found[known] == known).all()
    assert known[0] == WARM_UP + 1 and (np.diff(known) == 1).all() and known[-1] > size - WARM_UP - 2
    long = experiment.long_starts(size, 400)
    assert len(long) == experiment.TOGETHER and len(set(long)) > experiment.TOGETHER // 2
    assert long[0] + 1 == known[0] and long[-1] + 400 == known[-1]
    with pytest.raises(ValueError, match="1234 characters, too few to read 1200 steps"):
        experiment.long_starts(size, 1200)


@pytest.mark.parametrize("norm, method", [("layer", LAYER_NORM), (None, NO_NORM)])
def test_a_network_without_memory_loses_nothing(norm, method):
    text = np.random.default_rng(0).integers(0, SYMBOLS, 900)
    rnn = MODELS["rnn"](SYMBOLS, 8, norm=norm, seed=0)
    rnn.weight_hh_l0 = np.zeros((8, 8))
    model = StepClassifier(rnn, SYMBOLS, np.random.default_rng(0))
    found = experiment.read_test(model, norm, text, 300)
    assert found.read.keys() == {method} and found.own is None
    np.testing.assert_allclose(found.read[method], found.same, rtol=0, atol=1e-6)
    # Bits of what is known: those of the softmax, by hand.
    bits = experiment.bits(model, text, np.array([50]), 1)[0, 0]
    logits = model.logits(rnn(experiment.one_hot(text[50:51, None]))[0])[0, 0].astype(float)
    probability = np.exp(logits) / np.exp(logits).sum()
    assert bits == pytest.approx(-np.log2(probability[text[51]]), rel=1e-5)


@pytest.mark.parametrize("cell", CELLS)
def test_averaged_statistics_are_those_of_the_policy_mean(cell):
    text = np.random.default_rng(0).integers(0, SYMBOLS, 600)
    rnn = MODELS[cell](SYMBOLS, 8, norm="batch", seed=0)
    rnn.calibrate([experiment.cut(text, np.arange(40), 5)[0]])
    state = rnn.state_dict()
    experiment.average_over_time(rnn)
    assert rnn.known_steps == 1 and rnn.overrun == "last"
    averaged = rnn.state_dict()
    for name, value in state.items():
        if name.startswith("running"):
            np.testing.assert_allclose(averaged[name], value.mean(axis=0, keepdims=True), rtol=1e-12)
    # From one and the same state, step 6 under "mean" is a step with the averages.
    rnn.load_state_dict(state)
    rnn.overrun = "mean"
    x = experiment.cut(text, np.arange(3), 6)[0]
    _, before = rnn(x[:5])
    expected = rnn(x)[0][5]
    experiment.average_over_time(rnn)
    np.testing.assert_allclose(rnn(x[5:], before)[0][0], expected, rtol=0, atol=1e-6)


def test_batch_norm_is_read_with_each_policy_and_with_averages():
    text = np.random.default_rng(0).integers(0, SYMBOLS, 900)
    rnn = MODELS["gru"](SYMBOLS, 8, norm="batch", seed=0)
    rnn.calibrate([experiment.cut(text, np.arange(64), STEPS)[0]])
    model = StepClassifier(rnn, SYMBOLS, np.random.default_rng(0))
    found = experiment.read_test(model, "batch", text, 300)
    assert [method.overrun for method in found.read] == ["last", "mean", "batch"]
    last, mean, batch = found.read.values()
    assert np.array_equal(last[:STEPS], mean[:STEPS]) and np.array_equal(last[:STEPS], batch[:STEPS])
    assert len({values[STEPS:].tobytes() for values in (last, mean, batch)}) == 3
    assert found.own.shape == found.averaged.shape == (STEPS,)
    assert not np.allclose(found.own[:5], found.averaged[:5])


def test_raise_refuses_the_first_step_beyond_the_training_s():
    extent = Extent(1, 8, 1, 300, 1, None)
    told = experiment.refusal(extent, np.arange(300) % SYMBOLS)
    assert told.startswith("SequenceTooLongError: sequence 0 has 101 steps, but statistics are known for 100")


def test_every_norm_has_as_many_trials():
    extent = Extent.of(5, False)
    sizes = {len(experiment.grid(norm, extent)) for norm in NORMS}
    assert sizes == {extent.trials} and len(experiment.RATES) * len(experiment.FACTORS[None]) == extent.trials


# --- the verdict --------------------------------------------------------------------------------------------

NOISE = np.array([0.0, 0.001, -0.001, 0.002, -0.002])


def made_up(losses, seeds=5):
    """Results with the given losses by part and cell; by default all three parts hold."""
    usual = {REPEATING: 0.01, AVERAGING: 0.3, LAYER: 0.01}
    text = help_text.HelpText(*[np.zeros(9, np.int64)] * 3, "a text, 27 characters", "0" * 64, 0.0)
    results = Results(text, Extent(seeds, 64, 1, 400, 1, None), refusal="SequenceTooLongError: too long")
    for cell in CELLS:
        value = {part: losses.get((part, cell), usual[part]) for part in usual}
        noise = NOISE[:seeds, None]
        for method in experiment.LONG:
            same = results.same[cell, method.norm] = np.full((seeds, 400), 2.0)
            read = results.read[cell, method] = same + noise
            read[:, :STEPS] += 5  # decides nothing
            read[:, STEPS:] += value[LAYER] if method == LAYER_NORM else 0
            read[:, STEPS:] += value[REPEATING] if method == characters.LAST else 0
        results.own[cell] = np.full((seeds, STEPS), 2.0)
        results.averaged[cell] = 2.0 + noise + np.full((seeds, STEPS), value[AVERAGING])
        for norm in NORMS:
            results.chosen[cell, norm] = 0.01, 1.0
            results.held_out[cell, norm] = {(0.01, 1.0): 2.0}
    return results


FAILS = {REPEATING: 0.06, AVERAGING: 0.05, LAYER: 0.06}


@pytest.mark.parametrize(
    ("failing", "verdict", "depends_on"),
    [
        ([], "confirmed", ""),
        ([(part, cell) for part in FAILS for cell in CELLS], "not confirmed", ""),
        ([(REPEATING, cell) for cell in CELLS], "depends", "the part of the claim"),
        ([(part, "lstm") for part in FAILS], "depends", "the cell"),
        ([(AVERAGING, "gru")], "depends", "the part of the claim and on the cell"),
    ],
)
def test_the_verdict_follows_the_rule(failing, verdict, depends_on):
    found = characters.report(made_up({key: FAILS[key[0]] for key in failing}))
    assert (found.verdict, found.depends_on) == (verdict, depends_on)
    assert max(map(len, found.text.splitlines())) <= 80


def test_the_numbers_of_the_verdict():
    found = characters.report(made_up({(REPEATING, "rnn"): 0.06, (AVERAGING, "lstm"): -0.2}))
    assert "beyond step 100: BN last RNN +0.060 [+0.058, +0.062], LSTM +0.010" in found.number
    assert "over time: RNN +0.300 [+0.298, +0.302], LSTM -0.200" in found.number
    assert "repeating works: LSTM, GRU; averaging degrades severely: RNN, GRU;" in found.number


@pytest.mark.parametrize(
    "part, value, expected",
    [
        (REPEATING, 0.04, True),
        (REPEATING, 0.0495, False),  # its interval reaches the margin
        (REPEATING, -1.0, True),
        (LAYER, 0.06, False),
        (AVERAGING, 0.11, True),
        (AVERAGING, 0.1005, False),
        (AVERAGING, -1.0, False),
    ],
)
def test_a_part_holds_with_its_interval(part, value, expected):
    assert characters.holds(part, value + NOISE) is expected
    assert not characters.holds(part, np.array([value]))


def test_one_seed_confirms_nothing():
    assert characters.report(made_up({}, seeds=1)).verdict == "not confirmed"


def test_ranges_of_steps_meet_at_the_training_s_length():
    bounds = characters.edges(3000)
    assert bounds[0] == 1 and bounds[-1] == 3001 and STEPS + 1 in bounds and (np.diff(bounds) > 0).all()
    values = np.arange(1.0, 7.0)[None]
    assert characters.in_ranges(values, np.array([1, 2, 4, 7])).tolist() == [[1.0, 2.5, 5.0]]


def test_a_quick_run_gives_the_same_on_one_thread(tmp_path, capsys):
    pytest.importorskip("tqdm")
    image = pytest.importorskip("matplotlib.image")
    report = demos.run("characters", output_dir=tmp_path, quick=True)
    printed = capsys.readouterr().out
    assert image.imread(tmp_path / "characters.png").std() > 0.05
    assert report.verdict in VERDICTS and report.text in printed
    lines = printed.splitlines()
    assert max(len(line) for line in lines if not line.startswith("Figure: ")) <= 80
    text = " ".join(report.text.split())
    assert "sha256" in text and "Python 3." in text and "SequenceTooLongError" in text
    threads = lnrnn.get_num_threads()
    lnrnn.set_num_threads(1)
    try:
        assert demos.run("characters", output_dir=tmp_path, quick=True, figure=False) == report
    finally:
        lnrnn.set_num_threads(threads)
