"""Tests that the output of the short demo agrees with the networks that it trains."""

from __future__ import annotations

import io
import re
import sys

import numpy as np
import pytest

import lnrnn
from lnrnn import cli, demo, speakers
from lnrnn.data import Utterances, japanese_vowels
from lnrnn.speakers import one_thread

EPOCHS = 40


def briefly_trained(cell):
    """Returns networks trained for a fifth of the demo's epochs."""
    with pytest.MonkeyPatch.context() as patch, one_thread():
        patch.setattr(demo, "EPOCHS", EPOCHS)
        return demo.trained(japanese_vowels(), cell)


@pytest.fixture(scope="module")
def networks():
    return briefly_trained("rnn")


@pytest.fixture
def already_trained(networks, monkeypatch):
    """Makes demo.run use `networks`, and show steps on a terminal without pauses."""
    monkeypatch.setattr(demo, "PAUSE", 0)
    monkeypatch.setattr(demo, "trained", lambda data, cell, jobs: networks)


@pytest.fixture(scope="module")
def joined():
    return demo.join(japanese_vowels().test)


@pytest.mark.parametrize("cell", speakers.CELLS)
def test_the_settings_of_every_cell_suit_its_training(networks, cell):
    """After a fifth of the demo's epochs, most speakers are named correctly (measured: 95 to 99 %)."""
    test = japanese_vowels().test
    for norm, network in (networks if cell == "rnn" else briefly_trained(cell)).items():
        named = network.name_speakers(test.x, "last" if norm == "batch" else None)
        assert (named == test.labels).mean() > 0.9, norm


def test_joined_sequences_are_utterances_of_one_speaker_in_order(joined):
    test = japanese_vowels().test
    assert joined.x.shape == (demo.STEPS, len(test), 12)
    own = np.flatnonzero(test.labels == test.labels[40])
    for index in (0, own[-1], len(test) - 1):
        ends, n = joined.ends[index], int(index)
        assert len(test.x[n]) == ends[0]
        np.testing.assert_array_equal(joined.x[: ends[0], n], test.x[n])
        same = np.flatnonzero(test.labels == test.labels[n])
        after = same[(list(same).index(n) + 1) % len(same)]
        np.testing.assert_array_equal(joined.x[ends[0] : ends[1], n], test.x[after])


def test_a_single_short_utterance_is_repeated():
    x = [np.full((7, 2), 1.0, np.float32), np.full((50, 2), 2.0, np.float32)]
    joined = demo.join(Utterances(x, np.array([3, 5])))
    assert joined.ends[0].tolist() == list(range(7, demo.STEPS + 1, 7))
    assert joined.ends[1].tolist() == [50, 100]
    assert (joined.x[:, 0] == 1).all()


@pytest.fixture(scope="module")
def right(networks, joined):
    return demo.right_answers(networks, joined)


def test_the_shown_accuracies_are_those_of_whole_sequences(networks, joined, right, capsys):
    test, known = japanese_vowels().test, demo.known_steps(networks)
    assert known == japanese_vowels().train.lengths.max() and right.keys() == demo.METHODS.keys()
    demo.report(right, joined, known)
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    last = [sequence[: ends[-1]] for sequence, ends in zip(joined.x.swapaxes(0, 1), joined.ends, strict=True)]
    for row, norm, policy in (
        (0, "layer", None), (1, None, None), (2, "batch", "raise"), (3, "batch", "last"),
        (4, "batch", "mean"),
    ):  # fmt: skip
        alone, long = (
            (networks[norm].name_speakers(x, policy) == test.labels).mean() for x in (test.x, last)
        )
        assert told[row - 5][-4:] == [f"{100 * alone:.0f}", "->", f"{100 * long:.0f}", "%"]
        assert alone > 0.2 and (policy == "raise") == (long == 0)
    assert not right["strict"][known:].any()
    np.testing.assert_array_equal(right["last"][:known], right["mean"][:known])


def test_streams_give_the_answers_of_whole_sequences(networks, joined, right):
    place, known = demo.first_right(joined, right), demo.known_steps(networks)
    x = joined.x[:, place]
    rows = list(demo.steps(networks, x))
    assert [step for step, _, _ in rows] == list(range(1, demo.STEPS + 1))
    own = networks["layer"].name_at_each_step(joined.x)[:, place]
    assert [answer for _, answer, _ in rows] == own.tolist()
    last, mean = (
        networks["batch"].name_at_each_step(joined.x, policy)[:, place] for policy in ("last", "mean")
    )
    for step, _, batch in rows:
        if step <= known:
            assert batch == f"speaker {last[step - 1]}"
        else:
            assert batch == f"last: {last[step - 1]}, mean: {mean[step - 1]}"
    ends = [ends[0] - 1 for ends in joined.ends]
    assert joined.labels[place] == last[ends[place]] == own[ends[place]]
    for before in range(place):
        assert not (right["layer norm"] & right["last"])[ends[before], before]


def test_the_shown_error_is_that_of_the_network(networks, joined):
    known, network = demo.known_steps(networks), networks["batch"]
    said = demo.refusal(network, joined.x[: known + 1, 0])
    assert network.rnn.overrun == "raise"
    stream = network.rnn.stream()
    stream.steps_done = known
    with pytest.raises(lnrnn.SequenceTooLongError) as raised:
        stream(joined.x[known, 0])
    assert said == f"SequenceTooLongError: {raised.value}"
    with pytest.raises(AssertionError):
        demo.refusal(network, joined.x[:known, 0])


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_output_fits_the_terminal(already_trained, monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    demo.run()
    plain = capsys.readouterr().out
    assert max(map(len, plain.splitlines())) <= columns
    assert re.search(r"^  27  SequenceTooLongError: .* 27 steps", plain, re.M)
    assert re.search(r"^  layer norm +\d+ -> +\d+ %$", plain, re.M)
    assert plain.index("Three") < plain.index("Trained in")
    monkeypatch.setattr(sys, "stdout", Terminal())
    demo.run()
    live = sys.stdout.getvalue()
    shown = [re.split("\r", line)[-1].rstrip() for line in live.split("\n")]
    timeless = re.compile("Trained in .*")
    assert [timeless.sub("", line) for line in shown] == [timeless.sub("", row) for row in plain.split("\n")]
    monkeypatch.setattr(sys, "stdout", None)  # a process without stdout
    demo.run()


def test_a_narrow_terminal_gets_no_overwritten_lines(already_trained, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "stdout", Terminal())
    demo.run()
    assert "\r" not in sys.stdout.getvalue()


def test_the_demo_needs_only_numpy_and_trains_every_cell(monkeypatch, capsys):
    monkeypatch.setattr(demo, "EPOCHS", 2)
    for package in ("tqdm", "matplotlib", "sklearn", "safetensors", "torch"):
        monkeypatch.setitem(sys.modules, package, None)
    assert cli.main(["demo", "--cell", "gru"]) == 0
    told = capsys.readouterr().out
    assert "SequenceTooLongError" in told and "Three GRUs" in told


def test_a_wrong_cell_is_refused_before_the_training(monkeypatch):
    monkeypatch.setattr(speakers, "train", None)
    with pytest.raises(ValueError, match="cell"):
        demo.run("RNN")
