"""The measurements of the demo ``weight-growth``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from lnrnn.demos.digits import CLASSES, FOLDS, PIXELS, Digits, load_digits
from lnrnn.demos.normalised_regression import BATCH, LAYER, NONE, NORMS, WEIGHT, Regression
from lnrnn.demos.study import Progress
from lnrnn.demos.training import Adam

NORMALISED = (LAYER, BATCH, WEIGHT)
SGD, ADAM = "SGD", "Adam"
RATES = {SGD: (0.01, 0.1, 1.0, 10.0), ADAM: (1e-4, 1e-3, 1e-2, 1e-1)}
BATCH_SIZE = 32
EPS = 1e-5  # in training; curvatures by hand are at 0
FACTORS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
SMALL_STEP = 1e-3  # of the rate: what one update does by hand is to be proportional to the rate


class PlainSgd:
    """value - rate * gradient, with the interface of Adam."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def step(
        self, parameters: dict[str, np.ndarray], gradients: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        return {name: value - self.rate * gradients[name] for name, value in parameters.items()}


def optimiser(name: str, rate: float) -> PlainSgd | Adam:
    return PlainSgd(rate) if name == SGD else Adam(rate)


@dataclass(frozen=True)
class Course:
    """One training of U updates.

    model: in the end. held_out: accuracy on held-out images in the end. growth: length of the weights over
    that at the start, before every update and in the end (U + 1,), geometric mean over the groups. turn:
    angle in radians between a group before and after each update, mean over the groups (U,). cosine: the
    largest in the whole training between a group and its gradient, in size. curvature: of the weights, and
    gain_curvature, after each epoch and before the first (E + 1,).
    """

    model: Regression
    held_out: float
    growth: np.ndarray
    turn: np.ndarray
    cosine: float
    curvature: np.ndarray
    gain_curvature: np.ndarray


@dataclass(frozen=True)
class Images:
    """One seed's: learnt from, held out, and in which order, (updates, BATCH_SIZE)."""

    x: np.ndarray
    labels: np.ndarray
    held_x: np.ndarray
    held_labels: np.ndarray
    order: np.ndarray

    @classmethod
    def of(cls, data: Digits, seed: int, images: int, epochs: int) -> Images:
        held = data.fold == seed % FOLDS
        learnt = np.flatnonzero(~held)[:images]
        rng = np.random.default_rng([1, seed])
        full = images - images % BATCH_SIZE
        order = [rng.permutation(images)[:full].reshape(-1, BATCH_SIZE) for _ in range(epochs)]
        x = data.train_x.astype(np.float64)
        labels = data.train_labels
        return cls(x[learnt], labels[learnt], x[held], labels[held], np.concatenate(order))


def lengths(groups: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt(np.einsum("gi,gi->g", groups, groups)))


def angles(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Between the rows of a and b (G, I), in radians: (G,). By the distance of their unit vectors, for the
    cosine of a small angle says nothing of it."""
    apart = a / lengths(a)[:, None] - b / lengths(b)[:, None]
    return np.asarray(2 * np.arcsin(np.minimum(lengths(apart) / 2, 1)))


def train(
    model: Regression,
    images: Images,
    steps: PlainSgd | Adam,
    *,
    hold: bool = False,
    watch_every: int = 0,
) -> Course:
    """Trains a copy. hold: after every update each group is brought back to its first length, which changes
    no output. watch_every: updates between two looks at the curvature (0: none)."""
    start = lengths(model.groups(model.weight))
    growth, turn, curvatures, cosine = [1.0], [], [], 0.0

    def look() -> None:
        if watch_every:
            exact = replace(model, eps=0.0)
            curvatures.append((exact.weight_curvature(images.held_x), exact.gain_curvature(images.held_x)))

    look()
    for update, chosen in enumerate(images.order, 1):
        _, gradients = model.loss_and_gradients(images.x[chosen], images.labels[chosen])
        old, towards = model.groups(model.weight), model.groups(gradients["weight"])
        dots = np.abs(np.einsum("gi,gi->g", old, towards))
        cosine = max(cosine, float((dots / np.maximum(lengths(old) * lengths(towards), 1e-300)).max()))
        moved = steps.step(model.parameters(), gradients)
        new = model.groups(moved["weight"])
        turn.append(float(angles(old, new).mean()))
        if hold:
            new = new * (start / lengths(new))[:, None]
        weight = new.reshape(model.weight.shape)
        model = replace(model, weight=weight, gain=moved["gain"], bias=moved["bias"])
        growth.append(float(np.exp(np.log(lengths(new) / start).mean())))
        if watch_every and update % watch_every == 0:
            look()
    right = model.predict(images.held_x, images.x) == images.held_labels
    found = np.array(curvatures).reshape(-1, 2)
    return Course(
        model, float(right.mean()), np.array(growth), np.array(turn), cosine, found[:, 0], found[:, 1]
    )


@dataclass(frozen=True)
class ByHand:
    """What becomes of a trained network when its weights are multiplied by each of FACTORS: (F,) each.

    moved: largest change of a logit. weight, itself, gain: the curvature of the weights, mean over all
    directions; along the weights themselves; along a gain (without norm, along the length of a row).
    own, cross: of the first row's block and of that with the second, when the first row alone is multiplied
    (not for layer norm: NaN). gain_data: as gain, when the images are multiplied, and the weights are left;
    without norm they are divided, so that the outputs stay. turn: {optimiser: angle of a first update} at
    SMALL_STEP of the rate.
    """

    moved: np.ndarray
    weight: np.ndarray
    itself: np.ndarray
    gain: np.ndarray
    own: np.ndarray
    cross: np.ndarray
    gain_data: np.ndarray
    turn: dict[str, np.ndarray]


def by_hand(model: Regression, images: Images, rates: dict[str, float]) -> ByHand:
    """On the held-out images, at eps 0."""
    model, x = replace(model, eps=0.0), images.held_x
    before = model.logits(x)
    rows: dict[str, list[float]] = {
        name: [] for name in ("moved", "weight", "itself", "gain", "own", "cross", "gain_data")
    }
    turn: dict[str, list[float]] = {name: [] for name in rates}
    for factor in FACTORS:
        whole = model.scaled(factor)
        own = cross = np.nan
        if model.norm != LAYER:
            first = np.ones((len(model.weight), 1))
            first[0] = factor
            own, cross = model.scaled(first).blocks(x)
        other = model.scaled(1 / factor) if model.norm == NONE else model
        values = (
            float(np.abs(whole.logits(x) - before).max()),
            whole.weight_curvature(x),
            whole.along_itself(x),
            whole.gain_curvature(x),
            own,
            cross,
            other.gain_curvature(factor * x),
        )
        for row, value in zip(rows.values(), values, strict=True):
            row.append(value)
        for name, rate in rates.items():
            turn[name].append(turned_at_once(whole, images, optimiser(name, SMALL_STEP * rate)))
    return ByHand(
        **{name: np.array(row) for name, row in rows.items()},
        turn={name: np.array(angles) for name, angles in turn.items()},
    )


def turned_at_once(model: Regression, images: Images, steps: PlainSgd | Adam) -> float:
    """The angle by which one update turns the weights, mean over the groups."""
    chosen = images.order[0]
    _, gradients = model.loss_and_gradients(images.x[chosen], images.labels[chosen])
    moved = steps.step(model.parameters(), gradients)["weight"]
    return float(angles(model.groups(model.weight), model.groups(moved)).mean())


@dataclass
class Results:
    """Keys are (norm, optimiser), lists have one entry per seed.

    updates: of a training; epochs. grid: accuracy on held-out images and growth at the end, (seeds, rates)
    each. rate: the one chosen. free, held: trainings at it, `held` with the lengths held. hand: of the
    network that SGD trained, by norm.
    """

    seeds: int
    updates: int
    epochs: int
    grid: dict[tuple[str, str], tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    rate: dict[tuple[str, str], float] = field(default_factory=dict)
    free: dict[tuple[str, str], list[Course]] = field(default_factory=dict)
    held: dict[tuple[str, str], list[Course]] = field(default_factory=dict)
    hand: dict[str, list[ByHand]] = field(default_factory=dict)


def extent(seeds: int, quick: bool) -> tuple[int, int, int]:
    """Seeds, images, epochs."""
    return (min(seeds, 2), 160, 2) if quick else (seeds, 800, 40)


def measure(seeds: int, quick: bool, progress: Progress) -> Results:
    """Tries all rates, and trains with the best of them, watched and with the lengths held."""
    seeds, count, epochs = extent(seeds, quick)
    data = load_digits()
    images = [Images.of(data, seed, count, epochs) for seed in range(seeds)]
    results = Results(seeds, len(images[0].order), epochs)
    cells = [(norm, name) for norm in NORMS for name in RATES]
    for index, (norm, name) in enumerate(cells):
        progress(index / len(cells), f"{norm}, {name}")
        _measure_cell(results, norm, name, images)
    for norm in NORMS:
        rates = {name: results.rate[norm, name] for name in RATES}
        results.hand[norm] = [
            by_hand(course.model, own, rates)
            for course, own in zip(results.free[norm, SGD], images, strict=True)
        ]
    return results


def _measure_cell(results: Results, norm: str, name: str, images: list[Images]) -> None:
    """One norm under one optimiser."""
    starts = [Regression.initial(norm, PIXELS, CLASSES, EPS, seed) for seed in range(results.seeds)]
    each = list(zip(starts, images, strict=True))
    tried = [[train(start, own, optimiser(name, rate)) for rate in RATES[name]] for start, own in each]
    held_out = np.array([[course.held_out for course in row] for row in tried])
    growth = np.array([[course.growth[-1] for course in row] for row in tried])
    results.grid[norm, name] = held_out, growth
    rate = results.rate[norm, name] = RATES[name][int(held_out.mean(axis=0).argmax())]
    every = results.updates // results.epochs
    results.free[norm, name] = [
        train(start, own, optimiser(name, rate), watch_every=every) for start, own in each
    ]
    if norm != NONE:
        results.held[norm, name] = [
            train(start, own, optimiser(name, rate), hold=True) for start, own in each
        ]
