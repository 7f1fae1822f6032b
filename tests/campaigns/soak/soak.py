"""A service that runs for long, in short: many steps of streams and many calls of all kinds in one process.

    python tests/campaigns/soak/soak.py [--steps 10000000] [--calls 1000000] [--seed 0]        # make soak

Streams: one of an LSTM with layer norm of all those steps, and one of a tenth of them of each network of
STREAMS. Every output is compared, bit for bit, with calls on whole sequences that go on from the state
before; at twenty checkpoints also with the reference in float64.

Calls: norms, activations and their gradients, networks, streams, training, calibration, setters, copies,
files and refused arguments, drawn at random. Every 50th result is compared with the reference; what a fixed
set of calls gives has the same bits at every checkpoint.

Memory, on Linux, at every checkpoint: what is resident, without the blocks that are kept for large results,
stays within 1 MiB of what it was after a tenth of the work, or the first 6000 steps or calls; the blocks are
four at most.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[2] / "support"), str(Path(__file__).parent)]

from soak_calls import CALLS, Service  # noqa: E402

import lnrnn  # noqa: E402
from networks import calm, drawn_state, normal, parts, reference_forward  # noqa: E402

MiB = 1 << 20
CHECKPOINTS = 20
BLOCK = 1000  # steps of a whole sequence
WINDOW = 20  # of them, the reference computes so many
GROWTH = 2 * MiB  # the heap grows in steps of about one
WARM = 6000  # calls: by then every kind has been drawn for every network
KEPT_BLOCKS, HUGE = 32, 2 * MiB  # docs/benchmarks.md; each block has up to a huge page of room to begin at
LARGEST_RESULT = 18 * MiB  # of soak_calls.py

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


class Failed(AssertionError):
    pass


def check(condition: bool, message: str) -> None:
    if not condition:
        raise Failed(message)


# --- memory -------------------------------------------------------------------------------------------------


def resident() -> tuple[int, int, int] | None:
    """Bytes of this process: resident outside of huge pages that were asked for, resident inside, and all of
    the latter's address space. lnrnn's blocks are in the latter."""
    if not os.path.exists("/proc/self/smaps"):
        return None
    gc.collect()
    rest = inside = space = 0
    with open("/proc/self/smaps") as f:
        for mapping in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", f.read())[1:]:
            size, rss = (
                int(re.search(rf"(?m)^{key}: +(\d+) kB", mapping)[1]) << 10 for key in ("Size", "Rss")
            )
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

    def __str__(self) -> str:
        if not self.seen:
            return "memory was not measured"
        grown = max(self.seen) - self.seen[0]
        return (
            f"resident {self.seen[0] / MiB:.1f} MiB after the warm-up, {grown / 1024:.0f} KiB more at most,"
            f" {(self.seen[-1] - self.seen[0]) / 1024:.0f} KiB at the end; blocks {self.blocks / MiB:.0f} MiB"
        )


def is_checkpoint(done: int, step: int, total: int) -> bool:
    """Whether a twentieth of the work ended in the last `step` of `done`."""
    return done == total or CHECKPOINTS * done // total > CHECKPOINTS * (done - step) // total


def is_warm(done: int, total: int) -> bool:
    return done >= min(total, max(total / 10, WARM))


# --- streams ------------------------------------------------------------------------------------------------


def soak_stream(name: str, steps: int, seed: int) -> str:
    options, dtype, tolerance = STREAMS[name]
    rng = np.random.default_rng([seed, sorted(STREAMS).index(name)])
    rnn = calm(5, 12, seed=seed, **options)
    exact, rnn = rnn, rnn.to_dtype(dtype)
    stream, state = rnn.stream(), drawn_state(rng, rnn, 1)
    stream.state = state
    memory, largest = Memory(), 0.0
    many = normal(rng, 7 * BLOCK, 1, 5)
    y = np.empty((BLOCK, 1, 12), np.float32)
    began = time.perf_counter()
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
    took = time.perf_counter() - began
    judged = f"{largest:.1e} from the reference" if tolerance else "compared with whole sequences alone"
    return f"{name}: {steps} steps in {took:.0f} s, {judged}; {memory}"


# --- calls --------------------------------------------------------------------------------------------------


def soak_calls(calls: int, seed: int) -> str:
    memory, counts = Memory(), dict.fromkeys(CALLS, 0)
    names, weights = list(CALLS), np.array([weight for weight, _ in CALLS.values()], float)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder), seed)
        rng, first = np.random.default_rng([seed, 1]), digest(service)
        done = 0
        while done < calls:
            n = min(BLOCK, calls - done)
            for k, name in enumerate(rng.choice(names, n, p=weights / weights.sum())):
                service.judged = (done + k) % 50 == 0
                try:
                    CALLS[name][1](service)
                except Exception as error:
                    raise Failed(f"seed {seed}, call {done + k}, {name}: {error!r}") from error
                counts[name] += 1
            done += n
            if is_checkpoint(done, n, calls):
                where = f"seed {seed}, after {done} calls"
                check(digest(service) == first, f"{where}: the fixed calls give other bits")
                memory.look(where, is_warm(done, calls))
    took = time.perf_counter() - began
    listed = ", ".join(f"{name} {count}" for name, count in counts.items())
    worst = ", ".join(f"{name} {error:.1e}" for name, error in service.worst.items())
    return f"{calls} calls in {took:.0f} s ({listed}); from the reference: {worst}; {memory}"


def digest(service: Service) -> str:
    found = hashlib.sha256()
    for array in service.fixed():
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def main(arguments: list[str] | None = None, say: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=10_000_000)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    say(f"seed {options.seed}, {lnrnn.cpu_info()['isa']}, {lnrnn.get_num_threads()} threads")
    try:
        for k, name in enumerate(STREAMS):
            steps = options.steps if k == 0 else options.steps // 10
            if steps:
                say(soak_stream(name, steps, options.seed))
        if options.calls:
            say(soak_calls(options.calls, options.seed))
    except Failed as error:
        say(f"FAILED: {error}")
        again = f"--steps {options.steps} --calls {options.calls} --seed {options.seed}"
        say(f"again: python tests/campaigns/soak/soak.py {again}")
        return 1
    return 0


if __name__ == "__main__":
    if ENVIRONMENT.items() - os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ENVIRONMENT)
    raise SystemExit(main())
