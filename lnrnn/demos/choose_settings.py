"""How the settings of the speaker networks were chosen: ``python -m lnrnn.demos.choose_settings [CELL]``.

CELL: one of lnrnn.demos.CELLS (default: rnn). Only training utterances take part. Every third one is held
out in turn; the networks train on the others and are asked about the held-out ones, cut as the training was:
to their first ten steps, and not at all. The three norms of a cell get the same settings, so a setting's
score is its mean accuracy over norms, cuts and folds. Prints all scores, best first.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace

import numpy as np

from lnrnn.data import Utterances, japanese_vowels
from lnrnn.demos.cells import CELLS
from lnrnn.demos.packages import require
from lnrnn.demos.speakers import NORMS, NormName, Settings, SpeakerNetwork

FOLDS = 3
CUTS = (10, None)
GRIDS = {
    "rnn": {
        "hidden_size": (32, 64, 128),
        "gain": (0.1, 1.0),
        "learning_rate": (1e-3, 3e-3),
        "noise": (0.3, 0.6, 0.9),
        "epochs": (50, 100, 200),  # more would make the demo too long
    },
    # Around what the RNN got; with its 64 units cells of several gates would make the demo too long.
    **dict.fromkeys(
        CELLS[1:],
        {
            "hidden_size": (32,),
            "gain": (0.1, 1.0),
            "learning_rate": (1e-3, 3e-3),
            "noise": (0.6,),
            "epochs": (200,),
        },
    ),
}


def held_out_accuracy(
    utterances: Utterances, settings: Settings
) -> dict[tuple[NormName | None, int | None], float]:
    """Accuracy on the held-out utterances by (norm, cut), mean over the folds."""
    fold = np.arange(len(utterances)) % FOLDS
    scores: dict[tuple[NormName | None, int | None], float] = {}
    for norm, cut in itertools.product(NORMS, CUTS):
        right = np.zeros(len(utterances))
        for held in range(FOLDS):
            network = SpeakerNetwork(
                _part(utterances, fold != held), norm, settings, seed=held, max_steps=cut
            )
            asked = _part(utterances, fold == held)
            # A fold can hold out the only utterance of some length; the choice of a policy must not decide
            # here.
            cut_short = [x[:cut] for x in asked.x]
            named = network.name_speakers(cut_short, "last" if norm == "batch" else None)
            right[fold == held] = named == asked.labels
        scores[norm, cut] = float(right.mean())
    return scores


def _part(utterances: Utterances, chosen: np.ndarray) -> Utterances:
    return Utterances([utterances.x[index] for index in np.flatnonzero(chosen)], utterances.labels[chosen])


def main(cell: str = CELLS[0]) -> None:
    if cell not in GRIDS:
        raise SystemExit(f"expected one of {', '.join(GRIDS)}, got {cell!r}")
    grid, utterances = GRIDS[cell], japanese_vowels().train
    results = []
    for values in require("tqdm").tqdm(list(itertools.product(*grid.values()))):
        choice = dict(zip(grid, values, strict=True))
        base = Settings(cell=cell, hidden_size=choice.pop("hidden_size"), gain=choice.pop("gain"))
        settings = replace(base, training=replace(base.training, **choice))
        scores = held_out_accuracy(utterances, settings)
        results.append((sum(scores.values()) / len(scores), scores, settings))
    for mean, scores, settings in sorted(results, key=lambda result: -result[0]):
        each = "  ".join(f"{norm}/{cut or 'whole'} {score:.1%}" for (norm, cut), score in scores.items())
        print(f"{mean:.2%}  {settings}\n        {each}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
