"""Simulates a service that runs for long: many steps of streams, and many calls of all kinds, in one process.

streams: a stream of the first network in STREAMS takes --steps steps, and streams of the others take a tenth
of that number. Outputs must have the bits of calls on whole sequences. At twenty checkpoints some are
compared with the reference. calls: rounds over the same random cases of the campaign fuzz, and results of
many MiB. Networks that no case sets must always give the same bits. On Linux, resident memory without the
blocks that lnrnn keeps for large results may grow by at most 2 MiB. It is first measured after a tenth of the
steps, at least 6000, or after the second round.
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
WINDOW = 20  # the first steps of a block, this many, are compared with the reference
GROWTH = 2 * MiB  # permitted growth; the heap grows in steps of about 1 MiB
WARM = 6000  # steps before memory is first measured
KEPT_BLOCKS, HUGE = 32, 2 * MiB  # lnrnn keeps at most 32 blocks, which are aligned to huge pages
LARGEST_RESULT = 18 * MiB

last = lnrnn.BatchNormSpec(overrun="last")
# {name: (arguments of `calm`, type of the weights, largest error after WINDOW steps)}; y is below 1. The
# error is larger under batch norm, which divides by the deviation of 64 values at step 0.
STREAMS = {
    "LSTM": (dict(cell="LSTM"), "float32", 5e-6),
    "RNN, two layers": (dict(cell="RNN", num_layers=2), "float32", 5e-6),
    "LSTM, carried norm": (dict(cell="LSTM", norm=lnrnn.LayerNormSpec("gate", "carry")), "float32", 5e-6),
    "LSTM, no norm, int8": (dict(cell="LSTM", norm=None), "int8", None),
    "GRU, bfloat16": (dict(cell="GRU"), "bfloat16", None),
    "GRU, batch norm": (dict(cell="GRU", norm=last, trained=1), "float32", 5e-4),
}


# With these variables, resident memory is the memory in use. Otherwise Python's allocator only releases whole
# MiB, and glibc keeps large arrays in its heap.
ENVIRONMENT = {"PYTHONMALLOC": "malloc", "MALLOC_MMAP_THRESHOLD_": "1048576"}


def check(condition: bool, message: str) -> None:
    if not condition:
        raise Wrong(message)


def resident() -> tuple[int, int, int] | None:
    """Returns three numbers of bytes, or None except on Linux. Mappings with huge pages have lnrnn's blocks.
    The numbers are resident memory outside of these mappings, resident memory in them, and their size."""
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
    """Records the resident memory at every checkpoint, and checks its growth."""

    seen: list[int] = field(default_factory=list)

    def look(self, where: str, warm: bool) -> None:
        bytes_now = resident()
        if bytes_now is None:
            return
        rest, _, space = bytes_now
        most = KEPT_BLOCKS * (LARGEST_RESULT + HUGE)
        check(space <= most, f"{where}: {space} bytes are kept for large results, the limit is {most}")
        if not warm:
            return
        self.seen.append(rest)
        grown = rest - self.seen[0]
        check(grown <= GROWTH, f"{where}: {grown} bytes more are resident than after the warm-up")

    def figures(self) -> dict[str, int | str]:
        if not self.seen:
            return {"memory": "not measured"}
        grown = max(self.seen) - self.seen[0]
        return {"MiB after the warm-up": f"{self.seen[0] / MiB:.1f}", "KiB more at most": grown // 1024}


def is_checkpoint(done: int, step: int, total: int) -> bool:
    """Returns whether a twentieth of the work was completed in the last `step` steps."""
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
        check(y[:n].tobytes() == want.tobytes(), f"{where}: not the whole sequence's bits")
        for a, b in zip(parts(rnn, stream.state), parts(rnn, after), strict=True):
            check(a.tobytes() == b.tobytes(), f"{where}: the states differ")
        check((stream.steps_done == done + n).all(), f"{where}: the stream is at step {stream.steps_done}")
        done += n
        if is_checkpoint(done, n, steps):
            if tolerance:
                true, *_ = reference_forward(exact, x[:WINDOW], state)
                error = float(np.abs(y[: len(true)] - true).max())
                largest = max(largest, error)
                check(error < tolerance, f"{where}: {error} from the reference")
            memory.look(where, is_warm(done, steps))
        state = after
    figures = {"steps": steps, **memory.figures()}
    if tolerance:
        figures["from the reference"] = f"{largest:.1e}"
    return {f"{name}: {key}": value for key, value in figures.items()}


def constant_networks() -> dict[str, lnrnn.Network]:
    return {
        name: calm(4, 5 + k % 9, seed=k, trained=8 if "batch" in name else 0, **spec)
        for k, (name, spec) in enumerate(VARIANTS.items())
    }


def digest(networks: dict[str, lnrnn.Network], x: np.ndarray) -> str:
    sha = hashlib.sha256()
    with using_isa(available_isas()[0]):
        for rnn in networks.values():
            y, state = rnn(x)
            for array in (y, *parts(rnn, state)):
                sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def large_results(rng) -> None:
    """Checks results of 4 MiB and more. They are in the blocks that lnrnn keeps, which `resident` counts."""
    for mebibytes in (4, 6, 8, 18):
        x = np.broadcast_to(normal(rng, 1, 1024), (256 * mebibytes, 1024))
        error = np.abs(lnrnn.layer_norm(x, 1024)[::97] - reference.layer_norm(x[::97], 1024)).max()
        check(error < 5e-5, f"a result of {mebibytes} MiB: {error} from the reference")


def soak_calls(options: argparse.Namespace) -> dict[str, int | str]:
    restart_with(ENVIRONMENT)
    tempfile.tempdir = str(options.folder)
    calls, cases = (2_000, 30) if options.quick else (options.calls, options.cases)
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
        check(digest(networks, x) == first, f"{where}: networks that no case sets give other bits")
        if rounds == 1:
            once = judge.counts - before
        check(judge.counts - before == once, f"{where}: another number of executions")
    return {"calls": judge.counts.total(), "rounds": rounds, **memory.figures()}


def streams(options: argparse.Namespace) -> dict[str, int | str]:
    restart_with(ENVIRONMENT)
    steps = 5_000 if options.quick else options.steps
    figures: dict[str, int | str] = {}
    for k, name in enumerate(STREAMS):
        figures |= soak_stream(name, steps if k == 0 else steps // 10, options.seed)
    return figures


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=10_000_000)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--cases", type=int, default=400, help="in each round")
    parser.add_argument("--kinds", default=",".join(fuzz_cases.TURN), help="of cases, as in fuzz_cases.py")


PARTS = {"streams": streams, "calls": soak_calls}
