"""The fuzzer: make fuzz [SECONDS=60] [SEED=...] [TALLY=FILE].

Draws cases at random and compares every result: with the reference in double precision, within bounds that
are derived or measured, and with other calls of the library that have to give the same bits. Cases run in
processes of their own: one that crashes, hangs or takes too much memory is reported like one that gives a
wrong result, by a command that runs it again.

    python tests/campaigns/fuzz/fuzz.py --seconds 60 [--seed N] [--workers 2] [--kinds norms,networks] [--tally FILE]
    python tests/campaigns/fuzz/fuzz.py --case networks:SEED:NUMBER      # one case, in this process

An execution is one call of the library whose result was checked. --tally appends a line to a file, and
prints the sum of its lines; without --seed a new seed is drawn.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import secrets
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "support"), str(HERE.parents[2])]

import numpy as np  # noqa: E402

import fuzz_cases  # noqa: E402
import lnrnn  # noqa: E402
from fuzz_judge import Judge  # noqa: E402

HANG = 60  # seconds that one case may take


class Worker:
    """A process and what is known of it. next: the case to begin with, if it has to be started again."""

    def __init__(self, campaign: Campaign, index: int) -> None:
        self.campaign, self.next = campaign, index
        self.place = Path(campaign.folder) / f"worker{index}"
        np.zeros(2, np.int64).tofile(self.place)
        self.start()

    def start(self) -> None:
        campaign = self.campaign
        left = max(campaign.end - time.monotonic(), 0)
        np.array([self.next, time.monotonic_ns()]).tofile(self.place)
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, HERE / "fuzz_worker.py", *map(str, (campaign.seed, self.next, campaign.workers)),
             str(left), self.place, ",".join(campaign.kinds)],
            stdout=subprocess.PIPE, stderr=self.errors, cwd=campaign.folder,
            env={**os.environ, "TMPDIR": campaign.folder},
        )  # fmt: skip
        self.output = b""

    def running(self) -> tuple[int, float]:
        """The case that runs, and for how many seconds."""
        number, since = np.fromfile(self.place, np.int64)
        return int(number), (time.monotonic_ns() - int(since)) / 1e9

    def read(self) -> bool:
        """Takes what the process says; False once it has ended."""
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        *lines, self.output = (self.output + data).split(b"\n")
        for line in lines:
            self.campaign.hear(json.loads(line))
        return bool(data)

    def ended(self) -> bool:
        """After the process has ended: whether it is started again, past a case that ended it."""
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
    """Runs workers until the time is over, and adds up what they say."""

    def __init__(self, seed: int, seconds: float, workers: int, kinds: tuple[str, ...], folder: str) -> None:
        self.seed, self.workers, self.kinds, self.folder = seed, workers, kinds, folder
        self.commit = commit()
        self.started = time.monotonic()
        self.end = self.started + seconds
        self.counts: Counter[str] = Counter()
        self.nearest: dict[str, float] = {}
        self.cases = 0
        self.failures: list[str] = []

    def hear(self, said: dict) -> None:
        if "failed" in said:
            self.failed(said["failed"][1], said["text"])
            return
        self.counts.update(said["counts"])
        self.cases += said["cases"]
        for name, share in said["nearest"].items():
            self.nearest[name] = max(share, self.nearest.get(name, 0.0))

    def failed(self, number: int, text: str) -> None:
        kind = fuzz_cases.kind_of(number // self.workers, self.kinds)
        again = f"python tests/campaigns/fuzz/fuzz.py --case {kind}:{self.seed}:{number}"
        report = f"FAILED on {fuzz_cases.isa_of(number)}: {again}\n{text.rstrip()}\n"
        self.failures.append(report)
        print(report, flush=True)

    def run(self) -> None:
        """Until the time is over, or Ctrl-C: then what has been counted by then stands."""
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
                    print(f"case {number} has run for {seconds:.0f} s and is ended", flush=True)
                    key.data.process.kill()

    def report(self) -> None:
        seconds = time.monotonic() - self.started
        width = max(map(len, self.counts), default=0)
        for kind, n in sorted(self.counts.items()):
            print(f"{kind:{width}} {n:>12,}")
        total, used = self.counts.total(), resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = used.ru_utime + used.ru_stime
        print(f"{'executions':{width}} {total:>12,} in {self.cases:,} cases, {total / seconds:,.0f} a second")
        print(f"{'':{width}} {total / max(cpu, 1):>12,.0f} for a second of one core")
        closest = sorted(self.nearest.items(), key=lambda item: -item[1])[:8]
        print("nearest to their bounds:", ", ".join(f"{name} {share:.2f}" for name, share in closest))
        print(f"failures: {len(self.failures)}; seed {self.seed}")


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


COLUMNS = ("date", "commit", "machine", "isas", "seed", "seconds", "cases", "executions", "failures")


def append(tally: Path, campaign: Campaign) -> None:
    """One more line, and what all lines make together."""
    line = (
        datetime.date.today().isoformat(), campaign.commit, platform.machine(),
        ",".join(fuzz_cases.ISAS), campaign.seed,
        round(time.monotonic() - campaign.started), campaign.cases, campaign.counts.total(),
        len(campaign.failures),
    )  # fmt: skip
    if not tally.exists():
        tally.write_text("\t".join(COLUMNS) + "\n")
    with tally.open("a") as file:
        file.write("\t".join(map(str, line)) + "\n")
    rows = [row.split("\t") for row in tally.read_text().splitlines()[1:]]
    runs = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    total, failures = (sum(int(run[name]) for run in runs) for name in ("executions", "failures"))
    print(f"{tally}: {total:,} executions in {len(runs)} runs, {failures} failures")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--workers", type=int, default=lnrnn.cpu_info()["cores"])
    parser.add_argument("--kinds", default=",".join(fuzz_cases.TURN))
    parser.add_argument("--tally", type=Path)
    parser.add_argument("--case", metavar="KIND:SEED:NUMBER")
    options = parser.parse_args()
    if options.case:
        kind, seed, number = options.case.split(":")
        judge = Judge()
        fuzz_cases.run(kind, int(seed), int(number), judge)
        print(f"{options.case} on {fuzz_cases.isa_of(int(number))}: {judge.counts.total()} executions, right")
        return 0
    seed = secrets.randbits(32) if options.seed is None else options.seed
    kinds = tuple(options.kinds.split(","))
    print(f"seed {seed}, {options.workers} processes, {options.seconds:g} s", flush=True)
    memory = "/dev/shm"  # files that are saved are brought to the disk, which would take all the time
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        campaign = Campaign(seed, options.seconds, options.workers, kinds, folder)
        campaign.run()
    campaign.report()
    if options.tally:
        append(options.tally, campaign)
    return bool(campaign.failures)


if __name__ == "__main__":
    sys.exit(main())
