"""The figure of the demo long-sequences says what it shows without its page."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from lnrnn.data import Utterances
from lnrnn.demos import figures, long_sequences
from lnrnn.demos.length_experiment import BATCH_NORM, LAYER_NORM, METHODS, NO_NORM, Results, StepStatistics
from lnrnn.demos.outcomes import Outcome
from lnrnn.demos.speakers import REFUSED, TRAININGS


def made_up(seeds: int, points: dict) -> Results:
    """100 utterances of 15 steps, longer than the 10 of either training. points: by method, what it names
    right of 100 less than 80 by layer norm, which is the same under every seed; others differ by a point."""
    labels = np.zeros(100, np.int64)

    def outcome(method) -> Outcome:
        if method.overrun == "raise":
            return Outcome(np.full((seeds, 100), REFUSED), labels)
        right = [80 + points.get(method, 0) + (method != LAYER_NORM) * (seed % 2) for seed in range(seeds)]
        return Outcome(np.stack([np.arange(100) >= count for count in right]).astype(np.int64), labels)

    found = {method: outcome(method) for method in METHODS}
    results = Results(Utterances([np.zeros((15, 1), np.float32)] * 100, labels), seeds)
    results.joined_lengths = {1: np.full(100, 15), 8: np.full(100, 120)}
    for name in TRAININGS:
        results.whole[name], results.joined[name] = found, {1: found, 8: found}
        results.statistics[name] = StepStatistics(
            np.zeros((10, 9)), np.ones((10, 9)), np.arange(10, 0, -1, np.int64)
        )
    return results


@pytest.fixture
def drawn():
    pytest.importorskip("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    def draw(results):
        figure = Figure(figsize=long_sequences.study("rnn").size, layout="constrained")
        canvas = FigureCanvasAgg(figure)
        long_sequences.draw(results, figure)
        canvas.draw()
        return figure, canvas.get_renderer()

    return draw


def test_every_line_has_its_full_name_at_its_end(drawn):
    # Three that end alike: their names are still beside one another, and inside the figure.
    text_class = pytest.importorskip("matplotlib.text").Text
    figure, renderer = drawn(made_up(4, {BATCH_NORM["last"]: -60, BATCH_NORM["batch"]: -2}))
    joined = figure.axes[1]
    named = {text.get_text(): text for text in joined.texts if text.get_text() in figures.NAMES.values()}
    assert named.keys() == set(figures.NAMES.values()) and len(named) == len(METHODS)
    assert joined.get_legend() is None and not figure.legends
    # Of the words: an annotation's own extent holds the line to what it names, too.
    boxes = [text_class.get_window_extent(text, renderer) for text in named.values()]
    for one, other in combinations(boxes, 2):
        assert not one.overlaps(other)
    for box in boxes:
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
        assert box.x0 > joined.bbox.x1 - 1
    for method, (_, colour, *_) in figures.STYLES.items():
        assert named[figures.NAMES[method]].get_color() == colour
    assert len({style[1] for style in figures.STYLES.values()}) == len(METHODS)
    assert len({style[4] for style in figures.STYLES.values()}) == len(METHODS)


def test_the_left_panel_shows_differences_from_layer_norm_and_tells_them(drawn):
    results = made_up(4, {BATCH_NORM["last"]: -60, BATCH_NORM["mean"]: 10, NO_NORM: 0})
    figure, _ = drawn(results)
    left = figure.axes[0]
    assert [label.get_text() for label in left.get_yticklabels()] == [
        figures.NAMES[method] for method in figures.STYLES
    ]
    texts = {text.get_position()[1] // 1: text.get_text() for text in left.texts}
    by_method = {method: texts[place] for place, method in enumerate(figures.STYLES)}
    assert by_method == {
        LAYER_NORM: "80.0 % right",
        BATCH_NORM["last"]: "−59.5",
        BATCH_NORM["mean"]: "+10.5",
        BATCH_NORM["batch"]: "+0.5",
        BATCH_NORM["raise"]: "refuses all 100: no statistics",
        NO_NORM: "+0.5",
    }
    assert left.get_title("left").endswith("\n1 clearly above, 1 clearly below layer norm")
    low, high = left.get_xlim()
    assert low == -high and high > 60
    # The 95 % interval of 10, 11, 10, 11: Student's t with three degrees of freedom, 3.182 standard errors.
    colour = figures.STYLES[BATCH_NORM["mean"]][1]
    ends = next(line.get_xdata() for line in left.lines if line.get_color() == colour)
    half = 3.182 * np.std([10, 11, 10, 11], ddof=1) / 2
    np.testing.assert_allclose(ends, [10.5 - half, 10.5 + half], rtol=1e-9)


@pytest.mark.parametrize(
    "seeds, points, told",
    [
        (4, {}, "none is clearly above or below layer norm"),
        (2, {}, "too few seeds to tell them from layer norm"),
        (1, {BATCH_NORM["last"]: -60}, "too few seeds to tell them from layer norm"),
    ],
)
def test_the_title_says_no_more_than_the_numbers(seeds, points, told, drawn):
    figure, _ = drawn(made_up(seeds, points))
    title = figure.axes[0].get_title("left")
    assert title == f"Trained on 10 steps, asked about 100 longer utterances:\n{told}"


@pytest.mark.parametrize(
    "heights, expected",
    [
        ([10, 50, 90], [10, 50, 90]),
        ([50, 10], [50, 10]),
        ([50, 50], [47, 53]),
        ([90, 92, 50], [88, 94, 50]),
        ([0, 6, 7], [-5 / 3, 13 / 3, 31 / 3]),
        ([100, 99, 98, 98], [107.75, 101.75, 89.75, 95.75]),
    ],
)
def test_labels_are_moved_apart_as_little_as_can_be(heights, expected):
    np.testing.assert_allclose(figures.apart(np.array(heights, float), 6.0), expected, rtol=1e-12)
