"""The text of Python's help, and the bits per character of networks that read it."""

from __future__ import annotations

import hashlib
import platform
from collections import Counter
from dataclasses import dataclass
from pydoc_data.topics import topics

import numpy as np
from common import refusal
from recurrent import StepClassifier, scale

from lnrnn.speakers import CELLS, MODELS, Adam, updates

SYMBOLS = 64  # the 63 most frequent characters of the training text, and one symbol for all others
STEPS, BATCH = 100, 32  # numbers of steps per training window, of windows per update and of test sequences
WARM_UP = 50  # the number of steps in a fresh window before its characters count
SMOOTH = 10  # how many updates a smoothed training loss averages
LARGEST_NORM = 1.0  # longer gradients are scaled to this length
NORMS = {"LN": "layer", "BN": "batch", "no norm": None}
METHODS = {"LN": None, "BN last": "last", "BN mean": "mean", "BN batch": "batch", "no norm": None}


@dataclass(frozen=True)
class HelpText:
    """Consecutive texts for training, tuning and tests, as symbols 0 to SYMBOLS - 1. others: the share of
    test characters that have the symbol for all rare characters."""

    train: np.ndarray
    held_out: np.ndarray
    test: np.ndarray
    others: float
    source: str


def load_help_text(characters: int | None = None) -> HelpText:
    """Loads the text of ``help("topics")`` in this Python. characters: how many each part may have."""
    text = join_topics(topics)
    parts, others = split_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    source = f"Python {platform.python_version()}, {len(topics)} topics, {len(text):,} characters"
    return HelpText(*(part[:characters] for part in parts), others, f"{source}, SHA-256 {digest}")


def join_topics(topics: dict[str, str]) -> str:
    """Joins all topics in the order of their names. Repeated paragraphs are left out, because some topics
    contain others whole, so that test text would also be training text."""
    paragraphs = (part.strip("\n") for name in sorted(topics) for part in topics[name].split("\n\n"))
    return "".join(f"{part}\n\n" for part in dict.fromkeys(paragraphs) if part)


def split_text(text: str) -> tuple[list[np.ndarray], float]:
    """Returns ([the first 80 %, for training; the next 8 %, for settings; the rest, for tests], the share of
    rare characters in the test text)."""
    first, second = int(0.80 * len(text)), int(0.88 * len(text))
    parts = text[:first], text[first:second], text[second:]
    counts = Counter(parts[0])
    common = sorted(counts, key=lambda character: (-counts[character], character))[: SYMBOLS - 1]
    number = {character: place for place, character in enumerate(common)}
    found = [np.array([number.get(c, SYMBOLS - 1) for c in part], np.int64) for part in parts]
    return found, float((found[2] == SYMBOLS - 1).mean())


def cut(text: np.ndarray, starts: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns sequences from ``starts`` (N,) on: one-hot x (steps, N, SYMBOLS), next symbols (steps, N)."""
    symbols = text[starts + np.arange(steps + 1)[:, None]]
    x = np.zeros((steps, len(starts), SYMBOLS), np.float32)
    np.put_along_axis(x, symbols[:-1, :, None], 1, -1)
    return x, symbols[1:]


def random_windows(text, count, rng):
    """Yields ``count`` batches of windows with random starts."""
    for _ in range(count):
        x, following = cut(text, rng.integers(0, len(text) - STEPS, BATCH), STEPS)
        yield x, np.full(BATCH, STEPS), following


def smooth(losses):
    """Returns running means over SMOOTH updates, or all if fewer. Mean u begins with update u."""
    width = min(SMOOTH, len(losses))
    return np.convolve(losses, np.full(width, 1 / width), "valid")


def updates_needed(losses, target):
    """Returns how many updates it takes until the mean loss of the last SMOOTH updates is at most ``target``.
    If it never is, returns the number of all updates plus one."""
    reached = np.flatnonzero(smooth(losses) <= target)
    return int(reached[0]) + min(SMOOTH, len(losses)) if len(reached) else len(losses) + 1


def bits(model, text, starts, steps):
    """Returns bits per character, (steps, N), of sequences that begin at ``starts`` (N,)."""
    groups = (starts[first : first + BATCH] for first in range(0, len(starts), BATCH))
    return np.concatenate([model.losses(*cut(text, group, steps)) for group in groups], 1) / np.log(2)


def fresh_starts(text):
    """Returns the starts of windows of STEPS steps, WARM_UP apart."""
    return np.arange(0, len(text) - STEPS, WARM_UP)


def by_character(found, starts, size):
    """found (STEPS, N): bits in fresh windows. Returns the bits of each character (size,), from the one
    window in which WARM_UP or more steps precede it. NaN at both ends of the text."""
    values = np.full(size, np.nan)
    values[starts + np.arange(WARM_UP + 1, STEPS + 1)[:, None]] = found[WARM_UP:]
    return values


def long_starts(size, steps):
    """Returns BATCH evenly spread starts, for whose sequences `by_character` has no NaN."""
    last = (size - 1 - STEPS) // WARM_UP * WARM_UP + STEPS - steps
    if last <= WARM_UP:
        raise ValueError(f"the test text has {size} characters, too few for sequences of {steps} steps")
    return np.linspace(WARM_UP, last, BATCH).astype(np.int64)


def average_over_time(rnn):
    """Replaces the statistics of each step of BN by their average over all steps."""
    state = {
        name: value[:1] if name.startswith("count")
        else value.mean(axis=0, keepdims=True) if name.startswith("running_")
        else value
        for name, value in rnn.state_dict().items()
    }  # fmt: skip
    rnn.load_state_dict(state)
    rnn.overrun = "last"


def edges(steps):
    """Returns the first steps of ranges that are evenly spaced in logarithms. One range begins after
    STEPS."""
    found = np.concatenate([np.geomspace(1, STEPS + 1, 17), np.geomspace(STEPS + 1, steps + 1, 13)[:-1]])
    return np.unique(np.round(found).astype(int))


def in_ranges(values, firsts):
    """Returns means of values (S, steps) over R ranges of steps, (S, R). firsts: the first steps, from 1."""
    ends = [*firsts[1:], values.shape[1] + 1]
    pairs = zip(firsts, ends, strict=True)
    return np.stack([values[:, low - 1 : high - 1].mean(axis=1) for low, high in pairs], axis=1)


def trained(text, cell, norm, setting, seed, units=64, count=200):
    """Returns a trained network with recomputed BN statistics, and the bits per character of each batch
    before its update. setting: the learning rate, and the initial gain or, without a norm, a factor of the
    weights."""
    rate, factor = setting
    rnn = MODELS[cell](SYMBOLS, units, norm=NORMS[norm], seed=seed)
    scale(rnn, factor)
    rng = np.random.default_rng(seed)
    model = StepClassifier(rnn, SYMBOLS, rng)
    found = updates(model, random_windows(text, count, rng), Adam(rate), LARGEST_NORM)
    losses = np.array([loss for loss, _ in found]) / np.log(2)
    if norm == "BN":
        rnn.calibrate([cut(text, np.arange(0, len(text) - STEPS, STEPS), STEPS)[0]])
    return model, losses


def run_over(model, norm, text, steps):
    """Returns bits per character of one network. same: of the characters of long sequences, in fresh windows
    of STEPS steps, (steps,). lost: by method, how much more at each step of the long sequences, (steps,).
    apart: how much more BN needs in fresh windows with statistics averaged over time, (STEPS,). Leaves BN
    with these."""
    starts, fresh = long_starts(len(text), steps), fresh_starts(text)
    within, lost = bits(model, text, fresh, STEPS), {}
    same = by_character(within, fresh, len(text))[starts + np.arange(1, steps + 1)[:, None]].mean(axis=1)
    for method in (name for name in METHODS if name.startswith(norm)):
        if METHODS[method]:
            model.rnn.overrun = METHODS[method]
        lost[method] = bits(model, text, starts, steps).mean(axis=1) - same
    found = {"lost": lost, "same": same}
    if norm == "BN":
        average_over_time(model.rnn)
        found["apart"] = bits(model, text, fresh, STEPS).mean(axis=1) - within.mean(axis=1)
    return found


def refused(text, units):
    """Returns the error of strict BN, which has statistics of STEPS steps, for one more step."""
    rnn = MODELS[CELLS[0]](SYMBOLS, units, norm="batch", seed=0)
    rnn.calibrate([cut(text, np.arange(BATCH), STEPS)[0]])
    return refusal(lambda: rnn(cut(text, np.arange(1), STEPS + 1)[0]))
