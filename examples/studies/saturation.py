r"""
Saturation, drift and depth
===========================

TO BE WRITTEN.
"""

import math

import numpy as np
from common import (
    CLASSES, FOLDS, PIXELS, Check, Clause, Study, best, load_digits, percent, show, side_by_side, table,
)  # fmt: skip
from nets import EPS, FeedForward
from nets import train as train_stack
from plots import STYLES, lines, tidy

import lnrnn
from lnrnn.speakers import SequenceClassifier, TrainingSettings, train

# Change these.
NORMS = {"no norm": None, "LN": "layer", "BN": "batch"}
NETS = {"deep": "sigmoid", "recurrent": "sigmoid", "ReLU": "relu"}  # ReLU is deep too
DEPTH, STEPS, UNITS = 8, 16, 32  # hidden layers of a deep network, steps of the recurrent one
# Where gains start; without a norm, what multiplies the usual weights of the hidden layers.
FACTORS = {"deep": (1, 2, 4, 8, 16), "recurrent": (1, 2, 4, 8, 16), "ReLU": (1,)}
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
BATCH, PASSES = 32, 20
LARGEST_NORM = 1.0  # to which gradients of the recurrent network are clipped
PROBED, SHIFTED = 200, 100  # training images with which a network is examined
SATURATED = 0.1  # a sigmoid with less than this share of its greatest slope, 1/4, is saturated
REACHED = 0.8  # speed: passes to so many right test images

SIZE = (10.0, 10.0)


def draw(results, figure):
    """Gradients, speed, and drift by layer."""
    rows = figure.subplots(3, 2)
    for axes, net in zip(rows[0], ("deep", "recurrent"), strict=True):
        places = range(1, (DEPTH if net == "deep" else STEPS) + 1)
        axes.set_ylim(-13.5, 1.5)
        lines(axes, places, {name: results[f"{net}, {name}"]["gradient"] for name in NORMS})
        for name in NORMS:
            start = results[f"{net}, {name}"]["start gradient"].mean(axis=0)
            axes.plot(places, start, ":", color=STYLES[name][0], marker=STYLES[name][1], ms=4)
        axes.plot([], [], "-", color="#333333", label="tuned, in training")
        axes.plot([], [], ":", color="#333333", label="usual scale, before training")
        axes.legend(frameon=False, loc="lower right")
    labels = {"ylabel": "gradient over that at the end, log10"}
    tidy(rows[0][0], "TITLE", xlabel="hidden layer (8: next to the loss)", **labels)
    tidy(rows[0][1], "TITLE", xlabel="time step (16: next to the loss)", **labels)
    for axes, net in zip(rows[1], ("deep", "recurrent"), strict=True):
        axes.set_ylim(0, 100)
        right = {name: 100 * results[f"{net}, {name}"]["accuracy"] for name in NORMS}
        lines(axes, range(1, right["LN"].shape[1] + 1), right)
        axes.axhline(100 * REACHED, color="#999999", lw=1)
        tidy(axes, "TITLE", xlabel="passes over the images", ylabel=f"{net}: right on the test images, %")
    for axes, net in zip(rows[2], ("deep", "ReLU"), strict=True):
        axes.set_ylim(-2, 0.5)
        lines(axes, range(1, DEPTH + 1), {name: results[f"{net}, {name}"]["drift"] for name in NORMS})
        tidy(axes, "TITLE", xlabel="hidden layer", ylabel=f"{net}: drift a pass, log10")


show("saturation", draw, SIZE)

# %%
# Result
# ------
# TO BE WRITTEN.


def moments(values):
    """values (images, units) -> mean and standard deviation over the images, (2, units), float64."""
    values = values.astype(np.float64)
    return np.stack([values.mean(axis=0), values.std(axis=0)])


def drift(old, new):
    """How far the distributions of a layer's values moved, over their spread, as log10.

    old, new: `moments` of each layer, (P, 2, units). The distance is that of Wasserstein between normal
    distributions, root mean square over the units; the spread is that of both times. Returns (P,).
    """
    moved = ((new - old) ** 2).sum(axis=1).mean(axis=-1)
    spread = (old[:, 1] ** 2 + new[:, 1] ** 2).mean(axis=-1) / 2
    tiny = np.finfo(np.float64).tiny
    return 0.5 * (np.log10(np.maximum(moved, tiny)) - np.log10(np.maximum(spread, tiny)))


def correlation(changes):
    """changes (images, units): the mean squared correlation of two units' changes, 0 to 1."""
    squared = np.corrcoef(changes.T.astype(np.float64)) ** 2
    return squared[~np.eye(len(squared), dtype=bool)].mean()


def examined(before, after, gradient):
    """What a network does with the probed images, by place: a hidden layer, or a time step.

    before, after: (images, units) for each place, before the norm and as the nonlinearity takes them.
    gradient: lengths of the loss's gradient by the weights of a layer, or by the input at a step.
    """
    sigmoid = [1 / (1 + np.exp(-values.astype(np.float64))) for values in after]
    after = np.stack([moments(values) for values in after])
    return {
        "before": np.stack([moments(values) for values in before]),
        "after": after,
        # What one unit spreads over the images: root mean square over the units.
        "spread": np.log10(np.sqrt((after[:, 1] ** 2).mean(axis=-1))),
        "saturated": np.array([(4 * h * (1 - h) < SATURATED).mean() for h in sigmoid]),
        "gradient": np.log10(np.maximum(np.asarray(gradient, np.float64), 1e-45)),
    }


def summary(course, start):
    """course: `examined` before training and after each pass; start: at the usual scale."""
    gradient = np.array([found["gradient"] - found["gradient"][-1] for found in course])

    def drifts(which):
        return np.array([drift(a[which], b[which]) for a, b in zip(course, course[1:], strict=False)])

    return {
        "saturated": np.mean([found["saturated"] for found in course[1:]]),
        "decades": np.abs(gradient[:, 0]).mean(),
        "gradient": gradient.mean(axis=0),
        "start gradient": start["gradient"] - start["gradient"][-1],
        "start spread": start["spread"],
        "start saturated": start["saturated"].mean(),
        "drift": drifts("after").mean(axis=0),
        "drift before": drifts("before").mean(),
    }


def length(values):
    """Euclidean, of all values."""
    return float(np.sqrt((values.astype(np.float64) ** 2).sum()))


# --- the deep networks ---


def make_deep(net, name, seed, settings):
    """A stack of networks, one for each of ``settings``, pairs (factor, rate)."""
    sizes = (PIXELS, *[UNITS] * DEPTH, CLASSES)
    factors = np.array([factor for factor, _ in settings], np.float32)
    scale = np.ones((len(settings), DEPTH + 1), np.float32)
    if NORMS[name] is None:
        scale[:, :-1] = factors[:, None]
    seeds = [seed] * len(settings)
    return FeedForward(seeds, NORMS[name], sizes, scale, nonlinearity=NETS[net], gain=factors)


def train_deep(data, networks, seed, settings, passes, on_pass, on_update=lambda: None):
    count = len(settings)
    chosen, rates = [data.without_fold(seed % FOLDS)] * count, [rate for _, rate in settings]
    x, labels = data.train_x, data.train_labels
    train_stack(networks, x, labels, chosen, [seed] * count, rates, BATCH, passes, on_pass, on_update)


def try_deep(data, net, name, seed, grid, passes):
    """Accuracy on the held-out fold, mean over the passes, of each setting."""
    networks, held, found = make_deep(net, name, seed, grid), data.fold == seed % FOLDS, []

    def on_pass():
        right = networks.logits(data.train_x[held]).argmax(axis=2) == data.train_labels[held, None]
        found.append(right.mean(axis=0))

    train_deep(data, networks, seed, grid, passes, on_pass)
    return np.mean(found, axis=0)


def examine_deep(networks, x, labels):
    """The first network of a stack, in training mode; a copy, for the running statistics stay."""
    own = networks.part([0])
    before, after = zip(*own.summed_inputs(x), strict=True)
    gradients = own.layers(own.losses_and_gradients(x[:, None], labels[:, None])[1])[:-1]
    return examined([z[:, 0] for z in before], [a[:, 0] for a in after], [length(g.weight) for g in gradients])


def gradient_shift(networks, old, x, labels):
    """How far an update of the layers below a layer moves the gradient of its weights (Santurkar et al. 2018,
    definition 2.1): log10 of the length of the change over that of the gradient, for the hidden layers from
    the second on. old (1, P): the values of the stack of one before the update."""
    own, found = networks.part([0]), []

    def gradient(values, layer):
        own.values = values
        return own.layers(own.losses_and_gradients(x[:, None], labels[:, None])[1])[layer].weight

    for layer in range(1, DEPTH):
        end = own._end(layer)
        mixed = np.concatenate([networks.values[:, :end], old[:, end:]], axis=1)
        usual = gradient(old, layer)
        change = length(gradient(mixed, layer) - usual)
        found.append(np.log10(max(change, 1e-45) / max(length(usual), 1e-45)))
    return np.array(found)


def from_below(networks, old, x):
    """How much the changes of a layer's units by those of the layers below are alike, mean over the layers.
    old: the stack before them."""
    apply = {"sigmoid": lambda a: 1 / (1 + np.exp(-a)), "relu": lambda a: np.maximum(a, 0)}[old.nonlinearity]
    found = []
    pairs = zip(old.summed_inputs(x), networks.summed_inputs(x), strict=True)
    for (_, a), (_, b), layer in zip(*zip(*pairs, strict=True), old.layers(old.values)[1:-1], strict=False):
        found.append((a, b, layer))
    return apply, found


def follow_deep(data, net, name, seed, setting, passes):
    networks = make_deep(net, name, seed, [setting])
    x, labels = probe_images(data, seed)
    start = examine_deep(make_deep(net, name, seed, [(1, 0.0)]), x, labels)
    course, accuracies, shifts, alike = [examine_deep(networks, x, labels)], [], [], []
    updates, old, last = 0, networks.values, networks.part([0])

    def on_update():
        nonlocal updates, old
        if updates % (800 // BATCH) == 0:
            shifts.append(gradient_shift(networks, old, x[:SHIFTED], labels[:SHIFTED]))
        updates, old = updates + 1, networks.values

    def on_pass():
        nonlocal last
        course.append(examine_deep(networks, x, labels))
        alike.append(correlation_from_below(last, networks, x))
        last = networks.part([0])
        accuracies.append(float((networks.logits(data.test_x)[:, 0].argmax(axis=1) == data.test_labels).mean()))

    train_deep(data, networks, seed, [setting], passes, on_pass, on_update)
    more = {"accuracy": accuracies, "shift": np.mean(shifts), "alike": np.mean(alike)}
    return {**summary(course, start), **more}
