"""Colours and plots that the studies' figures share.

The colours are those of Okabe and Ito, which people with any colour vision can distinguish.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from common import interval

from lnrnn.demo import label_places

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


def tidy(axes: Any, title: str = "", **labels: Any) -> None:
    """Sets a title on the left, and removes the upper and right edges. labels: keywords of Axes.set."""
    axes.set(**labels)
    axes.set_title(title, loc="left", **HEADING)
    axes.spines[["top", "right"]].set_visible(False)


def headline(figure: Any, title: str) -> None:
    """Sets a title of the whole figure on the left."""
    figure.suptitle(title, x=0.01, ha="left", **HEADING)


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
