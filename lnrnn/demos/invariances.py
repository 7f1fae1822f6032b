"""``lnrnn demo invariances``: Table 1 of the layer norm paper, entry by entry.

Claim. Ba, Kiros, Hinton, Layer Normalization (arXiv 1607.06450), section 5.1 and Table 1: which of six
changes of weights and data leave the output of a normalised layer as it was. Three norms by six changes
are 18 entries, 10 yes and 8 no. The text of the section says of weight norm the opposite of one entry
("all the normalization methods are invariant to re-scaling the dataset"; the table: weight norm is not),
and this decides between them.

What is computed. Summed inputs a = W x of 64 units for 128 cases: frames of Japanese Vowels (12
channels), drawn by the seed from the training utterances; W is normal with variance 1/12. y = (a - mu) /
sigma, with lnrnn.batch_norm (statistics of the batch) and lnrnn.layer_norm; weight norm (Salimans,
Kingma, arXiv 1602.07868) is lnrnn.rms_norm of the rows of W, divided by the square root of 12, times x.
Gain, bias and nonlinearity come after y, unit by unit, and are the same before and after the change; they
are left out.

The changes: W scaled: all weights times a factor. W recentred: one vector added to the incoming weights
of every unit. w scaled: the weights of one unit times a factor. D scaled: all cases times a factor. D
recentred: one vector added to every case. x scaled: one case times a factor. Factors are 0.01, 0.3, 3,
100; vectors are normal, 0.3, 3 and 100 times as large as the weights or data they are added to (root mean
square). Unit, case and vectors are drawn by the seed.

Measure. The deviation of the changed output y' from y: the root mean square of y' - y over that of y,
within a case and within a unit, and of all cases and units the worst.

Verdict rule. In float64 with eps = 0 an entry is yes if the largest deviation over seeds and amounts is
at most YES = 1e-10 (rounding, 1e-16, times what is lost to cancellation under a shift of 100, with room
for a small variance), no if the smallest is at least NO = 1e-2, else undecided: these are statements
about every input, so the extremes over the seeds decide and not a mean. Confirmed: all 18 as in the
table. Not confirmed: some entry is decided the other way. Depends: neither, some entries are undecided.

Beyond the table, and outside the verdict: the same 18 entries with the float32 kernels at eps = 1e-5; the
deviation over eight decades of the scale beside the one that eps must cause; factors below 0; batch norm
with stored statistics, as at inference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lnrnn.demos.figures import ALARM
from lnrnn.demos.invariance_experiment import (
    CASES,
    CHANGES,
    EPS,
    FACTORS,
    NORMS,
    ONE_PERCENT,
    RECENTRED,
    SHIFTS,
    STORED,
    TABLE,
    UNITS,
    Array,
    Results,
    amounts,
    bend,
    measure,
    scale_at,
)
from lnrnn.demos.study import Report, Study
from lnrnn.demos.tables import bullets, format_table, lay_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

YES, NO = 1e-10, 1e-2
COLOURS = {"batch norm": "#ef8a17", "weight norm": "#2e9463", "layer norm": "#1565c0"}
MARKERS = {"batch norm": "^", "weight norm": "D", "layer norm": "o"}


# --- what follows from it -----------------------------------------------------------------------------------


def decide(deviations: Array) -> bool | None:
    """Yes, no, or undecided, of the deviations of one entry."""
    if deviations.max() <= YES:
        return True
    return False if deviations.min() >= NO else None


def verdict(results: Results) -> Report:
    """The verdict and its number; the text is empty."""
    decided = {(norm, change): decide(results.entries[norm, change]) for norm in TABLE for change in CHANGES}
    other = [key for key, answer in decided.items() if answer is (not TABLE[key[0]][key[1]])]
    undecided = [key for key, answer in decided.items() if answer is None]
    total = len(decided)
    alike = total - len(other) - len(undecided)
    number = f"{alike} of {total} entries as in the table"
    if other:
        names = ", ".join(" under ".join(reversed(key)) for key in other)
        return Report("not confirmed", f"{number}; the other way: {names}.", "")
    if undecided:
        names = ", ".join(" under ".join(reversed(key)) for key in undecided)
        return Report("depends", f"{number}.", "", depends_on=f"the seed or the amount in {names}")
    largest = max(results.entries[key].max() for key, answer in decided.items() if answer)
    smallest = min(results.entries[key].min() for key, answer in decided.items() if not answer)
    return Report(
        "confirmed",
        f"{number}: where it says yes the output moves by {largest:.0e} at most, where it says no by "
        f"{smallest:.2f} at least.",
        "",
    )


def _exact_cell(values: Array) -> str:
    answer = decide(values)
    if answer is None:
        return f"? {values.min():.0e}"
    return f"yes {values.max():.0e}" if answer else f"no {values.min():.2f}"


def entry_table(results: Results) -> str:
    rows = [
        [norm.removesuffix(" norm"), *(_exact_cell(results.entries[norm, change]) for change in CHANGES)]
        for norm in (*NORMS, STORED)
    ]
    return format_table(["", *CHANGES], rows)


def shipped_table(results: Results) -> str:
    """The entries that are yes in the paper's table, by factor or size of the shift."""
    rows = []
    sizes = sorted({*FACTORS, *SHIFTS})
    for norm, row in TABLE.items():
        for change in (change for change, yes in row.items() if yes):
            worst = dict(zip(amounts(change), results.shipped[norm, change].max(axis=0), strict=True))
            cells = (f"{worst[size]:.0e}" if size in worst else "" for size in sizes)
            rows.append([f"{norm}, {change}", *cells])
    return format_table(["factor, or size of the shift", *(f"{size:g}" for size in sizes)], rows)


def report(results: Results) -> Report:
    found = verdict(results)
    contradiction = {
        False: "the table is right and the text wrong",
        True: "the text is right and the table wrong",
        None: "neither holds for every amount",
    }[decide(results.entries["weight norm", "D scaled"])]
    stored = sum(decide(results.entries[STORED, change]) is True for change in CHANGES)
    mirrored = max(values.max() for values in results.mirrored.values())
    precisely = f"to {mirrored:.0e}" if mirrored else "exactly"
    crossings = {norm: results.crossings(norm) for norm in NORMS}
    harmless = {
        norm: results.sizes[values[0].max(axis=0) <= ONE_PERCENT].max()
        for norm, values in results.shifted.items()
    }
    scaled = "; ".join(
        f"{norm} {values.min():.4f} to {values.max():.4f}" for norm, values in crossings.items()
    )
    shifted = "; ".join(f"{norm}, {RECENTRED[norm]}: {size:.0e}" for norm, size in harmless.items())
    told = [
        "Weight norm under a scaled data set, where the paper's text says yes and its table no: "
        f"{contradiction}. The output is multiplied by the factor (to {results.multiplied.max():.0e}), for "
        "weight norm divides by the length of the weights, which knows nothing of the data.",
        f"Factors are above 0. The factor -1 turns the sign of the output ({precisely}) in all "
        f"{len(results.mirrored)} entries that are yes to scaling.",
        f"With stored statistics batch norm is invariant to {stored} of the {len(CHANGES)} changes: what the "
        "table says of it holds in training alone.",
        "Small scales meet eps, which is 1e-5 in the shipped kernels: it shrinks the output by 1 - s / "
        "sqrt(s^2 + eps), where s is what the norm divides by (the standard deviation of summed inputs; "
        "under weight norm the root mean square of a unit's weights). That is 1 % at s = "
        f"{scale_at(ONE_PERCENT, EPS):.4f}; measured, over the seeds: {scaled}. Large scales are harmless: "
        "eps vanishes and rounding stays as it is.",
        "Large shifts meet the rounding of float32: the deviation stays below 1 % up to a shift of so many "
        f"times the size of what is shifted: {shifted}.",
    ]
    exact = (
        "In float64 at eps = 0. Yes: the largest deviation over seeds and amounts; no: the smallest. "
        f"'{STORED}' is batch norm at inference, which the paper's table does not have."
    )
    shipped = "The shipped kernels, float32 at eps = 1e-5: the largest deviation over the seeds."
    tables = [(exact, entry_table(results)), (shipped, shipped_table(results))]
    text = lay_out(bullets(told), tables)
    return Report(found.verdict, found.number, text, found.depends_on)


# --- the figure ---------------------------------------------------------------------------------------------

TINTS = {True: "#cfe0f5", False: "#f3ede2", None: "#f7c9c9"}
GREY = "#6b675c"
TITLE: dict[str, Any] = {"fontsize": 11.5, "loc": "left", "fontweight": "bold"}


def draw(results: Results, figure: Figure) -> None:
    grid = figure.add_gridspec(2, 2, width_ratios=[1.15, 1])
    _draw_entries(figure.add_subplot(grid[:, 0]), results)
    upper, lower = (figure.add_subplot(grid[row, 1]) for row in (0, 1))
    _draw_scaled(upper, results)
    _draw_shifted(lower, results)


def _draw_entries(axes: Axes, results: Results) -> None:
    from matplotlib.patches import Rectangle

    centred: dict[str, Any] = {"ha": "center", "va": "center"}
    names = {STORED: "batch norm,\nstored statistics\n(not in the table)"}
    for row, norm in enumerate((*NORMS, STORED)):
        top = row + 0.25 * (norm == STORED)
        for column, change in enumerate(CHANGES):
            values = results.entries[norm, change]
            answer = decide(values)
            wrong = norm in TABLE and answer is not TABLE[norm][change]
            edge = ALARM if wrong else "white"
            axes.add_patch(Rectangle((column, top), 1, 1, facecolor=TINTS[answer], edgecolor=edge, lw=3))
            word = {True: "yes", False: "no", None: "?"}[answer]
            size = f"{values.max():.0e}" if answer else f"{values.min():.2f}"
            axes.text(column + 0.5, top + 0.36, word, fontsize=14, fontweight="bold", **centred)
            axes.text(column + 0.5, top + 0.66, size, fontsize=10, color="#333333", **centred)
            if (norm, change) == ("weight norm", "D scaled"):
                axes.text(column + 0.5, top + 0.87, "the text: yes", fontsize=8.5, color=ALARM, **centred)
        axes.text(-0.1, top + 0.5, names.get(norm, norm), ha="right", va="center", fontsize=10.5)
    what = {"W": "all\nweights", "w": "one unit's\nweights", "D": "all\ncases", "x": "one\ncase"}
    for column, change in enumerate(CHANGES):
        symbol, how = change.split()
        axes.text(column + 0.5, -0.08, f"{what[symbol]}\n{how}", ha="center", va="bottom", fontsize=10)
    axes.text(
        -1.5,
        4.33,
        "Below yes the largest, below no the smallest deviation of the output (1: as large as itself);\n"
        f"{_counted(len(results.multiplied))}, factors from {FACTORS[0]:g} to {FACTORS[-1]:g}, shifts from "
        f"{SHIFTS[0]:g} to {SHIFTS[-1]:g} times the size of what is shifted",
        fontsize=9,
        color=GREY,
        va="top",
    )
    axes.set_xlim(-1.5, 6)
    axes.set_ylim(4.68, -0.62)
    axes.set_axis_off()
    axes.set_title("Does the output stay as it was? (float64, eps = 0)", **TITLE)


def _draw_scaled(axes: Axes, results: Results) -> None:
    everything = np.concatenate([values.ravel() for values in results.scales.values()])
    line = np.logspace(np.log10(everything.min()), np.log10(everything.max()), 200)
    axes.plot(line, bend(line, EPS), lw=1.2, color="#333333", label="1 - s / sqrt(s² + 1e-5)")
    step = max(1, len(results.factors) // 16)
    for place, name in enumerate(NORMS):
        scales = np.exp(np.log(results.scales[name]).mean(axis=0))
        mean = results.scaled[name].mean(axis=1)
        style: dict[str, Any] = {"color": COLOURS[name], "marker": MARKERS[name], "ms": 4.5, "ls": ""}
        axes.plot(scales, mean[0], markevery=(place * step // 3, step), label=name, **style)
        axes.plot(scales, mean[2], lw=1, color=COLOURS[name])
    at = scale_at(ONE_PERCENT, EPS)
    axes.plot([at, at], [1e-17, ONE_PERCENT], color=ALARM, lw=0.9)
    axes.text(at, 1e-12, f" 1 % at s = {at:.3f}", color=ALARM, fontsize=9)
    axes.text(line[-1], 1e-6, "float32, eps = 1e-5", ha="right", fontsize=9, color=GREY)
    axes.text(line[-1], 4e-15, "float64, eps = 0", ha="right", fontsize=9, color=GREY)
    axes.legend(loc="upper right", frameon=False, fontsize=9, borderaxespad=0)
    _dress(
        axes,
        "Scaled weights: eps bends what is small",
        "s, the smallest number that the norm divides by, after scaling",
    )


def _draw_shifted(axes: Axes, results: Results) -> None:
    names = {"W recentred": "all weights recentred", "D recentred": "all cases recentred"}
    for name, values in results.shifted.items():
        mean = values.mean(axis=1)
        style: dict[str, Any] = {"color": COLOURS[name], "lw": 1.2}
        every = max(1, len(results.sizes) // 14)
        label = f"{name}, {names[RECENTRED[name]]}"
        axes.plot(results.sizes, mean[0], marker=MARKERS[name], ms=4.5, markevery=every, label=label, **style)
        axes.plot(results.sizes, mean[2], **style)
    axes.text(results.sizes[-1], 1e-5, "float32, eps = 1e-5", ha="right", fontsize=9, color=GREY)
    axes.text(results.sizes[-1], 1e-13, "float64, eps = 0", ha="right", fontsize=9, color=GREY)
    axes.legend(loc="upper left", frameon=False, fontsize=9, borderaxespad=0)
    _dress(axes, "Recentred: large shifts meet rounding", "size of the shift / size of what is shifted")


def _counted(seeds: int) -> str:
    return f"{seeds} seed{'' if seeds == 1 else 's'}"


def _dress(axes: Axes, title: str, label: str) -> None:
    axes.set_title(title, **TITLE)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(1e-17, 30)
    axes.set_yticks([1e-16, 1e-12, 1e-8, 1e-4, 1], ["1e-16", "1e-12", "1e-8", "1e-4", "1"])
    axes.minorticks_off()
    axes.set_xlabel(label)
    axes.set_ylabel("deviation from the exact output")
    axes.axhline(ONE_PERCENT, color="#c9c4b6", lw=0.9, ls=":", zorder=0)
    axes.text(axes.get_xlim()[0], ONE_PERCENT, " 1 %", va="top", fontsize=9, color=GREY)
    axes.grid(axis="y", color="#ececec", lw=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def how(seeds: int, quick: bool) -> str:
    return (
        f"{UNITS} units, {CASES} frames of Japanese Vowels of 12 channels, "
        f"{_counted(seeds)}. W and w: the weights of all units, of one unit; D and x: all cases, "
        f"one case. Yes is a deviation of at most {YES:.0e}, no one of at least {NO:.0e}."
    )


STUDY = Study(
    name="invariances",
    claim="Table 1 of the layer norm paper: what batch, weight and layer norm are invariant to.",
    source="Ba, Kiros, Hinton 2016, arXiv 1607.06450, section 5.1",
    how=how,
    measure=measure,
    report=report,
    draw=draw,
    size=(13.0, 6.2),
)
