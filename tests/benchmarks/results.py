"""What came out of a race, and the numbers that are drawn from it: medians, quartiles, ratios round by
round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neighbours import BUSY


@dataclass(frozen=True)
class Skipped:
    """A race that could not be."""

    subject: str
    group: str
    size: str
    reason: str


@dataclass
class Entry:
    """One race. subject: the table's file; group: the table; size: its row. outcome: what worker.py sent."""

    subject: str
    group: str
    size: str
    threads: int
    outcome: dict

    def __post_init__(self):
        steps = self.outcome["steps"]
        self.samples = {name: np.array(took) / steps for name, took in self.outcome["samples"].items()}
        self.limit = None if self.outcome["limit"] is None else np.array(self.outcome["limit"]) / steps
        self.judged, *self.variants = self.outcome["ours"]
        others = [name for name in self.samples if name not in self.outcome["ours"]]
        self.other_work = [name for name in others if name in self.outcome["other_work"]]
        self.peers = [name for name in others if name not in self.other_work]

    @property
    def best_peer(self) -> str | None:
        return min(self.peers, key=self.median, default=None)

    @property
    def limit_median(self) -> float | None:
        return None if self.limit is None else float(np.median(self.limit))

    @property
    def disturbed(self) -> bool:
        """Whether other processes used so much of the CPUs that the times mean little."""
        return (self.outcome["others"] or 0) >= BUSY

    @property
    def of_limit(self) -> float | None:
        """The part of our time that the machine needs anyway."""
        return None if self.limit is None else float(np.median(self.limit / self.samples[self.judged]))

    def median(self, name: str) -> float:
        return float(np.median(self.samples[name]))

    def quartiles(self, name: str) -> list[float]:
        return np.percentile(self.samples[name], [25, 50, 75]).tolist()

    def ratio(self, name: str, ours: str | None = None) -> tuple[float, float, float]:
        """The contender's time by ours (the judged one's, or another's), each round by itself, so that drift
        cancels: quartiles."""
        times = self.samples[name] / self.samples[ours or self.judged]
        return tuple(np.percentile(times, [25, 50, 75]).tolist())

    def facts(self) -> dict:
        """For the JSON of pytest-benchmark: seconds a step, except where the name says otherwise."""
        return {
            "subject": self.subject,
            "table": self.group,
            "size": self.size,
            "threads": self.threads,
            "steps_per_call": self.outcome["steps"],
            "quartiles": {name: self.quartiles(name) for name in self.samples},
            "ratio_to_ours": {name: self.ratio(name) for name in self.samples if name != self.judged},
            "best_peer": self.best_peer,
            "left_out": self.outcome["left_out"],
            "errors": self.outcome["errors"],
            "limit": self.limit_median,
            "limit_is": self.outcome["limit_name"],
            "of_limit": self.of_limit,
            "others": self.outcome["others"],
        }


def geometric_mean(values) -> float:
    return float(np.exp(np.mean(np.log(list(values)))))


def in_order(groups) -> list[str]:
    """The names of several lists, each once, in the order of their first appearance."""
    return list(dict.fromkeys(name for names in groups for name in names))
