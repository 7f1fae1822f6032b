"""The measurements of the demo ``characters``: what they mean stands in lnrnn.demos.characters."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import lnrnn
from lnrnn.demos.cells import CELLS, MODELS
from lnrnn.demos.classifier import StepClassifier
from lnrnn.demos.help_text import SYMBOLS, HelpText, load_help_text
from lnrnn.demos.length_experiment import METHODS, Method
from lnrnn.demos.parallel import side_by_side
from lnrnn.demos.speakers import NORMS, NormName
from lnrnn.demos.study import Progress
from lnrnn.demos.training import Adam, Batch, updates

STEPS = 100  # of the training
WARM_UP = 50  # steps of a fresh window before its answers are compared with those beyond STEPS
TOGETHER = 32  # sequences in a batch, in training and in reading
LARGEST_NORM = 1.0
RATES = (1e-2, 3e-2, 1e-1)
# Of the gains of either norm at the start; without a norm, times the weights' usual scale at the start.
FACTORS: dict[NormName | None, tuple[float, ...]] = {
    "layer": (0.1, 1.0),
    "batch": (0.1, 1.0),
    None: (1.0, 2.0),
}
LONG = tuple(method for method in METHODS if method.overrun != "raise")

Trial = tuple[float, float]  # rate, factor


@dataclass(frozen=True)
class Extent:
    """How much is done.

    updates: of each training. steps: of the long reading. trials: of the grid. characters: of each part of
    the text, at most; None: all.
    """

    seeds: int
    hidden: int
    updates: int
    steps: int
    trials: int
    characters: int | None

    @classmethod
    def of(cls, seeds: int, quick: bool) -> Extent:
        return cls(min(seeds, 2), 16, 4, 250, 2, 2500) if quick else cls(seeds, 64, 200, 3000, 6, None)


@dataclass
class Results:
    """What S seeds gave, in bits per character.

    held_out: by cell and norm, of each trial of the grid at the first seed. chosen: the best of them.
    read: by cell and method, at every step of the long reading, mean over its sequences: (S, steps). same:
    by cell and norm, of the same characters at those steps, read within STEPS steps: (S, steps).
    own, averaged: by cell, batch norm at every step of fresh windows, with its statistics of each step and
    with their mean over time at every step: (S, STEPS).
    refusal: what batch norm says of a longer sequence under "raise".
    """

    text: HelpText
    extent: Extent
    held_out: dict[tuple[str, NormName | None], dict[Trial, float]] = field(default_factory=dict)
    chosen: dict[tuple[str, NormName | None], Trial] = field(default_factory=dict)
    read: dict[tuple[str, Method], np.ndarray] = field(default_factory=dict)
    same: dict[tuple[str, NormName | None], np.ndarray] = field(default_factory=dict)
    own: dict[str, np.ndarray] = field(default_factory=dict)
    averaged: dict[str, np.ndarray] = field(default_factory=dict)
    refusal: str = ""


# --- text to arrays, training -------------------------------------------------------------------------------


def one_hot(symbols: np.ndarray) -> np.ndarray:
    """symbols (...) -> float32 (..., SYMBOLS)."""
    x = np.zeros((*symbols.shape, SYMBOLS), np.float32)
    np.put_along_axis(x, symbols[..., None], 1, -1)
    return x


def cut(text: np.ndarray, starts: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Sequences that begin at ``starts`` (N,): x (steps, N, SYMBOLS), and the symbols that follow, (steps,
    N)."""
    symbols = text[starts + np.arange(steps + 1)[:, None]]
    return one_hot(symbols[:-1]), symbols[1:]


def random_windows(text: np.ndarray, count: int, rng: np.random.Generator) -> Iterator[Batch]:
    """``count`` batches of TOGETHER windows of STEPS steps that begin anywhere."""
    lengths = np.full(TOGETHER, STEPS)
    for _ in range(count):
        x, following = cut(text, rng.integers(0, len(text) - STEPS, TOGETHER), STEPS)
        yield x, lengths, following


def trained(
    text: np.ndarray, cell: str, norm: NormName | None, trial: Trial, seed: int, extent: Extent
) -> StepClassifier:
    """A network after training; batch norm's statistics recomputed over all windows of the training text,
    one after the other."""
    rate, factor = trial
    rnn = MODELS[cell](SYMBOLS, extent.hidden, norm=norm, seed=seed)
    for name, value in rnn.parameters().items():
        if name.startswith("gain" if norm else "weight"):
            setattr(rnn, name, np.float32(factor) * value)
    rng = np.random.default_rng(seed)
    model = StepClassifier(rnn, SYMBOLS, rng)
    for _ in updates(model, random_windows(text, extent.updates, rng), Adam(rate), LARGEST_NORM):
        pass
    if norm == "batch":
        rnn.calibrate([cut(text, np.arange(0, len(text) - STEPS, STEPS), STEPS)[0]])
    return model


# --- reading ------------------------------------------------------------------------------------------------


def bits(model: StepClassifier, text: np.ndarray, starts: np.ndarray, steps: int) -> np.ndarray:
    """Bits per character, (steps, N), of sequences that begin at ``starts`` (N,), TOGETHER at a time."""
    found = [
        model.losses(*cut(text, starts[first : first + TOGETHER], steps))
        for first in range(0, len(starts), TOGETHER)
    ]
    return np.concatenate(found, axis=1) / np.float64(np.log(2))


def fresh_starts(text: np.ndarray) -> np.ndarray:
    """Of windows of STEPS steps, WARM_UP apart."""
    return np.arange(0, len(text) - STEPS, WARM_UP)


def by_character(found: np.ndarray, starts: np.ndarray, size: int) -> np.ndarray:
    """For every character of a text, its bits in the one window in which it comes after WARM_UP steps.

    found (STEPS, N): of the windows of `fresh_starts`. -> (size,), NaN at the text's ends.
    """
    values = np.full(size, np.nan)
    values[starts + np.arange(WARM_UP + 1, STEPS + 1)[:, None]] = found[WARM_UP:]
    return values


def long_starts(size: int, steps: int) -> np.ndarray:
    """TOGETHER places, evenly spread, such that `by_character` knows all characters that follow."""
    last = (size - 1 - STEPS) // WARM_UP * WARM_UP + STEPS - steps
    if last <= WARM_UP:
        raise ValueError(f"the test text has {size} characters, too few to read {steps} steps")
    return np.linspace(WARM_UP, last, TOGETHER).astype(np.int64)


def average_over_time(rnn: lnrnn.Network[Any]) -> None:
    """Batch norm then uses one mean and one variance at every step: those of all steps, averaged."""
    rnn.load_state_dict(
        {
            name: value[:1] if name.startswith("count")
            else value.mean(axis=0, keepdims=True) if name.startswith("running_")
            else value
            for name, value in rnn.state_dict().items()
        }
    )  # fmt: skip
    rnn.overrun = "last"


@dataclass(frozen=True)
class Read:
    """Of one network, as in Results, without the axis of the seeds. own, averaged: of batch norm alone."""

    read: dict[Method, np.ndarray]
    same: np.ndarray
    own: np.ndarray | None = None
    averaged: np.ndarray | None = None


def read_test(model: StepClassifier, norm: NormName | None, text: np.ndarray, steps: int) -> Read:
    """All readings of the test text by one network. Leaves batch norm with averaged statistics."""
    starts, fresh = long_starts(len(text), steps), fresh_starts(text)
    within = bits(model, text, fresh, STEPS)
    same = by_character(within, fresh, len(text))[starts + np.arange(1, steps + 1)[:, None]].mean(axis=1)
    long = {}
    for method in (method for method in LONG if method.norm == norm):
        if method.overrun:
            model.rnn.overrun = method.overrun
        long[method] = bits(model, text, starts, steps).mean(axis=1)
    if norm != "batch":
        return Read(long, same)
    average_over_time(model.rnn)
    return Read(long, same, within.mean(axis=1), bits(model, text, fresh, STEPS).mean(axis=1))


def refusal(extent: Extent, text: np.ndarray) -> str:
    """What batch norm trained at STEPS steps says to one more under "raise"."""
    rnn = MODELS[CELLS[0]](SYMBOLS, extent.hidden, norm="batch", seed=0)
    rnn.calibrate([cut(text, np.arange(TOGETHER), STEPS)[0]])
    try:
        rnn(cut(text, np.arange(1), STEPS + 1)[0])
    except lnrnn.SequenceTooLongError as error:
        return f"{type(error).__name__}: {error}"
    raise RuntimeError("batch norm read on without statistics")


# --- all of it ----------------------------------------------------------------------------------------------


class _Counter:
    """Tells progress from any thread: one call per job, each with its share of the time."""

    def __init__(self, total: float, progress: Progress) -> None:
        self.total, self.progress = total, progress
        self.done, self.lock = 0.0, threading.Lock()

    def __call__(self, cost: float, text: str) -> None:
        with self.lock:
            self.done += cost
            self.progress(min(self.done / self.total, 1.0), text)


COSTS = {"rnn": 1.0, "lstm": 2.5, "gru": 1.8}  # of a training, about, in trainings of an RNN
READING = 0.15  # of the test text, about, in trainings of the same cell


def grid(norm: NormName | None, extent: Extent) -> list[Trial]:
    """Every norm has as many trials."""
    return list(itertools.product(RATES, FACTORS[norm]))[: extent.trials]


def measure(seeds: int, quick: bool, progress: Progress) -> Results:
    """Tries the grid under the first seed, trains the others with the best, and reads the test text."""
    extent = Extent.of(seeds, quick)
    text = load_help_text().shortened(extent.characters)
    results = Results(text, extent, refusal=refusal(extent, text.train))
    kinds = [(cell, norm) for cell in CELLS for norm in NORMS]
    jobs = extent.trials + extent.seeds - 1 + READING * extent.seeds  # for each kind
    count = _Counter(jobs * len(NORMS) * sum(COSTS.values()), progress)

    def attempt(job: tuple[str, NormName | None, Trial]) -> tuple[float, StepClassifier]:
        cell, norm, trial = job
        model = trained(text.train, cell, norm, trial, 0, extent)
        starts = np.arange(0, len(text.held_out) - STEPS, STEPS)
        found = float(bits(model, text.held_out, starts, STEPS).mean())
        count(COSTS[cell], f"{cell}, settings")
        return (found if np.isfinite(found) else np.inf), model

    first: dict[tuple[str, NormName | None], StepClassifier] = {}
    tried = [(cell, norm, trial) for cell, norm in kinds for trial in grid(norm, extent)]
    for (cell, norm, trial), (found, model) in zip(tried, side_by_side(attempt, tried), strict=True):
        known = results.held_out.setdefault((cell, norm), {})
        if found < min(known.values(), default=np.inf) or not known:
            results.chosen[cell, norm], first[cell, norm] = trial, model
        known[trial] = found

    def train_and_read(job: tuple[str, NormName | None, int]) -> Read:
        cell, norm, seed = job
        if seed:
            model = trained(text.train, cell, norm, results.chosen[cell, norm], seed, extent)
        else:
            model = first[cell, norm]
        found = read_test(model, norm, text.test, extent.steps)
        count(COSTS[cell] * (READING + bool(seed)), f"{cell}, reading")
        return found

    tasks = [(cell, norm, seed) for cell, norm in kinds for seed in range(extent.seeds)]
    readings = iter(side_by_side(train_and_read, tasks))
    for cell, norm in kinds:
        each = list(itertools.islice(readings, extent.seeds))
        results.same[cell, norm] = np.stack([one.same for one in each])
        for method in each[0].read:
            results.read[cell, method] = np.stack([one.read[method] for one in each])
        if norm == "batch":
            results.own[cell] = np.stack([one.own for one in each if one.own is not None])
            results.averaged[cell] = np.stack([one.averaged for one in each if one.averaged is not None])
    return results
