"""The settings of the speaker networks, and how they are chosen: ``python -m lnrnn.demos.choose_settings``.

Every norm of every cell tries the same RATES and as many GAINS, for each of the two trainings, on training
utterances alone. Every third one is held out in turn; the network trains on the others, cut as the training
is, and is asked about the held-out ones, cut likewise. The setting with the best mean accuracy over the folds
is chosen, of equal ones the first. Without a norm there is no gain: there the initial weights are multiplied
by as many factors.

``CHOSEN`` is what came out. The command computes all of it again, prints every score, and says where the best
one is not that of ``CHOSEN``.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace

import numpy as np

from lnrnn.data import Utterances, japanese_vowels
from lnrnn.demos.cells import CELLS
from lnrnn.demos.packages import require
from lnrnn.demos.parallel import one_thread, side_by_side
from lnrnn.demos.speakers import NORMS, TRAININGS, NormName, Settings, SpeakerNetwork, common_settings

FOLDS = 3
RATES = (1e-3, 3e-3, 1e-2)
GAINS: dict[NormName | None, tuple[float, ...]] = {
    "layer": (0.1, 0.3, 1.0),
    "batch": (0.1, 0.3, 1.0),
    None: (0.5, 1.0, 2.0),
}

Choice = tuple[float, float]  # a rate and a gain
Kind = tuple[str, str, "NormName | None"]  # cell, training, norm
# cell, training, norm -> rate, gain  # accuracy on held-out training utterances
CHOSEN: dict[Kind, Choice] = {
    ("rnn", "the first 10 steps", "layer"): (0.003, 0.3),  # 97.0%
    ("rnn", "the first 10 steps", "batch"): (0.001, 0.3),  # 96.3%
    ("rnn", "the first 10 steps", None): (0.001, 1.0),  # 95.9%
    ("rnn", "whole utterances", "layer"): (0.001, 0.1),  # 97.4%
    ("rnn", "whole utterances", "batch"): (0.001, 0.3),  # 96.7%
    ("rnn", "whole utterances", None): (0.003, 0.5),  # 96.7%
    ("lstm", "the first 10 steps", "layer"): (0.003, 0.3),  # 97.0%
    ("lstm", "the first 10 steps", "batch"): (0.003, 0.1),  # 97.8%
    ("lstm", "the first 10 steps", None): (0.001, 0.5),  # 97.0%
    ("lstm", "whole utterances", "layer"): (0.003, 0.1),  # 98.5%
    ("lstm", "whole utterances", "batch"): (0.003, 0.3),  # 97.4%
    ("lstm", "whole utterances", None): (0.003, 1.0),  # 97.8%
    ("gru", "the first 10 steps", "layer"): (0.01, 1.0),  # 96.7%
    ("gru", "the first 10 steps", "batch"): (0.001, 0.1),  # 97.4%
    ("gru", "the first 10 steps", None): (0.001, 1.0),  # 97.4%
    ("gru", "whole utterances", "layer"): (0.001, 0.3),  # 97.8%
    ("gru", "whole utterances", "batch"): (0.001, 0.1),  # 97.8%
    ("gru", "whole utterances", None): (0.003, 0.5),  # 97.8%
}


def settings_for(cell: str, training: str, norm: NormName | None) -> Settings:
    """Those of the demo. training: a key of TRAININGS."""
    return with_choice(common_settings(cell), CHOSEN[cell, training, norm])


def with_choice(settings: Settings, choice: Choice) -> Settings:
    rate, gain = choice
    return replace(settings, gain=gain, training=replace(settings.training, learning_rate=rate))


def grid(norm: NormName | None) -> list[Choice]:
    """What a norm tries, in the order that decides between equals."""
    return list(itertools.product(RATES, GAINS[norm]))


def held_out_accuracy(
    utterances: Utterances, norm: NormName | None, settings: Settings, max_steps: int | None
) -> float:
    """Accuracy on held-out utterances, mean over the folds; trained and asked on ``max_steps`` of each."""
    fold = np.arange(len(utterances)) % FOLDS
    right = 0
    for held in range(FOLDS):
        network = SpeakerNetwork(_part(utterances, fold != held), norm, settings, held, max_steps)
        asked = _part(utterances, fold == held)
        # A fold can hold out the only utterance of some length: no policy must decide here, so all repeat.
        named = network.name_speakers([x[:max_steps] for x in asked.x], "last" if norm == "batch" else None)
        right += int((named == asked.labels).sum())
    return right / len(utterances)


def _part(utterances: Utterances, chosen: np.ndarray) -> Utterances:
    return Utterances([utterances.x[index] for index in np.flatnonzero(chosen)], utterances.labels[chosen])


def best(choices: list[Choice], scores: list[float]) -> Choice:
    """The one with the highest score; of equal ones the first."""
    return choices[int(np.argmax(scores))]


def main() -> int:
    """Prints all scores and what they choose; 1 where that is not CHOSEN."""
    utterances = japanese_vowels().train
    kinds: list[Kind] = list(itertools.product(CELLS, TRAININGS, NORMS))
    jobs = [(kind, choice) for kind in kinds for choice in grid(kind[2])]
    scores: dict[tuple[Kind, Choice], float] = {}
    with require("tqdm").tqdm(total=len(jobs), smoothing=0) as bar, one_thread():

        def job(item: tuple[Kind, Choice]) -> None:
            (cell, training, norm), choice = item
            settings = with_choice(common_settings(cell), choice)
            scores[item] = held_out_accuracy(utterances, norm, settings, TRAININGS[training])
            bar.update()

        side_by_side(job, jobs)
    different = 0
    for kind in kinds:
        choices = grid(kind[2])
        found = [scores[kind, choice] for choice in choices]
        chosen = best(choices, found)
        print(f"    {kind!r}: {chosen},  # {max(found):.1%}")
        print(
            *(f"        {rate:g} {gain:g}: {scores[kind, (rate, gain)]:.1%}" for rate, gain in choices),
            sep="\n",
        )
        different += chosen != CHOSEN.get(kind)
    print(f"{different} of {len(kinds)} differ from CHOSEN" if different else "as in CHOSEN")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
