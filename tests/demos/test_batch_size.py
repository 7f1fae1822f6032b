"""The study of batch sizes: its arithmetic, its verdict on made-up numbers, and a quick run of it."""

from __future__ import annotations

import numpy as np
import pytest

from lnrnn import demos
from lnrnn.demos import batch_size
from lnrnn.demos.batch_size import BATCHES, LAYER, METHODS, PLAIN, READINGS, RECOMPUTED, RUNNING, Results
from lnrnn.demos.digits import load_digits
from lnrnn.demos.feed_forward import FeedForward
from lnrnn.demos.study import VERDICTS

NOISE = np.array([0.0, 0.001, -0.001, 0.002, -0.002])


def made_up(changes: dict[tuple[str, int], float]) -> Results:
    """Results in which every accuracy is about 0.9, moved by ``changes``."""
    results = Results(5, 800, 1, refusal="ValueError: x must have more than 1 value per channel in training")
    for method in METHODS:
        for size in BATCHES:
            if size == 1 and method in READINGS:
                continue
            noise = np.roll(NOISE, size)
            results.accuracy[method, size] = 0.9 + changes.get((method, size), 0) + noise
            results.rate[method, size] = 0.0003
            if method in READINGS:
                results.training_mode[method, size] = results.accuracy[method, size] - 0.25
        if method not in READINGS:
            results.online[method] = np.ones((800, 5), bool)
    return results


LOSSES = {(RUNNING, 4): -0.05, (RUNNING, 2): -0.4, (RECOMPUTED, 4): -0.05, (RECOMPUTED, 2): -0.3}


@pytest.mark.parametrize(
    ("changes", "verdict", "depends_on"),
    [
        (LOSSES, "confirmed", ""),
        ({}, "not confirmed", ""),
        ({**LOSSES, (LAYER, 4): -0.05, (LAYER, 2): -0.05}, "not confirmed", ""),
        ({**LOSSES, (RUNNING, 4): 0, (RECOMPUTED, 4): 0}, "depends", "the batch size"),
        ({**LOSSES, (LAYER, 4): -0.05}, "depends", "the batch size"),
        (
            {**LOSSES, (RECOMPUTED, 4): 0, (RECOMPUTED, 2): 0},
            "depends",
            "which statistics BN uses at inference",
        ),
        (
            {**LOSSES, (RECOMPUTED, 4): 0},
            "depends",
            "the batch size and on which statistics BN uses at inference",
        ),
        # A loss has to be clearly beyond the margin of one point.
        ({key: -0.01 for key in LOSSES}, "not confirmed", ""),
    ],
)
def test_the_verdict_follows_the_rule(changes, verdict, depends_on):
    found = batch_size.report(made_up(changes))
    assert (found.verdict, found.depends_on) == (verdict, depends_on)
    assert f"LN {100 * changes.get((LAYER, 4), 0):+.1f}"[:4] in found.number


def test_batch_1_decides_nothing():
    assert batch_size.report(made_up({**LOSSES, (LAYER, 1): -0.5})).verdict == "confirmed"


def test_one_seed_confirms_nothing():
    results = made_up(LOSSES)
    results.accuracy = {key: values[:1] for key, values in results.accuracy.items()}
    assert batch_size.verdict(results, "").verdict == "not confirmed"


def test_the_text_fits_the_terminal_at_the_widest_numbers():
    results = made_up({(method, size): -0.9 for method in METHODS for size in (2, 1)})
    for values in (*results.accuracy.values(), *results.training_mode.values()):
        values += np.array([-0.45, 0.2, 0, 0, 0.1])
    text = batch_size.report(results).text
    assert max(map(len, text.splitlines())) <= 80
    text = " ".join(text.split())
    assert "From batch 128 to 4" in text and "more than 1 value per channel" in text


def test_the_gap_is_training_mode_less_inference():
    np.testing.assert_allclose(batch_size.gap(made_up({}), RUNNING, 4), -0.25)
    change = batch_size.change(made_up({(PLAIN, 4): 0.03}), PLAIN, 4)
    assert change.mean() == pytest.approx(0.03)


def test_training_mode_asks_in_batches_and_counts_every_image_once():
    asked = []

    class Network:
        def logits(self, x, *, training):
            assert training
            asked.append(x[:, 0].astype(int))
            return np.stack([np.eye(10)[x[:, 0].astype(int) % 10], np.eye(10)[np.zeros(len(x), int)]], axis=1)

    x = np.arange(23.0)[:, None]
    found = batch_size.accuracy_in_training_mode(Network(), x, np.arange(23) % 10, 4)
    assert [len(batch) for batch in asked] == [4] * 6
    flat = np.concatenate(asked)
    assert sorted(flat[:23]) == list(range(23)) and flat[23] == flat[0]
    np.testing.assert_allclose(found, [1, 3 / 23])


def test_in_one_batch_of_all_images_training_mode_is_inference_after_calibration():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 64)).astype(np.float32)
    stack = FeedForward([0, 1], "batch")
    stack.calibrate(np.stack([x, x], axis=1))
    labels = stack.logits(x).argmax(axis=2)
    found = batch_size.accuracy_in_training_mode(stack, x, labels[:, 0], 500)
    assert found[0] > 0.99


def test_batch_norm_s_refusal_is_the_library_s():
    pytest.importorskip("sklearn")
    told = batch_size.refusal(load_digits())
    assert told == "ValueError: x must have more than 1 value per channel in training, got shape (1, 32)"


def test_a_quick_run(tmp_path, capsys):
    pytest.importorskip("sklearn")
    pytest.importorskip("tqdm")
    pytest.importorskip("matplotlib")
    report = demos.run("batch-size", seeds=2, output_dir=tmp_path, quick=True)
    printed = capsys.readouterr().out
    assert (tmp_path / "batch_size.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert report.verdict in VERDICTS and report.text in printed
    lines = printed.splitlines()
    assert max(len(line) for line in lines if not line.startswith("Figure: ")) <= 80
    again = demos.run("batch-size", seeds=2, output_dir=tmp_path, quick=True, figure=False)
    assert again == report
