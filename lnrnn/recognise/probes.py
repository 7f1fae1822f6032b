"""The inputs (probes) on which a foreign network is compared with the network to which it was converted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..rnn.architecture import Architecture

Array = np.ndarray
# The numbers of steps and sequences of random input. No two axes have the same length.
STEPS, BATCH = 7, 3
LONG, OF_LARGE, LARGE = 220, 60, 10**6  # numbers of steps: usual, and with more than LARGE parameters
MANY = 263  # sequences: a forward may branch on their number
FACTOR = 8.0
_TINY, _LARGE = (-6, -1), (1, 4)  # powers of 10


@dataclass(frozen=True)
class Probe:
    """One input, and how to use it.

    name: for messages. x: (T, B, I). states: the initial h, or h and c, (layers * directions, B, H) each, or
    None for zeros. factor: multiplies all parameters. usual: whether all numbers are of the order of 1.
    """

    name: str
    x: Array
    states: tuple[Array, ...] | None = None
    factor: float = 1.0
    usual: bool = True


def probes(arch: Architecture, most: int | None, started: bool) -> Iterator[Probe]:
    """Yields all probes for a network, ordinary input first.

    most: the largest permitted number of steps, or None for any. started: whether the module takes states.
    """
    rng = np.random.default_rng(0)
    size = sum(int(np.prod(shape)) for shape in arch.shapes.values())
    steps, long = (STEPS, OF_LARGE if size > LARGE else LONG)
    if most is not None:
        steps, long = min(steps, most), min(long, most)

    def normal(*shape: int) -> Array:
        return rng.standard_normal((*shape, arch.input_size), dtype=np.float32).astype(float)

    def scaled(x: Array, powers: tuple[float, float]) -> Array:
        return x * 10.0 ** rng.uniform(*powers, (*x.shape[:-1], 1))

    def states(batch: int) -> tuple[Array, ...] | None:
        if not started:
            return None
        shapes = [(len(arch.suffixes), batch, width) for width in arch.state_widths]
        found = [rng.uniform(-0.9, 0.9, s).astype(np.float32).astype(float) for s in shapes]
        if arch.cell.parts > 1:
            found[2] = 1 + np.abs(found[2])  # n
        return tuple(found)

    x = normal(steps, BATCH)
    yield Probe("ordinary input", x)
    drawn = states(BATCH)
    if drawn is not None:
        yield Probe("states that are not zero", x, drawn)
        large = tuple(scaled(s, (0.5, 2)) for s in drawn)
        yield Probe("states of 1 to 100", x, large, usual=False)
    yield Probe("input of one step", normal(1, BATCH), states(BATCH))
    yield Probe("a batch of one sequence", normal(steps, 1))
    blank = normal(steps, BATCH)
    blank[: steps // 3, 0] = blank[-(steps // 3) :, 1] = blank[:, 2] = 0  # as padding
    blank[steps // 2] = 0
    yield Probe("input with frames of zeros", blank, states(BATCH))
    yield Probe("input of 1e-6 to 0.1", scaled(normal(steps, BATCH), _TINY), usual=False)
    yield Probe("input of 10 to 10,000", scaled(normal(steps, BATCH), _LARGE), usual=False)
    yield Probe(f"input of {long} steps", normal(long, 1))
    yield Probe(f"a batch of {MANY} sequences", normal(min(steps, 2), MANY), states(MANY))
    yield Probe(f"parameters {FACTOR:g} times as large", normal(steps, BATCH), factor=FACTOR, usual=False)
    if arch.cell.parts > 1:
        return  # in xlstm's modules a NaN stays in its gate or head, and the model's W_ih spreads it
    unknown = normal(steps, BATCH)
    unknown[steps // 2, 0, 0] = np.nan
    yield Probe("input with a NaN", unknown, usual=False)
