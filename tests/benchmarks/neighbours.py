"""Measures how much CPU time other processes use, because benchmarks often run on shared machines."""

from __future__ import annotations

import os
import time

BUSY = 0.03  # a race is disturbed if other processes used this share of the CPUs' time
GLANCE = 0.3  # seconds of one measurement of the load


class Watch:
    """`others` returns the share of CPU time since the start that other processes and other guests of the
    host used, or None without /proc/stat."""

    def __init__(self, cpus):
        self.names = {f"cpu{c}" for c in cpus}
        self.before = self._state()

    def _state(self):
        """Returns in seconds: CPU time of all processes, CPU time of this process, and the time now."""
        try:
            with open("/proc/stat", encoding="ascii") as lines:
                rows = [line.split() for line in lines]
        except OSError:
            return None
        # A row has the name, then the columns user, nice, system, idle, iowait, irq, softirq, steal.
        used = sum(int(row[k]) for row in rows if row[0] in self.names for k in (1, 2, 3, 6, 7, 8))
        return used / os.sysconf("SC_CLK_TCK"), time.process_time(), time.perf_counter()

    def others(self) -> float | None:
        after = self._state()
        if self.before is None or after is None:
            return None
        used, own, elapsed = (b - a for a, b in zip(self.before, after, strict=True))
        return max(0.0, used - own) / (elapsed * len(self.names))


def wait_for_calm(cpus, patience: float) -> None:
    """Returns when no other process uses the CPUs, or after `patience` seconds."""
    end = time.perf_counter() + patience
    while time.perf_counter() < end:
        watch = Watch(cpus)
        time.sleep(GLANCE)
        if (watch.others() or 0) < BUSY:
            return
