"""Searches for a cell of lnrnn with the equation of a custom cell, by running the custom cell.

The names of parameters do not matter. A float64 copy of the module gets random parameters, so that no gain is
1. Gradients show which parameters multiply x and h, and the gates on which a gain has an effect (blocks.py).
Gradients do not show the placement of the norms, the order of the gates and the use of the biases. All
possibilities for these three (roles.py) are compared with the module's outputs (equations.py). Constants that
forward adds to a gate, and eps, are fitted by least squares. The equation must agree with the module up to
rounding in float64, for other random parameters and for the module's own.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import permutations, product
from typing import Any

import numpy as np

from ...rnn.cells import CELLS, NONLINEARITIES, Cell
from ...rnn.specs import LayerNormSpec
from ..weights import Array, Weights, array
from .blocks import Parts, draw, find_matrices, find_parts, layouts, pieces_of
from .equations import Equation, Sample, distance, fitted, sample
from .roles import placements, ways, without_role
from .runs import BATCH, SECONDS, Limit, OutOfTime, Runs, Sizes, Unsuitable, Way, in_doubles, suitable_runs

# An equation is the module's if the outputs differ by at most this, in float64. Rounding causes 1e-12; a
# module that divides by std + eps differs by 1e-7.
EXACT = 1e-8
NEAR = 1e-2  # the largest difference if only eps is wrong, on random parameters
DISAGREES = "it agrees with none of lnrnn's cells"
GIVEN = "with this norm=; without norm= all norms are tried"
OUTSIDE = "lnrnn may lack this equation: it has no peepholes, clipped states, std + eps or RMS norm"
FITS = 40  # the number of nearest equations whose constants and eps are fitted
MOST_KINDS = 6  # limit on the number of shapes that may be a matrix or vectors; usual cells have one or two
STEPS = 4


_STATE = re.compile(r"h|s(_|\d|$)|.*(state|prev|last|memory|carry)", re.IGNORECASE)  # a state's argument


@dataclass(frozen=True)
class Match:
    """The result of the search: the equation of a one-layer module, its parameters, and how to call it."""

    parts: Parts
    equation: Equation
    way: Way

    def weights(self, module: Any) -> Weights:
        """Returns the parameters of a module with the names and shapes of `parts`, under lnrnn's names."""
        values = {name: array(name, p).astype(np.float64) for name, p in module.named_parameters()}
        result = self.equation.weights(self.parts, values)
        return replace(result, parameters={k: v.astype(np.float32) for k, v in result.parameters.items()})


@dataclass
class Criteria:
    """The arguments of the user, and the nearest equation so far with its distance from the outputs.

    norm: the required norm, or None for any. some: whether the cell must have a norm. eps: values to try.
    """

    norm: LayerNormSpec | None = None
    some: bool = False
    eps: tuple[float, ...] = ()
    nonlinearity: str | None = None
    nearest: Equation | None = None
    distance: float = np.inf
    limit: Limit = field(default_factory=lambda: Limit(SECONDS))

    def fits(self, cell: Cell, spec: LayerNormSpec | None) -> bool:
        if self.norm is not None:
            try:
                own = self.norm.resolved(cell)
            except ValueError:
                return False
            return spec is not None and replace(own, eps=spec.eps, inner_bias=spec.inner_bias) == spec
        return spec is not None or not self.some


def sizes(module: Any) -> list[Sizes]:
    """Returns the possible D, H and sets of parameters that are matrices, from the shapes of all parameters.

    The matrices of a cell with G gates have G * H * (D + H) numbers in all. A parameter with a short axis may
    be a matrix, or several vectors of one length.
    """
    parameters = [(name, p) for name, p in module.named_parameters() if p.numel() > 1]
    shapes = {name: tuple(n for n in p.shape if n > 1) for name, p in parameters}
    dims = {n for shape in shapes.values() for n in shape}
    flat = {name: s for name, s in shapes.items() if len(s) == 1 and module.get_parameter(name).ndim > 1}
    sure = {name for name, s in shapes.items() if len(s) > 1 and min(s[-2:]) > 4}
    rest = {name: s for name, s in shapes.items() if name not in sure and len(s) > 1} | flat
    kinds = sorted(set(rest.values()))
    if len(kinds) > MOST_KINDS:
        return []
    result = []
    for H in sorted({d // g for d in dims for g in (4, 3, 1) if d % g == 0 and d > g}, reverse=True):
        for D in sorted({n for d in dims for n in (d, d - H) if n > 0} | {1}):
            for some in product((False, True), repeat=len(kinds)):
                chosen = {kind for kind, take in zip(kinds, some, strict=True) if take}
                names = frozenset(sure | {name for name, s in rest.items() if s in chosen})
                total = sum(int(np.prod(shapes[name])) for name in names)
                if any(total == G * H * (D + H) for G in (4, 3, 1)):
                    result.append((D, H, names))
    return result


def equations(cell: Cell, parts: Parts, sample: Sample, wanted: Criteria) -> Iterator[tuple[float, Equation]]:
    """Yields (distance from the module's outputs in the first two steps, equation) for all possibilities."""
    orders = list(permutations(range(cell.gates)))
    for spec in placements(cell, parts):
        if not wanted.fits(cell, spec):
            continue
        for roles in ways(cell, parts, spec):
            wanted.limit.look()
            if spec is not None:
                inner = any(name.startswith("inner") for name in roles)
                spec = replace(spec, eps=wanted.eps[0], inner_bias=inner)
            equation = Equation(cell, spec, orders[0], roles)
            if cell.name == "LSTM":
                near = equation.lstm_distances(sample, 2, np.array(orders))
                yield from ((float(d), replace(equation, order=o)) for d, o in zip(near, orders, strict=True))
                continue
            kinds = (
                [f for f in NONLINEARITIES if wanted.nonlinearity in (None, f)] if cell.nonlinear else [None]
            )
            for order, flipped, f in product(orders, (False, True)[: 1 + (cell.name == "GRU")], kinds):
                wanted.limit.look()
                e = replace(equation, order=order, flipped=flipped, nonlinearity=f)
                yield distance(e, [sample], 2), e


def structures(runs: Runs, rng: np.random.Generator) -> Iterator[Parts]:
    """Yields the parts of parameters that belong to each gate, for each possible layout of the gates."""
    matrices = find_matrices(runs, rng)
    H = runs.H
    gates = sum(m.rows for m in matrices if m.x is not None) // H
    if gates not in (1, 3, 4) or gates != sum(m.rows for m in matrices if m.h is not None) // H:
        raise Unsuitable("its matrices are not those of one RNN, LSTM or GRU")
    known = [m.transposed for m in matrices if m.transposed is not None]
    likely = any(known)
    for interleaved in layouts(runs, matrices, rng):
        for square in (likely, not likely) if len(known) < len(matrices) else (likely,):
            yield find_parts(runs, *pieces_of(runs, matrices, square, interleaved), interleaved, rng)


@dataclass(order=True)
class Candidate:
    """An equation that may be the module's. near: its distance from the first outputs of the first sample."""

    near: float
    number: int
    equation: Equation = field(compare=False)
    samples: list[Sample] = field(compare=False)
    parts: Parts = field(compare=False)
    way: Way = field(compare=False)

    def match(self, wanted: Criteria) -> Match | None:
        equation = _exact(self.equation, self.samples, wanted)
        return None if equation is None else Match(self.parts, equation, self.way)


def candidates(runs: Runs, own: dict[str, Array], wanted: Criteria) -> Iterator[Candidate]:
    """Yields all equations for a module that `runs` calls. Raises Unsuitable with a reason if none is."""
    rng = np.random.default_rng(0)
    some, left = False, dict[str, None]()
    drawn = draw(runs, rng)
    runs.set(drawn)
    xs = rng.standard_normal((3, STEPS, BATCH, runs.D))
    for parts in structures(runs, rng):
        values = drawn, draw(runs, rng, 0.03), own
        samples = [sample(parts, v, x, _outputs(runs, v, x)) for v, x in zip(values, xs, strict=True)]
        runs.set(drawn)
        cell = next(cell for cell in CELLS.values() if cell.gates == len(parts.x))
        for number, (near, equation) in enumerate(equations(cell, parts, samples[0], wanted)):
            some = True
            yield Candidate(near, number, equation, samples, parts, runs.way)
        specs = [spec for spec in placements(cell, parts) if wanted.fits(cell, spec)]
        left |= dict.fromkeys(without_role(cell, parts, specs))
    if left and not some:
        norm = "norms at the places of its gains" if wanted.norm is None else "this norm="
        raise Unsuitable(f"no cell of lnrnn with {norm} has a place for {', '.join(left)}")


def _outputs(runs: Runs, values: dict[str, Array], x: Array) -> Array:
    runs.set(values)
    return runs(x)


def _exact(equation: Equation, samples: list[Sample], wanted: Criteria) -> Equation | None:
    """Returns the equation with fitted constants and eps, or None if it is not that of the module."""
    match, d = fitted(equation, samples[:1], EXACT / 1000, wanted.limit)
    if d < wanted.distance:
        wanted.distance, wanted.nearest = d, match
    if d > NEAR:
        return None
    # In the second sample the products are small, so eps has more effect.
    match, d = fitted(match, samples[:2], EXACT / 1000, wanted.limit)
    if d > EXACT:
        return None
    # Prefer round numbers if they agree too.
    offsets = tuple(round(v, 6) + 0.0 for v in match.offsets)
    rounded = replace(match, offsets=offsets if any(offsets) else ())
    every = [rounded]
    if match.norm is not None:
        eps = (*wanted.eps, float(f"{match.norm.eps:.2g}"))
        every = [replace(rounded, norm=replace(match.norm, eps=e)) for e in eps]
    return next((e for e in (*every, match) if distance(e, samples) <= EXACT), None)


def mistaken(module: Any, runs: Runs, cell: Cell) -> bool:
    """Returns whether `runs` exchanges x and h.

    An RNN's cell with as many inputs as units has the same outputs if x and h are exchanged. Then the names
    of forward's arguments decide. Raises Unsuitable if they do not.
    """
    if runs.D != runs.H or cell.name != "RNN" or runs.way.batch_first is not None:
        return False
    names = [*inspect.signature(module.forward).parameters][:2]
    first, second = (bool(_STATE.match(name)) for name in (*names, "", "")[:2])
    if first == second:
        raise Unsuitable(
            f"it has as many inputs as units, and forward({', '.join(names)}) does not show which argument "
            "is the state; name it h"
        )
    return first == runs.way.usual


def search(module: Any, wanted: Criteria) -> Match:
    """Searches for the equation of a one-layer module. Raises Unsuitable with the reason if that fails."""
    known = sizes(module)
    if not known:
        raise Unsuitable("its matrices have the shapes of no one RNN, LSTM or GRU")
    double = in_doubles(module)
    own = {name: p.detach().numpy().copy() for name, p in double.named_parameters()}
    reasons, every = ["it runs in none of the usual ways"], []
    try:
        for runs in suitable_runs(double, known, wanted.limit):
            try:
                for candidate in candidates(runs, own, wanted):
                    every.append(candidate)  # kept, so that an OutOfTime error can name it
                    if candidate.near <= NEAR and (match := candidate.match(wanted)):
                        every.pop()
                        if not mistaken(module, runs, match.equation.cell):
                            return match
                        break
                reasons.append(DISAGREES)
            except OutOfTime:
                raise
            except Unsuitable as reason:
                reasons.append(str(reason))
            finally:
                runs.set(own)
        for candidate in sorted(every)[:FITS]:
            if match := candidate.match(wanted):
                return match
    finally:
        if wanted.nearest is None and every:  # no equation was fitted before the time limit
            nearest = min(every)
            wanted.nearest = nearest.equation
            wanted.distance = distance(nearest.equation, nearest.samples[:1])
    if reasons[-1] == DISAGREES and wanted.distance > NEAR:
        reasons.append(f"{DISAGREES}; {OUTSIDE}" if wanted.norm is None else f"{DISAGREES} {GIVEN}")
    raise Unsuitable(reasons[-1])
