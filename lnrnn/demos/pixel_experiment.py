"""The measurements of the demo ``pixels``: LSTMs that read digits pixel by pixel, with each norm and none."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

import lnrnn
from lnrnn.demos.classifier import SequenceClassifier
from lnrnn.demos.digits import CLASSES, FOLDS, PIXELS, Digits, load_digits
from lnrnn.demos.parallel import side_by_side
from lnrnn.demos.study import Progress
from lnrnn.demos.training import TrainingSettings, train

NormName = Literal["layer", "batch"]
PLAIN, BATCH, LAYER = "no norm", "BN", "LN"
QUIET = "BN, no noise"  # trained as BN, but h0 is zero
BARE = "LN, no constant"  # trained as LN, but reads the pixel alone
METHODS = (PLAIN, BATCH, LAYER)
NORM_OF: dict[str, NormName | None] = {
    PLAIN: None,
    BATCH: "batch",
    LAYER: "layer",
    QUIET: "batch",
    BARE: "layer",
}
SETTING_OF = {QUIET: BATCH, BARE: LAYER}
IN_ORDER, PERMUTED = "in order", "permuted"
ORDERS = (IN_ORDER, PERMUTED)
# Trained beside the methods, with the setting of SETTING_OF; BARE only once, to save time.
EXTRA = ((QUIET, IN_ORDER), (QUIET, PERMUTED), (BARE, PERMUTED))

HIDDEN = 32
BATCH_SIZE = 50
LARGEST_NORM = 1.0  # of the gradient, which is clipped
NOISE = 0.1  # standard deviation of h0 in training
FORGET_BIAS = 1.0
RATES = (3e-3, 1e-2, 3e-2)
GAINS = (0.1, 1.0)  # where a norm's gains start
SCALES = (1.0, 3.0)  # without norm: what the initial weights are multiplied by
GRID_SEEDS = 2
EVERY = 4  # epochs between two questions about the held-out images


@dataclass(frozen=True)
class Setting:
    """rate: Adam's. start: of GAINS, or without norm of SCALES."""

    rate: float
    start: float


def grid(method: str) -> list[Setting]:
    """Those that a method tries: as many for every method."""
    starts = GAINS if NORM_OF[method] else SCALES
    return [Setting(rate, start) for rate, start in itertools.product(RATES, starts)]


@dataclass(frozen=True)
class Job:
    """One training. test: whether to ask about the test images at the end."""

    method: str
    order: str
    setting: Setting
    seed: int
    epochs: int
    images: int
    test: bool


@dataclass(frozen=True)
class Trained:
    """What one training gave.

    held_out: accuracy on the held-out images after the last epoch, and before that, where the test images
    are asked about, after every EVERY epochs. gradients: the gradient's norm before it was clipped, by
    update. test: accuracy on the test images, NaN where they were not asked about. silent: BN only, the same
    with statistics recomputed from h0 = 0. signs: BARE only, the share of the test images that are named
    alike when each pixel is replaced by its sign.
    """

    held_out: np.ndarray
    gradients: np.ndarray
    test: float
    silent: float
    signs: float


@dataclass
class Results:
    """Keys are (method, order).

    updates: after how many the held-out images were asked about, (E,). found: in the grid, accuracy on
    held-out images (settings, grid seeds). setting: the one chosen. curves: (S, E). gradients: (S, updates).
    test: (S,). silent: BN's other reading, and signs, as Trained has them, (S,). constant: pixels that are
    alike in all training images; in_batch: how many are in a batch, mean.
    """

    seeds: int
    updates: np.ndarray
    constant: int
    in_batch: float
    found: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)
    setting: dict[tuple[str, str], Setting] = field(default_factory=dict)
    curves: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)
    gradients: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)
    test: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)
    silent: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)
    signs: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)


class NoisyStart(lnrnn.LSTM):
    """An LSTM over single pixels that is trained from h0 of Gaussian noise, and runs from zeros.

    Under batch norm, running statistics are those of the last batch: they are set by `calibrate_noisily`.
    """

    def __init__(
        self, norm: NormName | None, start: float, noise: float, seed: int, channels: int = 1
    ) -> None:
        spec = lnrnn.BatchNormSpec(max_steps=PIXELS, momentum=1.0) if norm == "batch" else norm
        super().__init__(channels, HIDDEN, norm=spec, seed=seed)
        self.noise, self.draws = noise, np.random.default_rng([2, seed])
        for name, value in self.parameters().items():
            if name.startswith("gain"):
                setattr(self, name, np.full_like(value, start))
            elif name.startswith("weight") and norm is None:
                setattr(self, name, np.float32(start) * value)
            elif name.startswith("bias"):
                setattr(self, name, np.zeros_like(value))
        name = "bias_l0" if norm == "batch" else "bias_hh_l0"
        bias = np.zeros(4 * HIDDEN, np.float32)
        bias[HIDDEN : 2 * HIDDEN] = FORGET_BIAS
        setattr(self, name, bias)

    def forward_train(
        self, x: Any, h0: Any = None, lengths: Any = None, resets: Any = None, **options: Any
    ) -> tuple[np.ndarray, Any, Any]:
        """As the base's; h0 None is noise, and c0 zero."""
        if h0 is None:
            h0 = self._start(self.draws, x.shape[1])
        return super().forward_train(x, h0, lengths, resets, **options)

    def _start(self, draws: np.random.Generator, count: int) -> tuple[np.ndarray, None]:
        shape = 1, count, HIDDEN
        return np.float32(self.noise) * draws.standard_normal(shape, dtype=np.float32), None

    def calibrate_noisily(self, x: np.ndarray, seed: int) -> None:
        """Batch norm: the statistics become those of x (T, N, D), all of it as one training batch. The noise
        is drawn from a generator of its own."""
        super().forward_train(x, self._start(np.random.default_rng([3, seed]), x.shape[1]))


class Watched(SequenceClassifier):
    """A classifier that writes down the norm of every gradient."""

    def __init__(self, rnn: lnrnn.LSTM, rng: np.random.Generator) -> None:
        super().__init__(rnn, CLASSES, rng)
        self.norms: list[float] = []

    def loss_and_gradients(
        self, x: np.ndarray, lengths: np.ndarray, labels: np.ndarray
    ) -> tuple[float, dict[str, np.ndarray]]:
        loss, gradients = super().loss_and_gradients(x, lengths, labels)
        squares = sum(float((value.astype(np.float64) ** 2).sum()) for value in gradients.values())
        self.norms.append(squares**0.5)
        return loss, gradients


def permutation() -> np.ndarray:
    """The one order of pixels of PERMUTED: (64,)."""
    return np.random.default_rng(0).permutation(PIXELS)


def sequences(images: np.ndarray, order: str, method: str) -> np.ndarray:
    """images (N, 64) -> one pixel a step, (64, N, 1); for LAYER with a constant 1 beside it, (64, N, 2).

    Layer norm of a pixel p times weights w is sign(p) (w - mean) / deviation: what p is beyond its sign is
    lost. Weights of a constant are a bias inside the norm, with which p counts. Without norm there is such a
    bias anyway, and batch norm would take the constant off again.
    """
    pixels = images[:, permutation()] if order == PERMUTED else images
    steps = np.ascontiguousarray(pixels.T)[:, :, None]
    return np.concatenate([steps, np.ones_like(steps)], axis=2) if method == LAYER else steps


def run(job: Job, data: Digits) -> Trained:
    """Trains one network on all but the seed's fold."""
    x = sequences(data.train_x, job.order, job.method)
    held = data.fold == job.seed % FOLDS
    learnt = np.flatnonzero(~held)[: job.images]
    lengths = np.full(x.shape[1], PIXELS)
    rng = np.random.default_rng(job.seed)
    noise = 0.0 if job.method == QUIET else NOISE
    rnn = NoisyStart(NORM_OF[job.method], job.setting.start, noise, job.seed, x.shape[2])
    network = Watched(rnn, rng)
    how = TrainingSettings(job.epochs, BATCH_SIZE, job.setting.rate, LARGEST_NORM, noise=0.0)
    epochs, told = 0, []

    def on_epoch() -> None:
        nonlocal epochs
        epochs += 1
        if (job.test and epochs % EVERY == 0) or epochs == job.epochs:
            if rnn.norm is not None and NORM_OF[job.method] == "batch":
                rnn.calibrate_noisily(x[:, learnt], job.seed)
            told.append(_accuracy(network, x[:, held], data.train_labels[held]))

    train(network, x[:, learnt], lengths[learnt], data.train_labels[learnt], how, rng, on_epoch)
    test = silent = signs = np.nan
    if job.test:
        asked = sequences(data.test_x, job.order, job.method)
        test = _accuracy(network, asked, data.test_labels)
        if job.method == BARE:
            alike = sequences(np.sign(data.test_x), job.order, job.method)
            signs = _accuracy(network, alike, network.predict(asked, np.full(asked.shape[1], PIXELS)))
        if NORM_OF[job.method] == "batch":
            rnn.calibrate([(x[:, learnt], lengths[learnt])])
            silent = _accuracy(network, asked, data.test_labels)
    return Trained(np.array(told), np.array(network.norms), test, silent, signs)


def _accuracy(network: SequenceClassifier, x: np.ndarray, labels: np.ndarray) -> float:
    return float((network.predict(x, np.full(x.shape[1], len(x))) == labels).mean())


def constant_pixels(data: Digits) -> tuple[int, float]:
    """How many of the 64 pixels are alike in all training images, and in batches of them, mean."""
    order = np.random.default_rng(0).permutation(len(data.train_x))
    batches = data.train_x[order].reshape(-1, BATCH_SIZE, PIXELS)
    return int((np.ptp(data.train_x, axis=0) == 0).sum()), float((np.ptp(batches, axis=1) == 0).sum(1).mean())


@dataclass(frozen=True)
class Extent:
    """How much is done: images learnt from, epochs of the grid's trainings and of the others."""

    seeds: int
    images: int
    grid_epochs: int
    epochs: int

    @classmethod
    def of(cls, seeds: int, quick: bool) -> Extent:
        return cls(min(seeds, 2), 100, 1, 1) if quick else cls(seeds, 800, 20, 40)

    @property
    def grid_seeds(self) -> int:
        return min(GRID_SEEDS, self.seeds)

    def updates(self) -> np.ndarray:
        """After how many updates the held-out images are asked about."""
        epochs = sorted({*range(EVERY, self.epochs + 1, EVERY), self.epochs})
        return np.array(epochs) * -(-self.images // BATCH_SIZE)


def measure(seeds: int, quick: bool, progress: Progress) -> Results:
    """Chooses a setting for every method and order by held-out images, then trains with it."""
    extent, data = Extent.of(seeds, quick), load_digits()
    results = Results(extent.seeds, extent.updates(), *constant_pixels(data))
    cells = list(itertools.product(METHODS, ORDERS))
    last = [*cells, *EXTRA]
    tried = [
        Job(*cell, setting, seed, extent.grid_epochs, extent.images, test=False)
        for cell in cells
        for setting in grid(cell[0])
        for seed in range(extent.grid_seeds)
    ]
    work = len(tried) * extent.grid_epochs + len(last) * extent.seeds * extent.epochs
    done, lock = 0, threading.Lock()

    def job(item: Job) -> Trained:
        nonlocal done
        found = run(item, data)
        with lock:
            done += item.epochs
            progress(done / work, f"{item.method}, {item.order}")
        return found

    trained = iter(side_by_side(job, tried))
    for cell in cells:
        settings = grid(cell[0])
        found = np.array([[next(trained).held_out[-1] for _ in range(extent.grid_seeds)] for _ in settings])
        results.found[cell] = found
        results.setting[cell] = settings[int(found.mean(axis=1).argmax())]
    for method, order in EXTRA:
        results.setting[method, order] = results.setting[SETTING_OF[method], order]
    jobs = [
        Job(*cell, results.setting[cell], seed, extent.epochs, extent.images, test=True)
        for cell in last
        for seed in range(extent.seeds)
    ]
    trained = iter(side_by_side(job, jobs))
    for cell in last:
        those = [next(trained) for _ in range(extent.seeds)]
        results.curves[cell] = np.stack([one.held_out for one in those])
        results.gradients[cell] = np.stack([one.gradients for one in those])
        results.test[cell] = np.array([one.test for one in those])
        if cell[0] == BARE:
            results.signs[cell] = np.array([one.signs for one in those])
        if NORM_OF[cell[0]] == "batch":
            results.silent[cell] = np.array([one.silent for one in those])
    return results
