"""The sentences of the demo ``long-sequences`` on what was measured: each is worked out from the numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lnrnn.demos.length_experiment import BATCH_NORM, LAYER_NORM, NO_NORM, Method, Results
from lnrnn.demos.outcomes import ALL, Chosen, Outcome, compare, interval, mean_and_deviation
from lnrnn.demos.speakers import POLICIES, TRAININGS
from lnrnn.demos.study import Report
from lnrnn.demos.tables import bullets, format_percent, paragraph

RULE = (
    "Here one accuracy is above or below another only if the 95 % interval of their differences, paired over "
    "the seeds, does not hold 0. Where it does, one keeps up with the other, or holds."
)
MARGIN = 0.03  # by how much an accuracy may fall before a method is said to fail
TOO_FEW = "With fewer than three seeds nothing is called better or worse."
WITHOUT_TEST_BATCH = tuple(BATCH_NORM[policy] for policy in POLICIES if policy != "batch")  # raise first
ANSWERING = (*(BATCH_NORM[policy] for policy in ("last", "mean", "batch")), NO_NORM)


def findings(results: Results) -> list[str]:
    """All that the numbers say, as wrapped lines."""
    lines = []
    for training in TRAININGS:
        lines.append(f"Trained on {training}:")
        told = (
            refusals(results, training),
            beyond_training(results, training),
            last_step(results, training),
            joined(results, training),
        )
        lines.append(bullets(told))
    lines.append(paragraph(TOO_FEW if results.seeds < 3 else RULE))
    return lines


def verdict(results: Results, text: str) -> Report:
    """On the claim that BN per step fails on sequences longer than the training's and LN does not."""
    told = {
        (method, training): fate(change_when_joined(results, training, method))
        for method in (LAYER_NORM, *WITHOUT_TEST_BATCH)
        for training in TRAININGS
    }
    steps = results.joined_lengths[max(results.joined_lengths)].mean()
    parts = []
    for training in TRAININGS:
        changes = (
            f"{method.name} {100 * change_when_joined(results, training, method).mean():+.1f}"
            for method in (LAYER_NORM, *WITHOUT_TEST_BATCH)
        )
        parts.append(f"trained on {training}: {', '.join(changes)}")
    number = f"Points of accuracy from single to joined utterances ({steps:.0f} steps): {'; '.join(parts)}."
    layer = {told[LAYER_NORM, training] for training in TRAININGS}
    batch = {training: [told[method, training] for method in WITHOUT_TEST_BATCH] for training in TRAININGS}
    if layer == {"holds"} and all(set(fates) == {"fails"} for fates in batch.values()):
        return Report("confirmed", number, text)
    answering = (fate for fates in batch.values() for fate in fates[1:])
    if "fails" in layer or "fails" not in answering:
        return Report("not confirmed", number, text)
    first, *others = batch.values()
    conditions = ["the training"] if any(first != other for other in others) else []
    if any(len(set(fates)) > 1 for fates in batch.values()):
        conditions.append("what BN does past the steps it knows")
    if "unclear" in layer:
        conditions.append("chance: LN's change is not clear of the margin")
    conditions = conditions or ["chance: BN's changes are not clear of the margin"]
    return Report("depends", number, text, "; ".join(conditions))


def change_when_joined(results: Results, training: str, method: Method) -> np.ndarray:
    """Accuracy at the end of the most utterances joined, less that on the same last ones alone: (S,)."""
    by_count = results.joined[training]
    alone, at_the_end = by_count[min(by_count)][method], by_count[max(by_count)][method]
    return np.asarray(at_the_end.accuracies() - alone.accuracies())


def fate(changes: np.ndarray) -> str:
    """What the 95 % interval of changes of accuracy (S,) says: "fails", "holds" or "unclear"."""
    between = interval(changes)
    if between is None:
        return "unclear"
    lowest, highest = between
    return "fails" if highest < -MARGIN else "holds" if lowest > -MARGIN else "unclear"


def refusals(results: Results, training: str) -> str:
    """What overrun="raise" costs on the test utterances as they are."""
    outcomes = results.whole[training]
    strict = outcomes[BATCH_NORM["raise"]]
    total = len(strict.labels)
    known = len(results.statistics[training].count)
    return (
        f"BN knows {known} steps. Strict (raise), it refuses {strict.refusals()} of {total} test utterances "
        f"({strict.refusals() / total:.1%}); a refusal being an error, it is right in "
        f"{_percent(strict.accuracies())} %. LN answers all and is right in "
        f"{_percent(outcomes[LAYER_NORM].accuracies())} %."
    )


def beyond_training(results: Results, training: str) -> str:
    """Every method that answers, on exactly the utterances that are longer than all training ones."""
    known = len(results.statistics[training].count)
    longer = results.test.lengths > known
    outcomes = results.whole[training]
    layer = outcomes[LAYER_NORM].accuracies(longer)
    if longer.sum() == 1:
        seeds = len(layer)
        parts = [f"LN {layer.sum():.0f}"]
        parts += [f"{method.name} {outcomes[method].accuracies(longer).sum():.0f}" for method in ANSWERING]
        answers = ", ".join(parts)
        return f"On the one utterance beyond {known} steps, right answers under {seeds} seeds: {answers}."
    parts = [f"LN {_percent(layer)}"]
    verdicts = {1: " (above LN)", -1: " (below LN)", 0: " (keeps up with LN)", None: ""}
    for method in ANSWERING:
        accuracies = outcomes[method].accuracies(longer)
        verdict = verdicts[compare(accuracies, layer)]
        parts.append(f"{method.name} {_percent(accuracies)}{verdict}")
    return f"On the {longer.sum()} utterances beyond {known} steps, in %: {', '.join(parts)}."


def last_step(results: Results, training: str) -> str:
    """What the last known step's statistics are worth, and whether repeating them keeps up with LN."""
    statistics = results.statistics[training]
    known, count, var = len(statistics.count), int(statistics.count[-1]), statistics.var[-1]
    flat = int((var == 0).sum())
    if flat:
        where = f"{flat} of {len(var)} {statistics.what}"
        worth = f"in {where} its variance is 0: dividing by it leaves little but a sign"
    else:
        worth = f"its variance is {var.min():.2g} to {var.max():.2g}"
    longest = max(results.joined[training])
    beyond = against_layer_norm(results.whole[training], results.test.lengths > known)
    joined = against_layer_norm(results.joined[training][longest])
    reached = f"{count} training utterance{'' if count == 1 else 's'}"
    return (
        f"Step {known}, BN's last, was reached by {reached}; {worth}. "
        f"Repeating it {beyond} beyond {known} steps, and {joined} at the end of {longest} utterances."
    )


def against_layer_norm(outcomes: Mapping[Method, Outcome], chosen: Chosen = ALL) -> str:
    """How repeating the last step does: "falls behind LN (27.1±12.0 to 98.0±1.2 %)"."""
    verbs = {1: "does better than", -1: "falls behind", 0: "keeps up with", None: "stands against"}
    last, layer = (outcomes[method].accuracies(chosen) for method in (BATCH_NORM["last"], LAYER_NORM))
    return f"{verbs[compare(last, layer)]} LN ({_percent(last)} to {_percent(layer)} %)"


def joined(results: Results, training: str) -> str:
    """How each method fares from one utterance to the longest joined sequences."""
    by_count = results.joined[training]
    longest = max(by_count)
    steps = results.joined_lengths[longest]
    parts = [f"{method.name} {trend(by_count, method)}" for method in (LAYER_NORM, *ANSWERING)]
    refused = by_count[longest][BATCH_NORM["raise"]].refusals()
    return (
        f"From 1 utterance to {longest} of one speaker joined ({steps.min()} to {steps.max()} steps), in %: "
        f"{', '.join(parts)}. Strict BN refuses {refused} of {len(steps)}."
    )


def trend(by_count: Mapping[int, Mapping[Method, Outcome]], method: Method) -> str:
    """A method's way, such as "falls from 97.8 to 25.3"; with too few seeds for a verdict it just "goes"."""
    verbs = {1: "rises", -1: "falls", 0: "holds,", None: "goes"}
    first = by_count[min(by_count)][method].accuracies()
    last = by_count[max(by_count)][method].accuracies()
    return f"{verbs[compare(last, first)]} from {_percent(first)} to {_percent(last)}"


def _percent(accuracies: np.ndarray) -> str:
    return format_percent(*mean_and_deviation(accuracies))
