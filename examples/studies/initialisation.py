r"""
Weights at the start
====================

Batch norm (BN) "allows us to use much higher learning rates and be less careful about initialization" (Ioffe
and Szegedy 2015, arXiv 1502.03167, abstract). Layer norm (LN) is invariant to the scale of a weight matrix as
well (Ba, Kiros and Hinton 2016, arXiv 1607.06450, section 5.1):

.. math::

   \mathrm{norm}(c\, W x) = \mathrm{norm}(W x), \qquad c > 0

A post says the opposite: "BN對初始化參數敏感" (BN is sensitive to the initial
parameters). A translation of the paper says that LN converges faster even with
plain SGD: "即使使用简单的SGD也能更快地收敛".
"""

import numpy as np
from common import NORMS, Clause, Study, best, percent, show, side_by_side, table
from nets import Adam, FeedForward, Sgd, accuracy, held_out, train_on_digits
from plots import HEADLINE, tidy
from study_data import load_digits

# Constants to change.
SCALES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # times He's deviation, sqrt(2 / inputs)
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # of Adam
DEEP = (64, 32, 32, 32, 32, 10)
BATCH, EPOCHS = 32, 15
REACHED = 0.9  # a network that is right on this share of the test images has trained
MARGIN, FASTER = 0.1, 1.25  # margins: share of the grid; ratio of updates
SPEED_RATES = {"SGD": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0), "Adam": (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)}
OPTIMISERS = {"SGD": Sgd, "Adam": Adam}
SIZE = (10.0, 3.8)


def draw(results, figure):
    """Draws accuracy by scale and rate for each norm, with a contour at 90 %."""
    maps = figure.subplots(1, len(NORMS), sharey=True)
    for axes, (name, right) in zip(maps, results["accuracy"].items(), strict=True):
        mean = right.mean(axis=0).T
        image = axes.imshow(100 * mean, origin="lower", cmap="cividis", vmin=10, vmax=100, aspect="auto")
        axes.contour(mean, [REACHED], colors="#D55E00", linewidths=2.5)
        axes.set_xticks(range(len(SCALES))[::2], [f"{scale:g}" for scale in SCALES[::2]])
        axes.set_yticks(range(len(RATES)), [f"{rate:g}" for rate in RATES])
        share = 100 * share_of_grid(results, name).mean()
        tidy(axes, f"{name}: {share:.0f} % of the grid", xlabel="initial weights, times He's")
    maps[0].set_ylabel("learning rate of Adam")
    figure.suptitle("With a norm more of the grid trains: inside the line 90 % are right", **HEADLINE)
    figure.colorbar(image, ax=list(maps), label="right on the test images, %", pad=0.01)


def share_of_grid(results, name):
    """Returns the share of the grid of scales and rates from which networks train, for each seed."""
    return (results["accuracy"][name] >= REACHED).mean(axis=(1, 2))


show("initialisation", draw, SIZE)

# %%
# Result
# ------
# - **Normalised networks train from more scales and rates, BN from most.** Without a norm, networks train
#   almost only from He's scale or a third of it. There they are as good as normalised ones.
# - Normalised networks do not train from large scales at low rates: the output does not depend on the scale
#   of W, but the gradient does. From 100 times He's scale no network trains, because the last layer has no
#   norm.
# - **With SGD LN is not clearly faster than no norm, with Adam it is.** With SGD BN needs 20 updates, LN 53,
#   no norm 57.
#
# Advice
# ------
# If you cannot choose the initial weights, use a norm. If weights are too large, raise the learning rate. At
# high rates (0.1 with Adam) BN trains from 72 % of the scales, and LN from 17 %. Try ``EPOCHS = 45`` or
# ``DEEP = (64, 32, 10)``.
#
# How it was measured
# -------------------
# Networks of the grid learn the digits with four hidden layers of 32 units, He's weights, sqrt(2 / inputs),
# times a scale, and 15 epochs of Adam. Nothing is tuned for the grid. The share depends on the limits of the
# grid, and we chose its margin (10 points). Ioffe and Szegedy train with SGD, which does not adapt its steps
# to the gradient.
#
# Speed is measured in networks of two hidden layers at He's scale. It is the number of updates until 90 % of
# the test images are right, at the rate with the fewest updates on held-out images. At the end all networks
# are right on 95 to 96 %. The five intervals are not corrected for their number.


def trained(networks, seeds, rates, quick, **options):
    # If training fails, numbers may leave float32's range; such answers count as wrong.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        train_on_digits(networks, seeds, rates, BATCH, 1 if quick else EPOCHS, **options)


def from_scale(part, seed, quick):
    """Returns the final test accuracy for each of RATES, (rates,). part: (norm, scale)."""
    (name, scale), data, seeds = part, load_digits(), [seed] * len(RATES)
    networks = FeedForward(seeds, NORMS[name], DEEP, scale)
    trained(networks, seeds, RATES, quick)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        logits = networks.logits(data.test_x)
    right = (logits.argmax(axis=2) == data.test_labels[:, None]) & np.isfinite(logits).all(axis=2)
    return right.mean(axis=0)


def updates_to_reach(name, optimiser, seeds, rates, x, labels, quick):
    """x (B, in) or (B, M, in), labels (B,) or (B, M). Returns the number of updates to the accuracy REACHED
    on x (of all updates, if it is never reached), and the final accuracy: (M,) each."""
    networks, course = FeedForward(seeds, NORMS[name]), []
    watch = {"on_update": lambda: course.append(accuracy(networks, x, labels))}
    trained(networks, seeds, rates, quick, optimiser=OPTIMISERS[optimiser], **watch)
    reached = np.array(course) >= REACHED
    first = np.where(reached.any(axis=0), reached.argmax(axis=0) + 1, len(reached))
    return first.astype(float), course[-1]


def tune(seeds, quick):
    """Returns for each norm and optimiser the rate with the fewest updates until 90 % of the held-out fold
    are right, with initial weights of He's scale."""
    settings = {}
    for name, optimiser in ((name, optimiser) for optimiser in SPEED_RATES for name in NORMS):
        rates = SPEED_RATES[optimiser]
        each = [seed for seed in seeds for _ in rates]
        updates, _ = updates_to_reach(name, optimiser, each, rates * len(seeds), *held_out(each), quick)
        settings[f"{name}, {optimiser}"] = best(rates, -updates.reshape(len(seeds), -1).mean(axis=0))
    return settings


def measure(seeds, settings, quick):
    data, scales = load_digits(), SCALES[::4] if quick else SCALES
    cells = [((name, scale), seed, quick) for name in NORMS for seed in seeds for scale in scales]
    right = np.array(side_by_side(lambda cell: from_scale(*cell), cells, "scales"))
    right = right.reshape(len(NORMS), len(seeds), len(scales), len(RATES))

    def speed(key):
        rates, test = [settings[key]] * len(seeds), (data.test_x, data.test_labels)
        return updates_to_reach(*key.split(", "), seeds, rates, *test, quick)

    speeds = dict(zip(settings, side_by_side(speed, settings, "speed"), strict=True))
    return {
        "accuracy": dict(zip(NORMS, right, strict=True)),
        "updates": {key: updates for key, (updates, _) in speeds.items()},
        "end": {key: end for key, (_, end) in speeds.items()},
    }


def more(results, name, other):
    return share_of_grid(results, name) - share_of_grid(results, other)


def faster(results, name, optimiser):
    """Returns log(updates without a norm / updates with norm ``name``), for each seed."""
    return np.log(results["updates"][f"no norm, {optimiser}"] / results["updates"][f"{name}, {optimiser}"])


def clauses(results):
    grid = {
        "LN trains from more of the grid than no norm": more(results, "LN", "no norm"),
        "BN trains from more of the grid than no norm": more(results, "BN", "no norm"),
        '"BN is sensitive to the initial parameters": LN trains from more': more(results, "LN", "BN"),
    }
    speed = {f"with {o} LN converges faster than no norm": faster(results, "LN", o) for o in OPTIMISERS}
    found = [Clause(*part, MARGIN) for part in grid.items()]
    return found + [Clause(*part, np.log(FASTER), "times") for part in speed.items()]


def tables(results):
    shares = [[name, percent(share_of_grid(results, name))] for name in NORMS]
    yield table([f"{100 * REACHED:.0f} % reached", "of the grid, %"], shares)
    for axis, of, values in ((2, "scale", SCALES), (1, "rate", RATES)):
        reached = {
            name: (right >= REACHED).mean(axis=(0, axis)) for name, right in results["accuracy"].items()
        }
        rows = [[name, *(f"{100 * share:.0f}" for share in own)] for name, own in reached.items()]
        yield table([f"by {of}, %", *(f"{value:g}" for value in values)][: len(rows[0])], rows)
    rows = []
    for key, updates in results["updates"].items():
        spread = f"{updates.min():.0f} to {updates.max():.0f}"
        rows.append([key, f"{updates.mean():.0f}", spread, percent(results["end"][key])])
    yield table(["", f"updates to {100 * REACHED:.0f} %", "range", "in the end, %"], rows)


STUDY = Study("initialisation", measure, clauses, tables, draw, tune, SIZE)

if __name__ == "__main__":
    STUDY.main()
