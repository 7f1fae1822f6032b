"""A service that runs for long, in short: many steps of streams and many calls of all kinds in one process.

streams: one of --steps steps, and one of a tenth of them for each other network of STREAMS. Every output is
compared, bit for bit, with calls on whole sequences; at twenty checkpoints also with the reference.
calls: rounds over the same random cases of the campaign fuzz, in one process, and results of many MiB.
Networks that nobody sets have the same bits after each round.
Memory, on Linux: without the blocks that are kept for large results, the resident memory stays within 2 MiB
of its size after a tenth of the steps, at least 6000, or after the second round.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import re
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import lnrnn
from helpers import available_isas, using_isa
from lnrnn import reference
from networks import VARIANTS, calm, drawn_state, normal, parts, reference_forward
from outcome import Wrong, restart_with

sys.path.append(str(Path(__file__).parents[1] / "fuzz"))

import fuzz_cases  # noqa: E402
from fuzz_judge import Judge  # noqa: E402

MiB = 1 << 20
CHECKPOINTS = 20
BLOCK = 1000  # steps of a whole sequence
WINDOW = 20  # of them, the reference computes so many
GROWTH = 2 * MiB  # the heap grows in steps of about one
WARM = 6000  # steps
KEPT_BLOCKS, HUGE = 32, 2 * MiB  # docs/benchmarks.md; each block has up to a huge page of room to begin at
LARGEST_RESULT = 18 * MiB

last = lnrnn.BatchNormSpec(overrun="last")
# The arguments of `calm`, the type of the weights, how far y, which is below 1, may be from the reference
# after WINDOW steps. Batch norm divides by the deviation of 64 values at step 0, which may be small.
STREAMS = {
    "LSTM": (dict(cell="LSTM"), "float32", 5e-6),
    "RNN, two layers": (dict(cell="RNN", num_layers=2), "float32", 5e-6),
    "LSTM, carried norm": (dict(cell="LSTM", norm=lnrnn.LayerNormSpec("gate", "carry")), "float32", 5e-6),
    "LSTM, no norm, int8": (dict(cell="LSTM", norm=None), "int8", None),
    "GRU, bfloat16": (dict(cell="GRU"), "bfloat16", None),
    "GRU, batch norm": (dict(cell="GRU", norm=last, trained=1), "float32", 5e-4),
}


# Python's own allocator takes and gives back whole MiB, and glibc's keeps large arrays in its heap once some
# have been freed: with these what is resident is what is in use.
ENVIRONMENT = {"PYTHONMALLOC": "malloc", "MALLOC_MMAP_THRESHOLD_": "1048576"}


def check(condition: bool, message: str) -> None:
    if not condition:
        raise Wrong(message)


def resident() -> tuple[int, int, int] | None:
    """Bytes of this process: resident outside of huge pages that were asked for, resident inside, and all of
    the latter's address space. lnrnn's blocks are in the latter."""
    if not os.path.exists("/proc/self/smaps"):
        return None
    gc.collect()
    rest = inside = space = 0
    with open("/proc/self/smaps") as f:
        for mapping in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", f.read())[1:]:
            size, rss = (int(re.search(rf"(?m)^{k}: +(\d+) kB", mapping)[1]) << 10 for k in ("Size", "Rss"))
            if re.search(r"(?m)^VmFlags:.* hg\b", mapping) and "[heap]" not in mapping.partition("\n")[0]:
                inside, space = inside + rss, space + size
            else:
                rest += rss
    return rest, inside, space


@dataclass
class Memory:
    """What is resident, looked at `at` every checkpoint."""

    warm: int = 0
    seen: list[int] = field(default_factory=list)
    blocks: int = 0

    def look(self, what: str, warm: bool) -> None:
        found = resident()
        if found is None:
            return
        rest, inside, space = found
        most = KEPT_BLOCKS * (LARGEST_RESULT + HUGE)
        check(space <= most, f"{what}: {space} bytes are kept for large results, not {most} at most")
        self.blocks = max(self.blocks, space)
        if not warm:
            return
        self.seen.append(rest)
        grown = rest - self.seen[0]
        check(grown <= GROWTH, f"{what}: {grown} bytes more are resident than after the warm-up")

    def figures(self) -> dict[str, int | str]:
        if not self.seen:
            return {"memory": "not measured"}
        grown = max(self.seen) - self.seen[0]
        warm = round(self.seen[0] / MiB, 1)
        return {"MiB after the warm-up": f"{warm}", "KiB more at most": grown // 1024}


def is_checkpoint(done: int, step: int, total: int) -> bool:
    """Whether a twentieth of the work ended in the last `step` of `done`."""
    return done == total or CHECKPOINTS * done // total > CHECKPOINTS * (done - step) // total


def is_warm(done: int, total: int) -> bool:
    return done >= min(total, max(total / 10, WARM))


def soak_stream(name: str, steps: int, seed: int) -> dict[str, int | str]:
    options, dtype, tolerance = STREAMS[name]
    rng = np.random.default_rng([seed, sorted(STREAMS).index(name)])
    rnn = calm(5, 12, seed=seed, **options)
    exact, rnn = rnn, rnn.to_dtype(dtype)
    stream, state = rnn.stream(), drawn_state(rng, rnn, 1)
    stream.state = state
    memory, largest = Memory(), 0.0
    many = normal(rng, 7 * BLOCK, 1, 5)
    y = np.empty((BLOCK, 1, 12), np.float32)
    done = 0
    while done < steps:
        n, at = min(BLOCK, steps - done), int(rng.integers(6 * BLOCK))
        x = many[at : at + n]
        for t in range(0, n, 2):
            stream(x[t], out=y[t])
            if t + 1 < n:
                y[t + 1] = stream(x[t + 1])
        where = f"{name}, seed {seed}, steps {done} to {done + n}"
        want, after = rnn(x, state)
        check(
            np.array_equal(y[:n].view(np.uint32), want.view(np.uint32)),
            f"{where}: not the whole sequence's bits",
        )
        for a, b in zip(parts(rnn, stream.state), parts(rnn, after), strict=True):
            check(np.array_equal(a.view(np.uint32), b.view(np.uint32)), f"{where}: the states differ")
        check((stream.step == done + n).all(), f"{where}: the stream is at step {stream.step}")
        done += n
        if is_checkpoint(done, n, steps):
            if tolerance:
                true, *_ = reference_forward(exact, x[:WINDOW], state)
                error = float(np.abs(y[: len(true)] - true).max())
                largest = max(largest, error)
                check(error < tolerance, f"{where}: {error} from the reference")
            memory.look(where, is_warm(done, steps))
        state = after
    found = {"steps": steps, **memory.figures()}
    if tolerance:
        found["from the reference"] = f"{largest:.1e}"
    return {f"{name}: {key}": value for key, value in found.items()}


def constant_networks() -> dict[str, lnrnn.Network]:
    """Networks that nobody sets."""
    return {
        name: calm(4, 5 + k % 9, seed=k, trained=8 if "batch" in name else 0, **spec)
        for k, (name, spec) in enumerate(VARIANTS.items())
    }


def digest(networks: dict[str, lnrnn.Network], x: np.ndarray) -> str:
    found = hashlib.sha256()
    with using_isa(available_isas()[0]):
        for rnn in networks.values():
            y, state = rnn(x)
            for array in (y, *parts(rnn, state)):
                found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def large_results(rng) -> None:
    """Of 4 MiB and more, in blocks that are kept: whole huge pages, by which `resident` knows the blocks."""
    for mebibytes in (4, 6, 8, 18):
        x = np.broadcast_to(normal(rng, 1, 1024), (256 * mebibytes, 1024))
        error = np.abs(lnrnn.layer_norm(x, 1024)[::97] - reference.layer_norm(x[::97], 1024)).max()
        check(error < 5e-5, f"a result of {mebibytes} MiB: {error} from the reference")


def soak_calls(options: argparse.Namespace) -> dict[str, int | str]:
    restart_with(ENVIRONMENT)
    tempfile.tempdir = str(options.folder)
    calls, cases = (6_000, 60) if options.quick else (options.calls, options.cases)
    memory, judge, seed, rounds = Memory(), Judge(), options.seed, 0
    turn, networks = tuple(options.kinds.split(",")), constant_networks()
    x = normal(np.random.default_rng(seed), 8, 3, 4)
    first = digest(networks, x)
    while judge.counts.total() < calls:
        before = judge.counts.copy()
        for k in range(cases):
            kind, number = turn[k % len(turn)], k * fuzz_cases.BLOCK // 5  # all instruction sets in turn
            try:
                fuzz_cases.run(kind, seed, number, judge)
            except Exception as error:
                raise Wrong(f"round {rounds}, case {kind}:{seed}:{number}: {error!r}") from error
        large_results(np.random.default_rng(seed))
        rounds += 1
        where = f"after {rounds} rounds"
        memory.look(where, rounds > 1)
        check(digest(networks, x) == first, f"{where}: networks that nobody sets give other bits")
        if rounds == 1:
            once = judge.counts - before
        check(judge.counts - before == once, f"{where}: another number of executions")
    return {"calls": judge.counts.total(), "rounds": rounds, **memory.figures()}


def streams(options: argparse.Namespace) -> dict[str, int | str]:
    restart_with(ENVIRONMENT)
    steps = 20_000 if options.quick else options.steps
    found: dict[str, int | str] = {}
    for k, name in enumerate(STREAMS):
        found |= soak_stream(name, steps if k == 0 else steps // 10, options.seed)
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=10_000_000)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--cases", type=int, default=400, help="in each round")
    parser.add_argument("--kinds", default=",".join(fuzz_cases.SMALL), help="of cases, as in fuzz_cases.py")


PARTS = {"streams": streams, "calls": soak_calls}
