"""Simulates in float64 the errors that rounded weights and rounded activations cause.

    python tests/benchmarks/activation_rounding.py              some minutes; prints Markdown
    python tests/benchmarks/activation_rounding.py --seeds 1    a short run

Networks are trained as in the studies `long_sequences` (whole utterances) and `characters`, and run on the
test data. The column "weights" says how matrices are rounded, "activations" how x and h are rounded before a
product. Sums are exact, and states are float32, as in the kernels. Errors are differences of h at the end of
a sequence from the network without rounding.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from lnrnn import reference
from lnrnn.data import japanese_vowels, pad_sequence
from lnrnn.demo import SETTINGS
from lnrnn.reference import GRU_SITES, cells, gru_step
from lnrnn.reference.time_loop import Norms
from lnrnn.speakers import CELLS, SpeakerNetwork, SpeakerSettings, TrainingSettings, one_thread, side_by_side

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "examples/studies"), str(ROOT / "tests/support")]

from help_text import BATCH, cut, load_help_text, trained  # noqa: E402
from study_data import join_utterances  # noqa: E402

from short_weights import to_bfloat16, to_bits  # noqa: E402

EPS = 1e-5
Round = Callable[[np.ndarray], np.ndarray]


def two_bfloat16(a):
    """Rounds each value to the sum of two bfloat16 numbers, which has about 16 significant bits."""
    high = to_bfloat16(a)
    return high + to_bfloat16(a - high)


def integers(a, bits: int):
    """Rounds each row to integers times the row's scale."""
    numbers, scale = to_bits(a, bits)
    return numbers * scale


WEIGHTS: dict[str, Round] = {
    "float32": np.array, "bfloat16": to_bfloat16, "int8": partial(integers, bits=8)
}  # fmt: skip
ACTIVATIONS: dict[str, Round] = {
    "float32": lambda a: a,
    "bfloat16": to_bfloat16,
    "two bfloat16": two_bfloat16,
    "14 bits": partial(integers, bits=14),
    "8 bits": partial(integers, bits=8),
    "7 bits": partial(integers, bits=7),
}
# {cell: (function of lnrnn.reference that computes a step, its options, the names of its norms)}
STEP = {
    "rnn": (cells.rnn_step, {"placement": "joint", "nonlinearity": "tanh"}, cells.RNN_SITES["joint"]),
    "lstm": (
        cells.lstm_step,
        {"placement": "split", "cell": "out"},
        {**cells.LSTM_SITES["split"], "c": cells.Site("gain_c", "bias_c")},
    ),
    "gru": (gru_step, {"placement": "split"}, GRU_SITES["split"]),
}


def states(cell, p, x, lengths, weights: Round, activations: Round | None) -> np.ndarray:
    """Returns h of every step, (T, B, H), which stays constant after a sequence's end. p: {name without the
    layer's suffix: array}. activations rounds x and h; None: they and the states stay float64."""
    step, options, sites = STEP[cell]
    p = {name: weights(v) if v.ndim == 2 else v for name, v in p.items()}
    p = {name: v.astype(np.float64) for name, v in p.items()}
    hidden = p["weight_hh"].shape[1]
    state = tuple(np.zeros((x.shape[1], hidden)) for _ in range(2 if cell == "lstm" else 1))

    def rounded(a):
        return a if activations is None else activations(a.astype(np.float32)).astype(np.float64)

    ys = []
    for t, x_t in enumerate(x.astype(np.float64)):
        norms = Norms(sites, "layer", EPS, p, {})
        x_, h_ = rounded(x_t) @ p["weight_ih"].T, rounded(state[0]) @ p["weight_hh"].T
        new, _ = step(options, x_, h_, state, norms.forward)
        if activations is not None:
            new = tuple(s.astype(np.float32).astype(np.float64) for s in new)
        alive = (t < lengths)[:, None]
        state = tuple(np.where(alive, n, s) for n, s in zip(new, state, strict=True))
        ys.append(state[0])
    return np.stack(ys)


def check(cell, p, x, lengths) -> None:
    """Fails if `states` without rounding differs from the reference."""
    call = partial(reference.rnn, x, **p) if cell == "rnn" else partial(getattr(reference, cell), x, p)
    last = call(lengths=lengths, eps=EPS)[1]
    last = last[0] if cell == "lstm" else last
    error = np.abs(states(cell, p, x, lengths, WEIGHTS["float32"], None)[-1] - last).max()
    if not error < 1e-12:
        raise AssertionError(f"states() is wrong by {error} for {cell}")


@dataclass(frozen=True)
class Network:
    """A trained network, test data x (T, B, I), lengths (B,), and right answers (B,), or (T, B) by step."""

    cell: str
    parameters: dict[str, np.ndarray]
    head: tuple[np.ndarray, np.ndarray]
    x: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray
    by_step: bool = False

    def answers(self, h) -> np.ndarray:
        return (h @ self.head[0].T + self.head[1]).argmax(-1)


def of_classifier(cell, classifier, *data, **more) -> Network:
    p = {name.removesuffix("_l0"): v for name, v in classifier.rnn.parameters().items()}
    return Network(cell, p, (classifier.head_weight, classifier.head_bias), *data, **more)


@dataclass(frozen=True)
class Settings(SpeakerSettings):
    """Settings of a network with `hidden` units, or if this is None with the study's number of units."""

    hidden: int | None = None

    @property
    def hidden_size(self) -> int:
        return self.hidden or super().hidden_size


def speakers(cell: str, hidden: int | None, joined: int, seed: int) -> Network:
    """Returns the network of `long_sequences`. joined: how many utterances of a speaker form a sequence."""
    data = japanese_vowels()
    rate, gain = SETTINGS[cell, "layer"]
    settings = Settings(cell, gain, TrainingSettings(learning_rate=rate), hidden)
    model = SpeakerNetwork(data.train, "layer", settings, seed)
    sequences = model.standardised(join_utterances(data.test, joined, np.random.default_rng(joined)))
    return of_classifier(cell, model.classifier, *pad_sequence(sequences), data.test.labels)


def characters(cell: str, hidden: int, steps: int, seed: int) -> Network:
    """Returns the network of `characters`, with the study's learning rate and gain for layer norm."""
    text = load_help_text()
    model, _ = trained(text.train, cell, "LN", (3e-2, 1.0), seed, hidden)
    starts = np.linspace(0, len(text.test) - steps - 1, BATCH).astype(np.int64)
    x, following = cut(text.test, starts, steps)
    return of_classifier(cell, model, x, np.full(BATCH, steps), following, by_step=True)


def measure(network: Network) -> dict[tuple[str, str], tuple[float, float, float, float]]:
    """Returns {(weights, activations): (largest error, mean error, share of right answers, share of changed
    answers)}. Errors are those of the last h, relative to its largest value."""
    n = network
    check(n.cell, n.parameters, n.x[:40, :5], np.minimum(n.lengths[:5], 40))
    data = n.cell, n.parameters, n.x, n.lengths
    exact = states(*data, WEIGHTS["float32"], None)
    was = n.answers(exact if n.by_step else exact[-1])
    results = {}
    for weights, round_weights in WEIGHTS.items():
        for activations, round_activations in ACTIVATIONS.items():
            y = states(*data, round_weights, round_activations)
            answers = n.answers(y if n.by_step else y[-1])
            error = np.abs(y[-1] - exact[-1]) / np.abs(exact[-1]).max()
            right, other = (answers == n.labels).mean(), (answers != was).mean()
            results[weights, activations] = error.max(), error.mean(), right, other
    return results


SUBJECTS = {
    "speakers, 7 to 29 steps": partial(speakers, hidden=None, joined=1),
    "speakers, 256 units": partial(speakers, hidden=256, joined=1),
    "speakers, ten utterances joined": partial(speakers, hidden=None, joined=10),
    "characters, 64 units, 1000 steps": partial(characters, hidden=64, steps=1000),
    "characters, 256 units, 1000 steps": partial(characters, hidden=256, steps=1000),
}


def table(subject: str, cell: str, results: list[dict]) -> list[str]:
    """Returns lines of Markdown. results: a result of `measure` for each seed."""
    head = "weights | activations | largest error, median | worst | mean error | right | answers changed"
    head = head.split(" | ")
    lines = [f"### {subject}, LN-{cell.upper()}, {len(results)} networks", ""]
    lines += ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head))]
    for key in results[0]:
        most, mean, right, other = np.array([one[key] for one in results]).T
        numbers = [f"{np.median(most):.2g}", f"{most.max():.2g}", f"{mean.mean():.2g}"]
        numbers += [f"{right.mean():.2%}", f"{other.mean():.2%}"]
        lines.append("| " + " | ".join([*key, *numbers]) + " |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--subject", default="", help="only subjects whose name contains this")
    parser.add_argument("--cells", nargs="+", default=CELLS, choices=CELLS)
    options = parser.parse_args()
    chosen = [subject for subject in SUBJECTS if options.subject in subject]
    for subject, cell in itertools.product(chosen, options.cells):
        make = partial(SUBJECTS[subject], cell)
        with one_thread() as jobs:
            seeds = range(options.seeds)
            results = side_by_side(lambda seed, make=make: measure(make(seed=seed)), seeds, jobs)
        print("\n".join(table(subject, cell, results)), flush=True)


if __name__ == "__main__":
    main()
