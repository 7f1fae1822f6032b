"""Trains a network that names the speaker of an utterance, and asks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

import lnrnn
from lnrnn.data import Utterances, pad_sequence
from lnrnn.demos.cells import MODELS
from lnrnn.demos.classifier import SequenceClassifier
from lnrnn.demos.training import TrainingSettings, train
from lnrnn.rnn.specs import Overrun

SPEAKERS = 9
REFUSED = -1
AT_A_TIME = 40
NormName = Literal["layer", "batch"]
NORMS: tuple[NormName | None, ...] = ("layer", "batch", None)
POLICIES: tuple[Overrun, ...] = ("raise", "last", "mean", "batch")
# What a network is trained on -> how many steps of each training utterance (None: all).
TRAININGS = {"the first 10 steps": 10, "whole utterances": None}


@dataclass(frozen=True)
class Settings:
    """How one network is made and trained."""

    cell: str = "rnn"  # a key of MODELS
    hidden_size: int = 64
    # Where the gains of either norm start; without a norm, what the initial weights are multiplied by.
    gain: float = 0.1
    training: TrainingSettings = TrainingSettings(
        epochs=200, batch_size=45, learning_rate=1e-3, largest_norm=1.0, noise=0.6
    )

    def with_epochs(self, epochs: int) -> Settings:
        return replace(self, training=replace(self.training, epochs=epochs))

    def __str__(self) -> str:
        """What does not depend on the norm."""
        how = self.training
        units = "tanh units" if self.cell == "rnn" else "units"
        return (
            f"{self.hidden_size} {units}, {how.epochs} epochs of Adam in batches of {how.batch_size}, "
            f"gradients clipped to norm {how.largest_norm:g}, noise {how.noise:g} on the standardised input"
        )


def common_settings(cell: str) -> Settings:
    """What all networks of a cell share. With more units, gated cells would make the demo too long."""
    return Settings(cell, hidden_size=64 if cell == "rnn" else 32)


class SpeakerNetwork:
    """A trained network with the scale of the input it was trained on.

    classifier: the SequenceClassifier. mean, deviation: float32 (channels,), of all training steps. losses:
    mean cross-entropy in nats, one per epoch.
    """

    def __init__(
        self,
        utterances: Utterances,
        norm: NormName | None,
        settings: Settings,
        seed: int,
        max_steps: int | None = None,
        on_epoch: Callable[[], object] = lambda: None,
    ) -> None:
        """Trains on the first ``max_steps`` steps of ``utterances`` (None: all of them).

        Under batch norm the population statistics of every step are then recomputed over the same training
        steps.
        """
        x, lengths = pad_sequence(utterances.x, max_steps)
        heard = x[np.arange(len(x))[:, None] < lengths].astype(np.float64)
        self.mean = heard.mean(axis=0).astype(np.float32)
        self.deviation = heard.std(axis=0).astype(np.float32)
        x, lengths = pad_sequence(self.standardised(utterances.x), max_steps)

        rng = np.random.default_rng(seed)
        rnn = MODELS[settings.cell](x.shape[2], settings.hidden_size, norm=norm, seed=seed)
        scaled = "gain" if norm else "weight"
        for name, value in rnn.parameters().items():
            if name.startswith(scaled):
                setattr(rnn, name, np.float32(settings.gain) * value)
        self.classifier = SequenceClassifier(rnn, SPEAKERS, rng)
        self.losses = train(self.classifier, x, lengths, utterances.labels, settings.training, rng, on_epoch)
        if norm == "batch":
            rnn.calibrate([(x, lengths)])

    def name_speakers(self, sequences: Sequence[np.ndarray], overrun: Overrun | None = None) -> np.ndarray:
        """The speaker that the network names for each sequence: int64 (N,).

        sequences: N arrays (T_i, channels). They run as one batch, which matters to ``overrun="batch"``
        alone.
        overrun: the policy of batch norm. Under "raise" every sequence is asked about by itself, and REFUSED
        stands for each that the network raised SequenceTooLongError for.
        """
        sequences = self.standardised(sequences)
        if overrun is not None:
            self.classifier.rnn.overrun = overrun
        if overrun != "raise":
            # The answers do not depend on the batch, but for the policy that says so, and small ones are less
            # to page in: 370 sequences of 3000 steps give 250 MB of outputs.
            size = len(sequences) if overrun == "batch" else AT_A_TIME
            starts = range(0, len(sequences), size)
            parts = [pad_sequence(sequences[start : start + size]) for start in starts]
            return np.concatenate([self.classifier.predict(*part) for part in parts])
        named = np.full(len(sequences), REFUSED)
        for index, sequence in enumerate(sequences):
            with suppress(lnrnn.SequenceTooLongError):
                named[index] = self.classifier.predict(*pad_sequence([sequence]))[0]
        return named

    def standardised(self, sequences: Sequence[np.ndarray]) -> list[np.ndarray]:
        """As the network reads them: (T_i, channels) each, on the scale of its training."""
        return [(sequence - self.mean) / self.deviation for sequence in sequences]


def join_utterances(utterances: Utterances, count: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Longer speech of the same speakers: before every utterance, ``count - 1`` others of its speaker.

    Each utterance comes last exactly once, so the labels stay those of ``utterances``, and the same
    utterances are asked about whatever ``count`` is. The ones before are drawn with replacement.
    """
    joined = []
    for index, label in enumerate(utterances.labels):
        same = np.flatnonzero(utterances.labels == label)
        before = rng.choice(same[same != index], count - 1)
        joined.append(np.concatenate([utterances.x[other] for other in (*before, index)]))
    return joined
