"""Matches one step of a cell: the patterns of patterns.py with the sums of terms.py.

A match binds all constants, values and nodes of the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any

import numpy as np

from ..importers.weights import Weights
from ..rnn.architecture import vectors
from ..rnn.cells import CELLS, GRU
from ..rnn.specs import LayerNormSpec, RMSNormSpec, norm_spec
from .copies import Pairs, pairs
from .copies import nodes as copied
from .graph import constant, constant_input, in_order, outside, outside_of_loops, passes_on, producer
from .interface import DOMAINS, Array, Graph, Node, Value
from .patterns import FUNCTIONS, INSIDE, OPERATORS, PATTERNS, Factor, Pattern, Term
from .sizes import Linear
from .terms import Atom, Opaque, Sum, Terms, is_one, plus, single, times

Summand = tuple[tuple[Atom, ...], Array, int | None]  # atoms, factor, owner of a bias
Bound = dict[Any, Any]  # the values and constants that a match has bound; keys: see Matcher
# Operators that compute a new h.
ROOTS = (
    "Mul", "Add", "Sub", "Sum", "MatMul", "Gemm", "Clip", "Max",
    *(OPERATORS[name] for name in FUNCTIONS["f"] if name in OPERATORS),
)  # fmt: skip
MOST_NODES = 400  # in one cell step
MOST_MISSES = 64  # stop after so many consecutive nodes that are no copy of a step

_LETTERS = {"value": "v", "product": "p", "norm": "n", "one": "1", "function": "f"}
BY_OUTLINE: dict[tuple[str, ...], list[Pattern]] = {}  # patterns by the factors of h's summands
for _pattern in PATTERNS:
    _summands = ("".join(sorted(_LETTERS[f.kind] for f in t.factors)) for t in _pattern.of("h"))
    BY_OUTLINE.setdefault(tuple(sorted(_summands)), []).append(_pattern)


@dataclass(frozen=True)
class Step:
    """One step of a cell in a graph.

    x: the input. old, new: the states, h first. old is empty if the step starts with states of 0, which no
    node reads. nodes: all nodes of the step, in the order of the graph. outside: the names of nodes and
    outputs that read other values of the step. constants: the parameters of the step, by (name, gate).
    centred: False with RMS norm. sequence: the x of all steps, if `x` is an element of its product, or None.
    within: (lengths, index of the step) if the mask index < lengths keeps old states past a sequence's end.
    """

    pattern: Pattern
    units: int
    constants: Mapping[tuple[str, str], Any]
    functions: Mapping[str, str]
    eps: float | None
    centred: bool
    x: Value
    old: tuple[Value, ...]
    new: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outside: tuple[str, ...] = ()
    sequence: Value | None = None
    within: tuple[Value, Linear] | None = None

    def weights(self) -> Weights:
        """Returns the parameters under lnrnn's names, in lnrnn's order of gates."""
        pattern, cell, H = self.pattern, CELLS[self.pattern.cell], self.units
        bias = any(name.startswith("bias") for name, _ in self.constants) or self._adds_zeros()
        spec: Any = None
        if pattern.norm is not None:
            inner = any(name.startswith("inner") and any(a.any() for _, a in v)
                        for (name, _), v in self.constants.items())  # fmt: skip
            eps = float(str(np.float32(self.eps or 0.0)))  # decimal, such as 1e-05
            options = {**pattern.norm, "eps": eps, "inner_bias": inner}
            spec = LayerNormSpec(**options) if self.centred else RMSNormSpec(**options, bias=bias)
            spec = norm_spec(spec, cell)
        result = {name: self._blocks(name) for name in ("weight_ih", "weight_hh")}
        for name in vectors(cell, H, spec, True):
            result[name] = self._blocks(name)
        if ("weight_hr", "h") in self.constants:
            matrix, scale = self.constants["weight_hr", "h"]
            result["weight_hr"] = matrix.array() * scale[:, None]
        if pattern.has("peephole", "o"):
            each = [self.constants.get(("peephole", gate), 0.0) for gate in "ifo"]
            result["peephole"] = np.concatenate([np.broadcast_to(p, H) for p in each])
        result = {name: v.astype(np.float32) for name, v in result.items() if bias or "bias" not in name or
                  name.startswith("inner")}  # fmt: skip
        f = self.functions.get("f")
        return Weights(
            cell.name, spec, bias, result,
            None if cell is GRU and f == "tanh" else f,
            reset_after=pattern.options.get("reset_after", True),
            gate_activation=self.functions.get("sigma", "sigmoid"),
        )  # fmt: skip

    def _adds_zeros(self) -> bool:
        """Returns whether the step adds biases of 0, which no constant records: a Sum drops zeros."""
        sums = [node for node in self.nodes if node.op_type in ("Add", "Gemm")]
        added = [constant_input(node, at) for node in sums for at in range(len(node.inputs))]
        return any(a is not None and a.ndim == 1 and a.size >= self.units and not a.any() for a in added)

    def _blocks(self, name: str) -> Array:
        """Returns one parameter: its blocks for all gates, joined. Missing gains are 1, missing biases 0."""
        if name.endswith("_c"):
            return self._vector(name, next((gate for n, gate in self.constants if n == name), ""))
        if name.startswith("weight"):
            return np.concatenate([self._rows(name, gate) for gate in self.pattern.gates])
        signs = [1 if name.startswith("inner") else self._sign(gate) for gate in self.pattern.gates]
        blocks = [self._vector(name, gate) for gate in self.pattern.gates]
        return np.concatenate([sign * block for sign, block in zip(signs, blocks, strict=True)])

    def _sign(self, gate: str) -> int:
        return -1 if gate == self.pattern.negated else 1

    def _rows(self, name: str, gate: str) -> Array:
        matrix, scale = self.constants[name, gate]
        gains = ("gain", name.replace("weight", "gain"))
        has_gain = any((gain, gate) in self.constants for gain in gains)
        rows: Array = matrix.array() * ((1 if has_gain else self._sign(gate)) * scale)[:, None]
        return rows

    def _vector(self, name: str, gate: str) -> Array:
        given = self.constants.get((name, gate))
        if name.startswith("gain"):
            return np.ones(self.units) if given is None else np.broadcast_to(given, (self.units,))
        total: Array = np.zeros(self.units) + sum(a for _, a in given or ())
        return total


def steps(graph: Graph, terms: Terms, joined: Terms) -> Iterator[list[Step]]:
    """Yields a list for each step in a graph: its alternatives, which differ in the roles of x and h.

    joined: terms for cells with one matrix for x and h.
    """
    has_joined = any(_multiplies_concat(node) for node in graph)
    roots = [n for n in graph if n.op_type in ROOTS and n.domain in DOMAINS and len(n.outputs) == 1]
    found: dict[int, list[Step]] = {}
    for at, node in enumerate(roots):
        if id(node) not in found:
            own, alternatives = terms, match(node.outputs[0], terms)
            if has_joined and not alternatives:
                own, alternatives = joined, match(node.outputs[0], joined)
            found[id(node)] = alternatives
            if alternatives:
                _find_copies(alternatives[0], roots[at:], found, own, (terms, joined))
        if found[id(node)]:
            yield found[id(node)]


def _find_copies(
    step: Step, roots: Sequence[Node], found: dict[int, list[Step]], own: Terms, every: Sequence[Terms]
) -> None:
    """Adds copies of a matched step, since a comparison of nodes is faster than a match.

    roots: the step's root, then later ones. own: the Terms of the match. `found` gets copies, by root.
    """
    misses = 0
    for root in roots[1:]:
        if root.op_type != roots[0].op_type or id(root) in found:
            continue
        of = pairs(step.new, (step.x, *step.old), root.outputs[0], own.is_whole)
        misses = 0 if of is not None else misses + 1
        if misses > MOST_MISSES:
            return
        if of is None:
            continue
        for value in (step.x, *step.old, *(v for node in step.nodes for v in node.outputs)):
            for terms in every if id(value) in of else ():
                terms.copy_width(value, of[id(value)])
        for node in step.nodes:
            copy = of[id(node.outputs[0])].producer() if id(node.outputs[0]) in of else None
            if copy is not None and id(node) in found:
                moved = [_moved(each, of) for each in found[id(node)]]
                if None not in moved:
                    found[id(copy)] = [each for each in moved if each is not None]


def _moved(step: Step, of: Pairs) -> Step | None:
    """Returns a copy of `step`, or None if a value or node has no copy. of: {id of original: copy}."""
    given, nodes = (step.x, *step.old, *step.new), copied(of, step.nodes)
    if nodes is None or any(id(v) not in of for v in given):
        return None
    x, old, new = of[id(step.x)], *(tuple(of[id(v)] for v in each) for each in (step.old, step.new))
    return replace(step, x=x, old=old, new=new, nodes=in_order(nodes), outside=outside(nodes, new))


def _multiplies_concat(node: Node) -> bool:
    return node.op_type in ("Gemm", "MatMul") and producer(node.inputs[0], "Concat") is not None


def alike(h: Sum) -> Sequence[Pattern]:
    """Returns the patterns whose equation of h has factors of the same kinds as the sum `h`."""
    kinds = ("".join(sorted(_LETTERS.get(atom.kind, "f") for atom in p)) for p in h.terms)
    return BY_OUTLINE.get(tuple(sorted(kinds)), ())


def with_identity(h: Sum, terms: Terms, zero: bool = False) -> Sum:
    """If h is n + z (h0 - n) or h0 + z (n - h0), returns h with n as one atom: the function identity of n.

    h0 is one value. zero: h0 is 0, so its terms are missing. Other sums are returned unchanged.
    """
    gates = {atom for p in h.terms if len(p) > 1 for atom in p if atom.kind in FUNCTIONS["sigma"]}
    for z in gates if len(h.terms) > 3 - zero else ():
        first = Sum({p: c for p, c in h.terms.items() if z not in p})
        change = Sum({tuple(a for a in p if a is not z): c for p, c in h.terms.items() if z in p})
        second = plus(first, change)
        ends = [first, second]
        is_state = [not s.terms if zero else s.atom is not None and s.atom.kind == "value" for s in ends]
        at = is_state.index(False) if sum(is_state) == 1 else 0
        if sum(is_state) == 1 and len(ends[at].terms) > 1 and len(change.terms) > 1 - zero:
            ends[at] = single(terms.function("identity", None, ends[at]))
            return plus(ends[0], times(single(z), plus(ends[1], ends[0], -1)))
    return h


def match(value: Value, terms: Terms, zero: bool = False) -> list[Step]:
    """Returns the steps whose new h is this value. zero: match steps whose old states are 0."""
    whole, result = with_identity(terms.sum(value), terms, zero), list[Step]()
    for pattern in PATTERNS if zero else alike(whole):
        matcher = Matcher(pattern, terms, zero)
        for bound in matcher.whole(value, whole):
            step = _step(pattern, matcher, bound)
            if step is not None and not any(_same(step, other) for other in result):
                result.append(step)
    return result


def _same(a: Step, b: Step) -> bool:
    return a.x is b.x and all(p is q for p, q in zip(a.old + a.new, b.old + b.new, strict=True))


def _step(pattern: Pattern, matcher: Matcher, bound: Bound) -> Step | None:
    """Returns the Step of a complete match, or None if names are unbound. bound: see Matcher."""
    if (x := bound.get("x")) is None:
        return None
    old = tuple(bound[name] for name in pattern.states.values() if name in bound)
    new = tuple(v for name in pattern.states if (v := bound.get(("value", name))) is not None)
    if len(new) < len(pattern.states) or len(old) not in (0, len(new)):
        return None
    constants = {key: v for key, v in bound.items() if isinstance(key, tuple) and len(key) == 2 and
                 key[0] not in ("value", "norm", "operand")}  # fmt: skip
    operands = {id(bound["operand", gate]) for gate in pattern.gates if ("operand", gate) in bound}
    for (name, gate), v in tuple(constants.items()):
        if name == "weight_hh" and len(v[0].columns) != matcher.state_size:
            return None
        if name in ("bias_ih", "inner_bias_ih"):
            other = pattern.bias_of_h if name == "bias_ih" else "inner_bias_hh"
            if not pattern.has(other, gate):
                constants[name, gate] = tuple(each for each in v if each[0] not in operands)
                constants[other, gate] = tuple(each for each in v if each[0] in operands)
    sequences = {v[0].sequence for (name, _), v in constants.items() if name == "weight_ih"}
    nodes = nodes_between(new, (x, *old))
    if nodes is None or len(sequences) != 1:
        return None
    functions = {name: bound[name] for name in FUNCTIONS if name in bound}
    given = pattern, matcher.units, constants, functions, bound.get("eps"), bound.get("centred", True)
    return Step(*given, x, old, new, nodes, outside(nodes, new), *sequences)


def nodes_between(new: Sequence[Value], given: Sequence[Value]) -> tuple[Node, ...] | None:
    """Returns the nodes that compute `new` from `given` and constants. None if they need any other value."""
    known = {id(v) for v in given}
    seen: dict[int, Node] = {}
    stack = [v.producer() for v in new]
    while stack:
        node = stack.pop()
        if node is None or len(seen) > MOST_NODES:
            return None
        if id(node) in seen:
            continue
        seen[id(node)] = node
        for value in node.inputs:
            if value is None or id(value) in known:
                continue
            source = outside_of_loops(value)
            if id(source) in known or constant(source) is not None:
                continue
            stack.append(source.producer())
            while value is not source and (same := value.producer()) and (before := passes_on(same)):
                added = producer(same.inputs[0], "Unsqueeze")
                seen |= {id(each): each for each in (same, added) if each is not None}
                value = before
    result = in_order(seen.values())
    return result if len(result) == len(seen) else None


@dataclass
class Matcher:
    """Compares the equations of one pattern with sums, and yields all ways to bind its names.

    zero: whether the old states are 0, so that their terms are missing. unfit: the atom that matched nothing
    in the attempt with the most matches, or the value whose sum has another number of summands. bound: the
    number of matches in this attempt.

    The keys of a Bound are names of values and functions, "eps", "centred", and tuples. ("operand", gate) is
    the value that weight_hh multiplies. The others are (constant, gate), ("value", equation),
    ("argument", function, equation), ("norm", gates, terms) and ("place", gates, terms, number of the gate).
    """

    pattern: Pattern
    terms: Terms
    zero: bool
    units: int = field(default=0, init=False)
    state_size: int = field(default=0, init=False)
    unfit: Atom | Value | None = field(default=None, init=False)
    bound: int = field(default=0, init=False)

    def whole(self, value: Value, h: Sum) -> Iterator[Bound]:
        self.units = self.state_size = h.width or 0
        if self.pattern.has_projection:
            if h.atom is None or h.atom.matrix is None:
                return
            self.units = len(h.atom.matrix.columns)
        if self.units:
            yield from self.sum(self.pattern.of("h"), h, "h", {("value", "h"): value})

    def sum(self, wanted: Sequence[Term], given: Sum, gate: str, bound: Bound) -> Iterator[Bound]:
        """Matches the summands `wanted` of an equation with the value `given`. Yields all bindings."""
        if self.zero:
            wanted = [term for term in wanted if not any(_reads_state(f) for f in term.factors)]
        biases = [term for term in wanted if "bias" in term.vector]
        rest = [term for term in wanted if "bias" not in term.vector]
        constants: list[Summand] = []
        others: list[Summand] = []
        for product, factor in given.terms.items():
            atoms = tuple(atom for atom in product if atom.kind != "one")
            owner = next((id(atom.value) for atom in product if atom.kind == "one"), None)
            is_bias = not atoms or (
                any(len(term.factors) == len(atoms) for term in biases)
                and all(atom.kind in FUNCTIONS["sigma"] for atom in atoms)
            )
            (constants if is_bias else others).append((atoms, factor, owner))
        if len(others) == len(rest):
            for new in self._summands(rest, others, gate, bound):
                yield from self._biases(biases, constants, gate, new)
        else:
            self._note(bound, bound.get(("value", gate)))

    def _summands(self, wanted: list[Term], given: list[Summand], gate: str, bound: Bound) -> Iterator[Bound]:
        if not wanted:
            yield bound
            return
        term, rest = wanted[0], wanted[1:]
        for at, (product, factor, _) in enumerate(given):
            if len(product) == len(term.factors):
                others = given[:at] + given[at + 1 :]
                for new in self._product(term, product, factor, gate, bound):
                    yield from self._summands(rest, others, gate, new)

    def _biases(self, wanted: list[Term], given: list[Summand], gate: str, bound: Bound) -> Iterator[Bound]:
        """Matches biases: constants, or constants times a gate. Several are added up; one may be missing."""
        if not wanted:
            if not given:
                yield bound
            return
        term, rest = wanted[0], wanted[1:]
        for atoms in {atoms for atoms, _, _ in given if len(atoms) == len(term.factors)}:
            mine = [each for each in given if each[0] == atoms]
            others = [each for each in given if each[0] != atoms]
            if any(factor.ndim > 1 or factor.size not in (1, self.units) for _, factor, _ in mine):
                continue
            values = tuple((owner, term.sign * factor.reshape(-1)) for _, factor, owner in mine)
            new = {**bound, (term.vector, gate): values}
            for found in self._in_turn(term.factors, atoms, np.ones(1), gate, new):
                yield from self._biases(rest, others, gate, found)
        yield from self._biases(rest, given, gate, bound)

    def _product(
        self, term: Term, product: tuple[Atom, ...], factor: Array, gate: str, bound: Bound
    ) -> Iterator[Bound]:
        if factor.ndim > 1 or factor.size not in (1, self.units, self.state_size):
            return
        factor = term.sign * factor.reshape(-1)
        if term.vector:
            bound = {**bound, (term.vector, gate): factor}
        elif not any(f.kind == "product" for f in term.factors) and not is_one(factor):
            return
        for order in permutations(product):
            yield from self._in_turn(term.factors, order, factor, gate, bound)

    def _in_turn(
        self, factors: Sequence[Factor], atoms: Sequence[Atom], scale: Array, gate: str, bound: Bound
    ) -> Iterator[Bound]:
        if not factors:
            yield bound
            return
        empty = True
        for new in self._factor(factors[0], atoms[0], scale, gate, bound):
            empty = False
            yield from self._in_turn(factors[1:], atoms[1:], scale, gate, new)
        if empty:
            self._note(bound, atoms[0])

    def _note(self, bound: Bound, unfit: Atom | Value | None) -> None:
        if len(bound) > self.bound and unfit is not None:
            self.bound, self.unfit = len(bound), unfit

    def _factor(self, factor: Factor, atom: Atom, scale: Array, gate: str, bound: Bound) -> Iterator[Bound]:
        if factor.kind == "value":
            yield from self._value(factor.name, atom, bound)
        elif factor.kind == "function":
            yield from self._function(factor, atom, bound)
        elif factor.kind == "product" and atom.kind == "product":
            if atom.width == (self.state_size if factor.name == "weight_hr" else self.units):
                yield from self._matrix(factor, atom, scale, gate, bound)
        elif factor.kind == "norm" and atom.kind == "norm":
            yield from self._norm(factor, atom, gate, bound)

    def _matrix(self, factor: Factor, atom: Atom, scale: Array, gate: str, bound: Bound) -> Iterator[Bound]:
        assert atom.value is not None
        whole = single(self.terms.value(atom.value))
        if len(factor.factors) > 1:
            whole = self.terms.sum(atom.value)
        if len(whole.terms) != 1:
            return
        ((operands, one),) = whole.terms.items()
        if len(operands) == len(factor.factors) and one.size == 1 and is_one(one):
            bound = {**bound, (factor.name, gate): (atom.matrix, scale)}
            if factor.name == "weight_hh":
                bound["operand", gate] = atom.value
            for order in permutations(operands):
                yield from self._in_turn(factor.factors, order, np.ones(1), gate, bound)

    def _value(self, name: str, atom: Atom, bound: Bound) -> Iterator[Bound]:
        if atom.kind != "value":
            return
        value = self.terms.outer_value(atom)
        if name in INSIDE:
            if value is not None:
                yield {**bound, ("value", name): value}
            return
        known = bound.get(name)
        if value is None or (known is not None and known is not value):
            return
        others = [bound.get(other) for other in ("x", "h0", "c0") if other != name]
        if any(value is other for other in others) and constant(value, any_batch=True) is None:
            return
        if name != "x" and atom.width not in (None, self.state_size if name == "h0" else self.units):
            return
        yield {**bound, name: value}

    def _function(self, factor: Factor, atom: Atom, bound: Bound) -> Iterator[Bound]:
        if atom.kind not in FUNCTIONS[factor.name] or bound.get(factor.name, atom.kind) != atom.kind:
            return
        known = ("argument", factor.name, factor.of)
        if known in bound:
            if bound[known] == atom.key:
                yield bound
            return
        assert atom.of is not None
        if atom.width != self.units or bound.get(("value", factor.of), atom.value) is not atom.value:
            return
        new = {**bound, known: atom.key, factor.name: atom.kind, ("value", factor.of): atom.value}
        yield from self.sum(self.pattern.of(factor.of), atom.of, factor.of, new)

    def _norm(self, factor: Factor, atom: Atom, gate: str, bound: Bound) -> Iterator[Bound]:
        assert atom.of is not None
        H, gates, whole = self.units, factor.gates, atom.of
        if bound.get("eps", atom.eps) != atom.eps or bound.get("centred", atom.centred) != atom.centred:
            return
        if atom.width != H or whole.width != max(len(gates), 1) * H or atom.start % H:
            return
        bound = {**bound, "eps": atom.eps, "centred": atom.centred}
        if factor.of:
            if bound.setdefault(("value", factor.of), atom.value) is not atom.value:
                return
            yield from self.sum(self.pattern.of(factor.of), whole, factor.of, bound)
            return
        if gates:
            known, place = ("norm", gates, factor.terms), ("place", gates, factor.terms, atom.start // H)
            if bound.get(known, whole.key) != whole.key or bound.get(place, gate) != gate:
                return
            bound |= {known: whole.key, place: gate}
        try:
            part = self.terms.cut(whole, range(atom.start, atom.start + H))
        except Opaque:
            return
        yield from self.sum(factor.terms, part, gate, bound)


def _reads_state(factor: Factor) -> bool:
    if factor.kind == "value":
        return factor.name not in ("x", *INSIDE)
    if factor.kind == "norm":
        products = [term for term in factor.terms if term.factors]
        return bool(products) and all(any(map(_reads_state, term.factors)) for term in products)
    return factor.kind == "product" and any(map(_reads_state, factor.factors))
