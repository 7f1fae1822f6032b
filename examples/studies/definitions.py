r"""
Formulas, and their form in posts
=================================

Batch norm (BN) and layer norm (LN) subtract a mean and divide by a standard deviation. Then they multiply by
a gain (gamma) and add a bias (beta). BN takes the mean and the biased variance of each unit over the batch.
LN takes them of each sample over its units:

.. math::

   y = \gamma \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta

For inference BN stores running statistics r. Its momentum m is defined in two ways:

.. math::

   \text{torch:}\; r \leftarrow (1 - m)\, r + m\, \mu \quad \text{other:}\; r \leftarrow m\, r + (1 - m)\, \mu

Posts make five claims. With m = 0 the statistics are those of the last batch, with m = 1 those of all
batches. BN makes a "标准高斯分布" (standard Gaussian). Mean and variance become gamma and beta. "batch越大,
估计越准" (the larger the batch, the better the estimate). Without scale and shift "表達能力會下降" (the
network loses expressiveness).
"""

import time

import numpy as np
from common import (
    FOLDS,
    Clause,
    Study,
    checks,
    load_digits,
    percent,
    points,
    show,
    side_by_side,
    stacked,
    table,
)
from nets import EPS, FeedForward, accuracy, best_rates, train
from plots import OTHER, STYLES, forest, tidy

import lnrnn
from lnrnn.data import japanese_vowels
from lnrnn.packages import require

# Constants to change.
WIDTHS = (32, 8, 4)  # units in each of the two hidden layers
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
BATCH, EPOCHS = 32, 30
MARGIN = 0.01  # a loss of at most one point of accuracy is ignored
MOMENTA = (0.0, 0.1, 0.9, 1.0, None)
SIZES = (2, 4, 8, 16, 32, 64, 128, 256)  # batch sizes for the error of a batch's statistics
NORMS = {"LN": "layer", "BN": "batch"}

FIGURE = (10.0, 7.4)
FIXED, TRAINED = "fixed", "trained"


def key(part):
    return ", ".join(map(str, part))


def change(results, what, norm, width):
    """Returns accuracy with trained gain and bias minus accuracy with fixed ones, for each seed."""
    return results[what][key((norm, width, TRAINED))] - results[what][key((norm, width, FIXED))]


def draw(results, figure):
    """Draws momentum, the distribution of a normalised unit, the error of a batch's statistics, and accuracy
    with trained against fixed gain and bias."""
    (upper_left, upper_right), (lower_left, lower_right) = figure.subplots(2, 2)
    draw_momentum(upper_left, results["momentum"])
    draw_shape(upper_right, results["shape"])
    draw_errors(lower_left, results["error"])
    kinds = [(norm, width) for width in WIDTHS for norm in NORMS]
    rows = {f"{norm}, {width} units": change(results, "accuracy", norm, width) for norm, width in kinds}
    forest(lower_right, rows, comparisons=len(rows))
    tidy(
        lower_right, "Gain and bias matter to BN with 4 units",
        xlabel="trained minus fixed gain and bias, points of test accuracy",
    )  # fmt: skip


def draw_momentum(axes, found):
    styles = {
        "1.0": (STYLES["BN"][0], 1), "0.1": (STYLES["LN"][0], 2), "None": (OTHER, 2.5),
        "0.0": (STYLES["no norm"][0], 1.5),
    }  # fmt: skip
    for name, (colour, width) in styles.items():
        curve = found["torch"][name]
        axes.plot(np.arange(1, len(curve) + 1), curve, color=colour, lw=width, label=f"momentum = {name}")
    axes.axhline(found["all"], color="black", lw=1, ls=":", label="mean of all batches")
    axes.legend(frameon=False, fontsize=9, loc=(0.5, 0.1))
    tidy(axes, "torch's momentum = 1 keeps the last batch", xlabel="batches", ylabel="running mean")


def draw_shape(axes, found):
    edges = found["edges"]
    axes.stairs(found["share"], edges, fill=True, color=STYLES["BN"][0], alpha=0.5, label="a unit under BN")
    line = np.linspace(edges[0], edges[-1], 200)
    gauss = np.exp(-(line**2) / 2) / np.sqrt(2 * np.pi)
    axes.plot(line, gauss, color="black", lw=1.5, label="standard Gaussian")
    axes.legend(frameon=False, fontsize=9)
    tidy(axes, "Mean 0, variance 1, and no Gaussian", xlabel="normalised summed input", ylabel="density")


def draw_errors(axes, found):
    for name, colour, marker in (("mean", STYLES["BN"][0], "^"), ("variance", OTHER, "D")):
        error = found[name].mean(axis=0)
        axes.plot(SIZES, error, marker, color=colour, label=f"of the {name}")
        axes.plot(SIZES, error[-1] * np.sqrt(SIZES[-1] / np.array(SIZES)), color=colour, lw=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(SIZES, map(str, SIZES))
    axes.set_yticks([0.0625, 0.25, 1], ["0.06", "0.25", "1"])
    axes.legend(frameon=False, fontsize=9)
    tidy(
        axes, "A batch 4 times as large halves the error", xlabel="samples per batch",
        ylabel="error of a batch's statistics",
    )  # fmt: skip


show("definitions", draw, FIGURE)

# %%
# Result
# ------
# - "momentum=0 last batch, momentum=1 all batches" is wrong in both definitions. In torch's, 0 keeps the
#   initial value and 1 the last batch. In the other, 0 keeps the last batch, as the post says, but 1 keeps
#   the initial value. The mean of all batches is torch's ``momentum=None``.
# - Normalised values are not Gaussian. BN's output has mean 0 and variance 1 (except for eps), but the
#   skewness and kurtosis of its input. In trained networks a test at the 1 % level rejects normality for 82 %
#   of units.
# - A gain of :math:`\sqrt{\mathrm{Var} + \epsilon}` and a bias of E give x back, to 1e-15. The mean becomes
#   beta and the standard deviation gamma, so the variance is gamma squared. The LN paper's supplement swaps
#   the initial values: with gain 0 every output is the bias, and no gradient passes the norm.
# - For batches of 2 to 256, the error of the mean is 1.00 standard deviations over the root of the batch
#   size. So a batch 4 times as large halves the error. The variance's error falls as batch size to the power
#   -0.484.
# - Statistics of all 800 images increase the multiply-adds of an update on 32 images 8.5 times.
# - Without gain and bias, networks with 32 units lose no test accuracy (less than 1 point, LN and BN). BN
#   with 4 units loses 4.7 points [2.3, 7.1] and fits the training images worse. The other cases are unclear.
#
# Advice
# ------
# Before you copy a momentum, check which value it weighs: 0.1 in torch is 0.9 in the other definition. Use
# gains and biases, because they cost little and narrow networks can need them. Initialise gains with 1 and
# biases with 0. For small batches use LN, which estimates nothing from the batch.
#
# Try it yourself
# ---------------
# Set ``WIDTHS = (32, 6, 3)`` and run with ``--tune``: at which width does the loss begin? With exact
# statistics of 60,000 images an update costs about 570 times as much, as ``multiply_adds(32, 60000)`` shows.
#
# How it was measured
# -------------------
# Formulas, momentum and errors use batches of frames of Japanese Vowels, 12 channels, 20 seeds. Skewness and
# accuracy use networks of 64-32-32-10 units, or with 8 or 4 hidden units, on scikit-learn's digits. They have
# ReLU, and Adam trains them for 30 epochs on 800 images in batches of 32. "Fixed" keeps the hidden layers'
# gains at 1 and biases at 0, while the last layer's bias is trained. For each norm, width and kind (trained
# or fixed) we take the best of six learning rates on held-out images, seeds 0 to 4. Results come from seeds 5
# to 24. The six intervals of a comparison hold jointly at 95 %. We chose the margin of 1 point. Two of 20
# networks with LN, 4 units and trained gains stay at chance, so their interval is wide. Times come from one
# run, and vary.

# --- formulas, by hand and by the library -------------------------------------------------------------------


def normalised(x, axis):
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + EPS)


def by_hand(frames, seed):
    """Returns {name of a formula: the largest deviation of the library's result from it} for a batch of
    frames.
    """
    rng = np.random.default_rng(seed)
    x = frames[rng.choice(len(frames), BATCH, replace=False)].astype(np.float64)
    units, mean, var = x.shape[1], x.mean(0), x.var(0)

    def batch_norm(gain=None, bias=None, **keywords):
        return lnrnn.batch_norm(x, None, None, gain, bias, True, eps=EPS, **keywords)

    gains, biases = np.full(units, 2.0), np.full(units, 3.0)
    scaled = batch_norm(gains, biases)
    # Initialise as the paper's supplement does: gain 0 and bias 1.
    constant = batch_norm(0 * gains, biases / 3)
    gradient, _, _ = lnrnn.batch_norm_backward(x, x, weight=0 * gains, training=True, eps=EPS)
    layer = lnrnn.BatchNorm(units, momentum=1.0).train()
    layer(x)
    alone = np.concatenate([lnrnn.layer_norm(row[None], units, eps=EPS) for row in x])
    return {
        "LN": np.abs(lnrnn.layer_norm(x, units, eps=EPS) - normalised(x, 1)).max(),
        "BN": np.abs(batch_norm() - normalised(x, 0)).max(),
        "LN alone": np.abs(lnrnn.layer_norm(x, units, eps=EPS) - alone).max(),
        "back": np.abs(batch_norm(np.sqrt(var + EPS), mean) - x).max(),
        "mean is bias": np.abs(scaled.mean(0) - 3).max(),
        "deviation is gain": np.abs(scaled.std(0) - 2 * np.sqrt(var / (var + EPS))).max(),
        "exchanged": np.abs(constant - 1).max() + np.abs(gradient).max(),
        "unbiased": np.abs(layer.running_var / var - BATCH / (BATCH - 1)).max(),
    }


def momentum(frames, seed, batches=40):
    """Returns the running mean of channel 0 after each batch, by momentum, in both definitions, and the means
    of the last batch and of all batches."""
    rng = np.random.default_rng(seed)
    means, torch, other = [], {}, {}
    chosen = [frames[rng.choice(len(frames), BATCH)] for _ in range(batches)]
    for m in MOMENTA:
        layer, values = lnrnn.BatchNorm(frames.shape[1], momentum=m), 0.0
        torch[str(m)], other[str(m)] = [], []
        for batch in chosen:
            layer.train()(batch)
            torch[str(m)].append(layer.running_mean[0])
            if m is not None:
                values = m * values + (1 - m) * batch[:, 0].mean(dtype=np.float64)
                other[str(m)].append(values)
    means = [batch[:, 0].mean(dtype=np.float64) for batch in chosen]
    other.pop("None")
    return {"torch": torch, "other": other, "last": means[-1], "all": np.mean(means)}


# --- sampling -----------------------------------------------------------------------------------------------


def errors(frames, seed, draws=200):
    """Returns for each batch size the errors of a batch's mean and biased variance, divided by the standard
    deviation and by the variance. They are root mean squares over channels and random batches."""
    rng = np.random.default_rng([2, seed])
    x = frames.astype(np.float64)
    mean, var, found = x.mean(0), x.var(0), {"mean": [], "variance": []}
    for size in SIZES:
        batches = x[rng.integers(len(x), size=(draws, size))]
        off = (batches.mean(1) - mean) / np.sqrt(var), batches.var(1) / var - 1
        for name, values in zip(found, off, strict=True):
            found[name].append(np.sqrt(np.square(values).mean()))
    return found


def exponent(error):
    """Returns the power of the batch size to which error (S, sizes) is proportional, for each seed."""
    return -np.polyfit(np.log(SIZES), np.log(error).T, 1)[0]


def shapes(networks, x, seeds):
    """Returns how Gaussian the normalised summed inputs of trained networks are, as measures (S,).

    skewness: mean |skewness| over the units. of Gaussian numbers: mean |skewness| of as many Gaussian
    numbers. rejected: the share of units whose normality a test rejects at 1 %. change: the largest change of
    skewness and kurtosis by BN. share, edges: a histogram of the unit with the median skewness in the second
    layer of the first network."""
    stats = require("scipy.stats", "this study", "demo")
    layers = networks.summed_inputs(x)
    before, after = (np.concatenate(part, axis=2).astype(np.float64) for part in zip(*layers, strict=True))
    gains = np.concatenate([layer.gain for layer in networks.layers(networks.values)[:-1]], axis=1)
    skewness = np.abs(stats.skew(after, axis=0))
    gauss = [np.random.default_rng([3, seed]).standard_normal(after[:, 0].shape) for seed in seeds]
    change = [
        np.abs(moment(before, axis=0) * sign - moment(after, axis=0)).max(axis=1)
        for moment, sign in ((stats.skew, np.sign(gains)), (stats.kurtosis, 1))
    ]
    second, _ = layers[1]
    order = np.abs(stats.skew(second[:, 0].astype(np.float64), axis=0)).argsort()
    unit = normalised(second[:, 0, order[len(order) // 2]], 0)
    share, edges = np.histogram(unit, 30, density=True)
    return {
        "skewness": skewness.mean(axis=1),
        "of Gaussian numbers": np.array([np.abs(stats.skew(values)).mean() for values in gauss]),
        "rejected": (stats.normaltest(after, axis=0).pvalue < 0.01).mean(axis=1),
        "change": np.max(change, axis=0), "share": share, "edges": edges,
    }  # fmt: skip


# --- gain and bias, trained and fixed -----------------------------------------------------------------------


class Fixed(FeedForward):
    """Networks whose hidden layers have the fixed gain 1 and bias 0."""

    def losses_and_gradients(self, *batch):
        losses, gradients, logits = super().losses_and_gradients(*batch)
        for layer in self.layers(gradients)[:-1]:
            layer.gain[...] = layer.bias[...] = 0
        return losses, gradients, logits


def parts():
    return [(norm, width, kind) for norm in NORMS for width in WIDTHS for kind in (TRAINED, FIXED)]


def trained(part, seeds, rates, quick):
    """Returns a stack of trained networks, one for each seed and rate, and the indices of their images."""
    norm, width, kind = part
    data = load_digits()
    sizes = (data.train_x.shape[1], width, width, 10)
    networks = (Fixed if kind == FIXED else FeedForward)(seeds, NORMS[norm], sizes)
    chosen = [data.without_fold(seed % FOLDS)[: 320 if quick else 800] for seed in seeds]
    train(networks, data.train_x, data.train_labels, chosen, seeds, rates, BATCH, 1 if quick else EPOCHS)
    return networks, np.stack(chosen, axis=1)


def tune(seeds, quick):
    """Returns for each norm, width and kind the rate with the best accuracy on the held-out fold."""
    return best_rates(parts(), key, RATES, seeds, lambda part, *each: trained(part, *each, quick)[0])


def multiply_adds(size, images=800):
    """Returns the multiply-adds of an update on ``size`` images, and of BN's statistics over all ``images``.

    The statistics need the summed inputs of both hidden layers. Backward costs twice as much as forward.
    """
    hidden = 64 * WIDTHS[0] + WIDTHS[0] ** 2
    return 3 * size * (hidden + 10 * WIDTHS[0]), images * hidden


def cost(networks, chosen):
    """Returns (update + exact statistics) / update for each batch size, in multiply-adds and in time."""
    data, found = load_digits(), {"multiply-adds": [], "time": []}

    def seconds(call):
        times = []
        for _ in range(5):
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
        return min(times)

    exact = seconds(lambda: networks.calibrate(data.train_x[chosen]))
    for size in (8, 32, 128):
        update, statistics = multiply_adds(size, len(chosen))
        rows = chosen[:size]
        batch = data.train_x[rows], data.train_labels[rows]
        step = seconds(lambda batch=batch: networks.losses_and_gradients(*batch))
        found["multiply-adds"].append(1 + statistics / update)
        found["time"].append(1 + exact / step)
    return found


def measure(seeds, settings, quick):
    data, frames = load_digits(), np.concatenate(japanese_vowels().train.x)
    make = lambda part: trained(part, seeds, [settings[key(part)]] * len(seeds), quick)  # noqa: E731
    stacks = side_by_side(make, parts(), "networks")
    results = {"accuracy": {}, "training accuracy": {}}
    for part, (networks, chosen) in zip(parts(), stacks, strict=True):
        results["accuracy"][key(part)] = accuracy(networks, data.test_x, data.test_labels)
        own = accuracy(networks, data.train_x[chosen], data.train_labels[chosen])
        results["training accuracy"][key(part)] = own
    networks, chosen = stacks[parts().index(("BN", WIDTHS[0], TRAINED))]
    results["shape"] = shapes(networks, data.test_x, seeds)
    results["by hand"] = stacked([by_hand(frames, seed) for seed in seeds])
    results["error"] = stacked([errors(frames, seed) for seed in seeds])
    results["momentum"] = momentum(frames, seeds[0])
    results["cost"] = cost(networks, chosen)
    return results


def clauses(results):
    hand = {name: values.max() for name, values in results["by hand"].items()}
    found, shape = results["momentum"], results["shape"]
    last = {reading: {m: curve[-1] for m, curve in found[reading].items()} for reading in ("torch", "other")}
    close = lambda a, b: bool(abs(a - b) < 1e-5)  # noqa: E731
    torch, other = last["torch"], last["other"]
    error = {name: exponent(values) for name, values in results["error"].items()}
    gauss = shape["of Gaussian numbers"] - shape["skewness"]
    texts = {"accuracy": "test accuracy lower", "training accuracy": "fits less"}
    return [
        *checks({
            "BN and LN agree with the formulas": max(hand["LN"], hand["BN"]) < 1e-10,
            "LN of a sample is the same alone and in a batch": hand["LN alone"] == 0,
            "gamma = sqrt(Var + eps) and beta = E give x back": hand["back"] < 1e-10,
            "the mean becomes beta, the standard deviation gamma":
                max(hand["mean is bias"], hand["deviation is gain"]) < 1e-10,
            "gain 0 and bias 1 at the start (supplement) pass no gradient": hand["exchanged"] == 0,
            "running_var has the unbiased variance, the output the biased one": hand["unbiased"] < 1e-5,
            "torch: m = 0 keeps the initial value, m = 1 the last batch, None the mean of all":
                torch["0.0"] == 0 and close(torch["1.0"], found["last"])
                and close(torch["None"], found["all"]),
            "other definition: m = 0 keeps the last batch, m = 1 the initial value":
                close(other["0.0"], found["last"]) and other["1.0"] == 0,
            "BN leaves skewness and kurtosis as they are": shape["change"].max() < 1e-2,
        }),
        Clause("BN makes a Gaussian: its |skewness| is that of Gaussian numbers", gauss, -0.1, ""),
        *checks({
            f"a batch 4 times as large halves the error of its {name} ({falls.mean():.3f})":
                (np.abs(falls - 0.5) < 0.05).all() for name, falls in error.items()
        }),
        *(
            Clause(f"{norm}, {width} units: {text} without gain and bias", change(results, what, norm, width),
                   MARGIN, comparisons=len(WIDTHS) * len(NORMS))
            for what, text in texts.items() for width in WIDTHS for norm in NORMS
        ),
    ]  # fmt: skip


def tables(results):
    found = results["momentum"]
    rows = [
        [reading, *(f"{found[reading][str(m)][-1]:.3f}" if str(m) in found[reading] else "" for m in MOMENTA)]
        for reading in ("torch", "other")
    ]
    error = {name: values * np.sqrt(SIZES) for name, values in results["error"].items()}
    shape, cost = results["shape"], results["cost"]
    accuracies = [
        [f"{norm}, {width} units", *(percent(results[what][key((norm, width, kind))])
         for what in ("accuracy", "training accuracy") for kind in (TRAINED, FIXED)),
         points(change(results, "accuracy", norm, width), len(WIDTHS) * len(NORMS))]
        for width in WIDTHS for norm in NORMS
    ]  # fmt: skip
    return "\n\n".join([
        f"Running mean after {len(found['torch']['1.0'])} batches: starts at 0, last batch "
        f"{found['last']:.3f}, all batches {found['all']:.3f}\n"
        + table(["momentum", *map(str, MOMENTA)], rows),
        "Error of a batch's statistics times sqrt(batch)\n"
        + table(["batch", *map(str, SIZES)], [[name, *(f"{value:.2f}" for value in values.mean(axis=0))]
                                             for name, values in error.items()]),
        f"Units under BN: |skewness| {shape['skewness'].mean():.2f} (Gaussian numbers "
        f"{shape['of Gaussian numbers'].mean():.2f}); a test of normality rejects "
        f"{100 * shape['rejected'].mean():.0f} %",
        "An update with exact statistics (800 images) over one with the batch's\n"
        + table(["batch", "8", "32", "128"], [[name, *(f"{value:.1f}x" for value in values)]
                                             for name, values in cost.items()]),
        "Gain and bias trained, and fixed at 1 and 0: right, %\n"
        + table(["", "test, trained", "fixed", "training, trained", "fixed", "test, difference"], accuracies),
    ])  # fmt: skip


STUDY = Study("definitions", measure, clauses, tables, draw, tune, FIGURE)

if __name__ == "__main__":
    STUDY.main()
