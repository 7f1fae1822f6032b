r"""
Invariances of each norm
========================

Table 1 of the layer norm paper lists six changes of weights and data (Ba, Kiros and Hinton 2016, arXiv
1607.06450, section 5.1). It marks those that leave the output of a normalised layer unchanged. Layer norm
(LN) subtracts the mean of one sample's summed inputs:

.. math::

   y = \frac{W x - \mu}{\sigma}, \qquad \mu = \frac{1}{H} \sum_i (W x)_i

So :math:`W \to c W` and :math:`W \to W + 1 v^\top` do not change the output. A post concludes that LN is
"对输入和权重漂移不敏感" (insensitive to shifts of input and weights). The paper adds that a norm of the input
alone, before W, is not invariant to changes of W.
"""

import numpy as np
from common import Study, checks, show, stacked, table
from plots import OTHER, STYLES, tidy

import lnrnn
from lnrnn.data import japanese_vowels

# Constants to change.
UNITS, CASES = 64, 128
FACTORS = (0.01, 0.3, 3.0, 100.0)  # of scaled arrays
SHIFTS = (0.3, 3.0, 100.0)  # relative to the size of the shifted array
EPS = 1e-5  # the default of the library
# An output counts as unchanged if its relative change is below SAME, as changed above OTHERWISE.
SAME, OTHERWISE = 1e-10, 1e-2

FIGURE = (10.0, 4.8)
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


def draw(results, figure):
    """Draws the table, and how eps changes the output for small summed inputs."""
    left, right = figure.subplots(1, 2, width_ratios=[1.75, 1])
    draw_table(left, results["entries"])
    draw_eps(right, results)


def draw_table(axes, entries):
    centred = {"ha": "center", "va": "center"}
    for row, norm in enumerate(TABLE):
        top = row + 0.3 * (row > 2)
        for column, change in enumerate(CHANGES):
            values = entries[f"{norm}, {change}"]
            stays = values.max() <= SAME
            axes.fill(
                column + np.array([0, 1, 1, 0]), top + np.array([0, 0, 1, 1]),
                facecolor="#cfe0f5" if stays else "#f3ede2", edgecolor="white", lw=3,
            )  # fmt: skip
            number = f"{values.max():.0e}" if stays else f"{values.min():.2f}"
            axes.text(column + 0.5, top + 0.36, "same" if stays else "moves", weight="bold", **centred)
            axes.text(column + 0.5, top + 0.7, number, fontsize=9, color="#333333", **centred)
        axes.text(-0.1, top + 0.5, norm.replace(", ", ",\n"), ha="right", va="center", fontsize=9.5)
    what = {"W": "all\nweights", "w": "one unit's\nweights", "D": "all\ndata", "x": "one\nsample"}
    for column, change in enumerate(CHANGES):
        symbol, how = change.split()
        axes.text(column + 0.5, -0.08, f"{what[symbol]}\n{how}", ha="center", va="bottom", fontsize=9)
    axes.set(xlim=(-1.55, 6), ylim=(5.4, -0.95))
    axes.set_axis_off()
    title = "LN is invariant to a shift of the weights, not of the data"
    axes.set_title(title, loc="left", fontsize=10.5, weight="bold")


def draw_eps(axes, results):
    line = np.logspace(-5, 1, 100)
    axes.plot(line, 100 * bend(line, EPS), lw=1.2, color="#333333", label="1 - s / sqrt(s² + 1e-5)")
    for place, norm in enumerate(("BN", "weight norm", "LN")):
        colour, marker, _ = STYLES.get(norm, (OTHER, "D", 1))
        keep = results["scales"][norm] < 10
        axes.plot(
            results["scales"][norm][keep], 100 * results["scaled"][norm][keep], marker, color=colour, ms=5,
            markevery=(2 * place, 6), label=norm,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.axvline(scale_at(0.01, EPS), color="#999999", lw=1)
    axes.text(1.3 * scale_at(0.01, EPS), 45, "1 % at 0.022", fontsize=9)
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    tidy(
        axes, "Below 0.02, eps changes the output", xlabel="s, what the norm divides by",
        ylabel="output off by, % (float32, eps = 1e-5)",
    )  # fmt: skip


def bend(scale, eps):
    """Returns the share by which eps shrinks the output of a norm that divides by ``scale``."""
    return 1 - scale / np.sqrt(scale**2 + eps)


def scale_at(part, eps):
    """Returns the scale at which `bend` gives this share."""
    return (1 - part) * np.sqrt(eps / (1 - (1 - part) ** 2))


show("invariances", draw, FIGURE)

# %%
# Result
# ------
# Blue marks an output that stays the same, except for rounding. Numbers are deviations relative to the size
# of the output: the largest over 20 seeds where it stays the same, the smallest where it moves. The first
# three rows are the paper's Table 1.
#
# - All 18 entries of Table 1 agree with the paper.
# - If one vector is added to the weights of every unit, LN's output stays. If one vector is added to every
#   sample, the output moves by 0.84 of its size or more. So the post is right about weights and wrong about
#   inputs.
# - If one number is added to all summed inputs of a sample, LN's output stays. The post may mean this.
# - LN before W, as in :math:`W\,\mathrm{LN}(x)`, loses both invariances to W. W times 100 moves the output
#   by 99 times its size. With LN after W it moves by 6e-16. The paper is right.
# - With stored statistics, as in inference, BN is invariant to none of the six changes. It has its four
#   invariances in training only.
# - The paper's text contradicts its table: "all the normalization methods are invariant to re-scaling the
#   dataset". The table is right, because weight norm multiplies its output by the factor.
#
# Advice
# ------
# Place the norm after W if the scale of the weights must not matter. Keep the standard deviation s of summed
# inputs well above 0.02. With eps = 1e-5 the output shrinks by :math:`1 - s / \sqrt{s^2 + \epsilon}`: by 1 %
# at s = 0.022, by half at 0.0018. If data drift by a shift, subtract their mean, because LN does not do so.
#
# Try it yourself
# ---------------
# ``EPS = 1e-3``: the output shrinks by 1 % at 0.22 instead of 0.022. 1e6 in ``SHIFTS``: a shift of the
# weights moves LN's output in float32, but not in float64. (In float32 it moves by 1 % at shifts of 2e4 times
# the size of the array.) -1 in ``FACTORS``: the output changes its sign, so the entry is no longer "same".
#
# How it was measured
# -------------------
# The layer has 64 units with normal weights. Data are 128 frames of 12 channels of Japanese Vowels, 20 seeds.
# Factors are 0.01, 0.3, 3 and 100. Shifts are random vectors, 0.3, 3 and 100 times as large as the array. The
# deviation is the output's change over the output (root mean squares) in the worst sample or unit, in float64
# with eps = 0. Weight norm (Salimans and Kingma 2016, arXiv 1602.07868) is ``rms_norm`` of the rows of W. An
# invariance is a statement about every input, so the extremes over seeds decide, and not means with
# intervals. These checks fail only if the library has a defect.

# --- the six changes ----------------------------------------------------------------------------------------


def make_layer(frames, seed):
    """Returns weights W (UNITS, I), data D (CASES, I) from frames, and a shift as large as each. Also returns
    the unit and the sample that "w scaled" and "x scaled" change."""
    rng = np.random.default_rng(seed)
    inputs = frames.shape[1]
    cases = frames[rng.choice(len(frames), CASES, replace=False)].astype(np.float64)
    weights = rng.standard_normal((UNITS, inputs)) / inputs**0.5
    shifts = {}
    for name, like in (("W", weights), ("D", cases)):
        vector = rng.standard_normal(inputs)
        shifts[name] = vector * (root_mean_square(like) / root_mean_square(vector))
    return {
        "W": weights, "D": cases, "shifts": shifts, "unit": rng.integers(UNITS), "case": rng.integers(CASES)
    }  # fmt: skip


def root_mean_square(values, axis=None):
    return np.sqrt(np.square(values).mean(axis))


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


# --- the norms: each returns y (CASES, UNITS), in the dtype of W and D --------------------------------------


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


NORMS = {"BN": batch_norm, "weight norm": weight_norm, "LN": layer_norm}


def divided_by(norm, layer):
    """Returns the numbers by which the norm divides.

    BN divides by the standard deviation of each unit's summed inputs, and LN by that of each sample's. Weight
    norm divides by the root mean square of each unit's weights.
    """
    if norm == "weight norm":
        return root_mean_square(layer["W"], 1)
    return summed_inputs(layer["W"], layer["D"]).std(0 if norm == "BN" else 1)


# --- measuring ----------------------------------------------------------------------------------------------


def output(norm, W, D, dtype=np.float64, eps=0.0):
    return norm(W.astype(dtype), D.astype(dtype), eps).astype(np.float64)


def deviation(new, y):
    """Returns the root mean square of new - y, divided by that of y, in the worst sample or unit."""
    return max((root_mean_square(new - y, axis) / root_mean_square(y, axis)).max() for axis in (0, 1))


def crossing(scales, deviations, level=0.01):
    """Returns the scale at which falling deviations cross ``level``, by interpolation of logarithms."""
    low = np.flatnonzero(deviations > level)[-1]
    logs = np.log(deviations[low : low + 2])
    part = (logs[0] - np.log(level)) / (logs[0] - logs[1])
    return scales[low] * (scales[low + 1] / scales[low]) ** part


def measure_one(layer, factors):
    """Returns the results of one layer by name.

    entries: deviations by norm, change and amount, in float64 with eps 0. turned: the deviation of the output
    from -y for the factor -1, if Table 1 claims invariance to factors. scales, scaled: the divisors of a norm
    for scaled W, and the deviation of the float32 kernel with EPS. harmless: the largest shift that moves the
    output of that kernel by at most 1 %. one number: LN's deviation if summed inputs grow by a number."""
    W, D, entries, turned, scales, scaled, harmless = layer["W"], layer["D"], {}, {}, {}, {}, {}
    for name, norm in {**NORMS, STORED: stored_batch_norm(layer), BEFORE: layer_norm_before}.items():
        y = output(norm, W, D)
        for change in CHANGES:
            key = f"{name}, {change}"
            amounts = FACTORS if "scaled" in change else SHIFTS
            entries[key] = [deviation(output(norm, *changed(layer, change, by)), y) for by in amounts]
            if name in NORMS and "scaled" in change and TABLE[name][CHANGES.index(change)]:
                alone = {"w scaled": np.s_[:, layer["unit"]], "x scaled": np.s_[layer["case"]]}
                opposite = y.copy()
                opposite[alone.get(change, ...)] *= -1
                turned[key] = deviation(output(norm, *changed(layer, change, -1)), opposite)
        if name in NORMS:
            scales[name] = divided_by(name, layer).min() * factors
            single = [output(norm, W * factor, D, np.float32, EPS) for factor in factors]
            scaled[name] = np.array([deviation(each, y) for each in single])
        if change := {"LN": "W shifted", "BN": "D shifted"}.get(name):
            sizes = np.logspace(-1, 6, 29)
            moved = [output(norm, *changed(layer, change, size), np.float32, EPS) for size in sizes]
            off = np.array([deviation(each, y) for each in moved])
            harmless[f"{name}, {change}"] = sizes[off <= 0.01].max()
    a = summed_inputs(W, D)
    one = lnrnn.layer_norm(a + 100 * a.std(), UNITS, eps=0)
    return entries, turned, scales, scaled, harmless, deviation(one, output(layer_norm, W, D))


def measure(seeds, settings, quick):
    frames = np.concatenate(japanese_vowels().train.x)
    # The number of factors is even, so that none is 1.
    factors = np.logspace(-4, 4, 16 if quick else 80)
    entries, turned, scales, scaled, harmless, one = zip(
        *(measure_one(make_layer(frames, seed), factors) for seed in seeds), strict=True
    )
    scales, scaled = stacked(scales), stacked(scaled)
    return {
        "entries": stacked(entries), "turned": stacked(turned), "one number": np.array(one),
        "harmless": stacked(harmless),
        "crossing": {norm: np.array(list(map(crossing, scales[norm], scaled[norm]))) for norm in NORMS},
        "scales": {norm: np.exp(np.log(scales[norm]).mean(axis=0)) for norm in NORMS},
        "scaled": {norm: scaled[norm].mean(axis=0) for norm in NORMS},
    }  # fmt: skip


# --- verdicts -----------------------------------------------------------------------------------------------


def decided(values):
    """Returns True if the output always stays, False if it always moves, None otherwise."""
    return True if values.max() <= SAME else False if values.min() >= OTHERWISE else None


def as_in_table(results, norm):
    """Returns whether the result agrees with the paper, for each change with a claim of the paper."""
    said = zip(CHANGES, TABLE[norm], strict=True)
    return [decided(results["entries"][f"{norm}, {change}"]) is stays for change, stays in said
            if stays is not None]  # fmt: skip


def clauses(results):
    entries, factors = results["entries"], np.abs(np.array(FACTORS) - 1)
    return checks({
        **{f"Table 1, {norm}: 6 of 6 entries": all(as_in_table(results, norm)) for norm in NORMS},
        "LN is invariant to one vector added to all units' weights (post: weight shift)":
            decided(entries["LN, W shifted"]) is True,
        "LN is not invariant to one vector added to all data (the post says it is)":
            decided(entries["LN, D shifted"]) is False,
        "LN is invariant to one number added to summed inputs": results["one number"].max() <= SAME,
        "a norm before W loses the invariance to W": all(as_in_table(results, BEFORE)),
        "a factor below 0 changes the sign of the output":
            max(values.max() for values in results["turned"].values()) <= SAME,
        "weight norm scales its output as the data (Table 1 is right, the paper's text wrong)":
            np.allclose(entries["weight norm, D scaled"], factors),
        "BN with stored statistics is invariant to none of the six":
            all(decided(entries[f"{STORED}, {change}"]) is False for change in CHANGES),
    })  # fmt: skip


def tables(results):
    rows = []
    for norm in TABLE:
        cells = []
        for change in CHANGES:
            values = results["entries"][f"{norm}, {change}"]
            stays = decided(values)
            cells.append("?" if stays is None else f"same {values.max():.0e}" if stays else
                         f"moves {values.min():.2f}")  # fmt: skip
        rows.append([norm, *cells])
    one_percent = [[norm, f"{values.min():.4f}", f"{values.max():.4f}"]
                   for norm, values in results["crossing"].items()]  # fmt: skip
    shifts = [[key, f"{values.min():.0e}"] for key, values in results["harmless"].items()]
    return "\n\n".join([
        "W: all weights, w: one unit's, D: all data, x: one sample. Deviations in float64, eps = 0:\n"
        "the largest over seeds and amounts for 'same', the smallest for 'moves'.",
        table(["", *CHANGES], rows),
        f"float32, eps = {EPS:g}: the s at which eps shrinks the output by 1 % (formula: "
        f"{scale_at(0.01, EPS):.4f})",
        table(["", "least", "largest"], one_percent),
        "float32: the largest shift, over the size of the array, that moves the output by 1 % at most",
        table(["", "shift"], shifts),
    ])  # fmt: skip


STUDY = Study("invariances", measure, clauses, tables, draw, size=FIGURE)

if __name__ == "__main__":
    STUDY.main()
