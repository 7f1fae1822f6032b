"""Recurrent classifiers and their training loop in NumPy, for ``lnrnn demo`` and examples/studies.

The loop uses random mini-batches, Gaussian noise on inputs, gradient clipping and Adam.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

import lnrnn
from lnrnn.data import Utterances, pad_sequence
from lnrnn.rnn.models import Model
from lnrnn.rnn.specs import Overrun

MODELS: dict[str, type[Model]] = {"rnn": lnrnn.RNN, "lstm": lnrnn.LSTM, "gru": lnrnn.GRU}
CELLS = tuple(MODELS)
NormName = Literal["layer", "batch"]
NORMS: tuple[NormName | None, ...] = ("layer", "batch", None)
SPEAKERS = 9
REFUSED = -1
# Sequences per batch, to limit memory. Answers depend on this number only with overrun="batch".
AT_A_TIME = 40

Item = TypeVar("Item")
Value = TypeVar("Value")
# A batch: x (T, N, I), lengths (N,), labels (N,); or labels (T, N) for a model that answers at every
# step.
Batch = tuple[np.ndarray, np.ndarray, np.ndarray]


# --- training -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of `train`.

    epochs: passes over all sequences. batch_size: sequences per update. learning_rate: of Adam.
    largest_norm: limit of the global Euclidean norm of gradients. noise: standard deviation of the
    Gaussian noise added to each batch's input.
    """

    epochs: int = 200
    batch_size: int = 45
    learning_rate: float = 1e-3
    largest_norm: float = 1.0
    noise: float = 0.6


class Adam:
    """Adam with bias correction (Kingma and Ba 2015, algorithm 1).

    learning_rate: a number, or an array that broadcasts to the shape of every parameter.
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
        """Returns the parameters after one update, as new arrays by name."""
        self.updates += 1
        first_scale = 1 - self.beta1**self.updates
        second_scale = 1 - self.beta2**self.updates
        updated = {}
        for name, value in parameters.items():
            gradient = gradients[name]
            first, second = self._moments.get(name) or (np.zeros_like(value), np.zeros_like(value))
            first = self.beta1 * first + (1 - self.beta1) * gradient
            second = self.beta2 * second + (1 - self.beta2) * gradient**2
            self._moments[name] = first, second
            change = (first / first_scale) / (np.sqrt(second / second_scale) + self.eps)
            updated[name] = value - self.learning_rate * change
        return updated


def clip(gradients: dict[str, np.ndarray], largest_norm: float) -> dict[str, np.ndarray]:
    """Scales all gradients by one factor: their global Euclidean norm is then at most ``largest_norm``."""
    norm = sum(float((gradient.astype(np.float64) ** 2).sum()) for gradient in gradients.values()) ** 0.5
    if norm <= largest_norm:
        return gradients
    return {name: gradient * np.float32(largest_norm / norm) for name, gradient in gradients.items()}


def updates(
    model: Any, batches: Iterable[Batch], optimiser: Adam, largest_norm: float
) -> Iterator[tuple[float, int]]:
    """Trains ``model`` in place, one update per batch.

    Yields (loss before the update, number of sequences) of each batch. The next batch is read after the
    update. model: an object with parameters(), set_parameters() and loss_and_gradients(), such as the
    classifiers below.
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
    """Yields the batches of one epoch of `train`: all sequences in random order, with noise."""
    order = rng.permutation(len(labels))
    for start in range(0, len(order), settings.batch_size):
        chosen = order[start : start + settings.batch_size]
        batch = x[: lengths[chosen].max(), chosen]
        batch = batch + np.float32(settings.noise) * rng.standard_normal(batch.shape, dtype=np.float32)
        yield batch, lengths[chosen], labels[chosen]


def train(
    model: Any, x: np.ndarray, lengths: np.ndarray, labels: np.ndarray, settings: TrainingSettings,
    rng: np.random.Generator, on_epoch: Callable[[], object] = lambda: None,
) -> list[float]:  # fmt: skip
    """Trains ``model`` in place. Returns the mean loss of every epoch.

    x (T, N, I), lengths (N,), labels (N,): all training sequences, padded. A batch has as many steps as its
    longest sequence. rng: draws the noise, and the order of the sequences in every epoch.
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


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the loss, -log(probability of the right class), and its gradient.

    logits: (..., classes). labels: integers (...). Returns losses (...) in nats, and each loss's gradient
    with respect to the logits (..., classes). For a batch's mean loss, divide gradients by the batch size.
    """
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_probability = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    right = labels[..., None]
    gradients = np.exp(log_probability)
    np.put_along_axis(gradients, right, np.take_along_axis(gradients, right, -1) - 1, -1)
    return -np.take_along_axis(log_probability, right, -1)[..., 0], gradients


# --- classifiers --------------------------------------------------------------------------------------------


class Classifier:
    """A recurrent model, and a linear layer (the head) that computes a logit for each class from h.

    rnn: a model with one layer and direction. The head's parameters are ``head_weight`` (classes, H),
    initially uniform in +-1/sqrt(H), and ``head_bias`` (classes), initially zero.
    """

    def __init__(self, rnn: lnrnn.Network[Any], classes: int, rng: np.random.Generator) -> None:
        hidden_size = rnn.parameters()["weight_hh_l0"].shape[1]
        bound = hidden_size**-0.5
        self.rnn = rnn
        self.head_weight = rng.uniform(-bound, bound, (classes, hidden_size)).astype(np.float32)
        self.head_bias = np.zeros(classes, np.float32)

    def parameters(self) -> dict[str, np.ndarray]:
        return {**self.rnn.parameters(), "head_weight": self.head_weight, "head_bias": self.head_bias}

    def set_parameters(self, values: dict[str, np.ndarray]) -> None:
        for name, value in values.items():
            setattr(self if name.startswith("head_") else self.rnn, name, value)


class SequenceClassifier(Classifier):
    """A classifier of whole sequences by their last h.

    The head uses einsum: the order of additions in BLAS, and so the bits, may depend on the number of
    threads.
    """

    def logits(self, state: np.ndarray) -> np.ndarray:
        """Returns the logits (..., classes) for h (..., H)."""
        return np.asarray(np.einsum("...h,ch->...c", state, self.head_weight) + self.head_bias)

    def predict(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Returns each sequence's class (N,), for x (T, N, I) with lengths (N,)."""
        _, state = self.rnn(x, lengths=lengths)
        return np.asarray(self.logits(last_layer(state)).argmax(axis=-1))

    def loss_and_gradients(
        self, x: np.ndarray, lengths: np.ndarray, labels: np.ndarray
    ) -> tuple[float, dict[str, np.ndarray]]:
        """Returns (mean cross-entropy in nats over N sequences, gradients by parameter name).

        Batch norm's running statistics are updated too.
        """
        return self.loss_and_all_gradients(x, lengths, labels)[:2]

    def loss_and_all_gradients(
        self, x: np.ndarray, lengths: np.ndarray, labels: np.ndarray
    ) -> tuple[float, dict[str, np.ndarray], np.ndarray]:
        """Returns the results of ``loss_and_gradients``, and the gradient of x (T, N, I)."""
        y, state, tape = self.rnn.forward_train(x, lengths=lengths)
        h = last_layer(state)
        losses, glogits = cross_entropy(self.logits(h), labels)
        glogits /= len(labels)
        gh: Any = np.einsum("nc,ch->nh", glogits, self.head_weight)[None]
        if isinstance(state, tuple):
            gh = gh, None
        gx, _, gradients = self.rnn.backward(tape, np.zeros_like(y), gh)
        gradients["head_weight"] = np.einsum("nc,nh->ch", glogits, h)
        gradients["head_bias"] = glogits.sum(axis=0)
        return float(losses.mean()), gradients, gx


def last_layer(state: np.ndarray | tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Returns h (N, H) of the state, h or (h, c), of a network with one layer."""
    h: np.ndarray = (state[0] if isinstance(state, tuple) else state)[0]
    return h


@dataclass(frozen=True)
class SpeakerSettings:
    """Settings of SpeakerNetwork. cell: a key of MODELS. gain: the initial gain of the norm; without a norm,
    a factor of all initial weights."""

    cell: str = "rnn"
    gain: float = 0.1
    training: TrainingSettings = TrainingSettings()

    @property
    def hidden_size(self) -> int:
        """The number of hidden units: fewer for gated cells, so that all cells have a similar speed."""
        return 64 if self.cell == "rnn" else 32


class SpeakerNetwork:
    """A network that its constructor trains on utterances of Japanese Vowels.

    classifier: the SequenceClassifier. mean, deviation: of the training input over all steps, float32
    (channels,). losses: the mean cross-entropy of each epoch in nats.
    """

    def __init__(
        self, utterances: Utterances, norm: NormName | None, settings: SpeakerSettings, seed: int,
        max_steps: int | None = None, on_epoch: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        """Trains on the first ``max_steps`` steps of each utterance, or on all if None.

        Then calibrates batch norm's statistics on the same steps.
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

    @property
    def rnn(self) -> lnrnn.Network[Any]:
        return self.classifier.rnn

    def standardised(self, sequences: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns the network's inputs (T_i, channels): (sequence - `mean`) / `deviation`."""
        return [(sequence - self.mean) / self.deviation for sequence in sequences]

    def name_speakers(self, sequences: Sequence[np.ndarray], overrun: Overrun | None = None) -> np.ndarray:
        """Returns the speaker that the network identifies for each sequence: int64 (N,).

        sequences: N arrays (T_i, channels); one batch with ``overrun="batch"``. overrun: batch norm's
        policy. With "raise", REFUSED stands for a SequenceTooLongError.
        """
        sequences = self.standardised(sequences)
        if overrun is not None:
            self.rnn.overrun = overrun
        if overrun != "raise":
            size = len(sequences) if overrun == "batch" else AT_A_TIME
            starts = range(0, len(sequences), size)
            parts = [pad_sequence(sequences[start : start + size]) for start in starts]
            return np.concatenate([self.classifier.predict(*part) for part in parts])
        named = np.full(len(sequences), REFUSED)
        for index, sequence in enumerate(sequences):
            with suppress(lnrnn.SequenceTooLongError):
                named[index] = self.classifier.predict(*pad_sequence([sequence]))[0]
        return named

    def name_at_each_step(self, x: np.ndarray, overrun: Overrun | None = None) -> np.ndarray:
        """Returns the answer at each step, int64 (T, N). x: (T, N, channels), not standardised."""
        if overrun is not None:
            self.rnn.overrun = overrun
        y, _ = self.rnn((x - self.mean) / self.deviation)
        return np.asarray(self.classifier.logits(y).argmax(axis=-1))


# --- several networks at a time -----------------------------------------------------------------------------


@contextmanager
def one_thread() -> Iterator[int]:
    """A context in which lnrnn uses one thread, because two are not faster for small batches.

    Yields the previous number of threads, for `side_by_side`.
    """
    threads = lnrnn.get_num_threads()
    lnrnn.set_num_threads(1)
    try:
        yield threads
    finally:
        lnrnn.set_num_threads(threads)


def side_by_side(function: Callable[[Item], Value], items: Iterable[Item], jobs: int) -> list[Value]:
    """Returns [function(item) for item in items], computed by ``jobs`` Python threads.

    Use it within `one_thread`. Calls must not change shared objects; then results do not depend on
    jobs. An exception in a call is raised at once, and calls that have not begun are cancelled.
    """
    pool = ThreadPoolExecutor(jobs)
    try:
        return [future.result() for future in [pool.submit(function, item) for item in items]]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
