"""``lnrnn demo convolution``: does layer norm help a convolutional network, and batch norm more?

Claim: in convolutional networks layer norm is faster than no norm, but batch norm outperforms both (Ba,
Kiros, Hinton, Layer Normalization, arXiv 1607.06450, section 6.7: preliminary experiments, no numbers). Its
explanation: units near the border of the image are rarely turned on, so the units of a layer do not
contribute alike. Hearsay goes further: layer norm hurts there, or such networks cannot converge with it.

Measured: scikit-learn's digits, 8 x 8 pixels from 0 to 1, in four convolutions of 3 x 3 with 8, 8, 16 and 16
channels (the third has stride 2) with ReLU, and one dense layer; Adam, PASSES passes over 800 images in
batches of 32. METHODS: no norm; BN with statistics and gain per channel, read with running statistics
(momentum 0.1); LN as its paper defines it, over all units of a layer (channels and positions), with a gain
and bias per unit; and two other readings of "layer norm" that decide nothing: the same with a gain per
channel, and over the channels at each position. Every method tries the same RATES; the one with the best
accuracy on held-out training images, mean over the passes and the seeds, is kept (seed s holds out fold s
mod 5). Only networks at the chosen rate see the 797 test images, once, after training.

- Speed: images seen until REACHED of the last WINDOW were named right just before they were learnt from; all
  that are seen, if never. Compared by log2 of the ratio, margin log2(1.25).
- End: accuracy on the test images, margin MARGIN.

Verdict: differences are paired over the seeds; an answer is yes if their 95 % interval lies above the margin.
Three questions: is LN faster than no norm, is BN faster than LN, does BN end better than LN? Confirmed if all
are answered yes, not confirmed if none is, else it depends on what is asked. Beside it stand the hearsay
(does no norm end better than LN? how much of the grid reaches CONVERGED on held-out images?) and the paper's
explanation (how often units at the border are on, and inside), which decide nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from lnrnn.demos.convolution_network import SIDE, ConvolutionalNetwork, Kind
from lnrnn.demos.digits import FOLDS, Digits, load_digits
from lnrnn.demos.outcomes import bounds, format_points, mean_and_deviation
from lnrnn.demos.parallel import Tally, side_by_side
from lnrnn.demos.study import Progress, Report, Study
from lnrnn.demos.tables import bullets, format_percent, format_table, lay_out
from lnrnn.demos.training import TrainingSettings, train

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLAIN, BATCH_NORM, LAYER_NORM = "no norm", "BN", "LN"
SHARED, CHANNELS = "LN, gain per channel", "LN over channels"
METHODS: dict[str, Kind | None] = {
    PLAIN: None,
    LAYER_NORM: "layer",
    BATCH_NORM: "batch",
    SHARED: "layer-shared",
    CHANNELS: "layer-channels",
}
# colour, marker, line style
STYLES = {
    PLAIN: ("#7d8790", "s", "-"),
    LAYER_NORM: ("#1565c0", "o", "-"),
    BATCH_NORM: ("#ef8a17", "^", "-"),
    SHARED: ("#8e5bb5", "v", (0, (4, 2))),
    CHANNELS: ("#2e9463", "D", (0, (1, 1))),
}
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
BATCH, PASSES, IMAGES = 32, 12, 800
REACHED, WINDOW = 0.95, 200
CONVERGED = 0.9
FASTER, MARGIN = math.log2(1.25), 0.005


@dataclass
class Results:
    """What S seeds gave, by method. held_out: accuracy on held-out training images after each pass,
    (S, rates, passes). told: of the chosen networks, whether each image was named right before it was learnt
    from, (S, images seen). accuracy: on the test images, (S,). active: share of the test images and channels
    for which a unit of the first two convolutions is on, (S, 2, SIDE, SIDE)."""

    seeds: int
    passes: int
    rates: tuple[float, ...]
    chosen: dict[str, float] = field(default_factory=dict)
    held_out: dict[str, np.ndarray] = field(default_factory=dict)
    told: dict[str, np.ndarray] = field(default_factory=dict)
    accuracy: dict[str, np.ndarray] = field(default_factory=dict)
    active: dict[str, np.ndarray] = field(default_factory=dict)


def _extent(seeds: int, quick: bool) -> Results:
    return Results(min(seeds, 2), 1, RATES[2:3]) if quick else Results(seeds, PASSES, RATES)


def measure(seeds: int, quick: bool, progress: Progress) -> Results:
    """Trains every method at every rate, chooses the rates, and asks about the test images."""
    data = load_digits()
    results = _extent(seeds, quick)
    own_seeds = range(results.seeds)
    runs = [(name, seed, rate) for name in METHODS for seed in own_seeds for rate in results.rates]
    tally = Tally(progress, len(runs) * results.passes)

    def one(run: tuple[str, int, float]) -> tuple[ConvolutionalNetwork, list[float]]:
        name, seed, rate = run
        network, found = ConvolutionalNetwork(METHODS[name], seed), []
        held = data.fold == seed % FOLDS
        x, labels = as_images(data.train_x[held]), data.train_labels[held]

        def on_pass() -> None:
            found.append(float((network.logits(x).argmax(axis=1) == labels).mean()))
            tally(name)

        train_one(network, data, seed, rate, results.passes, on_pass)
        return network, found

    trained = dict(zip(runs, side_by_side(one, runs), strict=True))
    test = as_images(data.test_x)
    for name in METHODS:
        held_out = [[trained[name, seed, rate][1] for rate in results.rates] for seed in own_seeds]
        results.held_out[name] = np.array(held_out)
        best = results.rates[int(results.held_out[name].mean(axis=(0, 2)).argmax())]
        results.chosen[name] = best
        networks = [trained[name, seed, best][0] for seed in own_seeds]
        results.told[name] = np.stack([np.concatenate(network.told) for network in networks])
        named = np.stack([network.logits(test).argmax(axis=1) for network in networks])
        results.accuracy[name] = (named == data.test_labels).mean(axis=1)
        results.active[name] = np.stack([active_share(network, test) for network in networks])
    return results


def as_images(x: np.ndarray) -> np.ndarray:
    """Pixels from 0, the background and what surrounds an image in a convolution, to 1."""
    return np.asarray((x + 1) / 2)


def train_one(
    network: ConvolutionalNetwork,
    data: Digits,
    seed: int,
    rate: float,
    passes: int,
    on_pass: Callable[[], object],
) -> None:
    chosen = data.without_fold(seed % FOLDS)
    x = as_images(data.train_x[chosen])[None]
    settings = TrainingSettings(passes, BATCH, rate, largest_norm=math.inf, noise=0.0)
    ones, labels = np.ones(len(chosen), np.int64), data.train_labels[chosen]
    train(network, x, ones, labels, settings, np.random.default_rng([1, seed]), on_pass)


def active_share(network: ConvolutionalNetwork, x: np.ndarray) -> np.ndarray:
    """How often the units at each position of the first two convolutions are on, (2, SIDE, SIDE)."""
    return np.stack([(h > 0).mean(axis=(0, 3)) for h in network.hidden(x)[:2]])


def border(active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """active (..., SIDE, SIDE) -> its means over the outermost ring of positions and over the others."""
    inside = np.zeros((SIDE, SIDE), bool)
    inside[1:-1, 1:-1] = True
    return active[..., ~inside].mean(axis=-1), active[..., inside].mean(axis=-1)


def images_until(told: np.ndarray, level: float = REACHED, window: int = WINDOW) -> np.ndarray:
    """told (S, images) -> images seen until ``level`` of the last ``window`` were right, (S,); all of them,
    if that never comes."""
    window = min(window, told.shape[1])
    above = running_share(told, window) >= level
    found = np.where(above.any(axis=1), above.argmax(axis=1) + window, told.shape[1])
    return np.asarray(found)


def running_share(told: np.ndarray, window: int) -> np.ndarray:
    """told (S, images) -> the share that is right of each ``window`` images in a row."""
    sums = np.cumsum(np.concatenate([np.zeros((len(told), 1)), told], axis=1), axis=1)
    return np.asarray((sums[:, window:] - sums[:, :-window]) / window)


def faster(results: Results, name: str, other: str) -> np.ndarray:
    """log2 of how many times fewer images ``name`` needs than ``other``, (S,)."""
    return np.asarray(np.log2(images_until(results.told[other]) / images_until(results.told[name])))


def better(results: Results, name: str, other: str) -> np.ndarray:
    """Test accuracy of ``name`` less that of ``other``, (S,)."""
    return np.asarray(results.accuracy[name] - results.accuracy[other])


def answers(results: Results) -> dict[str, bool]:
    """By the rule in this module's docstring; the last is the hearsay, which decides nothing."""
    return {
        "LN is faster than no norm": bounds(faster(results, LAYER_NORM, PLAIN))[0] > FASTER,
        "BN is faster than LN": bounds(faster(results, BATCH_NORM, LAYER_NORM))[0] > FASTER,
        "BN ends better than LN": bounds(better(results, BATCH_NORM, LAYER_NORM))[0] > MARGIN,
        "LN ends worse than no norm": bounds(better(results, PLAIN, LAYER_NORM))[0] > MARGIN,
    }


def verdict(results: Results, text: str) -> Report:
    decided = list(answers(results).values())[:3]
    number = (
        f"LN against no norm: {_times(faster(results, LAYER_NORM, PLAIN))} as fast; BN against LN: "
        f"{_times(faster(results, BATCH_NORM, LAYER_NORM))} as fast, "
        f"{format_points(better(results, BATCH_NORM, LAYER_NORM))} points on the test images."
    )
    if all(decided):
        return Report("confirmed", number, text)
    if not any(decided):
        return Report("not confirmed", number, text)
    return Report("depends", number, text, "what is asked")


def _times(logs: np.ndarray) -> str:
    """ "1.40 times [1.10, 1.78]" """
    low, high = bounds(logs)
    with np.errstate(over="ignore"):
        return f"{2 ** logs.mean():.2f} times [{2**low:.2f}, {np.exp2(high):.2f}]"


# --- text ---------------------------------------------------------------------------------------------------


def report(results: Results) -> Report:
    return verdict(results, report_text(results))


def report_text(results: Results) -> str:
    """Sentences and tables for a terminal."""
    decided = "; ".join(f"{question}: {'yes' if yes else 'no'}" for question, yes in answers(results).items())
    told = [
        f"{decided}.",
        f"Hearsay: no norm against LN, {format_points(better(results, PLAIN, LAYER_NORM))} points on the "
        f"test images; the worst chosen LN network reaches {100 * results.accuracy[LAYER_NORM].min():.1f} %.",
        _explanation(results),
    ]
    tables = [
        ("At the chosen rates, mean ± standard deviation over the seeds", table(results)),
        ("Held-out images right after the last pass by Adam's rate, in %", rate_table(results)),
    ]
    return lay_out(bullets(told), tables)


def _explanation(results: Results) -> str:
    each = []
    for name in (PLAIN, LAYER_NORM, BATCH_NORM):
        at_border, inside = (100 * part.mean() for part in border(results.active[name]))
        each.append(f"{name} {at_border:.0f} and {inside:.0f} %")
    return (
        "The paper's explanation: units of the first two convolutions are on at the border of the image, and "
        f"inside: {', '.join(each)} of the time."
    )


def table(results: Results) -> str:
    rows = []
    for name in METHODS:
        until = images_until(results.told[name])
        mean, deviation = mean_and_deviation(until)
        never = int((running_share(results.told[name], WINDOW) < REACHED).all(axis=1).sum())
        rows.append(
            [
                name,
                f"{results.chosen[name]:g}",
                f"{mean:.0f}" + ("" if deviation is None else f"±{deviation:.0f}"),
                str(never),
                format_percent(*mean_and_deviation(results.accuracy[name])),
                f"{100 * converged(results, name):.0f}",
            ]
        )
    header = ["", "rate", f"images to {100 * REACHED:.0f} %", "never", "test, %", "of the grid, %"]
    return format_table(header, rows)


def converged(results: Results, name: str) -> float:
    """The share of rates and seeds at which CONVERGED of the held-out images are named at the end."""
    return float((results.held_out[name][:, :, -1] >= CONVERGED).mean())


def rate_table(results: Results) -> str:
    rows = []
    for name in METHODS:
        means = results.held_out[name][:, :, -1].mean(axis=0)
        rows.append([name, *(format_percent(mean) for mean in means)])
    return format_table(["", *(f"{rate:g}" for rate in results.rates)], rows)


def how(seeds: int, quick: bool) -> str:
    shape = _extent(seeds, quick)
    rates = ", ".join(f"{rate:g}" for rate in shape.rates)
    return (
        "scikit-learn's digits in four small convolutions without norm, with LN (three readings of it) and "
        f"with BN: Adam at {rates}, {shape.seeds} seeds, passes over {IMAGES} images: {shape.passes}, in "
        f"batches of {BATCH}."
    )


# --- figure -------------------------------------------------------------------------------------------------


def draw(results: Results, figure: Figure) -> None:
    """Learning curves, held-out errors by rate, test errors, and where units are on."""
    curve, rates, test, active = figure.subplots(1, 4, width_ratios=(1.4, 1, 1, 0.9))
    _draw_curves(curve, results)
    _draw_rates(rates, results)
    _draw_test(test, results)
    _draw_active(active, results, figure)
    for axes in (curve, rates, test):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = curve.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(METHODS), frameon=False, fontsize=11)


def _percent_scale(axes: Axes, ticks: Sequence[float]) -> None:
    axes.set_yscale("log")
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def _draw_curves(axes: Axes, results: Results) -> None:
    for name in METHODS:
        colour, _, line = STYLES[name]
        wrong = 100 * (1 - running_share(results.told[name], WINDOW))
        seen = np.arange(WINDOW, WINDOW + wrong.shape[1])
        shown = np.unique(np.geomspace(1, len(seen), 150).astype(int)) - 1
        if name in (PLAIN, LAYER_NORM, BATCH_NORM):
            low, high = wrong.min(axis=0)[shown], wrong.max(axis=0)[shown]
            axes.fill_between(seen[shown], low, high, color=colour, alpha=0.15, linewidth=0)
        mean = wrong.mean(axis=0)[shown]
        axes.plot(seen[shown], mean, color=colour, linestyle=line, label=name, linewidth=2)
    axes.axhline(100 * (1 - REACHED), color="#333333", linewidth=0.8)
    axes.set_xscale("log")
    ticks = [count for count in (200, 500, 1000, 2000, 5000, 10000) if count <= seen[-1]]
    axes.set_xticks(ticks, [f"{count:,}" for count in ticks])
    _percent_scale(axes, (0.5, 1, 2, 5, 10, 20, 50, 100))
    axes.set_ylim(0.4, 100)
    axes.set_xlabel("images seen")
    axes.set_ylabel(f"wrong before learning, last {WINDOW} images (%)")
    axes.set_title("How fast they learn (bands: the seeds)", fontsize=11)


def _draw_rates(axes: Axes, results: Results) -> None:
    for name in METHODS:
        colour, marker, line = STYLES[name]
        wrong = 100 * (1 - results.held_out[name][:, :, -1].mean(axis=0))
        axes.plot(results.rates, wrong, color=colour, marker=marker, linestyle=line)
    axes.set_xscale("log")
    axes.set_xticks(results.rates, [f"{rate:g}" for rate in results.rates])
    _percent_scale(axes, (1, 2, 5, 10, 20, 50, 90))
    axes.set_xlabel("learning rate of Adam")
    axes.set_ylabel("held-out images wrong at the end (%)")
    axes.set_title("At every rate of the grid", fontsize=11)


def _draw_test(axes: Axes, results: Results) -> None:
    for place, name in enumerate(METHODS):
        colour, marker, _ = STYLES[name]
        wrong = 100 * (1 - results.accuracy[name])
        axes.plot(np.full(len(wrong), place), wrong, marker, color=colour, alpha=0.55, markersize=6)
        axes.hlines(wrong.mean(), place - 0.3, place + 0.3, color=colour, linewidth=3)
    labels = ["no\nnorm", "LN", "BN", "LN, gain\nper ch.", "LN over\nch."]
    axes.set_xticks(range(len(METHODS)), labels, fontsize=9)
    axes.set_ylim(0, None)
    axes.set_ylabel("test images wrong (%)")
    axes.set_title("At the chosen rates (bar: mean)", fontsize=11)


def _draw_active(axes: Axes, results: Results, figure: Figure) -> None:
    shares = 100 * results.active[PLAIN].mean(axis=(0, 1))
    image = axes.imshow(shares, cmap="cividis", vmin=0, vmax=100)
    for row, column in np.ndindex(*shares.shape):
        share = shares[row, column]
        colour = "black" if share > 60 else "white"
        axes.text(column, row, f"{share:.0f}", ha="center", va="center", fontsize=8, color=colour)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel("column of the image")
    axes.set_ylabel("row of the image")
    axes.set_title("How often units are on,\nfirst 2 layers, no norm", fontsize=11)
    figure.colorbar(image, ax=axes, label="of images and channels (%)", shrink=0.75)


STUDY = Study(
    name="convolution",
    claim="In convolutional networks LN is faster than no norm, but BN outperforms it",
    source="Ba, Kiros, Hinton 2016, arXiv 1607.06450, section 6.7",
    how=how,
    measure=measure,
    report=report,
    draw=draw,
    size=(17.0, 4.8),
)
