"""Runs random cases, and compares them with the reference in double precision and with equivalent calls.

Error bounds are derived or measured. Cases run in worker processes. A wrong result, a crash, a hang and too
much memory are reported with a command that runs the case again: --case networks:SEED:NUMBER. An execution is
a call of lnrnn whose result was checked. fuzz_cases.py lists the kinds of cases.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

import fuzz_cases
import lnrnn
from fuzz_judge import Judge
from outcome import Wrong

HERE = Path(__file__).resolve().parent
HANG = 60  # a case that takes more seconds hangs
START = 60  # seconds that a process may take before its first case


class Worker:
    """A worker process. next: the first case that the process runs when it is started or restarted."""

    def __init__(self, campaign: Campaign, index: int) -> None:
        self.campaign, self.next = campaign, index
        self.place = Path(campaign.folder) / f"worker{index}"
        np.zeros(2, np.int64).tofile(self.place)
        self.start()

    def start(self) -> None:
        campaign = self.campaign
        left = max(campaign.end - time.monotonic(), 0)
        np.array([self.next, time.monotonic_ns() + START * 10**9]).tofile(self.place)
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, HERE / "fuzz_worker.py", *map(str, (campaign.seed, self.next, campaign.workers)),
             str(left), self.place, ",".join(campaign.kinds)],
            stdout=subprocess.PIPE, stderr=self.errors, cwd=campaign.folder,
            env={**os.environ, "TMPDIR": campaign.folder},
        )  # fmt: skip
        self.output = b""

    def running(self) -> tuple[int, float]:
        """Returns the number of the running case, and for how many seconds it has run."""
        number, since = np.fromfile(self.place, np.int64)
        return int(number), (time.monotonic_ns() - int(since)) / 1e9

    def read(self) -> bool:
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        *lines, self.output = (self.output + data).split(b"\n")
        for line in lines:
            self.campaign.add(json.loads(line))
        return bool(data)

    def ended(self) -> bool:
        """Handles the end of the process. Returns whether to restart it with the next case."""
        status = self.process.wait()
        self.process.stdout.close()
        self.errors.seek(0)
        text = self.errors.read().decode(errors="replace")[-3000:]
        self.errors.close()
        if status == 0:
            return False
        number, _ = self.running()
        self.campaign.failed(number, f"the process ended with status {status}\n{text}")
        self.next = number + self.campaign.workers
        return time.monotonic() < self.campaign.end and len(self.campaign.failures) < 20


class Campaign:
    """Runs workers for some seconds, and adds up their reports."""

    def __init__(self, seed: int, seconds: float, workers: int, kinds: tuple[str, ...], folder: str) -> None:
        self.seed, self.workers, self.kinds, self.folder = seed, workers, kinds, folder
        self.end = time.monotonic() + seconds
        self.counts: Counter[str] = Counter()
        self.nearest: dict[str, float] = {}
        self.cases = 0
        self.failures: list[str] = []

    def add(self, report: dict) -> None:
        if "failed" in report:
            self.failed(report["failed"][1], report["text"])
            return
        self.counts.update(report["counts"])
        self.cases += report["cases"]
        for name, share in report["nearest"].items():
            self.nearest[name] = max(share, self.nearest.get(name, 0.0))

    def failed(self, number: int, text: str) -> None:
        kind = fuzz_cases.kind_of(number // self.workers, self.kinds)
        again = f"python tests/campaigns/run.py fuzz --case {kind}:{self.seed}:{number}"
        report = f"FAILED on {fuzz_cases.isa_of(number)}: {again}\n{text.rstrip()}\n"
        self.failures.append(report)
        print(report, flush=True)

    def run(self) -> None:
        """Runs the workers. Ctrl-C ends them early, and keeps the counts."""
        chosen = selectors.DefaultSelector()
        try:
            self._run(chosen)
        except KeyboardInterrupt:
            for key in chosen.get_map().values():
                key.data.process.kill()
                key.data.process.wait()

    def _run(self, chosen: selectors.BaseSelector) -> None:
        for index in range(self.workers):
            worker = Worker(self, index)
            chosen.register(worker.process.stdout, selectors.EVENT_READ, worker)
        while chosen.get_map():
            for key, _ in chosen.select(timeout=1):
                worker = key.data
                if worker.read():
                    continue
                chosen.unregister(key.fileobj)
                if worker.ended():
                    worker.start()
                    chosen.register(worker.process.stdout, selectors.EVENT_READ, worker)
            for key in list(chosen.get_map().values()):
                number, seconds = key.data.running()
                if seconds > HANG and key.data.process.poll() is None:
                    print(f"case {number} has run for {seconds:.0f} s and is killed", flush=True)
                    key.data.process.kill()


def fuzz(options: argparse.Namespace) -> dict[str, int | str]:
    if options.case:
        kind, seed, number = options.case.split(":")
        judge = Judge()
        fuzz_cases.run(kind, int(seed), int(number), judge)
        return {f"executions on {fuzz_cases.isa_of(int(number))}": judge.counts.total()}
    memory = "/dev/shm"  # on a disk, syncing files would take most of the time
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        kinds = tuple(options.kinds.split(","))
        campaign = Campaign(options.seed, options.seconds, options.workers, kinds, folder)
        campaign.run()
    for kind, n in sorted(campaign.counts.items()):
        print(f"{kind:40} {n:>12,}")
    if campaign.failures:
        raise Wrong(f"{len(campaign.failures)} failures")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = campaign.counts.total()
    nearest, share = max(campaign.nearest.items(), key=lambda item: item[1], default=("", 0))
    return {
        "executions": total,
        "cases": campaign.cases,
        "executions in a second of one core": round(total / max(used.ru_utime + used.ru_stime, 1)),
        "nearest to its bound": f"{nearest} {share:.2f}",
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=lnrnn.cpu_info()["cores"])
    parser.add_argument("--kinds", default=",".join(fuzz_cases.TURN), help="of those in fuzz_cases.py")
    parser.add_argument("--case", metavar="KIND:SEED:NUMBER", help="only this case")


PARTS = {"fuzz": fuzz}
