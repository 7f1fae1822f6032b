r"""
Values that share a mean
========================

Layer norm (LN) and batch norm (BN) average over different values. BN averages each unit or channel over the
batch, LN averages each sample over its units. (Ioffe and Szegedy 2015, arXiv 1502.03167, section 3; Ba, Kiros
and Hinton 2016, arXiv 1607.06450, section 3.)

.. math::

   \mathrm{BN}:\; \mu_c = \frac{1}{NHW} \sum_{n,h,w} a_{nchw} \qquad
   \mathrm{LN}:\; \mu_n = \frac{1}{CHW} \sum_{c,h,w} a_{nchw}

In a recurrent network both compute separate means for each time step
(Cooijmans et al. 2016, arXiv 1603.09025). One post gives BN a mean for
each pixel: "把一个batch中每一张图片对应位置像素做标准化" (standardise the pixels at the
same place of all images in a batch).
"""

import numpy as np
from common import Study, checks, show, table
from measures import SHAPES, probe_case
from plots import HEADLINE, STYLES, marked

# Constants to change.
# {norm and layout: the axes over which the norm averages, according to the papers}.
CLAIMED = {
    "BN, NC": "N", "BN, NCL": "NL", "BN, NCHW": "NHW", "BN per step, TBH": "B",
    "BN over all steps, TBH": "TB", "LN, NC": "C", "LN, NCL": "CL", "LN, NCHW": "CHW", "LN, TBH": "H",
}  # fmt: skip
SIZE = (10.0, 5.0)


def draw(results, figure):
    """Draws the values of each case as a matrix, and colours those that share a mean with the first value."""
    for norm, row in zip(("BN", "LN"), figure.subplots(2, 5), strict=True):
        for axes in row:
            axes.set_axis_off()
        for axes, case in zip(row, (case for case in CLAIMED if case[:2] == norm), strict=False):
            name, layout = case.split(", ")
            groups = results[case]["groups"].reshape(SHAPES[layout][0], -1)
            marked(axes, groups == groups[0, 0], STYLES[norm][0], "#e9edf0")
            below = f"rows {layout[0]}, columns {' x '.join(layout[1:])}"
            axes.text(0.5, -0.05, below, transform=axes.transAxes, ha="center", va="top", fontsize=9)
            axes.set_title(f"{name}\nmean over {', '.join(CLAIMED[case])}", fontsize=9.5)
    figure.suptitle("BN averages a channel over the batch, LN a sample over its units", **HEADLINE)


show("axes", draw, SIZE)

# %%
# Result
# ------
# All nine cases average over the axes that the papers name. In images BN averages over height and width too,
# so three channels have 3 means, not 12. LN averages over one image, so 2 images have 2 means.
#
# - BN stores a mean and a variance for each group, and a count: with 4 steps of 5 units, 44 numbers. LN
#   stores nothing.
# - In images BN has a gain for each channel, and LN for each channel and pixel.
# - With sigma as gain and mu as bias LN gives back one sample only, because its gains belong to units and its
#   means to samples.
#
# The last case, (T, B, H), also describes the tokens of a Transformer, (batch, tokens, features).
#
# Advice
# ------
# Ask of any norm which axes it averages over. If the batch is one of them, inference needs stored statistics,
# and the batch size matters. LN over the channels, separately at each pixel, is ``layer_norm`` of the array
# with the channels moved last. Try ``CLAIMED["LN, NCHW"] = "C"``: a check fails. A group needs more than two
# values, which would normalise to -1 and 1.
#
# How it was measured
# -------------------
# The study only calls ``lnrnn.BatchNorm``, ``lnrnn.LayerNorm``, and ``lnrnn.RNN`` with the norm inside (W_ih
# = 1, W_hh = 0, no nonlinearity). It changes one input value at a time. If an output changes in any bit, it
# shares a mean with that value. The mean and deviation of each group must reproduce the output to 1e-5.
# Inputs are normal numbers of 20 seeds, which agree.


def measure(seeds, settings, quick):
    """Returns for each case the results of the first seed, and "alike": whether all seeds give the same."""
    results = {}
    for case in CLAIMED:
        first, *others = (probe_case(case, seed) for seed in seeds)
        alike = all(str(other) == str(first) for other in others)
        results[case] = {**first, "alike": alike}
    return results


def clauses(results):
    bn, ln = ([found for case, found in results.items() if case[:2] == norm] for norm in ("BN", "LN"))
    sound = all(found["alike"] and found["disjoint"] and found["exact"] for found in results.values())
    pixels = np.prod(SHAPES["NCHW"][1:])
    means, gains, backs = (
        {case: own[of] for case, own in results.items()} for of in ("means", "gains", "back")
    )
    return checks({
        "LN averages over the units of a sample, BN over the batch: 9 of 9 cases as claimed":
            sound and all(results[case]["over"] == over for case, over in CLAIMED.items()),
        "BN takes one mean for each channel, not one for each pixel":
            means["BN, NCHW"] == SHAPES["NCHW"][1] != pixels,
        "BN stores a mean and a variance for each group, LN nothing":
            all(list(found["stored_means_and_variances"]) == [found["means"]] * 2 for found in bn)
            and not any(found["stored"] for found in ln),
        "LN computes the same at inference as in training; BN then treats each sample alone":
            all(found["infer"] == found["over"] for found in ln) and not any(found["infer"] for found in bn),
        "LN and BN have equally many gains in (N, C) and (T, B, H)":
            gains["LN, NC"] == gains["BN, NC"] and gains["LN, TBH"] == gains["BN per step, TBH"],
        "LN has more gains than BN in (N, C, H, W)": gains["LN, NCHW"] == pixels != gains["BN, NCHW"],
        "gain = sigma and bias = mu give the input of BN back":
            all(backs[f"BN, {a}"] == means[f"BN, {a}"] for a in ("NC", "NCL", "NCHW")),
        "gain = sigma and bias = mu give one sample of LN back": all(found["back"] == 1 for found in ln),
    })  # fmt: skip


def tables(results):
    rows = []
    for case, found in results.items():
        shape = "x".join(map(str, SHAPES[case.split(", ")[1]]))
        counts = [found[name] for name in ("means", "means", "gains", "gains", "stored", "back")]
        rows.append([case, shape, ", ".join(found["over"]), *map(str, counts)])
    header = ["norm, layout", "shape", "mean over", "means", "variances", "gains", "biases", "stored", "back"]
    yield table(header, rows)
    yield "back: how many groups gain = sigma and bias = mu leave unchanged."


STUDY = Study("axes", measure, clauses, tables, draw, size=SIZE)

if __name__ == "__main__":
    STUDY.main()
