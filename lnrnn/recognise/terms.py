"""Writes values of a graph as sums of products, so that equal equations of different nodes become equal.

A Sum maps products of atoms to constant factors. An atom is a value from outside, a product with a constant
matrix, a norm, or a function. Sums are multiplied out, and a part of a value (Split, Slice) becomes parts of
its atoms: rows of matrices, and parts of vectors. patterns.py is the table that sums are compared with.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np

from .graph import (
    ACTIVATIONS,
    MOST_DEPTH,
    attribute,
    constant,
    constant_input,
    first_and_next,
    front_of,
    is_last_axis,
    moved_axes,
    outside_of_loops,
    passes_on,
    producer,
    rank,
)
from .interface import DOMAINS, Array, Node, Value

NORMS = "LayerNormalization", "RMSNormalization"
MOST_NESTED = 16  # the largest depth of nested functions and norms; cells have 4
MOST_TERMS, MOST_FACTORS = 16, 4  # larger products of sums are not expanded
MOST_NUMBERS = 2**16  # elements of a constant in a Sum; matrices of products are not limited


@dataclass(frozen=True)
class Matrix:
    """Some rows and columns of a constant matrix.

    transposed: the constant is (columns, rows).

    key: equal for matrices with equal numbers; `Terms.product` sets it. sequence: the value that the matrix
    multiplies for all steps at once, if the product stands for one step of the result. Else None.
    """

    value: Value
    transposed: bool
    rows: range
    columns: range
    key: tuple[Any, ...] = ()
    sequence: Value | None = None

    def array(self) -> Array:
        whole = constant(outside_of_loops(self.value))
        assert whole is not None
        whole = whole.T if self.transposed else whole
        return whole[_slice(self.rows), _slice(self.columns)]


@dataclass(frozen=True)
class Atom:
    """kind: "value", "product", "norm", "one", or a function of patterns.FUNCTIONS. Atoms with equal keys are
    equal. "one" is the number 1 as a factor of a bias that a Gemm or LayerNormalization of `value` adds.

    width: the size of the last axis, None if unknown. value: the value itself, or the argument. of: the
    argument of a norm or function as a sum. start: where the part of a value or norm begins. nested: the
    number of functions and norms inside of each other. eps, centred: of a norm; RMS norm is not centred.
    """

    kind: str
    key: int
    width: int | None
    value: Value | None = field(default=None, compare=False, repr=False)
    of: Sum | None = field(default=None, compare=False)
    matrix: Matrix | None = field(default=None, compare=False, repr=False)
    start: int = field(default=0, compare=False)
    nested: int = field(default=0, compare=False)
    eps: float = field(default=0.0, compare=False)
    centred: bool = field(default=True, compare=False)
    pair: tuple[Atom | None, Atom] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Sum:
    """A sum of products. terms: the factor of each product of atoms; the constant term has the key ()."""

    terms: Mapping[tuple[Atom, ...], Array]

    @cached_property
    def width(self) -> int | None:
        sizes = [atom.width for product in self.terms for atom in product]
        sizes += [c.shape[-1] for c in self.terms.values() if c.ndim and c.shape[-1] > 1]
        known = [n for n in sizes if n is not None]
        return None if None in sizes and not known else max(known, default=1)

    @cached_property
    def key(self) -> Any:
        return frozenset((product, c.shape, c.tobytes()) for product, c in self.terms.items())

    @property
    def atom(self) -> Atom | None:
        """The only atom, if the sum is this atom times 1, else None."""
        if len(self.terms) != 1:
            return None
        ((product, factor),) = self.terms.items()
        return product[0] if len(product) == 1 and factor.size == 1 and factor.item() == 1 else None


def _slice(part: range) -> slice:
    return slice(part.start, part.stop, part.step)


def single(atom: Atom) -> Sum:
    return Sum({(atom,): np.ones(())})


class Opaque(Exception):
    """Raised for a value that is no sum of products, or has too large a sum. It then stays one atom."""


def is_one(factor: Array) -> bool:
    """Returns whether a factor is 1, up to float32 rounding such as in 6 * (1/6)."""
    return bool((abs(factor - 1) < 1e-7).all())


def argument(node: Node, at: int) -> Value:
    """Returns input `at` of a node. Raises Opaque if the node has no such input."""
    value = node.inputs[at] if at < len(node.inputs) else None
    if value is None:
        raise Opaque
    return value


def _ordered(product: tuple[Atom, ...]) -> tuple[Atom, ...]:
    for scale in product:
        centred, norm = scale.pair or (None, None)
        if centred in product and centred is not None and norm is not None:
            left = list(product)
            left.remove(scale)
            left.remove(centred)
            return _ordered((*left, norm))
    return tuple(sorted(product, key=lambda atom: atom.key))


def constant_sum(c: Array) -> Sum:
    """Returns a constant array as a Sum. A matrix of equal rows becomes a vector."""
    while c.ndim > 1 and (c.shape[0] == 1 or (len(c) and (c == c[:1]).all())):
        c = c[0]
    if c.size > MOST_NUMBERS:
        raise Opaque
    with np.errstate(invalid="ignore"):  # a signalling NaN would warn
        c = c.astype(np.float64)
    return Sum({(): c} if c.any() else {})


def check_size(a: Array, b: Array) -> None:
    """Raises Opaque if a + b, with broadcasting, would be too large for memory."""
    try:
        shape = np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        raise Opaque from None
    if math.prod(shape) > MOST_NUMBERS:
        raise Opaque


def plus(a: Sum, b: Sum, sign: float = 1.0) -> Sum:
    terms = dict(a.terms)
    for product, c in b.terms.items():
        old = terms.get(product, np.zeros(()))
        check_size(old, c)
        new = old + sign * c
        if new.any():
            terms[product] = new
        else:
            terms.pop(product, None)
    if len(terms) > MOST_TERMS:
        raise Opaque
    return Sum(terms)


def times(a: Sum, b: Sum) -> Sum:
    for left, right in ((a, b), (b, a)):  # a / sqrt(mean(a^2) + eps)
        (product, c), *others = right.terms.items() or [((), np.zeros(()))]
        if len(product) == 1 and product[0].pair and not others:
            _, norm = product[0].pair
            if not norm.centred and left.atom is not None and left.atom.value is norm.value:
                return Sum({(norm,): c})
    result = Sum({})
    for p, c in a.terms.items():
        for q, d in b.terms.items():
            if len(p) + len(q) > MOST_FACTORS:
                raise Opaque
            check_size(c, d)
            if (c * d).any():
                result = plus(result, Sum({_ordered(p + q): c * d}))
    return result


def _nested(of: Sum) -> int:
    """Returns the depth of nested functions and norms in f(of). Raises Opaque beyond MOST_NESTED."""
    result = 1 + max((atom.nested for product in of.terms for atom in product), default=0)
    if result > MOST_NESTED:
        raise Opaque
    return result


# --- values -------------------------------------------------------------------------------------------------


class Terms:
    """Writes values of one model as Sums, and caches them.

    operators: by ONNX operator, the function that returns a result's Sum or raises Opaque. joined: whether a
    product with a Concat becomes a sum of products with its parts, for cells with one matrix for x and h.
    states: whether constants of two axes are values, as the initial states of a step.
    """

    def __init__(self, operators: Mapping[str, Operator], joined: bool = False, states: bool = False) -> None:
        self.operators, self.joined, self.states = operators, joined, states
        self._keys: dict[Any, int] = {}
        self._sums: dict[int, Sum] = {}
        self._widths: dict[int, int] = {}  # {id of a copied value: its width}
        self._arrays: dict[int, str] = {}
        self._cuts: dict[tuple[int, range], tuple[Sum, Sum]] = {}  # (id of sum, part) -> (sum, its part)
        self._arguments: dict[int, bool] = {}
        self._of_part: dict[int, Value] = {}  # key of an atom -> the value that is this part of another value
        self._scaled: dict[Any, Value] = {}  # key of a sum a -> its value, if a function reads c * a
        self._elements: set[int] = set()  # ids of values that `element` has written as sums
        self._alive: list[Value] = []  # values whose ids are keys above: keeps the ids valid

    # -- atoms

    def _key(self, *parts: Any) -> int:
        return self._keys.setdefault(parts, len(self._keys))

    def value(self, value: Value, start: int = 0, width: int | None = None) -> Atom:
        whole = self.width(value) if width is None else width
        self._alive.append(value)
        return Atom("value", self._key("value", id(value), start, whole), whole, value, start=start)

    def product(self, value: Value, matrix: Matrix) -> Atom:
        self._alive.append(value)
        matrix = replace(matrix, key=(*self._identity(matrix), id(matrix.sequence)))
        key = self._key("product", id(value), matrix.key)
        return Atom("product", key, len(matrix.rows), value, matrix=matrix)

    def one(self, value: Value) -> Atom:
        self._alive.append(value)
        return Atom("one", self._key("one", id(value)), 1, value)

    def norm(
        self, value: Value, of: Sum, eps: float, start: int, width: int | None, centred: bool = True
    ) -> Atom:
        key = self._key("norm", of.key, eps, start, width, centred)
        return Atom("norm", key, width, value, of, None, start, _nested(of), eps, centred)

    def centred(self, value: Value, of: Sum) -> Atom:
        return Atom("centred", self._key("centred", of.key), of.width, value, of, nested=_nested(of))

    def scale(self, value: Value, of: Sum, eps: float, centred: bool) -> Atom:
        norm = self.norm(value, of, eps, 0, of.width, centred)
        pair = self.centred(value, of) if centred else None, norm
        return Atom(
            "scale", self._key("scale", of.key, eps, centred), 1, value, of, nested=_nested(of), pair=pair
        )

    def function(self, name: str, value: Value | None, of: Sum) -> Atom:
        value = self._scaled.get(of.key) if value is None and self._scaled else value
        return Atom(name, self._key(name, of.key), of.width, value, of, nested=_nested(of))

    def _identity(self, matrix: Matrix) -> tuple[Any, ...]:
        value = outside_of_loops(matrix.value)
        if id(value) not in self._arrays:
            array = constant(value)
            assert array is not None
            digest = hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).hexdigest()
            self._arrays[id(value)] = f"{array.shape}{digest}"
            self._alive.append(value)
        return self._arrays[id(value)], matrix.transposed, matrix.rows, matrix.columns

    def outer_value(self, atom: Atom) -> Value | None:
        """Returns the graph value that equals an atom of kind "value", or None if there is none."""
        if atom.key in self._of_part:
            return self._of_part[atom.key]
        whole = atom.value is not None and atom.start == 0 and atom.width == self.width(atom.value)
        return atom.value if whole else None

    # -- sums

    def cut(self, a: Sum, part: range, depth: int = 0) -> Sum:
        """Returns the part of a Sum for the elements `part`, a range, of the last axis, such as one gate."""
        if a.width is not None and part == range(a.width):
            return a
        if not depth and (id(a), part) in self._cuts:
            return self._cuts[id(a), part][1]
        result = Sum({})
        for product, c in a.terms.items():
            factors = [self._cut_atom(atom, part, depth + 1) for atom in product]
            constant = Sum({(): c[..., _slice(part)] if c.ndim and c.shape[-1] > 1 else c})
            result = plus(result, reduce(times, factors, constant))
        if not depth:
            self._cuts[id(a), part] = a, result
        return result

    def _cut_atom(self, atom: Atom, part: range, depth: int) -> Sum:
        if atom.width == 1:
            return single(atom)
        if atom.kind == "product":
            m = atom.matrix
            assert m is not None and atom.value is not None
            rows = m.rows[_slice(part)]
            return single(self.product(atom.value, replace(m, rows=rows)))
        if atom.kind not in ("value", "norm", "centred"):
            assert atom.of is not None
            return single(self.function(atom.kind, None, self.cut(atom.of, part, depth)))
        if part.step != 1 or atom.kind == "centred" or depth > MOST_DEPTH:
            raise Opaque
        assert atom.value is not None
        start = atom.start + part.start
        if atom.kind == "norm":
            assert atom.of is not None
            return single(self.norm(atom.value, atom.of, atom.eps, start, len(part), atom.centred))
        return self._of_concat(atom.value, start, len(part), depth) or single(
            self.value(atom.value, start, len(part))
        )

    def element(self, whole: Sum, value: Value) -> Sum:
        """Returns step t of a Sum whose products and norms were computed for all steps at once.

        value: x of this step. It becomes the operand of the products, see `Matrix.sequence`.
        """
        result = Sum({})
        for product, c in whole.terms.items():
            factors = [single(self._element_atom(atom, value)) for atom in product]
            result = plus(result, reduce(times, factors, Sum({(): c})))
        self._elements.add(id(value))
        return result

    def _element_atom(self, atom: Atom, value: Value) -> Atom:
        if atom.kind == "product" and atom.matrix is not None and atom.matrix.sequence is None:
            return self.product(value, replace(atom.matrix, sequence=atom.value))
        if atom.kind == "norm" and atom.of is not None:
            of = self.element(atom.of, value)
            return self.norm(value, of, atom.eps, atom.start, atom.width, atom.centred)
        if atom.kind != "one":
            raise Opaque
        return atom

    def _of_concat(self, value: Value, start: int, size: int, depth: int) -> Sum | None:
        """Returns features start .. start + size of a Concat as a Sum, or None unless one input has all."""
        node = producer(value, "Concat")
        if node is None or not is_last_axis(attribute(node, "axis", 1), value):
            return None
        for each in node.inputs:
            width = None if each is None else self.width(each)
            if each is None or width is None:
                return None
            if start < width:
                return self.cut(self.operand(each, depth), range(start, start + size), depth) if (
                    start + size <= width) else None  # fmt: skip
            start -= width
        return None

    def operand(self, value: Value, depth: int = 0) -> Sum:
        """Returns a value as a Sum. An argument of a product, norm or function stays one atom."""
        value = outside_of_loops(value)
        array = constant(value)
        if array is not None and array.dtype.kind == "f" and not (self.states and array.ndim == 2):
            return constant_sum(array)
        if self._is_argument(value):
            return single(self.value(value))
        return self.sum(value, depth)

    def is_whole(self, value: Value) -> bool:
        """Returns whether `operand` leaves a value as one atom, or as an element of a sequence."""
        atom = self.operand(value).atom
        is_value = atom is not None and atom.kind == "value" and atom.value is value
        return is_value or id(value) in self._elements

    def input(self, node: Node, at: int, depth: int) -> Sum:
        return self.operand(argument(node, at), depth)

    def argument(self, value: Value, depth: int) -> Sum:
        """Returns a function's argument as a Sum. In factor * value, the value is expanded too."""
        whole = self.sum(outside_of_loops(value), depth)
        (product, factor), *others = whole.terms.items() or [((), np.zeros(()))]
        inner = self.outer_value(product[0]) if len(product) == 1 and product[0].kind == "value" else None
        if others or inner is None or inner is value or factor.size != 1 or factor.item() == 1:
            return whole
        result = self.sum(inner, depth)
        self._scaled[result.key] = inner
        return times(result, Sum({(): factor}))

    def _is_argument(self, value: Value) -> bool:
        if id(value) not in self._arguments:
            self._arguments[id(value)] = is_argument(value)
            self._alive.append(value)
        return self._arguments[id(value)]

    def sum(self, value: Value, depth: int = 0) -> Sum:
        """Returns the Sum that computes a value. The value is one atom if its operator is not supported."""
        if id(value) in self._sums:
            return self._sums[id(value)]
        self._alive.append(value)
        node = value.producer()
        try:
            if node is None or node.domain not in DOMAINS or depth >= MOST_DEPTH:
                raise Opaque
            if node.op_type not in self.operators:
                raise Opaque
            result = self.operators[node.op_type](self, node, value, depth + 1)
            front_of(node.graph).take(sum(c.nbytes for c in result.terms.values()), node)
        except Opaque:
            result = single(self.value(value))
        atom = result.atom
        if atom is not None and atom.kind == "value" and atom.value is not value:
            self._of_part.setdefault(atom.key, value)
        self._sums[id(value)] = result
        return result

    def copy_width(self, value: Value, copy: Value) -> None:
        """Records that a copy of a value has the same width, before the copy is written as a sum."""
        width = self.width(value)
        if width is not None:
            self._widths[id(copy)] = width
            self._alive.append(copy)

    def width(self, value: Value, depth: int = 0) -> int | None:
        """Returns the size of a value's last axis, or None if it is unknown."""
        if depth > MOST_DEPTH:
            return None
        if id(value) in self._widths:
            return self._widths[id(value)]
        if value.shape is not None and len(value.shape):
            last = value.shape[-1]
            return last if isinstance(last, int) else None
        node = value.producer()
        if node is None:
            found = first_and_next(value)
            return None if found is None else self.width(found[0], depth + 1)
        if node.domain not in DOMAINS or not node.inputs or node.inputs[0] is None:
            return None
        if node.op_type in ("Gather", "Squeeze", "Unsqueeze") and keeps_last_axis(node):
            return self.width(node.inputs[0], depth + 1)
        if node.op_type in self.operators and id(value) in self._sums:
            return self._sums[id(value)].width
        return None


# An Operator writes output `value` of a node as a Sum. Arguments: terms, node, value, recursion depth.
Operator = Callable[[Terms, Node, Value, int], Sum]


def is_argument(value: Value, depth: int = 0) -> bool:
    """Returns whether a value, or a multiple of it, is the argument of a matrix product, norm or function."""
    for user in value.consumers():
        scaled = user.op_type == "Mul" and any(
            (c := constant_input(user, at)) is not None and not c.ndim for at in (0, 1))  # fmt: skip
        passes = (scaled or user.op_type == "Neg" or passes_on(user) is value) and depth < MOST_DEPTH
        if passes and is_argument(user.outputs[0], depth + 1):
            return True
        if user.inputs[0] is not value or user.domain not in DOMAINS:
            continue
        if user.op_type in ACTIVATIONS or user.op_type in ("Exp", *NORMS, "ReduceMean"):
            return True
        squares = user.op_type == "Pow" or (user.op_type == "Mul" and user.inputs[1] is value)
        averaged = squares and any(
            each.op_type in ("ReduceMean", "ReduceSum") for each in user.outputs[0].consumers()
        )
        if averaged and producer(value, "Sub") is None:  # without a subtracted mean this is RMS norm
            return True
        if user.op_type in ("Gemm", "MatMul") and constant_input(user, 1) is not None:
            return True
    return False


def keeps_last_axis(node: Node) -> bool:
    """Returns whether a Gather, Squeeze or Unsqueeze keeps the last axis of its input."""
    data = node.inputs[0]
    axes = [attribute(node, "axis", 0)] if node.op_type == "Gather" else moved_axes(node)
    r = None if data is None else rank(data)
    if axes is None or r is None:
        return False
    last = r if node.op_type == "Unsqueeze" else r - 1
    return not any(a in (-1, last) for a in axes)
