"""``lnrnn demo characters``: a model of characters, trained at 100 steps and read at 3,000.

Claim: with batch norm for each time step one may, past the training's length, repeat the last step's
statistics, which generalises to longer text on Penn Treebank, while averaging statistics over time "severely
degrades performance" (Cooijmans et al. 2016, arXiv 1603.09025, section 3 and figure 3b). Layer norm has no
statistics to store, so no such question (Ba, Kiros, Hinton 2016, arXiv 1607.06450, sections 1 and 3.1).

Measured: an RNN, an LSTM and a GRU of 64 units predict the next character of Python's own help text, under
no norm, LN and BN by time step, after 200 updates on 32 windows of 100 steps that begin anywhere with a zero
state: step t of batch norm is the t-th character since the start. The text is cut in contiguous parts, 80 %
to train on, 8 % held out, 12 % to test (lnrnn.demos.help_text says what it is). Every norm of every cell has
the same number of trials: three rates of Adam by two gains at the start (two scales of the initial weights
without a norm), RATES by FACTORS in lnrnn.demos.character_experiment; the best on the held-out text under
seed 0, within 100 steps, is used for all seeds. BN's statistics are recomputed over all windows of the
training text.

- Lost beyond step 100: 32 sequences of the test text are read for 3,000 steps; the bits per character at the
  steps 101 to 3,000, less those of the same network on the same characters, read at one of the steps 51 to
  100 of fresh windows. BN is read with "last", "mean" (of all steps' statistics) and "batch" (those of the 32
  sequences); "raise" refuses.
- Lost by averaging: fresh windows of 100 steps of the test text, read with one mean and one variance at every
  step, the averages of the 100 steps', less the bits with each step's own.

Rule, fixed before the full run. All numbers are paired over the seeds and have a 95 % interval; one
seed has none, and holds for nothing. In a cell

- repeating works where BN last loses less than 0.05 bits beyond step 100 (the interval's upper end);
- averaging degrades severely where it loses more than 0.1 bits (the lower end): on Penn Treebank the norm
  itself gained 0.06;
- LN has no such question where it loses less than 0.05 bits beyond step 100 (the upper end).

Confirmed if all three hold in all three cells, not confirmed if nowhere any does; else it depends on the part
of the claim, on the cell, or on both, and the verdict's numbers say where it fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lnrnn.demos.cells import CELLS
from lnrnn.demos.character_experiment import LONG, STEPS, TOGETHER, Extent, Results, measure
from lnrnn.demos.figures import ALARM, BEYOND, STYLES
from lnrnn.demos.length_experiment import BATCH_NORM, LABELS, LAYER_NORM, Method
from lnrnn.demos.outcomes import bounds, interval
from lnrnn.demos.study import Report, Study
from lnrnn.demos.tables import bullets, format_table, lay_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARGIN, SEVERE = 0.05, 0.1  # bits per character
REPEATING, AVERAGING, LAYER = "repeating works", "averaging degrades severely", "LN has no such question"
PARTS = (REPEATING, AVERAGING, LAYER)
RANGES = ((1, 10), (11, 50), (51, 100), (101, 200), (201, 1000), (1001, 3000))
LAST = BATCH_NORM["last"]


# --- the verdict --------------------------------------------------------------------------------------------


def lost_at(results: Results, cell: str, method: Method) -> np.ndarray:
    """Bits per character at every step of the long reading, less those of the same characters read within
    STEPS steps by the same network: (S, steps)."""
    return np.asarray(results.read[cell, method] - results.same[cell, method.norm])


def lost_beyond(results: Results, cell: str, method: Method) -> np.ndarray:
    """The mean of `lost_at` over the steps beyond the training's: (S,)."""
    return np.asarray(lost_at(results, cell, method)[:, STEPS:].mean(axis=1))


def lost_by_averaging(results: Results, cell: str) -> np.ndarray:
    """Bits per character within STEPS steps, (S,)."""
    return np.asarray((results.averaged[cell] - results.own[cell]).mean(axis=1))


def lost(results: Results, part: str, cell: str) -> np.ndarray:
    """The bits that decide on a part of the claim, (S,)."""
    if part == AVERAGING:
        return lost_by_averaging(results, cell)
    return lost_beyond(results, cell, LAST if part == REPEATING else LAYER_NORM)


def holds(part: str, losses: np.ndarray) -> bool:
    """By the rule in this module's docstring. losses: (S,)."""
    low, high = bounds(losses)
    return low > SEVERE if part == AVERAGING else high < MARGIN


def verdict(results: Results, text: str) -> Report:
    """By the rule in this module's docstring."""
    held = {(part, cell): holds(part, lost(results, part, cell)) for part in PARTS for cell in CELLS}
    number = (
        f"Bits per character lost beyond step {STEPS}: {_by_cell(results, REPEATING, 'BN last')}; "
        f"{_by_cell(results, LAYER, 'LN')}. Lost within {STEPS} by averaging BN's statistics over time: "
        f"{_by_cell(results, AVERAGING)}."
    )
    if all(held.values()):
        return Report("confirmed", number, text)
    if not any(held.values()):
        return Report("not confirmed", number, text)
    told = []
    for part in PARTS:
        where = [cell.upper() for cell in CELLS if held[part, cell]]
        told.append(f"{part}: {', '.join(where) if where else 'nowhere'}")
    parts_differ = len({tuple(held[part, cell] for cell in CELLS) for part in PARTS}) > 1
    cells_differ = len({tuple(held[part, cell] for part in PARTS) for cell in CELLS}) > 1
    causes = ["the part of the claim"] * parts_differ + ["the cell"] * cells_differ
    return Report("depends", f"{number} Holds: {'; '.join(told)}.", text, " and on ".join(causes))


def _by_cell(results: Results, part: str, name: str = "") -> str:
    each = (f"{cell.upper()} {_interval(lost(results, part, cell))}" for cell in CELLS)
    return f"{name} {', '.join(each)}".strip()


def _interval(losses: np.ndarray) -> str:
    """ "+0.012 [-0.003, +0.027]"."""
    low, high = bounds(losses)
    return f"{losses.mean():+.3f} [{low:+.3f}, {high:+.3f}]"


# --- the text -----------------------------------------------------------------------------------------------


def report(results: Results) -> Report:
    return verdict(results, report_text(results))


def report_text(results: Results) -> str:
    """Sentences and tables for a terminal."""
    text, extent = results.text, results.extent
    told = [
        f"BN raise reads nothing: {results.refusal}.",
        f"{text.source}, sha256 {text.sha256[:16]}; {len(text.train):,} to train on, "
        f"{len(text.held_out):,} held out, {len(text.test):,} to test, of which {100 * text.others:.1f} % "
        "are read as the one symbol for rare characters.",
    ]
    position = (
        f"Bits per character of the characters that the long reading reaches beyond step {STEPS}, read "
        f"within {STEPS} steps; and what is lost (+) at the steps of the long reading against the same "
        f"characters within {STEPS}. Means over {extent.seeds} seeds."
    )
    loss = (
        f"Lost at the steps {STEPS + 1} to {extent.steps:,} in bits, with 95 % intervals of the "
        "differences paired over the seeds; and how much more than LN loses."
    )
    average = (
        f"BN within {STEPS} steps: bits with each step's own statistics, and what is lost by their "
        "averages over time at every step, at the first ten steps and at all."
    )
    settings = (
        "Settings, chosen on the held-out text under seed 0: Adam's rate, and where gains start, or the "
        "factor on the initial weights; bits there."
    )
    tables = [
        (position, position_table(results)),
        (loss, loss_table(results)),
        (average, average_table(results)),
        (settings, settings_table(results)),
    ]
    return lay_out(bullets(told), tables)


def _name(cell: str, method: Method) -> str:
    return f"{cell.upper():4} {method.name}"


def position_table(results: Results) -> str:
    """A row per cell and method, a column per range of steps."""
    steps = results.extent.steps
    ranges = [(low, min(high, steps)) for low, high in RANGES if low <= steps]
    rows = []
    for cell in CELLS:
        for method in LONG:
            found = lost_at(results, cell, method)
            within = results.same[cell, method.norm][:, STEPS:].mean()
            rows.append([_name(cell, method), f"{within:.3f}"])
            rows[-1] += [f"{found[:, low - 1 : high].mean():+.3f}" for low, high in ranges]
    return format_table(["", "within", *(f"{low}-{high}" for low, high in ranges)], rows)


def loss_table(results: Results) -> str:
    rows = []
    for cell in CELLS:
        layer = lost_beyond(results, cell, LAYER_NORM)
        for method in LONG:
            found = lost_beyond(results, cell, method)
            than = ["-"] * 3 if method == LAYER_NORM else _ends(found - layer)
            rows.append([_name(cell, method), *_ends(found), *than])
    return format_table(["", "lost", "from", "to", "than LN", "from", "to"], rows)


def _ends(losses: np.ndarray) -> list[str]:
    low, high = bounds(losses)
    return [f"{value:+.3f}" for value in (losses.mean(), low, high)]


def average_table(results: Results) -> str:
    rows = []
    for cell in CELLS:
        apart = results.averaged[cell] - results.own[cell]
        early = f"{apart[:, :10].mean():+.3f}"
        rows.append([cell.upper(), f"{results.own[cell].mean():.3f}", early, *_ends(apart.mean(axis=1))])
    return format_table(["", "own", "lost 1-10", "lost", "from", "to"], rows)


def settings_table(results: Results) -> str:
    rows = []
    for (cell, norm), (rate, factor) in results.chosen.items():
        found = results.held_out[cell, norm][rate, factor]
        rows.append([f"{cell.upper():4} {LABELS[norm]}", f"{rate:g}", f"{factor:g}", f"{found:.3f}"])
    return format_table(["", "rate", "factor", "bits"], rows)


def how(seeds: int, quick: bool) -> str:
    """For the terminal."""
    extent = Extent.of(seeds, quick)
    return (
        f"Python's help text, character by character: an RNN, an LSTM and a GRU of {extent.hidden} units, "
        f"each without norm, with LN and with BN by time step, {extent.trials} trials each and "
        f"{extent.seeds} seeds, {extent.updates} updates on {TOGETHER} windows of {STEPS} steps; then "
        f"{extent.steps:,} steps of the test text are read."
    )


# --- the figure ---------------------------------------------------------------------------------------------


def edges(steps: int) -> np.ndarray:
    """Bounds of ranges of steps, about evenly spaced on a logarithmic scale; one of them ends at STEPS."""
    found = np.concatenate([np.geomspace(1, STEPS + 1, 17), np.geomspace(STEPS + 1, steps + 1, 13)])
    return np.unique(np.round(found).astype(int))


def in_ranges(values: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Means over ranges of steps: values (S, steps), bounds (R + 1,) -> (S, R)."""
    pairs = zip(bounds[:-1], bounds[1:], strict=True)
    return np.stack([values[:, low - 1 : high - 1].mean(axis=1) for low, high in pairs], axis=1)


# Shapes of the cells, and the lines and labels of what is lost, from above.
MARKERS = dict(zip(CELLS, ("o", "s", "^"), strict=True))
AVERAGED = f"BN averaged,\nsteps 1 to {STEPS}"


def draw(results: Results, figure: Figure) -> None:
    """Bits by position, a panel per cell, and what is lost beyond the training's length."""
    *panels, losses = figure.subplots(1, len(CELLS) + 1, width_ratios=(1, 1, 1, 1.25))
    for axes, cell in zip(panels, CELLS, strict=True):
        _draw_cell(axes, results, cell)
    low = min(axes.get_ylim()[0] for axes in panels)
    high = max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(low, high)
    for axes in panels[1:]:
        axes.tick_params(labelleft=False)
    panels[0].set_ylabel("bits per character, on the same text")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=6, frameon=False, fontsize=10
    )
    _draw_losses(losses, results)
    for axes in (*panels, losses):
        axes.spines[["top", "right"]].set_visible(False)


def _draw_cell(axes: Axes, results: Results, cell: str) -> None:
    """The level of the same characters read within STEPS steps, and on top of it what is lost by position."""
    steps = results.extent.steps
    bounds = edges(steps)
    centres = np.sqrt(bounds[:-1] * (bounds[1:] - 1.0))
    place = axes.get_xaxis_transform()  # by data from left to right and by the panel's height
    axes.axvspan(STEPS, steps, color=BEYOND, lw=0, zorder=0)
    axes.text(
        STEPS * 1.15, 0.97, "beyond the\ntraining", va="top", fontsize=9, color="#6b675c", transform=place
    )
    for method, (label, colour, style, width, _) in STYLES.items():
        if method.overrun == "raise":
            axes.plot([STEPS], [0.8], "x", color=ALARM, ms=9, mew=2.2, transform=place, clip_on=False)
            axes.text(
                STEPS * 1.3,
                0.8,
                "BN, raise:\nends here",
                va="center",
                fontsize=9,
                color=ALARM,
                transform=place,
            )
            continue
        level = results.same[cell, method.norm][:, STEPS:].mean(axis=1, keepdims=True)
        values = (level + in_ranges(lost_at(results, cell, method), bounds)).mean(axis=0)
        # A gap between the two ranges that meet at STEPS: no line rises before what makes it rise.
        gap = np.searchsorted(bounds, STEPS + 1)
        x, y = np.insert(centres, gap, STEPS), np.insert(values, gap, np.nan)
        # Where "last" and "mean" lie on one another, both are to be seen.
        front = method.overrun == "mean"
        axes.plot(
            x, y, color=colour, ls=(0, (2, 2)) if front else style, lw=width, label=label,
            zorder=4 if front else 3,
        )  # fmt: skip
    axes.set_xscale("log")
    ticks = [tick for tick in (1, 10, 100, 1000) if tick <= steps]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("characters since the start")
    axes.set_title(cell.upper(), fontsize=11.5, loc="left", fontweight="bold")
    axes.grid(axis="y", color="#d9d9d9", lw=0.7)
    axes.set_axisbelow(True)


def _draw_losses(axes: Axes, results: Results) -> None:
    """Means and 95 % intervals: one line per way of reading, one marker per cell."""
    rows: list[tuple[str, str, list[np.ndarray]]] = [
        (method.name, STYLES[method][1], [lost_beyond(results, cell, method) for cell in CELLS])
        for method in LONG
    ]
    rows = [(f"{name},\nbeyond {STEPS}", colour, each) for name, colour, each in rows]
    rows.append((AVERAGED, STYLES[LAST][1], [lost_by_averaging(results, cell) for cell in CELLS]))
    for line, (_, colour, each) in enumerate(rows):
        for place, (cell, losses) in enumerate(zip(CELLS, each, strict=True)):
            height = line + 0.22 * (place - 1)
            ends = interval(losses)
            if ends:
                axes.plot(ends, [height, height], color=colour, lw=1.6)
            axes.plot([losses.mean()], [height], MARKERS[cell], color=colour, ms=7)
    for cell, marker in MARKERS.items():
        axes.plot([], [], marker, color="#555555", ms=7, label=cell.upper())
    axes.axhline(len(LONG) - 0.5, color="#b9b4a8", lw=0.8)
    axes.axvline(0, color="#333333", lw=0.8, zorder=1)
    bounds = (
        (MARGIN, -0.5, len(LONG) - 0.5, "harmless\nbelow"),
        (SEVERE, len(LONG) - 0.5, len(rows) - 0.5, "severe\nabove"),
    )
    for value, top, bottom, text in bounds:
        axes.plot([value, value], [top, bottom], color=ALARM, lw=1.4, ls=(0, (4, 2)))
        right = value == SEVERE  # there the text has room on the left
        axes.text(
            value + (-0.002 if right else 0.002),
            bottom - 0.08,
            f"{text} {value:g}",
            color=ALARM,
            fontsize=9,
            va="bottom",
            ha="right" if right else "left",
        )
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("bits per character lost")
    axes.set_title("Lost, with 95 % intervals", fontsize=11.5, loc="left", fontweight="bold")
    axes.legend(frameon=False, fontsize=9, loc="upper right")


STUDY = Study(
    name="characters",
    claim="Past the training length batch norm can repeat its last step's statistics, averaging them over "
    "time severely degrades, and layer norm has no such question",
    source="Cooijmans et al. 2016, arXiv 1603.09025, section 3 and figure 3b; Ba et al. 2016, arXiv "
    "1607.06450",
    how=how,
    measure=measure,
    report=report,
    draw=draw,
    size=(14.5, 4.8),
)
