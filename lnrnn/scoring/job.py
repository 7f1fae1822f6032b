"""What `lnrnn score` sends to a worker, and what comes back, which are pickled; its choices; and what its
engines share."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Literal, get_args

from .scorer import Scorer

Engine = Literal["local", "dask", "ray"]
ENGINES: tuple[Engine, ...] = get_args(Engine)


@dataclass(frozen=True)
class Job:
    """What a worker has to know. All paths are absolute. input_was: as parquet.identity has it. scratch:
    where results go."""

    scorer: Scorer
    input: str
    input_was: dict[str, int | str]
    scratch: str

    @property
    def threads(self) -> int:
        """Of a worker."""
        return self.scorer.threads or 1


@dataclass(frozen=True)
class Outcome:
    """What came of a row group: the files of its results and of its bad rows, or what was wrong. In words,
    for not every engine passes on an exception as it is."""

    index: int
    results: str = ""
    bad: str | None = None
    error: str | None = None


Outcomes = Generator[Outcome, None, None]
Compute = Callable[[Job, int], Outcome]
TRIES = 3  # a row group whose process dies is computed so often at most


def lost(index: int, tries: int = TRIES, hint: str = "was there memory enough?") -> ChildProcessError:
    return ChildProcessError(
        f"row group {index}: the process that was to compute it died {tries} times ({hint})"
    )
