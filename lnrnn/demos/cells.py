"""The kinds of networks that demos train, by their names on the command line."""

from __future__ import annotations

from lnrnn.rnn.models import CLASSES, Model

MODELS: dict[str, type[Model]] = {name.lower(): model for name, model in CLASSES.items()}
CELLS = tuple(MODELS)


def with_article(name: str) -> str:
    """An abbreviation with the article that fits its first letter as it is spoken: an RNN, a GRU."""
    return f"{'an' if name[0] in 'AEFHILMNORSX' else 'a'} {name}"
