r"""
Growing weights
===============

In a normalised model "the norm of the weight vector effectively controls the learning rate for the weight
vector" (Ba, Kiros and Hinton 2016, arXiv 1607.06450, section 5.2). Weights grow in training, so the effective
learning rate falls: "implicit early stopping". The paper argues with the Fisher information F, the curvature
of the Kullback-Leibler divergence (KL). The equation gives the block of F for rows i and j of the weights, in
softmax regression with probabilities p. The norm has the deviation :math:`\sigma_i` and the gain
:math:`g_i`. The derivative of the normalised sum i with respect to row i is :math:`\chi_i / \sigma_i`:

.. math::

    F_{ij} = \mathbb{E}_x\!\left[ \mathrm{Cov}(y_i, y_j)\, \frac{g_i g_j}{\sigma_i \sigma_j}\,
    \chi_i \chi_j^\top \right], \qquad
    \mathrm{KL}(\theta \,\|\, \theta + \delta) \approx \tfrac{1}{2} \delta^\top F \delta

Without a norm F is a mean of Kronecker products, :math:`(\mathrm{diag}(p) - p p^\top) \otimes x x^\top`.
If :math:`w_i` doubles, :math:`\sigma_i` doubles too. According to the paper, the curvature along :math:`w_i`
then changes "by a factor of 1/2".
"""

from dataclasses import dataclass, replace

import numpy as np
from common import (
    CLASSES,
    FOLDS,
    PIXELS,
    Clause,
    Study,
    best,
    checks,
    load_digits,
    percent,
    show,
    side_by_side,
    stacked,
    table,
)
from nets import Sgd
from plots import STYLES, tidy

import lnrnn
from lnrnn.demo import label_places
from lnrnn.speakers import Adam

# Constants to change.
RATES = {"SGD": (0.01, 0.1, 1.0, 10.0), "Adam": (1e-4, 1e-3, 1e-2, 1e-1)}
EPOCHS, BATCH = 40, 32
EPS = 1e-5  # in training; the Fisher information is computed with eps 0
FACTORS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
GROWN, FALLEN = 1.1, 0.9  # margins: growth of the weights, fall of the effective rate
NORMS = ("no norm", "WN", "BN", "LN")
NORMALISED, JUDGED = NORMS[1:], NORMS[:1:-1]
OPTIMISERS = {"SGD": Sgd, "Adam": Adam}


def draw(results, figure):
    """Draws F for weights scaled by hand, and in training growth of weights and angles of updates."""
    hand, grown, turned = figure.subplots(1, 3)
    for name, line, marker in (("LN", "-", ""), ("BN", "none", "^")):
        colour, _, width = STYLES[name]
        for what in ("weight", "gain"):
            curve = results["curves"][f"{what}, {name}"]
            hand.loglog(FACTORS, curve, ls=line, marker=marker, color=colour, lw=width, label=name)
    hand.legend(*(found[::2] for found in hand.get_legend_handles_labels()), loc="lower left", frameon=False)
    hand.annotate("by W", (0.15, 5))
    hand.annotate("by a gain", (0.12, 0.45))
    hand.set_xticks((0.1, 1, 10), ("0.1", "1", "10"))
    hand.set_yticks((0.01, 0.1, 1, 10, 100), ("0.01", "0.1", "1", "10", "100"))
    tidy(hand, "W 10 times as long:\nF a hundredth", xlabel="W times", ylabel="Fisher information F")
    in_training(grown, results, "growth", (1, 2, 5, 10, 20))
    tidy(grown, "W grows in training", xlabel="passes over the images", ylabel="|W| over |W| at the start")
    in_training(turned, results, "fall", (0.001, 0.01, 0.1, 1))
    labels = {"xlabel": "passes over the images", "ylabel": "angle of an update, |W| free / held"}
    tidy(turned, "A longer W turns less", **labels)


def in_training(axes, results, what, ticks):
    """Draws a curve for each norm and optimiser, with the name of both at its end."""
    ends, passes = {}, len(results["curves"][f"{what}, LN, SGD"]) - 1
    for key in (f"{norm}, {name}" for norm in JUDGED for name in RATES):
        colour, _, width = STYLES[key.split(",")[0]]
        curve = results["curves"][f"{what}, {key}"]
        axes.semilogy(curve, "-" if "SGD" in key else "--", color=colour, lw=width)
        ends[key] = np.log10(curve[-1]), colour
    axes.set_ylim(ticks[0] * 0.8, ticks[-1] * 1.2)
    heights = label_places([float(end) for end, _ in ends.values()], 0.07 * np.log10(ticks[-1] / ticks[0]))
    for (key, (_, colour)), height in zip(ends.items(), heights, strict=True):
        axes.annotate(key, (passes, 10**height), (4, 0), "data", "offset points", color=colour, va="center")
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


show("weight_growth", draw, (10.0, 3.8))

# %%
# Result
# ------
# - **Longer weights have less curvature: this follows from the formula, and holds.** If W is multiplied by
#   0.1 to 10, the outputs do not change, and F for W is proportional to 1 / \|W\|² (LN, BN and weight norm,
#   WN). F in the direction of W itself is 0, and F for a gain does not change.
# - **The factor 1/2 belongs to another block.** If one row of W doubles (BN, WN), its own block of F becomes
#   1/4, and its block with another row becomes 1/2.
# - **Weights grow in training: confirmed.** They grow with SGD (LN 14 times, BN 1.2 times) and with Adam (LN
#   2.1 times, BN 3.1 times).
# - **As weights grow, an update turns them less: confirmed.** The angle of an update is proportional to 1 /
#   \|W\|² with SGD, and to 1 / \|W\| with Adam. So growth alone makes this angle smaller: 183 times (LN with
#   SGD), 2.1 times (LN with Adam), 1.4 times (BN with SGD) and 3.1 times (BN with Adam).
# - If we keep \|W\| constant in training, the angles are 918 and 3.4 times larger (LN with SGD, Adam), and
#   1.5 and 3.8 times larger (BN). LN with SGD and constant \|W\| does not learn, so its gradients stay large.
#   In this case growth is not the only cause.
#
# Advice
# ------
# Expect the effective rate of a normalised layer to fall without any schedule. Growth can make a high rate
# usable. LN with SGD at rate 10 is right on 96 % of the held-out images, and with constant \|W\| on 13 %,
# hardly more than chance. So do not scale weights back to their initial length during training.
#
# Try it yourself
# ---------------
# Set ``RATES = {"SGD": (0.01,), "Adam": (1e-4,)}`` and run with ``--tune``: at low rates weights hardly grow.
#
# How it was measured
# -------------------
# The model is softmax regression on scikit-learn's digits (64 pixels, 10 classes) in float64, trained for 40
# epochs on 800 images in batches of 32. WN divides W x by the length of each row of W. Under LN outputs do
# not depend on the length of W as a whole, under BN and WN not on the length of any row. Learning rates are
# the best of four on 200 held-out images, seeds 0 to 4. The highest was best for LN with SGD and for no norm
# with Adam. Results come from seeds 5 to 24. Growth below 1.1 times and a fall to more than 0.9 are ignored.
# The eight intervals hold jointly.
#
# F is an exact sum over the classes, on held-out images, with eps 0. For no norm and for LN, F is also
# computed from Kronecker products, with the derivative of LN on both sides of the covariance. F agrees with
# second differences of the KL. The paper derives all this and measures none of it. A single layer shows
# nothing about deep networks.


@dataclass(frozen=True)
class Regression:
    """Softmax regression, logits = gain * norm(W x) + bias: weight (C, I), gain (C,), bias (C,), float64.

    Weight norm (WN; Salimans, Kingma 2016) divides W x by the length of each row of W. Without a norm the
    gain is always 1."""

    norm: str
    weight: np.ndarray
    gain: np.ndarray
    bias: np.ndarray
    eps: float = EPS

    def normalised(self, z):
        """Returns norm(z) for z = W x (N, C). Batch norm has the statistics of these N images."""
        if self.norm == "LN":
            return lnrnn.layer_norm(z, z.shape[1], eps=self.eps)
        if self.norm == "BN":
            return lnrnn.batch_norm(z, None, None, training=True, eps=self.eps)
        return z / lengths(self.weight) if self.norm == "WN" else z

    def through_norm(self, g, z):
        """Returns the derivative of norm(z) times g, (N, C). The derivative is symmetric, so the library's
        backward function also computes forward derivatives. Not for WN, which depends on W too."""
        if self.norm == "LN":
            return lnrnn.layer_norm_backward(g, z, z.shape[1], eps=self.eps)[0]
        if self.norm == "BN":
            return lnrnn.batch_norm_backward(g, z, training=True, eps=self.eps)[0]
        return g

    def products(self, x):
        return np.einsum("ni,ci->nc", x, self.weight)

    def logits(self, x):
        return self.gain * self.normalised(self.products(x)) + self.bias

    def accuracy(self, x, labels, trained):
        """Returns accuracy in inference mode. Batch norm has the statistics of ``trained`` (M, I)."""
        if self.norm != "BN":
            return (self.logits(x).argmax(axis=1) == labels).mean()
        z = self.products(trained)
        mean, var = z.mean(axis=0), z.var(axis=0)
        found = lnrnn.batch_norm(self.products(x), mean, var, self.gain, self.bias, eps=self.eps)
        return (found.argmax(axis=1) == labels).mean()

    def gradients(self, x, labels):
        """Returns the gradients of the mean cross-entropy over x (N, I) for weight, gain and bias."""
        z = self.products(x)
        n = self.normalised(z)
        g = softmax(self.gain * n + self.bias)
        g[np.arange(len(x)), labels] -= 1
        g /= len(x)
        gn = g * self.gain
        if self.norm == "WN":
            length = lengths(self.weight)[:, None]
            unit = self.weight / length
            gw = np.einsum("nc,ni->ci", gn, x)
            gw = (gw - unit * np.einsum("ci,ci->c", gw, unit)[:, None]) / length
        else:
            gw = np.einsum("nc,ni->ci", self.through_norm(gn, z), x)
        ggain = np.zeros_like(self.gain) if self.norm == "no norm" else np.einsum("nc,nc->c", g, n)
        return {"weight": gw, "gain": ggain, "bias": g.sum(axis=0)}

    def scaled(self, factor):
        return replace(self, weight=factor * self.weight)

    def groups(self, weight):
        """Returns the vectors in weight (C, I) whose length does not change the outputs.

        For LN all values form one vector, else each row is a vector.
        """
        return weight.reshape(1, -1) if self.norm == "LN" else weight

    # The Fisher information ---------------------------------------------------------------------------------

    def derivative(self, z):
        """Returns the derivative of norm(z)[n, k] with respect to z[n, c], (N, K, C). Not for BN and WN."""
        units = np.eye(z.shape[1])
        return np.stack([self.through_norm(np.broadcast_to(unit, z.shape), z) for unit in units], axis=2)

    def root(self, x):
        """Returns A (N, K, C, I) with F = A'A, summed over images and classes. A is the derivative of logits
        with respect to W, minus its mean under the softmax p, times the root of p / N."""
        z, p = self.products(x), softmax(self.logits(x))
        if self.norm in ("LN", "no norm"):
            a = np.einsum("nkc,ni->nkci", self.derivative(z), x)
        else:
            a = np.zeros((len(x), CLASSES, *self.weight.shape))[:, : z.shape[1]]
            n, length = self.normalised(z), lengths(self.weight)
            for c, row in enumerate(self.weight):
                if self.norm == "WN":
                    a[:, c, c] = (x - n[:, c, None] * row / length[c]) / length[c]
                else:
                    a[:, c, c] = self.through_norm(x, np.repeat(z[:, c, None], x.shape[1], axis=1))
        a *= self.gain[:, None, None]
        a -= np.einsum("nk,nkci->nci", p, a)[:, None]
        a *= np.sqrt(p / len(x))[:, :, None, None]
        return a

    def gain_curvature(self, x):
        """Returns F for the gain of one class, averaged over classes. Without a norm: for the length of a row
        of W, which corresponds to a gain."""
        p, n = softmax(self.logits(x)), self.normalised(self.products(x))
        if self.norm == "no norm":
            n = n / lengths(self.weight)
        return (p * (1 - p) * n**2).mean()

    def product_form(self, x):
        """Returns F (CI, CI) as a mean of Kronecker products of C(x) and x x', for LN and for no norm. C(x)
        is D' (diag(p) - p p') D, and D is the derivative of the logits with respect to W x."""
        z, p = self.products(x), softmax(self.logits(x))
        d = self.gain[:, None] * self.derivative(z)
        covariance = np.eye(len(self.gain)) * p[:, None] - p[:, :, None] * p[:, None]
        c = np.einsum("nka,nkl,nlb->nab", d, covariance, d)
        f = np.einsum("nab,ni,nj->aibj", c, x, x, optimize=False) / len(x)
        return f.reshape(self.weight.size, self.weight.size)


def softmax(logits):
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def lengths(rows):
    return np.sqrt(np.einsum("gi,gi->g", rows, rows))


def angles(a, b):
    """Returns the angles between rows of a and b, in radians. Angles follow from the distance of unit
    vectors, because the cosine of a small angle is 1 to the last bit."""
    apart = a / lengths(a)[:, None] - b / lengths(b)[:, None]
    return 2 * np.arcsin(np.minimum(lengths(apart) / 2, 1))


def size(a):
    return (a**2).sum()


def divergence(model, other, x):
    """Returns the Kullback-Leibler divergence of other's probabilities from model's, averaged over x."""
    p, q = softmax(model.logits(x)), softmax(other.logits(x))
    return (p * np.log(p / q)).sum(axis=1).mean()


def second_difference(model, x, direction, step=1e-3):
    """Returns the second difference of the divergence along a direction d of the weights: about d' F d."""
    ends = [replace(model, weight=model.weight + sign * step * direction) for sign in (1, -1)]
    return sum(divergence(model, end, x) for end in ends) / step**2


# %%
# Training


@dataclass(frozen=True)
class Images:
    """A seed's training images, held-out images, and order of training, (updates, BATCH)."""

    x: np.ndarray
    labels: np.ndarray
    held_x: np.ndarray
    held_labels: np.ndarray
    order: np.ndarray


def images_of(seed, quick):
    data = load_digits()
    count, epochs = (160, 2) if quick else (800, EPOCHS)
    held, trained = data.fold == seed % FOLDS, data.without_fold(seed % FOLDS)[:count]
    rng = np.random.default_rng([1, seed])
    order = [rng.permutation(count)[: count - count % BATCH].reshape(-1, BATCH) for _ in range(epochs)]
    x, labels = data.train_x.astype(np.float64), data.train_labels
    return Images(x[trained], labels[trained], x[held], labels[held], np.concatenate(order))


def initial(norm, seed):
    """Returns a model with normal weights, so that a row's length is about 1, gains 1 and biases 0."""
    weight = np.random.default_rng(seed).standard_normal((CLASSES, PIXELS)) / PIXELS**0.5
    return Regression(norm, weight, np.ones(CLASSES), np.zeros(CLASSES))


def updated(model, images, chosen, steps):
    """Returns weight, gain and bias after one update, and the gradient of the weight."""
    gradients = model.gradients(images.x[chosen], images.labels[chosen])
    parameters = {"weight": model.weight, "gain": model.gain, "bias": model.bias}
    return steps.step(parameters, gradients), gradients["weight"]


def train(model, images, steps, hold=False):
    """Returns (the trained model, growth, angles, the largest cosine between one of `model.groups` and its
    gradient). growth (U + 1,): log(length of weights / initial length), averaged over groups. angles (U,):
    the mean angle of each update. hold: scale groups to initial lengths after each update."""
    start = lengths(model.groups(model.weight))
    growth, turn, cosine = [0.0], [], 0.0
    for chosen in images.order:
        moved, gradient = updated(model, images, chosen, steps)
        old, g, new = (model.groups(w) for w in (model.weight, gradient, moved["weight"]))
        dots = np.abs(np.einsum("gi,gi->g", old, g))
        cosine = max(cosine, (dots / np.maximum(lengths(old) * lengths(g), 1e-300)).max())
        turn.append(angles(old, new).mean())
        if hold:
            new = new * (start / lengths(new))[:, None]
        model = replace(model, weight=new.reshape(model.weight.shape), gain=moved["gain"], bias=moved["bias"])
        growth.append(np.log(lengths(new) / start).mean())
    return model, np.array(growth), np.array(turn), cosine


def turned_at_once(model, images, steps):
    """Returns the angle by which one update turns `model.groups`, on average."""
    moved, _ = updated(model, images, images.order[0], steps)
    return angles(model.groups(model.weight), model.groups(moved["weight"])).mean()


def by_hand(model, images, rates):
    """Multiplies a trained model's weights by each of FACTORS.

    Returns {name of a measure: values, one for each factor}.
    """
    model, x, found = replace(model, eps=0.0), images.held_x, []
    for factor in FACTORS:
        longer = model.scaled(factor)
        a = longer.root(x)
        # Without a norm, multiply the images and divide W, so that the outputs stay.
        other = model.scaled(1 / factor) if model.norm == "no norm" else model
        groups = longer.groups(longer.weight)
        units = np.eye(len(groups))[:, :, None] * groups / lengths(groups)[:, None]
        along = [size(np.einsum("nkci,ci->nk", a, unit.reshape(model.weight.shape))) for unit in units]
        values = {
            "moved": np.abs(longer.logits(x) - model.logits(x)).max(),
            "weight": size(a) / model.weight.size,  # averaged over all directions
            "itself": np.mean(along),
            "gain": longer.gain_curvature(x),
            "gain, images": other.gain_curvature(factor * x),
        }
        if model.norm in ("BN", "WN"):
            first = np.ones((CLASSES, 1))
            first[0] = factor
            a = model.scaled(first).root(x)
            values["own"] = size(a[:, :, 0]) / PIXELS
            values["cross"] = size(np.einsum("nki,nkj->ij", a[:, :, 0], a[:, :, 1])) ** 0.5
        for name, rate in rates.items():  # steps are small, so that the angle is proportional to the rate
            values[f"turn, {name}"] = turned_at_once(longer, images, OPTIMISERS[name](1e-3 * rate))
        found.append(values)
    return {name: np.array([values[name] for values in found]) for name in found[0]}


# %%
# Tuning and measuring


def tune(seeds, quick):
    """Returns for each norm and optimiser the rate with the best accuracy on the held-out fold."""

    def score(cell):
        norm, name, rate = cell
        found = []
        for seed in seeds:
            images = images_of(seed, quick)
            model, *_ = train(initial(norm, seed), images, OPTIMISERS[name](rate))
            found.append(model.accuracy(images.held_x, images.held_labels, images.x))
        return float(np.mean(found))

    cells = [(norm, name, rate) for norm in NORMS for name, rates in RATES.items() for rate in rates]
    scores = dict(zip(cells, side_by_side(score, cells, "rates"), strict=True))
    kinds = [(norm, name, rates) for norm in NORMS for name, rates in RATES.items()]
    return {f"{n}, {o}": best(rates, [scores[n, o, rate] for rate in rates]) for n, o, rates in kinds}


def measure_seed(seed, settings, quick):
    images, found = images_of(seed, quick), {"hand": {}, "training": {}, "curves": {}, "product": {}}
    for norm in NORMS:
        for name in RATES:
            key, start = f"{norm}, {name}", initial(norm, seed)
            free, growth, turn, cosine = train(start, images, OPTIMISERS[name](settings[key]))
            curved = [size(replace(m, eps=0.0).root(images.held_x)) for m in (start, free)]
            held_out = images.held_x, images.held_labels, images.x
            found["training"][key] = {
                "growth": growth[-1], "curvature": np.log(curved[1] / curved[0]), "cosine": cosine,
                "accuracy": free.accuracy(*held_out),
            }  # fmt: skip
            width = len(images.x) // BATCH
            found["curves"][f"growth, {key}"] = growth[::width]
            if norm in NORMALISED:
                held, _, held_turn, _ = train(start, images, OPTIMISERS[name](settings[key]), hold=True)
                by_epoch = [t.reshape(-1, width).mean(axis=1) for t in (turn, held_turn)]
                fall = np.log(by_epoch[0] / by_epoch[1])
                found["curves"][f"fall, {key}"] = fall
                found["training"][key] |= {"fall": fall[-1], "accuracy, held": held.accuracy(*held_out)}
            if name == "SGD":
                rates = {other: settings[f"{norm}, {other}"] for other in RATES if norm in NORMALISED}
                hand = by_hand(free, images, rates)
                found["hand"][norm] = {
                    "moved": hand.pop("moved").max(), "itself": (hand.pop("itself") / hand["weight"]).max(),
                    **{name: np.polyfit(np.log(FACTORS), np.log(v), 1)[0] for name, v in hand.items()},
                }  # fmt: skip
                for what in ("weight", "gain"):
                    found["curves"][f"{what}, {norm}"] = np.log(hand[what] / hand[what][FACTORS.index(1.0)])
                if norm in ("LN", "no norm"):
                    model = replace(free, eps=0.0)
                    d = np.random.default_rng([2, seed]).standard_normal(model.weight.size)
                    d *= lengths(model.groups(model.weight)).max() / np.sqrt(size(d))
                    expected = second_difference(model, images.held_x, d.reshape(model.weight.shape))
                    product = model.product_form(images.held_x)
                    found["product"][norm] = abs(np.einsum("i,ij,j->", d, product, d) / expected - 1)
    return found


def measure(seeds, settings, quick):
    results = stacked(side_by_side(lambda seed: measure_seed(seed, settings, quick), seeds, "seeds"))
    # The figure shows geometric means.
    results["curves"] = {name: np.exp(logs.mean(axis=0)) for name, logs in results["curves"].items()}
    return results


def near(results, norms, name, power):
    """Returns whether the measure ``name`` grows as factor ** power, within 0.01, for all norms and seeds."""
    return all(np.abs(results["hand"][norm][name] - power).max() <= 0.01 for norm in norms)


def clauses(results):
    hand, training, product = results["hand"], results["training"], results["product"]
    moved, itself = (max(hand[norm][name].max() for norm in NORMALISED) for name in ("moved", "itself"))
    images = near(results, JUDGED, "gain, images", 0) and near(results, ["no norm"], "gain, images", 2)
    turns = [near(results, NORMALISED, f"turn, {name}", power) for name, power in (("SGD", -2), ("Adam", -1))]
    own, cross = (near(results, ("BN", "WN"), *what) for what in (("own", -2), ("cross", -1)))
    kronecker = max(p.max() for p in product.values())
    found = checks({
        "F (by KL) is a mean of Kronecker products: no norm, LN": kronecker < 1e-4,
        "a normalised W times 0.1 to 10 gives the same outputs": moved < 1e-10,
        "F for W is proportional to 1 / |W|^2": near(results, NORMALISED, "weight", -2),
        "F along W itself is 0": itself < 1e-9,
        "F for a gain does not depend on |W|": near(results, NORMALISED, "gain", 0),
        "F for a gain does not depend on the images' scale (no norm: as its square)": images,
        "one row doubled: its own block of F is 1/4, not 1/2": own,
        "one row doubled: its block with another row is 1/2": cross,
        "an update turns W as 1 / |W|^2 (SGD), 1 / |W| (Adam)": all(turns),
    })  # fmt: skip
    for key in (f"{norm}, {name}" for name in RATES for norm in JUDGED):
        of, count = training[key], len(RATES) * len(JUDGED) * 2
        found += [
            Clause(f"{key}: W grows in training", of["growth"], np.log(GROWN), "times", count),
            Clause(f"{key}: so an update turns it less", -of["fall"], -np.log(FALLEN), "times", count),
        ]
    return found


def tables(results):
    names = ["weight", "gain", "gain, images", "own", "cross", *(f"turn, {name}" for name in RATES)]
    rows = [
        [norm, *(f"{np.mean(hand[name]).round(2) + 0.0:.2f}" if name in hand else "-" for name in names)]
        for norm, hand in results["hand"].items()
    ]
    header = ["exponents", "F by W", "by gain", "(images)", "own", "cross", "turn, SGD", "Adam"]
    found = table(header, rows) + "\n\n"
    rows, accuracies = [], ("accuracy", "accuracy, held")
    for key, of in results["training"].items():
        logs = [of.get(name) for name in ("growth", "fall", "curvature")]
        cells = ["-" if log is None else f"{np.exp(np.mean(log)):.2g}" for log in logs]
        rows.append([key, *cells, *(percent(of[name]) if name in of else "-" for name in accuracies)])
    header = ["training", "|W| grows", "turn", "F by W", "right, %", "|W| held"]
    return found + table(header, rows)


STUDY = Study("weight_growth", measure, clauses, tables, draw, tune, (10.0, 3.8))

if __name__ == "__main__":
    STUDY.main()
