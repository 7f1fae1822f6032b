"""``lnrnn demo statistics``: may batch norm repeat its last step's statistics?

Claim: with statistics for each time step, "beyond T_max we use those of time T_max" will do, for the
statistics converge within a few steps (Cooijmans et al. 2016, arXiv 1603.09025, section 3 and figure 5).

Measured, for each seed: a batch norm RNN of 64 tanh units, trained on whole utterances of Japanese Vowels
(settings of ``long-sequences``), its statistics recomputed over all 270 training utterances. They reach step
26; how many of them reach a step is its count.

- Change: how far the statistics of step t are from those of step t - 1. Distance is the root mean square,
  over units and over the two of mean and standard deviation, of the difference in units of the unit's
  standard deviation (the root of its variance averaged over the training steps).
- Error: the training utterances are split in random halves, statistics computed over each with the same
  weights; their distance, halved, is the error to expect of all (a half's error is sqrt(2) times that of the
  whole, a difference's sqrt(2) times that). Mean over 5 splits; none where a half does not reach the step.
- Settled from the first step from which on changes stay below 0.25, until dissolved: the first step with an
  error of 0.25 or more, or with none.
- Harm of repeating step K: the network is left with the statistics of steps 1 to K and overrun="last", for
  every K from 1 to 26. Alone: accuracy on the test utterances longer than K, minus that with all 26 steps'
  own statistics on the same utterances; and the change in the logits, root mean square over that of the
  logits. At K = 26 nothing differs, so alone ends at 25. Joined: accuracy at the end of 8 test utterances of
  one speaker (about 124 steps), minus that on the last of the 8 alone with all steps' own statistics. A layer
  norm network trained likewise shows what joining costs without statistics.

- Few utterances, the wrong ones, or the wrong place in them? Added after the first full run, to explain it,
  with no part in the verdict: statistics of the steps 1 to 12 alone, over the 78 training utterances that
  reach step 18, and over as many drawn from all, step 12 repeated: joined as above.

Rule, fixed before the full run. Repeating step K is harmless if the 95 % interval of each loss, paired over
the seeds, lies above -3 points, alone (K < 26) and joined. Confirmed: it is harmless at the last known step,
26, which is the one the claim repeats. Not confirmed: it is harmless at no step. Else it depends on the step,
and the verdict names those that are harmless, and the smallest count among them. One seed has no interval:
nothing is then called harmless.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import lnrnn
from lnrnn.data import Utterances, japanese_vowels, pad_sequence
from lnrnn.demos.choose_settings import settings_for
from lnrnn.demos.figures import ALARM, STYLES, WHOLE
from lnrnn.demos.length_experiment import BATCH_NORM, LAYER_NORM, StepStatistics
from lnrnn.demos.outcomes import interval, mean_and_deviation
from lnrnn.demos.speakers import NormName, SpeakerNetwork, join_utterances
from lnrnn.demos.study import Progress, Report, Study
from lnrnn.demos.tables import bullets, format_table, lay_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

JOINED = 8
SPLITS = 5
THRESHOLD = 0.25  # of a unit's standard deviation
MARGIN = 0.03
REACH, REPEATED = 18, 12  # long utterances, and the step repeated with their statistics
NORMS: tuple[NormName, ...] = ("batch", "layer")


@dataclass(frozen=True)
class Seed:
    """What one seed gave, by step 1 ... K in arrays (K,), or (K - 1,) where the first or last has none.

    change: from step to step, (K - 1,). error: NaN where there is none. alone, joined: accuracy gained,
    negative where it is lost, alone (K - 1,). long_only, drawn: as joined, with step 12 repeated and the
    statistics of the long utterances, of as many drawn from all. logits: relative change of the outputs,
    (K - 1,). accuracy: of the network with all its statistics, on all test utterances. layer_joined: as
    joined, of the layer norm network.
    """

    statistics: StepStatistics
    change: np.ndarray
    error: np.ndarray
    alone: np.ndarray
    logits: np.ndarray
    joined: np.ndarray
    accuracy: float
    layer_joined: float
    long_only: float
    drawn: float


@dataclass(frozen=True)
class Results:
    """seeds: one each. joined_steps: steps of the joined sequences, mean."""

    seeds: list[Seed]
    joined_steps: float

    def stacked(self, name: str) -> np.ndarray:
        """One attribute of all seeds: (S, ...)."""
        return np.stack([getattr(seed, name) for seed in self.seeds])

    @property
    def count(self) -> np.ndarray:
        """Training utterances that reach each step."""
        return self.seeds[0].statistics.count


# --- statistics ---------------------------------------------------------------------------------------------


def distances(a: StepStatistics, b: StepStatistics, unit: np.ndarray) -> np.ndarray:
    """Step by step, as far as both have statistics: (steps,). unit: standard deviations, (N,)."""
    steps = min(len(a.count), len(b.count))
    mean, spread = (
        (one[:steps] - other[:steps]) / unit
        for one, other in ((a.mean, b.mean), (np.sqrt(a.var), np.sqrt(b.var)))
    )
    return np.asarray(np.sqrt((mean**2 + spread**2).mean(axis=1) / 2))


def changes(statistics: StepStatistics, unit: np.ndarray) -> np.ndarray:
    """Distance of each step but the first from the one before: (steps - 1,)."""
    mean, var, count = statistics.mean, statistics.var, statistics.count
    return distances(
        StepStatistics(mean[1:], var[1:], count[1:]), StepStatistics(mean[:-1], var[:-1], count[:-1]), unit
    )


def typical_deviation(statistics: StepStatistics) -> np.ndarray:
    """Of each unit: the root of its variance averaged over all training steps, (N,)."""
    return np.asarray(np.sqrt(np.average(statistics.var, axis=0, weights=statistics.count)))


def errors(
    rnn: lnrnn.Network[Any], x: np.ndarray, lengths: np.ndarray, unit: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Half the distance of the statistics of random halves of the sequences, by step: (T,), NaN where a
    half has none. Leaves the network with the statistics of all."""
    found = np.full((SPLITS, len(x)), np.nan)
    for split in found:
        order = rng.permutation(len(lengths))
        a, b = (
            _statistics(rnn, x[:, half], lengths[half])
            for half in (order[: len(order) // 2], order[len(order) // 2 :])
        )
        known = min((a.count > 0).sum(), (b.count > 0).sum())
        split[:known] = distances(a, b, unit)[:known] / 2
    rnn.calibrate([(x, lengths)])
    return np.asarray(found.mean(axis=0))


def _statistics(rnn: lnrnn.Network[Any], x: np.ndarray, lengths: np.ndarray) -> StepStatistics:
    rnn.calibrate([(x, lengths)])
    return StepStatistics.of(rnn)


def settled(change: np.ndarray, error: np.ndarray) -> tuple[int | None, int | None]:
    """The step from which statistics are settled and that from which they are dissolved, counted from 1.

    change: (K - 1,), of the steps 2, 3, ... error: (K,), of the steps 1, 2, ...
    """
    bad = np.flatnonzero(~(error < THRESHOLD))
    end = int(bad[0]) + 1 if len(bad) else None
    before = change[: end - 2 if end else None] if end is None or end > 1 else change[:0]
    moving = np.flatnonzero(before >= THRESHOLD)
    start = int(moving[-1]) + 3 if len(moving) else 1
    return (start if start <= (end - 1 if end else len(error)) else None), end


# --- what repeating does ------------------------------------------------------------------------------------


def keep_steps(rnn: lnrnn.RNN, state: dict[str, np.ndarray], steps: int) -> None:
    """Leaves the network with the statistics of the first steps of ``state``; it repeats the last."""
    names = ("running_mean_l0", "running_var_l0", "count_l0")
    rnn.load_state_dict({**state, **{name: state[name][:steps] for name in names}})
    rnn.overrun = "last"


def outputs(network: SpeakerNetwork, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Logits at each sequence's own end: (N, classes)."""
    _, state = network.classifier.rnn(x, lengths=lengths)
    return network.classifier.logits(state[0])


def right(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Whether each is named right: (N,)."""
    return np.asarray(logits.argmax(axis=1) == labels)


def measure_seed(
    networks: dict[NormName, SpeakerNetwork],
    train: Utterances,
    test: Utterances,
    joined: list[np.ndarray],
    rng: np.random.Generator,
) -> Seed:
    """All of one seed's numbers. networks: trained, by norm."""
    network = networks["batch"]
    rnn = network.classifier.rnn
    assert isinstance(rnn, lnrnn.RNN)
    statistics = StepStatistics.of(rnn)
    unit = typical_deviation(statistics)
    x, lengths = pad_sequence(network.standardised(train.x))
    error = errors(rnn, x, lengths, unit, rng)
    state, known = rnn.state_dict(), len(statistics.count)
    alone, long = (pad_sequence(network.standardised(x)) for x in (test.x, joined))
    keep_steps(rnn, state, known)
    own = outputs(network, *alone)
    own_right = right(own, test.labels)
    losses, moved, losses_joined = [], [], []
    for steps in range(1, known + 1):
        keep_steps(rnn, state, steps)
        losses_joined.append(right(outputs(network, *long), test.labels).mean() - own_right.mean())
        if steps < known:
            longer = test.lengths > steps
            found = outputs(network, *alone)[longer]
            losses.append(right(found, test.labels[longer]).mean() - own_right[longer].mean())
            moved.append(np.sqrt(((found - own[longer]) ** 2).mean() / (own[longer] ** 2).mean()))
    subsets = []
    reaching = np.flatnonzero(lengths >= REACH)
    for chosen in (reaching, rng.choice(len(lengths), len(reaching), replace=False)):
        rnn.calibrate([(x[:, chosen], lengths[chosen])])
        keep_steps(rnn, rnn.state_dict(), REPEATED)
        subsets.append(float(right(outputs(network, *long), test.labels).mean() - own_right.mean()))
    layer = networks["layer"]
    layer_right = [
        right(outputs(layer, *pad_sequence(layer.standardised(x))), test.labels).mean()
        for x in (joined, test.x)
    ]
    return Seed(
        statistics, changes(statistics, unit), error, np.array(losses), np.array(moved),
        np.array(losses_joined), float(own_right.mean()), float(layer_right[0] - layer_right[1]),
        *subsets,
    )  # fmt: skip


def measure(seeds: int, quick: bool, progress: Progress) -> Results:
    """Trains a batch norm and a layer norm network per seed, and repeats every step."""
    data = japanese_vowels()
    settings = {norm: settings_for("rnn", WHOLE, norm) for norm in NORMS}
    if quick:
        settings = {norm: one.with_epochs(30) for norm, one in settings.items()}
        seeds = min(seeds, 2)
    joined = join_utterances(data.test, JOINED, np.random.default_rng(JOINED))
    total = seeds * sum(one.training.epochs for one in settings.values())
    epochs = iter(range(1, total + 1))
    found = []
    for seed in range(seeds):
        networks = {
            norm: SpeakerNetwork(
                data.train, norm, settings[norm], seed,
                on_epoch=lambda: progress(next(epochs) / total, f"seed {seed}"),  # noqa: B023
            )
            for norm in NORMS
        }  # fmt: skip
        found.append(measure_seed(networks, data.train, data.test, joined, np.random.default_rng(seed)))
    return Results(found, float(np.mean([len(x) for x in joined])))


# --- the verdict --------------------------------------------------------------------------------------------


def harmless(losses: np.ndarray) -> bool:
    """losses: (S,), negative where accuracy is lost."""
    ends = interval(losses)
    return ends is not None and ends[0] > -MARGIN


def harmless_steps(alone: np.ndarray, joined: np.ndarray) -> list[int]:
    """The steps K that may be repeated, counted from 1. alone: (S, K - 1), joined: (S, K)."""
    known = joined.shape[1]
    return [
        step + 1
        for step in range(known)
        if harmless(joined[:, step]) and (step == known - 1 or harmless(alone[:, step]))
    ]


def step_ranges(steps: list[int]) -> str:
    """[1, 2, 3, 7] -> "1-3, 7"."""
    groups: list[list[int]] = []
    for step in steps:
        if groups and step == groups[-1][-1] + 1:
            groups[-1].append(step)
        else:
            groups.append([step])
    return ", ".join(f"{group[0]}-{group[-1]}" if len(group) > 1 else str(group[0]) for group in groups)


def verdict(alone: np.ndarray, joined: np.ndarray, count: np.ndarray, text: str) -> Report:
    """By the rule above. alone (S, K - 1), joined (S, K): losses; count (K,)."""
    fine = harmless_steps(alone, joined)
    best = int(joined.mean(axis=0).argmax())
    number = (
        f"At the end of {JOINED} joined utterances, repeating step {len(count)} (count {count[-1]}) changes "
        f"accuracy by {points(joined[:, -1])} points, step {best + 1} (count {count[best]}) by "
        f"{points(joined[:, best])}."
    )
    if len(count) in fine:
        return Report("confirmed", number, text)
    if not fine:
        return Report("not confirmed", number, text)
    least = min(count[step - 1] for step in fine)
    return Report(
        "depends", number, text, f"the step: harmless for {step_ranges(fine)}, which {least} or more reach"
    )


def points(losses: np.ndarray) -> str:
    """Losses (S,) in percentage points: "-1.2±0.3"."""
    mean, deviation = mean_and_deviation(100 * losses)
    return f"{mean:+.1f}" + ("" if deviation is None else f"±{deviation:.1f}")


# --- what is shown ------------------------------------------------------------------------------------------


def step_table(results: Results) -> str:
    """A row per step."""
    change, error, alone, logits, joined = (
        results.stacked(name) for name in ("change", "error", "alone", "logits", "joined")
    )
    known = len(results.count)
    fine = harmless_steps(alone, joined)
    rows = []
    for step in range(known):
        noise = error[:, step].mean()
        rows.append(
            [
                str(step + 1),
                str(results.count[step]),
                f"{change[:, step - 1].mean():.2f}" if step else "-",
                "-" if np.isnan(noise) else f"{noise:.2f}",
                points(alone[:, step]) if step < known - 1 else "-",
                f"{100 * logits[:, step].mean():.0f}" if step < known - 1 else "-",
                points(joined[:, step]),
                "yes" if step + 1 in fine else "no",
            ]
        )
    return format_table(
        ["step", "count", "change", "error", "alone", "outputs %", "joined", "harmless"], rows
    )


def statistics_sentence(results: Results) -> str:
    """When the statistics settle and dissolve."""
    change, error = results.stacked("change").mean(axis=0), results.stacked("error").mean(axis=0)
    start, end = settled(change, error)
    moves = f"Between steps 1 and 2 the statistics move by {change[0]:.2f} of a standard deviation"
    still = f"settle at step {start}" if start else "never settle"
    gone = (
        f"dissolve at step {end}, which {results.count[end - 1]} utterances reach"
        if end
        else "never dissolve"
    )
    return (
        f"{moves}; they {still} (changes below {THRESHOLD:g} from there on) and {gone} (error of "
        f"{THRESHOLD:g} or more, or too few to tell)."
    )


def subset_sentence(results: Results) -> str:
    """Few utterances, the wrong ones, or the wrong place in them?"""
    count, late = results.count[REACH - 1], results.stacked("joined")[:, REACH - 1]
    return (
        f"At the end of {JOINED} joined utterances, step {REACH} repeated, which {count} training utterances "
        f"reach, changes accuracy by {points(late)} points. Step {REPEATED} "
        f"repeated, with statistics over these {count} alone: {points(results.stacked('long_only'))}; over "
        f"{count} drawn from all: {points(results.stacked('drawn'))}."
    )


def report(results: Results) -> Report:
    """Sentences, table and verdict."""
    alone, joined = results.stacked("alone"), results.stacked("joined")
    accuracy = results.stacked("accuracy")
    mean, deviation = mean_and_deviation(100 * accuracy)
    told = [
        statistics_sentence(results),
        f"With all its own statistics the network names {mean:.1f} %"
        + ("" if deviation is None else f" (±{deviation:.1f})")
        + f" of the test utterances right. At the end of {JOINED} joined ones, "
        f"{results.joined_steps:.0f} steps, the accuracy of layer norm changes by "
        f"{points(results.stacked('layer_joined'))} points.",
        subset_sentence(results),
    ]
    caption = (
        "By step K: training utterances that reach it; change of the statistics from the step before "
        "and their error, in standard deviations; and what it does to repeat K's for all later "
        "steps: accuracy gained or lost, in points, on test utterances longer than K alone, change "
        f"of the outputs there, and accuracy at the end of {JOINED} joined. Harmless: the 95 % "
        f"intervals of both are above -{100 * MARGIN:g} points."
    )
    text = lay_out(bullets(told), [(caption, step_table(results))])
    return verdict(alone, joined, results.count, text)


COLOURS = {"joined": STYLES[BATCH_NORM["last"]][1], "alone": "#8e5bb5", "layer": STYLES[LAYER_NORM][1]}


def draw(results: Results, figure: Figure) -> None:
    """Counts, movement and error of the statistics, and the harm of repeating them, by step."""
    panels: Any = figure.subplots(1, 3, width_ratios=(1, 1.15, 1.5))
    counts, movement, harm = panels
    steps = np.arange(1, len(results.count) + 1)
    counts.bar(steps, results.count, width=0.8, color="#9fb4c0")
    counts.set_yscale("log")
    counts.set_yticks([1, 3, 10, 30, 100, 300], ["1", "3", "10", "30", "100", "300"])
    counts.minorticks_off()
    counts.set_ylabel("training utterances")
    _dress(counts, "Utterances that reach a step", steps, "step")

    movement.axhline(THRESHOLD, color="#b9b4a8", lw=1, ls=":")
    _band(movement, steps[1:], results.stacked("change"), "#2e9463", "s", "change from the step before")
    _band(movement, steps, results.stacked("error"), ALARM, "o", "error (two halves disagree)")
    movement.set_ylim(0, None)
    movement.set_ylabel("distance, in a unit's standard deviations")
    movement.legend(frameon=False, fontsize=9, loc="upper center")
    _dress(movement, "How far the statistics move, and are off", steps, "step")

    harm.axhspan(-100 * MARGIN, 100, color="#eaf1f6", lw=0, zorder=0)
    layer = 100 * results.stacked("layer_joined").mean()
    harm.axhline(layer, color=COLOURS["layer"], lw=2, label=f"layer norm, {JOINED} joined")
    alone = "one utterance, longer than K"
    _band(harm, steps[:-1], 100 * results.stacked("alone"), COLOURS["alone"], "v", alone)
    joined = f"{JOINED} utterances joined, {results.joined_steps:.0f} steps"
    _band(harm, steps, 100 * results.stacked("joined"), COLOURS["joined"], "^", joined)
    harm.set_yscale("symlog", linthresh=100 * MARGIN, linscale=1)
    harm.set_yticks([30, 10, 3, 0, -3, -10, -30, -100], ["+30", "+10", "+3", "0", "−3", "−10", "−30", "−100"])
    harm.minorticks_off()
    harm.set_ylim(-100, 70)
    harm.set_ylabel("accuracy gained or lost, in points")
    harm.text(0.6, 60, f"harmless: above −{100 * MARGIN:g} points", va="top", fontsize=9, color="#4a6a82")
    harm.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0.08, 0))
    _dress(harm, "Repeating the statistics of step K", steps, "step K that is repeated for all later ones")


def _band(axes: Axes, steps: np.ndarray, values: np.ndarray, colour: str, marker: str, label: str) -> None:
    mean = values.mean(axis=0)
    axes.plot(steps, mean, color=colour, lw=1.8, marker=marker, ms=4.5, label=label)
    if len(values) > 1:
        spread = values.std(axis=0, ddof=1)
        axes.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.15, lw=0)


def _dress(axes: Axes, title: str, steps: np.ndarray, label: str) -> None:
    axes.set_title(title, fontsize=11, loc="left", fontweight="bold")
    axes.set_xlabel(label)
    axes.set_xlim(0.3, len(steps) + 0.7)
    axes.set_xticks([1, 5, 10, 15, 20, 25])
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)


def how(seeds: int, quick: bool) -> str:
    """For the terminal."""
    return (
        f"For each of {min(seeds, 2) if quick else seeds} seeds an RNN with batch norm per time step is "
        "trained on whole utterances of Japanese Vowels, and one with layer norm. Then batch norm is left "
        "with the statistics of the first K steps and repeats the last of them, for every K."
    )


STUDY = Study(
    name="statistics",
    claim="Batch norm's statistics converge within a few steps, so past the last known step its statistics "
    "can be repeated",
    source="Cooijmans et al. 2016, arXiv 1603.09025, section 3 and figure 5",
    how=how,
    measure=measure,
    report=report,
    draw=draw,
    size=(13.5, 4.8),
)
