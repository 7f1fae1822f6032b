"""Counts: the amount of work of one call, for monitoring."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Counts(NamedTuple):
    """The amount of work of one call of a Scorer or of `SessionPool.step`. `on_call` gets it, to monitor.

    Attributes
    ----------
    rows, bad, steps : int
        Numbers of rows of a table or frames of sessions; of bad ones among them; of computed steps.
    seconds : float
        The duration of the call.
    """

    rows: int
    bad: int
    steps: int
    seconds: float


OnCall = Callable[[Counts], object]
