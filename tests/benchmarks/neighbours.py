"""How much of our CPUs somebody else used meanwhile: the machines that benchmarks run on are shared."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager

BUSY = 0.03  # part of the CPUs' time from which on a race counts as disturbed
GLANCE = 0.3  # seconds of looking whether it is calm now


class Watch:
    """Between its start and `others()`: the part of the CPUs' time that went to other processes, to the
    kernel on their behalf, or to other guests of the same host. None where the system does not tell. The
    clock ticks in 10 ms."""

    def __init__(self, cpus):
        self.names = {f"cpu{c}" for c in cpus}
        self.before = self._state()

    def _state(self):
        """Seconds: used of these CPUs by anybody, used by this process (all of its threads), and now."""
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
    """Returns when nobody else uses the CPUs, or after `patience` seconds."""
    end = time.perf_counter() + patience
    while time.perf_counter() < end:
        watch = Watch(cpus)
        time.sleep(GLANCE)
        if (watch.others() or 0) < BUSY:
            return


@contextmanager
def busy_process():
    """A process that computes without end, on the CPUs that this one may use. It ends with its parent."""
    loop = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"
    process = subprocess.Popen([sys.executable, "-c", loop], stdin=subprocess.DEVNULL)
    try:
        time.sleep(GLANCE)  # until it computes
        yield
    finally:
        process.kill()
        process.wait()
