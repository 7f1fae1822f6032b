"""``lnrnn demo initialisation``: from which weights and at which learning rates networks still train.

Claim: batch norm "allows us to use much higher learning rates and be less careful about initialization"
(Ioffe, Szegedy, Batch Normalization, arXiv 1502.03167, abstract); layer norm too is invariant to the scale of
a weight matrix (Ba, Kiros, Hinton, Layer Normalization, arXiv 1607.06450, Table 1 and section 5.2). So
normalised networks should train from far more scales of weights and learning rates than plain ones.

Measured: scikit-learn's digits, permutation-invariant, in nets of 64-32-32-32-32-10 with ReLU: no norm, LN
and BN (running statistics, momentum 0.1) in the four hidden layers. All weights, those of the last layer too,
start at He's scale times each of SCALES; Adam runs at each of RATES, EPOCHS passes over 800 images in
batches of BATCH. A network trains if at the end it names at least REACHED of the 797 test images, at
inference. No setting is chosen, so there is nothing to choose it on, and the test images are read once. The
measure is the share of the grid, scales by rates, from which a norm trains; one share per seed.

Verdict: the differences of the shares, LN less no norm and BN less no norm, are paired over the seeds. The
claim holds for a norm whose 95 % interval lies above MARGIN. It is confirmed if it holds for both, not
confirmed if for neither; else it depends on the norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lnrnn.demos.digits import FOLDS, load_digits
from lnrnn.demos.feed_forward import FeedForward, NormName, train
from lnrnn.demos.outcomes import bounds, mean_and_deviation
from lnrnn.demos.study import Progress, Report, Study
from lnrnn.demos.tables import bullets, format_percent, format_table, lay_out

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
SIZES = (64, 32, 32, 32, 32, 10)
BATCH, EPOCHS = 32, 15
REACHED = 0.9
MARGIN = 0.1
NORMS: dict[str, NormName | None] = {"no norm": None, "LN": "layer", "BN": "batch"}
PLAIN = "no norm"


@dataclass(frozen=True)
class Results:
    """accuracy: of each name in NORMS on the test images, float64 (S, scales, rates)."""

    accuracy: dict[str, np.ndarray]
    scales: tuple[float, ...]
    rates: tuple[float, ...]

    def shares(self, name: str) -> np.ndarray:
        """The share of the grid from which a norm trains, (S,)."""
        return np.asarray((self.accuracy[name] >= REACHED).mean(axis=(1, 2)))


def _extent(seeds: int, quick: bool) -> tuple[int, int, tuple[float, ...], tuple[float, ...]]:
    """Seeds, epochs, scales and rates."""
    return (min(seeds, 2), 3, SCALES[::4], RATES[1::2]) if quick else (seeds, EPOCHS, SCALES, RATES)


def measure(seeds: int, quick: bool, progress: Progress) -> Results:
    """Trains every norm from every point of the grid, all points and seeds as one stack."""
    data = load_digits()
    seeds, epochs, scales, rates = _extent(seeds, quick)
    grid = [(seed, scale, rate) for seed in range(seeds) for scale in scales for rate in rates]
    own_seeds = [seed for seed, _, _ in grid]
    chosen = [data.without_fold(seed % FOLDS) for seed in own_seeds]
    accuracy = {}
    for place, (name, norm) in enumerate(NORMS.items()):
        done = 0

        def on_epoch(place: int = place, name: str = name) -> None:
            nonlocal done
            done += 1
            progress((place + done / epochs) / len(NORMS), name)

        networks = FeedForward(own_seeds, norm, SIZES, np.array([scale for _, scale, _ in grid]))
        # Where training fails, numbers may leave float32; what such a network then says is wrong.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            train(
                networks,
                data.train_x,
                data.train_labels,
                chosen,
                own_seeds,
                [rate for _, _, rate in grid],
                BATCH,
                epochs,
                on_epoch,
            )
            logits = networks.logits(data.test_x)
        right = (logits.argmax(axis=2) == data.test_labels[:, None]) & np.isfinite(logits).all(axis=2)
        accuracy[name] = right.mean(axis=0).reshape(seeds, len(scales), len(rates))
    return Results(accuracy, scales, rates)


def verdict(results: Results, text: str) -> Report:
    """By the rule in this module's docstring."""
    intervals = {name: bounds(results.shares(name) - results.shares(PLAIN)) for name in NORMS if NORMS[name]}
    shares = ", ".join(f"{name} {_percent(results.shares(name))} %" for name in NORMS)
    more = ", ".join(
        f"{name} [{100 * low:+.0f}, {100 * high:+.0f}]" for name, (low, high) in intervals.items()
    )
    number = f"Share of the grid that trains: {shares}. More than no norm, 95 % interval in points: {more}."
    held = [name for name, (low, _) in intervals.items() if low > MARGIN]
    if len(held) == len(intervals):
        return Report("confirmed", number, text)
    if not held:
        return Report("not confirmed", number, text)
    return Report("depends", number, text, f"the norm: it holds for {held[0]}")


def report(results: Results) -> Report:
    return verdict(results, report_text(results))


def report_text(results: Results) -> str:
    """Sentences and two tables for a terminal."""
    reached = f"at least {100 * REACHED:.0f} % are reached, in %"
    tables = [
        (
            f"Share of the learning rates with which {reached}",
            share_table(results, "scale", results.scales, 2),
        ),
        (f"Share of the scales from which {reached}", share_table(results, "rate", results.rates, 1)),
    ]
    return lay_out(bullets(_width(results, name) for name in NORMS), tables)


def _width(results: Results, name: str) -> str:
    """From where to where a norm trains, on the mean over the seeds."""
    mean = results.accuracy[name].mean(axis=0)
    best = mean.max(axis=1)
    trained = [scale for scale, found in zip(results.scales, best, strict=True) if found >= REACHED]
    where = "no scale and rate trains"
    if trained:
        ends = f"{trained[0]:g} to {trained[-1]:g}"
        where = f"some rate trains from {len(trained)} of {len(results.scales)} scales ({ends})"
    return (
        f"{name} trains from {_percent(results.shares(name))} % of the grid; {where}; the best mean accuracy "
        f"is {100 * mean.max():.1f} %."
    )


def share_table(results: Results, what: str, values: tuple[float, ...], averaged: int) -> str:
    """One row per norm, one column per scale or rate: the mean over the seeds and the other axis."""
    rows = []
    for name in NORMS:
        reached = (results.accuracy[name] >= REACHED).mean(axis=(0, averaged))
        rows.append([name, *(f"{100 * share:.0f}" for share in reached)])
    return format_table([what, *(f"{value:g}" for value in values)], rows)


def _percent(values: np.ndarray) -> str:
    return format_percent(*mean_and_deviation(values))


def how(seeds: int, quick: bool) -> str:
    seeds, epochs, scales, rates = _extent(seeds, quick)
    return (
        "scikit-learn's digits, 64 pixels without their order, in nets with four hidden layers of 32: no "
        f"norm, LN and BN, each from {len(scales)} scales of the weights ({scales[0]:g} to {scales[-1]:g} "
        f"times He's) at {len(rates)} rates of Adam ({rates[0]:g} to {rates[-1]:g}), {seeds} seeds, {epochs} "
        f"passes over 800 images. A network trains if it reaches {100 * REACHED:.0f} % on the test images."
    )


def draw(results: Results, figure: Figure) -> None:
    """One map of the grid per norm."""
    maps = figure.subplots(1, len(NORMS), sharey=True)
    for axes, name in zip(maps, NORMS, strict=True):
        mean = 100 * results.accuracy[name].mean(axis=0).T
        image = axes.imshow(mean, origin="lower", cmap="cividis", vmin=10, vmax=100, aspect="auto")
        for row, column in np.ndindex(*mean.shape):
            value = mean[row, column]
            good = value >= 100 * REACHED
            axes.text(
                column,
                row,
                f"{value:.0f}",
                ha="center",
                va="center",
                fontsize=9.5,
                weight="bold" if good else "normal",
                color="black" if value > 60 else "white",
            )
        axes.set_xticks(range(len(results.scales)), [f"{scale:g}" for scale in results.scales])
        axes.set_yticks(range(len(results.rates)), [f"{rate:g}" for rate in results.rates])
        axes.set_xlabel("weights at the start (times He's scale)")
        share = results.shares(name).mean()
        axes.set_title(f"{name}: {100 * share:.0f} % of the grid trains", fontsize=12)
    maps[0].set_ylabel("learning rate of Adam")
    figure.colorbar(image, ax=list(maps), label="test images named right (%), bold: 90 and more", pad=0.01)


STUDY = Study(
    name="initialisation",
    claim="Normalised networks train from far more scales of weights and learning rates than plain ones",
    source="Ioffe, Szegedy 2015, arXiv 1502.03167, abstract; Ba et al. 2016, arXiv 1607.06450, Table 1",
    how=how,
    measure=measure,
    report=report,
    draw=draw,
    size=(14.0, 4.6),
)
