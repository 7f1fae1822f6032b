"""What rounding activations costs, beside what rounding weights costs: a simulation in float64.

    python tests/benchmarks/activation_rounding.py              some minutes; Markdown
    python tests/benchmarks/activation_rounding.py --seeds 1    to see that it runs

Networks are trained as the studies `long_sequences` (whole utterances) and `characters` train them. Then each
runs over the test data in float64 with its matrices rounded as the column "weights" says, and what these
multiply, x and h, as the column "activations" says. Sums are exact; the states that are carried are float32,
as in the kernels. The error is that of h at the end of a sequence, against the network with nothing rounded.
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

import rounding
from lnrnn import reference
from lnrnn.data import japanese_vowels, pad_sequence
from lnrnn.demo import SETTINGS
from lnrnn.reference import cells
from lnrnn.reference.time_loop import Norms
from lnrnn.speakers import CELLS, SpeakerNetwork, SpeakerSettings, TrainingSettings, one_thread, side_by_side

sys.path.append(str(Path(__file__).parents[2] / "examples" / "studies"))

from characters import BATCH, cut, load_help_text, trained  # noqa: E402
from common import join_utterances  # noqa: E402

EPS = 1e-5
Round = Callable[[np.ndarray], np.ndarray]

WEIGHTS: dict[str, Round] = {"float32": np.array, "bfloat16": rounding.bfloat16, "int8": rounding.int8}
ACTIVATIONS: dict[str, Round] = {
    "float32": lambda a: a,
    "bfloat16": rounding.bfloat16,
    "two bfloat16": rounding.two_bfloat16,
    "14 bits": partial(rounding.whole, most=8191),
    "8 bits": partial(rounding.whole, most=127),
    "7 bits": partial(rounding.whole, most=63),
}
# The function of one step, what it is told, and its norms: of the cells as the classes of lnrnn have them.
STEP = {
    "rnn": (cells.rnn_step, {"placement": "joint", "nonlinearity": "tanh"}, cells.RNN_SITES["joint"]),
    "lstm": (
        cells.lstm_step,
        {"placement": "split", "cell": "out"},
        {**cells.LSTM_SITES["split"], "c": cells.Site("gain_c", "bias_c")},
    ),
    "gru": (cells.gru_step, {"placement": "split"}, cells.GRU_SITES["split"]),
}


def states(cell, p, x, lengths, weights: Round, activations: Round | None) -> np.ndarray:
    """h of every step, (T, B, H), held at a sequence's end. p: {name: array} without the layer's suffix.
    activations None: nothing is rounded anywhere, not even to float32."""
    step, options, sites = STEP[cell]
    p = {name: weights(v) if v.ndim == 2 else v for name, v in p.items()}
    p = {name: v.astype(np.float64) for name, v in p.items()}
    hidden = p["weight_hh"].shape[1]
    state = tuple(np.zeros((x.shape[1], hidden)) for _ in range(2 if cell == "lstm" else 1))

    def seen(a):
        return a if activations is None else activations(a.astype(np.float32)).astype(np.float64)

    ys = []
    for t, x_t in enumerate(x.astype(np.float64)):
        norms = Norms(sites, "layer", EPS, p, {})
        x_, h_ = seen(x_t) @ p["weight_ih"].T, seen(state[0]) @ p["weight_hh"].T
        new, _ = step(options, x_, h_, state, norms.forward)
        if activations is not None:
            new = tuple(s.astype(np.float32).astype(np.float64) for s in new)
        alive = (t < lengths)[:, None]
        state = tuple(np.where(alive, n, s) for n, s in zip(new, state, strict=True))
        ys.append(state[0])
    return np.stack(ys)


def check(cell, p, x, lengths) -> None:
    """The loop above, with nothing rounded, is the reference's."""
    call = partial(reference.rnn, x, **p) if cell == "rnn" else partial(getattr(reference, cell), x, p)
    last = call(lengths=lengths, eps=EPS)[1]
    last = last[0] if cell == "lstm" else last
    error = np.abs(states(cell, p, x, lengths, WEIGHTS["float32"], None)[-1] - last).max()
    if not error < 1e-12:
        raise AssertionError(f"the loop of this script is off by {error} for {cell}")


@dataclass(frozen=True)
class Network:
    """A trained one, x (T, B, I) and lengths (B,) of the test data, and the right answers: (B,) after the
    last step, or, by_step, (T, B) at every step."""

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
    """hidden None: as many units as the studies have."""

    hidden: int | None = None

    @property
    def hidden_size(self) -> int:
        return self.hidden or super().hidden_size


def speakers(cell: str, hidden: int | None, joined: int, seed: int) -> Network:
    """The study's network. hidden: see `Settings`. joined: utterances of a speaker in a sequence."""
    data = japanese_vowels()
    rate, gain = SETTINGS[cell, "layer"]
    settings = Settings(cell, gain, TrainingSettings(learning_rate=rate), hidden)
    found = SpeakerNetwork(data.train, "layer", settings, seed)
    sequences = found.standardised(join_utterances(data.test, joined, np.random.default_rng(joined)))
    return of_classifier(cell, found.classifier, *pad_sequence(sequences), data.test.labels)


def characters(cell: str, hidden: int, steps: int, seed: int) -> Network:
    """The study's model of characters, with the rate and the gain that its grid chooses for layer norm."""
    text = load_help_text()
    model, _ = trained(text.train, cell, "LN", (3e-2, 1.0), seed, hidden)
    starts = np.linspace(0, len(text.test) - steps - 1, BATCH).astype(np.int64)
    x, following = cut(text.test, starts, steps)
    return of_classifier(cell, model, x, np.full(BATCH, steps), following, by_step=True)


def measure(network: Network) -> dict[tuple[str, str], tuple[float, float, float, float]]:
    """By weights and activations: the largest and the mean error of the last h, relative to the largest value
    of it, the share of right answers, and of answers that are others than those of the exact network."""
    n = network
    check(n.cell, n.parameters, n.x[:40, :5], np.minimum(n.lengths[:5], 40))
    data = n.cell, n.parameters, n.x, n.lengths
    exact = states(*data, WEIGHTS["float32"], None)
    was = n.answers(exact if n.by_step else exact[-1])
    found = {}
    for weights, round_weights in WEIGHTS.items():
        for activations, round_activations in ACTIVATIONS.items():
            y = states(*data, round_weights, round_activations)
            answers = n.answers(y if n.by_step else y[-1])
            error = np.abs(y[-1] - exact[-1]) / np.abs(exact[-1]).max()
            right, other = (answers == n.labels).mean(), (answers != was).mean()
            found[weights, activations] = error.max(), error.mean(), right, other
    return found


SUBJECTS = {
    "speakers, 7 to 29 steps": partial(speakers, hidden=None, joined=1),
    "speakers, 256 units": partial(speakers, hidden=256, joined=1),
    "speakers, ten utterances joined": partial(speakers, hidden=None, joined=10),
    "characters, 64 units, 1000 steps": partial(characters, hidden=64, steps=1000),
    "characters, 256 units, 1000 steps": partial(characters, hidden=256, steps=1000),
}


def table(subject: str, cell: str, found: list[dict]) -> list[str]:
    """found: what `measure` gave for each seed."""
    head = "weights | activations | largest error, median | worst | mean error | right | answers changed"
    head = head.split(" | ")
    lines = [f"### {subject}, LN-{cell.upper()}, {len(found)} networks", ""]
    lines += ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head))]
    for key in found[0]:
        most, mean, right, other = np.array([one[key] for one in found]).T
        numbers = [f"{np.median(most):.2g}", f"{most.max():.2g}", f"{mean.mean():.2g}"]
        numbers += [f"{right.mean():.2%}", f"{other.mean():.2%}"]
        lines.append("| " + " | ".join([*key, *numbers]) + " |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--subject", default="", help="only those whose name has this")
    parser.add_argument("--cells", nargs="+", default=CELLS, choices=CELLS)
    options = parser.parse_args()
    chosen = [subject for subject in SUBJECTS if options.subject in subject]
    for subject, cell in itertools.product(chosen, options.cells):
        make = partial(SUBJECTS[subject], cell)
        with one_thread() as jobs:
            found = side_by_side(lambda seed, make=make: measure(make(seed=seed)), range(options.seeds), jobs)
        print("\n".join(table(subject, cell, found)), flush=True)


if __name__ == "__main__":
    main()
