"""Checks a conversion: runs the original network and lnrnn's on the same inputs, and compares the outputs.

An importer runs the original, a torch module or a part of an ONNX file, on the inputs of `probes`.
lnrnn.reference computes the converted network in float64. Rounding errors per step limit the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, NamedTuple

import numpy as np

from .. import reference
from ..importers.weights import Array, Converted
from ..rnn.architecture import Architecture
from ..rnn.settings import architecture

# The permitted difference, in multiples of the rounding error that trials estimate. For 3000 correct modules
# of all frameworks, with 5 to 256 units, in float32 and float64, the difference was at most 2.2 (0.5 in the
# median). For norms over two units it reached 18, because their results are almost +1 and -1.
MARGIN = 6.0
# The permitted difference of two float64 results, relative and absolute. It is far above float64's rounding
# errors, unless the network magnifies them, and far below float32's.
EXACT, FLOOR = 1e-9, 1e-12
SINGLE, DOUBLE = (float(np.finfo(kind).eps) for kind in (np.float32, np.float64))
# The numbers of steps and sequences of random inputs. No two axes of an input have the same length.
STEPS, BATCH = 7, 3
LONG, OF_LARGE, LARGE = 220, 60, 10**6  # numbers of steps: usual; of cells and above LARGE parameters
MANY = 263  # a batch size, since a forward may branch on it
FACTOR = 8.0
_OPTIONS = "nonlinearity", "num_heads", "reset_after", "gate_activation", "exp_forget", "state_dtype"
States = Sequence[Array]  # h, or h and c: arrays (layers * directions, B, H)


class Unchecked(Exception):
    """Raised if a network cannot be run, or if its outputs do not show its equation. The text says why."""


class RoundingHidesDifference(Unchecked):
    """Raised if rounding errors may be as large as a difference of the equations, so nothing is proved."""


# --- inputs -------------------------------------------------------------------------------------------------


class Probe(NamedTuple):
    """One input on which the original and the converted network are compared.

    name: its name in messages. x: (T, B, I). states: the initial states, or None for zeros. factor:
    multiplies all parameters. usual: whether all numbers are about 1 in magnitude.
    """

    name: str
    x: Array
    states: States | None = None
    factor: float = 1.0
    usual: bool = True


def probes(arch: Architecture, most: int | None, started: bool, step: bool = False) -> Iterator[Probe]:
    """Yields all probes for a network, ordinary input first.

    most: the largest number of steps, or None. started: draw initial states. step: run one step only.
    """
    rng = np.random.default_rng(0)

    def drawn(steps: int, batch: int = BATCH, low: float = 0, high: float = 0) -> Array:
        T = steps if most is None else min(steps, most)
        x = rng.standard_normal((T, batch, arch.input_size), dtype=np.float32)
        return x * 10.0 ** rng.uniform(low, high, (T, batch, 1))

    def states(batch: int = BATCH) -> States | None:
        shapes = [(len(arch.suffixes), batch, width) for width in arch.state_widths]
        result = [rng.uniform(-0.9, 0.9, s).astype(np.float32).astype(float) for s in shapes]
        if arch.cell.parts > 1:
            result[2] = 1 + np.abs(result[2])  # xLSTM's normalizer n must be positive
        return result if started else None

    x, start = drawn(STEPS), states()
    yield Probe("ordinary input", x)
    if start is not None:
        yield Probe("states that are not zero", x, start)
        large = [s * 10.0 ** rng.uniform(0.5, 2, (*s.shape[:-1], 1)) for s in start]
        yield Probe("states of 1 to 100", x, large, usual=False)
    yield Probe("input of one step", drawn(1), states())
    yield Probe("a batch of one sequence", drawn(STEPS, 1))
    blank = drawn(STEPS)
    T = len(blank)
    blank[: T // 3, 0] = blank[-(T // 3) :, 1] = blank[:, 2] = blank[T // 2] = 0  # padding
    yield Probe("input with frames of zeros", blank, states())
    yield Probe("input of 1e-6 to 0.1", drawn(STEPS, low=-6, high=-1), usual=False)
    yield Probe("input of 10 to 10,000", drawn(STEPS, low=1, high=4), usual=False)
    long = drawn(OF_LARGE if step or sum(map(np.prod, arch.shapes.values())) > LARGE else LONG, 1)
    yield Probe(f"input of {len(long)} steps", long)
    yield Probe(f"a batch of {MANY} sequences", drawn(2, MANY), states(MANY))
    yield Probe(f"parameters {FACTOR:g} times as large", drawn(STEPS), factor=FACTOR, usual=False)
    if arch.cell.parts > 1:
        return  # a NaN stays in its gate or head in xlstm's modules, but spreads in lnrnn
    unknown = drawn(STEPS)
    unknown[len(unknown) // 2, 0, 0] = np.nan
    yield Probe("input with a NaN", unknown, usual=False)


# --- outputs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Leaf:
    """Stands for an array in nested tuples and lists: y (kind None), h (kind 0) or c (kind 1).

    place: the index of layer and direction, for a state (B, H). None: all, (layers * directions, B, H). A
    slice selects some layers and directions.
    """

    kind: int | None = None
    place: Any = None

    def of(self, y: Any, states: Any) -> Any:
        """Returns this Leaf's part of y or of the states (layers * directions, B, H)."""
        whole = y if self.kind is None else states[self.kind]
        return whole if self.place is None else whole[self.place]


class Outputs(NamedTuple):
    """The results of the original network. x (T, B, I), states, lengths: its inputs, rounded to its dtype.

    parts: (Leaf, array) for each output, y with time first. The Leaf says which result of lnrnn it is.
    """

    x: Array
    states: States | None
    parts: list[tuple[Leaf, Array]]
    lengths: Array | None = None


class Reference:
    """The converted network in float64, run by lnrnn.reference. Its parameters may be perturbed at random.

    eps: each parameter is multiplied by 1 + eps or 1 - eps. Outputs are cached by the bytes of the inputs,
    since several ways to call a module have the same inputs.
    """

    def __init__(self, converted: Converted, eps: float = 0.0, rng: Any = None) -> None:
        self.converted, self.arch = converted, architecture(converted.model())
        rng = rng or np.random.default_rng(0)
        self.state = {name: v * (1 + eps * rng.choice([-1.0, 1.0], v.shape)) if v.dtype.kind == "f" else v
                      for name, v in converted.state.items()}  # fmt: skip
        self._kept: dict[Any, tuple[Array, States]] = {}

    def forward(
        self, x: Array, states: States | None = None, lengths: Array | None = None
    ) -> tuple[Array, States]:
        """Returns y (T, B, directions * H) and last states (layers * directions, B, H). states: None is 0."""
        key = tuple(None if a is None else (a.shape, a.tobytes()) for a in (x, lengths, *(states or ())))
        if key in self._kept:
            return self._kept[key]
        cell, ends, y = self.arch.cell, [], np.asarray(x, float)
        call = getattr(reference, cell.name.lower())
        with np.errstate(all="ignore"):  # NaN in inputs, or overflows in a sigmoid, are intended
            for k, suffix in enumerate(self.arch.suffixes):
                if k % self.arch.directions == 0:
                    inputs, outputs = y, []
                own, options = self._layer(suffix, signature(call).parameters)
                start = [] if states is None else [part[k] for part in states]
                options |= zip((f"{name}0" for name in cell.state_names), start, strict=False)
                given, named = ((), own) if cell.name == "RNN" else ((own,), {})
                result = call(inputs, *given, **named, **options, lengths=lengths)
                outputs.append(result[0])
                ends.append(result[1] if isinstance(result[1], tuple) else (result[1],))
                y = np.concatenate(outputs, axis=-1)
        self._kept[key] = y, [np.array(part) for part in zip(*ends, strict=True)]
        return self._kept[key]

    def _layer(self, suffix: str, taken: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, Any]]:
        """Returns (parameters, options) of one layer and direction. taken: the names of permitted options."""
        norm, stated = self.arch.norm, self.arch.stated
        options: dict[str, Any] = {name: stated[name] for name in _OPTIONS if name in stated}
        options |= {"norm": None, "reverse": self.arch.reverse or suffix.endswith("_reverse")}
        own = {name.removesuffix(suffix): v for name, v in self.state.items() if name.endswith(suffix)}
        if self.converted.zoneout not in (0, (0, 0)):
            options["zoneout"] = self.converted.zoneout
        if norm is not None:
            options |= {name: value for name, value in vars(norm).items() if name in taken and name != "bias"}
            options["norm"] = self.arch.norm_kind
        if self.arch.batch_norm:
            known = int((own.pop("count") > 0).sum())
            running = {name: own.pop(name)[:known] for name in [*own] if name.startswith("running")}
            pairs = {name[13:]: (mean, running[name.replace("mean", "var")])
                     for name, mean in running.items() if "mean" in name}  # fmt: skip
            options["statistics"] = pairs.get("", pairs)
        return own, options


# --- differences --------------------------------------------------------------------------------------------


def compare(
    outputs: Outputs, network: Reference, eps: float, first: bool = False
) -> tuple[float, float] | None:
    """Returns None if the network reproduces the outputs, else (difference, limit) as `disagreement` does."""
    rng = np.random.default_rng(1)

    def parts(of: Reference) -> list[Array]:
        y, ends = of.forward(outputs.x, outputs.states, outputs.lengths)
        return [leaf.of(y, ends) for leaf, _ in outputs.parts]

    ours = parts(network)
    if first and not all(np.isfinite(a).all() for a in ours):
        raise Unchecked("the outputs are not finite")
    theirs = [a for _, a in outputs.parts]
    return disagreement(theirs, ours, lambda: parts(Reference(network.converted, eps, rng)), eps, first)


def disagreement(
    theirs: Sequence[Array], ours: Sequence[Array], disturbed: Callable[[], Sequence[Array]], eps: float,
    first: bool = False,
) -> tuple[float, float] | None:  # fmt: skip
    """Returns None if the arrays agree, else (difference, limit) where the difference exceeds its limit most.

    Arrays are compared by index of their first axis, which is time for outputs. So early steps have a small
    limit even if the network magnifies rounding errors at every step. A step is ignored if rounding alone
    could change its values by more than a quarter. eps: machine epsilon of their dtype. disturbed: computes
    `ours` again, with parameters perturbed by a random relative eps or -eps. Three trials give the limit,
    since weights that magnify errors from step to step magnify these changes too.

    first: raises RoundingHidesDifference if the arrays agree, but rounding alone could change them by more
    than a quarter of the largest number. In float64 it does not.
    """
    if any(a.shape != b.shape for a, b in zip(theirs, ours, strict=True)):
        return np.inf, 0.0
    rows = [*map(_rows, theirs, ours)]
    size, difference = (np.concatenate(each) for each in zip(*rows, strict=True))
    exact = eps < EXACT
    limit = EXACT * size + FLOOR if exact else MARGIN * eps * np.maximum(size, 1)
    hides, largest = first and not exact, size.max(initial=0)
    shows = not hides or (eps <= SINGLE and limit.max(initial=0) <= 0.25 * largest)
    if shows and (difference <= limit).all():
        return None
    for _ in range(3):
        changes = [_near(_rows(a, b)[1]) for a, b in zip(disturbed(), ours, strict=True)]
        limit = np.maximum(limit, MARGIN * np.concatenate(changes))
    over = (difference > limit) & (limit <= 0.25 * np.maximum(size, difference))
    if over.any():
        at = np.argmax(np.where(over, difference / limit, 0))
        return float(difference[at]), float(limit[at])
    most = float(difference.max(initial=0)), float(limit.max(initial=0))
    if hides and most[0] > most[1]:
        return most
    if hides and most[1] > 0.25 * largest:
        raise RoundingHidesDifference(
            f"rounding alone may change its outputs by {most[1]:.1g}, which would hide a difference"
        )
    return None


def _rows(theirs: Array, ours: Array) -> tuple[Array, Array]:
    """Returns two vectors, with an element for each index of axis 0: max |ours| and max |theirs - ours|.

    The difference is infinite where exactly one number is finite. It is 0 where |ours| exceeds 1e15, to
    ignore such numbers.
    """
    theirs, ours = (a.reshape(len(a), -1) if a.size else np.zeros((0, 1)) for a in (theirs, ours))
    finite = np.isfinite(ours)
    size = np.abs(np.where(finite, ours, 0))
    with np.errstate(all="ignore"):
        difference = np.where(finite, np.abs(theirs - ours), np.where(np.isfinite(theirs), np.inf, 0))
    difference[np.isnan(difference)] = np.inf
    difference[size > 1e15] = 0
    return size.max(axis=1), difference.max(axis=1)


def _near(of: Array) -> Array:
    """Returns a moving maximum over 5 steps, since rounding errors vary much from step to step."""
    wide = np.pad(np.where(np.isfinite(of), of, 0), 2)
    result: Array = np.max([wide[k : k + len(of)] for k in range(5)], axis=0)
    return result
