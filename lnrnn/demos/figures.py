"""The figure of the demo ``long-sequences``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lnrnn.demos.length_experiment import BATCH_NORM, LAYER_NORM, NO_NORM, Method, Results
from lnrnn.demos.outcomes import ALL, Chosen, Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHORT, WHOLE = "the first 10 steps", "whole utterances"
UNITS = 8  # of how many units, or values of W h, the statistics are drawn
BEYOND = "#f1efe9"  # behind what is longer than the training
ALARM = "#c62828"

# method -> (label, colour, line style, width, marker); drawn in this order, so LN comes on top
STYLES = {
    NO_NORM: ("no norm", "#7d8790", "-", 1.7, "s"),
    BATCH_NORM["raise"]: ("BN, raise", ALARM, (0, (4, 2)), 1.8, "x"),
    BATCH_NORM["batch"]: ("BN, batch", "#8e5bb5", "-", 1.7, "v"),
    BATCH_NORM["mean"]: ("BN, mean", "#2e9463", "-", 1.7, "D"),
    BATCH_NORM["last"]: ("BN, last", "#ef8a17", "-", 2.0, "^"),
    LAYER_NORM: ("layer norm", "#1565c0", "-", 2.8, "o"),
}


def draw_long_sequences(results: Results, figure: Figure) -> None:
    """Accuracy on longer speech above, batch norm's counts and statistics by step below."""
    parts: Any = figure.subfigures(2, 1, height_ratios=(1.2, 1))
    top, bottom = parts
    longer, joined = top.subplots(1, 2, width_ratios=(1, 1.25))
    _draw_longer(longer, results)
    _draw_joined(joined, results)
    handles, labels = joined.get_legend_handles_labels()
    top.legend(handles[::-1], labels[::-1], loc="outside upper center", ncols=6, frameon=False, fontsize=10)

    statistics = results.statistics[WHOLE]
    bottom.suptitle("What batch norm (BN) knows of each step after training on whole utterances", fontsize=11)
    counts, means, variances = bottom.subplots(1, 3)
    _draw_counts(counts, statistics.count)
    which = f"{UNITS} of the {statistics.var.shape[1]} {statistics.what}"
    _draw_units(means, statistics.mean, f"mean, {which}")
    _draw_units(variances, statistics.var, f"variance, {which}")


def _draw_longer(axes: Axes, results: Results) -> None:
    """One bar a method: how many of the utterances beyond the training's length it names right."""
    known = len(results.statistics[SHORT].count)
    longer = results.test.lengths > known
    methods = list(STYLES)
    for place, method in enumerate(methods):
        label, colour, *_ = STYLES[method]
        accuracies = 100 * results.whole[SHORT][method].accuracies(longer)
        mean, spread = accuracies.mean(), accuracies.std(ddof=1) if len(accuracies) > 1 else 0.0
        axes.barh(place, mean, height=0.62, color=colour)
        refused = results.whole[SHORT][method].refusals(longer)
        if refused:
            text = f"refuses {'all ' if refused == longer.sum() else ''}{refused}: no statistics"
        else:
            axes.errorbar(mean, place, xerr=spread, color="#222222", capsize=3, lw=1.2)
            text = f"{mean:.1f}"
        axes.text(mean + spread + 1.5, place, text, va="center", color=colour, fontweight="bold")
    axes.set_yticks(range(len(methods)), [STYLES[method][0] for method in methods])
    axes.set_xlim(0, 112)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("right answers in %")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    title = f"Trained on {known} steps:\nthe {longer.sum()} test utterances that are longer"
    axes.set_title(title, fontsize=11.5, loc="left", pad=18, fontweight="bold")


def _draw_joined(axes: Axes, results: Results) -> None:
    by_count = results.joined[WHOLE]
    steps = [results.joined_lengths[count].mean() for count in by_count]
    known = len(results.statistics[WHOLE].count)
    axes.set_xscale("log")
    _shade_beyond(axes, known, steps[-1] * 1.15)
    for method in STYLES:
        _draw_line(axes, steps, [(outcomes[method], ALL) for outcomes in by_count.values()], method)
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
    label, colour, style, width, marker = STYLES[method]
    accuracies = 100 * np.array([outcome.accuracies(column) for outcome, column in points])
    mean = accuracies.mean(axis=1)
    axes.plot(places, mean, ls=style, color=colour, lw=width, marker=marker, ms=6, label=label)
    if accuracies.shape[1] > 1:
        spread = accuracies.std(axis=1, ddof=1)
        axes.fill_between(places, mean - spread, mean + spread, color=colour, alpha=0.1, lw=0)


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
