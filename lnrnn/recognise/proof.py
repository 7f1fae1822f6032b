"""Compares a foreign network with the network of lnrnn to which it was converted, by running both.

A front runs the foreign network, a torch module or a part of an ONNX file, on the inputs of probes.py.
lnrnn.reference computes lnrnn's in float64. The permitted difference is the rounding error of each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .probes import Array
from .reference_network import Leaf, ReferenceNetwork

# The permitted difference, in multiples of the rounding error that trials estimate. For 3000 correct modules
# of all systems, with 5 to 256 units, in float32 and float64, the difference was at most 2.2 (0.5 in the
# median). For norms over two units it reached 18, because their results are almost +1 and -1.
MARGIN = 6.0
# The permitted difference of two float64 results, relative and absolute. It is far above rounding errors that
# the network does not magnify, and far below rounding errors of float32.
EXACT, FLOOR = 1e-9, 1e-12
SINGLE, DOUBLE = (float(np.finfo(kind).eps) for kind in (np.float32, np.float64))


class Unchecked(Exception):
    """A network cannot be run, or its outputs do not show its equation. The text says why."""


class NotRun(Unchecked):
    """A network cannot be run on ordinary input."""


class RoundingHidesDifference(Unchecked):
    """Rounding errors may be as large as a difference of the equations, so nothing can be concluded."""


class Outputs(NamedTuple):
    """The results of a foreign network. x (T, B, I), states, lengths: its inputs, rounded to its dtype.

    parts: the arrays, y with time first, each with the Leaf that says which of the network's it should be.
    """

    x: Array
    states: Sequence[Array] | None
    parts: list[tuple[Leaf, Array]]
    lengths: Array | None = None


@dataclass(frozen=True)
class Version:
    """A foreign network that computes in a dtype with the machine epsilon eps.

    run: runs it on a probe, or raises any exception. network: returns the network of lnrnn with the same
    parameters. narrows: is called if a version in float64 converts to a narrower type inside.
    """

    eps: float
    run: Callable[[], Outputs]
    network: Callable[[], ReferenceNetwork]
    narrows: Callable[[], None]


class Proof(NamedTuple):
    """difference: as from `disagreement`."""

    outputs: Outputs
    difference: tuple[float, float] | None


def prove(versions: Iterable[Version], first: bool) -> Proof | None:
    """Compares the first version that can be run. Returns None if none can.

    first: whether the probe is ordinary input, which must run and show the equation, or Unchecked is raised.
    """
    failure = ""
    for version in versions:
        try:
            outputs = version.run()
        except Exception as error:  # a foreign network may raise anything for such an input, or in float64
            line = next(iter(str(error).strip().splitlines()), "")
            failure = f"{type(error).__name__}: {line[:120]}"
            continue
        network = version.network()
        difference = compare(outputs, network, version.eps, first)
        narrow = difference and first and version.eps == DOUBLE
        if narrow and compare(outputs, network, SINGLE) is None:
            version.narrows()
            continue
        return Proof(outputs, difference)
    if first:
        raise NotRun(failure)
    return None


def compare(
    outputs: Outputs, network: ReferenceNetwork, eps: float, first: bool = False
) -> tuple[float, float] | None:
    """Returns None if the outputs are those of the network, else the difference as from `disagreement`."""
    rng = np.random.default_rng(1)

    def parts(of: ReferenceNetwork) -> list[Array]:
        run = of.forward(outputs.x, outputs.states, outputs.lengths)
        return [leaf.of(run.y, run.ends) for leaf, _ in outputs.parts]

    ours = parts(network)
    if first and not all(np.isfinite(a).all() for a in ours):
        raise Unchecked("the outputs are not finite")
    theirs = [a for _, a in outputs.parts]
    return disagreement(theirs, ours, lambda: parts(network.disturbed(eps, rng)), eps, first)


# --- differences --------------------------------------------------------------------------------------------


def disagreement(
    theirs: Sequence[Array], ours: Sequence[Array], disturbed: Callable[[], Sequence[Array]], eps: float,
    first: bool = False,
) -> tuple[float, float] | None:  # fmt: skip
    """Returns None if the arrays agree, else the difference that exceeds its limit most, and this limit.

    Arrays are compared by index of their first axis, which is time for outputs. So early steps have a small
    limit even if the network magnifies rounding errors at every step. An index is ignored if rounding alone
    could change its values by more than a quarter. eps: machine epsilon of their dtype. disturbed: computes
    `ours` again, with parameters that differ by a random relative eps or -eps. Three trials give the limit,
    since weights that magnify errors from step to step magnify these changes too.

    first: raises RoundingHidesDifference if the arrays agree, but rounding alone could change them by more
    than a quarter of the largest number. In float64 it does not.
    """
    if any(a.shape != b.shape for a, b in zip(theirs, ours, strict=True)):
        return np.inf, 0.0
    rows = [_rows(a, b) for a, b in zip(theirs, ours, strict=True)]
    exact = eps < EXACT
    limits = [EXACT * size + FLOOR if exact else MARGIN * eps * np.maximum(size, 1) for size, _ in rows]
    largest, hides = _largest(size for size, _ in rows), first and not exact
    agree = all((difference <= limit).all() for (_, difference), limit in zip(rows, limits, strict=True))
    if agree and (not hides or (eps <= SINGLE and _largest(limits) <= 0.25 * largest)):
        return None
    for _ in range(3):
        again = [_rows(a, b)[1] for a, b in zip(disturbed(), ours, strict=True)]
        limits = [
            np.maximum(limit, MARGIN * _near(change)) for limit, change in zip(limits, again, strict=True)
        ]
    worst: tuple[float, float] | None = None
    for (size, differences), limit in zip(rows, limits, strict=True):
        over = (differences > limit) & (limit <= 0.25 * np.maximum(size, differences))
        for difference, allowed in zip(differences[over], limit[over], strict=True):
            if worst is None or difference * worst[1] > worst[0] * allowed:
                worst = float(difference), float(allowed)
    allowed, most = _largest(limits), _largest(difference for _, difference in rows)
    if worst is None and hides and most > allowed:
        return most, allowed
    if worst is None and hides and allowed > 0.25 * largest:
        raise RoundingHidesDifference(
            f"rounding alone may change its outputs by {allowed:.1g}, which would hide a difference"
        )
    return worst


def whole(arrays: Iterable[Array]) -> list[Array]:
    """Returns one row of all numbers, to be compared with one limit."""
    return [np.concatenate([np.ravel(a) for a in arrays])[None]]


def _largest(arrays: Iterable[Array]) -> float:
    return max((float(a.max()) for a in arrays if a.size), default=0.0)


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
