"""The figure of the demo ``long-sequences``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from lnrnn.demos.length_experiment import BATCH_NORM, LAYER_NORM, NO_NORM, Method, Results
from lnrnn.demos.outcomes import ALL, Chosen, Outcome, compare, interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHORT, WHOLE = "the first 10 steps", "whole utterances"
UNITS = 8  # of how many units, or values of W h, the statistics are drawn
BEYOND = "#f1efe9"  # behind what is longer than the training
ALARM = "#c62828"

# method -> (label, colour, line style, width, marker); drawn in this order, so LN comes on top. Colours
# that are hard to tell apart with a kind of colour blindness have different markers, and names beside them.
STYLES = {
    NO_NORM: ("no norm", "#7d8790", "-", 1.7, "s"),
    BATCH_NORM["raise"]: ("BN, raise", ALARM, (0, (4, 2)), 1.8, "x"),
    BATCH_NORM["batch"]: ("BN, batch", "#2d1b40", "-", 1.7, "v"),
    BATCH_NORM["mean"]: ("BN, mean", "#2e9463", "-", 1.7, "D"),
    BATCH_NORM["last"]: ("BN, last", "#ef8a17", "-", 2.0, "^"),
    LAYER_NORM: ("layer norm", "#1565c0", "-", 2.8, "o"),
}
NAMES = {
    NO_NORM: "no norm",
    BATCH_NORM["raise"]: "batch norm, refuses",
    BATCH_NORM["batch"]: "batch norm, from the test batch",
    BATCH_NORM["mean"]: "batch norm, averages its steps",
    BATCH_NORM["last"]: "batch norm, repeats its last step",
    LAYER_NORM: "layer norm",
}


def draw_long_sequences(results: Results, figure: Figure) -> None:
    """Accuracy on longer speech above, batch norm's counts and statistics by step below."""
    parts: Any = figure.subfigures(2, 1, height_ratios=(1.2, 1))
    top, bottom = parts
    longer, joined = top.subplots(1, 2, width_ratios=(1, 1.2))
    _draw_longer(longer, results)
    _draw_joined(joined, results)

    statistics = results.statistics[WHOLE]
    bottom.suptitle("What batch norm (BN) knows of each step after training on whole utterances", fontsize=11)
    counts, means, variances = bottom.subplots(1, 3)
    _draw_counts(counts, statistics.count)
    which = f"{UNITS} of the {statistics.var.shape[1]} {statistics.what}"
    _draw_units(means, statistics.mean, f"mean, {which}")
    _draw_units(variances, statistics.var, f"variance, {which}")
    for axes, label in (
        (counts, "utterances"),
        (means, "mean over the utterances"),
        (variances, "variance over the utterances"),
    ):
        axes.set_ylabel(label)


def _draw_longer(axes: Axes, results: Results) -> None:
    """Each method's accuracy on the utterances beyond the training's length, less layer norm's: points and
    their 95 % interval over the seeds, a line for each method."""
    known = len(results.statistics[SHORT].count)
    longer = results.test.lengths > known
    outcomes, methods = results.whole[SHORT], list(STYLES)
    reference = outcomes[LAYER_NORM].accuracies(longer)
    farthest, verdicts = 5.0, []
    for place, method in enumerate(methods):
        _, colour, _, width, marker = STYLES[method]
        style: dict[str, Any] = {"ha": "center", "color": colour, "fontweight": "bold"}
        refused = outcomes[method].refusals(longer)
        if refused:
            text = f"refuses {'all ' if refused == longer.sum() else ''}{refused}: no statistics"
            axes.text(0, place, text, va="center", backgroundcolor="white", **style)
            continue
        points = 100 * (outcomes[method].accuracies(longer) - reference)
        low, high = interval(points) or (points[0], points[0])
        farthest = max(farthest, -low, high)
        axes.plot([low, high], [place, place], color=colour, lw=width)
        axes.plot([points.mean()], [place], marker, color=colour, ms=8)
        text = f"{points.mean():+.1f}".replace("-", "\N{MINUS SIGN}")
        if method == LAYER_NORM:
            text = f"{100 * reference.mean():.1f} % right"
        else:
            verdicts.append(compare(points, np.zeros_like(points)))
        axes.text(points.mean(), place + 0.16, text, va="bottom", **style)
    axes.axvline(0, color=STYLES[LAYER_NORM][1], lw=1.2, zorder=0)
    axes.set_yticks(range(len(methods)), [NAMES[method] for method in methods])
    for label, method in zip(axes.get_yticklabels(), methods, strict=True):
        label.set_color(STYLES[method][1])
    axes.set_xlim(-1.25 * farthest, 1.25 * farthest)
    axes.set_ylim(-0.6, len(methods) - 0.4)
    axes.set_xlabel("points of accuracy, less layer norm's\n(a line that crosses 0: no clear difference)")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#e4e4e4", lw=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.locator_params(axis="x", integer=True)
    title = f"Trained on {known} steps, asked about {longer.sum()} longer utterances:\n{_told(verdicts)}"
    axes.set_title(title, x=-0.8, fontsize=11.5, loc="left", pad=18, fontweight="bold")


def _told(verdicts: list[int | None]) -> str:
    """verdicts: `compare`'s, of each method that answers against layer norm."""
    if None in verdicts:
        return "too few seeds to tell them from layer norm"
    if any(verdicts):
        return f"{verdicts.count(1)} clearly above, {verdicts.count(-1)} clearly below layer norm"
    return "none is clearly above or below layer norm"


def _draw_joined(axes: Axes, results: Results) -> None:
    by_count = results.joined[WHOLE]
    steps = [results.joined_lengths[count].mean() for count in by_count]
    known = len(results.statistics[WHOLE].count)
    axes.set_xscale("log")
    _shade_beyond(axes, known, steps[-1] * 1.15)
    for method in STYLES:
        _draw_line(axes, steps, [(outcomes[method], ALL) for outcomes in by_count.values()], method)
    _name_ends(
        axes,
        steps[-1],
        {method: 100 * by_count[max(by_count)][method].accuracies().mean() for method in STYLES},
    )
    axes.set_xticks(steps, [f"{step:.0f}\n{count}" for step, count in zip(steps, by_count, strict=True)])
    axes.minorticks_off()
    axes.set_xlim(steps[0] / 1.15, steps[-1] * 1.15)
    axes.set_xlabel("steps heard, on average\nutterances of one speaker joined")
    axes.set_ylabel("right answers in %")
    axes.set_ylim(-3, 103)
    axes.grid(axis="y", color="#d9d9d9", lw=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    title = f"Trained on whole utterances of up to {known} steps:\nat the end of several joined"
    axes.set_title(title, fontsize=11.5, loc="left", pad=18, fontweight="bold")


def _draw_line(axes: Axes, places: Any, points: list[tuple[Outcome, Chosen]], method: Method) -> None:
    _, colour, style, width, marker = STYLES[method]
    accuracies = 100 * np.array([outcome.accuracies(column) for outcome, column in points])
    mean = accuracies.mean(axis=1)
    axes.plot(places, mean, ls=style, color=colour, lw=width, marker=marker, ms=6)
    if accuracies.shape[1] > 1:
        spread = accuracies.std(axis=1, ddof=1)
        axes.fill_between(places, mean - spread, mean + spread, color=colour, alpha=0.1, lw=0)


def _name_ends(axes: Axes, place: float, ends: Mapping[Method, float]) -> None:
    """Writes beside the end of each line what it is. ends: where the lines end, in percent."""
    for (method, end), height in zip(ends.items(), apart(np.array(list(ends.values())), 6.0), strict=True):
        axes.annotate(
            NAMES[method], (place, end), (place * 1.45, height), color=STYLES[method][1], va="center",
            fontsize=9.5, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": STYLES[method][1], "lw": 0.7, "shrinkA": 0, "shrinkB": 4},
        )  # fmt: skip


def apart(heights: np.ndarray, gap: float) -> np.ndarray:
    """Heights (N,) of labels at least ``gap`` from one another, in the order of ``heights``, with the least
    sum of squares of what they are moved by: labels that would touch become a block around their mean."""
    order = np.argsort(heights, kind="stable")
    blocks: list[list[float]] = []
    for rank, height in enumerate(heights[order]):
        blocks.append([height - gap * rank])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    found = np.empty(len(heights))
    found[order] = np.concatenate([np.full(len(block), np.mean(block)) for block in blocks])
    found[order] += gap * np.arange(len(heights))
    return found


def _shade_beyond(axes: Axes, start: float, end: float) -> None:
    axes.axvspan(start, end, color=BEYOND, lw=0, zorder=0)
    # Placed by data from left to right and by the panel's height from below to above.
    place: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "va": "bottom"}
    axes.text(start, 1.0, "  longer than any training sequence", fontsize=9, color="#6b675c", **place)


def _draw_counts(axes: Axes, count: np.ndarray) -> None:
    steps = np.arange(1, len(count) + 1)
    axes.bar(steps, count, width=0.85, color=["#9fb4c0"] * (len(count) - 1) + [ALARM])
    axes.set_yscale("log")
    axes.set_ylim(0.7, 400)
    axes.set_yticks([1, 3, 10, 30, 100, 300], ["1", "3", "10", "30", "100", "300"])
    axes.minorticks_off()
    text = f"step {len(count)}: {count[-1]} utterance{'' if count[-1] == 1 else 's'}"
    axes.text(len(count) + 0.5, 200, text, ha="right", color=ALARM, fontsize=9.5)
    _dress_steps(axes, "training utterances that reach a step", len(count))


def _draw_units(axes: Axes, values: np.ndarray, title: str) -> None:
    steps = np.arange(1, len(values) + 1)
    chosen = np.linspace(0, values.shape[1] - 1, UNITS).astype(int)
    for rank, unit in enumerate(chosen):
        axes.plot(
            steps, values[:, unit], lw=1.4, color=(0.1, 0.25 + 0.5 * rank / UNITS, 0.45 + 0.4 * rank / UNITS)
        )
    axes.plot(np.full(UNITS, steps[-1]), values[-1, chosen], "o", ms=4.5, color=ALARM, clip_on=False)
    _dress_steps(axes, title, len(values))


def _dress_steps(axes: Axes, title: str, steps: int) -> None:
    axes.set_title(title, fontsize=10.5, loc="left")
    axes.set_xlabel("step")
    axes.set_xlim(0.4, steps + 0.8)
    axes.spines[["top", "right"]].set_visible(False)
