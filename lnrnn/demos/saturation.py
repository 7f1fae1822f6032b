"""``lnrnn demo saturation``: do norms keep sigmoid networks trainable, and is it by reducing drift?

Claim: small changes of early layers move the inputs of later sigmoids into their saturated regime, where
gradients vanish; batch norm reduces this drift ("internal covariate shift"), which "makes it possible to use
saturating nonlinearities by preventing the network from getting stuck in the saturated modes" and speeds
training up (Ioffe, Szegedy, Batch Normalization, arXiv 1502.03167, abstract, sections 1, 3 and 4.2). Layer
norm is put forward for the same, for recurrent networks above all (Ba, Kiros, Hinton, arXiv 1607.06450,
sections 1 and 3). Santurkar, Tsipras, Ilyas, Madry (How Does Batch Normalization Help Optimization?, arXiv
1805.11604, section 2) dispute the part about the shift.

Measured: scikit-learn's digits, in a deep network, 64-(8 x 32)-10, and in a recurrent one of 32 units that
reads an image in 16 steps of 4 pixels and answers at the end; all units are sigmoids, without norm, with LN,
with BN (by time step in the recurrent one). Adam, PASSES passes over 800 images in batches of 32; the
recurrent network's gradients are clipped to norm 1. Every norm in either network tries the same FACTORS by
RATES: a factor is where gains start, and without norm what the usual hidden weights are multiplied by. The
setting with the best accuracy on held-out training images, mean over the passes and the seeds, is kept (seed
s holds out fold s mod 5). Networks of the chosen setting are then trained once more and looked into, before
training and after each pass, with 200 of their training images as one batch in training mode. The 797 test
images are asked about these networks alone, after each pass, and choose nothing. Places are hidden layers and
time steps. Four questions, a number each:

- saturation: share of sigmoids (units, images, places) with less than a tenth of the greatest slope, mean
  over the looks after the passes. Gain: share without norm less share with it, margin 0.05.
- gradients: |log10| of the gradient at the first place over that at the last, mean over all looks: of weights
  by layer, of inputs by time step. Gain: without norm less with it, margin half a decade.
- speed: passes to REACHED of the test images, interpolated between passes; if never, all passes.
  Gain: log2 of passes without norm over passes with it, margin log2(1.25).
- drift: how far the distributions of the sigmoids' inputs move in a pass (after the norm, its gain and bias):
  Wasserstein's distance of normal distributions in units of the spread over images, log10, mean over places
  and passes. Gain: without norm less with it, margin log10(1.25). Drift before the norm and, in the deep
  network, Santurkar's own measure (how far an update of the layers below moves a layer's gradient) are
  reported beside it.

Verdict: the gains are paired over the seeds. An answer is yes for a norm in a network if the 95 % interval of
its gain lies above the margin. Confirmed if all 16 answers (4 questions, 2 networks, 2 norms) are yes, not
confirmed if none is; else it depends on what is asked, or on the norm, or on the network, whichever of these
the answers differ by.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from lnrnn.demos.digits import CLASSES
from lnrnn.demos.outcomes import bounds, mean_and_deviation
from lnrnn.demos.saturation_experiment import (
    BATCH,
    NETS,
    NORMS,
    SATURATED,
    Course,
    Inside,
    Net,
    Results,
    extent,
    measure,
)
from lnrnn.demos.study import Report, Study
from lnrnn.demos.tables import bullets, format_table, lay_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLAIN, NORMED = "no norm", ("LN", "BN")
REACHED = 0.8
# colour, marker
STYLES = {PLAIN: ("#7d8790", "s"), "LN": ("#1565c0", "o"), "BN": ("#ef8a17", "^")}
ALARM = "#c62828"


def saturation(course: Course) -> float:
    return float(np.mean([inside.saturated for inside in course.insides[1:]]))


def decades(course: Course) -> float:
    """Between the gradients at the first and the last place, in size."""
    return float(np.mean([abs(inside.reach) for inside in course.insides]))


def passes_to(accuracy: np.ndarray, level: float = REACHED) -> float:
    """accuracy: after each pass. Passes until it is first ``level``, interpolated, from chance at the start;
    all passes if it never is."""
    told = np.concatenate([[1 / CLASSES], accuracy])
    above = np.flatnonzero(told >= level)
    if not len(above):
        return float(len(accuracy))
    end = int(above[0])
    return float(end - (told[end] - level) / (told[end] - told[end - 1]))


def log_passes(course: Course) -> float:
    return math.log2(passes_to(course.accuracy))


def drift_after(course: Course) -> float:
    return float(course.drift("after").mean())


def drift_before(course: Course) -> float:
    return float(course.drift("before").mean())


def shift(course: Course) -> float:
    """log10 of Santurkar's measure; NaN in the recurrent network, which has no layers."""
    return float(np.mean(course.shifts)) if course.shifts else math.nan


# question -> what it asks, of which less is better; the margin
QUESTIONS: dict[str, tuple[Callable[[Course], float], float]] = {
    "saturation": (saturation, 0.05),
    "gradients": (decades, 0.5),
    "speed": (log_passes, math.log2(1.25)),
    "drift": (drift_after, math.log10(1.25)),
}
Answer = tuple[str, Net, str]  # question, network, norm
ANSWERS: tuple[Answer, ...] = tuple((q, net, name) for q in QUESTIONS for net in NETS for name in NORMED)


def values(results: Results, what: Callable[[Course], float], net: Net, name: str) -> np.ndarray:
    """One per seed, (S,)."""
    return np.array([what(course) for course in results.courses[net, name]])


def gain(results: Results, answer: Answer) -> np.ndarray:
    """Without norm less with it: positive where the claim holds, (S,)."""
    question, net, name = answer
    what, _ = QUESTIONS[question]
    return np.asarray(values(results, what, net, PLAIN) - values(results, what, net, name))


def verdict(results: Results, text: str) -> Report:
    """By the rule in this module's docstring."""
    held = {}
    for answer in ANSWERS:
        low, _ = bounds(gain(results, answer))
        held[answer] = low > QUESTIONS[answer[0]][1]
    counts = ", ".join(
        f"{question} {sum(held[answer] for answer in ANSWERS if answer[0] == question)}"
        for question in QUESTIONS
    )
    number = f"Better than no norm, of 4 cases (2 networks, LN and BN): {counts}."
    if all(held.values()):
        return Report("confirmed", number, text)
    if not any(held.values()):
        return Report("not confirmed", number, text)
    causes = [
        cause
        for position, cause in enumerate(("what is asked", "the network", "the norm"))
        if _differ(held, position)
    ]
    return Report("depends", number, text, " and on ".join(causes))


def _differ(held: dict[Answer, bool], position: int) -> bool:
    """Whether the answers differ between two that are alike but for this part of their key."""
    alike: dict[Any, set[bool]] = {}
    for answer, yes in held.items():
        alike.setdefault(answer[:position] + answer[position + 1 :], set()).add(yes)
    return any(len(found) > 1 for found in alike.values())


def report(results: Results) -> Report:
    return verdict(results, report_text(results))


# --- text ---------------------------------------------------------------------------------------------------


def report_text(results: Results) -> str:
    """Sentences and tables for a terminal."""
    told = [
        *(_at_start(results, net) for net in NETS),
        *(_in_training(results, net) for net in NETS),
        _shift_told(results),
    ]
    tables = [
        (f"The {net} network at the chosen settings, mean ± deviation over the seeds", table(results, net))
        for net in NETS
    ]
    tables += [
        ("What a norm gains on no norm, 95 % interval, and the margin", gain_table(results)),
        (
            "Held-out images right in %, mean over the passes, each factor at its best rate",
            factor_table(results),
        ),
    ]
    return lay_out(bullets(told), tables)


def _at_start(results: Results, net: Net) -> str:
    """Before training, at factor 1."""
    told = []
    for name in NORMS:
        insides = results.usual[net, name]
        reach = np.mean([inside.reach for inside in insides])
        share = np.mean([inside.saturated for inside in insides])
        first, last = (np.mean([inside.spread[place] for inside in insides]) for place in (0, -1))
        told.append(
            f"{name} {reach:+.1f} decades, {100 * share:.0f} % saturated, spread over images {first:.2g} to "
            f"{last:.1g}"
        )
    where = "first over last layer" if net == "deep" else "first over last step"
    return f"{net}, before training at factor 1, gradient {where}: {'; '.join(told)}."


def _in_training(results: Results, net: Net) -> str:
    told = []
    for name in NORMS:
        setting = results.chosen[net, name]
        reached = [passes_to(course.accuracy) for course in results.courses[net, name]]
        never = sum(bool((course.accuracy < REACHED).all()) for course in results.courses[net, name])
        passes = f"{np.mean(reached):.1f} passes" + (f" ({never} never)" if never else "")
        told.append(f"{name} {passes} (factor {setting.factor:g}, rate {setting.rate:g})")
    return f"{net}, to {100 * REACHED:.0f} % of the test images: {'; '.join(told)}."


def last_accuracy(course: Course) -> float:
    return float(course.accuracy[-1])


ROWS: dict[str, tuple[Callable[[Course], float], float, int]] = {
    "saturated units, %": (saturation, 100, 1),
    "gradient, first to last place, decades": (decades, 1, 2),
    f"passes to {100 * REACHED:.0f} %": (lambda course: passes_to(course.accuracy), 1, 1),
    "right on the test images at the end, %": (last_accuracy, 100, 1),
    "drift a pass after the norm, log10": (drift_after, 1, 2),
    "drift a pass before the norm, log10": (drift_before, 1, 2),
    "shift of gradients an update, log10": (shift, 1, 2),
}


def table(results: Results, net: Net) -> str:
    rows = []
    for label, (what, unit, digits) in ROWS.items():
        found = {name: unit * values(results, what, net, name) for name in NORMS}
        if not any(np.isnan(each).any() for each in found.values()):
            rows.append([label, *(_plus_minus(each, digits) for each in found.values())])
    return format_table(["", *NORMS], rows)


def _plus_minus(found: np.ndarray, digits: int) -> str:
    mean, deviation = mean_and_deviation(found)
    return f"{mean:.{digits}f}" + ("" if deviation is None else f"±{deviation:.{digits}f}")


def gain_table(results: Results) -> str:
    rows = []
    for answer in ANSWERS:
        question, net, name = answer
        found = gain(results, answer)
        margin = QUESTIONS[question][1]
        low, high = bounds(found)
        row = [found.mean(), low, high, margin]
        told = [f"{question}, {net}, {name}", *(f"{number:+.2f}" for number in row)]
        rows.append([*told, "yes" if low > margin else "no"])
    return format_table(["", "gain", "from", "to", "margin", "better"], rows)


def _shift_told(results: Results) -> str:
    """Santurkar's measure beside that of the verdict."""
    plain, told = values(results, shift, "deep", PLAIN), []
    for name in NORMED:
        found = plain - values(results, shift, "deep", name)
        low, high = bounds(found)
        with np.errstate(over="ignore"):
            ends = f"{np.power(10.0, low):.2f} to {np.power(10.0, high):.2f}"
        told.append(f"{name} {10 ** found.mean():.2f} (95 % interval {ends})")
    return (
        "deep, Santurkar's measure of the shift (of a layer's gradient, by an update of the layers below), "
        f"no norm over norm: {', '.join(told)}."
    )


def factor_table(results: Results) -> str:
    factors = sorted({setting.factor for setting in results.grid})
    rows = []
    for (net, name), held_out in results.held_out.items():
        by_setting = dict(zip(results.grid, held_out.mean(axis=0), strict=True))
        best = [max(by_setting[s] for s in results.grid if s.factor == factor) for factor in factors]
        rows.append([f"{net}, {name}", *(f"{100 * value:.0f}" for value in best)])
    return format_table(["factor", *(f"{factor:g}" for factor in factors)], rows)


def how(seeds: int, quick: bool) -> str:
    shape = extent(seeds, quick)
    return (
        "scikit-learn's digits in a sigmoid network of 8 hidden layers and in a recurrent one over 16 steps, "
        f"without norm, with LN, with BN: {len(shape.grid)} settings of factor and rate each, {shape.seeds} "
        f"seeds, {shape.passes} passes in batches of {BATCH}; the chosen ones are looked into after each "
        "pass."
    )


# --- figure -------------------------------------------------------------------------------------------------


def draw(results: Results, figure: Figure) -> None:
    """A row of panels for each network: inputs of the sigmoids, gradients, accuracy, drift."""
    rows = figure.subplots(len(NETS), 4, width_ratios=(1.5, 1.2, 1, 1.1))
    for row, net in zip(rows, NETS, strict=True):
        _draw_inputs(row[0], results, net)
        _draw_gradients(row[1], results, net)
        _draw_accuracy(row[2], results, net)
        _draw_drift(row[3], results, net)
        for axes in row:
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
    handles, labels = rows[0][2].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, fontsize=11)


def _places(net: Net) -> str:
    return "hidden layer (1: next to the input)" if net == "deep" else "time step (16: next to the loss)"


def _over(insides: list[Inside], name: str) -> np.ndarray:
    return np.asarray(np.mean([getattr(inside, name) for inside in insides], axis=0))


def _all_looks(results: Results, net: Net, name: str) -> list[Inside]:
    return [inside for course in results.courses[net, name] for inside in course.insides]


def _draw_inputs(axes: Axes, results: Results, net: Net) -> None:
    """Thin: 5 to 95 % of all units and images. Thick: what one unit spreads over the images."""
    limit = float(np.log((1 + np.sqrt(1 - SATURATED)) / (1 - np.sqrt(1 - SATURATED))))
    for offset, name in zip((-0.25, 0, 0.25), NORMS, strict=True):
        insides = _all_looks(results, net, name)
        quantiles, spread = _over(insides, "quantiles"), _over(insides, "spread")
        at = np.arange(1, len(spread) + 1) + offset
        colour, _ = STYLES[name]
        axes.vlines(at, quantiles[:, 0], quantiles[:, 2], color=colour, linewidth=1.2)
        axes.vlines(at, quantiles[:, 1] - spread, quantiles[:, 1] + spread, color=colour, linewidth=4)
    axes.set_xlim(0.3, at[-1] + 0.5)
    low, high = axes.get_ylim()
    for inner, outer in ((-limit, min(low, -limit - 1)), (limit, max(high, limit + 1))):
        axes.axhspan(inner, outer, color=ALARM, alpha=0.1, linewidth=0, zorder=0)
    axes.margins(y=0)
    axes.text(0.02, 0.97, "saturated", transform=axes.transAxes, color=ALARM, fontsize=9.5, va="top")
    axes.set_xlabel(_places(net))
    axes.set_ylabel(f"{net} network\ninput of the sigmoids")
    axes.set_title(
        "In training: 5 to 95 % of units and images (thin),\none unit over the images (thick)", fontsize=10.5
    )


def _whole_ticks(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_gradients(axes: Axes, results: Results, net: Net) -> None:
    for name in NORMS:
        colour, marker = STYLES[name]
        for insides, style, width in (
            (_all_looks(results, net, name), "-", 2.0),
            (results.usual[net, name], ":", 1.6),
        ):
            gradient = _over(insides, "gradient")
            at = np.arange(1, len(gradient) + 1)
            axes.plot(at, gradient - gradient[-1], style, color=colour, lw=width, marker=marker, markersize=4)
    axes.plot([], [], "-", color="#333333", label="chosen setting, in training")
    axes.plot([], [], ":", color="#333333", label="factor 1, before training")
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    axes.set_xlabel(_places(net))
    what = "weights" if net == "deep" else "inputs"
    axes.set_ylabel(f"gradient by {what} over the last (decades)")
    axes.set_title("How far gradients reach", fontsize=10.5)
    _whole_ticks(axes)


def _draw_accuracy(axes: Axes, results: Results, net: Net) -> None:
    for name in NORMS:
        colour, marker = STYLES[name]
        wrong = 100 * (1 - np.array([course.accuracy for course in results.courses[net, name]]))
        at = np.arange(1, wrong.shape[1] + 1)
        axes.fill_between(at, wrong.min(axis=0), wrong.max(axis=0), color=colour, alpha=0.15, linewidth=0)
        axes.plot(at, wrong.mean(axis=0), color=colour, marker=marker, markersize=4, label=name)
    axes.axhline(100 * (1 - REACHED), color="#333333", linewidth=0.8)
    axes.set_yscale("log")
    ticks = (2, 5, 10, 20, 50, 90)
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(f"passes over the images (of {results.passes})")
    axes.set_ylabel("test images named wrong (%)")
    axes.set_title("How fast it trains (band: the seeds)", fontsize=10.5)
    _whole_ticks(axes)


def _draw_drift(axes: Axes, results: Results, net: Net) -> None:
    measures = [("drift after\nthe norm", drift_after), ("drift before\nthe norm", drift_before)]
    if net == "deep":
        measures.append(("shift of\ngradients", shift))
    for place, (_, what) in enumerate(measures):
        for offset, name in zip((-0.2, 0, 0.2), NORMS, strict=True):
            mean, deviation = mean_and_deviation(values(results, what, net, name))
            colour, marker = STYLES[name]
            axes.errorbar(
                [place + offset],
                [10**mean],
                [[10**mean - 10 ** (mean - (deviation or 0))], [10 ** (mean + (deviation or 0)) - 10**mean]],
                color=colour,
                marker=marker,
                markersize=7,
                capsize=3,
            )
    axes.set_yscale("log")
    axes.set_xticks(range(len(measures)), [label for label, _ in measures])
    axes.set_xlim(-0.5, len(measures) - 0.5)
    ticks = (0.02, 0.05, 0.1, 0.2, 0.5, 1)
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(0.015, 1.3)
    axes.set_ylabel("over the spread, or the gradient's length")
    axes.set_title("Drift in a pass, shift in an update", fontsize=10.5)


STUDY = Study(
    name="saturation",
    claim=(
        "Norms keep sigmoid networks out of saturation, so that gradients reach further and training is "
        "faster, by reducing the drift of the layers' inputs"
    ),
    source="Ioffe, Szegedy 2015, arXiv 1502.03167; disputed by Santurkar et al. 2018, arXiv 1805.11604",
    how=how,
    measure=measure,
    report=report,
    draw=draw,
    size=(16.0, 8.4),
)
