"""``lnrnn demo weight-growth``: does a normalised layer's effective learning rate fall as its weights grow?

Claim (Ba, Kiros, Hinton, Layer Normalization, arXiv 1607.06450, section 5.2): in a normalised model the
curvature by the weights falls as their norm grows, though the output stays, so that "the norm of the weight
vector effectively controls the learning rate", which falls during learning; and the curvature along a gain
depends on the prediction error alone, where that along the length of an ordinary weight vector grows with the
input. Curvature is the Fisher information F of softmax regression, logits = gain * norm(W x) + bias.

Measured on scikit-learn's digits, 64 pixels, 10 classes, in float64: layer norm (LN), batch norm (BN), weight
norm (WN) and none. What the norm does not see the length of is all of W under LN, each row under the others.

By hand: a trained network's weights times 0.1 to 10; exponents are slopes of log F by log factor.
- Curvature of the weights: the trace of F by their number. Under the norms it should go as |W| to the -2.
- Along the weights themselves F should be zero.
- One row alone multiplied (BN, WN): its own block of F, and the block with another row. The paper says that
  doubling a row's length halves the curvature along it; by its equation 13 its own block becomes a quarter.
- Along a gain: the exponent by the factor of the weights, and by one of the images, should be 0. Without
  norm, along the length of a row, with W divided so that the outputs stay, it should be 2 by the images'.
- The angle by which a first update turns the weights, at a thousandth of the rate: plain SGD and Adam.

In training: SGD and Adam, four rates each, 40 passes over 800 images in batches of 32, eps 1e-5. The rate
with the best mean accuracy on the held-out images (seed s holds out fold s mod 5) is kept, for each norm and
optimiser. Growth: |W| in the end over that at the start. Fall: the networks are trained once more with |W|
brought back to its start after each update, which changes no output; the mean angle of an update in the last
pass, free over held. The test images take no part.

Verdict, for LN and BN: the claim on curvature holds if in every seed the exponent of the weights' curvature
lies within 0.01 of -2, that along the weights is below 1e-9 of the mean, and the exponents of the gain lie
within 0.01 of 0. That on learning holds for an optimiser if, over the seeds, the 95 % intervals of log growth
and of the log of the fall lie above log 1.1 and below log 0.9, for both norms. Confirmed: all of it for both
optimisers. Not confirmed: curvature fails, or learning for both. Else it depends on the optimiser.
WN and no norm are shown beside them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from lnrnn.demos.normalised_regression import BATCH, LAYER, NONE, NORMS, WEIGHT
from lnrnn.demos.outcomes import bounds
from lnrnn.demos.study import Report, Study
from lnrnn.demos.tables import bullets, format_percent, format_table, lay_out
from lnrnn.demos.weight_growth_experiment import (
    ADAM,
    FACTORS,
    NORMALISED,
    RATES,
    SGD,
    ByHand,
    Results,
    extent,
    measure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

JUDGED = (LAYER, BATCH)
GROWN, FALLEN = math.log(1.1), math.log(0.9)
EXPONENT = 0.01
NOTHING = 1e-9
# norm -> (colour, marker)
STYLES = {
    NONE: ("#7d8790", "s"),
    WEIGHT: ("#2e9463", "D"),
    BATCH: ("#ef8a17", "^"),
    LAYER: ("#1565c0", "o"),
}
LINES = {SGD: "-", ADAM: (0, (4, 2))}
ALARM = "#c62828"


def exponent(values: np.ndarray) -> float:
    """Slope of log values (F,) by log FACTORS."""
    return float(np.polyfit(np.log(FACTORS), np.log(values), 1)[0])


def exponents(results: Results, norm: str, name: str) -> np.ndarray:
    """Of one of ByHand's measures, by seed: (S,)."""
    return np.array([exponent(getattr(hand, name)) for hand in results.hand[norm]])


def turn_exponents(results: Results, norm: str, optimiser: str) -> np.ndarray:
    return np.array([exponent(hand.turn[optimiser]) for hand in results.hand[norm]])


def itself(hand: ByHand) -> float:
    """Curvature along the weights over the mean of all directions, the largest of all factors."""
    return float((hand.itself / hand.weight).max())


def growth(results: Results, norm: str, optimiser: str) -> np.ndarray:
    """log of |W| in the end over that at the start, (S,)."""
    return np.log([course.growth[-1] for course in results.free[norm, optimiser]])


def fall(results: Results, norm: str, optimiser: str) -> np.ndarray:
    """log of the mean angle of an update in the last epoch, free over held, (S,)."""
    last = slice(-(results.updates // results.epochs), None)
    pairs = zip(results.free[norm, optimiser], results.held[norm, optimiser], strict=True)
    return np.log([free.turn[last].mean() / held.turn[last].mean() for free, held in pairs])


def curvature_holds(results: Results) -> bool:
    """By the rule in this module's docstring."""
    right = [
        np.abs(exponents(results, norm, name) - wanted).max() <= EXPONENT
        for norm in JUDGED
        for name, wanted in (("weight", -2), ("gain", 0), ("gain_data", 0))
    ]
    return all(right) and all(itself(hand) < NOTHING for norm in JUDGED for hand in results.hand[norm])


def learning_holds(results: Results, optimiser: str) -> bool:
    """By the rule in this module's docstring."""
    return all(
        bounds(growth(results, norm, optimiser))[0] > GROWN
        and bounds(fall(results, norm, optimiser))[1] < FALLEN
        for norm in JUDGED
    )


def verdict(results: Results, text: str) -> Report:
    """By the rule in this module's docstring."""
    curved = curvature_holds(results)
    learnt = {optimiser: learning_holds(results, optimiser) for optimiser in RATES}
    slopes = ", ".join(f"{exponents(results, norm, 'weight').mean():.2f} {norm}" for norm in JUDGED)
    grown, turned = (
        "; ".join(
            f"{optimiser} "
            + ", ".join(f"{_factor(logs(results, norm, optimiser))} {norm}" for norm in JUDGED)
            for optimiser in RATES
        )
        for logs in (growth, fall)
    )
    number = (
        f"Curvature by |W|: exponent {slopes}. |W| grows, {grown}; an update turns it, against |W| held, "
        f"{turned}."
    )
    if curved and all(learnt.values()):
        return Report("confirmed", number, text)
    if not curved or not any(learnt.values()):
        return Report("not confirmed", number, text)
    holds = next(name for name, yes in learnt.items() if yes)
    return Report("depends", number, text, f"the optimiser: it holds with {holds}")


def _factor(logs: np.ndarray) -> str:
    """ "2.1x" """
    return f"{math.exp(float(logs.mean())):.2g}x"


def _times(logs: np.ndarray) -> str:
    """Factor and interval: "2.10x [1.91, 2.43]", to two digits below 1."""
    factors = (math.exp(value) for value in (float(logs.mean()), *bounds(logs)))
    mean, low, high = (f"{value:.{2 if value < 1 else 3}g}" for value in factors)
    return f"{mean}x [{low}, {high}]"


def report(results: Results) -> Report:
    return verdict(results, report_text(results))


def report_text(results: Results) -> str:
    """Sentences and tables for a terminal."""
    told = [_by_hand(results), _one_row(results), _training(results)]
    tables = [
        ("By hand: exponents by the factor, mean over the seeds", hand_table(results)),
        ("In training, at the rate chosen: mean and 95 % interval over the seeds", training_table(results)),
        ("Growth of |W| by rate, mean, and held-out images named right in %; *: chosen", rate_table(results)),
    ]
    return lay_out(bullets(told), tables)


def _by_hand(results: Results) -> str:
    along = max(itself(hand) for norm in NORMALISED for hand in results.hand[norm])
    moved = max(hand.moved.max() for norm in NORMALISED for hand in results.hand[norm])
    return (
        f"Weights times {FACTORS[0]:g} to {FACTORS[-1]:g}: under the norms logits move by {moved:.0e} at the "
        f"most, and F along the weights themselves is {along:.0e} of its mean over all directions (without "
        f"norm {np.mean([itself(hand) for hand in results.hand[NONE]]):.1f} times it). Along a gain F does "
        "not change, nor with the images' scale under LN and BN; without norm, along the length of a row, it "
        f"goes with their scale to the {exponents(results, NONE, 'gain_data').mean():.2f}."
    )


def _one_row(results: Results) -> str:
    own, cross = (
        2 ** float(np.mean([exponents(results, norm, name).mean() for norm in (BATCH, WEIGHT)]))
        for name in ("own", "cross")
    )
    return (
        f"One row of W doubled (BN, WN): its own block of F is {own:.3f} of what it was, its block with "
        f"another row {cross:.3f}. The paper's factor of 1/2 for the curvature along the row is the latter's."
    )


def _training(results: Results) -> str:
    told = []
    for optimiser in RATES:
        cosines = [course.cosine for norm in NORMALISED for course in results.free[norm, optimiser]]
        slopes = ", ".join(
            f"{norm} {turn_exponents(results, norm, optimiser).mean():.2f}" for norm in NORMALISED
        )
        told.append(
            f"{optimiser}: gradients stand at right angles to the weights (largest cosine "
            f"{max(cosines):.0e}); a first update turns them by |W| to the {slopes}."
        )
    told.append(_accuracy(results))
    return " ".join(told)


def _accuracy(results: Results) -> str:
    each = []
    for optimiser in RATES:
        for norm in JUDGED:
            free, held = (
                float(np.mean([course.held_out for course in courses[norm, optimiser]]))
                for courses in (results.free, results.held)
            )
            each.append(f"{norm}, {optimiser} {format_percent(held)} (free {format_percent(free)})")
    return f"With |W| held, held-out images named right in %: {'; '.join(each)}."


def hand_table(results: Results) -> str:
    rows = []
    for norm in NORMS:
        names = ("weight", "gain", "gain_data", "own", "cross")
        row = [norm]
        for name in names:
            value = float(exponents(results, norm, name).mean())
            row.append("-" if math.isnan(value) else f"{round(value, 2) + 0.0:+.2f}")
        row += [f"{turn_exponents(results, norm, optimiser).mean():+.2f}" for optimiser in RATES]
        rows.append(row)
    header = ["", "F of W", "of gain", "by images", "own block", "cross", "turn: SGD", "Adam"]
    return format_table(header, rows)


def training_table(results: Results) -> str:
    """The last columns are F of the weights in the end over that at the start, and the share of |W| in it,
    which under SGD is that in the angle of an update too."""
    rows = []
    for norm in NORMS:
        for optimiser in RATES:
            key = norm, optimiser
            curved = [np.log(course.curvature[-1] / course.curvature[0]) for course in results.free[key]]
            shrunk = -2 * growth(results, norm, optimiser)
            row = [f"{norm}, {optimiser}", _times(growth(results, norm, optimiser))]
            row.append(_times(fall(results, norm, optimiser)) if key in results.held else "-")
            row.append(_factor(np.array(curved)))
            row.append(_factor(shrunk) if norm != NONE else "-")
            rows.append(row)
    return format_table(["", "growth of |W|", "turn, free/held", "F of W", "1/|W|²"], rows)


def rate_table(results: Results) -> str:
    rows = []
    for norm in NORMS:
        for optimiser, rates in RATES.items():
            held_out, grown = results.grid[norm, optimiser]
            cells = [
                f"{size:.2f}x, {format_percent(right)}{'*' if rate == results.rate[norm, optimiser] else ' '}"
                for rate, size, right in zip(
                    rates, np.exp(np.log(grown).mean(axis=0)), held_out.mean(axis=0), strict=True
                )
            ]
            rows.append([f"{norm}, {optimiser} {rates[0]:g}", *cells])
    times = [f"times {rate / RATES[SGD][0]:g}" for rate in RATES[SGD]]
    return format_table(["rate", *times], rows)


def how(seeds: int, quick: bool) -> str:
    count, images, epochs = extent(seeds, quick)
    return (
        "Softmax regression on scikit-learn's digits with LN, BN, weight norm (WN) and none before the "
        f"softmax: SGD and Adam at {len(RATES[SGD])} rates each, {count} seeds, {epochs} passes over "
        f"{images} images; again with the weights' length held; the Fisher information by exact sums over "
        "the classes."
    )


def draw(results: Results, figure: Figure) -> None:
    """Curvature by hand, and length and turning of the weights in training."""
    hand, grown, turned = figure.subplots(1, 3)
    _draw_hand(hand, results)
    _draw_growth(grown, results)
    _draw_turn(turned, results)
    for axes in (hand, grown, turned):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)


def _draw_hand(axes: Axes, results: Results) -> None:
    middle = FACTORS.index(1.0)
    for norm in reversed(NORMALISED):
        colour, marker = STYLES[norm]
        # The curves lie on each other: markers of different sizes show all of them.
        size = 5 + 3 * NORMALISED.index(norm)
        for name, filled in (("weight", True), ("gain", False)):
            values = np.stack([getattr(one, name) for one in results.hand[norm]])
            relative = np.exp(np.log(values / values[:, middle, None]).mean(axis=0))
            axes.plot(
                FACTORS,
                relative,
                color=colour,
                marker=marker,
                markersize=size,
                markerfacecolor=colour if filled else "white",
                linewidth=1.2,
                label={LAYER: "LN", BATCH: "BN", WEIGHT: "weight norm (WN)"}[norm] if filled else None,
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(FACTORS, [f"{factor:g}" for factor in FACTORS])
    axes.minorticks_off()
    axes.annotate("weights (filled): 1 / |W|²", (0.42, 3e1), fontsize=10, color="#333333")
    axes.annotate("gain (open): unchanged", (0.9, 1.8), fontsize=10, color="#333333")
    axes.set_xlabel("weights multiplied by")
    axes.set_ylabel("Fisher information (1 = as trained)")
    axes.set_title("The same function, longer weights", fontsize=11)
    axes.legend(frameon=False, fontsize=10, loc="lower left")


def _draw_growth(axes: Axes, results: Results) -> None:
    for norm in NORMALISED:
        for optimiser, line in LINES.items():
            courses = np.stack([course.growth for course in results.free[norm, optimiser]])
            colour = STYLES[norm][0]
            axes.plot(
                np.exp(np.log(courses).mean(axis=0)),
                color=colour,
                linestyle=line,
                linewidth=1.8,
                label=f"{norm}, {optimiser}",
            )
    axes.set_yscale("log")
    _plain_ticks(axes, (1, 1.5, 2, 3, 5, 10, 20, 50, 100))
    axes.set_xlabel("updates")
    axes.set_ylabel("|W| / |W| at the start")
    axes.set_title("Weights grow in training, each at its best rate", fontsize=11)
    axes.legend(frameon=False, fontsize=10, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.14))


def _draw_turn(axes: Axes, results: Results) -> None:
    width = results.updates // results.epochs
    updates = width * (np.arange(results.epochs) + 0.5)
    for norm in reversed(NORMALISED):
        for optimiser, line in LINES.items():
            logs = [
                np.log(free.turn.reshape(-1, width).mean(axis=1) / held.turn.reshape(-1, width).mean(axis=1))
                for free, held in zip(
                    results.free[norm, optimiser], results.held[norm, optimiser], strict=True
                )
            ]
            axes.plot(
                updates, np.exp(np.mean(logs, axis=0)), color=STYLES[norm][0], linestyle=line, linewidth=1.8
            )
    axes.axhline(1, color="#333333", linewidth=0.8)
    axes.set_yscale("log")
    _plain_ticks(axes, (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2))
    axes.set_xlabel("updates")
    axes.set_ylabel("angle of an update / angle with |W| held")
    axes.set_title("An update turns them less than with |W| held", fontsize=11)


def _plain_ticks(axes: Axes, ticks: tuple[float, ...]) -> None:
    """Those of the ticks that lie within the axis, as plain numbers."""
    low, high = axes.get_ylim()
    shown = [tick for tick in ticks if low <= tick <= high]
    axes.set_yticks(shown, [f"{tick:g}" for tick in shown])
    axes.minorticks_off()


STUDY = Study(
    name="weight-growth",
    claim="As a normalised layer's weights grow, its effective learning rate falls; the gain's does not",
    source="Ba, Kiros, Hinton 2016, arXiv 1607.06450, section 5.2",
    how=how,
    measure=measure,
    report=report,
    draw=draw,
    size=(14.0, 5.0),
)
