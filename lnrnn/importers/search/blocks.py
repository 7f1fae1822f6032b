"""Divides a module's parameters by gate and use, from the gradients of the module's outputs.

A gradient of exactly zero shows that a number has no effect on the outputs. Equal gradients show that two
vectors are added. A piece is the part of a parameter that belongs to one gate: H rows of a matrix, or a
vector of H numbers. Gates are numbered in the order of the matrices for x. Which number is the forget gate,
for example, is decided in equations.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..weights import Array
from .runs import BATCH, Runs, Unsuitable

STEPS, MANY = 2, 12  # with MANY sequences, each relu is active in at least one


@dataclass(frozen=True)
class Piece:
    """The part of a parameter that belongs to one gate.

    name: the parameter. index: the number of the matrix, if the parameter has several. rows, columns: the
    rows and columns of the piece; columns is None for a vector. transposed: whether rows and columns of the
    parameter are exchanged. plus: the constant that forward adds to a gain.
    """

    name: str
    index: int
    rows: range
    columns: range | None = None
    transposed: bool = False
    plus: float = 0.0

    def of(self, values: Mapping[str, Array]) -> Array:
        """Returns the numbers of the piece, (H, columns) or (H,), in parameters by name."""
        if self.columns is None:
            result = values[self.name].reshape(-1)[_slice(self.rows)]
            return result + self.plus if self.plus else result
        matrix = _matrices(values[self.name])[self.index]
        block: Array = (matrix.T if self.transposed else matrix)[_slice(self.rows), _slice(self.columns)]
        return block


def _slice(r: range) -> slice:
    return slice(r.start, r.stop, r.step)


def _matrices(p: Array) -> Array:
    """Returns a parameter as matrices (n, rows, columns)."""
    if p.ndim > 2:
        p = p.reshape([n for n in p.shape if n > 1] or [1])
    return p[None] if p.ndim == 2 else p.reshape(-1, *p.shape[-2:])


@dataclass(frozen=True)
class Vector:
    """A vector parameter, or a row of a parameter, as pieces for one or more gates.

    x, h: the gates whose matrices for x, or for h, have no effect while the vector is zero. vectors: the
    pieces of other vectors that have no effect then.
    """

    pieces: tuple[Piece, ...]
    x: frozenset[int]
    h: frozenset[int]
    vectors: frozenset[Piece]


@dataclass(frozen=True)
class Matrix:
    """A matrix in the parameter `name`, with its columns for x and for h, each None if it has none."""

    name: str
    index: int
    rows: int
    x: range | None
    h: range | None
    transposed: bool | None  # None: unknown, because it is square

    def pieces(self, columns: range, H: int, transposed: bool, interleaved: bool) -> list[Piece]:
        return [Piece(self.name, self.index, rows, columns, bool(transposed))
                for rows in gate_rows(self.rows // H, H, interleaved)]  # fmt: skip


def gate_rows(n: int, H: int, interleaved: bool) -> list[range]:
    """Returns the rows of each of n gates: H consecutive rows, or if interleaved every n-th row."""
    return [range(k, n * H, n) if interleaved and n > 1 else range(k * H, (k + 1) * H) for k in range(n)]


def largest(*arrays: Array) -> float:
    return max((float(np.abs(a).max()) for a in arrays if a.size), default=0.0)


def draw(runs: Runs, rng: np.random.Generator, scale: float = 1.5) -> dict[str, Array]:
    """Draws random parameters. Products with matrices are of the order of `scale`. Vectors have both signs
    and no small numbers. Parameters of one number keep their value."""
    result = {}
    for name, p in runs.parameters.items():
        shape = tuple(p.shape)
        if p.numel() <= 1 or not p.is_floating_point():
            result[name] = p.detach().numpy().copy()
        elif name not in runs.matrices:
            result[name] = rng.uniform(0.4, 1.2, shape) * rng.choice((-1.0, 1.0), shape)
        else:
            fan = min(max(shape[-2:]), runs.D + runs.H)
            result[name] = rng.standard_normal(shape) * scale / np.sqrt(fan)
    return result


# --- matrices -----------------------------------------------------------------------------------------------


def find_matrices(runs: Runs, rng: np.random.Generator) -> list[Matrix]:
    """Returns the matrices, each with its columns for x and for h, and whether it is transposed.

    The columns for x follow from gradients, which are 0 for the columns of features that are 0.
    """
    D, H = runs.D, runs.H
    x = rng.standard_normal((STEPS, MANY, D))
    _, usual = runs.gradients(x)
    x[..., 1:] = 0
    _, one = runs.gradients(x)
    _, first = runs.gradients(x[:1])  # h is 0, so its columns have no effect
    result = []
    for name, p in runs.parameters.items():
        if name not in runs.matrices or not usual[name].any():
            continue
        every = zip(*(_matrices(g[name]) for g in (usual, one, first)), strict=True)
        for index, grads in enumerate(every):
            ways = {way: of for way in (False, True) if (of := _columns(grads, way, D, H)) is not None}
            ways = {way: of for way, of in ways.items() if of[0] is not None} or ways
            if not ways:
                raise Unsuitable(f"{name} {tuple(p.shape)} fits no cell of {D} inputs and {H} units")
            way, (of_x, of_h, rows) = next(iter(ways.items()))
            result.append(Matrix(name, index, rows, of_x, of_h, way if len(ways) == 1 else None))
    return result


def _columns(
    grads: tuple[Array, ...], transposed: bool, D: int, H: int
) -> tuple[range | None, range | None, int] | None:
    """Returns the columns for x, the columns for h, and the number of rows; None if there are no columns."""
    usual, one, first = (g.T if transposed else g for g in grads)
    rows, columns = usual.shape
    if rows % H or columns not in (D, H, D + H):
        return None
    tiny = 1e-13 * largest(usual)
    alive, still, at_once = ((np.abs(g) > tiny).any(0) for g in (usual, one, first))
    for begin in sorted({0, columns - D}) if columns != H or D == H else ():
        of_x = range(begin, begin + D)
        if D == 1:  # at the first step h is 0, so only the one column for x has a gradient
            fits = columns == 1 or (at_once[begin] and not np.delete(at_once, begin).any())
        else:
            fits = alive[list(of_x)].all() and not still[list(of_x)[1:]].any()
        if fits:
            return of_x, None if columns == D else range(D, D + H) if begin == 0 else range(H), rows
    return (None, range(H), rows) if columns == H else None


def layouts(runs: Runs, matrices: list[Matrix], rng: np.random.Generator) -> tuple[bool, ...]:
    """Returns the possible values of `interleaved`: whether row k belongs to gate k % G, not to gate k // H.

    At the first step the state is 0, so in an LSTM and most GRUs one gate has gradients of 0. They show its
    rows.
    """
    H, wide = runs.H, [m for m in matrices if m.rows > runs.H]
    if not wide:
        return (False,)
    _, grads = runs.gradients(rng.standard_normal((1, MANY, runs.D)))
    dead = []
    for m in wide:
        grad = _matrices(grads[m.name])[m.index]
        dead.append(~(grad.T if m.transposed else grad).any(1))
    sizes = {(m.rows,) for m in wide}
    dead += [g == 0 for name, g in grads.items() if name not in runs.matrices and g.shape in sizes]
    for zeros in dead:
        if zeros.any() and not zeros.all():
            if zeros.reshape(-1, H).all(1).any():
                return (False,)
            if zeros.reshape(H, -1).all(0).any():
                return (True,)
    return False, True


# --- vectors ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """The pieces of all gates: x[k] and h[k] are those of gate k's matrices. vectors: all vectors.

    at[k]: the pieces of vectors that forward adds to the product of x[k] and x. first: the gates without an
    effect at the first step, where the state is 0.
    """

    x: tuple[Piece, ...]
    h: tuple[Piece, ...]
    vectors: tuple[Vector, ...]
    at: tuple[frozenset[Piece], ...]
    first: frozenset[int]


def pieces_of(
    runs: Runs, matrices: list[Matrix], square: bool, interleaved: bool
) -> tuple[list[Piece], list[Piece]]:
    """Returns the pieces of matrices for x, and for h. square: whether square matrices are transposed."""
    x: list[Piece] = []
    h: list[Piece] = []
    for m in matrices:
        way = square if m.transposed is None else m.transposed
        if m.x is not None:
            x += m.pieces(m.x, runs.H, way, interleaved)
        if m.h is not None:
            h += m.pieces(m.h, runs.H, way, interleaved)
    return x, h


def find_parts(
    runs: Runs, x_pieces: list[Piece], h_pieces: list[Piece], interleaved: bool, rng: np.random.Generator
) -> Parts:
    D, H, G = runs.D, runs.H, len(x_pieces)
    x = rng.standard_normal((STEPS, MANY, D))
    values = runs.values()
    _, usual = runs.gradients(x)
    each: list[tuple[Piece, ...]] = []
    for name, p in runs.parameters.items():
        if p.numel() <= 1 or name in runs.matrices or not usual[name].any():
            continue
        width = p.numel() if p.numel() <= G * H else p.shape[-1]
        if width % H:
            raise Unsuitable(f"{name} {tuple(p.shape)} fits no cell of {D} inputs and {H} units")
        for start in range(0, p.numel(), width):
            rows = gate_rows(width // H, H, interleaved)
            each.append(tuple(Piece(name, 0, range(r.start + start, r.stop + start, r.step)) for r in rows))
    every = [piece for pieces in each for piece in pieces]

    def without_effect(of: Sequence[Piece], grads: Mapping[str, Array]) -> frozenset[int]:
        return frozenset(k for k, p in enumerate(of) if not p.of(grads).any())

    vectors = []
    for pieces in each:
        name = pieces[0].name
        for plus in (0.0, 1.0):  # a gain may be the parameter, or 1 plus the parameter
            without = values[name].copy()
            for p in pieces:
                p.of({name: without})[...] = -plus
            runs.set({name: without})
            _, grads = runs.gradients(x)
            runs.set({name: values[name]})
            others = [p for p in every if p not in pieces]
            lost = frozenset(others[k] for k in without_effect(others, grads))
            result = without_effect(x_pieces, grads), without_effect(h_pieces, grads), lost
            if any(result):
                break
        plus *= any(result)
        vectors.append(Vector(tuple(replace(p, plus=plus) for p in pieces), *result))
    # A vector that is added to W x has the gradient of W x, which the gradient of W at the first step gives.
    _, grads = runs.gradients(x[:1, :BATCH], last=True)
    by_gate = [p.of(grads) @ x[0, 0] / (x[0, 0] @ x[0, 0]) for p in x_pieces]
    size = largest(*by_gate)
    first = frozenset(k for k, g in enumerate(by_gate) if largest(g) <= 1e-12 * size)
    at = tuple(
        frozenset(p for p in every if largest(p.of(grads) - g) <= 1e-9 * size and largest(g) > 1e-12 * size)
        for g in by_gate
    )
    return Parts(tuple(x_pieces), aligned(runs, x_pieces, h_pieces, rng), tuple(vectors), at, first)


def aligned(
    runs: Runs, x_pieces: list[Piece], h_pieces: list[Piece], rng: np.random.Generator
) -> tuple[Piece, ...]:
    """Returns the pieces of the matrices for h, in the order of the gates in the matrices for x.

    If a gate adds W x and U h, both products have the same gradient, so equal gradients show which W and U
    belong together. Otherwise the pieces stay in the order of the parameters.
    """
    if {p.name for p in x_pieces} == {p.name for p in h_pieces} or len({p.name for p in h_pieces}) == 1:
        return tuple(h_pieces)
    x = rng.standard_normal((2, BATCH, runs.D))  # two orthogonal steps, to separate their gradients
    if runs.D > 1:
        x[1] -= np.sum(x[1] * x[0], -1, keepdims=True) / np.sum(x[0] ** 2, -1, keepdims=True) * x[0]
    else:
        x[0] = 0
    y, grads = runs.gradients(x, last=True)
    seen, h = x[1, 0], y[0, 0]
    if not h.any():
        return tuple(h_pieces)
    for_x = [p.of(grads) @ seen / (seen @ seen) for p in x_pieces]
    for_h = [p.of(grads) @ h / (h @ h) for p in h_pieces]
    size, free = largest(*for_x), list(range(len(h_pieces)))
    result = []
    same = [[k for k in free if largest(for_h[k] - g) <= 1e-9 * size] for g in for_x]
    taken = {ks[0] for ks in same if len(ks) == 1}
    left = [k for k in free if k not in taken]
    for ks in same:
        result.append(ks[0] if len(ks) == 1 else left.pop(0) if left else -1)
    return tuple(h_pieces[k] for k in result) if sorted(result) == free else tuple(h_pieces)
