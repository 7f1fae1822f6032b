"""The one training loop of the demos: mini-batches, noise on the input, clipped gradients, Adam."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class TrainingSettings:
    """How to train.

    epochs: passes over all sequences. batch_size: sequences per update. learning_rate: Adam's.
    largest_norm: gradients are scaled down to this joint Euclidean norm.
    noise: standard deviation of the Gaussian noise added to the input, drawn anew for every batch.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    largest_norm: float
    noise: float


# x (T, N, I), lengths (N,), and labels (N,), or (T, N) of a model that answers at every step.
Batch = tuple[np.ndarray, np.ndarray, np.ndarray]


class Trainable(Protocol):
    """What `updates` and `train` ask of a model."""

    def parameters(self) -> dict[str, np.ndarray]: ...

    def set_parameters(self, values: dict[str, np.ndarray], /) -> None: ...

    def loss_and_gradients(
        self, x: np.ndarray, lengths: np.ndarray, labels: np.ndarray, /
    ) -> tuple[float, dict[str, np.ndarray]]: ...


class Adam:
    """Adam with bias correction (Kingma and Ba 2015, algorithm 1), one pair of moments per parameter name.

    learning_rate: one number, or an array that broadcasts against every parameter.
    """

    def __init__(
        self, learning_rate: float | np.ndarray, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8
    ) -> None:
        self.learning_rate, self.beta1, self.beta2, self.eps = learning_rate, beta1, beta2, eps
        self.updates = 0
        self._moments: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def step(
        self, parameters: dict[str, np.ndarray], gradients: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The parameters after one update, as new arrays."""
        self.updates += 1
        first_scale = 1 - self.beta1**self.updates
        second_scale = 1 - self.beta2**self.updates
        moved = {}
        for name, value in parameters.items():
            gradient = gradients[name]
            first, second = self._moments.get(name) or (np.zeros_like(value), np.zeros_like(value))
            first = self.beta1 * first + (1 - self.beta1) * gradient
            second = self.beta2 * second + (1 - self.beta2) * gradient**2
            self._moments[name] = first, second
            update = (first / first_scale) / (np.sqrt(second / second_scale) + self.eps)
            moved[name] = value - self.learning_rate * update
        return moved


def clip(gradients: dict[str, np.ndarray], largest_norm: float) -> dict[str, np.ndarray]:
    """Scales all gradients by one factor so that their joint Euclidean norm is at most ``largest_norm``."""
    norm = sum(float((gradient.astype(np.float64) ** 2).sum()) for gradient in gradients.values()) ** 0.5
    if norm <= largest_norm:
        return gradients
    return {name: gradient * np.float32(largest_norm / norm) for name, gradient in gradients.items()}


def updates(
    model: Trainable, batches: Iterable[Batch], optimiser: Adam, largest_norm: float
) -> Iterator[tuple[float, int]]:
    """Trains ``model`` in place, with one update per batch, as far as one iterates: yields the loss of every
    batch, as it was before the update, and the number of its sequences.

    A batch is taken from ``batches`` after the update by the one before. largest_norm: see `clip`.
    """
    for x, lengths, labels in batches:
        loss, gradients = model.loss_and_gradients(x, lengths, labels)
        model.set_parameters(optimiser.step(model.parameters(), clip(gradients, largest_norm)))
        yield loss, len(lengths)


def shuffled(
    x: np.ndarray,
    lengths: np.ndarray,
    labels: np.ndarray,
    settings: TrainingSettings,
    rng: np.random.Generator,
) -> Iterator[Batch]:
    """One epoch: all sequences in a random order, in batches, with noise. The arguments are those of
    `train`."""
    order = rng.permutation(len(labels))
    for start in range(0, len(order), settings.batch_size):
        chosen = order[start : start + settings.batch_size]
        batch = x[: lengths[chosen].max(), chosen]
        batch = batch + np.float32(settings.noise) * rng.standard_normal(batch.shape, dtype=np.float32)
        yield batch, lengths[chosen], labels[chosen]


def train(
    model: Trainable,
    x: np.ndarray,
    lengths: np.ndarray,
    labels: np.ndarray,
    settings: TrainingSettings,
    rng: np.random.Generator,
    on_epoch: Callable[[], object] = lambda: None,
) -> list[float]:
    """Trains ``model`` in place; returns the mean loss of every epoch.

    x (T, N, I), lengths (N,), labels (N,): all training sequences, padded; a batch is cut to its own longest
    sequence.
    rng: draws the order of the sequences, anew for every epoch, and the noise.
    on_epoch: called after every epoch, for a progress bar.
    """
    optimiser = Adam(settings.learning_rate)
    losses = []
    for _ in range(settings.epochs):
        total = 0.0
        batches = shuffled(x, lengths, labels, settings, rng)
        for loss, count in updates(model, batches, optimiser, settings.largest_norm):
            total += loss * count
        losses.append(total / len(labels))
        on_epoch()
    return losses
