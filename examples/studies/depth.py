"""Deep networks and recurrent networks of sigmoids, followed while they learn the digits."""

import math

import numpy as np
from nets import EPS, FeedForward, accuracy, activated, train_on_digits
from recurrent import scale
from study_data import CLASSES, PIXELS

import lnrnn
from lnrnn.speakers import SequenceClassifier, TrainingSettings, train

DEPTH, STEPS, UNITS = 8, 16, 32  # layers of the deep networks, steps of the recurrent network, units
NORMS = {"no norm": None, "LN": "layer", "BN": "batch"}
NETS = {"deep": "sigmoid", "RNN": "sigmoid", "ReLU": "relu"}  # "ReLU" is also a deep network
BATCH = 32
LARGEST_NORM = 1.0  # longer gradients of the recurrent network are scaled to this length
PROBED, SHIFTED = 200, 100  # numbers of training images to measure networks, and shifts of gradients
REACHED = 0.8  # speed is the number of epochs to this test accuracy
USUAL = ", usual"  # suffix of results with factor 1, if a network has other factors too
TIMES = math.log(1.25), "times"  # margin and unit
SATURATED = 0.1  # a sigmoid with less than this share of its greatest slope, 1/4, is saturated

# --- measures -----------------------------------------------------------------------------------------------


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


def probe_images(data, seed):
    """Returns the first training images of ``seed``, and their labels."""
    chosen = data.learnt(seed)[:PROBED]
    return data.train_x[chosen], data.train_labels[chosen]


# --- the deep networks --------------------------------------------------------------------------------------


def make_deep(net, name, seed, settings):
    """Returns a stack of networks, one for each pair (factor, rate) of ``settings``."""
    factors = np.array([factor for factor, _ in settings], np.float32)
    weights = np.ones((len(settings), DEPTH + 1), np.float32)
    if NORMS[name] is None:
        weights[:, :-1] = factors[:, None]
    sizes, seeds = (PIXELS, *[UNITS] * DEPTH, CLASSES), [seed] * len(settings)
    return FeedForward(seeds, NORMS[name], sizes, weights, nonlinearity=NETS[net], gain=factors)


def try_deep(data, net, name, seed, grid, passes):
    """Returns for each setting the accuracy on the held-out fold, averaged over epochs."""
    networks, held, found = make_deep(net, name, seed, grid), data.held(seed), []
    on_pass = lambda: found.append(accuracy(networks, data.train_x[held], data.train_labels[held]))  # noqa: E731
    train_on_digits(networks, [seed] * len(grid), [rate for _, rate in grid], BATCH, passes, on_epoch=on_pass)
    return np.mean(found, axis=0)


def gradients(stack, x, labels):
    return stack.layers(stack.losses_and_gradients(x[:, None], labels[:, None])[1])


def examine_deep(networks, x, labels):
    """Examines a copy of a stack's first network in training mode. The original's statistics stay."""
    own = networks.part([0])
    before, after = zip(*own.summed_inputs(x), strict=True)
    sizes = [length(g.weight) for g in gradients(own, x, labels)[:-1]]
    return examined([z[:, 0] for z in before], [a[:, 0] for a in after], sizes)


def gradient_shift(networks, old, x, labels):
    """Returns the shift of a layer's gradient by an update of the layers below it (Santurkar et al. 2018,
    definition 2.1). It is log10 of the change's length over the gradient's length, averaged over hidden
    layers from the second on. old (1, P): the parameters before the update; the stack has one network."""
    own, found = networks.part([0]), []
    for layer in range(1, DEPTH):
        end, of = own._end(layer), []
        for own.values in (old, np.concatenate([networks.values[:, :end], old[:, end:]], axis=1)):
            of.append(gradients(own, x, labels)[layer].weight)
        found.append(np.log10(max(length(of[1] - of[0]), 1e-45) / max(length(of[0]), 1e-45)))
    return np.array(found)


def correlation_from_below(old, new, x):
    """Returns the `correlation` of changes of W h, averaged over hidden layers from the second on. h changes
    from network ``old`` to ``new``, W does not."""
    found, inputs = [], zip(old.summed_inputs(x), new.summed_inputs(x), strict=True)
    for layer, ((_, before), (_, after)) in zip(old.layers(old.values)[1:-1], inputs, strict=False):
        moved = activated(old.nonlinearity, after[:, 0]) - activated(old.nonlinearity, before[:, 0])
        found.append(correlation(np.einsum("bi,oi->bo", moved, layer.weight[0])))
    return np.mean(found)


def follow_deep(data, net, name, seed, setting, passes):
    """Returns the results of one network, by name."""
    networks, (x, labels) = make_deep(net, name, seed, [setting]), probe_images(data, seed)
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
        accuracies.append(accuracy(networks, data.test_x, data.test_labels)[0])

    train_on_digits(networks, [seed], [setting[1]], BATCH, passes, on_epoch=on_pass, on_update=on_update)
    return {**summary(course), "accuracy": accuracies, "shift": np.mean(shifts), "alike": np.mean(alike)}


# --- the recurrent network ----------------------------------------------------------------------------------


def make_recurrent(name, seed, factor):
    rnn = lnrnn.RNN(PIXELS // STEPS, UNITS, nonlinearity="sigmoid", norm=NORMS[name], seed=seed)
    scale(rnn, factor)
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
    chosen, rng = data.learnt(seed), np.random.default_rng([1, seed])
    settings = TrainingSettings(passes, BATCH, rate, LARGEST_NORM, noise=0.0)
    train(network, *as_sequences(data.train_x[chosen]), data.train_labels[chosen], settings, rng, on_pass)


def try_recurrent(data, net, name, seed, grid, passes):
    held, scores = data.held(seed), []
    for factor, rate in grid:
        network, found = make_recurrent(name, seed, factor), []

        def on_pass(network=network, found=found):
            found.append(accuracy_of(network, data.train_x[held], data.train_labels[held]))

        train_recurrent(data, network, seed, rate, passes, on_pass)
        scores.append(np.mean(found))
    return np.array(scores)


def follow_recurrent(data, net, name, seed, setting, passes):
    network, accuracies, (x, labels) = make_recurrent(name, seed, setting[0]), [], probe_images(data, seed)
    course = [examine_recurrent(network, name, x, labels)]

    def on_pass():
        course.append(examine_recurrent(network, name, x, labels))
        accuracies.append(accuracy_of(network, data.test_x, data.test_labels))

    train_recurrent(data, network, seed, setting[1], passes, on_pass)
    return {**summary(course), "accuracy": accuracies}


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


def natural(decades):
    return math.log(10) * decades


# {question: (function of results that returns values (S,), where less is better; margin; unit)}.
QUESTIONS = {
    "saturates less": (lambda own: own["saturated"], 0.05, "points"),
    "gradients reach further": (lambda own: natural(own["decades"]), natural(0.5), "times"),
    "trains faster": (lambda own: np.log(passes_to(own["accuracy"])), *TIMES),
    "inputs drift less": (lambda own: natural(own["drift"].mean(axis=1)), *TIMES),
    "W h drifts less": (lambda own: natural(own["drift before"]), *TIMES),
    "gradients shift less": (lambda own: natural(own["shift"]), *TIMES),
}


def less(results, question, name, net):
    """Returns the value of the network without a norm minus the value of norm ``name``, for each seed."""
    of, usual = QUESTIONS[question.split(" at ")[0]][0], USUAL if "usual" in question else ""
    return of(results[f"{net}, no norm{usual}"]) - of(results[f"{net}, {name}{usual}"])
