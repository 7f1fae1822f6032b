r"""
Small batches
=============

"Layer normalization is robust to the batch-sizes", and batch norm is not (Ba, Kiros and Hinton 2016, arXiv
1607.06450, section 6.6). A post adds that batch norm (BN) beats layer norm (LN) with large batches, and LN
beats BN with small ones. BN normalises unit :math:`i` over the batch, LN normalises sample :math:`n` over its
units:

.. math::

   \mathrm{BN}: \frac{a_{n,i} - \mu_i}{\sigma_i} \qquad\qquad \mathrm{LN}: \frac{a_{n,i} - \mu_n}{\sigma_n}
"""

import numpy as np
from common import NORMS, Check, Clause, Study, percent, points, refusal, show, side_by_side, table
from nets import FeedForward, accuracy, best_rates, key, train_on_digits
from plots import STYLES, forest, lines, tidy
from study_data import load_digits

# Constants to change.
BATCHES = (256, 128, 32, 8, 4, 2, 1)
LARGE, SMALL = 128, (4, 2)
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
EPOCHS = 30
MARGIN = 0.01  # a loss of at most one point of accuracy is ignored
NOISY = 32  # the batch size at which BN is compared with NOISELESS
SIZE = (10, 4)
NOISELESS = "BN without noise"  # BN with the statistics of all training images at each update


def difference(results, a, b, size):
    return results["accuracy"][f"{a}, {size}"] - results["accuracy"][f"{b}, {size}"]


def draw(results, figure):
    """Draws test accuracy by batch size, and the difference between LN and BN."""
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    sizes = [size for size in BATCHES if size > 1][::-1]
    left.set_xscale("log", base=2)
    left.set_ylim(70, 100)
    shares = {n: np.stack([results["accuracy"][f"{n}, {size}"] for size in sizes], axis=1) for n in NORMS}
    lines(left, sizes, {name: 100 * values for name, values in shares.items()})
    left.set_xticks(sizes, map(str, sizes))
    labels = {"xlabel": "images per batch", "ylabel": "accuracy on the test images, %"}
    tidy(left, "At 2 images a batch BN breaks down", **labels)
    forest(right, {f"LN, {size}": difference(results, "LN", "BN", size) for size in sizes[1:]})
    right.set_yticklabels([str(size) for size in sizes[1:]], color=STYLES["LN"][0])
    labels = {"xlabel": "LN minus BN, points of accuracy", "ylabel": "images per batch"}
    tidy(right, "LN is ahead at 4 images, BN at 128", **labels)


show("batch_size", draw, SIZE)

# %%
# Result
# ------
# - **LN keeps its accuracy with small batches, BN does not.** With 2 images BN's outputs are all +1 or -1,
#   and it loses 24 points. One image is an error. At 4 images LN is as accurate as no norm, and BN is 1.5
#   points below.
# - Small batches mean more updates, so LN and no norm gain accuracy. BN is 0.6 points better than LN at 128
#   images.
# - **"The noise of batch statistics regularises": unclear.** With statistics of all 800 training images BN is
#   as accurate. All networks fit the training images perfectly.
#
# Advice
# ------
# Below 16 images per batch use LN. Above 64 try both. Do not judge BN by its accuracy in training mode: with
# batches of 8 it is 5.5 points below that in inference mode. Try ``EPOCHS = 10``: large batches then lose
# accuracy.
#
# How it was measured
# -------------------
# The network has layers of 64-32-32-10 units, and learns the digits for 30 epochs. For each norm and batch
# size we take the best of five learning rates. The highest was the best for LN at 32, and for BN and no norm
# at 256. We chose the margin. The five intervals of losses hold jointly at 95 %, and so do the four of LN
# against BN. The right panel omits 2 images, and its intervals are not corrected. All seeds share one test
# set, which adds an uncertainty of 0.7 points. The paper trained larger networks on MNIST.


def parts():  # small batches, which take longest, come first
    return [(n, size) for size in sorted(BATCHES) for n in NORMS if NORMS[n] != "batch" or size > 1]


def trained(part, seeds, rates, quick):
    """Returns a stack of trained networks, one for each seed and rate, and the indices of their images."""
    (name, size), (images, epochs) = part, (320, 1) if quick else (800, EPOCHS)
    if name != NOISELESS:
        networks = FeedForward(seeds, NORMS[name])
        return networks, train_on_digits(networks, seeds, rates, size, epochs, images)
    networks = FeedForward(seeds, "batch", momentum=1.0)
    own = train_on_digits(networks, seeds, rates, size, epochs, images, whole=True)
    networks.calibrate(load_digits().train_x[own])
    return networks, own


def tune(seeds, quick):
    return best_rates(parts(), RATES, seeds, lambda *how: trained(*how, quick)[0])


def measure(seeds, settings, quick):
    """Returns accuracies (S,), one per seed, by norm and batch size. accuracy: on the test images. training:
    on training images, for size NOISY. own statistics: BN's on test images in training mode."""
    data = load_digits()

    def job(part):
        name, size = part
        rate = settings[f"BN, {size}" if name == NOISELESS else key(part)]
        networks, own = trained(part, seeds, [rate] * len(seeds), quick)
        found = {"accuracy": accuracy(networks, data.test_x, data.test_labels)}
        if size == NOISY:
            found["training"] = accuracy(networks, data.train_x[own], data.train_labels[own])
        if name == "BN":
            found["own statistics"] = accuracy_in_training_mode(networks, data, size)
        return found

    every, results = [(NOISELESS, NOISY), *parts()], {}
    for part, found in zip(every, side_by_side(job, every), strict=True):
        for measured, values in found.items():
            results.setdefault(measured, {})[key(part)] = values
    one = data.train_x[:1, None], data.train_labels[:1, None]
    results["refusal"] = refusal(lambda: FeedForward([0], "batch").losses_and_gradients(*one))
    return results


def accuracy_in_training_mode(networks, data, size):
    """Returns accuracies (M,) on the test images in random batches of ``size``, with the batches' own
    statistics. The first images fill up the last batch; their second answers do not count."""
    order = np.random.default_rng(0).permutation(len(data.test_x))
    filled = np.resize(order, -(-len(order) // size) * size).reshape(-1, size)
    logits = [networks.logits(data.test_x[batch], training=True) for batch in filled]
    named = np.concatenate(logits)[: len(order)].argmax(axis=2)
    return (named == data.test_labels[order, None]).mean(axis=0)


def change(results, name, size):
    """Returns the test accuracy at batch ``size`` minus the test accuracy at LARGE, for each seed."""
    return results["accuracy"][f"{name}, {size}"] - results["accuracy"][f"{name}, {LARGE}"]


def gap(results, name):
    """Returns accuracy on training minus test images, at batch size NOISY, for each seed."""
    return results["training"][f"{name}, {NOISY}"] - results["accuracy"][f"{name}, {NOISY}"]


def clauses(results):
    ahead = {size: difference(results, "LN", "BN", size) for size in (8, *SMALL, LARGE)}
    noise = gap(results, NOISELESS) - gap(results, "BN")
    less = {name: gap(results, "no norm") - gap(results, name) for name in ("BN", "LN")}
    lost = [
        (f"LN keeps its accuracy, {LARGE} to {n}", change(results, "LN", n), -MARGIN) for n in (*SMALL, 1)
    ]
    lost += [(f"BN loses accuracy, {LARGE} to {n}", -change(results, "BN", n), MARGIN) for n in SMALL]
    orders = {f"LN is above BN at {n}": ahead[n] for n in (8, *SMALL)}
    orders[f"BN is above LN at {LARGE}"] = -ahead[LARGE]
    gaps = {f"{name} generalises better than no norm": values for name, values in less.items()}
    gaps["The noise of BN's statistics regularises"] = noise
    return [
        *(Clause(*part, comparisons=5) for part in lost),
        *(Clause(*part, 0.0, comparisons=4) for part in orders.items()),
        *(Clause(*part, 0.0, comparisons=3) for part in gaps.items()),
        Check("BN refuses a batch of one image", results["refusal"].startswith("ValueError")),
    ]


def tables(results):
    def shares(values, name):
        return [percent(v) if (v := values.get(f"{name}, {n}")) is not None else "-" for n in BATCHES]

    rows = [[name, *shares(results["accuracy"], name)] for name in NORMS]
    rows.append(["BN, the test batch's statistics", *shares(results["own statistics"], "BN")])
    yield "Accuracy on the test images in %, mean and standard deviation over the seeds"
    yield table(["images per batch", *map(str, BATCHES)], rows)
    yield f"Change in points from {LARGE} images per batch, 95 %"
    changes = {name: [*(change(results, name, size) for size in SMALL)] for name in NORMS}
    rows = [[n, *map(points, [*own, difference(results, n, "no norm", 4)])] for n, own in changes.items()]
    yield table(["", *(f"to {size}" for size in SMALL), "at 4, minus no norm"], rows)
    yield f"At {NOISY} images per batch, accuracy in %"
    both = results["training"], results["accuracy"]
    rows = [[n, *(percent(of[f"{n}, {NOISY}"]) for of in both)] for n in (*NORMS, NOISELESS)]
    yield table(["", "training images", "test images"], rows)
    yield results["refusal"]


STUDY = Study("batch_size", measure, clauses, tables, draw, tune, SIZE)

if __name__ == "__main__":
    STUDY.main()
