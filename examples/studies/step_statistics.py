r"""
Repeating the last step's statistics
====================================

Recurrent batch norm (BN) has a mean and a deviation for each time step, but none past the longest training
sequence, of :math:`T` steps. According to Cooijmans et al. (2016, arXiv 1603.09025, section 3, figure 5), the
statistics converge within a few steps. So BN can use those of the last known step for all later steps:

.. math::

   \hat a_t = \gamma \, \frac{a_t - \mu_{\min(t, K)}}{\sigma_{\min(t, K)}} + \beta, \qquad K = T

Do the statistics settle, and which step :math:`K` can be repeated?
"""

import numpy as np
import recurrent
from common import Clause, Study, by_seed, points, show, table
from plots import OTHER, STYLES, band, tidy
from recurrent import batches, keep_steps, right, statistics, typical_deviation
from study_data import join_utterances

from lnrnn.data import japanese_vowels, pad_sequence
from lnrnn.demo import SETTINGS
from lnrnn.speakers import SpeakerNetwork, SpeakerSettings, TrainingSettings

# Constants to change.
JOINED = (8, 170)  # how many utterances of one speaker are joined, to 123 and 2,610 steps
EPOCHS = 200
ENOUGH = 20  # the figure omits steps that fewer utterances reach
MIDDLE = (10, 13)  # steps that most training utterances reach
MARGIN = 0.03  # a loss of at most three points of accuracy is ignored
SETTLED = 0.25  # a smaller change of statistics is small, in standard deviations of a unit
REACH, REPEATED = 18, 12  # "long" utterances have at least REACH steps; their step REPEATED is repeated
SIZE = (10, 4.4)
NORMS = {"BN": "batch", "LN": "layer"}
BN, LN = (STYLES[norm][0] for norm in NORMS)


def draw(results, figure):
    moves, costs, middle = figure.subplots(1, 3, width_ratios=(1, 1.15, 1.15))
    moves.axhline(SETTLED, color="#999999", lw=1, ls=":")
    moves.text(22, SETTLED + 0.008, f"{SETTLED:g}: small below", color="#777777", ha="right")
    for name, first, colour, marker in (("change", 2, BN, "^"), ("error", 1, OTHER, "s")):
        band(moves, np.arange(first, first + results[name].shape[1]), results[name], colour, marker=marker)
    moves.text(3, 0.4, "change from the\nstep before", color=BN)
    moves.text(4, 0.11, "error: halves of\nthe data differ", color=OTHER)
    limits = {"xlim": (0.5, 22.5), "ylim": (0, 0.5), "xticks": (1, 5, 10, 15, 20), "xlabel": "step"}
    tidy(moves, "Changes stay small from step 3 on", ylabel="standard deviations of a unit", **limits)
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
    limits = {"xlim": (0.5, last + 0.3), "ylim": (-100, 15), "xticks": (1, 5, 10, 15, 20, last)}
    title = "Late steps fail, the last one worst"
    tidy(costs, title, xlabel=label, ylabel="accuracy gained or lost, points", **limits)
    limits = {"xlim": (6.5, 14.5), "ylim": (-4, 1), "xticks": range(7, 15)}
    tidy(middle, "Middle steps cost 1 to 2 points", xlabel=label, **limits)


show("step_statistics", draw, SIZE)

# %%
# Result
# ------
# - **The statistics change little from step 3 to step 22, but do not settle.** The change falls to 0.02 of a
#   deviation at step 14, and rises to 0.11 at step 22. Too few utterances reach steps 23 to 26.
# - **The last step cannot be repeated.** One training utterance reaches step 26.
# - **A middle step can be repeated: unclear, but it does cost accuracy.** Repeating step 10 or 13 costs 1.7
#   to 2.0 points, LN loses 0.1.
# - **The number of utterances is not the cause.** 78 utterances reach step 18, so its statistics have an
#   error of only 0.06, but repeating it costs 11 points. Step 12 costs as much with the statistics of these
#   78 as with those of 78 random ones. The cause is that late steps are near the end of an utterance.
#
# Advice
# ------
# If sequences may be longer than in training, use LN. If you need BN, do not repeat the last step. Repeat a
# step that is typical of later steps, and measure its cost on long sequences: here 1 to 2 points. Try
# ``MIDDLE = (12, 15)``.
#
# How it was measured
# -------------------
# An RNN of 64 tanh units learns to recognise nine speakers in whole utterances of Japanese Vowels, 270 of 7
# to 26 steps. It has the settings of long_sequences, and then BN's statistics are recomputed over all
# training utterances. For every K, the network keeps the statistics of steps 1 to K, and repeats the last. In
# the test, 8 or 170 utterances of one speaker are joined, each of the 370 last once. Accuracy at the end is
# compared with 98.2 %, that on the last utterance alone. The six intervals of repeating hold jointly at 95 %.
# In the paper's texts all sequences reach every step.


def trained(train, norm, seed, epochs):
    rate, gain = SETTINGS["rnn", NORMS[norm]]  # of the study long_sequences
    how = SpeakerSettings("rnn", gain, TrainingSettings(epochs, learning_rate=rate))
    return SpeakerNetwork(train, NORMS[norm], how, seed)


def of_seed(data, joined, seed, epochs):
    """Returns the results of one seed. change: distance from the step before, from step 2 on. error: see
    `statistics_error`. accuracy: on test utterances, with all statistics. The others are gains of accuracy.
    alone: by repeating step K = 1, 2, ..., on test utterances longer than K. joined: the same at the end of
    joined utterances. long_only, drawn: with statistics of long utterances, or of as many random ones."""
    labels, rng = data.test.labels, np.random.default_rng(seed)
    layer, network = (trained(data.train, norm, seed, epochs) for norm in ("LN", "BN"))
    rnn, (x, lengths) = network.rnn, pad_sequence(network.standardised(data.train.x))
    kept, count = statistics(rnn)
    unit, enough = typical_deviation(kept, count), int((count >= ENOUGH).sum())
    found = {
        "change": recurrent.statistics_distance(kept[:, 1:], kept[:, :-1], unit)[: enough - 1],
        "error": recurrent.statistics_error(rnn, x, lengths, unit, rng)[:enough],
    }
    state, known, short = rnn.state_dict(), len(count), batches(network, data.test.x)
    keep_steps(rnn, state, known)
    own = right(network, short, labels)
    long = {name: batches(network, sequences) for name, sequences in joined.items()}
    found |= {"accuracy": own.mean(), "alone": [], "joined": {name: [] for name in joined}}
    for step in range(1, known + 1):
        keep_steps(rnn, state, step)
        for name, padded in long.items():
            found["joined"][name].append(right(network, padded, labels).mean() - own.mean())
        where = data.test.lengths > step
        if step < known and where.sum() >= ENOUGH:
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
    data, epochs, counts = japanese_vowels(), 5 if quick else EPOCHS, (8, 12) if quick else JOINED
    joined = {str(n): join_utterances(data.test, n, np.random.default_rng(n)) for n in counts}
    results = by_seed(lambda _, seed: of_seed(data, joined, seed, epochs), [0], seeds)[0]
    count = [int((data.train.lengths >= step).sum()) for step in range(1, data.train.lengths.max() + 1)]
    steps = {name: float(np.mean([len(x) for x in sequences])) for name, sequences in joined.items()}
    return results | {"count": count, "steps": steps}


def clauses(results):
    last, family, ln = len(results["count"]), len(JOINED) * (1 + len(MIDDLE)), results["LN"]
    moves = results["change"][:, 1:].max(axis=1)  # from step 3 on
    found = [Clause("changes stay small from step 3 on", -moves, -SETTLED, "deviations")]
    steps = {count: f"{results['steps'][str(count)]:,.0f} steps" for count in JOINED}
    gained = {
        str(count): results["joined"][str(count)].T for count in JOINED
    }  # by repeating step k, at k - 1
    for count in JOINED:
        for step in (last, *MIDDLE):
            text, values = (
                f"repeating step {step} is harmless for {steps[count]}",
                gained[str(count)][step - 1],
            )
            found.append(Clause(text, values, -MARGIN, comparisons=family))
    for count in JOINED:
        found.append(Clause(f"LN keeps its accuracy for {steps[count]}", ln[str(count)], -MARGIN))
        ahead = ln[str(count)] - gained[str(count)][MIDDLE[-1] - 1]
        found.append(Clause(f"LN beats repeating step {MIDDLE[-1]} for {steps[count]}", ahead, 0.0))
    return found


def tables(results):
    rows, shown = [], {"change": 2, "error": 1, "alone": 1}  # the steps of their first values
    for step, count in enumerate(results["count"], 1):
        slices = {of: slice(step - first, step - first + 1) for of, first in shown.items() if step >= first}
        at = {of: results[of][:, own] for of, own in slices.items()}
        cells = [f"{at[of].mean():.2f}" if of in at and at[of].size else "" for of in ("change", "error")]
        cells.append(points(at["alone"][:, 0]) if at["alone"].size else "")
        cells += [points(values[:, step - 1]) for values in results["joined"].values()]
        rows.append([str(step), str(count), *cells])
    lengths = [f"{steps:,.0f} steps" for steps in results["steps"].values()]
    yield table(["step", "count", "change", "error", "alone", *lengths], rows)
    kinds = {"long_only": "long utterances alone", "drawn": "as many drawn from all"}
    rows = [[f"BN, step {REPEATED}, {text}", points(results[name]), ""] for name, text in kinds.items()]
    yield table(["", *lengths], [["LN", *map(points, results["LN"].values())], *rows])


STUDY = Study("step_statistics", measure, clauses, tables, draw, size=SIZE)

if __name__ == "__main__":
    STUDY.main()
