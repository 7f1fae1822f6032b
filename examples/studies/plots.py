"""Colours and plots that the studies' figures share.

The colours are those of Okabe and Ito, which people with any colour vision can distinguish.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from common import interval

from lnrnn import demo, speakers

# {name: (colour, marker, width of the curve)}.
STYLES: dict[str, tuple[str, str, float]] = {
    "no norm": ("#777777", "s", 1.6),
    "BN": ("#D55E00", "^", 2.2),
    "BN last": ("#D55E00", "^", 2.2),
    "BN mean": ("#E69F00", "D", 1.8),
    "BN batch": ("#CC79A7", "v", 1.6),
    "LN": ("#0072B2", "o", 2.6),
}
OTHER = "#009E73"
SHADE = "#f1efe9"
HEADING = {"fontsize": 10.5, "fontweight": "bold"}
HEADLINE = {**HEADING, "x": 0.01, "ha": "left"}  # of a whole figure


def tidy(axes: Any, title: str = "", **labels: Any) -> None:
    """Sets a title on the left, and removes the upper and right edges. labels: keywords of Axes.set."""
    axes.set(**labels)
    axes.set_title(title, loc="left", **HEADING)
    axes.spines[["top", "right"]].set_visible(False)


def marked(axes: Any, where: np.ndarray, colour: str, other: str) -> None:
    """Draws a matrix from the top down, with ``colour`` where ``where`` is True, and ``other`` elsewhere."""
    from matplotlib.colors import ListedColormap  # here, because a run without a figure needs no matplotlib

    axes.pcolormesh(where, cmap=ListedColormap([other, colour]), edgecolors="white", lw=2, vmin=0, vmax=1)
    axes.invert_yaxis()


def band(axes: Any, x: Sequence[float] | np.ndarray, values: np.ndarray, colour: str, **style: Any) -> None:
    """Draws the mean over seeds of values (S, X), and its 95 % interval as a band."""
    axes.plot(x, values.mean(axis=0), color=colour, **{"lw": 2, "ms": 4, **style})
    if len(values) > 1:
        low, high = np.transpose([interval(column) for column in values.T])
        axes.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)


def name_ends(
    axes: Any, x: float, ends: Mapping[str, tuple[float, str]], height: float, gap: float = 6
) -> None:
    """Writes names right of x, moved apart. ends: name -> (wanted y, colour). height: of a name. On a
    logarithmic axis y and height are exponents of 10. gap: in points."""
    places = label_places([float(y) for y, _ in ends.values()], height)
    for (name, (_, colour)), y in zip(ends.items(), places, strict=True):
        at = 10**y if axes.get_yscale() == "log" else y
        axes.annotate(
            name, (x, at), xytext=(gap, 0), textcoords="offset points", color=colour, va="center",
            annotation_clip=False,
        )  # fmt: skip


def lines(axes: Any, x: Sequence[float] | np.ndarray, by_method: Mapping[str, np.ndarray]) -> None:
    """Draws for each method the mean over seeds, a band with the 95 % interval, and the name at the end.

    by_method: name -> values (S, X), one row per seed. Set the limits of the y axis first."""
    (low, high), ends = axes.get_ylim(), {}
    for name, values in by_method.items():
        colour, marker, width = STYLES.get(name, (OTHER, "P", 1.8))
        band(axes, x, values, colour, marker=marker if len(x) <= 20 else "", ms=5, lw=width)
        ends[name] = np.clip(values.mean(axis=0)[-1], low, high), colour
    name_ends(axes, x[-1], ends, 0.055 * (high - low))


def forest(axes: Any, rows: Mapping[str, np.ndarray], scale: float = 100.0, comparisons: int = 1) -> None:
    """Draws means with 95 % intervals, one mean below the other, and a vertical line at 0. rows: label ->
    values (S,), one per seed. The part of a label before its first comma chooses the colour from STYLES."""
    for place, (label, values) in enumerate(rows.items()):
        colour, marker, _ = STYLES.get(label.split(",")[0], (OTHER, "P", 1.8))
        low, high = (scale * end for end in interval(values, comparisons))
        axes.plot([low, high], [place, place], color=colour, lw=2)
        axes.plot([scale * values.mean()], [place], marker, color=colour, ms=7)
    axes.axvline(0, color="#999999", lw=1, zorder=0)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def label_places(wanted: Sequence[float], height: float) -> list[float]:
    """Returns the positions of labels that are nearest to the wanted positions and do not overlap."""
    order = np.argsort(wanted, kind="stable")
    above = height * (np.arange(len(wanted)) + 0.5)  # positions if all labels touch and begin at 0
    groups: list[list[float]] = []  # labels that touch move together, to the mean of their wanted positions
    for wish in np.array(wanted)[order] - above:
        groups.append([wish])
        while len(groups) > 1 and np.mean(groups[-2]) > np.mean(groups[-1]):
            last = groups.pop()
            groups[-1] += last
    placed = np.empty(len(wanted))
    placed[order] = np.repeat([np.mean(group) for group in groups], [len(group) for group in groups]) + above
    return [float(y) for y in placed]


# --- the figure of the demo's subject -----------------------------------------------------------------------

# {method of lnrnn.demo: (label, colour, width of the curve)}. Without statistics for a step, batch norm
# repeats the last ones. The study's text also has their mean, and the error.
CLIFF = {
    "no norm": ("no norm", "#777777", 1.6),
    "last": ("batch norm", "#D55E00", 2.4),
    "layer norm": ("layer norm", "#0072B2", 3.0),
}


def draw_cliff(right: Mapping[str, np.ndarray], sequences: int, known: int, figure: Any) -> None:
    """Draws the share of right answers at each step, as a curve for each method of CLIFF with its last value.

    right: how many answers of the sequences are right, (S, STEPS) for S seeds. The curve is the mean over
    seeds, and a band shows twice its standard error.
    """
    axes = figure.subplots()
    t = np.arange(1, demo.STEPS + 1)
    axes.axvspan(known + 0.5, demo.STEPS, color=SHADE, linewidth=0)
    axes.axvline(known + 0.5, color="#555555", linewidth=1, linestyle=":")
    axes.text(known + 2, 99, "longer than any training utterance", va="top", color="#555555", fontsize=11)
    shares = {method: 100 * right[method] / sequences for method in CLIFF}
    ends = label_places([share[:, -1].mean() for share in shares.values()], 5.5)
    for (method, (label, colour, width)), y in zip(CLIFF.items(), ends, strict=True):
        mean = shares[method].mean(axis=0)
        axes.plot(t, mean, color=colour, linewidth=width)
        axes.text(demo.STEPS + 1.5, y, f"{label}, {mean[-1]:.0f} %", color=colour, va="center", fontsize=12)
        if len(shares[method]) > 1:
            half = 2 * shares[method].std(axis=0, ddof=1) / len(shares[method]) ** 0.5
            axes.fill_between(t, mean - half, mean + half, color=colour, alpha=0.2, linewidth=0)
    axes.axhline(100 / speakers.SPEAKERS, color="#999999", linewidth=1, linestyle="--")
    axes.text(2, 100 / speakers.SPEAKERS - 1.5, "chance", va="top", color="#666666")
    axes.set(xlim=(1, demo.STEPS), ylim=(0, 100), ylabel="speaker named right, %")
    axes.set_xlabel("step in the joined utterances of one speaker (a step is 6.4 ms)")
    title = "Past its training length batch norm has no statistics; layer norm needs none"
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
