"""``lnrnn demo long-sequences``: why layer norm, and not batch norm, belongs in a recurrent network.

Claim: batch norm with statistics for each time step fails on sequences longer than any seen in training;
layer norm, which has none to store, does not (Ba, Kiros, Hinton, Layer Normalization, arXiv 1607.06450,
sections 1 and 3). Cooijmans et al. (arXiv 1603.09025) repeat the last step's statistics there, and hold an
average over the steps to be worse.

Measured: networks with layer norm, batch norm per time step, and no norm learn to tell nine speakers apart,
once from the first ten steps of every training utterance and once from whole utterances. Every norm tried the
same number of settings on training utterances (lnrnn.demos.choose_settings). Then they are asked about longer
speech: the whole test utterances, and up to 170 utterances of one speaker joined, 2600 steps on average, 100
times the longest training utterance. The answer is always read from the state at the sequence's own end, for
a mean over time would let the early steps, which every network knows, answer for the late ones.

Rule, fixed before the full run, for each cell by itself. A method fails, under one of the two trainings, if
the 95 % interval of its accuracy at the end of the most utterances joined, less that on the same last
utterances alone, paired over the seeds, lies below -MARGIN; it holds if the interval lies above. A refusal is
an error. Confirmed: layer norm holds under both trainings, and batch norm fails under both in each way that
needs no test batch (raise, last, mean). Not confirmed: layer norm fails under one, or batch norm fails under
neither in any way that answers (last, mean). Else it depends: on the training if that makes a difference, on
what batch norm does past the steps it knows if that does; or a change is not clear of the margin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from lnrnn.data import japanese_vowels
from lnrnn.demos.cells import CELLS, MODELS, with_article
from lnrnn.demos.choose_settings import settings_for
from lnrnn.demos.findings import change_when_joined, fate, findings, verdict
from lnrnn.demos.length_experiment import METHODS, Method, Results
from lnrnn.demos.length_experiment import measure as measure_lengths
from lnrnn.demos.outcomes import ALL, Chosen, Outcome, interval, mean_and_deviation
from lnrnn.demos.speakers import NORMS, TRAININGS, NormName, Settings, common_settings
from lnrnn.demos.study import Progress, Report, Study
from lnrnn.demos.tables import format_percent, format_table, lay_out

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BUCKETS = ((1, 10), (11, 13), (14, 16), (17, 19), (20, 29))
COUNTS: tuple[int, ...] = (1, 2, 4, 16, 65, 170)
QUICK_COUNTS, QUICK_EPOCHS, QUICK_SEEDS = (1, 2, 4), 30, 2
LEGEND = (
    "In the row 'BN raise' a refusal is an error; 'answered' is the accuracy on what it did not refuse, "
    "'refused' how many it did."
)


def study(cell: str) -> Study[Results]:
    """The demo with networks of one cell, one of CELLS."""
    return Study(
        name="long-sequences" if cell == CELLS[0] else f"long-sequences-{cell}",
        claim="Batch norm per time step fails on sequences longer than the training's; layer norm does not",
        source="Ba, Kiros, Hinton, arXiv 1607.06450, sections 1 and 3",
        how=partial(introduction, cell),
        measure=partial(measure, cell),
        report=report,
        draw=draw,
        size=(12.0, 8.8),
    )


def measure(cell: str, seeds: int, quick: bool, progress: Progress) -> Results:
    """All that the demo asks of one cell."""
    counts, settings = COUNTS, settings_for
    if quick:
        counts, settings, seeds = QUICK_COUNTS, _quick_settings, min(seeds, QUICK_SEEDS)
    total, done, lock = len(TRAININGS) * len(NORMS) * seeds, 0, Lock()

    def on_network(text: str) -> None:
        nonlocal done
        with lock:
            done += 1
            progress(done / total, text)

    return measure_lengths(japanese_vowels(), cell, seeds, counts, settings, on_network)


def _quick_settings(cell: str, training: str, norm: NormName | None) -> Settings:
    return settings_for(cell, training, norm).with_epochs(QUICK_EPOCHS)


def report(results: Results) -> Report:
    return verdict(results, report_text(results))


def draw(results: Results, figure: Figure) -> None:
    from lnrnn.demos.figures import draw_long_sequences

    draw_long_sequences(results, figure)


def report_text(results: Results) -> str:
    """Findings and tables."""
    steps = results.joined_lengths[max(results.joined_lengths)].mean()
    changes = (
        f"From single to joined utterances ({steps:.0f} steps): points of accuracy, 95 % interval, and what "
        "the verdict takes it for"
    )
    tables = [(changes, changes_table(results))]
    legend = LEGEND
    for training in TRAININGS:
        caption = f"Trained on {training}: accuracy in %, by steps in the test utterance. {legend}"
        tables.append((caption, whole_table(results, training)))
        legend = ""  # once is enough
    for training in TRAININGS:
        caption = f"Trained on {training}: accuracy in %, by utterances of a speaker joined"
        tables.append((caption, joined_table(results, training)))
    return lay_out("\n".join(findings(results)), tables)


def introduction(cell: str, seeds: int, quick: bool) -> str:
    """What is about to be done, one paragraph a line."""
    if quick:
        seeds = min(seeds, QUICK_SEEDS)
    paragraphs = [
        "Japanese Vowels: 270 training and 370 test utterances of 9 speakers, 12 channels, a step every "
        f"6.4 ms. For each of {seeds} seeds {with_article(MODELS[cell].__name__)} is trained with layer norm "
        "(LN), with batch norm per time step (BN) and with no norm.",
        f"All alike: {common_settings(cell)}. Rate and gain are the best of nine for each norm and training, "
        "on training utterances alone (python -m lnrnn.demos.choose_settings).",
        "A network answers once, from its state at the sequence's own end. BN uses the statistics of all "
        "training utterances. For a step that it has none for, 'raise' refuses, 'last' repeats those of the "
        "last step, 'mean' averages over the steps, 'batch' takes them from all test sequences together.",
        "Accuracies are means over the seeds ± the standard deviation.",
    ]
    return "\n".join(paragraphs)


def whole_table(results: Results, training: str) -> str:
    """Accuracy by length of the test utterance, one row per method."""
    lengths = results.test.lengths
    chosen = [(lengths >= low) & (lengths <= high) for low, high in BUCKETS] + [np.full(len(lengths), True)]
    header = ["steps", *map(bucket_name, BUCKETS), "all"]
    counts = ["utterances", *(str(column.sum()) for column in chosen)]
    return format_table(header, [counts, *_rows([(results.whole[training], column) for column in chosen])])


def joined_table(results: Results, training: str) -> str:
    """Accuracy at the end of joined utterances, by how many these are, one row per method."""
    by_count = results.joined[training]
    header = ["joined", *map(str, by_count)]
    steps = ["mean steps", *(f"{results.joined_lengths[count].mean():.0f}" for count in by_count)]
    return format_table(header, [steps, *_rows([(outcomes, ALL) for outcomes in by_count.values()])])


def changes_table(results: Results) -> str:
    """What joining costs each method, and what the verdict takes it for; one row per method."""
    rows = []
    for method in METHODS:
        cells = []
        for training in TRAININGS:
            changes = change_when_joined(results, training, method)
            between = interval(changes)
            ends = "" if between is None else f" {100 * between[0]:+.1f} to {100 * between[1]:+.1f}"
            cells.append(f"{100 * changes.mean():+.1f}{ends}  {fate(changes)}")
        rows.append([method.name, *cells])
    return format_table(["trained on", *TRAININGS], rows)


def bucket_name(bucket: tuple[int, int]) -> str:
    """(11, 13) -> "11-13"; the first is open below."""
    low, high = bucket
    return f"<= {high}" if low == 1 else f"{low}-{high}"


def _rows(columns: Sequence[tuple[Mapping[Method, Outcome], Chosen]]) -> list[list[str]]:
    """columns: pairs of outcomes by method and an index of the sequences that the column is about."""
    rows = []
    for method in METHODS:
        pairs = [(outcomes[method], chosen) for outcomes, chosen in columns]
        rows.append([method.name, *(_cell(outcome.accuracies(chosen)) for outcome, chosen in pairs)])
        if method.overrun == "raise":
            answered = (outcome.accuracies(chosen, answered_only=True) for outcome, chosen in pairs)
            rows.append(["  answered", *map(_cell, answered)])
            rows.append(["  refused", *(str(outcome.refusals(chosen)) for outcome, chosen in pairs)])
    return rows


def _cell(accuracies: np.ndarray) -> str:
    return "-" if np.isnan(accuracies).any() else format_percent(*mean_and_deviation(accuracies))
