r"""
Growing weights
===============

In a normalised model "the norm of the weight vector effectively controls the learning rate for the weight
vector" (Ba, Kiros and Hinton 2016, arXiv 1607.06450, section 5.2). Weights grow in training, so the effective
learning rate falls. The paper argues with the Fisher information F, the curvature of the Kullback-Leibler
divergence (KL). The equation gives its block for rows i and j of the weights, in softmax regression. The norm
has the deviation :math:`\sigma_i` and the gain :math:`g_i`. The derivative of the normalised sum i with
respect to row i is :math:`\chi_i / \sigma_i`:

.. math::

    F_{ij} = \mathbb{E}_x\!\left[ \mathrm{Cov}(y_i, y_j)\, \frac{g_i g_j}{\sigma_i \sigma_j}\,
    \chi_i \chi_j^\top \right], \qquad
    \mathrm{KL}(\theta \,\|\, \theta + \delta) \approx \tfrac{1}{2} \delta^\top F \delta

If :math:`w_i` doubles, the curvature along :math:`w_i` is said to change "by a factor of 1/2".
"""

from dataclasses import replace

import numpy as np
from common import Clause, Study, by_seed, checks, percent, show, table, tuned
from fisher import BATCH, FACTORS, by_hand, images_of, initial, product_error, size, train
from nets import Sgd
from plots import STYLES, name_ends, tidy

from lnrnn.speakers import Adam

# Constants to change.
RATES = {"SGD": (0.01, 0.1, 1.0, 10.0), "Adam": (1e-4, 1e-3, 1e-2, 1e-1)}
EPOCHS = 40
GROWN, FALLEN = 1.1, 0.9  # margins: growth of the weights, fall of the effective rate
NORMS = ("no norm", "WN", "BN", "LN")
NORMALISED, JUDGED = NORMS[1:], NORMS[:1:-1]
OPTIMISERS = {"SGD": Sgd, "Adam": Adam}
KEYS = [f"{norm}, {name}" for name in RATES for norm in JUDGED]
SIZE = (10.0, 3.8)


def draw(results, figure):
    """Draws in training the growth of weights, and the angles of updates."""
    titles = "W grows in training", "A longer W turns less"
    labels = "|W| over |W| at the start", "angle of an update, |W| free / held"
    ticks = {"growth": (1, 2, 5, 10, 20), "fall": (0.001, 0.01, 0.1, 1)}
    for axes, (of, at), title, label in zip(
        figure.subplots(1, 2), ticks.items(), titles, labels, strict=True
    ):
        ends = {}
        for key in (f"{norm}, {name}" for norm in JUDGED for name in RATES):
            colour, _, width = STYLES[key.split(",")[0]]
            curve = results["curves"][f"{of}, {key}"]
            axes.semilogy(curve, "-" if "SGD" in key else "--", color=colour, lw=width)
            ends[key] = np.log10(curve[-1]), colour
        axes.set_ylim(at[0] * 0.8, at[-1] * 1.2)
        name_ends(axes, len(curve) - 1, ends, 0.07 * np.log10(at[-1] / at[0]), 4)
        axes.set_yticks(at, [f"{tick:g}" for tick in at])
        axes.minorticks_off()
        tidy(axes, title, xlabel="passes over the images", ylabel=label)


show("weight_growth", draw, SIZE)

# %%
# Result
# ------
# - **Longer weights have less curvature: this follows from the formula.** If W is multiplied by 0.1 to 10,
#   the outputs do not change, and F for W is proportional to 1 / \|W\|² (LN, BN and weight norm, WN). F in
#   the direction of W itself is 0, and F for a gain does not change.
# - **The factor 1/2 belongs to another block.** If one row of W doubles (BN, WN), its own block of F becomes
#   1/4, and its block with another row becomes 1/2.
# - **Weights grow in training, so an update turns them less.** Its angle is proportional to 1 / \|W\|² with
#   SGD, and to 1 / \|W\| with Adam. Growth alone makes it up to 183 times smaller (LN with SGD).
# - If we keep \|W\| constant, LN with SGD does not learn, so growth is not the only cause in this case.
#
# Advice
# ------
# Expect the effective rate of a normalised layer to fall without any schedule. LN with SGD at rate 10 is
# right on 96 % of the held-out images, and with constant \|W\| on 13 %. So do not scale weights back to their
# initial length during training. Try ``RATES = {"SGD": (0.01,), "Adam": (1e-4,)}`` with ``--tune``: at low
# rates weights hardly grow.
#
# How it was measured
# -------------------
# The model is softmax regression on the digits in float64, trained for 40 epochs. WN divides W x by the
# length of each row of W. Learning rates are the best of four on held-out images. The highest was best for LN
# with SGD and for no norm with Adam. Growth below 1.1 times and a fall to more than 0.9 are ignored. The
# eight intervals hold jointly. F is an exact sum over the classes, on held-out images, with eps 0. For no
# norm and for LN, F is also computed from Kronecker products, and agrees with second differences of the KL. A
# single layer shows nothing about deep networks.


def tune(seeds, quick):
    def score(key, rate, seed):
        (norm, name), images = key.split(", "), images_of(seed, quick, EPOCHS)
        model, *_ = train(initial(norm, seed), images, OPTIMISERS[name](rate))
        return model.accuracy(images.held_x, images.held_labels, images.x)

    return tuned({f"{norm}, {name}": rates for norm in NORMS for name, rates in RATES.items()}, score, seeds)


def measure_seed(seed, settings, quick):
    images, found = images_of(seed, quick, EPOCHS), {"hand": {}, "training": {}, "curves": {}, "product": {}}
    held_out, width = (images.held_x, images.held_labels, images.x), len(images.x) // BATCH
    for norm in NORMS:
        for name in RATES:
            key, start = f"{norm}, {name}", initial(norm, seed)
            free, growth, turn, cosine = train(start, images, OPTIMISERS[name](settings[key]))
            curved = [size(replace(m, eps=0.0).root(images.held_x)) for m in (start, free)]
            found["training"][key] = {
                "growth": growth[-1], "curvature": np.log(curved[1] / curved[0]), "cosine": cosine,
                "accuracy": free.accuracy(*held_out),
            }  # fmt: skip
            found["curves"][f"growth, {key}"] = growth[::width]
            if norm in NORMALISED:
                held, _, held_turn, _ = train(start, images, OPTIMISERS[name](settings[key]), hold=True)
                by_epoch = [t.reshape(-1, width).mean(axis=1) for t in (turn, held_turn)]
                found["curves"][f"fall, {key}"] = fall = np.log(by_epoch[0] / by_epoch[1])
                found["training"][key] |= {"fall": fall[-1], "accuracy, held": held.accuracy(*held_out)}
            if name == "SGD":
                rates = {other: settings[f"{norm}, {other}"] for other in RATES if norm in NORMALISED}
                hand = by_hand(free, images, rates, OPTIMISERS)
                found["hand"][norm] = {
                    "moved": hand.pop("moved").max(), "itself": (hand.pop("itself") / hand["weight"]).max(),
                    **{name: np.polyfit(np.log(FACTORS), np.log(v), 1)[0] for name, v in hand.items()},
                }  # fmt: skip
                for of in ("weight", "gain"):
                    found["curves"][f"{of}, {norm}"] = np.log(hand[of] / hand[of][FACTORS.index(1.0)])
                if norm in ("LN", "no norm"):
                    found["product"][norm] = product_error(replace(free, eps=0.0), images.held_x, seed)
    return found


def measure(seeds, settings, quick):
    results = by_seed(lambda _, seed: measure_seed(seed, settings, quick), [0], seeds)[0]
    results["curves"] = {name: np.exp(logs.mean(axis=0)) for name, logs in results["curves"].items()}
    return results


def clauses(results):
    hand, training, count = results["hand"], results["training"], 2 * len(KEYS)

    # Whether a measure grows as factor ** power, within 0.01, for all seeds.
    near = lambda norms, name, power: all(np.abs(hand[n][name] - power).max() <= 0.01 for n in norms)  # noqa: E731
    moved, itself = (max(hand[norm][name].max() for norm in NORMALISED) for name in ("moved", "itself"))
    found = checks({
        "F (by KL) is a mean of Kronecker products: no norm, LN":
            max(error.max() for error in results["product"].values()) < 1e-4,
        "a normalised W times 0.1 to 10 gives the same outputs": moved < 1e-10,
        "F for W is proportional to 1 / |W|^2": near(NORMALISED, "weight", -2),
        "F along W itself is 0": itself < 1e-9,
        "F for a gain does not depend on |W|": near(NORMALISED, "gain", 0),
        "F for a gain does not depend on the images' scale (no norm: as its square)":
            near(JUDGED, "gain, images", 0) and near(["no norm"], "gain, images", 2),
        "one row doubled: its own block of F is 1/4, not 1/2": near(("BN", "WN"), "own", -2),
        "one row doubled: its block with another row is 1/2": near(("BN", "WN"), "cross", -1),
        "an update turns W as 1 / |W|^2 (SGD), 1 / |W| (Adam)":
            near(NORMALISED, "turn, SGD", -2) and near(NORMALISED, "turn, Adam", -1),
    })  # fmt: skip
    for key in KEYS:
        grown, fall = training[key]["growth"], training[key]["fall"]
        found.append(Clause(f"{key}: W grows in training", grown, np.log(GROWN), "times", count))
        found.append(Clause(f"{key}: so an update turns it less", -fall, -np.log(FALLEN), "times", count))
    return found


def tables(results):
    names = ["weight", "gain", "gain, images", "own", "cross", *(f"turn, {name}" for name in RATES)]
    cell = lambda own, name: f"{np.mean(own[name]).round(2) + 0.0:.2f}" if name in own else "-"  # noqa: E731
    rows = [[norm, *(cell(own, name) for name in names)] for norm, own in results["hand"].items()]
    yield table(["exponents", "F by W", "by gain", "(images)", "own", "cross", "turn, SGD", "Adam"], rows)
    rows, shares = [], ("accuracy", "accuracy, held")
    for key, own in results["training"].items():
        logs = [
            f"{np.exp(np.mean(own[of])):.2g}" if of in own else "-" for of in ("growth", "fall", "curvature")
        ]
        rows.append([key, *logs, *(percent(own[name]) if name in own else "-" for name in shares)])
    yield table(["training", "|W| grows", "turn", "F by W", "right, %", "|W| held"], rows)


STUDY = Study("weight_growth", measure, clauses, tables, draw, tune, SIZE)

if __name__ == "__main__":
    STUDY.main()
