r"""
Invariances of each norm
========================

Table 1 of the layer norm paper lists six changes of weights and data. It marks those that leave the output of
a normalised layer unchanged (Ba, Kiros and Hinton 2016, arXiv 1607.06450, section 5.1). Layer norm (LN)
subtracts the mean of one sample's summed inputs, so :math:`W \to c W` and :math:`W \to W + 1 v^\top` do not
change its output:

.. math::

   y = \frac{W x - \mu}{\sigma}, \qquad \mu = \frac{1}{H} \sum_i (W x)_i

A post concludes that LN is "对输入和权重漂移不敏感" (insensitive to shifts of input and weights).
The paper adds that a norm of the input alone, before W, is not invariant to changes of
W.
"""

import numpy as np
from common import Study, by_seed, checks, show, table
from measures import BEFORE, CHANGES, SAME, STORED, TABLE, bend, crossing, make_layer, measure_layer, scale_at
from plots import OTHER, STYLES, marked, tidy

from lnrnn.data import japanese_vowels

# Constants to change.
UNITS, CASES = 64, 128
FACTORS = (0.01, 0.3, 3.0, 100.0)  # of scaled arrays
SHIFTS = (0.3, 3.0, 100.0)  # relative to the size of the shifted array
EPS = 1e-5  # the default of the library
OTHERWISE = 1e-2  # an output counts as changed if its relative change is above, as unchanged below SAME
SIZE = (10.0, 4.8)
NORMS = ("BN", "weight norm", "LN")


def draw(results, figure):
    """Draws the table, and how eps changes the output for small summed inputs."""
    matrix, right = figure.subplots(1, 2, width_ratios=[1.5, 1])
    values = [[results["entries"][f"{norm}, {change}"] for change in CHANGES] for norm in TABLE]
    same = np.array([[own.max() <= SAME for own in row] for row in values])
    marked(matrix, same, "#cfe0f5", "#f3ede2")
    for (row, column), stays in np.ndenumerate(same):
        own = values[row][column]
        text = f"same\n{own.max():.0e}" if stays else f"moves\n{own.min():.2f}"
        matrix.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=9.5)
    matrix.set_xticks(np.arange(len(CHANGES)) + 0.5, CHANGES)
    matrix.set_yticks(np.arange(len(TABLE)) + 0.5, [norm.replace(", ", ",\n") for norm in TABLE])
    tidy(matrix, "LN is invariant to a shift of the weights W, not of the data D")

    line = np.logspace(-5, 1, 100)
    right.plot(line, 100 * bend(line, EPS), lw=1.2, color="#333333", label="1 - s / sqrt(s² + 1e-5)")
    for place, norm in enumerate(NORMS):
        colour, marker, _ = STYLES.get(norm, (OTHER, "D", 1))
        keep, style = results["scales"][norm] < 10, {"color": colour, "ms": 5, "markevery": (2 * place, 6)}
        scales, off = (results[of][norm][keep] for of in ("scales", "scaled"))
        right.plot(scales, 100 * off, marker, label=norm, **style)
    right.set_xscale("log")
    right.axvline(scale_at(0.01, EPS), color="#999999", lw=1)
    right.text(1.3 * scale_at(0.01, EPS), 45, "1 % at 0.022", fontsize=9)
    right.legend(frameon=False, fontsize=9, loc="upper right")
    labels = {"xlabel": "s, what the norm divides by", "ylabel": "output off by, % (float32, eps = 1e-5)"}
    tidy(right, "Below 0.02, eps changes the output", **labels)


show("invariances", draw, SIZE)

# %%
# Result
# ------
# W are all weights, w those of one unit, D all data, x one sample. Blue marks an output that stays the same,
# except for rounding. Numbers are deviations relative to the size of the output: the largest over 20 seeds
# where it stays the same, the smallest where it moves. The first three rows are Table 1.
#
# - All 18 entries of Table 1 agree with the paper. Its text contradicts one: "all the normalization methods
#   are invariant to re-scaling the dataset". Weight norm multiplies its output by the factor.
# - The post is right about weights and wrong about inputs. If one number is added to all summed inputs of a
#   sample, LN's output stays. The post may mean this.
# - LN before W, as in :math:`W\,\mathrm{LN}(x)`, loses both invariances to W.
# - With stored statistics, as in inference, BN is invariant to none of the six changes.
#
# Advice
# ------
# Place the norm after W if the scale of the weights must not matter. Keep the standard deviation s of summed
# inputs well above 0.02. With eps = 1e-5 the output shrinks by :math:`1 - s / \sqrt{s^2 + \epsilon}`: by 1 %
# at s = 0.022, by half at 0.0018. If data drift by a shift, subtract their mean, because LN does not do so.
# Try 1e6 in ``SHIFTS``, and -1 in ``FACTORS``.
#
# How it was measured
# -------------------
# The layer has 64 units with normal weights. Data are 128 frames of 12 channels of Japanese Vowels, 20 seeds.
# Factors are 0.01, 0.3, 3 and 100. Shifts are random vectors, 0.3, 3 and 100 times as large as the array. The
# deviation is the output's change over the output (root mean squares) in the worst sample or unit, in float64
# with eps = 0. Weight norm (Salimans and Kingma 2016, arXiv 1602.07868) is ``rms_norm`` of the rows of W. An
# invariance is a statement about every input, so the extremes over seeds decide. These checks fail only if
# the library has a defect.


def measure(seeds, settings, quick):
    frames, factors = np.concatenate(japanese_vowels().train.x), np.logspace(-4, 4, 16 if quick else 80)

    def job(_, seed):
        return measure_layer(make_layer(frames, UNITS, CASES, seed), factors, FACTORS, SHIFTS, EPS)

    found = by_seed(job, [0], seeds)[0]
    scales, scaled = found.pop("scales"), found.pop("scaled")
    return {
        **found,
        "crossing": {norm: np.array(list(map(crossing, scales[norm], scaled[norm]))) for norm in NORMS},
        "scales": {norm: np.exp(np.log(scales[norm]).mean(axis=0)) for norm in NORMS},
        "scaled": {norm: scaled[norm].mean(axis=0) for norm in NORMS},
    }


def decided(values):
    """Returns True if the output always stays, False if it always moves, None otherwise."""
    return True if values.max() <= SAME else False if values.min() >= OTHERWISE else None


def as_in_table(results, norm):
    """Returns whether all results of a norm agree with the claims of the paper."""
    said = zip(CHANGES, TABLE[norm], strict=True)
    entries = results["entries"]
    return all(decided(entries[f"{norm}, {change}"]) is stays for change, stays in said if stays is not None)


def clauses(results):
    entries, factors = results["entries"], np.abs(np.array(FACTORS) - 1)
    return checks({
        **{f"Table 1, {norm}: 6 of 6 entries": as_in_table(results, norm) for norm in NORMS},
        "LN is invariant to one vector added to all units' weights (post: weight shift)":
            decided(entries["LN, W shifted"]) is True,
        "LN is not invariant to one vector added to all data (the post says it is)":
            decided(entries["LN, D shifted"]) is False,
        "LN is invariant to one number added to summed inputs": results["one number"].max() <= SAME,
        "a norm before W loses the invariance to W": as_in_table(results, BEFORE),
        "a factor below 0 changes the sign of the output":
            max(values.max() for values in results["turned"].values()) <= SAME,
        "weight norm scales its output as the data (Table 1 is right, the paper's text wrong)":
            np.allclose(entries["weight norm, D scaled"], factors),
        "BN with stored statistics is invariant to none of the six":
            all(decided(entries[f"{STORED}, {change}"]) is False for change in CHANGES),
    })  # fmt: skip


def tables(results):
    texts = {
        True: lambda v: f"same {v.max():.0e}",
        False: lambda v: f"moves {v.min():.2f}",
        None: lambda v: "?",
    }
    entries = {norm: [results["entries"][f"{norm}, {change}"] for change in CHANGES] for norm in TABLE}
    yield (
        "W: all weights, w: one unit's, D: all data, x: one sample. Deviations in float64, eps = 0:\n"
        "the largest over seeds and amounts for 'same', the smallest for 'moves'."
    )
    yield table(
        ["", *CHANGES], [[norm, *(texts[decided(v)](v) for v in own)] for norm, own in entries.items()]
    )
    formula = f"formula: {scale_at(0.01, EPS):.4f}"
    yield f"float32, eps = {EPS:g}: the s at which eps shrinks the output by 1 % ({formula})"
    ends = {norm: (values.min(), values.max()) for norm, values in results["crossing"].items()}
    yield table(
        ["", "least", "largest"], [[norm, *(f"{end:.4f}" for end in both)] for norm, both in ends.items()]
    )
    yield "float32: the largest shift, over the size of the array, that moves the output by 1 % at most"
    yield table(["", "shift"], [[key, f"{values.min():.0e}"] for key, values in results["harmless"].items()])


STUDY = Study("invariances", measure, clauses, tables, draw, size=SIZE)

if __name__ == "__main__":
    STUDY.main()
