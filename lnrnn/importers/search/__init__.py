"""Somebody's own cell: which of lnrnn's equations it computes, and with which of its parameters, found by
running it. Names mean nothing here.

A float64 copy of the module gets parameters at random, so that no gain of 1 hides anything. Gradients say
which parameters x and h are multiplied by and what gains reach (blocks.py). What that leaves open, the
placement of the norms, the order of the gates and the roles of the biases, is tried (roles.py), each way
against the module's outputs (equations.py). Constants that the forward adds to a gate, and eps, are fitted.
The way that agrees with the module to float64's rounding, on other parameters and its own too, is what the
module is.
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
from .equations import Equation, Trial, distance, fitted, trial
from .roles import placements, ways, without_role
from .runs import BATCH, SECONDS, Limit, OutOfTime, Runs, Sizes, Unsuitable, Way, in_doubles, suitable_runs

# In float64 a right equation is within 1e-12 of the module; std + eps for sqrt(var + eps) is 1e-7 away.
EXACT = 1e-8
NEAR = 1e-2  # an equation that is right but for eps, on parameters drawn at random
DISAGREES = "it agrees with none of lnrnn's cells"
GIVEN = "with this norm=; without norm= all of them are tried"
OUTSIDE = "lnrnn may not have this equation: peepholes, clipped states, std + eps and RMS norm are not in it"
FITS = 40  # of the nearest equations, how many get their offsets and eps fitted
MOST_KINDS = 6  # shapes that may or may not be matrices: each doubles the choices; a cell has one or two
STEPS = 4


_STATE = re.compile(r"h|s(_|\d|$)|.*(state|prev|last|memory|carry)", re.IGNORECASE)  # names of states


@dataclass(frozen=True)
class Found:
    """What a module with one layer of cells is, and how it is called."""

    parts: Parts
    equation: Equation
    way: Way

    def weights(self, module: Any) -> Weights:
        """Its parameters, or those of one like it, as lnrnn's."""
        values = {name: array(name, p).astype(np.float64) for name, p in module.named_parameters()}
        found = self.equation.weights(self.parts, values)
        return replace(found, parameters={k: v.astype(np.float32) for k, v in found.parameters.items()})


@dataclass
class Wanted:
    """What the caller says. norm: None for any; some: whether there must be one. eps: those to try first.
    nearest, distance: the equation that came nearest so far, and how near."""

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
    """What D and H may be, and which parameters are matrices, by the shapes: the matrices of a cell of G
    gates have G * H * (D + H) numbers. Those with a short axis may be vectors, side by side."""
    parameters = [(name, p) for name, p in module.named_parameters() if p.numel() > 1]
    shapes = {name: tuple(n for n in p.shape if n > 1) for name, p in parameters}
    dims = {n for shape in shapes.values() for n in shape}
    flat = {name: s for name, s in shapes.items() if len(s) == 1 and module.get_parameter(name).ndim > 1}
    sure = {name for name, s in shapes.items() if len(s) > 1 and min(s[-2:]) > 4}
    rest = {name: s for name, s in shapes.items() if name not in sure and len(s) > 1} | flat
    kinds = sorted(set(rest.values()))
    if len(kinds) > MOST_KINDS:
        return []
    found = []
    for H in sorted({d // g for d in dims for g in (4, 3, 1) if d % g == 0 and d > g}, reverse=True):
        for D in sorted({n for d in dims for n in (d, d - H) if n > 0} | {1}):
            for some in product((False, True), repeat=len(kinds)):
                chosen = {kind for kind, take in zip(kinds, some, strict=True) if take}
                names = frozenset(sure | {name for name, s in rest.items() if s in chosen})
                total = sum(int(np.prod(shapes[name])) for name in names)
                if any(total == G * H * (D + H) for G in (4, 3, 1)):
                    found.append((D, H, names))
    return found


def equations(cell: Cell, parts: Parts, trial: Trial, wanted: Wanted) -> Iterator[tuple[float, Equation]]:
    """All that the module may be, and how far each is from its first two steps."""
    orders = list(permutations(range(cell.gates)))
    for spec in placements(cell, parts):
        if not wanted.fits(cell, spec):
            continue
        for roles in ways(cell, parts, spec):
            wanted.limit.look()
            if spec is not None:
                inner = any(name.startswith("inner") for name in roles)
                spec = replace(spec, eps=wanted.eps[0], inner_bias=inner)
            made = Equation(cell, spec, orders[0], roles)
            if cell.name == "LSTM":
                near = made.lstm_distances(trial, 2, np.array(orders))
                yield from ((float(d), replace(made, order=o)) for d, o in zip(near, orders, strict=True))
                continue
            kinds = (
                [f for f in NONLINEARITIES if wanted.nonlinearity in (None, f)] if cell.nonlinear else [None]
            )
            for order, flipped, f in product(orders, (False, True)[: 1 + (cell.name == "GRU")], kinds):
                wanted.limit.look()
                e = replace(made, order=order, flipped=flipped, nonlinearity=f)
                yield distance(e, [trial], 2), e


def structures(runs: Runs, rng: np.random.Generator) -> Iterator[Parts]:
    """The pieces in each layout that there may be."""
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
    """near: how far from the first steps of the first trial."""

    near: float
    number: int
    equation: Equation = field(compare=False)
    trials: list[Trial] = field(compare=False)
    parts: Parts = field(compare=False)
    way: Way = field(compare=False)

    def found(self, wanted: Wanted) -> Found | None:
        equation = _exact(self.equation, self.trials, wanted)
        return None if equation is None else Found(self.parts, equation, self.way)


def candidates(runs: Runs, own: dict[str, Array], wanted: Wanted) -> Iterator[Candidate]:
    """What the module may be, run in this way. Raises Unsuitable."""
    rng = np.random.default_rng(0)
    some, left = False, dict[str, None]()
    drawn = draw(runs, rng)
    runs.set(drawn)
    xs = rng.standard_normal((3, STEPS, BATCH, runs.D))
    for parts in structures(runs, rng):
        values = drawn, draw(runs, rng, 0.03), own
        trials = [trial(parts, v, x, _outputs(runs, v, x)) for v, x in zip(values, xs, strict=True)]
        runs.set(drawn)
        cell = next(cell for cell in CELLS.values() if cell.gates == len(parts.x))
        for number, (near, equation) in enumerate(equations(cell, parts, trials[0], wanted)):
            some = True
            yield Candidate(near, number, equation, trials, parts, runs.way)
        specs = [spec for spec in placements(cell, parts) if wanted.fits(cell, spec)]
        left |= dict.fromkeys(without_role(cell, parts, specs))
    if left and not some:
        norm = "norms at the places of its gains" if wanted.norm is None else "this norm="
        raise Unsuitable(f"no cell of lnrnn with {norm} has a place for {', '.join(left)}")


def _outputs(runs: Runs, values: dict[str, Array], x: Array) -> Array:
    runs.set(values)
    return runs(x)


def _exact(equation: Equation, trials: list[Trial], wanted: Wanted) -> Equation | None:
    """The equation with offsets and eps, if it is the module's."""
    found, d = fitted(equation, trials[:1], EXACT / 1000, wanted.limit)
    if d < wanted.distance:
        wanted.distance, wanted.nearest = d, found
    if d > NEAR:
        return None
    # Where the products are small eps counts for more.
    found, d = fitted(found, trials[:2], EXACT / 1000, wanted.limit)
    if d > EXACT:
        return None
    # The same with round numbers, if it is.
    offsets = tuple(round(v, 6) + 0.0 for v in found.offsets)
    rounded = replace(found, offsets=offsets if any(offsets) else ())
    every = [rounded]
    if found.norm is not None:
        eps = (*wanted.eps, float(f"{found.norm.eps:.2g}"))
        every = [replace(rounded, norm=replace(found.norm, eps=e)) for e in eps]
    return next((e for e in (*every, found) if distance(e, trials) <= EXACT), None)


def mistaken(module: Any, runs: Runs, cell: Cell) -> bool:
    """Whether x and h may be taken for each other: an RNN's cell with as many inputs as units computes the
    same with either. Then the names of its forward's arguments decide; Unsuitable if they do not."""
    if runs.D != runs.H or cell.name != "RNN" or runs.way.batch_first is not None:
        return False
    names = [*inspect.signature(module.forward).parameters][:2]
    first, second = (bool(_STATE.match(name)) for name in (*names, "", "")[:2])
    if first == second:
        raise Unsuitable(
            f"it has as many inputs as units, and forward({', '.join(names)}) does not say which argument is "
            "the state: call it h"
        )
    return first == runs.way.usual


def search(module: Any, wanted: Wanted) -> Found:
    """What a module of one layer of cells is, or Unsuitable, which says why it could not be found."""
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
                    every.append(candidate)  # the nearest is told, also if the time ends here
                    if candidate.near <= NEAR and (found := candidate.found(wanted)):
                        every.pop()
                        if not mistaken(module, runs, found.equation.cell):
                            return found
                        break
                reasons.append(DISAGREES)
            except OutOfTime:
                raise
            except Unsuitable as reason:
                reasons.append(str(reason))
            finally:
                runs.set(own)
        for candidate in sorted(every)[:FITS]:
            if found := candidate.found(wanted):
                return found
    finally:
        if wanted.nearest is None and every:  # the time was over before any was fitted
            nearest = min(every)
            wanted.nearest, wanted.distance = nearest.equation, distance(nearest.equation, nearest.trials[:1])
    if reasons[-1] == DISAGREES and wanted.distance > NEAR:
        reasons.append(f"{DISAGREES}; {OUTSIDE}" if wanted.norm is None else f"{DISAGREES} {GIVEN}")
    raise Unsuitable(reasons[-1])
