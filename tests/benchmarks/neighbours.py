"""Measures how much of the CPUs other processes use, as benchmarks often run on shared machines."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager

BUSY = 0.03  # a race is disturbed if others used this part of the CPUs' time
GLANCE = 0.3  # seconds of one look at the load


class Watch:
    """`others` is the part of the CPUs' time, since the start, that other processes, the kernel for them, and
    other guests of the host used. None without /proc/stat. The clock ticks in 10 ms."""

    def __init__(self, cpus):
        self.names = {f"cpu{c}" for c in cpus}
        self.before = self._state()

    def _state(self):
        """Seconds: used of these CPUs by all processes, used by this one with all its threads, and now."""
        try:
            with open("/proc/stat", encoding="ascii") as lines:
                rows = [line.split() for line in lines]
        except OSError:
            return None
        # user, nice, system, idle, iowait, irq, softirq, steal
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


@contextmanager
def busy_process():
    """A process that computes on the CPUs of this one, until the block ends or its parent does."""
    loop = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"
    process = subprocess.Popen([sys.executable, "-c", loop], stdin=subprocess.DEVNULL)
    try:
        time.sleep(GLANCE)  # it has started by then
        yield
    finally:
        process.kill()
        process.wait()
