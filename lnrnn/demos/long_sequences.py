"""``lnrnn demo long-sequences``: why layer norm, and not batch norm, belongs in a recurrent network.

Networks with layer norm, batch norm per time step, and no norm learn to tell nine speakers apart, once from
the first ten steps of every training utterance and once from whole utterances. Then they are asked about
longer speech: the whole test utterances, and several utterances of one speaker joined. The answer is always
read from the state at the sequence's own end, for a mean over time would let the early steps, which every
network knows, answer for the late ones.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lnrnn.data import japanese_vowels
from lnrnn.demos.cells import CELLS, MODELS, with_article
from lnrnn.demos.findings import findings, verdict
from lnrnn.demos.length_experiment import METHODS, TRAININGS, Method, Results, measure
from lnrnn.demos.outcomes import ALL, Chosen, Outcome, mean_and_deviation
from lnrnn.demos.packages import require
from lnrnn.demos.parallel import one_thread
from lnrnn.demos.speakers import NORMS, Settings, settings_for
from lnrnn.demos.study import Report
from lnrnn.demos.tables import format_percent, format_table, paragraph
from lnrnn.files import check_replaceable

BUCKETS = ((1, 10), (11, 13), (14, 16), (17, 19), (20, 29))
FIGURE_BUCKETS = (*BUCKETS[:-1], (20, 23), (24, 29))
COUNTS: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
LEGEND = (
    "In the row 'BN raise' a refusal is an error; 'answered' is the accuracy on what it did not refuse, "
    "'refused' how many it did."
)
NAMES = {cell: with_article(model.__name__) for cell, model in MODELS.items()}
FIGURES = {cell: f"long_sequences{'' if cell == CELLS[0] else '_' + cell}.png" for cell in CELLS}


def run(*, seeds: int, output_dir: Path, quick: bool, figure: bool, cell: str) -> Report:
    """Prints findings and tables, and draws the cell's one of FIGURES in ``output_dir``."""
    tqdm = require("tqdm").tqdm
    path = output_dir / FIGURES[cell]
    if figure:
        require("matplotlib")
        output_dir.mkdir(parents=True, exist_ok=True)
        check_replaceable(path)
    settings, counts = settings_for(cell), COUNTS
    if quick:
        settings, counts, seeds = settings.with_epochs(30), COUNTS[:4], min(seeds, 3)
    data = japanese_vowels()
    print(introduction(settings, seeds, quick))

    started = time.perf_counter()
    total = seeds * len(TRAININGS) * len(NORMS) * settings.training.epochs
    with tqdm(total=total, smoothing=0, bar_format="{l_bar}{bar}| {elapsed}<{remaining}") as bar:
        with one_thread():
            results = measure(data, settings, seeds, counts, bar.set_description, bar.update)
        bar.set_description("done")

    report = verdict(results, report_text(results))
    print(f"\n{report.text}\n")
    print(paragraph(f"Verdict: {report.told}. {report.number}"))
    if figure:
        from lnrnn.demos.figures import draw_long_sequences

        draw_long_sequences(results, FIGURE_BUCKETS, path)
        print(f"\nFigure: {path.resolve()}")
    print(f"Took {time.perf_counter() - started:.0f} s.")
    return report


def report_text(results: Results) -> str:
    """Findings and tables."""
    parts = ["What the numbers say\n", *findings(results), "\nThe numbers\n", paragraph(LEGEND)]
    for training in TRAININGS:
        parts.append(f"\nTrained on {training}: accuracy in %, by steps in the test utterance\n")
        parts.append(whole_table(results, training))
    for training in TRAININGS:
        parts.append(f"\nTrained on {training}: accuracy in %, by utterances of a speaker joined\n")
        parts.append(joined_table(results, training))
    return "\n".join(parts)


def introduction(settings: Settings, seeds: int, quick: bool) -> str:
    """What is about to be done, in a few lines."""
    chosen_for = "" if settings.cell == "rnn" else f" {settings.cell}"
    paragraphs = [
        "Japanese Vowels: 270 training and 370 test utterances of 9 speakers, 12 channels, a step every "
        f"6.4 ms. For each of {seeds} seeds {NAMES[settings.cell]} is trained with layer norm (LN), with "
        "batch norm per time step (BN) and with no norm.",
        f"All alike: {settings}. They were chosen on training utterances alone (python -m "
        f"lnrnn.demos.choose_settings{chosen_for}).",
        "A network answers once, from its state at the sequence's own end. BN uses the statistics of all "
        "training utterances. For a step that it has none for, 'raise' refuses, 'last' repeats those of the "
        "last step, 'mean' averages over the steps, 'batch' takes them from all test sequences together.",
        "Accuracies are means over the seeds ± the standard deviation.",
    ]
    if quick:
        paragraphs.append("A quick run: too little training for the numbers to mean much.")
    return "\n".join(map(paragraph, paragraphs))


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
