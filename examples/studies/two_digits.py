r"""
Two digits in a row
===================

Batch norm (BN) per time step has statistics for the steps of training, 1 to T. "Generalizing the model to
sequences longer than those seen during training is straightforward": repeat the statistics of step T
(Cooijmans et al. 2016, arXiv 1603.09025, section 3):

.. math::

   (\mu_t, \sigma_t) = (\mu_T, \sigma_T), \qquad t > T

In :doc:`long_sequences` this fails, but only one training sequence reaches the last step there. So one may
expect that a step can be repeated if *most* sequences reach it. Here all sequences reach every step.
"""

import itertools

import numpy as np
import pixels
from common import (
    FOLDS,
    PIXELS,
    Check,
    Clause,
    Study,
    interval,
    load_digits,
    percent,
    points,
    show,
    side_by_side,
    table,
)
from pixels import IN_ORDER, NORMS, accuracy, extent, sequences, trained
from plots import STYLES, tidy

# Constants to change. The network and its training are in pixels.py.
MARGIN = 0.03  # a difference of at most three points of accuracy is ignored
REPEATED = range(1, PIXELS + 1)  # each of these steps is tried as the one that is repeated past step 64
# FIRST numbers the 64 steps. LAST to PAIRS say where BN takes mean and deviation past step 64.
FIRST = np.arange(PIXELS)
LAST, AGAIN = "BN, step 64 repeated", "BN, steps 1 to 64 again"
MEAN, BATCH, PAIRS = "BN, mean of the 64 steps", "BN, from the test batch", "BN, from training pairs"
WAYS = ("LN", "no norm", LAST, MEAN, AGAIN, BATCH, PAIRS)


def draw(results, figure):
    """Draws accuracy on an image alone, and on the same image after another one."""
    axes = figure.subplots()
    for place, way in enumerate(WAYS):
        name = way.split(",")[0]
        colour, marker, _ = STYLES[name]
        alone, after = (100 * results[key].mean() for key in (f"{name}, alone", way))
        low, high = (100 * end for end in interval(results[way]))
        axes.plot([after, alone], [place, place], color=colour, lw=1, ls=":")
        axes.plot([low, high], [place, place], color=colour, lw=4, alpha=0.5)
        axes.plot(alone, place, marker, color=colour, mfc="white", ms=9)
        axes.plot(after, place, marker, color=colour, ms=9)
        style = {"textcoords": "offset points"}
        axes.annotate(f"{after:.0f}", (after, place), (0, 8), color=colour, ha="center", **style)
    for text, at, side in (
        ("after another image", results["LN"], "right"), ("alone", results["LN, alone"], "left"),
    ):  # fmt: skip
        axes.annotate(text, (100 * at.mean(), -0.12), (0, 20), ha=side, **style)
    axes.axvline(10, color="#333333", lw=0.8, ls=":")
    axes.annotate("chance", (10, 0), xytext=(4, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(WAYS)), WAYS)
    axes.set_ylim(len(WAYS) - 0.5, -0.9)
    tidy(
        axes, "All images reach step 64, and repeating it still drops BN to near chance",
        xlabel="right on the test images, %", xlim=(0, 100),
    )  # fmt: skip


show("two_digits", draw)

# %%
# Each row of BN has another source of means and deviations past step 64. Bars are 95 % intervals over 20
# seeds.
#
# Result
# ------
# On test images alone BN is right in 92.6 %. If each image follows another one and BN repeats the statistics
# of step 64, it is right in 12.5 %; chance is 10 %. All 800 training images reach step 64, so too few images
# are not the cause.
#
# No other step can be repeated either. Even if we take for each seed the step that is best on the test
# images, BN loses 54 points. With the mean of all 64 steps it loses 66.
#
# The network itself still works: it reaches 85.6 % if the statistics of steps 1 to 64 are used a second time.
# So statistics must come from steps with similar states. The paper expects states to settle, but while the
# network reads an image they do not.
#
# Networks with LN or without a norm store no statistics, but lose too: from 87.8 to 73.9 %, and from 88.6 to
# 73.3. They learnt with an empty initial state, and here begin with the state after another image. So "LN
# keeps its accuracy past its training length" is refuted here. But LN loses 66 points fewer than BN that
# repeats step 64.
#
# Advice
# ------
# If you know where an image begins, reset the state there, so that every image is read alone. If you do not,
# join training sequences to the expected length and recompute BN's statistics on them (``calibrate``). No
# weight changes, and BN reaches 88.4 % (here with the h0 noise of training). The statistics of the test batch
# are nearly as good (87.9 %), but then an answer depends on the other sequences of its batch.
#
# Try it yourself
# ---------------
# - ``REPEATED = (31, 32)``: step 31 is the best one to repeat, at 33 %, but step 32 only reaches 11.
# - ``NOISE = 0`` in ``pixels.py``: BN is worse even on an image alone.
# - ``NORMS["LN"]`` of ``pixels.py``: try another placement of LN.
#
# How it was measured
# -------------------
# Networks, training and settings are those of :doc:`pixels`, with pixels in order. An image is 64 steps of
# one pixel. In the test each of the 797 test images follows another one, drawn at random for each seed. The
# label is that of the last image. Past step 64, BN gets the statistics of a single step, of steps 1 to 64
# again, or their mean. In the last two rows it gets those of the test batch, or of 800 training pairs.
#
# Results come from seeds 5 to 24. The eight intervals are Student's t, and not corrected for their number. We
# chose the margin of three points, and no verdict here depends on it.


def tune(seeds, quick):
    return pixels.tune(seeds, quick, (IN_ORDER,))


def after_another(images, seed):
    """Returns sequences (128, N, 1) of pixels: a random image, and then one of ``images`` (N, 64)."""
    order = np.random.default_rng([4, seed]).permutation(len(images))
    earlier = np.empty_like(order)
    earlier[order] = np.roll(order, 1)
    return np.concatenate([sequences(images[earlier]), sequences(images)])


def use_statistics_of(rnn, steps):
    """Replaces the statistics of step i by those of step steps[i], for every i."""
    state = rnn.state_dict()
    of_steps = {name: value[steps] for name, value in state.items() if name.startswith(("running", "count"))}
    rnn.load_state_dict({**state, **of_steps})


def by_statistics(network, learnt, pairs, labels, seed):
    """Returns BN's accuracy on pairs by the source of its statistics past step 64. "repeated" has an accuracy
    for each step of REPEATED. learnt: the training images."""
    rnn, found = network.rnn, {}
    known = rnn.state_dict()
    for way, overrun in ((LAST, "last"), (MEAN, "mean"), (BATCH, "batch")):
        rnn.overrun = overrun
        found[way] = accuracy(network, pairs, labels)

    def with_steps(later):
        rnn.load_state_dict(known)
        use_statistics_of(rnn, np.concatenate([FIRST, later]))
        return accuracy(network, pairs, labels)

    found["repeated"] = [with_steps(np.full(PIXELS, step - 1)) for step in REPEATED]
    found[AGAIN] = with_steps(FIRST)
    rnn.calibrate_noisily(after_another(learnt, seed), seed)
    found[PAIRS] = accuracy(network, pairs, labels)
    return found


def measure(seeds, settings, quick):
    data, (images, _, epochs) = load_digits(), extent(quick)

    def job(item):
        name, seed = item
        setting = settings[f"{name}, {IN_ORDER}"]
        network, _ = trained(data, name, IN_ORDER, setting, seed, epochs, images, every=epochs)
        labels, pairs = data.test_labels, after_another(data.test_x, seed)
        found = {f"{name}, alone": accuracy(network, sequences(data.test_x), labels)}
        if name != "BN":
            return found | {name: accuracy(network, pairs, labels)}
        counts = network.rnn.state_dict()["count_l0"]
        learnt = data.train_x[data.without_fold(seed % FOLDS)[:images]]
        ways = by_statistics(network, learnt, pairs, labels, seed)
        return found | ways | {"known steps": len(counts), "least reached": counts.min() / counts.max()}

    found = iter(side_by_side(job, itertools.product(NORMS, seeds), "two digits"))
    results = {}
    for mine in zip(*[found] * len(seeds), strict=True):
        results |= {key: np.array([one[key] for one in mine]) for key in mine[0]}
    return results


def change(results, way):
    """Returns accuracy after another image minus accuracy alone, for each seed."""
    return results[way] - results[f"{way.split(',')[0]}, alone"]


def clauses(results):
    change_of_last, best_step = change(results, LAST), results["repeated"].max(axis=1)
    return [
        Check(
            "all training images reach all of the 64 steps",
            bool((results["least reached"] == 1).all() and (results["known steps"] == PIXELS).all()),
        ),
        Clause("BN loses, step 64 repeated", -change_of_last, MARGIN),
        Clause("BN loses, whichever step is repeated", results["BN, alone"] - best_step, MARGIN),
        Clause("BN loses, mean of the 64 steps", -change(results, MEAN), MARGIN),
        Clause("BN loses, statistics from the test batch", -change(results, BATCH), MARGIN),
        Clause("BN, steps 1 to 64 again: better than step 64", results[AGAIN] - results[LAST], MARGIN),
        Clause("LN keeps its accuracy", change(results, "LN"), -MARGIN),
        Clause("no norm keeps its accuracy", change(results, "no norm"), -MARGIN),
        Clause("LN loses less than BN, step 64 repeated", change(results, "LN") - change_of_last, MARGIN),
    ]


def tables(results):
    alone = {way: results[f"{way.split(',')[0]}, alone"] for way in WAYS}
    rows = [[w, percent(alone[w]), percent(results[w]), points(change(results, w))] for w in WAYS]
    by_step = results["repeated"].mean(axis=0)
    at = sorted({*range(7, len(by_step), 8), by_step.argmax()})
    steps = [["accuracy, %", *(f"{100 * by_step[k]:.0f}" for k in at)]]
    return "\n\n".join([
        table(["test images, %", "alone", "after another", "change, points"], rows),
        table(["BN, this step repeated", *(str(REPEATED[k]) for k in at)], steps),
    ])  # fmt: skip


STUDY = Study("two_digits", measure, clauses, tables, draw, tune)

if __name__ == "__main__":
    STUDY.main()
