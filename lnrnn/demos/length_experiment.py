"""The measurements of the demo ``long-sequences``: who spoke, asked of speech longer than the training's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import lnrnn
from lnrnn.data import JapaneseVowels, Utterances
from lnrnn.demos.choose_settings import settings_for
from lnrnn.demos.outcomes import Outcome
from lnrnn.demos.parallel import side_by_side
from lnrnn.demos.speakers import (
    NORMS,
    POLICIES,
    TRAININGS,
    NormName,
    Settings,
    SpeakerNetwork,
    join_utterances,
)
from lnrnn.rnn.specs import Overrun


@dataclass(frozen=True)
class Method:
    """A kind of network, and under batch norm what it does beyond the steps it knows."""

    name: str
    norm: NormName | None
    overrun: Overrun | None = None


LAYER_NORM = Method("LN", "layer")
BATCH_NORM = {policy: Method(f"BN {policy}", "batch", policy) for policy in POLICIES}
NO_NORM = Method("no norm", None)
METHODS = (LAYER_NORM, *BATCH_NORM.values(), NO_NORM)
LABELS = {"layer": "LN", "batch": "BN", None: "no norm"}
Kind = tuple[str, "NormName | None", int]  # training, norm, seed
Answers = dict[tuple[Method, int], np.ndarray]  # (method, how many utterances joined) -> the speakers named


@dataclass(frozen=True)
class StepStatistics:
    """Batch norm's population statistics: mean and var float64 (steps, N), count int64 (steps,).

    They are those of an RNN's H units, or of the G*H values of W h, what the state gives to the gates of a
    cell with several: `what` is the word for the N.
    """

    mean: np.ndarray
    var: np.ndarray
    count: np.ndarray
    what: str = "units"

    @classmethod
    def of(cls, rnn: lnrnn.Network[Any]) -> StepStatistics:
        """The first layer's."""
        if isinstance(rnn, lnrnn.RNN):
            return cls(rnn.running_mean_l0, rnn.running_var_l0, rnn.count_l0)
        return cls(rnn.running_mean_hh_l0, rnn.running_var_hh_l0, rnn.count_l0, "values of W h")


@dataclass
class Results:
    """All answers, by training, then by method (and by number of joined utterances).

    whole: every test utterance as it is. joined: count -> each test utterance with count - 1 others of its
    speaker before it. joined_lengths: count -> steps of each joined sequence, int64 (N,). statistics: of the
    first seed's batch norm network, by training.
    """

    test: Utterances
    seeds: int
    whole: dict[str, dict[Method, Outcome]] = field(default_factory=dict)
    joined: dict[str, dict[int, dict[Method, Outcome]]] = field(default_factory=dict)
    joined_lengths: dict[int, np.ndarray] = field(default_factory=dict)
    statistics: dict[str, StepStatistics] = field(default_factory=dict)


def measure(
    data: JapaneseVowels,
    cell: str,
    seeds: int,
    counts: tuple[int, ...],
    settings: Callable[[str, str, NormName | None], Settings] = settings_for,
    on_network: Callable[[str], object] = lambda text: None,
) -> Results:
    """Trains ``seeds`` networks of every kind for every training and asks each about all test sequences.

    counts: how many utterances of a speaker to join, ascending, starting with 1 (the test utterances as they
    are).
    settings: by cell, training and norm.
    on_network: called with a line of text after each network, by several threads, for a progress bar.
    """
    test = data.test
    joined = {count: join_utterances(test, count, np.random.default_rng(count)) for count in counts}
    results = Results(test, seeds)
    results.joined_lengths = {count: np.array([len(x) for x in joined[count]]) for count in counts}

    def job(kind: Kind) -> Answers:
        training, norm, seed = kind
        network = SpeakerNetwork(data.train, norm, settings(cell, training, norm), seed, TRAININGS[training])
        if norm == "batch" and seed == 0:
            results.statistics[training] = StepStatistics.of(network.classifier.rnn)
        answers = {
            (method, count): network.name_speakers(joined[count], method.overrun)
            for method in METHODS
            if method.norm == norm
            for count in counts
        }
        on_network(f"{training}, {LABELS[norm]}, seed {seed}")
        return answers

    # The longest jobs first, so that none of them is left over for one thread at the end.
    trainings = sorted(TRAININGS, key=lambda training: TRAININGS[training] or np.inf, reverse=True)
    kinds = list(itertools.product(trainings, NORMS, range(seeds)))
    found = dict(zip(kinds, side_by_side(job, kinds), strict=True))
    for training in TRAININGS:
        results.joined[training] = {
            count: {
                method: Outcome(
                    np.stack([found[training, method.norm, seed][method, count] for seed in range(seeds)]),
                    test.labels,
                )
                for method in METHODS
            }
            for count in counts
        }
        results.whole[training] = results.joined[training][1]
    return results
