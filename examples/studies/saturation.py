r"""
Saturation, drift and depth
===========================

Posts explain norms as follows. A sigmoid is flat if its input is large. It is then saturated, and its
gradient vanishes. While the layers below a layer learn, the layer's inputs drift into saturation, more in
deep networks ("网络层数越深, 漂移现象越明显"). A norm prevents this drift, so gradients do not vanish and
training is faster. Layer norm (LN) is said to help most with ReLU ("尤其对于ReLU"). This study compares LN,
batch norm (BN) and no norm.

.. math::

   h_l = \mathrm{sigmoid}\left(g \, \frac{W h_{l-1} - \mu}{\sigma} + b\right) \qquad
   \mathrm{sigmoid}'(a) \le \frac{1}{4}

Here a sigmoid is saturated if its slope is below a tenth of the greatest slope.
"""

import math

import numpy as np
from common import (
    CLASSES,
    FOLDS,
    PIXELS,
    Check,
    Clause,
    Study,
    best,
    load_digits,
    percent,
    plus_minus,
    show,
    side_by_side,
    table,
)
from nets import EPS, FeedForward
from nets import train as train_stack
from plots import STYLES, lines, tidy

import lnrnn
from lnrnn.speakers import SequenceClassifier, TrainingSettings, train

# Constants to change.
NORMS = {"no norm": None, "LN": "layer", "BN": "batch"}
NETS = {"deep": "sigmoid", "RNN": "sigmoid", "ReLU": "relu"}  # "ReLU" is also a deep network
DEPTH, STEPS, UNITS = 8, 16, 32  # layers of the deep networks, steps of the recurrent network, units
# The initial gains to try; without a norm, factors of the usual weights of the hidden layers.
FACTORS = {"deep": (1, 2, 4, 8, 16), "RNN": (1, 2, 4, 8, 16), "ReLU": (1,)}
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
BATCH, PASSES = 32, 20
LARGEST_NORM = 1.0  # longer gradients of the recurrent network are scaled to this length
PROBED, SHIFTED = 200, 100  # numbers of training images to measure networks, and shifts of gradients
SATURATED = 0.1  # a sigmoid with less than this share of its greatest slope, 1/4, is saturated
REACHED = 0.8  # speed is the number of epochs to this test accuracy

SIZE = (10.0, 10.0)


def draw(results, figure):
    """Draws gradients, speed, and drift by layer."""
    rows = figure.subplots(3, 2)
    for axes, net in zip(rows[0], ("deep", "RNN"), strict=True):
        places = range(1, (DEPTH if net == "deep" else STEPS) + 1)
        axes.set_ylim(-13.5, 1.5)
        lines(axes, places, {name: results[f"{net}, {name}"]["gradient"] for name in NORMS})
        for name in NORMS:
            start = results[f"{net}, {name}, usual"]["start gradient"].mean(axis=0)
            axes.plot(places, start, ":", color=STYLES[name][0], marker=STYLES[name][1], ms=4)
        axes.plot([], [], "-", color="#333333", label="tuned, in training")
        axes.plot([], [], ":", color="#333333", label="usual scale, before training")
        axes.legend(frameon=False, loc="lower right")
    labels = {"ylabel": "gradient over that at the end, log10"}
    titles = "Deep, untuned: only BN keeps gradients", "Recurrent, untuned: only BN keeps them"
    tidy(rows[0][0], titles[0], xlabel="hidden layer (8: next to the loss)", **labels)
    tidy(rows[0][1], titles[1], xlabel="time step (16: next to the loss)", **labels)
    titles = "Deep: BN learns 4 times as fast", "Recurrent: LN learns more slowly"
    for axes, net, title in zip(rows[1], ("deep", "RNN"), titles, strict=True):
        axes.set_ylim(0, 100)
        right = {name: 100 * results[f"{net}, {name}"]["accuracy"] for name in NORMS}
        lines(axes, range(1, right["LN"].shape[1] + 1), right)
        axes.set_xticks(range(0, right["LN"].shape[1] + 1, 5))
        axes.axhline(100 * REACHED, color="#999999", lw=1)
        tidy(axes, title, xlabel="passes over the images", ylabel=f"{net}: right on the test images, %")
    titles = "With LN sigmoid layers drift no less", "With ReLU LN changes little"
    for axes, net, title in zip(rows[2], ("deep", "ReLU"), titles, strict=True):
        axes.set_ylim(-2, 0.5)
        lines(axes, range(1, DEPTH + 1), {name: results[f"{net}, {name}"]["drift"] for name in NORMS})
        tidy(axes, title, xlabel="hidden layer", ylabel=f"{net}: drift a pass, log10")


show("saturation", draw, SIZE)

# %%
# Result
# ------
# Networks without a norm have the best of five scales of initial weights, so that the comparison is fair.
# Factors compare with these networks. "Deep" and "recurrent" networks have sigmoids.
#
# - **Networks with a norm learn faster.** BN: confirmed in the deep network (4.1 times [3.4, 4.9]), unclear
#   at our margin of 1.25 in the recurrent one (1.3 times [1.0, 1.6]). LN: unclear in the deep one (1.1 times
#   [1.0, 1.3]), refuted in the recurrent one, where it is slower (0.7 times [0.6, 0.8]).
# - **At the usual scale of weights both norms are faster: confirmed.** The deep network without a norm does
#   not reach 80 % within 20 epochs with any seed. So LN is at least 2.7 times as fast there, and BN at least
#   10 times. In the recurrent network they are at least 1.5 and 3.6 times as fast.
# - **Norms reduce saturation: confirmed, except for LN in the deep network**, where 43 % of the units are
#   saturated, against 35 % without a norm.
# - **Norms keep gradients from vanishing: refuted.** At the usual scale gradients vanish without saturation,
#   because a sigmoid's slope is at most 1/4. Over eight layers they shrink to 1/1600 without a norm, and to
#   1/560 with LN, but not with BN. With tuned scales they vanish in no network, and neither norm triples
#   them.
# - **Inputs drift less.** BN: confirmed (11 and 14 times less), almost by definition. LN: refuted, they drift
#   more (1.3 times in the deep network, 1.2 times in the recurrent one).
# - **The deeper the layer, the more drift: confirmed at margin 0.** The upper half of the layers drifts 1.19
#   times as much as the lower half [1.14, 1.25], with ReLU 1.23 times.
# - **LN helps most with ReLU: unclear in drift, refuted in speed.** With ReLU LN changes drift (0.97 times
#   [0.81, 1.17]) and speed (1.01 times [0.90, 1.12]) little. With sigmoids LN increases drift, so by this
#   measure it helps more with ReLU (1.27 times [1.04, 1.54]).
# - **With LN a unit distinguishes images less in each layer: confirmed** at initial weights. A unit's spread
#   over the images falls to 1/791 over eight layers, and BN keeps it. After training, BN ends 1.9 points
#   above LN in the deep network [0.3, 3.6], which is unclear at our margin of 0.5.
#
# Advice
# ------
# In deep sigmoid networks use BN. If you cannot, use larger initial weights or, with LN, larger initial
# gains. LN is then not clearly faster than no norm.
#
# Try it yourself
# ---------------
# Set ``DEPTH = 3``: do norms still matter? Set ``REACHED = 0.9``: which network learns fastest then?
#
# How it was measured
# -------------------
# The data are scikit-learn's digits. Deep networks have 8 layers of 32 units. The recurrent network has 32
# units, and reads an image in 16 steps of four pixels. Adam trains for 20 epochs in batches of 32. Scale and
# rate are the best on held-out images, seeds 0 to 4. Results come from seeds 5 to 24. Speed is the number of
# epochs to 80 % of the test images. Drift is the movement of a layer's distribution within an epoch, over its
# spread. We chose the margins: 1.25 times, 5 points of saturation, half a decade of gradient, half a point at
# the end. The intervals of each question hold jointly at 95 % (Bonferroni), and are not corrected for the
# number of questions.


def moments(values):
    """Returns mean and deviation of values (images, units) over the images, float64 (2, units)."""
    values = values.astype(np.float64)
    return np.stack([values.mean(axis=0), values.std(axis=0)])


def drift(old, new):
    """Returns for each layer log10 of the distance between its old and new distribution, over their spread.

    old, new: `moments` of each layer, (layers, 2, units). The distance is the Wasserstein distance of normal
    distributions, as root mean square over the units. The spread is that of both, averaged."""
    moved = ((new - old) ** 2).sum(axis=1).mean(axis=-1)
    spread = (old[:, 1] ** 2 + new[:, 1] ** 2).mean(axis=-1) / 2
    tiny = np.finfo(np.float64).tiny
    return 0.5 * (np.log10(np.maximum(moved, tiny)) - np.log10(np.maximum(spread, tiny)))


def correlation(changes):
    """Returns the mean squared correlation, 0 to 1, of two units' changes (images, units)."""
    squared = np.corrcoef(changes.T.astype(np.float64)) ** 2
    return squared[~np.eye(len(squared), dtype=bool)].mean()


def examined(before, after, gradient):
    """Returns measures of a network on the probed images for each place: a hidden layer or a time step.

    before, after: for each place values (images, units) before the norm, and arguments of the nonlinearity.
    gradient: the length of the loss's gradient with respect to the weights of each layer, or the input at
    each step."""
    sigmoid = [1 / (1 + np.exp(-values.astype(np.float64))) for values in after]
    after = np.stack([moments(values) for values in after])
    return {
        "before": np.stack([moments(values) for values in before]),
        "after": after,
        # The spread of a unit over the images, as root mean square over the units.
        "spread": np.log10(np.sqrt((after[:, 1] ** 2).mean(axis=-1))),
        "saturated": np.array([(4 * h * (1 - h) < SATURATED).mean() for h in sigmoid]),
        "gradient": np.log10(np.maximum(np.asarray(gradient, np.float64), 1e-45)),
    }


def summary(course):
    """Returns results by name. course: results of `examined` before training and after each epoch."""
    gradient = np.array([found["gradient"] - found["gradient"][-1] for found in course])

    def drifts(which):
        return np.array([drift(a[which], b[which]) for a, b in zip(course, course[1:], strict=False)])

    return {
        "saturated": np.mean([found["saturated"] for found in course[1:]]),
        "decades": np.abs(gradient[:, 0]).mean(),
        "gradient": gradient.mean(axis=0),
        "start gradient": gradient[0],
        "start spread": course[0]["spread"][[0, -1]],
        "start saturated": course[0]["saturated"].mean(),
        "drift": drifts("after").mean(axis=0),
        "drift before": drifts("before").mean(),
    }


def length(values):
    return float(np.sqrt((values.astype(np.float64) ** 2).sum()))


# --- the deep networks ---


def make_deep(net, name, seed, settings):
    """Returns a stack of networks, one for each pair (factor, rate) of ``settings``."""
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
    """Returns for each setting the accuracy on the held-out fold, averaged over epochs."""
    networks, held, found = make_deep(net, name, seed, grid), data.fold == seed % FOLDS, []

    def on_pass():
        right = networks.logits(data.train_x[held]).argmax(axis=2) == data.train_labels[held, None]
        found.append(right.mean(axis=0))

    train_deep(data, networks, seed, grid, passes, on_pass)
    return np.mean(found, axis=0)


def examine_deep(networks, x, labels):
    """Examines a copy of a stack's first network in training mode. The original's statistics stay."""
    own = networks.part([0])
    before, after = zip(*own.summed_inputs(x), strict=True)
    gradients = own.layers(own.losses_and_gradients(x[:, None], labels[:, None])[1])[:-1]
    return examined(
        [z[:, 0] for z in before], [a[:, 0] for a in after], [length(g.weight) for g in gradients]
    )


def gradient_shift(networks, old, x, labels):
    """Returns the shift of a layer's gradient by an update of the layers below it (Santurkar et al. 2018,
    definition 2.1). It is log10 of the change's length over the gradient's length, averaged over hidden
    layers from the second on. old (1, P): the parameters before the update; the stack has one network."""
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


def correlation_from_below(old, new, x):
    """Returns the `correlation` of changes of W h, averaged over hidden layers from the second on. h changes
    from network ``old`` to ``new``, W does not."""
    found = []
    inputs = zip(old.summed_inputs(x), new.summed_inputs(x), strict=True)
    for layer, ((_, before), (_, after)) in zip(old.layers(old.values)[1:-1], inputs, strict=False):
        moved = activated(old.nonlinearity, after[:, 0]) - activated(old.nonlinearity, before[:, 0])
        found.append(correlation(np.einsum("bi,oi->bo", moved, layer.weight[0])))
    return np.mean(found)


def activated(nonlinearity, a):
    return np.maximum(a, 0) if nonlinearity == "relu" else 0.5 * np.tanh(0.5 * a) + 0.5


def follow_deep(data, net, name, seed, setting, passes):
    networks = make_deep(net, name, seed, [setting])
    x, labels = probe_images(data, seed)
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
        named = networks.logits(data.test_x)[:, 0].argmax(axis=1)
        accuracies.append(float((named == data.test_labels).mean()))

    train_deep(data, networks, seed, [setting], passes, on_pass, on_update)
    more = {"accuracy": accuracies, "shift": np.mean(shifts), "alike": np.mean(alike)}
    return {**summary(course), **more}


def probe_images(data, seed):
    """Returns the first training images of ``seed``, and their labels."""
    chosen = data.without_fold(seed % FOLDS)[:PROBED]
    return data.train_x[chosen], data.train_labels[chosen]


# --- the recurrent network ---


def make_recurrent(name, seed, factor):
    rnn = lnrnn.RNN(PIXELS // STEPS, UNITS, nonlinearity="sigmoid", norm=NORMS[name], seed=seed)
    for parameter, value in rnn.parameters().items():
        if parameter.startswith("gain") or (parameter.startswith("weight") and NORMS[name] is None):
            setattr(rnn, parameter, value * np.float32(factor))
    return SequenceClassifier(rnn, CLASSES, np.random.default_rng([2, seed]))


def as_sequences(x):
    """Divides images x (N, PIXELS) into steps: returns (STEPS, N, PIXELS / STEPS), and lengths (N,)."""
    steps = np.ascontiguousarray(x.reshape(len(x), STEPS, -1).transpose(1, 0, 2))
    return steps, np.full(len(x), STEPS)


def summed_inputs(parameters, norm, x, y):
    """Returns for each step W_ih x_t + W_hh h_{t-1} and the argument of the sigmoid, (B, units) each, in
    training mode. parameters: of an RNN of one layer, by name. x (T, B, I), y (T, B, units)."""
    gain = parameters.get("gain_l0")
    # Without a norm there are two biases, as in torch.nn: bias_ih and bias_hh.
    bias = np.sum([value for name, value in parameters.items() if name.startswith("bias")], axis=0)
    before, after = [], []
    for x_t, h_t in zip(x, np.concatenate([np.zeros_like(y[:1]), y[:-1]]), strict=True):
        z = np.einsum("bi,oi->bo", x_t, parameters["weight_ih_l0"])
        z += np.einsum("bi,oi->bo", h_t, parameters["weight_hh_l0"])
        before.append(z)
        if norm is None:
            after.append(z + bias)
        elif norm == "layer":
            after.append(lnrnn.layer_norm(z, z.shape[1], gain, bias, EPS))
        else:
            after.append(lnrnn.batch_norm(z, None, None, gain, bias, True, 0.0, EPS))
    return before, after


def examine_recurrent(network, name, x, labels):
    own = make_recurrent(name, 0, 1)  # examine a copy, so that the running statistics stay
    own.set_parameters(network.parameters())
    steps, lengths = as_sequences(x)
    y = own.rnn.forward_train(steps)[0]
    gx = own.loss_and_all_gradients(steps, lengths, labels)[2]
    before, after = summed_inputs(own.rnn.parameters(), NORMS[name], steps, y)
    return examined(before, after, [length(g) for g in gx])


def accuracy_of(network, x, labels):
    return float((network.predict(*as_sequences(x)) == labels).mean())


def train_recurrent(data, network, seed, rate, passes, on_pass):
    chosen = data.without_fold(seed % FOLDS)
    settings = TrainingSettings(passes, BATCH, rate, LARGEST_NORM, noise=0.0)
    rng = np.random.default_rng([1, seed])
    steps, lengths = as_sequences(data.train_x[chosen])
    train(network, steps, lengths, data.train_labels[chosen], settings, rng, on_pass)


def try_recurrent(data, net, name, seed, grid, passes):
    held = data.fold == seed % FOLDS
    x, labels, scores = data.train_x[held], data.train_labels[held], []
    for factor, rate in grid:
        network, found = make_recurrent(name, seed, factor), []

        def on_pass(network=network, found=found):
            found.append(accuracy_of(network, x, labels))

        train_recurrent(data, network, seed, rate, passes, on_pass)
        scores.append(np.mean(found))
    return np.array(scores)


def follow_recurrent(data, net, name, seed, setting, passes):
    network, accuracies = make_recurrent(name, seed, setting[0]), []
    x, labels = probe_images(data, seed)
    course = [examine_recurrent(network, name, x, labels)]

    def on_pass():
        course.append(examine_recurrent(network, name, x, labels))
        accuracies.append(accuracy_of(network, data.test_x, data.test_labels))

    train_recurrent(data, network, seed, setting[1], passes, on_pass)
    return {**summary(course), "accuracy": accuracies}


# --- tuning, measuring, verdicts ---

USUAL = ", usual"  # suffix of results with factor 1, if a network has other factors too
START = ("start gradient", "start spread", "start saturated", "accuracy")  # the results kept for factor 1

CASES = [(net, name) for net in NETS for name in NORMS]


def grid_of(net, quick):
    factors = FACTORS[net][:3:2] if quick else FACTORS[net]
    return [(factor, rate) for factor in factors for rate in (RATES[2:3] if quick else RATES)]


def tune(seeds, quick):
    """Returns for each network and norm the factor and rate with the best held-out accuracy, and the best
    rate for factor 1, the usual scale. Accuracies are averaged over epochs and seeds."""
    data, settings = load_digits(), {}

    def one(run):
        net, name, seed = run
        attempt = try_recurrent if net == "RNN" else try_deep
        return attempt(data, net, name, seed, grid_of(net, quick), 2 if quick else PASSES)

    scores = iter(side_by_side(one, [(*case, seed) for case in CASES for seed in seeds], "settings"))
    for net, name in CASES:
        grid, means = grid_of(net, quick), np.mean([next(scores) for _ in seeds], axis=0)
        settings[f"{net}, {name}"] = best(grid, means)
        usual = len(grid) // len({factor for factor, _ in grid})
        if usual < len(grid):
            settings[f"{net}, {name}{USUAL}"] = best(grid[:usual], means[:usual])
    return settings


def measure(seeds, settings, quick):
    """Returns results by network and norm. Names that end with USUAL have the usual scale of weights."""
    data, results = load_digits(), {}

    def one(run):
        case, seed = run
        net, name = case.split(", ")[:2]
        follow = follow_recurrent if net == "RNN" else follow_deep
        return follow(data, net, name, seed, settings[case], 2 if quick else PASSES)

    found = iter(side_by_side(one, [(case, seed) for case in settings for seed in seeds], "networks"))
    for case in settings:
        own = [next(found) for _ in seeds]
        kept = [what for what in own[0] if what in START or not case.endswith(USUAL)]
        results[case] = {what: np.round([each[what] for each in own], 4) for what in kept}
    return results


def passes_to(accuracy, level=REACHED):
    """accuracy (S, epochs). Returns how many epochs pass until accuracy, interpolated from chance at the
    start, first reaches ``level``, (S,). If it never does, returns the number of all epochs."""
    found = []
    for own in accuracy:
        own = np.concatenate([[1 / CLASSES], own])
        above = np.flatnonzero(own >= level)
        end = int(above[0]) if len(above) else len(own) - 1
        found.append(end - (own[end] - level) / (own[end] - own[end - 1]) if len(above) else end)
    return np.array(found, float)


def never(own, level=REACHED):
    """Returns whether a network does not reach the level, so that `passes_to` is a lower bound."""
    return bool((own["accuracy"].max(axis=1) < level).any())


def natural(decades):
    return math.log(10) * decades


# {question: (function of results that returns values (S,), where less is better; margin; unit)}.
QUESTIONS = {
    "saturates less": (lambda own: own["saturated"], 0.05, "points"),
    "gradients reach further": (lambda own: natural(own["decades"]), natural(0.5), "times"),
    "trains faster": (lambda own: np.log(passes_to(own["accuracy"])), math.log(1.25), "times"),
    "inputs drift less": (lambda own: natural(own["drift"].mean(axis=1)), math.log(1.25), "times"),
    "W h drifts less": (lambda own: natural(own["drift before"]), math.log(1.25), "times"),
    "gradients shift less": (lambda own: natural(own["shift"]), math.log(1.25), "times"),
}


def less(results, question, name, net, other="no norm"):
    """Returns the value of network ``other`` minus the value of norm ``name``, for each seed."""
    what = QUESTIONS[question.split(" at ")[0]][0]
    usual = USUAL if "usual" in question else ""
    return what(results[f"{net}, {other}{usual}"]) - what(results[f"{net}, {name}{usual}"])


def clauses(results):
    found, sigmoid, relu = [], results["deep, no norm"], results["ReLU, no norm"]

    def gains(questions, nets):
        cases = [(question, net, name) for question in questions for net in nets for name in ("LN", "BN")]
        for question, net, name in cases:
            _, margin, unit = QUESTIONS[question.split(" at ")[0]]
            values = less(results, question, name, net)
            least = " (at least)" if "usual" in question and never(results[f"{net}, no norm{USUAL}"]) else ""
            found.append(Clause(f"{net}, {name}: {question}{least}", values, margin, unit, 4))

    both = "deep", "RNN"
    gains(["trains faster at usual scale", *list(QUESTIONS)[:4]], both)
    gains(list(QUESTIONS)[4:], ["deep"])
    for net, own in (("deep", sigmoid), ("ReLU", relu)):
        values = own["drift"][:, DEPTH // 2 :].mean(axis=1) - own["drift"][:, : DEPTH // 2].mean(axis=1)
        text = f"{net}, no norm: deeper drifts more"
        found.append(Clause(text, natural(values), math.log(1.25), "times", 2))
    for question, helps in (("inputs drift less", "drift"), ("trains faster", "speed")):
        gained = [less(results, question, "LN", net) for net in ("ReLU", "deep")]
        texts = f"ReLU, LN: {question}", f"LN helps {helps} more with ReLU"
        for text, values in zip(texts, (gained[0], gained[0] - gained[1]), strict=True):
            found.append(Clause(text, values, math.log(1.25), "times", 5))
    found.append(Clause("changes more alike with ReLU", relu["alike"] - sigmoid["alike"], 0.05, "points", 5))
    for net in NETS:
        values = results[f"{net}, BN"]["accuracy"][:, -1] - results[f"{net}, LN"]["accuracy"][:, -1]
        found.append(Clause(f"{net}: BN ends better than LN", values, 0.005, "points", 4))
    spread = {name: results[f"deep, {name}, usual"]["start spread"] for name in ("LN", "BN")}
    lost = spread["LN"][:, 0] - spread["LN"][:, -1]
    found.append(Clause("deep, LN: spread over images lost", natural(lost), natural(0.5), "times", 4))
    return [*found, Check("deep, BN: spread over images kept", bool(np.abs(spread["BN"]).max() < 0.01))]


def tables(results):
    cells = {
        "saturated sigmoids, %": lambda own: percent(own["saturated"]),
        "gradient, first to last, decades": lambda own: plus_minus(own["decades"]),
        "  at the usual scale, before training": lambda own: plus_minus(own["start gradient"][:, 0]),
        f"passes to {100 * REACHED:.0f} %": lambda own: plus_minus(passes_to(own["accuracy"]), 1),
        "right at the end, %": lambda own: percent(own["accuracy"][:, -1]),
        "  at the usual scale": lambda own: percent(own["accuracy"][:, -1]),
        "drift of f's inputs, log10": lambda own: plus_minus(own["drift"].mean(axis=1)),
        "drift of W h, log10": lambda own: plus_minus(own["drift before"]),
        "shift of gradients, log10": lambda own: plus_minus(own["shift"]) if "shift" in own else "-",
        "alike, %": lambda own: percent(own["alike"]) if "alike" in own else "-",
    }

    def rows(net):
        for row, cell in list(cells.items())[net == "ReLU" :]:
            usual = USUAL if "usual" in row and net != "ReLU" else ""
            yield [row, *(cell(results[f"{net}, {name}{usual}"]) for name in NORMS)]

    return "\n\n".join(table([net, *NORMS], rows(net)) for net in NETS)


STUDY = Study("saturation", measure, clauses, tables, draw, tune, SIZE)

if __name__ == "__main__":
    STUDY.main()
