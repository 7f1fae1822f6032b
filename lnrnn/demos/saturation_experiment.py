"""What the study ``saturation`` measures: two sigmoid networks in training, and what is seen inside them.

The deep network has DEPTH hidden layers, the recurrent one runs over STEPS steps. A *place* is a hidden layer
of the one, a step of the other; the first place is the one farthest from the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

import lnrnn
from lnrnn.demos.classifier import SequenceClassifier
from lnrnn.demos.digits import CLASSES, FOLDS, PIXELS, Digits, load_digits
from lnrnn.demos.feed_forward import EPS, FeedForward, NormName, train
from lnrnn.demos.parallel import Tally, side_by_side
from lnrnn.demos.study import Progress
from lnrnn.demos.training import TrainingSettings
from lnrnn.demos.training import train as train_recurrent

Net = Literal["deep", "recurrent"]
NETS: tuple[Net, ...] = ("deep", "recurrent")
NORMS: dict[str, NormName | None] = {"no norm": None, "LN": "layer", "BN": "batch"}
DEPTH, STEPS, UNITS = 8, 16, 32
SIZES = (PIXELS, *[UNITS] * DEPTH, CLASSES)
FACTORS = (1.0, 2.0, 4.0, 8.0, 16.0)
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
BATCH, PASSES = 32, 20
IMAGES, PROBED, SHIFTED = 800, 200, 100
LARGEST_NORM = 1.0  # to which gradients of the recurrent network are clipped
SATURATED = 0.1  # of its greatest slope, 1/4: a sigmoid with less is saturated
QUANTILES = (0.05, 0.5, 0.95)


@dataclass(frozen=True)
class Setting:
    """factor: where the gains of a norm start; without norm, what multiplies the usual hidden weights."""

    factor: float
    rate: float


GRID = tuple(Setting(factor, rate) for factor in FACTORS for rate in RATES)


@dataclass(frozen=True)
class Inside:
    """What a network does with PROBED training images, by place, (P, ...).

    before, after: mean and standard deviation over the images of W h, and of the sigmoid's input, two numbers
    per unit, (P, 2, units). saturated: share of all units and images, (P,). quantiles: of the sigmoid's
    inputs over units and images, (P, 3). gradient: log10 of the length of the gradient, (P,): by the layer's
    weights in the deep network, by the step's input in the recurrent one.
    """

    before: np.ndarray
    after: np.ndarray
    saturated: np.ndarray
    quantiles: np.ndarray
    gradient: np.ndarray

    @property
    def spread(self) -> np.ndarray:
        """Of the sigmoid's inputs over the images: root mean square over the units, (P,)."""
        return np.asarray(np.sqrt((self.after[:, 1] ** 2).mean(axis=-1)))

    @property
    def reach(self) -> float:
        """Decades from the gradient at the last place to that at the first."""
        return float(self.gradient[0] - self.gradient[-1])


@dataclass
class Course:
    """One network in training. insides: before training and after each pass. accuracy: on the test images,
    at inference, after each pass, (passes,). shifts: in the deep network, `gradient_shift` at the first
    update of every pass, (passes, DEPTH - 1)."""

    insides: list[Inside] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    shifts: list[np.ndarray] = field(default_factory=list)

    @property
    def accuracy(self) -> np.ndarray:
        return np.array(self.accuracies)

    def drift(self, which: Literal["before", "after"]) -> np.ndarray:
        """log10 of `drift` in each pass, (passes, P)."""
        found = [getattr(inside, which) for inside in self.insides]
        return np.array([drift(old, new) for old, new in zip(found, found[1:], strict=False)])


@dataclass
class Results:
    """What S seeds gave, by network and norm. chosen: the setting. held_out: accuracy on held-out training
    images, mean over the passes, (S, settings). courses: of the chosen setting, one per seed. usual: inside
    the same networks before training at factor 1."""

    seeds: int
    passes: int
    grid: tuple[Setting, ...]
    chosen: dict[tuple[Net, str], Setting] = field(default_factory=dict)
    held_out: dict[tuple[Net, str], np.ndarray] = field(default_factory=dict)
    courses: dict[tuple[Net, str], list[Course]] = field(default_factory=dict)
    usual: dict[tuple[Net, str], list[Inside]] = field(default_factory=dict)


def moments(values: np.ndarray) -> np.ndarray:
    """values (images, units) -> mean and standard deviation over the images, (2, units), float64."""
    values = values.astype(np.float64)
    return np.stack([values.mean(axis=0), values.std(axis=0)])


def drift(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """log10 of how far the distributions of values moved, in units of their spread.

    old, new: mean and standard deviation of each unit at each place, (P, 2, units). The distance is that of
    Wasserstein between normal distributions, root mean square over the units; the spread that of both times,
    root mean square over the units too. Returns (P,).
    """
    moved = ((new - old) ** 2).sum(axis=1).mean(axis=-1)
    spread = (old[:, 1] ** 2 + new[:, 1] ** 2).mean(axis=-1) / 2
    tiny = np.finfo(np.float64).tiny
    return np.asarray(0.5 * (np.log10(np.maximum(moved, tiny)) - np.log10(np.maximum(spread, tiny))))


def look(before: Sequence[np.ndarray], after: Sequence[np.ndarray], gradient: Sequence[float]) -> Inside:
    """before, after: (images, units) for each place. gradient: lengths."""
    sigmoid = [1 / (1 + np.exp(-values.astype(np.float64))) for values in after]
    return Inside(
        np.stack([moments(values) for values in before]),
        np.stack([moments(values) for values in after]),
        np.array([(4 * h * (1 - h) < SATURATED).mean() for h in sigmoid]),
        np.stack([np.quantile(values.astype(np.float64), QUANTILES) for values in after]),
        np.log10(np.maximum(np.asarray(gradient, np.float64), 1e-45)),
    )


def length(values: np.ndarray) -> float:
    """Euclidean, of all values."""
    return float(np.sqrt((values.astype(np.float64) ** 2).sum()))


# --- the deep network ---------------------------------------------------------------------------------------


def make_deep(norm: NormName | None, seed: int, settings: Sequence[Setting]) -> FeedForward:
    """A stack of one network per setting. Without norm the factor multiplies the hidden layers' weights."""
    seeds = [seed] * len(settings)
    factors = np.array([setting.factor for setting in settings], np.float32)
    if norm:
        return FeedForward(seeds, norm, SIZES, nonlinearity="sigmoid", gain=factors)
    scale = np.ones((len(settings), len(SIZES) - 1), np.float32)
    scale[:, :-1] = factors[:, None]
    return FeedForward(seeds, None, SIZES, scale, nonlinearity="sigmoid")


def look_into_deep(networks: FeedForward, x: np.ndarray, labels: np.ndarray) -> Inside:
    """The first network of a stack, in training mode. x (B, PIXELS), labels (B,)."""
    own = networks.part([0])  # a copy: the running statistics stay as they are
    before, after = zip(*own.summed_inputs(x), strict=True)
    gradients = own.losses_and_gradients(x[:, None], labels[:, None])[1]
    hidden = own.layers(gradients)[:-1]
    return look([z[:, 0] for z in before], [a[:, 0] for a in after], [length(g.weight) for g in hidden])


def gradient_shift(networks: FeedForward, old: np.ndarray, x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Internal covariate shift as Santurkar et al. 2018 define it (2.1): how far the update of the layers
    before a layer moves the gradient of its weights.

    networks: a stack of one, after an update; old (1, P): its parameters before. Returns log10 of the length
    of the change over that of the gradient, (DEPTH - 1,), for the hidden layers from the second on.
    """
    new = networks.values
    own = networks.part([0])

    def weights_gradient(values: np.ndarray, place: int) -> np.ndarray:
        own.values = values
        gradients = own.losses_and_gradients(x[:, None], labels[:, None])[1]
        return own.layers(gradients)[place].weight

    found = []
    for place in range(1, DEPTH):
        mixed = old.copy()
        for layer, moved in zip(own.layers(mixed)[:place], own.layers(new)[:place], strict=True):
            layer.weight[...], layer.bias[...] = moved.weight, moved.bias
            if layer.gain is not None and moved.gain is not None:
                layer.gain[...] = moved.gain
        usual = weights_gradient(old, place)
        change = length(weights_gradient(mixed, place) - usual)
        found.append(np.log10(max(change, 1e-45) / max(length(usual), 1e-45)))
    return np.array(found)


def train_deep(
    data: Digits,
    networks: FeedForward,
    seed: int,
    settings: Sequence[Setting],
    passes: int,
    on_pass: Callable[[], object],
    on_update: Callable[[], object] = lambda: None,
) -> None:
    count = len(settings)
    chosen = [data.without_fold(seed % FOLDS)] * count
    rates = [setting.rate for setting in settings]
    train(
        networks,
        data.train_x,
        data.train_labels,
        chosen,
        [seed] * count,
        rates,
        BATCH,
        passes,
        on_pass,
        on_update,
    )


def try_deep(
    data: Digits, name: str, seed: int, grid: Sequence[Setting], passes: int, tally: Callable[[], object]
) -> np.ndarray:
    """Accuracy on the held-out fold, mean over the passes, of each setting."""
    networks, held, told = make_deep(NORMS[name], seed, grid), data.fold == seed % FOLDS, []

    def on_pass() -> None:
        named = networks.logits(data.train_x[held]).argmax(axis=2)
        told.append((named == data.train_labels[held, None]).mean(axis=0))
        tally()

    train_deep(data, networks, seed, grid, passes, on_pass)
    return np.asarray(np.mean(told, axis=0))


def follow_deep(
    data: Digits, name: str, seed: int, setting: Setting, passes: int, tally: Callable[[], object]
) -> Course:
    networks, course = make_deep(NORMS[name], seed, [setting]), Course()
    x, labels = probe_images(data, seed)
    updates, old = 0, networks.values

    def on_update() -> None:
        nonlocal updates, old
        if updates % (IMAGES // BATCH) == 0:
            course.shifts.append(gradient_shift(networks, old, x[:SHIFTED], labels[:SHIFTED]))
        updates, old = updates + 1, networks.values

    def on_pass() -> None:
        course.insides.append(look_into_deep(networks, x, labels))
        named = networks.logits(data.test_x)[:, 0].argmax(axis=1)
        course.accuracies.append(float((named == data.test_labels).mean()))
        tally()

    course.insides.append(look_into_deep(networks, x, labels))
    train_deep(data, networks, seed, [setting], passes, on_pass, on_update)
    return course


def probe_images(data: Digits, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The first PROBED of the images that seed ``seed`` trains on, and their labels."""
    chosen = data.without_fold(seed % FOLDS)[:PROBED]
    return data.train_x[chosen], data.train_labels[chosen]


# --- the recurrent network ----------------------------------------------------------------------------------


def make_recurrent(norm: NormName | None, seed: int, factor: float) -> SequenceClassifier:
    """Without norm the factor multiplies the weights of the input and of the state."""
    rnn = lnrnn.RNN(PIXELS // STEPS, UNITS, nonlinearity="sigmoid", norm=norm, seed=seed)
    for name, value in rnn.parameters().items():
        if name.startswith("gain"):
            setattr(rnn, name, np.full_like(value, factor))
        elif name.startswith("weight") and norm is None:
            setattr(rnn, name, value * np.float32(factor))
    return SequenceClassifier(rnn, CLASSES, np.random.default_rng([2, seed]))


def as_sequences(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, PIXELS) as STEPS pieces of their rows, (STEPS, N, PIXELS / STEPS), and the lengths (N,)."""
    steps = np.ascontiguousarray(x.reshape(len(x), STEPS, -1).transpose(1, 0, 2))
    return steps, np.full(len(x), STEPS)


def summed_inputs(
    parameters: dict[str, np.ndarray], norm: NormName | None, x: np.ndarray, y: np.ndarray
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Of an RNN of one layer, in training mode: W_ih x_t + W_hh h_{t-1}, and what the nonlinearity is taken
    of, (B, units) at each step.

    parameters: by name. x (T, B, I), y (T, B, units): what the RNN read and answered.
    """
    gain = parameters.get("gain_l0")
    # Without norm there are two, as in torch.nn: of the input and of the state.
    bias = np.sum([value for name, value in parameters.items() if name.startswith("bias")], axis=0)
    h = np.concatenate([np.zeros_like(y[:1]), y[:-1]])
    before, after = [], []
    for x_t, h_t in zip(x, h, strict=True):
        z = np.einsum("bi,oi->bo", x_t, parameters["weight_ih_l0"])
        z += np.einsum("bi,oi->bo", h_t, parameters["weight_hh_l0"])
        before.append(z)
        if norm is None:
            after.append(z + bias)
        elif norm == "layer":
            after.append(lnrnn.layer_norm(z, z.shape[1], gain, bias, EPS))
        else:
            after.append(lnrnn.batch_norm(z, None, None, gain, bias, True, 0.0, EPS))
    return before, after


def look_into_recurrent(
    network: SequenceClassifier, norm: NormName | None, x: np.ndarray, labels: np.ndarray
) -> Inside:
    """In training mode. x (B, PIXELS), labels (B,)."""
    own = make_recurrent(norm, 0, 1.0)  # a copy: the running statistics stay as they are
    own.set_parameters(network.parameters())
    steps, lengths = as_sequences(x)
    y = own.rnn.forward_train(steps)[0]
    gx = own.loss_and_all_gradients(steps, lengths, labels)[2]
    before, after = summed_inputs(own.rnn.parameters(), norm, steps, y)
    return look(before, after, [length(g) for g in gx])


def train_one_recurrent(
    data: Digits,
    network: SequenceClassifier,
    seed: int,
    rate: float,
    passes: int,
    on_pass: Callable[[], object],
) -> None:
    chosen = data.without_fold(seed % FOLDS)
    steps, lengths = as_sequences(data.train_x[chosen])
    settings = TrainingSettings(passes, BATCH, rate, LARGEST_NORM, noise=0.0)
    rng = np.random.default_rng([1, seed])
    train_recurrent(network, steps, lengths, data.train_labels[chosen], settings, rng, on_pass)


def accuracy_of(network: SequenceClassifier, x: np.ndarray, labels: np.ndarray) -> float:
    return float((network.predict(*as_sequences(x)) == labels).mean())


def try_recurrent(
    data: Digits, name: str, seed: int, grid: Sequence[Setting], passes: int, tally: Callable[[], object]
) -> np.ndarray:
    """Accuracy on the held-out fold, mean over the passes, of each setting."""
    held = data.fold == seed % FOLDS
    x, labels = data.train_x[held], data.train_labels[held]

    def one(setting: Setting) -> float:
        network, told = make_recurrent(NORMS[name], seed, setting.factor), []
        train_one_recurrent(
            data,
            network,
            seed,
            setting.rate,
            passes,
            lambda: told.append(accuracy_of(network, x, labels)),
        )
        tally()
        return float(np.mean(told))

    return np.array([one(setting) for setting in grid])


def follow_recurrent(
    data: Digits, name: str, seed: int, setting: Setting, passes: int, tally: Callable[[], object]
) -> Course:
    network, course = make_recurrent(NORMS[name], seed, setting.factor), Course()
    x, labels = probe_images(data, seed)

    def on_pass() -> None:
        course.insides.append(look_into_recurrent(network, NORMS[name], x, labels))
        course.accuracies.append(accuracy_of(network, data.test_x, data.test_labels))
        tally()

    course.insides.append(look_into_recurrent(network, NORMS[name], x, labels))
    train_one_recurrent(data, network, seed, setting.rate, passes, on_pass)
    return course


# --- all of it ----------------------------------------------------------------------------------------------


def extent(seeds: int, quick: bool) -> Results:
    if quick:
        return Results(min(seeds, 2), 2, (Setting(1.0, RATES[2]), Setting(4.0, RATES[2])))
    return Results(seeds, PASSES, GRID)


def measure(seeds: int, quick: bool, progress: Progress) -> Results:
    """Tries the grid, chooses a setting for each network and norm, and follows the chosen ones."""
    data = load_digits()
    results = extent(seeds, quick)
    passes, grid = results.passes, results.grid
    pairs = [(net, name) for net in NETS for name in NORMS]
    runs = [(net, name, seed) for net, name in pairs for seed in range(results.seeds)]
    in_grid = results.seeds * len(NORMS) * (passes + len(grid))
    tally = Tally(progress, in_grid + len(runs) * passes)

    def attempt(run: tuple[Net, str, int]) -> np.ndarray:
        net, name, seed = run
        tries = try_deep if net == "deep" else try_recurrent
        return tries(data, name, seed, grid, passes, lambda: tally(f"{net}, {name}, the grid"))

    tried = dict(zip(runs, side_by_side(attempt, runs), strict=True))
    for net, name in pairs:
        held_out = np.stack([tried[net, name, seed] for seed in range(results.seeds)])
        results.held_out[net, name] = held_out
        results.chosen[net, name] = grid[int(held_out.mean(axis=0).argmax())]

    def follow(run: tuple[Net, str, int]) -> Course:
        net, name, seed = run
        follows = follow_deep if net == "deep" else follow_recurrent
        setting = results.chosen[net, name]
        return follows(data, name, seed, setting, passes, lambda: tally(f"{net}, {name}, chosen"))

    followed = dict(zip(runs, side_by_side(follow, runs), strict=True))
    for net, name in pairs:
        seeds_run = range(results.seeds)
        results.courses[net, name] = [followed[net, name, seed] for seed in seeds_run]
        results.usual[net, name] = [look_at_start(data, net, name, seed) for seed in seeds_run]
    return results


def look_at_start(data: Digits, net: Net, name: str, seed: int) -> Inside:
    """Before training, at factor 1."""
    x, labels = probe_images(data, seed)
    if net == "deep":
        return look_into_deep(make_deep(NORMS[name], seed, [Setting(1.0, RATES[0])]), x, labels)
    return look_into_recurrent(make_recurrent(NORMS[name], seed, 1.0), NORMS[name], x, labels)
