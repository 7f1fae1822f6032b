"""Measures that studies take of norms and networks. Tests compare them with known answers."""

from collections import namedtuple

import numpy as np
from nets import EPS, FeedForward

import lnrnn
from lnrnn.packages import require

# --- formulas, by hand and by the library -------------------------------------------------------------------


def normalised(x, axis):
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + EPS)


def norms_by_hand(frames, count, seed):
    """Returns {name of a formula: the largest deviation of the library's result from it} for ``count``
    frames."""
    x = frames[np.random.default_rng(seed).choice(len(frames), count, replace=False)].astype(np.float64)
    units, mean, var = x.shape[1], x.mean(0), x.var(0)

    def batch_norm(gain=None, bias=None):
        return lnrnn.batch_norm(x, None, None, gain, bias, True, eps=EPS)

    def off(found, expected):
        return np.abs(found - expected).max()

    gains, biases, own = np.full(units, 2.0), np.full(units, 3.0), lnrnn.layer_norm(x, units, eps=EPS)
    scaled = batch_norm(gains, biases)
    gradient, _, _ = lnrnn.batch_norm_backward(x, x, weight=0 * gains, training=True, eps=EPS)
    layer = lnrnn.BatchNorm(units, momentum=1.0).train()
    layer(x)
    return {
        "LN": off(own, normalised(x, 1)),
        "BN": off(batch_norm(), normalised(x, 0)),
        "LN alone": off(own, np.concatenate([lnrnn.layer_norm(row[None], units, eps=EPS) for row in x])),
        "back": off(batch_norm(np.sqrt(var + EPS), mean), x),
        "mean is bias": off(scaled.mean(0), 3),
        "deviation is gain": off(scaled.std(0), 2 * np.sqrt(var / (var + EPS))),
        # Gain 0 and bias 1, as in the paper's supplement.
        "exchanged": off(batch_norm(0 * gains, biases / 3), 1) + np.abs(gradient).max(),
        "unbiased": off(layer.running_var / var, count / (count - 1)),
    }


def momentum(frames, momenta, count, seed, batches=40):
    """Returns the running mean of channel 0 after each batch of ``count`` frames, by momentum, in both
    definitions. Also returns the means of the last batch and of all batches."""
    rng, torch, other = np.random.default_rng(seed), {}, {}
    chosen = [frames[rng.choice(len(frames), count)] for _ in range(batches)]
    means = [batch[:, 0].mean(dtype=np.float64) for batch in chosen]
    for m in momenta:
        layer, value = lnrnn.BatchNorm(frames.shape[1], momentum=m).train(), 0.0
        torch[str(m)] = [layer(batch) is not None and layer.running_mean[0] for batch in chosen]
        if m is not None:
            other[str(m)] = [value := m * value + (1 - m) * mean for mean in means]
    return {"torch": torch, "other": other, "last": means[-1], "all": np.mean(means)}


def statistics_errors(frames, sizes, seed, draws=200):
    """Returns for each batch size the errors of a batch's mean and biased variance, divided by the standard
    deviation and by the variance. They are root mean squares over channels and random batches."""
    rng, x = np.random.default_rng([2, seed]), frames.astype(np.float64)
    mean, var, found = x.mean(0), x.var(0), {"mean": [], "variance": []}
    for size in sizes:
        batches = x[rng.integers(len(x), size=(draws, size))]
        off = (batches.mean(1) - mean) / np.sqrt(var), batches.var(1) / var - 1
        for name, values in zip(found, off, strict=True):
            found[name].append(np.sqrt(np.square(values).mean()))
    return found


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


class Fixed(FeedForward):
    """Networks whose hidden layers have the fixed gain 1 and bias 0."""

    def losses_and_gradients(self, *batch):
        losses, gradients, logits = super().losses_and_gradients(*batch)
        for layer in self.layers(gradients)[:-1]:
            layer.gain[...] = layer.bias[...] = 0
        return losses, gradients, logits


def multiply_adds(size, images, sizes=(64, 32, 32, 10)):
    """Returns the multiply-adds of an update on ``size`` images, and of BN's statistics over all ``images``.
    Backward costs twice as much as forward."""
    products = [a * b for a, b in zip(sizes, sizes[1:], strict=False)]
    return 3 * size * sum(products), images * sum(products[:-1])


def cost(networks, chosen):
    """Returns (update + exact statistics) / update in multiply-adds, for batches of 8, 32, 128."""
    counts = (multiply_adds(size, len(chosen), networks.sizes) for size in (8, 32, 128))
    return {"multiply-adds": [1 + statistics / update for update, statistics in counts]}


# --- which values share a mean ------------------------------------------------------------------------------

SHAPES = {"NC": (4, 3), "NCL": (3, 3, 4), "NCHW": (2, 3, 2, 2), "TBH": (4, 3, 5)}
CLOSE = 1e-5  # smaller differences are ignored
# A norm of lnrnn. call(x, training), state(), names of trained parameters, the gains' shape for x,
# set_gain(gain, bias), and eps.
Norm = namedtuple("Norm", "call state trained gain_shape set_gain eps")


def layer_of(layer, shape, order, gain_shape):
    """Returns the Norm of a layer for x of this shape. order: the permutation of x's axes for the layer."""

    def call(x, training):
        return layer.train(training)(x.transpose(order)).transpose(np.argsort(order))

    def set_gain(gain, bias):
        layer.weight, layer.bias = (value.reshape(layer.weight.shape) for value in (gain, bias))

    return Norm(call, layer.state_dict, ("weight", "bias"), gain_shape, set_gain, layer.eps)


def recurrent(shape, norm):
    """Returns the norm inside an RNN whose output (T, B, H) is only the normalised input (T, B, H)."""
    units = shape[2]
    rnn = lnrnn.RNN(units, units, nonlinearity="identity", norm=norm)
    rnn.weight_ih_l0, rnn.weight_hh_l0 = np.eye(units), np.zeros((units, units))

    def call(x, training):
        return rnn.forward_train(x)[0] if training else rnn(x)[0]

    def set_gain(gain, bias):
        rnn.gain_l0, rnn.bias_l0 = gain, bias

    return Norm(call, rnn.state_dict, tuple(rnn.parameters()), (1, 1, units), set_gain, norm.eps)


def norm_of(case):
    """Returns the Norm of a case, such as "BN, NCHW"."""
    name, layout = case.split(", ")
    shape = SHAPES[layout]
    if layout == "TBH" and name != "BN over all steps":
        return recurrent(shape, lnrnn.LayerNormSpec() if name == "LN" else lnrnn.BatchNormSpec())
    if name == "LN":
        return layer_of(lnrnn.LayerNorm(shape[1:]), shape, range(len(shape)), (1, *shape[1:]))
    order = (1, 2, 0) if layout == "TBH" else tuple(range(len(shape)))
    gains = [size if axis == order[1] else 1 for axis, size in enumerate(shape)]
    return layer_of(lnrnn.BatchNorm(shape[order[1]]), shape, order, gains)


def moved(call, x):
    """Returns a bool array (x.size, x.size).

    In row i, an entry is True if its output changes when value i of x grows by 1.
    """
    before, rows = call(x).ravel().copy(), []
    for place in range(x.size):
        changed = x.copy()
        changed.flat[place] += 1
        rows.append(call(changed).ravel() != before)
    return np.array(rows)


def group(moves):
    """moves: the result of `moved`. Returns the group number of each value, and whether groups are disjoint:
    whether each row of `moves` marks exactly the members of its value's group."""
    _, numbers = np.unique(moves.argmax(axis=1), return_inverse=True)
    return numbers, bool(np.array_equal(moves, numbers[:, None] == numbers[None]))


def axes_of(groups, layout):
    """groups: the group number of each value, in x's shape.

    Returns the letters of the axes along which the group of the first value extends.
    """
    members = np.argwhere(groups == groups.flat[0])
    return "".join(letter for letter, places in zip(layout, members.T, strict=True) if np.ptp(places) > 0)


def standardise(x, numbers, eps):
    """Returns the standardised x, and the mean and sigma = sqrt(var + eps) of each group. numbers: the group
    of each value."""
    counts, values = np.bincount(numbers), x.ravel().astype(np.float64)
    mean = np.bincount(numbers, values) / counts
    sigma = np.sqrt(np.bincount(numbers, (values - mean[numbers]) ** 2) / counts + eps)
    return ((values - mean[numbers]) / sigma[numbers]).reshape(x.shape), mean, sigma


def probe(norm, layout, dtype, seed):
    """Measures one norm. A group is the values that share a mean. Returns a dict:

    groups: the group number of each value. exact: whether each group's mean and deviation reproduce the
    output. over, infer: the axes of a group in training and at inference. gains, stored: counts of trained
    gains and of stored numbers. back: how many groups the norm leaves unchanged with gain sigma, bias mu."""
    x = np.random.default_rng(seed).standard_normal(SHAPES[layout]).astype(dtype)
    numbers, disjoint = group(moved(lambda x: norm.call(x, True), x))
    expected, mean, sigma = standardise(x, numbers, norm.eps)
    exact = np.abs(norm.call(x, True) - expected).max() <= CLOSE
    infer, _ = group(moved(lambda x: norm.call(x, False), x))
    state = norm.state()
    stored = {name: value.size for name, value in state.items() if name not in norm.trained}
    trained = [state[name].size for name in norm.trained if not name.startswith("weight_")]
    # If several groups share a gain, it becomes the sigma of the first group.
    of_gain = np.broadcast_to(np.arange(np.prod(norm.gain_shape)).reshape(norm.gain_shape), x.shape)
    first = numbers[np.unique(of_gain, return_index=True)[1]]
    norm.set_gain(sigma[first].astype(dtype), mean[first].astype(dtype))
    off = np.abs(norm.call(x, True) - x).ravel() > CLOSE * np.sqrt(np.square(x).mean())
    kinds = [sum(n for name, n in stored.items() if f"_{kind}" in name) for kind in ("mean", "var")]
    return {
        "groups": numbers.reshape(x.shape), "disjoint": disjoint, "exact": bool(exact),
        "over": axes_of(numbers.reshape(x.shape), layout), "infer": axes_of(infer.reshape(x.shape), layout),
        "means": int(numbers.max()) + 1, "gains": sum(trained) // 2, "stored": sum(stored.values()),
        "stored_means_and_variances": kinds, "back": int((np.bincount(numbers, off) == 0).sum()),
    }  # fmt: skip


def probe_case(case, seed):
    layout = case.split(", ")[1]
    inside = layout == "TBH" and case != "BN over all steps, TBH"  # an RNN computes in float32
    return probe(norm_of(case), layout, np.float32 if inside else np.float64, seed)


# --- changes of weights and data ----------------------------------------------------------------------------


def root_mean_square(values, axis=None):
    return np.sqrt(np.square(values).mean(axis))


def make_layer(frames, units, count, seed):
    """Returns weights W (units, I), data D (count, I) from frames, and a shift as large as each. Also returns
    the unit and the sample that "w scaled" and "x scaled" change."""
    rng, inputs = np.random.default_rng(seed), frames.shape[1]
    cases = frames[rng.choice(len(frames), count, replace=False)].astype(np.float64)
    layer = {"W": rng.standard_normal((units, inputs)) / inputs**0.5, "D": cases}
    vectors = {name: (like, rng.standard_normal(inputs)) for name, like in layer.items()}
    shifts = {n: v * (root_mean_square(like) / root_mean_square(v)) for n, (like, v) in vectors.items()}
    return {**layer, "shifts": shifts, "unit": rng.integers(units), "case": rng.integers(count)}


def changed(layer, change, amount):
    """Returns W and D after a change. amount: the factor, or the shift divided by the array's size."""
    symbol, how = change.split()
    new = {"W": layer["W"].copy(), "D": layer["D"].copy()}
    if how == "shifted":
        new[symbol] += amount * layer["shifts"][symbol]
    elif symbol in new:
        new[symbol] *= amount
    elif symbol == "w":
        new["W"][layer["unit"]] *= amount
    else:
        new["D"][layer["case"]] *= amount
    return new["W"], new["D"]


def summed_inputs(W, D):
    # Use einsum, because the order of sums in BLAS (operator @) can depend on the number of threads.
    return np.einsum("ni,hi->nh", D, W)


def batch_norm(W, D, eps):
    return lnrnn.batch_norm(summed_inputs(W, D), None, None, training=True, eps=eps)


def weight_norm(W, D, eps):
    """Divides the weights of each unit by their length (Salimans and Kingma 2016, arXiv 1602.07868)."""
    inputs = W.shape[1]
    return summed_inputs(lnrnn.rms_norm(W, inputs, weight=np.full(inputs, inputs**-0.5), eps=eps), D)


def layer_norm(W, D, eps):
    return lnrnn.layer_norm(summed_inputs(W, D), len(W), eps=eps)


def layer_norm_before(W, D, eps):
    return summed_inputs(W, lnrnn.layer_norm(D, D.shape[1], eps=eps))


def stored_batch_norm(layer):
    """Returns batch norm in inference mode, with the statistics of the unchanged layer."""
    a = summed_inputs(layer["W"], layer["D"])
    mean, var = a.mean(0), a.var(0)
    return lambda W, D, eps: lnrnn.batch_norm(summed_inputs(W, D), mean, var, eps=eps)


def divided_by(norm, layer):
    """Returns the numbers by which the norm divides.

    BN divides by the standard deviation of each unit's summed inputs, and LN by that of each sample's. Weight
    norm divides by the root mean square of each unit's weights.
    """
    if norm == "weight norm":
        return root_mean_square(layer["W"], 1)
    return summed_inputs(layer["W"], layer["D"]).std(0 if norm == "BN" else 1)


def output(norm, W, D, dtype=np.float64, eps=0.0):
    return norm(W.astype(dtype), D.astype(dtype), eps).astype(np.float64)


def deviation(new, y):
    """Returns the root mean square of new - y, divided by that of y, in the worst sample or unit."""
    return max((root_mean_square(new - y, axis) / root_mean_square(y, axis)).max() for axis in (0, 1))


def bend(scale, eps):
    """Returns the share by which eps shrinks the output of a norm that divides by ``scale``."""
    return 1 - scale / np.sqrt(scale**2 + eps)


def scale_at(part, eps):
    """Returns the scale at which `bend` gives this share."""
    return (1 - part) * np.sqrt(eps / (1 - (1 - part) ** 2))


def crossing(scales, deviations, level=0.01):
    """Returns the scale at which falling deviations cross ``level``, by interpolation of logarithms."""
    low = np.flatnonzero(deviations > level)[-1]
    logs = np.log(deviations[low : low + 2])
    part = (logs[0] - np.log(level)) / (logs[0] - logs[1])
    return scales[low] * (scales[low + 1] / scales[low]) ** part


# --- speed and places ---------------------------------------------------------------------------------------


def border_and_inside(on):
    """Returns the mean of ``on`` (..., side, side) over the border pixels, and over the other pixels."""
    inside = np.zeros(on.shape[-2:], bool)
    inside[1:-1, 1:-1] = True
    return on[..., ~inside].mean(axis=-1), on[..., inside].mean(axis=-1)


def running_share(right, window):
    """Returns the share of True in ``right`` (S, images), in each window of consecutive images."""
    sums = np.cumsum(np.concatenate([np.zeros((len(right), 1)), right], axis=1), axis=1)
    return (sums[:, window:] - sums[:, :-window]) / window


def images_until(right, level, window):
    """right (S, images). Returns how many images each network sees, (S,), until the share ``level`` of the
    last ``window`` was right. If it never is, returns the number of all images."""
    above = running_share(right, window) >= level
    return np.where(above.any(axis=1), above.argmax(axis=1) + window, right.shape[1])


CHANGES = ("W scaled", "W shifted", "w scaled", "D scaled", "D shifted", "x scaled")
STORED, BEFORE = "BN, stored statistics", "LN before W"
# {norm: for each of CHANGES, whether the output stays the same according to the paper; None: not said}.
TABLE = {
    "BN": (True, False, True, True, True, False),
    "weight norm": (True, False, True, False, False, False),
    "LN": (True, True, False, True, False, True),
    STORED: None,
    BEFORE: (False, False, None, None, None, None),
}
NORMS = {"BN": batch_norm, "weight norm": weight_norm, "LN": layer_norm}

SAME = 1e-10  # an output counts as unchanged if its relative change is below


def measure_layer(layer, scales, factors, shifts, eps):
    """Returns the results of one layer by name.

    entries: deviations by norm, change and amount, in float64 with eps 0. turned: the deviation of the output
    from -y for the factor -1, if Table 1 claims invariance to factors. scales, scaled: the divisors of a norm
    for scaled W, and the deviation of the float32 kernel with ``eps``. harmless: the largest shift that moves
    the output of that kernel by at most 1 %. one number: LN's deviation if summed inputs grow by a number."""
    W, D, kinds = layer["W"], layer["D"], ("entries", "turned", "harmless", "scales", "scaled")
    found = {kind: {} for kind in kinds}
    every = NORMS | {STORED: stored_batch_norm(layer), BEFORE: layer_norm_before}
    for name, norm in every.items():
        y = output(norm, W, D)
        moved = lambda *how, norm=norm: output(norm, *changed(layer, *how[:2]), *how[2:])  # noqa: E731
        for change in CHANGES:
            amounts = factors if "scaled" in change else shifts
            found["entries"][f"{name}, {change}"] = [deviation(moved(change, by), y) for by in amounts]
            if name in NORMS and "scaled" in change and TABLE[name][CHANGES.index(change)]:
                alone = {"w scaled": np.s_[:, layer["unit"]], "x scaled": np.s_[layer["case"]]}
                opposite = y.copy()
                opposite[alone.get(change, ...)] *= -1
                found["turned"][f"{name}, {change}"] = deviation(moved(change, -1), opposite)
        if name in NORMS:
            found["scales"][name] = divided_by(name, layer).min() * scales
            single = [output(norm, W * factor, D, np.float32, eps) for factor in scales]
            found["scaled"][name] = np.array([deviation(each, y) for each in single])
        if change := {"LN": "W shifted", "BN": "D shifted"}.get(name):
            sizes = np.logspace(-1, 6, 29)
            off = np.array([deviation(moved(change, size, np.float32, eps), y) for size in sizes])
            found["harmless"][f"{name}, {change}"] = sizes[off <= 0.01].max()
    a = summed_inputs(W, D)
    one = lnrnn.layer_norm(a + 100 * a.std(), len(W), eps=0)
    return {**found, "one number": deviation(one, output(layer_norm, W, D))}
