"""Writes the outputs of ONNX operators as sums of products (terms.Sum). `OPERATORS` is the table."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from .graph import ACTIVATIONS, attribute, constant, constant_input, is_last_axis, outside_of_loops, producer
from .interface import Node, Value
from .sizes import before_reversal, bounds, element
from .terms import NORMS, Matrix, Opaque, Operator, Sum, Terms, argument, constant_sum, plus, single, times


def _add(terms: Terms, node: Node, value: Value, depth: int) -> Sum:
    summands = (terms.input(node, at, depth) for at in range(len(node.inputs)))
    return _tanh(terms, reduce(plus, summands, Sum({})))


def _sub(terms: Terms, node: Node, value: Value, depth: int) -> Sum:
    of = centred(value)
    if of is not None:
        return single(terms.centred(of, terms.sum(outside_of_loops(of), depth)))
    return _tanh(terms, plus(terms.input(node, 0, depth), terms.input(node, 1, depth), -1.0))


def _tanh(terms: Terms, whole: Sum) -> Sum:
    """Returns tanh(a) if the sum is 2 sigmoid(2 a) - 1, else the sum unchanged."""
    of = argument_of(whole, 2, "sigmoid", -1)
    return (
        whole if of is None else single(terms.function("tanh", None, times(of, constant_sum(np.array(0.5)))))
    )


def argument_of(whole: Sum, factor: float, function: str, constant: float) -> Sum | None:
    """Returns a if a sum is factor * function(a) + constant, else None."""
    own = next((p for p in whole.terms if len(p) == 1 and p[0].kind == function), ())
    numbers = [
        (whole.terms.get(product, np.zeros(1)) == n).all() for product, n in ((own, factor), ((), constant))
    ]
    return own[0].of if len(own) == 1 and len(whole.terms) == 2 and all(numbers) else None


def _activation(terms: Terms, node: Node, value: Value, depth: int) -> Sum:
    of = terms.argument(argument(node, 0), depth)
    name = ACTIVATIONS[node.op_type]
    if name == "hard_sigmoid":  # lnrnn's is min(max(a / 6 + 1/2, 0), 1)
        if attribute(node, "beta", 0.5) != 0.5:
            raise Opaque
        alpha = float(attribute(node, "alpha", 0.2)) * 6
        of = of if abs(alpha - 1) < 1e-6 else times(of, constant_sum(np.array(alpha)))
    return single(terms.function(name, argument(node, 0), of))


def _clip(terms: Terms, node: Node, value: Value, depth: int) -> Sum:
    """Returns nested bounds as a Sum: min(max(a, 0), n) as n hard_sigmoid(6 a / n - 3), relu without n."""
    of, low, high = value, -np.inf, np.inf
    while (found := _bounded(of)) is not None:
        of, low, high = found[0], max(low, found[1]), min(high, found[2])
    if low != 0 or not high > 0:
        raise Opaque
    whole = terms.argument(of, depth)
    if high == np.inf:
        return single(terms.function("relu", of, whole))
    whole = times(plus(whole, constant_sum(np.array(high / 2)), -1), constant_sum(np.array(6 / high)))
    return times(single(terms.function("hard_sigmoid", None, whole)), constant_sum(np.array(high)))


def _bounded(value: Value) -> tuple[Value, float, float] | None:
    """Returns (a, low, high) if a node computes min(max(a, low), high), else None."""
    node = producer(outside_of_loops(value), "Clip", "Max", "Min", "Relu")
    if node is None or (node.op_type in ("Max", "Min") and len(node.inputs) != 2):
        return None
    if node.op_type == "Relu":
        return argument(node, 0), 0.0, np.inf
    if node.op_type != "Clip":
        at = int(constant_input(node, 1) is not None)
        low, high = (_number(node, at), np.inf) if node.op_type == "Max" else (-np.inf, _number(node, at))
        return argument(node, 1 - at), low, high
    low, high = (
        _number(node, at) if len(node.inputs) > at and node.inputs[at] else attribute(node, name, default)
        for at, name, default in ((1, "min", -np.inf), (2, "max", np.inf))
    )
    return argument(node, 0), low, high


def _number(node: Node, at: int) -> float:
    """Returns the number that fills a constant input. Raises Opaque if its elements differ."""
    array = constant_input(node, at)
    if array is None or not array.size or not (array == array.flat[0]).all():
        raise Opaque
    return float(array.flat[0])


def _inverse(terms: Terms, value: Value, depth: int) -> Sum:
    """Returns 1 / value as a Sum, for a norm's sqrt(var + eps) and for sigmoid(a) = 1 / (1 + exp(-a))."""
    if producer(value, "Sqrt") is not None:
        of, eps, is_centred = deviation(value, lambda a: terms.sum(outside_of_loops(a), depth).width)
        whole = terms.sum(outside_of_loops(of), depth)
        return single(terms.scale(of, whole, eps, is_centred)) if whole.terms else whole
    argument = argument_of(terms.operand(value, depth), 1, "exp", 1)
    if argument is None:
        raise Opaque
    return single(terms.function("sigmoid", None, times(argument, constant_sum(np.array(-1.0)))))


def _matrix_product(terms: Terms, a: Value, b: Value, transposed: bool, depth: int) -> Sum:
    """Returns the Sum of a @ b. transposed: b is (inputs, outputs) as in MatMul, else (outputs, inputs)."""
    whole = constant(outside_of_loops(b))
    if whole is None or whole.ndim != 2 or whole.dtype != np.float32:
        raise Opaque
    rows, columns = whole.T.shape if transposed else whole.shape
    a = outside_of_loops(a)
    array = constant(a)
    if array is not None and not terms.states:
        if array.ndim < 1 or array.shape[-1] != columns or array.dtype != np.float32:
            raise Opaque
        (same,) = constant_sum(array).terms.values() or (np.zeros(columns),)
        if same.shape != (columns,):  # a step's initial state is the same row for each sequence
            raise Opaque
        return constant_sum(same.astype(np.float32) @ (whole if transposed else whole.T))
    node = a.producer()
    if terms.joined and node is not None and node.op_type == "Concat" and _joins(node, a):
        result, start = Sum({}), 0
        for at, part in enumerate(node.inputs):
            size = terms.width(argument(node, at))
            if size is None and part is node.inputs[-1]:
                size = columns - start
            if size is None:
                raise Opaque
            matrix = Matrix(b, transposed, range(rows), range(start, start + size))
            result = plus(result, single(terms.product(outside_of_loops(argument(node, at)), matrix)))
            start += size
        if start != columns:
            raise Opaque
        return result
    return single(terms.product(a, Matrix(b, transposed, range(rows), range(columns))))


def _joins(node: Node, value: Value) -> bool:
    return None not in node.inputs and is_last_axis(attribute(node, "axis", 1), value)


def _gemm(terms: Terms, node: Node, value: Value, depth: int) -> Sum:
    a, b = argument(node, 0), argument(node, 1)
    if attribute(node, "transA", 0):
        raise Opaque
    product = _matrix_product(terms, a, b, not attribute(node, "transB", 0), depth)
    alpha, beta = (float(attribute(node, name, 1.0)) for name in ("alpha", "beta"))
    if alpha != 1:
        product = times(product, constant_sum(np.array(alpha)))
    if len(node.inputs) < 3 or node.inputs[2] is None or beta == 0:
        return product
    return plus(product, _owned(terms, a, terms.input(node, 2, depth)), beta)


def _owned(terms: Terms, operand: Value, bias: Sum) -> Sum:
    """Multiplies a bias by the atom "one" of a product's operand. This tells bias_ih from bias_hh later."""
    return times(single(terms.one(outside_of_loops(operand))), bias)


def _split(terms: Terms, node: Node, value: Value, depth: int) -> Sum:
    if not is_last_axis(attribute(node, "axis", 0), argument(node, 0)):
        raise Opaque
    a, sizes = terms.input(node, 0, depth), constant_input(node, 1)
    given = list(map(int, sizes.reshape(-1))) if sizes is not None else attribute(node, "split")
    n, at = len(node.outputs), next(k for k, v in enumerate(node.outputs) if v is value)
    if given is None and a.width is not None and a.width % n == 0:
        given = [a.width // n] * n
    if given is None or len(given) != n or sum(given) != a.width:
        raise Opaque
    start = sum(given[:at])
    return terms.cut(a, range(start, start + given[at]), depth)


def _slice(terms: Terms, node: Node, value: Value, depth: int) -> Sum:
    found = bounds(node, lambda v: terms.sum(outside_of_loops(v)).width)
    if found is None or found[3] < 1 or not is_last_axis(found[0], argument(node, 0)):
        raise Opaque
    start, stop = found[1].number, found[2].number
    a = terms.input(node, 0, depth)
    if start is None or stop is None or a.width is None:
        raise Opaque
    part = range(a.width)[start : stop : found[3]]
    if not part:
        raise Opaque
    return terms.cut(a, part, depth)


def _element(terms: Terms, node: Node, value: Value, depth: int) -> Sum:
    """Returns one step of a product that was computed for all steps at once, as a Sum."""
    found = element(value, terms.width)
    found = found and before_reversal(found, terms.width)
    states = [user for user in value.consumers() if user.op_type == "Mul"]  # cells never multiply W x
    if found is None or is_last_axis(found.axis, found.whole) or states:
        raise Opaque
    return terms.element(terms.sum(outside_of_loops(found.whole), depth), value)


def _layer_norm(terms: Terms, node: Node, value: Value, depth: int) -> Sum:
    a = argument(node, 0)
    gain, bias = constant_input(node, 1), constant_input(node, 2)
    given = len(node.inputs) > 2 and node.inputs[2] is not None
    is_last = value is node.outputs[0] and is_last_axis(attribute(node, "axis", -1), a)
    if not is_last or gain is None or gain.ndim > 1 or (given and bias is None):
        raise Opaque
    of, eps = terms.sum(outside_of_loops(a), depth), float(attribute(node, "epsilon", 1e-5))
    result = of  # a sum of zeros, as in the first step of a network that starts at 0
    if of.terms:
        norm = terms.norm(a, of, eps, 0, of.width or gain.size, node.op_type == "LayerNormalization")
        result = times(single(norm), constant_sum(gain))
    if bias is None:
        return result
    operands = {id(atom.value): atom.value for p in result.terms for norm in p if norm.of is not None
                for q in norm.of.terms for atom in q if atom.kind == "product"}  # fmt: skip
    if len(operands) != 1:
        return plus(result, constant_sum(bias))
    (operand,) = operands.values()
    assert operand is not None
    return plus(result, _owned(terms, operand, constant_sum(bias)))


def _div(terms: Terms, node: Node, value: Value, depth: int) -> Sum:
    """Returns a / b as a Sum, if b is a constant or a value that `_inverse` supports."""
    divisor = constant_input(node, 1)
    if divisor is not None:
        return times(terms.input(node, 0, depth), constant_sum(1 / divisor.astype(np.float64)))
    return times(terms.input(node, 0, depth), _inverse(terms, argument(node, 1), depth))


def _mean(value: Value | None) -> Value | None:
    """Returns a if `value` is the mean of a over its last axis with keepdims=1, else None."""
    return _over_last_axis(producer(value, "ReduceMean"))


def _over_last_axis(node: Node | None) -> Value | None:
    """Returns a if `node` is a sum or mean of a over its last axis with keepdims=1, else None."""
    if node is None or node.inputs[0] is None or not attribute(node, "keepdims", 1):
        return None
    given = constant_input(node, 1)
    axes = list(given.reshape(-1)) if given is not None else attribute(node, "axes")
    whole = node.inputs[0]
    return whole if axes is not None and len(axes) == 1 and is_last_axis(int(axes[0]), whole) else None


def centred(value: Value | None) -> Value | None:
    """Returns a if the value is a - mean(a), else None."""
    node = producer(value, "Sub")
    return node.inputs[0] if node and node.inputs[0] is _mean(node.inputs[1]) else None


def deviation(value: Value, width: Callable[[Value], int | None]) -> tuple[Value, float, bool]:
    """Returns (a, eps, centred) of a norm's divisor: centred is True for sqrt(var(a) + eps), and False for
    sqrt(mean(a^2) + eps). Raises Opaque for other values. width: returns the size of a value's last axis."""
    root = producer(value, "Sqrt")
    if root is None:
        raise Opaque
    total = producer(root.inputs[0], "Add")
    given = [(root.inputs[0], np.zeros(1))] if total is None else [
        (total.inputs[at], constant_input(total, 1 - at)) for at in (0, 1)]  # fmt: skip
    for variance, eps in given:
        both = producer(variance, "Sub")  # the variance may be mean(a^2) - mean(a)^2
        square, divided = _squared(_mean(both.inputs[0] if both else variance)), producer(variance, "Div")
        if divided and (size := constant_input(divided, 1)) is not None:  # a mean, written as sum / size
            square = _squared(_over_last_axis(producer(divided.inputs[0], "ReduceSum")))
            is_mean = square is not None and size.size == 1 and size.item() == width(square)
            square = square if is_mean else None
        of = square if both else centred(square)
        same = both is None or _mean(_squared(both.inputs[1])) is of
        if eps is not None and eps.size == 1 and square is not None and same:
            return square if of is None else of, float(eps.reshape(())), of is not None
    raise Opaque


def _squared(value: Value | None) -> Value | None:
    """Returns a if the value is a^2, as Pow or Mul, else None."""
    node = producer(value, "Pow", "Mul")
    power = constant_input(node, 1) if node and node.op_type == "Pow" else None
    squared = node and (node.inputs[0] is node.inputs[1] if power is None else power.tolist() in (2, [2]))
    return node.inputs[0] if node and squared else None


OPERATORS: dict[str, Operator] = {
    "Add": _add, "Sum": _add, "Sub": _sub, "Div": _div, "Gemm": _gemm,
    "Split": _split, "Slice": _slice, "Gather": _element, "Squeeze": _element,
    **dict.fromkeys(NORMS, _layer_norm), **dict.fromkeys(ACTIVATIONS, _activation),
    **dict.fromkeys(("Clip", "Max", "Min", "Relu"), _clip),
    "Identity": lambda terms, node, value, depth: terms.input(node, 0, depth),
    "Reciprocal": lambda terms, node, value, depth: _inverse(terms, argument(node, 0), depth),
    "Neg": lambda terms, node, value, depth: plus(Sum({}), terms.input(node, 0, depth), -1.0),
    "Mul": lambda terms, node, value, depth: times(*(terms.input(node, at, depth) for at in (0, 1))),
    "MatMul": lambda terms, node, value, depth: _matrix_product(
        terms, argument(node, 0), argument(node, 1), True, depth),
    "Exp": lambda terms, node, value, depth: single(
        terms.function("exp", None, terms.argument(argument(node, 0), depth))),
}  # fmt: skip


def new_terms(joined: bool = False, states: bool = False) -> Terms:
    return Terms(OPERATORS, joined, states)
