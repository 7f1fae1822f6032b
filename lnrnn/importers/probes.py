"""The inputs on which somebody's module is held to the network made of its parameters, how a module is run in
float64, and how far the two may be apart.

Nothing here imports torch: where there is a module there is torch in sys.modules.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..rnn.architecture import Architecture
from .weights import Array

# Random input: enough steps for what is carried from one to the next to matter, and no two axes
# of one length.
STEPS, BATCH = 7, 3
LONG, OF_LARGE, LARGE = 100, 40, 10**6  # steps; those of a network with more parameters
# float64 against float64: far above rounding that no network magnifies, far below float32's resolution.
EXACT, FLOOR = 1e-9, 1e-12  # relative and absolute
SINGLE, DOUBLE = (float(np.finfo(kind).eps) for kind in (np.float32, np.float64))
FACTOR = 8.0
_TINY, _LARGE = (-6, -1), (1, 4)  # powers of 10


@dataclass(frozen=True)
class Probe:
    """name: for messages. x (T, B, I), time first. states: h, or h and c, at the start, (layers * directions,
    B, H) each, or None for zeros. factor: of all parameters. usual: whether all numbers are of the order of
    1. derived: whether gradients are of interest, too."""

    name: str
    x: Array
    states: tuple[Array, ...] | None = None
    factor: float = 1.0
    usual: bool = True
    derived: bool = False


def probes(made: Architecture, most: int | None, started: bool) -> Iterator[Probe]:
    """The ordinary one first. most: steps that the network takes, None for any number. started: whether the
    first states can be given; else they are zeros."""
    rng = np.random.default_rng(0)
    size = sum(int(np.prod(shape)) for shape in made.shapes.values())
    steps, long = (STEPS, OF_LARGE if size > LARGE else LONG)
    if most is not None:
        steps, long = min(steps, most), min(long, most)

    def normal(*shape: int) -> Array:
        return rng.standard_normal((*shape, made.input_size), dtype=np.float32).astype(float)

    def scaled(x: Array, powers: tuple[float, float]) -> Array:
        return x * 10.0 ** rng.uniform(*powers, (*x.shape[:-1], 1))

    def states(batch: int) -> tuple[Array, ...] | None:
        if not started:
            return None
        shape = made.cell.states, len(made.suffixes), batch, made.hidden_size
        return tuple(rng.uniform(-0.9, 0.9, shape).astype(np.float32).astype(float))

    x = normal(steps, BATCH)
    yield Probe("ordinary input", x, derived=True)
    drawn = states(BATCH)
    if drawn is not None:
        yield Probe("states that are not zero", x, drawn, derived=True)
        large = tuple(scaled(s, (0.5, 2)) for s in drawn)
        yield Probe("states of 1 to 100", x, large, usual=False)
    yield Probe("input of one step", normal(1, BATCH), states(BATCH))
    yield Probe("a batch of one sequence", normal(steps, 1))
    blank = normal(steps, BATCH)
    blank[: steps // 3, 0] = blank[-(steps // 3) :, 1] = blank[:, 2] = 0  # as padding stands
    blank[steps // 2] = 0
    yield Probe("input with frames of zeros", blank, states(BATCH))
    yield Probe("input of 1e-6 to 0.1", scaled(normal(steps, BATCH), _TINY), usual=False)
    yield Probe("input of 10 to 10,000", scaled(normal(steps, BATCH), _LARGE), usual=False)
    yield Probe(f"input of {long} steps", normal(long, 2), derived=True)
    yield Probe(f"parameters {FACTOR:g} times as large", normal(steps, BATCH), factor=FACTOR, usual=False)
    unknown = normal(steps, BATCH)
    unknown[steps // 2, 0, 0] = np.nan
    yield Probe("input with a NaN", unknown, usual=False)


# --- float64 ------------------------------------------------------------------------------------------------


class Subject:
    """A module that is run on probes: a copy in float64, while that computes in float64, and the module."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.double = _copied(module, lambda copied: copied.double())
        self.truths: dict[Any, Any] = {}  # the networks made of the versions, kept by who makes them

    def versions(self, probe: Probe) -> Iterator[tuple[Any, float, Any]]:
        """What may be run on a probe, the better one first: a module, the resolution of its numbers, and the
        context in which to run it. Half precision is for usual numbers."""
        if self.double is not None:
            found = self.double if probe.factor == 1 else _copied(self.double, _enlarged(probe.factor))
            if found is not None:
                yield found, DOUBLE, in_double()
        eps = resolution(self.module)
        if probe.usual or eps < 2 * SINGLE:
            found = self.module if probe.factor == 1 else _copied(self.module, _enlarged(probe.factor))
            if found is not None:
                yield found, eps, nullcontext()


def like(module: Any) -> Any:
    """A tensor of a module's device and dtype."""
    torch: Any = sys.modules["torch"]
    return next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0))


def resolution(module: Any) -> float:
    """That of a module's numbers; no finer than float32's, as it may compute in that."""
    torch: Any = sys.modules["torch"]
    return max(SINGLE, float(torch.finfo(like(module).dtype).eps))


def _copied(module: Any, change: Callable[[Any], Any]) -> Any:
    """A changed copy, or None where there is none."""
    try:
        return change(copy.deepcopy(module))
    except Exception:  # whatever a module raises that cannot be copied, or has no other dtype
        return None


def _enlarged(factor: float) -> Callable[[Any], Any]:
    def change(module: Any) -> Any:
        for p in module.parameters():
            p.data.mul_(factor)
        return module

    return change


@contextmanager
def one_thread() -> Iterator[None]:
    """torch's operations inside take one thread: most are too small for more."""
    torch: Any = sys.modules["torch"]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_double() -> Any:
    """A context in which torch's functions make and cast to float64 instead of narrower floating types, in
    this thread: a forward may make its first state by torch.zeros."""
    torch: Any = sys.modules["torch"]
    narrow = (torch.float32, torch.float16, torch.bfloat16)
    casts = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)

    def wide(value: Any) -> Any:
        return torch.float64 if isinstance(value, torch.dtype) and value in narrow else value

    class Double(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            if function in casts:
                return args[0].double()
            named = {key: wide(value) for key, value in (kwargs or {}).items()}
            found = function(*map(wide, args), **named)
            return found.double() if isinstance(found, torch.Tensor) and found.dtype in narrow else found

    return Double()


# --- how far apart ------------------------------------------------------------------------------------------


def apart(
    theirs: Sequence[Array], ours: Sequence[Array], disturbed: Callable[[], Sequence[Array]], eps: float,
    margin: float,
) -> tuple[float, float] | None:  # fmt: skip
    """None if the arrays agree; else the difference and what rounding explains, where that is exceeded most.

    Arrays are compared row by row of their first axis, which is time for an output. So early steps are held
    to a close limit where a network magnifies rounding with every step. A row is ignored if rounding alone
    could change it by more than a quarter. disturbed: gives ours anew, after a random change of each
    parameter by eps. eps: the resolution of the module's numbers.
    """
    if any(a.shape != b.shape for a, b in zip(theirs, ours, strict=True)):
        return np.inf, 0.0
    rows = [_rows(a, b) for a, b in zip(theirs, ours, strict=True)]
    exact = eps < EXACT
    limits = [EXACT * size + FLOOR if exact else 0 * size for size, _ in rows]
    if all((found <= limit).all() for (_, found), limit in zip(rows, limits, strict=True)):
        return None
    for _ in range(3):
        again = [_rows(a, b)[1] for a, b in zip(disturbed(), ours, strict=True)]
        limits = [
            np.maximum(limit, margin * _near(found)) for limit, found in zip(limits, again, strict=True)
        ]
    worst: tuple[float, float] | None = None
    for (size, found), limit in zip(rows, limits, strict=True):
        limit = np.maximum(limit, margin * eps * np.maximum(size, 0 if exact else 1))
        over = (found > limit) & (limit <= 0.25 * np.maximum(size, found))
        for difference, allowed in zip(found[over], limit[over], strict=True):
            if worst is None or difference * worst[1] > worst[0] * allowed:
                worst = float(difference), float(allowed)
    return worst


def _rows(theirs: Array, ours: Array) -> tuple[Array, Array]:
    """By row: the largest number of ours, and the largest difference. What is not finite in ours has to be so
    in theirs, and counts as infinitely far off otherwise; beyond float32 it says nothing."""
    theirs, ours = (a.reshape(len(a), -1) if a.size else np.zeros((0, 1)) for a in (theirs, ours))
    finite = np.isfinite(ours)
    with np.errstate(all="ignore"):
        difference = np.where(finite, np.abs(theirs - ours), np.where(np.isfinite(theirs), np.inf, 0))
        difference[np.isnan(difference)] = np.inf
        difference[np.abs(np.where(finite, ours, 0)) > 1e15] = 0
    return np.abs(np.where(finite, ours, 0)).max(axis=1), difference.max(axis=1)


def _near(of: Array) -> Array:
    """The largest of each row and two on either side: a few draws say little of one step alone."""
    wide = np.pad(np.where(np.isfinite(of), of, 0), 2)
    found: Array = np.max([wide[k : k + len(of)] for k in range(5)], axis=0)
    return found
