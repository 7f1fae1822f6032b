"""``lnrnn demo batch-size``: what small batches do to layer norm and to batch norm.

Claim: "layer normalization is robust to the batch-sizes", batch norm is not (Ba, Kiros, Hinton, Layer
Normalization, arXiv 1607.06450, section 6.6, batches of 128 and 4), and LN works "in the pure online regime
with batch size 1" (section 3), where batch norm has nothing to average.

Measured: scikit-learn's digits, permutation-invariant, in a net of 64-32-32-10 with ReLU, norm in the
hidden layers, Adam without decay, EPOCHS passes over 800 images whatever the batch: each of BATCHES, without
norm, with LN, with BN. Every norm at every batch size tries the same RATES and keeps the one that is right
most often on held-out training images, on average over the seeds (seed s holds out fold s mod 5). Only the
chosen networks see the 797 test images. Equal passes mean more updates in small batches, which is to their
advantage: what a norm loses there it loses in spite of them.

BN is read in two ways, each with a rate of its own, from the same networks: with the running statistics of
training (momentum 0.1), and with statistics recomputed after training over the 800 images as one batch. Its
gap is the accuracy in training mode, on test images in random batches of the size of the training, less the
accuracy in inference mode.

Verdict: the change of a test accuracy from batch LARGE to b is paired over the seeds, with a 95 % interval.
At b the claim holds for a way of reading BN where LN's interval lies above -MARGIN and BN's lies below
-MARGIN. It is confirmed if it holds at each of SMALL for both ways, not confirmed if nowhere; else it depends
on the batch size, or on the statistics, or on both. Batch 1 is reported, and decides nothing: that BN refuses
it follows from its definition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from lnrnn.demos.digits import FOLDS, Digits, load_digits
from lnrnn.demos.feed_forward import FeedForward, NormName, train
from lnrnn.demos.outcomes import bounds, format_points, mean_and_deviation
from lnrnn.demos.study import Progress, Report, Study
from lnrnn.demos.tables import bullets, format_percent, format_table, lay_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BATCHES = (256, 128, 32, 8, 4, 2, 1)
LARGE, SMALL = 128, (4, 2)
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
EPOCHS = 30
MARGIN = 0.01
WINDOW = 100  # images over which the accuracy of online learning is averaged

PLAIN, LAYER, RUNNING, RECOMPUTED = "no norm", "LN", "BN running", "BN recomputed"
METHODS = (PLAIN, LAYER, RUNNING, RECOMPUTED)
READINGS = (RUNNING, RECOMPUTED)
READ_BY: dict[NormName | None, tuple[str, ...]] = {None: (PLAIN,), "layer": (LAYER,), "batch": READINGS}
# method -> (colour, marker, line style)
STYLES = {
    PLAIN: ("#7d8790", "s", "-"),
    LAYER: ("#1565c0", "o", "-"),
    RUNNING: ("#ef8a17", "^", "-"),
    RECOMPUTED: ("#2e9463", "D", (0, (4, 2))),
}
ALARM = "#c62828"


@dataclass
class Results:
    """What S seeds gave; keys are methods, or (method, batch size).

    images, epochs: how many images were learnt from, and how often.
    rate: the learning rate chosen. held_out: accuracy on held-out training images at each of RATES, (S, R).
    accuracy: on the test images, (S,). training_mode: for READINGS, the same networks in training mode, (S,).
    online: at batch 1, whether each image was named right before it was learnt from, (images, S).
    refusal: what batch norm says of batches of one image.
    """

    seeds: int
    images: int
    epochs: int
    rate: dict[tuple[str, int], float] = field(default_factory=dict)
    held_out: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)
    accuracy: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)
    training_mode: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)
    online: dict[str, np.ndarray] = field(default_factory=dict)
    refusal: str = ""


def _extent(seeds: int, quick: bool) -> Results:
    return Results(min(seeds, 2), 320, 1) if quick else Results(seeds, 800, EPOCHS)


def measure(seeds: int, quick: bool, progress: Progress) -> Results:
    """Trains every norm at every batch size and every rate, chooses the rates, and asks about the test."""
    data = load_digits()
    results = _extent(seeds, quick)
    results.refusal = refusal(data)
    parts = [(norm, size) for norm in READ_BY for size in BATCHES if norm != "batch" or size > 1]
    # An update costs about as much as learning from three images.
    costs = np.array([1 + 3 / size for _, size in parts])
    for (norm, size), cost, before in zip(parts, costs, np.cumsum(costs) - costs, strict=True):
        epochs = 0

        def on_epoch(size: int = size, cost: float = cost, before: float = before) -> None:
            nonlocal epochs
            epochs += 1
            progress((before + cost * epochs / results.epochs) / costs.sum(), f"batch {size}")

        _measure_one(results, data, norm, size, on_epoch)
    return results


def refusal(data: Digits) -> str:
    """What batch norm says when it is to learn from one image."""
    network = FeedForward([0], "batch")
    try:
        network.losses_and_gradients(data.train_x[:1, None], data.train_labels[:1, None])
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    raise RuntimeError("batch norm learnt from the statistics of a single value")


def _measure_one(
    results: Results, data: Digits, norm: NormName | None, size: int, on_epoch: Callable[[], object]
) -> None:
    """One norm at one batch size: a stack of networks, seeds by rates, the rates running faster."""
    seeds = [seed for seed in range(results.seeds) for _ in RATES]
    networks = FeedForward(seeds, norm)
    chosen = [data.without_fold(seed % FOLDS)[: results.images] for seed in seeds]
    rates = RATES * results.seeds
    told = train(
        networks, data.train_x, data.train_labels, chosen, seeds, rates, size, results.epochs, on_epoch
    )
    held = np.stack([np.flatnonzero(data.fold == seed % FOLDS) for seed in seeds], axis=1)
    for method in READ_BY[norm]:
        if method == RECOMPUTED:
            networks.calibrate(data.train_x[np.stack(chosen, axis=1)])
        right = networks.logits(data.train_x[held]).argmax(axis=2) == data.train_labels[held]
        held_out = right.mean(axis=0).reshape(results.seeds, len(RATES))
        best = int(held_out.mean(axis=0).argmax())
        winners = np.arange(results.seeds) * len(RATES) + best
        results.held_out[method, size], results.rate[method, size] = held_out, RATES[best]
        stack = networks.part(winners)
        named = stack.logits(data.test_x).argmax(axis=2)
        results.accuracy[method, size] = (named == data.test_labels[:, None]).mean(axis=0)
        if norm == "batch":
            results.training_mode[method, size] = accuracy_in_training_mode(
                stack, data.test_x, data.test_labels, size
            )
        if size == 1:
            results.online[method] = told[:, winners]


def accuracy_in_training_mode(
    networks: FeedForward, x: np.ndarray, labels: np.ndarray, size: int
) -> np.ndarray:
    """Accuracy (M,) on x (N, in), labels (N,), asked in random batches of ``size`` with the batches' own
    statistics. The last batch is filled up with the first images, whose second answer does not count."""
    order = np.random.default_rng(0).permutation(len(x))
    filled = np.resize(order, -(-len(x) // size) * size)
    batches = [
        networks.logits(x[filled[start : start + size]], training=True)
        for start in range(0, len(filled), size)
    ]
    named = np.concatenate(batches)[: len(x)].argmax(axis=2)
    return np.asarray((named == labels[order, None]).mean(axis=0))


def change(results: Results, method: str, size: int) -> np.ndarray:
    """Test accuracy at batch ``size`` less that at LARGE, (S,)."""
    return np.asarray(results.accuracy[method, size] - results.accuracy[method, LARGE])


def holds(results: Results, reading: str, size: int) -> bool:
    """Whether at batch ``size`` LN keeps its accuracy within MARGIN and BN, read so, loses more than that."""
    low, _ = bounds(change(results, LAYER, size))
    _, high = bounds(change(results, reading, size))
    return low > -MARGIN and high < -MARGIN


def verdict(results: Results, text: str) -> Report:
    """By the rule in this module's docstring."""
    held = {(reading, size): holds(results, reading, size) for reading in READINGS for size in SMALL}
    numbers = ", ".join(
        f"{method} {format_points(change(results, method, SMALL[0]))}" for method in (LAYER, *READINGS)
    )
    number = f"Test accuracy from batch {LARGE} to {SMALL[0]}, in points: {numbers}."
    if all(held.values()):
        return Report("confirmed", number, text)
    if not any(held.values()):
        return Report("not confirmed", number, text)
    by_size = {tuple(held[reading, size] for reading in READINGS) for size in SMALL}
    by_reading = {tuple(held[reading, size] for size in SMALL) for reading in READINGS}
    causes = []
    if len(by_size) > 1:
        causes.append("the batch size")
    if len(by_reading) > 1:
        causes.append("which statistics BN uses at inference")
    where = "; ".join(f"{reading} at {size}" for (reading, size), yes in held.items() if yes)
    return Report("depends", f"{number} It holds for: {where}.", text, " and on ".join(causes))


def report(results: Results) -> Report:
    return verdict(results, report_text(results))


def report_text(results: Results) -> str:
    """Sentences and tables for a terminal."""
    told = [
        _small_batches(results),
        _gap(results),
        f"BN cannot train on one image at a time: {results.refusal}.",
        _online(results),
    ]
    tables = [
        ("Right on the test images in %, mean ± standard deviation over the seeds", accuracy_table(results)),
        (
            f"Change since batch {LARGE} in points, 95 % interval of the paired differences",
            change_table(results),
        ),
        ("Adam's rate, chosen on held-out training images", rate_table(results)),
    ]
    return lay_out(bullets(told), tables)


def _small_batches(results: Results) -> str:
    told = []
    for size in SMALL:
        each = (f"{method} {_kept(change(results, method, size))}" for method in METHODS)
        told.append(f"From batch {LARGE} to {size}: {', '.join(each)}.")
    return " ".join(told)


def _kept(differences: np.ndarray) -> str:
    low, high = bounds(differences)
    verb = "keeps its accuracy" if low > -MARGIN else "loses" if high < -MARGIN else "is not clear"
    return f"{verb} ({100 * differences.mean():+.1f} points)"


def _gap(results: Results) -> str:
    sizes = [size for size in BATCHES if size > 1]
    gaps = {size: 100 * float(gap(results, RUNNING, size).mean()) for size in sizes}
    widest = max(sizes, key=lambda size: abs(gaps[size]))
    return (
        f"BN in training mode less BN in inference mode (running statistics): {gaps[LARGE]:+.1f} points in "
        f"batches of {LARGE}, {gaps[SMALL[-1]]:+.1f} in batches of {SMALL[-1]}; widest at {widest}, "
        f"{gaps[widest]:+.1f}."
    )


def gap(results: Results, reading: str, size: int) -> np.ndarray:
    """Accuracy in training mode less that in inference mode, (S,)."""
    return np.asarray(results.training_mode[reading, size] - results.accuracy[reading, size])


def _online(results: Results) -> str:
    first = slice(0, results.images)
    parts = ", ".join(
        f"{method} {format_percent(*mean_and_deviation(told[first].mean(axis=0)))} %"
        for method, told in results.online.items()
    )
    return (
        f"Learning online, one image at a time, right on each of the first {results.images} images "
        f"before it was learnt from, at the rates that are best in the end: {parts}."
    )


def accuracy_table(results: Results) -> str:
    """One row per batch size; the last columns are BN in training mode, and what inference mode is off it."""
    rows = []
    for size in BATCHES:
        row = [str(size)]
        row += [_cell(results.accuracy, method, size) for method in METHODS]
        row.append(_cell(results.training_mode, RUNNING, size))
        known = (RUNNING, size) in results.accuracy
        row.append(f"{100 * gap(results, RUNNING, size).mean():+.1f}" if known else "-")
        rows.append(row)
    return format_table(["batch", *METHODS, "BN training", "gap"], rows)


def change_table(results: Results) -> str:
    rows = []
    for size in (*SMALL, 1):
        for method in METHODS:
            if (method, size) in results.accuracy:
                differences = change(results, method, size)
                ends = (differences.mean(), *bounds(differences))
                rows.append([f"{size:2}  {method}", *(f"{100 * end:+.1f}" for end in ends)])
    return format_table(["batch", "change", "from", "to"], rows)


def rate_table(results: Results) -> str:
    rows = [
        [method, *(f"{results.rate[method, s]:g}" if (method, s) in results.rate else "-" for s in BATCHES)]
        for method in METHODS
    ]
    return format_table(["batch", *map(str, BATCHES)], rows)


def _cell(found: Mapping[tuple[str, int], np.ndarray], method: str, size: int) -> str:
    values = found.get((method, size))
    return "-" if values is None else format_percent(*mean_and_deviation(values))


def how(seeds: int, quick: bool) -> str:
    shape = _extent(seeds, quick)
    return (
        f"scikit-learn's digits, 64 pixels without their order, in nets of 64-32-32-10: {len(BATCHES)} batch "
        f"sizes, no norm, LN and BN, {len(RATES)} rates of Adam each, {shape.seeds} seeds, {shape.epochs} "
        f"passes over {shape.images} images. BN answers with the running statistics of training, and with "
        "statistics recomputed over the training images afterwards."
    )


def draw(results: Results, figure: Figure) -> None:
    """Errors and BN's gap by batch size, and online learning."""
    errors, gaps, online = figure.subplots(1, 3, width_ratios=(1.3, 1, 1))
    _draw_errors(errors, results)
    _draw_gap(gaps, results)
    _draw_online(online, results)
    for axes in (errors, gaps, online):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)


def _by_batch(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(BATCHES, [str(size) for size in BATCHES])
    axes.minorticks_off()
    axes.set_xlim(0.8, 320)
    axes.set_xlabel("images per batch")


def _draw_lines(axes: Axes, found: Mapping[tuple[str, int], np.ndarray], methods: tuple[str, ...]) -> None:
    """Means over the seeds in percent, with the standard deviation."""
    for method in methods:
        sizes = [size for size in BATCHES if (method, size) in found]
        pairs = [mean_and_deviation(100 * found[method, size]) for size in sizes]
        colour, marker, line = STYLES[method]
        axes.errorbar(
            sizes,
            [mean for mean, _ in pairs],
            [deviation or 0 for _, deviation in pairs],
            color=colour,
            marker=marker,
            linestyle=line,
            capsize=3,
            label=method,
            zorder=3 if method == LAYER else 2,
        )


def _draw_errors(axes: Axes, results: Results) -> None:
    _draw_lines(axes, {key: 1 - values for key, values in results.accuracy.items()}, METHODS)
    _by_batch(axes)
    axes.set_yscale("log")
    ticks = (2, 3, 5, 10, 20, 30, 50, 100)
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    wrong = [100 * (1 - values) for values in results.accuracy.values()]
    low, high = 0.8 * min(values.min() for values in wrong), 2 * max(values.max() for values in wrong)
    axes.set_ylim(low, high)
    axes.plot([1], [0.85 * high], "x", color=ALARM, markersize=11, markeredgewidth=2.5)
    axes.annotate(
        f"BN at 1 cannot train: {results.refusal.split(':')[0]}",
        (1, 0.85 * high),
        (11, 0),
        textcoords="offset points",
        color=ALARM,
        fontsize=10,
        va="center",
    )
    axes.set_ylabel("test images named wrong (%)")
    axes.set_title("Errors at inference", fontsize=11)
    axes.legend(frameon=False, fontsize=9, loc="center right")


def _draw_gap(axes: Axes, results: Results) -> None:
    found = {(m, size): gap(results, m, size) for m, size in results.training_mode}
    _draw_lines(axes, found, READINGS)
    axes.axhline(0, color="#333333", linewidth=0.8)
    _by_batch(axes)
    axes.set_ylabel("training mode less inference mode (points)")
    axes.set_title("BN's gap between its two modes", fontsize=11)
    axes.legend(frameon=False, fontsize=9)


def _draw_online(axes: Axes, results: Results) -> None:
    for method, told in results.online.items():
        window = min(WINDOW, len(told))
        sums = np.cumsum(np.concatenate([np.zeros((1, told.shape[1])), told]), axis=0)
        means = 100 * (sums[window:] - sums[:-window]) / window
        seen = np.arange(window, len(told) + 1)
        shown = np.unique(np.geomspace(1, len(seen), 120).astype(int)) - 1
        colour, _, line = STYLES[method]
        axes.fill_between(
            seen[shown],
            means[shown].min(axis=1),
            means[shown].max(axis=1),
            color=colour,
            alpha=0.2,
            linewidth=0,
        )
        axes.plot(seen[shown], means[shown].mean(axis=1), color=colour, linestyle=line, label=method)
    axes.set_xscale("log")
    ticks = [count for count in (100, 300, 1000, 3000, 10000) if count < len(told)]
    axes.set_xticks(ticks, [f"{count:,}" for count in ticks])
    axes.minorticks_off()
    axes.set_xlabel("images seen, one at a time")
    axes.set_ylabel(f"right before learning, last {WINDOW} images (%)")
    axes.set_title("Online learning, batch 1 (BN cannot)", fontsize=11)
    axes.legend(frameon=False, fontsize=9, loc="lower right")


STUDY = Study(
    name="batch-size",
    claim="Layer norm does not mind small batches; batch norm does, and cannot train on single images",
    source="Ba, Kiros, Hinton 2016, arXiv 1607.06450, section 6.6",
    how=how,
    measure=measure,
    report=report,
    draw=draw,
    size=(14.0, 5.2),
)
