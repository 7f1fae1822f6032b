"""What `lnrnn score` sends to a worker, and what comes back. Both are pickled."""

from __future__ import annotations

from dataclasses import dataclass

from .sequences import Into


@dataclass(frozen=True)
class Job:
    """What a worker has to know. All paths are absolute. input_was: as parquet.identity has it; model_was:
    the SHA-256 of its file; version, isa: of the lnrnn that began. skip: whether bad rows become nulls.
    scratch: where results go."""

    model: str
    model_was: str
    input: str
    input_was: dict[str, int | str]
    column: str
    into: Into
    output: str
    skip: bool
    threads: int
    version: str
    isa: str
    scratch: str


@dataclass(frozen=True)
class Outcome:
    """What came of a row group: the files of its results and of its bad rows, or what was wrong. In words,
    for not every engine passes on an exception as it is."""

    index: int
    results: str = ""
    bad: str | None = None
    error: str | None = None
