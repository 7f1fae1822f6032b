"""The demo's machinery on small networks: it learns, it counts right, it repeats itself, it says what it
measured."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace

import numpy as np
import pytest

import lnrnn
from lnrnn import demos
from lnrnn.data import Utterances, japanese_vowels, pad_sequence
from lnrnn.demos import cells, findings, long_sequences, outcomes, speakers, tables, training
from lnrnn.demos.length_experiment import (
    BATCH_NORM,
    LAYER_NORM,
    METHODS,
    Results,
    StepStatistics,
    measure,
)
from lnrnn.demos.outcomes import Outcome
from lnrnn.demos.speakers import TRAININGS
from lnrnn.demos.study import save_figure

SETTINGS = speakers.Settings(
    hidden_size=12,
    training=training.TrainingSettings(
        epochs=3, batch_size=45, learning_rate=1e-2, largest_norm=1.0, noise=0.3
    ),
)
COUNTS = (1, 3)
NORMS = pytest.mark.parametrize("norm", ["layer", "batch", None])
EACH_CELL = pytest.mark.parametrize("cell", demos.CELLS)


def small_experiment(cell="rnn") -> Results:
    return measure(japanese_vowels(), cell, 2, COUNTS, lambda cell, *_: replace(SETTINGS, cell=cell))


@pytest.fixture(scope="module")
def vowels():
    return japanese_vowels()


@pytest.fixture(scope="module")
def results():
    return small_experiment()


# --- training -----------------------------------------------------------------------------------------------


@EACH_CELL
@NORMS
def test_training_lowers_the_loss(vowels, cell, norm):
    epochs = []
    settings = replace(SETTINGS, cell=cell).with_epochs(15)
    network = speakers.SpeakerNetwork(
        vowels.train, norm, settings, seed=3, max_steps=10, on_epoch=lambda: epochs.append(1)
    )
    assert type(network.classifier.rnn).__name__ == cell.upper()
    assert len(network.losses) == len(epochs) == 15
    assert network.losses[-1] < 0.8 * network.losses[0]
    named = network.name_speakers([x[:10] for x in vowels.train.x], "last" if norm == "batch" else None)
    assert (named == vowels.train.labels).mean() > 3 / 9  # three times what guessing gives


def test_the_input_scale_comes_from_the_steps_that_are_trained_on(vowels):
    network = speakers.SpeakerNetwork(vowels.train, "layer", SETTINGS.with_epochs(1), seed=0, max_steps=10)
    heard = np.concatenate([x[:10] for x in vowels.train.x]).astype(np.float64)
    np.testing.assert_allclose(network.mean, heard.mean(axis=0), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(network.deviation, heard.std(axis=0), rtol=1e-6)


# --- sequences ----------------------------------------------------------------------------------------------


def test_joined_utterances_are_of_one_speaker_and_end_with_each_utterance():
    labels = np.array([0, 0, 0, 1, 1])
    test = Utterances([np.full((n + 1, 1), n, np.float32) for n in range(5)], labels)
    joined = speakers.join_utterances(test, 4, np.random.default_rng(0))
    for index, sequence in enumerate(joined):
        assert (sequence[-(index + 1) :] == index).all()
        before = sequence[: -(index + 1), 0].astype(int)
        assert index not in before
        assert (labels[before] == labels[index]).all()
    assert [len(set(x.ravel())) for x in joined[3:]] == [2, 2]  # the other one of speaker 1, three times
    alone = speakers.join_utterances(test, 1, np.random.default_rng(0))
    assert all(np.array_equal(a, b) for a, b in zip(alone, test.x, strict=True))


def test_every_policy_is_the_network_s_own(vowels):
    network = speakers.SpeakerNetwork(vowels.train, "batch", SETTINGS, seed=0, max_steps=10)
    rnn, asked = network.classifier.rnn, vowels.test.x[:100]
    x, lengths = pad_sequence([(sequence - network.mean) / network.deviation for sequence in asked])
    named = {policy: network.name_speakers(asked, policy) for policy in speakers.POLICIES}
    for policy in ("last", "mean", "batch"):
        rnn.overrun = policy
        assert named[policy].tolist() == network.classifier.predict(x, lengths).tolist()
    assert len({answers.tobytes() for answers in named.values()}) == 4  # or the above would show nothing
    assert (named["raise"] == np.where(lengths > 10, speakers.REFUSED, named["last"])).all()


# --- the experiment -----------------------------------------------------------------------------------------


def test_refusals_are_the_sequences_longer_than_the_known_steps(results, vowels):
    for name, known in zip(TRAININGS, (10, 26), strict=True):
        statistics = results.statistics[name]
        assert len(statistics.count) == known
        reach = np.minimum(vowels.train.lengths, known)
        assert statistics.count.tolist() == [(reach > step).sum() for step in range(known)]
        strict = BATCH_NORM["raise"]
        assert results.whole[name][strict].refusals() == (vowels.test.lengths > known).sum()
        for count in COUNTS:
            refused = results.joined[name][count][strict].named == speakers.REFUSED
            assert (refused == (results.joined_lengths[count] > known)).all()
    assert results.whole["the first 10 steps"][BATCH_NORM["raise"]].refusals() == 346
    assert results.whole["whole utterances"][BATCH_NORM["raise"]].refusals() == 1


def test_within_the_known_steps_the_policy_does_not_matter(results, vowels):
    for name in TRAININGS:
        within = vowels.test.lengths <= len(results.statistics[name].count)
        named = [results.whole[name][method].named[:, within] for method in BATCH_NORM.values()]
        assert all(np.array_equal(named[0], other) for other in named[1:])


def test_the_last_step_of_the_whole_utterances_has_no_variance(results):
    assert results.statistics["whole utterances"].count[-1] == 1
    assert (results.statistics["whole utterances"].var[-1] == 0).all()
    assert (results.statistics["the first 10 steps"].var[-1] > 0).all()


def test_the_same_seeds_give_the_same_answers(results):
    again = small_experiment()
    for name in TRAININGS:
        for count in COUNTS:
            for method in METHODS:
                first, second = (run.joined[name][count][method].named for run in (results, again))
                assert np.array_equal(first, second), (name, count, method)
        assert np.array_equal(results.statistics[name].var, again.statistics[name].var)
        assert long_sequences.whole_table(results, name) == long_sequences.whole_table(again, name)
    assert findings.findings(results) == findings.findings(again)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_other_cells_are_asked_the_same(results, cell):
    other = small_experiment(cell)
    gates = {"lstm": 4, "gru": 3}[cell]
    for name, known in zip(TRAININGS, (10, 26), strict=True):
        statistics = other.statistics[name]
        assert statistics.mean.shape == statistics.var.shape == (known, gates * SETTINGS.hidden_size)
        assert statistics.count.tolist() == results.statistics[name].count.tolist()
        for count in COUNTS:
            for method in METHODS:
                named, of_rnn = (run.joined[name][count][method].named for run in (other, results))
                assert named.shape == of_rnn.shape
                assert np.array_equal(named == speakers.REFUSED, of_rnn == speakers.REFUSED)
                assert method.overrun == "raise" or not np.array_equal(named, of_rnn)
    text = " ".join(" ".join(findings.findings(other)).split())
    assert f"in {gates * 12} of {gates * 12} values of W h its variance is 0" in text
    assert "unit" not in text


def test_every_cell_has_a_figure_of_its_own():
    assert [long_sequences.study(cell).file for cell in demos.CELLS] == [
        "long_sequences.png",
        "long_sequences_lstm.png",
        "long_sequences_gru.png",
    ]


def test_seeds_differ(results):
    named = results.whole["whole utterances"][LAYER_NORM].named
    assert named.shape == (2, 370) and not np.array_equal(named[0], named[1])


# --- what is shown ------------------------------------------------------------------------------------------


def table(text: str) -> dict[str, list[str]]:
    """Rows by their first cell."""
    rows = [line.strip().split("  ") for line in text.splitlines()]
    return {cells[0]: [cell.strip() for cell in cells[1:] if cell] for cells in rows}


def test_the_table_by_length_is_complete(results):
    rows = table(long_sequences.whole_table(results, "the first 10 steps"))
    assert rows["steps"] == ["<= 10", "11-13", "14-16", "17-19", "20-29", "all"]
    assert rows["utterances"] == ["24", "100", "121", "71", "54", "370"]
    for method in METHODS:
        assert len(rows[method.name]) == 6 and all("±" in cell for cell in rows[method.name])
    assert rows["BN raise"][1:5] == ["0.0±0.0"] * 4 and rows["BN raise"][0] == rows["BN last"][0]
    assert rows["answered"] == [rows["BN raise"][0], *["-"] * 4, rows["BN raise"][0]]
    assert rows["refused"] == ["0", "100", "121", "71", "54", "346"]
    accuracy = results.whole["the first 10 steps"][LAYER_NORM].accuracies()
    assert rows["LN"][-1] == f"{100 * accuracy.mean():.1f}±{100 * accuracy.std(ddof=1):.1f}"


def test_the_table_by_utterances_joined_is_complete(results):
    rows = table(long_sequences.joined_table(results, "whole utterances"))
    assert len(rows) == 3 + len(METHODS) + 2
    assert rows["joined"] == ["1", "3"]
    assert rows["mean steps"] == [f"{results.joined_lengths[count].mean():.0f}" for count in COUNTS]
    assert rows["refused"] == ["1", str((results.joined_lengths[3] > 26).sum())]
    accuracy = results.joined["whole utterances"][3][BATCH_NORM["mean"]].accuracies()
    assert rows["BN mean"][1] == f"{100 * accuracy.mean():.1f}±{100 * accuracy.std(ddof=1):.1f}"


def test_the_table_of_changes_says_what_the_verdict_rests_on():
    rows = table(long_sequences.changes_table(made_up_results(0.2, 0.5)))
    assert rows["BN last"] == ["-70.0 -70.0 to -70.0", "fails"] * 2
    assert rows["LN"] == ["+0.0 +0.0 to +0.0", "holds"] * 2 and len(rows) == 2 + len(METHODS)


def test_outcome_counts_a_refusal_as_an_error_or_leaves_it_out():
    outcome = Outcome(np.array([[0, 1, -1, -1], [0, 0, -1, -1]]), np.array([0, 1, 1, 0]))
    assert outcome.refusals() == 2 and outcome.refusals(np.array([0, 1, 3])) == 1
    assert outcome.accuracies().tolist() == [0.5, 0.25]
    assert outcome.accuracies(answered_only=True).tolist() == [1.0, 0.5]
    assert np.isnan(outcome.accuracies(np.array([False, False, True, True]), answered_only=True)).all()


def test_compare_needs_a_difference_beyond_its_error():
    low = np.array([0.50, 0.52, 0.51, 0.50])
    assert outcomes.compare(low + 0.2, low) == 1
    assert outcomes.compare(low, low + 0.2) == -1
    assert outcomes.compare(low, low) == 0
    assert outcomes.compare(low + [0.2, -0.2, 0.1, -0.1], low) == 0
    assert outcomes.compare(low[:2] + 0.2, low[:2]) is None


@pytest.mark.parametrize("errors, verdict", [(1.05, 0), (3.1, 0), (3.25, 1), (5, 1)])
def test_a_difference_is_clear_beyond_its_95_percent_interval(errors, verdict):
    # The 0.975 quantile of Student's t with three degrees of freedom is 3.182.
    low = np.array([0.50, 0.52, 0.51, 0.50])
    spread = 0.01 * np.array([-1, 1, -1, 1])
    error = spread.std(ddof=1) / len(spread) ** 0.5
    for sign in (1, -1):
        assert outcomes.compare(low + spread + sign * errors * error, low) == sign * verdict
        assert outcomes.compare(low, low + spread + sign * errors * error) == -sign * verdict


def made_up_results(last_accuracy: float, variance: float) -> Results:
    """100 sequences, every method right in 90 of them, but BN last on joined ones."""
    labels = np.zeros(100, np.int64)

    def outcome(accuracy: float) -> Outcome:
        return Outcome(np.tile(np.arange(100) >= round(100 * accuracy), (4, 1)).astype(np.int64), labels)

    test = Utterances([np.zeros((5, 1), np.float32)] * 98 + [np.zeros((15, 1), np.float32)] * 2, labels)
    results = Results(test, 4)
    refusing = {BATCH_NORM["raise"]: Outcome(np.tile(np.where(np.arange(100) < 60, -1, 0), (4, 1)), labels)}
    for name in TRAININGS:
        usual = {method: outcome(0.9) for method in METHODS} | refusing
        results.joined[name] = {1: usual, 8: usual | {BATCH_NORM["last"]: outcome(last_accuracy)}}
        results.whole[name] = usual
        results.statistics[name] = StepStatistics(
            np.zeros((10, 3)), np.full((10, 3), variance), np.arange(10, 0, -1)
        )
    results.joined_lengths = {1: test.lengths, 8: 8 * test.lengths}
    return results


def test_the_closing_sentences_follow_the_numbers():
    bad = " ".join(" ".join(findings.findings(made_up_results(0.2, 0.0))).split())
    assert (
        "refuses 60 of 100 test utterances (60.0%); a refusal being an error, it is right in 40.0±0.0 %"
        in bad
    )
    assert "reached by 1 training utterance; in 3 of 3 units its variance is 0" in bad
    assert "falls behind LN (20.0±0.0 to 90.0±0.0 %) at the end of 8 utterances" in bad
    assert "BN last falls from 90.0±0.0 to 20.0±0.0" in bad
    good = " ".join(" ".join(findings.findings(made_up_results(0.9, 0.5))).split())
    assert "its variance is 0.5 to 0.5. Repeating it keeps up with LN (0.0±0.0 to 0.0±0.0 %)" in good
    assert "keeps up with LN (90.0±0.0 to 90.0±0.0 %) at the end of 8 utterances" in good
    assert "BN last holds, from 90.0±0.0 to 90.0±0.0" in good
    better = " ".join(" ".join(findings.findings(made_up_results(1.0, 0.5))).split())
    assert "does better than LN (100.0±0.0 to 90.0±0.0 %) at the end of 8 utterances" in better
    assert "BN last rises from 90.0±0.0 to 100.0±0.0" in better


def test_two_seeds_are_too_few_for_a_verdict(results):
    text = " ".join(findings.findings(results))
    assert "fewer than three seeds" in text and "stands against LN" in text
    assert not any(verdict in text for verdict in ("above", "below", "rises", "falls", "holds", "keeps up"))


def test_tables_of_the_widest_numbers_fit_the_terminal():
    labels = np.repeat([0, 1], 185)
    split = Outcome(np.stack([labels, 1 - labels]), labels)  # right always, right never: 50.0±70.7
    refusing = Outcome(np.full((2, 370), speakers.REFUSED), labels)
    test = Utterances([np.zeros((9 + k % 21, 1), np.float32) for k in range(370)], labels)
    by_method = {method: refusing if method.overrun == "raise" else split for method in METHODS}
    counts = long_sequences.COUNTS
    for name in TRAININGS:
        results = Results(
            test, 2, {name: by_method}, {name: dict.fromkeys(counts, by_method)},
            {count: np.full(370, 29 * count) for count in counts},
        )  # fmt: skip
        for text in (long_sequences.whole_table(results, name), long_sequences.joined_table(results, name)):
            assert text.count("50.0±70.7") == 5 * 6
            assert max(map(len, text.splitlines())) <= 80


def test_format_table():
    table = tables.format_table(["name", "a"], [["x", "1.5"], ["longer", ""]])
    assert table.splitlines() == ["name      a", "-----------", "x       1.5", "longer"]


def test_a_table_that_is_too_wide_is_cut_into_even_parts(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    header, rows = ["name", *"abcd"], [["x", *("0123456789" * 2 for _ in "abcd")]]
    parts = tables.format_table(header, rows).split("\n\n")
    assert [part.splitlines()[0].split() for part in parts] == [["name", "a", "b"], ["name", "c", "d"]]
    for part in parts:
        first, rule, row = part.splitlines()
        assert len(first) == len(rule) == len(row) == 4 + 2 * (2 + 20) and set(rule) == {"-"}
        assert row.split() == ["x", *rows[0][1:3]]
    # At its full width it fits, to the column; a single value that is too wide is not cut.
    for columns, count in (("92", 1), ("91", 2)):
        monkeypatch.setenv("COLUMNS", columns)
        assert tables.format_table(header, rows).count("name") == count
    assert "z" * 200 in tables.format_table(["name", "a"], [["x", "z" * 200]])
    assert tables.format_table(["name"], [["x"]]).splitlines() == ["name", "----", "x"]


@pytest.mark.parametrize("columns, expected", [(10, 60), (60, 60), (97, 97), (120, 120), (400, 120)])
def test_text_is_as_wide_as_the_terminal_within_limits(columns, expected, monkeypatch):
    for name, size in (("COLUMNS", columns), ("get_terminal_size", None)):
        if size is None:
            monkeypatch.delenv("COLUMNS")
            monkeypatch.setattr(os, name, lambda *_: os.terminal_size((columns, 25)))
        else:
            monkeypatch.setenv(name, str(size))
        assert tables.columns() == expected
        lines = tables.paragraph("word " * 100).splitlines()
        assert expected - 5 < max(map(len, lines)) <= expected


def test_where_there_is_no_terminal_lines_are_of_80_characters(monkeypatch):
    def refuse(*_):
        raise OSError("not a terminal")

    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr(os, "get_terminal_size", refuse)
    assert tables.columns() == 80


def test_what_was_found_comes_before_the_tables():
    text = tables.lay_out(tables.bullets(["one " * 30, "two"]), [("caption", "table"), ("other", "rows")])
    first, *rest = text.split("\n\n")
    assert first.splitlines()[0].startswith("- one one") and first.splitlines()[1].startswith("  one")
    assert first.endswith("\n- two") and rest == ["caption", "table", "other", "rows"]


def test_the_figure_is_a_picture(results, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    path = tmp_path / "figure.png"
    size = long_sequences.study("rnn").size
    save_figure(path, size, lambda figure: long_sequences.draw(results, figure))
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    pixels = image.imread(path)
    assert pixels.shape[0] > 1000 and pixels.shape[1] > 1500
    for rows in np.array_split(pixels[..., :3], 2):
        for panel in np.array_split(rows, 2, axis=1):
            assert (panel.min(axis=2) < 0.9).mean() > 0.02  # every quarter has something drawn in it


# --- running it ---------------------------------------------------------------------------------------------


@pytest.fixture
def short(monkeypatch):
    """The demo with so little training that it takes a moment."""
    pytest.importorskip("tqdm")
    monkeypatch.setattr(
        long_sequences, "_quick_settings", lambda cell, *_: replace(SETTINGS, hidden_size=6, cell=cell)
    )
    monkeypatch.setattr(long_sequences, "QUICK_COUNTS", (1, 2))


@EACH_CELL
def test_the_demo_prints_what_it_found_and_writes_the_figure(tmp_path, capfd, monkeypatch, short, cell):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((80, 25)))  # which tqdm asks
    threads = lnrnn.get_num_threads()
    demos.run(seeds=1, output_dir=tmp_path / "new", quick=True, cell=cell)
    assert lnrnn.get_num_threads() == threads
    shown, progress = capfd.readouterr()
    figure = tmp_path / "new" / long_sequences.study(cell).file
    assert figure.stat().st_size > 10_000 and f"\nFigure: {figure}\n" in shown
    assert f"{cells.with_article(cell.upper())} is trained" in " ".join(shown.split())
    assert shown.count("\nLN  ") == 5 and "346" in shown and "quick run" in shown
    # What follows from the numbers comes first.
    assert shown.index("\nVerdict: ") < shown.index("BN knows 10 steps") < shown.index("\nLN  ")
    lines = [line for line in shown.splitlines() if not line.startswith("Figure: ")]
    assert max(map(len, lines)) <= 80
    bars = [line for line in re.split(r"[\r\n]", progress) if "|" in line]
    assert bars[-1].startswith("100%") and bars[-1].rstrip().endswith("  done")
    for bar in bars:
        assert len(bar) <= 80 and len(bar.split("|")[1]) == 20


def test_without_a_figure_nothing_is_written_and_matplotlib_is_not_needed(
    tmp_path, capsys, monkeypatch, short
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    demos.run(seeds=1, output_dir=tmp_path / "new", quick=True, figure=False)
    assert "Figure" not in capsys.readouterr().out and not list(tmp_path.iterdir())


def test_a_figure_that_cannot_be_written_is_told_before_any_training(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    pytest.importorskip("tqdm")
    monkeypatch.setattr(long_sequences, "measure_lengths", lambda *_: pytest.fail("trained"))
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "taken" / long_sequences.study("rnn").file).mkdir(parents=True)
    for folder, error in (("/proc", OSError), (tmp_path / "file", FileExistsError),
                          (tmp_path / "file" / "below", NotADirectoryError),
                          (tmp_path / "taken", IsADirectoryError)):  # fmt: skip
        with pytest.raises(error, match=re.escape(str(folder))):
            demos.run(output_dir=folder)


@pytest.mark.parametrize("package", ["tqdm", "matplotlib"])
def test_a_missing_package_is_named_before_any_training(package, monkeypatch, tmp_path):
    pytest.importorskip("tqdm")
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(long_sequences, "measure_lengths", lambda *_: pytest.fail("trained"))
    with pytest.raises(ImportError, match=rf"needs {package}, .*pip install matplotlib tqdm") as raised:
        demos.run(output_dir=tmp_path)
    # The figure can be left out, the progress bar cannot.
    assert ("--no-figure" in str(raised.value)) == (package == "matplotlib")


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="no demo 'other'; there are: axes, .*, long-sequences, all"):
        demos.run("other")
    with pytest.raises(ValueError, match="seeds must be at least 1, got 0"):
        demos.run(seeds=0)
    with pytest.raises(ValueError, match="cell: expected one of rnn, lstm, gru, got 'RNN'"):
        demos.run(cell="RNN")
    for name in ("axes", "all"):
        with pytest.raises(ValueError, match=f"cell: the demo '{name}' takes none"):
            demos.run(name, cell="rnn")
