"""``lnrnn demo`` shows that batch norm lacks statistics past its training length, and layer norm needs none.

Three recurrent networks with different norms learn to identify the speakers of Japanese Vowels. Then they
read joined test utterances of one speaker, longer than any training sequence. The demo needs only NumPy.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import lnrnn
from lnrnn.arguments import Choice
from lnrnn.data import JapaneseVowels, Utterances, japanese_vowels
from lnrnn.rnn.specs import Overrun
from lnrnn.speakers import (
    CELLS,
    NORMS,
    NormName,
    SpeakerNetwork,
    SpeakerSettings,
    TrainingSettings,
    one_thread,
    side_by_side,
)

STEPS = 120  # steps of a joined sequence: five times the longest training utterance
EPOCHS = 200
SEED = 5  # settings were chosen with seeds 0 to 4
PAUSE = 0.02  # seconds for each step shown on a terminal
NARROWEST, WIDEST = 60, 120  # limits of the text's width in columns
POLICIES: tuple[Overrun, ...] = ("last", "mean")  # policies of batch norm that work for a single sequence
# {(cell, norm): (learning rate, initial gain)}, chosen by examples/studies/long_sequences.py.
SETTINGS: dict[tuple[str, NormName | None], tuple[float, float]] = {
    ("rnn", "layer"): (0.001, 0.1), ("rnn", "batch"): (0.001, 0.3), ("rnn", None): (0.003, 0.5),
    ("lstm", "layer"): (0.003, 0.1), ("lstm", "batch"): (0.003, 0.3), ("lstm", None): (0.003, 1.0),
    ("gru", "layer"): (0.001, 0.3), ("gru", "batch"): (0.001, 0.1), ("gru", None): (0.003, 0.5),
}  # fmt: skip
METHODS = {
    "layer norm": "layer norm",
    "no norm": "no norm",
    "strict": "batch norm, refuses all beyond step {}",
    "last": "batch norm, repeats its last step",
    "mean": "batch norm, averages its steps",
}
Networks = dict[NormName | None, SpeakerNetwork]


@dataclass(frozen=True)
class Joined:
    """N sequences. Each consists of joined test utterances of one speaker.

    x: (STEPS, N, channels) float32. labels: the speakers, (N,). ends: for each sequence, the step numbers
    at which utterances end.
    """

    x: np.ndarray
    labels: np.ndarray
    ends: list[np.ndarray]


def join(utterances: Utterances) -> Joined:
    """Joins each utterance with the following utterances of the same speaker to a sequence of STEPS steps."""
    sequences, ends = [], []
    for index, label in enumerate(utterances.labels):
        same = np.flatnonzero(utterances.labels == label)
        start = int(np.searchsorted(same, index))
        parts = [utterances.x[n] for n in np.roll(same, -start)]
        while sum(map(len, parts)) < STEPS:
            parts += parts
        last = np.cumsum([len(part) for part in parts])
        sequences.append(np.concatenate(parts)[:STEPS])
        ends.append(last[last <= STEPS])
    return Joined(np.stack(sequences, axis=1), utterances.labels, ends)


def trained(data: JapaneseVowels, cell: str, seed: int = SEED, jobs: int = 1) -> Networks:
    """Returns {norm: trained network}. jobs: the number of networks to train at the same time."""

    def network(norm: NormName | None) -> SpeakerNetwork:
        rate, gain = SETTINGS[cell, norm]
        settings = SpeakerSettings(cell, gain, TrainingSettings(EPOCHS, learning_rate=rate))
        return SpeakerNetwork(data.train, norm, settings, seed)

    return dict(zip(NORMS, side_by_side(network, NORMS, jobs), strict=True))


def known_steps(networks: Networks) -> int:
    return int(networks["batch"].rnn.known_steps or 0)


def right_answers(networks: Networks, joined: Joined) -> dict[str, np.ndarray]:
    """Returns for each of METHODS whether answers are right, bool (STEPS, N). Refusals count as wrong."""

    def right(norm: NormName | None, policy: Overrun | None = None) -> np.ndarray:
        return np.asarray(networks[norm].name_at_each_step(joined.x, policy) == joined.labels)

    found = {str(policy): right("batch", policy) for policy in POLICIES}
    # Batch norm with "raise" answers only at steps with statistics, where all policies agree.
    strict = found["last"] & (np.arange(STEPS)[:, None] < known_steps(networks))
    return {"layer norm": right("layer"), "no norm": right(None), "strict": strict, **found}


# --- output -------------------------------------------------------------------------------------------------


def run(cell: str = "rnn") -> None:
    """Runs the demo, which takes about ten seconds. cell: "rnn", "lstm" or "gru"."""
    Choice(CELLS).check("cell", cell)
    data = japanese_vowels()
    say(
        f"Nine people say one vowel: who speaks? Three {cell.upper()}s learn it from {len(data.train)} "
        f"utterances of up to {data.train.lengths.max()} steps. They differ only in the norm: layer norm, "
        "batch norm with separate statistics for each time step, and none."
    )
    began = time.perf_counter()
    with one_thread() as jobs:
        networks = trained(data, cell, jobs=jobs)
        print(f"Trained in {time.perf_counter() - began:.0f} s.\n")
        joined = join(data.test)
        right, known = right_answers(networks, joined), known_steps(networks)
        listen(networks, joined, right)
    report(right, joined, known)
    say(
        "\nThis is one seed. In a clone of lnrnn's repository, lnrnn demo --full runs twenty; "
        "lnrnn demo --list names all studies."
    )


def listen(networks: Networks, joined: Joined, right: dict[str, np.ndarray]) -> None:
    """Runs streams on one joined sequence, and prints the networks' answers where utterances end.

    Also prints batch norm's error at the first step without statistics. A terminal shows every step.
    """
    wide = shutil.get_terminal_size().columns >= NARROWEST
    live = wide and sys.stdout is not None and sys.stdout.isatty()
    place, known = first_right(joined, right), known_steps(networks)
    x, ends = joined.x[:, place], joined.ends[place].tolist()
    say(
        f"Streams read test utterances of speaker {joined.labels[place]}, one after another, step by step. "
        "(It is the first sequence for which layer norm and batch norm both name the speaker of the first "
        "utterance.)"
    )
    print("step  end of       layer norm  batch norm")
    for step, layer, batch in steps(networks, x):
        where = f"utterance {ends.index(step) + 1}" if step in ends else "training" if step == known else ""
        line = f"{step:4}  {where:11}  speaker {layer}   {batch}"
        if live:
            print(f"\r{line:<58}", end="" if not where else "\n", flush=True)
            time.sleep(PAUSE)
        elif where:
            print(line)
        if step == known:
            say(f"{step + 1:4}  {refusal(networks['batch'], x[: step + 1])}", "      ")
            say("      From here on, batch norm uses its last statistics, or their mean:", "      ")
    print("\r" + " " * 58 + "\r" if live else "")


def first_right(joined: Joined, right: dict[str, np.ndarray]) -> int:
    """Returns the index of the first sequence whose first utterance both norms identify."""
    first = [ends[0] - 1 for ends in joined.ends]
    return int((right["layer norm"] & right["last"])[first, range(len(first))].argmax())


def steps(networks: Networks, x: np.ndarray) -> Iterator[tuple[int, int, str]]:
    """Yields (step number from 1, layer norm's answer, batch norm's answers as text) for each step of x.

    x: (T, channels). Batch norm has one answer while it has statistics, then one for each of POLICIES.
    """
    layer, batch = networks["layer"], networks["batch"]
    own, streams = layer.rnn.stream(), {}
    for policy in POLICIES:
        batch.rnn.overrun = policy
        streams[policy] = batch.rnn.stream()
    for step, x_t in enumerate(x, 1):
        found = {policy: next_answer(batch, stream, x_t) for policy, stream in streams.items()}
        answers = [f"{policy}: {speaker}" for policy, speaker in found.items()]
        if step <= known_steps(networks):
            answers = [f"speaker {found['last']}"]
        yield step, next_answer(layer, own, x_t), ", ".join(answers)


def next_answer(network: SpeakerNetwork, stream: lnrnn.Stream[Any], x_t: np.ndarray) -> int:
    """Returns the speaker that a network identifies after one more step x_t (channels,)."""
    h = stream((x_t - network.mean) / network.deviation)
    return int(network.classifier.logits(h).argmax())


def refusal(network: SpeakerNetwork, x: np.ndarray) -> str:
    """Returns the error's text for x (T, channels) with overrun "raise". The last step lacks statistics."""
    network.rnn.overrun = "raise"
    stream = network.rnn.stream()
    try:
        for x_t in x:
            next_answer(network, stream, x_t)
    except lnrnn.SequenceTooLongError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("batch norm took a step for which it has no statistics")


def report(right: dict[str, np.ndarray], joined: Joined, known: int) -> None:
    """Prints one line of results for each of METHODS. known: the number of steps with statistics."""
    say(
        "Share of right answers over all test utterances: at the end of one utterance -> after about "
        f"{STEPS} steps of utterances of one speaker."
    )
    places = range(len(joined.ends))
    first, last = ([ends[k] - 1 for ends in joined.ends] for k in (0, -1))
    for method, words in METHODS.items():
        alone, long = (100 * right[method][steps, places].mean() for steps in (first, last))
        print(f"  {words.format(known):42} {alone:3.0f} -> {long:3.0f} %")


def say(text: str, indent: str = "") -> None:
    """Prints text wrapped to the terminal. All lines but the first begin with ``indent``.

    Without a terminal, lines have 80 columns, or as many as the environment variable COLUMNS says.
    """
    columns = min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)
    blank = "\n" * text.startswith("\n")
    print(blank + textwrap.fill(text.removeprefix("\n"), columns, subsequent_indent=indent), flush=True)
