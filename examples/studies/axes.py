r"""
Values that share a mean
========================

Layer norm (LN) and batch norm (BN) subtract a mean and divide by a standard deviation, but they average over
different values. BN averages each unit or channel over the batch, LN averages each sample over its units.
(Ioffe and Szegedy 2015, arXiv 1502.03167, section 3; Ba, Kiros and Hinton 2016, arXiv 1607.06450, section 3.)

.. math::

   \mathrm{BN}:\; \mu_c = \frac{1}{NHW} \sum_{n,h,w} a_{nchw} \qquad
   \mathrm{LN}:\; \mu_n = \frac{1}{CHW} \sum_{c,h,w} a_{nchw}

In a recurrent network both compute separate means for each time step (Cooijmans et al. 2016, arXiv
1603.09025). For inference BN stores running averages, and LN stores nothing. One post gives BN a mean for
each pixel: "把一个batch中每一张图片对应位置像素做标准化" (standardise the pixels at the same place of all
images in a batch).
"""

from collections import namedtuple

import numpy as np
from common import Study, checks, show, table
from plots import STYLES

import lnrnn

# Constants to change.
SHAPES = {"NC": (4, 3), "NCL": (3, 3, 4), "NCHW": (2, 3, 2, 2), "TBH": (4, 3, 5)}
# {norm and layout: the axes over which the norm averages, according to the papers}.
CLAIMED = {
    "BN, NC": "N", "BN, NCL": "NL", "BN, NCHW": "NHW", "BN per step, TBH": "B",
    "BN over all steps, TBH": "TB", "LN, NC": "C", "LN, NCL": "CL", "LN, NCHW": "CHW", "LN, TBH": "H",
}  # fmt: skip
CLOSE = 1e-5  # smaller differences are ignored

FIGURE = (10.0, 6.4)
WHAT = {"NC": "samples", "NCL": "sequences", "NCHW": "images", "TBH": "recurrent"}
# {layout: the axes that the figure draws to the right, upwards and into the depth}.
PLACES = {"NC": ("N", "C", ""), "NCL": ("N", "C", "L"), "NCHW": ("N", "C", "HW"), "TBH": ("B", "H", "T")}


def draw(results, figure):
    """Draws a block of values for each case, and colours the values that share a mean."""
    panels = figure.subplots(2, 5)
    rows = [[case for case in CLAIMED if case[:2] == norm] for norm in ("BN", "LN")]
    for row, cases in zip(panels, rows, strict=True):
        for axes, case in zip(row, cases, strict=False):
            draw_block(axes, case, results[case])
    panels[1, 4].set_axis_off()
    panels[1, 4].text(
        0, 0.5, "dot: the value changed\ncolour: the outputs\nthat change with it\nand share its mean",
        transform=panels[1, 4].transAxes, va="center", fontsize=9.5,
    )  # fmt: skip
    figure.suptitle(
        "BN averages a channel over the batch, LN a sample over its units", fontsize=12, fontweight="bold"
    )


def draw_block(axes, case, found):
    norm, layout = case.split(", ")
    order = [layout.index(letter) for letter in "".join(PLACES[layout])]
    groups = np.transpose(found["groups"], order)
    groups = groups.reshape(*groups.shape[:2], -1)
    width, height, depth = groups.shape

    def cell(number, *corners):
        alike = number == groups[-1, -1, 0]
        colour = STYLES[norm[:2]][0] if alike else ("#e9edf0", "#cdd5db")[number % 2]
        x, y = np.transpose([(right + 0.5 * back, up + 0.38 * back) for right, up, back in corners])
        axes.fill(x, y, facecolor=colour, edgecolor="white", lw=1)

    for i, j in np.ndindex(width, height):
        cell(groups[i, j, 0], (i, j, 0), (i + 1, j, 0), (i + 1, j + 1, 0), (i, j + 1, 0))
    for k in range(depth if depth > 1 else 0):
        for j in range(height):
            right = [(width, j + up, k + back) for up, back in ((0, 0), (0, 1), (1, 1), (1, 0))]
            cell(groups[-1, j, k], *right)
        for i in range(width):
            top = [(i + right, height, k + back) for right, back in ((0, 0), (1, 0), (1, 1), (0, 1))]
            cell(groups[i, -1, k], *top)
    axes.plot(width - 0.5, height - 0.5, "o", color="black", ms=5)
    small = {"fontsize": 9, "color": "#555555"}
    axes.text(width / 2, -0.15, PLACES[layout][0], ha="center", va="top", **small)
    axes.text(-0.2, height / 2, PLACES[layout][1], ha="right", va="center", **small)
    if depth > 1:
        axes.text(width + 0.3 * depth, 0.15 * depth, PLACES[layout][2], ha="left", va="top", **small)
    over = ", ".join(CLAIMED[case])
    axes.set_title(f"{norm}\nmean over {over}\n{WHAT[layout]} ({', '.join(layout)})", fontsize=9.5)
    axes.text(
        0.5, -0.06, f"{found['means']} means\n{found['gains']} gains\n{found['stored']} stored",
        transform=axes.transAxes, ha="center", va="top", fontsize=9,
    )  # fmt: skip
    axes.set_aspect("equal", anchor="S")
    axes.margins(0.08)
    axes.set_axis_off()


show("axes", draw, FIGURE)

# %%
# Result
# ------
# - All nine cases average over the axes that the papers name.
# - In images, BN averages over height and width too, so three channels have 3 means. "The pixels at the same
#   place" would need 12 means, so the post is wrong.
# - LN averages over all channels and pixels of one image, so 2 images have 2 means.
# - Posts say that BN and LN have equally many gains and biases. This holds for (N, C), with 3 gains each, and
#   in recurrent networks, with 5 each. In images it is wrong: BN has a gain for each channel (3), LN has a
#   gain for each channel and pixel (12).
# - For inference BN stores a mean and a variance for each group, and a count. BN per step stores 44 numbers
#   for 4 steps of 5 units. LN stores nothing, and computes the same in inference and training.
# - With sigma as gain and mu as bias, BN gives its input back in (N, C), (N, C, L) and (N, C, H, W). LN gives
#   back one sample only, because its gains belong to units and its means to samples.
#
# The last case, (T, B, H), also describes the tokens of a Transformer, (batch, tokens, features). LN takes
# one mean for each token, over its features.
#
# Advice
# ------
# Ask of any norm which axes it averages over. If the batch is one of them, inference needs stored statistics,
# and the batch size matters. Some convolutional networks apply LN over the channels, separately at each
# pixel: in lnrnn this is ``layer_norm`` of the array with the channels moved last.
#
# Try it yourself
# ---------------
# Change ``CLAIMED["LN, NCHW"]`` to "C": a check fails. Change a shape in ``SHAPES``: the number of means
# changes too. A group needs more than two values, because two values always normalise to -1 and 1.
#
# How it was measured
# -------------------
# The study only calls ``lnrnn.BatchNorm``, ``lnrnn.LayerNorm``, and ``lnrnn.RNN`` with the norm inside (W_ih
# = 1, W_hh = 0, no nonlinearity). It changes one input value at a time. If an output changes in any bit, it
# shares a mean with that value. The mean and deviation of each group must reproduce the output to 1e-5.
# Inputs are normal numbers of 20 seeds, which agree. These checks fail only if the library has a defect.

Norm = namedtuple("Norm", "call state trained gain_shape set_gain eps")


def batch(shape, order):
    """Returns a BatchNorm for x of this shape. order: the permutation of x's axes to (N, C, ...)."""
    layer = lnrnn.BatchNorm(shape[order[1]])

    def call(x, training):
        return layer.train(training)(x.transpose(order)).transpose(np.argsort(order))

    def set_gain(gain, bias):
        layer.weight, layer.bias = gain, bias

    gain_shape = [size if axis == order[1] else 1 for axis, size in enumerate(shape)]
    return Norm(call, layer.state_dict, ("weight", "bias"), gain_shape, set_gain, layer.eps)


def layer_norm(shape):
    """Returns a LayerNorm over all axes but the first."""
    layer = lnrnn.LayerNorm(shape[1:])

    def set_gain(gain, bias):
        layer.weight, layer.bias = gain.reshape(shape[1:]), bias.reshape(shape[1:])

    return Norm(
        lambda x, training: layer.train(training)(x), layer.state_dict, ("weight", "bias"), (1, *shape[1:]),
        set_gain, layer.eps,
    )  # fmt: skip


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


def make(case):
    name, layout = case.split(", ")
    shape = SHAPES[layout]
    if layout == "TBH" and name != "BN over all steps":
        return recurrent(shape, lnrnn.LayerNormSpec() if name == "LN" else lnrnn.BatchNormSpec())
    if name == "LN":
        return layer_norm(shape)
    return batch(shape, (1, 2, 0) if layout == "TBH" else tuple(range(len(shape))))


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
    return probe(make(case), layout, np.float32 if inside else np.float64, seed)


def measure(seeds, settings, quick):
    """Returns for each case the results of the first seed, and "alike": whether all seeds give the same."""
    results = {}
    for case in CLAIMED:
        first, *others = (probe_case(case, seed) for seed in seeds)
        alike = all(str(other) == str(first) for other in others)
        results[case] = {**first, "alike": alike}
    return results


def clauses(results):
    bn = {case: found for case, found in results.items() if case[:2] == "BN"}
    ln = {case: found for case, found in results.items() if case[:2] == "LN"}
    sound = all(found["alike"] and found["disjoint"] and found["exact"] for found in results.values())
    pixels = np.prod(SHAPES["NCHW"][1:])
    means = {case: found["means"] for case, found in results.items()}
    gains = {case: found["gains"] for case, found in results.items()}
    backs = {case: found["back"] for case, found in results.items()}
    return checks({
        "LN averages over the units of a sample, BN over the batch: 9 of 9 cases as claimed":
            sound and all(results[case]["over"] == over for case, over in CLAIMED.items()),
        "BN takes one mean for each channel, not one for each pixel":
            means["BN, NCHW"] == SHAPES["NCHW"][1] != pixels,
        "BN stores a mean and a variance for each group, LN nothing":
            all(list(found["stored_means_and_variances"]) == [found["means"]] * 2 for found in bn.values())
            and not any(found["stored"] for found in ln.values()),
        "LN computes the same at inference as in training; BN then treats each sample alone":
            all(found["infer"] == found["over"] for found in ln.values())
            and not any(found["infer"] for found in bn.values()),
        "LN and BN have equally many gains in (N, C) and (T, B, H)":
            gains["LN, NC"] == gains["BN, NC"] and gains["LN, TBH"] == gains["BN per step, TBH"],
        "LN has more gains than BN in (N, C, H, W)": gains["LN, NCHW"] == pixels != gains["BN, NCHW"],
        "gain = sigma and bias = mu give the input of BN back":
            all(backs[f"BN, {a}"] == means[f"BN, {a}"] for a in ("NC", "NCL", "NCHW")),
        "gain = sigma and bias = mu give one sample of LN back":
            all(found["back"] == 1 for found in ln.values()),
    })  # fmt: skip


def tables(results):
    header = ["norm, layout", "shape", "mean over", "means", "variances", "gains", "biases", "stored", "back"]
    rows = []
    for case, found in results.items():
        shape = "x".join(map(str, SHAPES[case.split(", ")[1]]))
        counts = [found[name] for name in ("means", "means", "gains", "gains", "stored", "back")]
        rows.append([case, shape, ", ".join(found["over"]), *map(str, counts)])
    return table(header, rows) + "\n\nback: how many groups gain = sigma and bias = mu leave unchanged."


STUDY = Study("axes", measure, clauses, tables, draw, size=FIGURE)

if __name__ == "__main__":
    STUDY.main()
