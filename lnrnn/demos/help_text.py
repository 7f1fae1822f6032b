"""Python's own help text as data for a model of characters."""

from __future__ import annotations

import hashlib
import importlib
import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

SYMBOLS = 64  # the 63 characters that the training text has most often, and one for all others
HELD_OUT, TEST = 0.80, 0.88  # where these parts begin; the training text is what comes before


@dataclass(frozen=True)
class HelpText:
    """A text in three contiguous parts, as symbols 0 ... SYMBOLS - 1: int64, one per character.

    source: what it is, and its size. sha256: of the text, in UTF-8. others: the share of the test's
    characters that are read as the one symbol for all others.
    """

    train: np.ndarray
    held_out: np.ndarray
    test: np.ndarray
    source: str
    sha256: str
    others: float

    def shortened(self, characters: int | None) -> HelpText:
        """The first characters of each part; None: all."""
        return replace(
            self,
            train=self.train[:characters],
            held_out=self.held_out[:characters],
            test=self.test[:characters],
        )


def load_help_text() -> HelpText:
    """What ``help("topics")`` knows in the Python that runs, which differs from version to version.

    Topics stand in the order of their names, in which a paragraph that has occurred before is left out:
    whole topics are parts of others, and the test text would be in the training text.
    """
    topics: Mapping[str, str] = importlib.import_module("pydoc_data.topics").topics
    text = join_topics(topics)
    return split_text(text, f"Python {platform.python_version()}, {len(topics)} topics")


def join_topics(topics: Mapping[str, str]) -> str:
    """One text of all topics in the order of their names; every paragraph once, with an empty line after."""
    paragraphs = (
        paragraph.strip("\n") for name in sorted(topics) for paragraph in topics[name].split("\n\n")
    )
    return "".join(f"{paragraph}\n\n" for paragraph in dict.fromkeys(paragraphs) if paragraph)


def split_text(text: str, source: str) -> HelpText:
    """The first 80 % of the characters to train on, the next 8 % to choose settings on, the rest to test."""
    first, second = int(HELD_OUT * len(text)), int(TEST * len(text))
    parts = text[:first], text[first:second], text[second:]
    counts = Counter(parts[0])
    common = sorted(counts, key=lambda character: (-counts[character], character))[: SYMBOLS - 1]
    number = {character: place for place, character in enumerate(common)}
    train, held_out, test = (
        np.array([number.get(character, SYMBOLS - 1) for character in part], np.int64) for part in parts
    )
    return HelpText(
        train,
        held_out,
        test,
        f"{source}, {len(text):,} characters",
        hashlib.sha256(text.encode()).hexdigest(),
        float((test == SYMBOLS - 1).mean()),
    )
