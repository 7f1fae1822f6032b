"""The inputs (probes) on which a torch module is compared with the network to which it was converted.

This file also runs modules in float64, and has the permitted difference. It does not import torch: whoever
passes a module has imported it.
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

# The numbers of steps and sequences of random input. No two axes have the same length.
STEPS, BATCH = 7, 3
LONG, OF_LARGE, LARGE = 100, 40, 10**6  # numbers of steps: usual, and with more than LARGE parameters
# The permitted difference of two float64 results, relative and absolute. It is far above rounding errors that
# the network does not magnify, and far below rounding errors of float32.
EXACT, FLOOR = 1e-9, 1e-12
SINGLE, DOUBLE = (float(np.finfo(kind).eps) for kind in (np.float32, np.float64))
FACTOR = 8.0
_TINY, _LARGE = (-6, -1), (1, 4)  # powers of 10


@dataclass(frozen=True)
class Probe:
    """One input, and how to use it.

    name: for messages. x: (T, B, I). states: the initial h, or h and c, (layers * directions, B, H) each, or
    None for zeros. factor: multiplies all parameters. usual: whether all numbers are of the order of 1.
    derived: whether to compare gradients too.
    """

    name: str
    x: Array
    states: tuple[Array, ...] | None = None
    factor: float = 1.0
    usual: bool = True
    derived: bool = False


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
    yield Probe("ordinary input", x, derived=True)
    drawn = states(BATCH)
    if drawn is not None:
        yield Probe("states that are not zero", x, drawn, derived=True)
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
    yield Probe(f"input of {long} steps", normal(long, 2), derived=True)
    yield Probe(f"parameters {FACTOR:g} times as large", normal(steps, BATCH), factor=FACTOR, usual=False)
    if arch.cell.parts > 1:
        return  # in xlstm's modules a NaN stays in its gate or head, and the model's W_ih spreads it
    unknown = normal(steps, BATCH)
    unknown[steps // 2, 0, 0] = np.nan
    yield Probe("input with a NaN", unknown, usual=False)


# --- float64 ------------------------------------------------------------------------------------------------


class TestedModule:
    """A module that is run on probes, and a copy in float64, or None if it cannot compute in float64.

    references: a cache for the caller, of reference networks for the versions of the module.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.double = _copied(module, lambda copied: copied.double())
        self.references: dict[Any, Any] = {}

    def versions(self, probe: Probe) -> Iterator[tuple[Any, float, Any]]:
        """Yields (module, machine epsilon of its dtype, context in which to run it), float64 first.

        A module in half precision is left out unless all numbers of the probe are of the order of 1.
        """
        if self.double is not None:
            version = self.double if probe.factor == 1 else _copied(self.double, _enlarged(probe.factor))
            if version is not None:
                yield version, DOUBLE, in_double()
        eps = resolution(self.module)
        if probe.usual or eps < 2 * SINGLE:
            version = self.module if probe.factor == 1 else _copied(self.module, _enlarged(probe.factor))
            if version is not None:
                yield version, eps, nullcontext()


def like(module: Any) -> Any:
    """Returns some tensor that has a module's device and dtype."""
    torch: Any = sys.modules["torch"]
    return next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0))


def resolution(module: Any) -> float:
    """Returns the machine epsilon of a module's dtype, at least float32's, as forward may use float32."""
    torch: Any = sys.modules["torch"]
    return max(SINGLE, float(torch.finfo(like(module).dtype).eps))


def _copied(module: Any, change: Callable[[Any], Any]) -> Any:
    """Returns a copy of the module after `change`, or None if that is impossible."""
    try:
        return change(copy.deepcopy(module))
    except Exception:  # modules raise anything if they cannot be copied or have no other dtype
        return None


def _enlarged(factor: float) -> Callable[[Any], Any]:
    def change(module: Any) -> Any:
        for p in module.parameters():
            p.data.mul_(factor)
        return module

    return change


@contextmanager
def one_thread() -> Iterator[None]:
    """A context in which torch uses one thread, because most operations here are small."""
    torch: Any = sys.modules["torch"]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_double() -> Any:
    """Returns a context in which torch's functions use float64 instead of narrower types, in this thread.

    A forward may make its first state with torch.zeros, for example.
    """
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
            result = function(*map(wide, args), **named)
            return result.double() if isinstance(result, torch.Tensor) and result.dtype in narrow else result

    return Double()


# --- differences --------------------------------------------------------------------------------------------


def disagreement(
    theirs: Sequence[Array], ours: Sequence[Array], disturbed: Callable[[], Sequence[Array]], eps: float,
    margin: float,
) -> tuple[float, float] | None:  # fmt: skip
    """Returns None if the arrays agree, else the difference that exceeds its limit most, and this limit.

    Arrays are compared by index of their first axis, which is time for outputs. So early steps have a small
    limit even if the network magnifies rounding errors at every step. An index is ignored if rounding alone
    could change its values by more than a quarter. eps: machine epsilon of the module's dtype. disturbed:
    computes `ours` again, with parameters that differ by a random relative eps or -eps.
    """
    if any(a.shape != b.shape for a, b in zip(theirs, ours, strict=True)):
        return np.inf, 0.0
    rows = [_rows(a, b) for a, b in zip(theirs, ours, strict=True)]
    exact = eps < EXACT
    limits = [EXACT * size + FLOOR if exact else 0 * size for size, _ in rows]
    if all((difference <= limit).all() for (_, difference), limit in zip(rows, limits, strict=True)):
        return None
    for _ in range(3):
        again = [_rows(a, b)[1] for a, b in zip(disturbed(), ours, strict=True)]
        limits = [
            np.maximum(limit, margin * _near(change)) for limit, change in zip(limits, again, strict=True)
        ]
    worst: tuple[float, float] | None = None
    for (size, differences), limit in zip(rows, limits, strict=True):
        limit = np.maximum(limit, margin * eps * np.maximum(size, 0 if exact else 1))
        over = (differences > limit) & (limit <= 0.25 * np.maximum(size, differences))
        for difference, allowed in zip(differences[over], limit[over], strict=True):
            if worst is None or difference * worst[1] > worst[0] * allowed:
                worst = float(difference), float(allowed)
    return worst


def _rows(theirs: Array, ours: Array) -> tuple[Array, Array]:
    """Returns the largest magnitude of `ours` and the largest difference, for each index of the first axis.

    The difference is infinite where only one of the two numbers is finite. Numbers of `ours` above 1e15 are
    ignored.
    """
    theirs, ours = (a.reshape(len(a), -1) if a.size else np.zeros((0, 1)) for a in (theirs, ours))
    finite = np.isfinite(ours)
    with np.errstate(all="ignore"):
        difference = np.where(finite, np.abs(theirs - ours), np.where(np.isfinite(theirs), np.inf, 0))
        difference[np.isnan(difference)] = np.inf
        difference[np.abs(np.where(finite, ours, 0)) > 1e15] = 0
    return np.abs(np.where(finite, ours, 0)).max(axis=1), difference.max(axis=1)


def _near(of: Array) -> Array:
    """Returns each step's maximum over itself and the two steps on either side, since steps vary much."""
    wide = np.pad(np.where(np.isfinite(of), of, 0), 2)
    result: Array = np.max([wide[k : k + len(of)] for k in range(5)], axis=0)
    return result
