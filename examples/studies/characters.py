r"""
Characters: trained on 100 steps, run for 3,000
===============================================

Cooijmans et al. (2016, arXiv 1603.09025, section 3 and figure 3b) train an LSTM on 100 characters of Penn
Treebank, with batch norm (BN) per time step. On longer text BN repeats the statistics of its last step,
without harm. Averaging the statistics over time "severely degrades performance". Layer norm (LN) stores no
statistics. Blog posts say that LN beats BN in RNNs. The LN paper says that LN shortens training (Ba et al.
2016, arXiv 1607.06450). This study measures these claims in bits per character:

.. math::

   -\frac{1}{N} \sum_{n=1}^{N} \log_2 p(c_{n} \mid c_1, \ldots, c_{n-1})
"""

import hashlib
import itertools
import platform
from collections import Counter
from dataclasses import dataclass
from pydoc_data.topics import topics

import numpy as np
from common import Check, Clause, Study, best, interval, show, side_by_side, table
from nets import StepClassifier
from plots import SHADE, STYLES, forest, lines, tidy

import lnrnn
from lnrnn.demo import label_places
from lnrnn.speakers import CELLS, MODELS, Adam, updates

# Constants to change.
UNITS, UPDATES = 64, 200
STEPS, BATCH = 100, 32  # numbers of steps per training window, of windows per update and of test sequences
LONG = 3000  # the number of steps of a test sequence
RATES = (1e-2, 3e-2, 1e-1)
FACTORS = {"LN": (0.1, 1.0), "BN": (0.1, 1.0), "no norm": (1.0, 2.0)}  # initial gains; no norm: weights times
HARMLESS, SEVERE, FASTER = 0.05, 0.1, 0.2  # margins: bits, bits, share of the updates
SHOWN = "lstm"  # the cell of the figure

NORMS = {"LN": "layer", "BN": "batch", "no norm": None}
METHODS = {"LN": None, "BN last": "last", "BN mean": "mean", "BN batch": "batch", "no norm": None}
RANGES = ((1, 10), (11, 50), (51, 100), (101, 200), (201, 1000), (1001, 3000))
WARM_UP = 50  # the number of steps in a fresh window before its characters count
SMOOTH = 10  # how many updates a smoothed training loss averages
LARGEST_NORM = 1.0  # longer gradients are scaled to this length
SYMBOLS = 64  # the 63 most frequent characters of the training text, and one symbol for all others


def draw(results, figure):
    """Draws the bits of one cell by position and during training, and the losses of all cells."""
    panels = figure.subplot_mosaic([["position", "lost"], ["curve", "lost"]], width_ratios=(1.25, 1))
    draw_position(panels["position"], results)

    curve, every = panels["curve"], SMOOTH * (np.arange(results["curve"]["LN"].shape[1]) + 0.5)
    curve.set_ylim(2, 4.6)
    lines(curve, every, results["curve"])
    tidy(
        curve, f"{SHOWN.upper()}: training is faster with LN and BN", xlabel="updates",
        ylabel="bits per character, training", xlim=(0, every[-1]),
    )  # fmt: skip

    rows = {
        f"{method}, {cell.upper()}": results["beyond"][cell][method]
        for method in ("LN", "BN last", "BN mean", "BN batch")
        for cell in CELLS
    }
    forest(panels["lost"], rows, 1.0, len(CELLS))
    tidy(
        panels["lost"], "Only test-batch statistics do harm", xlim=(-0.02, 0.15),
        xticks=(0, 0.05, 0.1, 0.15), xlabel=f"bits per character lost beyond step {STEPS}",
    )  # fmt: skip


def draw_position(axes, results):
    axes.axvspan(STEPS, results["steps"], color=SHADE, lw=0, zorder=0)
    axes.text(STEPS * 1.1, 2.96, "longer than in training", va="top", color="#555555")
    middle, ends = np.exp(results["at"]), {}
    gap = np.searchsorted(middle, STEPS)  # interrupt the curves at the length of training
    for method, values in results["position"].items():
        colour, _, width = STYLES[method]
        x, y = np.insert(middle, gap, STEPS), np.insert(values.mean(axis=0), gap, np.nan)
        axes.plot(x, y, color=colour, lw=width, ls=(0, (2, 2)) if method == "BN mean" else "-")
        ends[method] = y[-1]
    for method, y in zip(ends, label_places(list(ends.values()), 0.075), strict=True):
        axes.text(1.08 * results["steps"], y, method, color=STYLES[method][0], va="center")
    tidy(
        axes, f"{SHOWN.upper()}: repeating BN's last step does no harm", xscale="log",
        xlim=(1, results["steps"]), ylim=(2.1, 3.0), xlabel="characters since the start",
        ylabel="bits per character",
    )  # fmt: skip
    ticks = [tick for tick in (1, 10, 100, 1000) if tick <= results["steps"]]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()


show("characters", draw, (9.8, 6.6))

# %%
# Result
# ------
# - **BN's last step can be repeated: confirmed**, in all three cells. Over 3,000 steps this changes the bits
#   per character by 0.001. Strict BN raises an error at the 101st character.
# - **Averaging the statistics over time degrades severely: refuted** in all three cells. The change is
#   between -0.003 and +0.001 bits. Statistics of the 32 test sequences do more harm: they cost 0.10 bits in
#   the RNN and the GRU, and 0.12 in the LSTM.
# - **LN loses nothing on longer text: confirmed.**
# - **In RNNs LN beats BN, on text as long as in training: refuted.** LN is not 0.05 bits better in any cell.
#   BN is better by 0.025 [0.014, 0.036] in the LSTM and by 0.010 [0.001, 0.019] in the GRU. In the RNN the
#   difference is unclear.
# - **LN trains faster than no norm: confirmed in the gated cells.** It needs 39 % fewer updates in the LSTM
#   [34, 45] and 33 % fewer in the GRU [26, 39]. **Refuted in the RNN**, where LN needs 10 % more [-2, 23]. BN
#   needs the fewest updates in all three.
#
# Advice
# ------
# If all training windows have one length and begin anywhere in uniform text, all steps of BN are alike:
# repeat the last one. If sequences have a beginning and an end, this fails: see step_statistics and
# two_digits.
#
# Try it yourself
# ---------------
# Set ``STEPS = 20``: can BN's last step still be repeated up to 3,000? Set ``UPDATES = 400``: does the
# network without a norm become as good as the others?
#
# How it was measured
# -------------------
# The text is that of ``help("topics")`` in Python 3.11.7 (373,217 characters, which differ in other
# versions). 80 % are for training, 8 % for choosing settings, 12 % for tests. Cells have 64 units. Adam does
# 200 updates, each on 32 windows of 100 characters. For each cell and norm, six pairs of learning rate and
# initial gain compete (without a norm: scale of the weights). We take the pair with the fewest held-out bits,
# by seed 0 alone. Results come from seeds 5 to 24.
#
# The loss past step 100 is paired: the same characters are also predicted at steps 51 to 100 of fresh
# windows. The comparison of LN with BN uses these fresh windows. Speed is the number of updates until the
# training bits, averaged over ten updates, reach a target. The target is the mean bits of no norm after 100
# of its 200 updates, for seeds 0 to 4. We chose the margins: 0.05 bits, 0.1 for "severely", 20 % of the
# updates. The three intervals of a claim hold jointly at 95 %, for this one test text.
#
# The paper's LSTM has 1,000 units. Ours have a short memory: more than ten characters of context hardly help.
# Networks with a longer memory could lose more past their training length.


# --- the text -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HelpText:
    """Consecutive texts for training, tuning and tests, as symbols 0 to SYMBOLS - 1. others: the share of
    test characters that have the symbol for all rare characters."""

    train: np.ndarray
    held_out: np.ndarray
    test: np.ndarray
    others: float
    source: str


def load_help_text(characters=None):
    """Loads the text of ``help("topics")`` in this Python. characters: how many each part may have, or None
    for all."""
    text = join_topics(topics)
    parts, others = split_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    source = f"Python {platform.python_version()}, {len(topics)} topics, {len(text):,} characters"
    return HelpText(*(part[:characters] for part in parts), others, f"{source}, SHA-256 {digest}")


def join_topics(topics):
    """Joins all topics in the order of their names. Repeated paragraphs are left out, because some topics
    contain others whole, so that test text would also be training text."""
    paragraphs = (part.strip("\n") for name in sorted(topics) for part in topics[name].split("\n\n"))
    return "".join(f"{part}\n\n" for part in dict.fromkeys(paragraphs) if part)


def split_text(text):
    """Returns ([the first 80 %, for training; the next 8 %, for settings; the rest, for tests], the share of
    rare characters in the test text)."""
    first, second = int(0.80 * len(text)), int(0.88 * len(text))
    parts = text[:first], text[first:second], text[second:]
    counts = Counter(parts[0])
    common = sorted(counts, key=lambda character: (-counts[character], character))[: SYMBOLS - 1]
    number = {character: place for place, character in enumerate(common)}
    found = [np.array([number.get(c, SYMBOLS - 1) for c in part], np.int64) for part in parts]
    return found, float((found[2] == SYMBOLS - 1).mean())


def cut(text, starts, steps):
    """Returns sequences from ``starts`` (N,) on: one-hot x (steps, N, SYMBOLS), next symbols (steps, N)."""
    symbols = text[starts + np.arange(steps + 1)[:, None]]
    x = np.zeros((steps, len(starts), SYMBOLS), np.float32)
    np.put_along_axis(x, symbols[:-1, :, None], 1, -1)
    return x, symbols[1:]


# --- training -----------------------------------------------------------------------------------------------


def random_windows(text, count, rng):
    """Yields ``count`` batches of windows with random starts."""
    for _ in range(count):
        x, following = cut(text, rng.integers(0, len(text) - STEPS, BATCH), STEPS)
        yield x, np.full(BATCH, STEPS), following


def trained(text, cell, norm, setting, seed, units=UNITS, count=UPDATES):
    """Returns a trained network with recomputed BN statistics, and the bits per character of each batch
    before its update. setting: the learning rate, and the initial gain or, without a norm, a factor of the
    weights."""
    rate, factor = setting
    rnn = MODELS[cell](SYMBOLS, units, norm=NORMS[norm], seed=seed)
    for name, value in rnn.parameters().items():
        if name.startswith("gain" if NORMS[norm] else "weight"):
            setattr(rnn, name, np.float32(factor) * value)
    rng = np.random.default_rng(seed)
    model = StepClassifier(rnn, SYMBOLS, rng)
    found = updates(model, random_windows(text, count, rng), Adam(rate), LARGEST_NORM)
    losses = np.array([loss for loss, _ in found]) / np.log(2)
    if norm == "BN":
        rnn.calibrate([cut(text, np.arange(0, len(text) - STEPS, STEPS), STEPS)[0]])
    return model, losses


def smooth(losses):
    """Returns running means over SMOOTH updates, or all if fewer. Mean u begins with update u."""
    width = min(SMOOTH, len(losses))
    return np.convolve(losses, np.full(width, 1 / width), "valid")


def updates_needed(losses, target):
    """Returns how many updates it takes until the mean loss of the last SMOOTH updates is at most ``target``.
    If it never is, returns the number of all updates plus one."""
    reached = np.flatnonzero(smooth(losses) <= target)
    return int(reached[0]) + min(SMOOTH, len(losses)) if len(reached) else len(losses) + 1


# --- running over the test text -----------------------------------------------------------------------------


def bits(model, text, starts, steps):
    """Returns bits per character, (steps, N), of sequences that begin at ``starts`` (N,)."""
    groups = (starts[first : first + BATCH] for first in range(0, len(starts), BATCH))
    return np.concatenate([model.losses(*cut(text, group, steps)) for group in groups], 1) / np.log(2)


def fresh_starts(text):
    """Returns the starts of windows of STEPS steps, WARM_UP apart."""
    return np.arange(0, len(text) - STEPS, WARM_UP)


def by_character(found, starts, size):
    """found (STEPS, N): bits in fresh windows. Returns the bits of each character (size,), from the one
    window in which WARM_UP or more steps precede it. NaN at both ends of the text."""
    values = np.full(size, np.nan)
    values[starts + np.arange(WARM_UP + 1, STEPS + 1)[:, None]] = found[WARM_UP:]
    return values


def long_starts(size, steps):
    """Returns BATCH evenly spread starts, for whose sequences `by_character` has no NaN."""
    last = (size - 1 - STEPS) // WARM_UP * WARM_UP + STEPS - steps
    if last <= WARM_UP:
        raise ValueError(f"the test text has {size} characters, too few for sequences of {steps} steps")
    return np.linspace(WARM_UP, last, BATCH).astype(np.int64)


def average_over_time(rnn):
    """Replaces the statistics of each step of BN by their average over all steps."""
    state = {
        name: value[:1] if name.startswith("count")
        else value.mean(axis=0, keepdims=True) if name.startswith("running_")
        else value
        for name, value in rnn.state_dict().items()
    }  # fmt: skip
    rnn.load_state_dict(state)
    rnn.overrun = "last"


def run_over(model, norm, text, steps):
    """Returns three results of one network, in bits per character. (1) At each step of long sequences,
    (steps,), by method. (2) Of the same characters in fresh windows of STEPS steps, (steps,). (3) Of BN in
    fresh windows, with its own statistics and with their average over time, (2, STEPS). Leaves BN with the
    averages."""
    starts, fresh = long_starts(len(text), steps), fresh_starts(text)
    within = bits(model, text, fresh, STEPS)
    same = by_character(within, fresh, len(text))[starts + np.arange(1, steps + 1)[:, None]].mean(axis=1)
    found = {}
    for method in (name for name in METHODS if name.startswith(norm)):
        if METHODS[method]:
            model.rnn.overrun = METHODS[method]
        found[method] = bits(model, text, starts, steps).mean(axis=1)
    if norm != "BN":
        return found, same, None
    average_over_time(model.rnn)
    return found, same, np.stack([within.mean(axis=1), bits(model, text, fresh, STEPS).mean(axis=1)])


def refusal(text, units):
    """Returns the error of strict BN, which has statistics of STEPS steps, for one more step."""
    rnn = MODELS[CELLS[0]](SYMBOLS, units, norm="batch", seed=0)
    rnn.calibrate([cut(text, np.arange(BATCH), STEPS)[0]])
    try:
        rnn(cut(text, np.arange(1), STEPS + 1)[0])
    except lnrnn.SequenceTooLongError as error:
        return f"{type(error).__name__}: {error}"
    return ""


# --- the study ----------------------------------------------------------------------------------------------


def extent(quick):
    """Returns the text, and the numbers of units, updates, and steps of a test sequence."""
    return (load_help_text(2500), 16, 4, 250) if quick else (load_help_text(), UNITS, UPDATES, LONG)


def tune(seeds, quick):
    """Returns settings and targets. settings: for each cell and norm, the rate and factor with the fewest
    held-out bits within STEPS steps, by the first seed alone. target: for each cell, the mean bits over seeds
    of a network without a norm after half of the updates."""
    text, units, count, _ = extent(quick)
    starts = np.arange(0, len(text.held_out) - STEPS, STEPS)
    grids = {norm: list(itertools.product(RATES, FACTORS[norm]))[: 2 if quick else None] for norm in NORMS}
    kinds = list(itertools.product(CELLS, NORMS))
    items = [(cell, norm, setting) for cell, norm in kinds for setting in grids[norm]]

    def held_out(item):
        model, _ = trained(text.train, *item, seeds[0], units, count)
        found = bits(model, text.held_out, starts, STEPS).mean()
        return -float(found) if np.isfinite(found) else -np.inf

    scores = iter(side_by_side(held_out, items, "settings"))
    settings = {cell: {} for cell in CELLS}
    for cell, norm in kinds:
        settings[cell][norm] = best(grids[norm], [next(scores) for _ in grids[norm]])

    def halfway(item):
        cell, seed = item
        losses = trained(text.train, cell, "no norm", settings[cell]["no norm"], seed, units, count)[1]
        return smooth(losses[: count // 2])[-1]

    found = side_by_side(halfway, itertools.product(CELLS, seeds), "target")
    targets = np.reshape(found, (len(CELLS), -1)).mean(axis=1).tolist()
    return {"settings": settings, "target": dict(zip(CELLS, targets, strict=True))}


def measure(seeds, settings, quick):
    text, units, count, steps = extent(quick)

    def job(item):
        cell, norm, seed = item
        model, losses = trained(text.train, cell, norm, settings["settings"][cell][norm], seed, units, count)
        return losses, *run_over(model, norm, text.test, steps)

    items = [(cell, norm, seed) for cell in CELLS[::-1] for norm in NORMS for seed in seeds]
    found = dict(zip(items, side_by_side(job, items, "networks"), strict=True))
    results = {
        "source": text.source, "others": text.others, "refusal": refusal(text.train, units), "steps": steps,
        "at": [], "needed": {}, "within": {}, "lost": {}, "beyond": {}, "averaged": {}, "averaged_early": {},
        "position": {}, "curve": {},
    }  # fmt: skip
    for cell in CELLS:
        of_cell = {name: {} for name in ("needed", "within", "lost", "beyond")}
        for norm in NORMS:
            losses, by_method, same, averaged = zip(*(found[cell, norm, seed] for seed in seeds), strict=True)
            same = np.stack(same)
            target = settings["target"][cell]
            of_cell["needed"][norm] = np.array([updates_needed(one, target) for one in losses])
            of_cell["within"][norm] = same[:, STEPS:].mean(axis=1)
            for method in by_method[0]:
                lost = np.stack([one[method] for one in by_method]) - same
                of_cell["beyond"][method] = lost[:, STEPS:].mean(axis=1)
                of_cell["lost"][method] = in_ranges(lost, [low for low, _ in RANGES if low <= steps])
                if cell == SHOWN:
                    results["at"] = in_ranges(np.log(np.arange(1.0, steps + 1))[None], edges(steps))[0]
                    level = of_cell["within"][norm][:, None]
                    results["position"][method] = level + in_ranges(lost, edges(steps))
            if cell == SHOWN:
                results["curve"][norm] = in_ranges(np.stack(losses), np.arange(1, count, SMOOTH))
            if norm == "BN":
                apart = np.stack(averaged)[:, 1] - np.stack(averaged)[:, 0]
                results["averaged"][cell] = apart.mean(axis=1)
                results["averaged_early"][cell] = apart[:, :10].mean(axis=1)
        for name, values in of_cell.items():
            results[name][cell] = values
    return results


def edges(steps):
    """Returns the first steps of ranges that are evenly spaced in logarithms. One range begins after
    STEPS."""
    found = np.concatenate([np.geomspace(1, STEPS + 1, 17), np.geomspace(STEPS + 1, steps + 1, 13)[:-1]])
    return np.unique(np.round(found).astype(int))


def in_ranges(values, firsts):
    """Returns means of values (S, steps) over R ranges of steps, (S, R). firsts: the first steps, from 1."""
    ends = [*firsts[1:], values.shape[1] + 1]
    pairs = zip(firsts, ends, strict=True)
    return np.stack([values[:, low - 1 : high - 1].mean(axis=1) for low, high in pairs], axis=1)


def saved(results, cell, norm="LN"):
    """Returns for each seed the share of updates that ``norm`` saves against the network without a norm."""
    return 1 - results["needed"][cell][norm] / results["needed"][cell]["no norm"]


def ahead(results, cell):
    """Returns for each seed the bits of BN minus the bits of LN, within STEPS steps."""
    return results["within"][cell]["BN"] - results["within"][cell]["LN"]


def clauses(results):
    beyond = results["beyond"]

    def family(text, values, margin, unit="bits"):
        return [Clause(f"{cell.upper()}: {text}", values(cell), margin, unit, len(CELLS)) for cell in CELLS]

    return [
        Check(f"strict BN refuses step {STEPS + 1}", results["refusal"].startswith("SequenceTooLongError")),
        *family("repeating BN's last step loses nothing", lambda c: -beyond[c]["BN last"], -HARMLESS),
        *family("averaging BN's steps degrades severely", lambda c: results["averaged"][c], SEVERE),
        *family("LN loses nothing", lambda c: -beyond[c]["LN"], -HARMLESS),
        *family("LN beats BN at equal length", lambda c: ahead(results, c), HARMLESS),
        *family("LN trains faster than no norm", lambda c: saved(results, c), FASTER, "%"),
    ]  # fmt: skip


def bits_lost(values):
    low, high = interval(values, len(CELLS))
    return f"{values.mean():+.3f} [{low:+.3f}, {high:+.3f}]"


def tables(results):
    rows = []
    for cell, method in itertools.product(CELLS, METHODS):
        within = results["within"][cell]["BN" if method.startswith("BN") else method].mean()
        by_range = results["lost"][cell][method].mean(axis=0)
        beyond = bits_lost(results["beyond"][cell][method])
        rows.append([f"{cell.upper():4} {method}", f"{within:.3f}", *(f"{n:+.3f}" for n in by_range), beyond])
    ranges = [f"{low}-{high}" for low, high in RANGES if low <= results["steps"]]
    lost = table(["bits", "within", *ranges, f"lost beyond {STEPS} [95 %]"], rows)
    both = results["averaged"], results["averaged_early"]
    rows = [[cell.upper(), *(bits_lost(values[cell]) for values in both)] for cell in CELLS]
    averaged = table(["bits lost by averaging", f"steps 1-{STEPS}", "steps 1-10"], rows)
    needed = results["needed"]
    rows = [[cell.upper(), *(f"{needed[cell][norm].mean():.0f}" for norm in NORMS)] for cell in CELLS]
    return "\n\n".join([results["source"], lost, averaged, table(["updates needed", *NORMS], rows)])


STUDY = Study("characters", measure, clauses, tables, draw, tune, size=(9.8, 6.6))

if __name__ == "__main__":
    STUDY.main()
