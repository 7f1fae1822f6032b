r"""
Repeating the last step's statistics
====================================

Recurrent batch norm (BN) has a mean and a deviation for each time step, but none past the longest training
sequence, of :math:`T` steps. According to Cooijmans et al. (2016, arXiv 1603.09025, section 3, figure 5), the
statistics converge within a few steps. So BN can use the statistics of the last known step for all later
steps:

.. math::

   \hat a_t = \gamma \, \frac{a_t - \mu_{\min(t, K)}}{\sigma_{\min(t, K)}} + \beta, \qquad K = T

Do the statistics settle, and which step :math:`K` can be repeated?
"""

import numpy as np
from common import Clause, Study, interval, join_utterances, points, show, side_by_side, stacked, table
from plots import OTHER, STYLES, tidy

from lnrnn.data import japanese_vowels, pad_sequence
from lnrnn.demo import SETTINGS
from lnrnn.speakers import AT_A_TIME, SpeakerNetwork, SpeakerSettings, TrainingSettings

# Constants to change.
JOINED = (8, 170)  # how many utterances of one speaker are joined, to 123 and 2,610 steps
EPOCHS = 200
ENOUGH = 20  # the figure omits steps that fewer utterances reach
MIDDLE = (10, 13)  # steps that most training utterances reach
MARGIN = 0.03  # a loss of at most three points of accuracy is ignored
SETTLED = 0.25  # a smaller change of statistics is small, in standard deviations of a unit
SPLITS = 5  # how many times the training utterances are divided into random halves
REACH, REPEATED = 18, 12  # "long" utterances have at least REACH steps; their step REPEATED is repeated

NORMS = {"BN": "batch", "LN": "layer"}
BN, LN = (STYLES[norm][0] for norm in NORMS)


def draw(results, figure):
    """Draws the change of the statistics, and the cost of repeating the statistics of step K."""
    moves, costs, middle = figure.subplots(1, 3, width_ratios=(1, 1.15, 1.15))
    moves.axhline(SETTLED, color="#999999", lw=1, ls=":")
    moves.text(22, SETTLED + 0.008, f"{SETTLED:g}: small below", color="#777777", ha="right")
    for name, first, colour, marker in (("change", 2, BN, "^"), ("error", 1, OTHER, "s")):
        band(moves, np.arange(first, first + results[name].shape[1]), results[name], colour, marker=marker)
    moves.text(3, 0.4, "change from the\nstep before", color=BN)
    moves.text(4, 0.11, "error: halves of\nthe data differ", color=OTHER)
    tidy(
        moves, "Changes stay small from step 3 on", xlim=(0.5, 22.5), ylim=(0, 0.5),
        xticks=(1, 5, 10, 15, 20), xlabel="step", ylabel="standard deviations of a unit",
    )  # fmt: skip

    last, alone = len(results["count"]), results["alone"]
    for axes in (costs, middle):
        axes.axhline(0, color="#999999", lw=1)
        for (name, values), style in zip(results["joined"].items(), ("-", (0, (4, 1.5))), strict=True):
            band(axes, np.arange(1, last + 1), 100 * values, BN, ls=style)
            layer = np.repeat(results["LN"][name][:, None], 2, axis=1)
            band(axes, np.array([1, last]), 100 * layer, LN, ls=style)
    band(costs, np.arange(1, alone.shape[1] + 1), 100 * alone, OTHER)
    costs.text(13, 5, "BN, one utterance longer than K", color=OTHER, ha="center")
    short, long = (f"{steps:,.0f}" for steps in results["steps"].values())
    costs.text(1.5, -63, f"BN, utterances joined:\n{short} steps,\n{long} dashed", color=BN)
    costs.text(22, -8, "LN, joined", color=LN)
    middle.text(7, 0.55, f"LN, {short} and {long} steps", color=LN)
    middle.text(7, -3.8, f"BN, {short} steps, {long} dashed", color=BN)
    label = "step K, repeated for all later ones"
    tidy(
        costs, "Late steps fail, the last one worst", xlim=(0.5, last + 0.3), ylim=(-100, 15),
        xlabel=label, ylabel="accuracy gained or lost, points", xticks=(1, 5, 10, 15, 20, last),
    )  # fmt: skip
    limits = {"xlim": (6.5, 14.5), "ylim": (-4, 1), "xticks": range(7, 15)}
    tidy(middle, "Middle steps cost 1 to 2 points", xlabel=label, **limits)


def band(axes, x, values, colour, **style):
    """Draws the mean over seeds of values (S, X), and the 95 % interval as a band."""
    axes.plot(x, values.mean(axis=0), color=colour, lw=2, ms=4, **style)
    low, high = np.transpose([interval(column) for column in values.T])
    axes.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)


show("step_statistics", draw, (10, 4.4))

# %%
# Result
# ------
# - **The statistics change little from step 3 on: confirmed up to step 22.** From step 1 to 2 they change by
#   0.44 of a standard deviation, from 2 to 3 by 0.11. But they do not settle: the change falls to 0.02 at
#   step 14 and rises to 0.11 at step 22. Too few utterances reach steps 23 to 26.
# - **The last known step can be repeated: refuted.** One training utterance reaches step 26. Repeating this
#   step costs 84 points of accuracy after 123 steps, and as many after 2,610.
# - **A middle step can be repeated: unclear, but it does cost accuracy.** Repeating step 10 or 13 costs 1.7
#   to 2.0 points at both lengths. The intervals exclude 0, and reach beyond our margin of 3 points. Layer
#   norm (LN) loses 0.1 points [-0.4, +0.7]. After 2,610 steps LN is 1.7 points better than BN that repeats
#   step 13 [0.5, 2.9].
# - **The number of utterances is not the cause.** 78 utterances reach step 18, so its statistics have an
#   error of only 0.06, but repeating it costs 11 points. Repeating step 12 costs 3.0 points with the
#   statistics of these 78 utterances, and 2.9 with those of 78 random ones. The cause is that late steps are
#   near the end of an utterance.
#
# In the study two_digits all training sequences reach every step, and repeating the last one fails too.
#
# Advice
# ------
# If sequences may be longer than in training, use LN. If you need BN, do not repeat the last step. Repeat a
# step that is typical of later steps, and measure its cost on long sequences: here 1 to 2 points.
# ``keep_steps`` below shows how ``load_state_dict`` reduces a network to the statistics of its first K steps.
#
# Try it yourself
# ---------------
# Set ``JOINED = (2, 8)``: how soon does accuracy fall? Set ``MIDDLE = (12, 15)``: between these steps the
# loss grows from 1 point to 5.
#
# How it was measured
# -------------------
# An RNN of 64 tanh units learns to recognise nine speakers in whole utterances of Japanese Vowels, 270 of 7
# to 26 steps. It has the settings of the study long_sequences. Afterwards BN's statistics are recomputed over
# all training utterances. For every K, the network has only the statistics of steps 1 to K, and repeats the
# last of them. In the test, 8 or 170 utterances of one speaker are joined, so that each of the 370 test
# utterances is last once. Accuracy at the end is compared with 98.2 %, the accuracy on the last utterance
# alone with all statistics.
#
# Results come from seeds 5 to 24, paired by seed. The six intervals of repeating hold jointly at 95 %, and
# those in the table are not corrected. In the paper's texts all sequences reach every step.


def trained(train, norm, seed, epochs):
    """Returns a trained RNN of 64 tanh units, with the settings of the study long_sequences."""
    rate, gain = SETTINGS["rnn", NORMS[norm]]
    settings = SpeakerSettings("rnn", gain, TrainingSettings(epochs, learning_rate=rate))
    return SpeakerNetwork(train, NORMS[norm], settings, seed)


# --- statistics ---------------------------------------------------------------------------------------------


def statistics(rnn):
    """Returns mean and deviation at each step, (2, steps, units), and how many utterances reach it."""
    return np.stack([rnn.running_mean_l0, np.sqrt(rnn.running_var_l0)]), rnn.count_l0


def typical_deviation(found, count):
    """Returns for each unit the root of its variance averaged over all training steps, (units,)."""
    return np.sqrt(np.average(found[1] ** 2, axis=0, weights=count))


def distance(a, b, unit):
    """Returns the distance of statistics a and b (2, steps, units) at each step, (steps,). It is the root
    mean square over units, means and deviations, divided by the units' standard deviations ``unit``."""
    return np.sqrt((((a - b) / unit) ** 2).mean(axis=(0, 2)))


def errors(rnn, x, lengths, unit, rng):
    """Returns the error of the statistics at each step that all halves reach. It is half the distance between
    two random halves of the sequences, averaged over SPLITS divisions. (The error of a half is sqrt(2) times
    that of the whole, so the halves' distance is twice that.) Leaves the network with the statistics of
    all."""
    found = []
    for _ in range(SPLITS):
        order = rng.permutation(len(lengths))
        halves = []
        for half in np.split(order, [len(order) // 2]):
            rnn.calibrate([(x[:, half], lengths[half])])
            halves.append(statistics(rnn)[0][:, : lengths[half].max()])
        known = min(half.shape[1] for half in halves)
        found.append(distance(halves[0][:, :known], halves[1][:, :known], unit) / 2)
    rnn.calibrate([(x, lengths)])
    return np.mean([one[: min(map(len, found))] for one in found], axis=0)


# --- the effect of repeating --------------------------------------------------------------------------------


def keep_steps(rnn, state, steps):
    """Gives the network only the statistics of the first ``steps`` steps. Later steps repeat the last one."""
    names = ("running_mean_l0", "running_var_l0", "count_l0")
    rnn.load_state_dict({**state, **{name: state[name][:steps] for name in names}})
    rnn.overrun = "last"


def batches(network, sequences):
    """Returns batches of a few sequences, standardised and padded: a list of (x, lengths)."""
    starts = range(0, len(sequences), AT_A_TIME)
    return [pad_sequence(network.standardised(sequences[start : start + AT_A_TIME])) for start in starts]


def right(network, padded, labels):
    """Returns whether the network recognises each sequence's speaker, (N,). padded: from `batches`."""
    return np.concatenate([network.classifier.predict(*batch) for batch in padded]) == labels


def of_seed(data, joined, seed, epochs):
    labels, rng = data.test.labels, np.random.default_rng(seed)
    layer, network = (trained(data.train, norm, seed, epochs) for norm in ("LN", "BN"))
    rnn = network.rnn
    kept, count = statistics(rnn)
    unit = typical_deviation(kept, count)
    x, lengths = pad_sequence(network.standardised(data.train.x))
    enough = int((count >= ENOUGH).sum())
    found = {
        "change": distance(kept[:, 1:], kept[:, :-1], unit)[: enough - 1],
        "error": errors(rnn, x, lengths, unit, rng)[:enough],
    }
    state, known = rnn.state_dict(), len(count)
    short = batches(network, data.test.x)
    keep_steps(rnn, state, known)
    own = right(network, short, labels)
    long = {name: batches(network, sequences) for name, sequences in joined.items()}
    longer = [data.test.lengths > step for step in range(1, known)]
    found |= {"accuracy": own.mean(), "alone": [], "joined": {name: [] for name in joined}}
    for step in range(1, known + 1):
        keep_steps(rnn, state, step)
        for name, padded in long.items():
            found["joined"][name].append(right(network, padded, labels).mean() - own.mean())
        if step < known and longer[step - 1].sum() >= ENOUGH:
            where = longer[step - 1]
            found["alone"].append(right(network, short, labels)[where].mean() - own[where].mean())

    reaching = np.flatnonzero(lengths >= REACH)
    drawn = rng.choice(len(lengths), len(reaching), replace=False)
    for name, chosen in {"long_only": reaching, "drawn": drawn}.items():
        rnn.calibrate([(x[:, chosen], lengths[chosen])])
        keep_steps(rnn, rnn.state_dict(), REPEATED)
        found[name] = right(network, next(iter(long.values())), labels).mean() - own.mean()

    own = right(layer, batches(layer, data.test.x), labels).mean()
    found["LN"] = {n: right(layer, batches(layer, s), labels).mean() - own for n, s in joined.items()}
    return found


def measure(seeds, settings, quick):
    """Returns results by name, with an entry per seed. change: distance from the step before, for steps 2, 3,
    ... error: see `errors`, for steps 1, 2, ... accuracy: on test utterances, with all statistics.

    The other results are gains of accuracy. alone: by repeating step K = 1, 2, ..., on test utterances longer
    than K. joined: as alone, at the end of joined utterances, against the last utterance alone. long_only,
    drawn: as joined, with statistics of long utterances, or of as many random ones. LN: the change by
    joining."""
    data = japanese_vowels()
    joined = {
        str(count): join_utterances(data.test, count, np.random.default_rng(count))
        for count in ((8, 12) if quick else JOINED)
    }
    epochs = 5 if quick else EPOCHS
    results = stacked(side_by_side(lambda seed: of_seed(data, joined, seed, epochs), seeds, "networks"))
    count = [int((data.train.lengths >= step).sum()) for step in range(1, data.train.lengths.max() + 1)]
    steps = {name: float(np.mean([len(x) for x in sequences])) for name, sequences in joined.items()}
    return results | {"count": count, "steps": steps}


def after(results, step, count):
    """Returns how much accuracy is gained by repeating ``step``, (S,), at the end of ``count`` joined
    utterances.
    """
    return results["joined"][str(count)][:, step - 1]


def clauses(results):
    last, found = len(results["count"]), []
    family = len(JOINED) * (1 + len(MIDDLE))
    moves = results["change"][:, 1:].max(axis=1)  # from step 3 on
    found.append(Clause("changes stay small from step 3 on", -moves, -SETTLED, "deviations"))
    for count in JOINED:
        steps = f"{results['steps'][str(count)]:,.0f} steps"
        for step in (last, *MIDDLE):
            text = f"repeating step {step} is harmless for {steps}"
            found.append(Clause(text, after(results, step, count), -MARGIN, comparisons=family))
    for count in JOINED:
        steps = f"{results['steps'][str(count)]:,.0f} steps"
        found.append(Clause(f"LN keeps its accuracy for {steps}", results["LN"][str(count)], -MARGIN))
        ahead = results["LN"][str(count)] - after(results, MIDDLE[-1], count)
        found.append(Clause(f"LN beats repeating step {MIDDLE[-1]} for {steps}", ahead, 0.0))
    return found


def tables(results):
    rows = []
    for step, count in enumerate(results["count"], 1):
        change, error, alone = (
            values[:, step - first] if first <= step < first + values.shape[1] else None
            for values, first in ((results["change"], 2), (results["error"], 1), (results["alone"], 1))
        )
        rows.append([
            str(step), str(count),
            *("" if values is None else f"{values.mean():.2f}" for values in (change, error)),
            "" if alone is None else points(alone),
            *(points(values[:, step - 1]) for values in results["joined"].values()),
        ])  # fmt: skip
    lengths = [f"{steps:,.0f} steps" for steps in results["steps"].values()]
    by_step = table(["step", "count", "change", "error", "alone", *lengths], rows)
    rows = [["LN", *(points(values) for values in results["LN"].values())]]
    rows += [
        [f"BN, step {REPEATED}, {text}", points(results[name]), ""]
        for name, text in (("long_only", "long utterances alone"), ("drawn", "as many drawn from all"))
    ]
    return f"{by_step}\n\n{table(['', *lengths], rows)}"


STUDY = Study("step_statistics", measure, clauses, tables, draw, size=(10, 4.4))

if __name__ == "__main__":
    STUDY.main()
