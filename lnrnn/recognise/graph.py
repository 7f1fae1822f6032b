"""Facts about graphs, nodes and values: attributes, constants, ranks, and which values depend on others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from .folding import FOLDED, MOVES, REPEATS, Unfolded, size_of
from .interface import DOMAINS, FRONT, PARENT, PLACE, Array, Front, Graph, Node, Value, named
from .patterns import OPERATORS

# Keys of Value.meta for cached results: of `constant`, of `constant` with any_batch, and of `rank`.
VALUE, ROW, RANK = "lnrnn.constant", "lnrnn.row", "lnrnn.rank"
MOST_DEPTH = 40  # a search for a property follows at most this many nodes in a row
ACTIVATIONS = {operator: name for name, operator in OPERATORS.items()}
ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Neg", "Identity", "Sum", "Cast", "Equal", "Clip", "Max", "Min",
               *ACTIVATIONS)  # fmt: skip
PASSES = (*MOVES, "Concat")  # operators through which a state passes between a step and the model's interface
CHANGES = {*ELEMENTWISE, "Exp", "Gemm", "LayerNormalization", "MatMul", "Pow", "Softmax"} - {*MOVES}
GRAPH, GRAPHS = 5, 10  # AttributeProto.type: one graph, a list of graphs


def front_of(graph: Graph | None) -> Front:
    assert graph is not None
    result: Front = graph.meta[FRONT]
    return result


def attribute(node: Node, name: str, default: Any = None) -> Any:
    """Returns an attribute's value. `default` if it is missing or refers to a function's argument."""
    given = node.attributes.get(name)
    return default if given is None or given.is_ref() else given.value


def attributes(node: Node) -> dict[str, Any]:
    """Returns all attributes as {name: value}, without references to arguments of an ONNX function."""
    return {name: each.value for name, each in node.attributes.items() if not each.is_ref()}


def has_references(node: Node) -> bool:
    """Returns whether any attribute refers to an argument of the ONNX function that contains the node."""
    return any(each.is_ref() for each in node.attributes.values())


def producer(value: Value | None, *ops: str) -> Node | None:
    """Returns the node that computes a value if its operator is in `ops`, else None."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type in ops and node.domain in DOMAINS else None


def subgraphs(node: Node) -> Iterator[tuple[str, Any]]:
    """Yields (attribute name, graph) for each graph in a node's attributes, such as the branches of an If."""
    for name, each in node.attributes.items():
        if each.type == GRAPH and not each.is_ref():
            yield name, each.value
        elif each.type == GRAPHS and not each.is_ref():
            yield from ((f"{name}{i}", graph) for i, graph in enumerate(each.value))


def parent(graph: Graph | None) -> Node | None:
    """Returns the node that has the graph as an attribute, or None."""
    result: Node | None = None if graph is None else graph.meta.get(PARENT)
    return result


def loop_around(graph: Graph | None, within_if: bool = False) -> Node | None:
    """Returns the Loop or Scan whose body is `graph`, else None. within_if: also if an If is between them."""
    node = parent(graph)
    while within_if and node is not None and node.op_type == "If":
        node = parent(node.graph)
    is_loop = node is not None and node.op_type in ("Loop", "Scan") and node.domain in DOMAINS
    return node if is_loop else None


def in_order(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Sorts nodes by their position in the graph of the first node. Drops nodes of other graphs."""
    every = list(nodes)
    return tuple(sorted((n for n in every if n.graph is every[0].graph), key=lambda node: node.meta[PLACE]))


# --- constants ---------------------------------------------------------------------------------------------


def forget(graphs: Iterable[Graph]) -> None:
    """Removes the cached results of `constant` and `rank` from all values, after a graph has changed."""
    for graph in graphs:
        of_nodes = (value for node in graph for value in (*node.inputs, *node.outputs) if value is not None)
        for value in (*graph.inputs, *graph.outputs, *of_nodes):
            for key in (VALUE, ROW, RANK):
                value.meta.pop(key, None)


def constant(value: Value | None, any_batch: bool = False) -> Array | None:
    """Returns the array of a value that depends on constants only, else None. The array is read-only.

    An initializer that is also an input counts as constant. Raises `Front.error` for a constant whose nodes
    or data are wrong. any_batch: also returns an initial state that nodes repeat for each sequence, without
    its repetitions.
    """
    if value is None:
        return None
    stack, key = [value], ROW if any_batch else VALUE
    while stack:  # a loop, since chains of nodes may be longer than Python's stack
        top = stack[-1]
        if key in top.meta:
            stack.pop()
            continue
        node = top.producer()
        if top.const_value is not None and (node is None or top.is_initializer()):
            top.meta[key] = front_of(top.graph).array(top.const_value, top)
            continue
        known = (*FOLDED, *REPEATS) if any_batch else FOLDED
        if node is None or node.domain not in DOMAINS or node.op_type not in known:
            top.meta[key] = None
            continue
        inputs = [v for v in node.inputs if v is not None]
        missing = [v for v in inputs if key not in v.meta]
        if missing:
            stack.append(missing[0])
            continue
        fixed = all(v.meta[key] is not None for v in inputs) or (any_batch and node.op_type in REPEATS)
        results = _computed(node, key) if fixed else [None] * len(node.outputs)
        for output, result in zip(node.outputs, results, strict=False):
            output.meta[key] = result
        top.meta.setdefault(key, None)
    array: Array | None = value.meta[key]
    return array


def is_zero(value: Value | None) -> bool:
    """Returns whether all numbers of a value are 0, in any shape. None, an input left out, counts as 0."""
    stack, seen = [value], set()
    while stack:
        top = stack.pop()
        if top is None or id(top) in seen:
            continue
        seen.add(id(top))
        array, node = constant(top), top.producer()
        if array is not None:
            if array.dtype.kind in "OSU" or array.astype(bool).any():
                return False
        elif node is None or node.domain not in DOMAINS:
            return False
        elif node.op_type == "ConstantOfShape":
            fill = attribute(node, "value")
            if has_references(node) or (
                fill is not None and front_of(node.graph).array(fill, node).astype(bool).any()
            ):
                return False
        elif node.op_type in ("Add", "Concat", "Sub"):
            stack.extend(node.inputs)
        elif node.op_type == "Mul" and constant(node.inputs[1]) is None:  # 0 * x may be NaN
            return False
        elif node.op_type in (*MOVES, "Mul", "Neg", "ReduceSum", "Relu", "Tanh", "Tile") and node.inputs:
            stack.append(node.inputs[0])
        else:
            return False
    return True


def same_bits(a: Array, b: Array) -> bool:
    """Returns whether arrays of numbers have the same dtype, shape and bits."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    places = [(each.__array_interface__["data"], each.strides) for each in (a, b)]
    bits = f"u{a.itemsize}"
    return places[0] == places[1] or np.array_equal(a.view(bits), b.view(bits))


def _computed(node: Node, key: str) -> list[Array | None]:
    """Returns a node's outputs, computed from constant inputs. key: the key of Value.meta with the arrays."""
    front = front_of(node.graph)
    inputs = [None if v is None else v.meta[key] for v in node.inputs]
    sized = node.op_type != "Tile" and any(a is not None for a in inputs[-1:])
    if key == ROW and node.op_type in REPEATS and not sized:
        if node.op_type != "ConstantOfShape":
            return inputs[:1]
        inputs = [np.ones(1, np.int64)]
    try:
        if has_references(node):
            raise Unfolded
        given = attributes(node) | {"outputs": len(node.outputs)}
        if node.op_type in ("Constant", "ConstantOfShape") and "value" in given:
            given["value"] = front.array(given["value"], node)
        elif node.op_type == "Cast":
            given["to"] = front.dtype(int(given["to"]))
        front.take(size_of(node.op_type, inputs), node)
        with np.errstate(all="ignore"):
            results = FOLDED[node.op_type](given, inputs)
    except (front.error, MemoryError):
        raise
    except Unfolded:
        return [None] * len(node.outputs)
    except Exception as error:  # wrong attributes and shapes give errors of many types
        if key == ROW:  # the constant may have another shape than the file's value
            return [None] * len(node.outputs)
        text = " ".join(str(error).split())[:300]
        raise front.error(f"node {named(node)} must fit its constant inputs: {text}") from None
    for result in results:
        if result.flags.writeable:
            result.flags.writeable = False
    return list(results)


def constant_input(node: Node, at: int) -> Array | None:
    """Returns the array of input `at` if it is constant, also if a Loop passes it on unchanged, else None."""
    value = node.inputs[at] if at < len(node.inputs) else None
    return None if value is None else constant(outside_of_loops(value))


def from_constants(value: Value) -> bool:
    """Returns whether a value depends only on constants and on the shapes of inputs."""
    values = [value]
    for each in values:
        node = each.producer()
        if not each.is_initializer() and (node is None or len(values) > 1000):
            return False
        if node is not None and node.op_type != "Shape":
            nodes = (node, *(other for _, graph in subgraphs(node) for other in graph))
            values += {v for other in nodes for v in other.inputs if v is not None}.difference(values)
    return True


# --- values ------------------------------------------------------------------------------------------------


def outside_of_loops(value: Value) -> Value:
    """Follows a value back through no-op nodes and unchanged Loop states. Returns the original value."""
    while True:
        value = _passed_on(value)
        found = first_and_next(value)
        if found is None or _passed_on(found[1]) is not value:
            return value
        value = found[0]


def _passed_on(value: Value) -> Value:
    while (node := producer(value, "Identity", "Mul", "Squeeze")) is not None:
        before = passes_on(node)
        if before is None:
            break
        value = before
    return value


def passes_on(node: Node) -> Value | None:
    """Returns the input that a no-op node passes on, else None: Identity, Squeeze of Unsqueeze, Mul by ones.

    The ones must be one number, or be filled to the shape of the value or of a value with the same origin.
    """
    if node.op_type == "Identity":
        return node.inputs[0]
    added = producer(node.inputs[0], "Unsqueeze") if node.op_type == "Squeeze" else None
    if added is not None:
        same = _constant_axes(node) == _constant_axes(added) is not None
        return added.inputs[0] if same else None
    for at in (0, 1) if node.op_type == "Mul" and node.domain in DOMAINS else ():
        value, ones = node.inputs[at], node.inputs[1 - at]
        array = constant(ones, any_batch=True)
        if value is None or array is None or array.dtype.kind != "f" or not (array == 1).all():
            continue
        filled = producer(ones, "Expand", "ConstantOfShape") if constant(ones) is None else None
        of = producer(None if filled is None else _moved_from(filled.inputs[-1]), "Shape")
        if filled is None and array.size == 1 >= array.ndim:
            return value
        if of is not None and (of.inputs[0] is value or _moved_from(of.inputs[0]) is _moved_from(value)):
            return value
    return None


def _constant_axes(node: Node) -> list[int] | None:
    """Returns the axes of a Squeeze or Unsqueeze if they are constants of its graph. A fast moved_axes."""
    given = constant(node.inputs[1]) if len(node.inputs) > 1 else attribute(node, "axes")
    return None if given is None else [int(a) for a in np.ravel(given)]


def _moved_from(value: Value | None) -> Value | None:
    """Follows a value back through reshapes, casts and other operators that only move its numbers."""
    for _ in range(MOST_DEPTH):
        node = producer(value, *PASSES)
        if node is None or not node.inputs:
            break
        value = node.inputs[0]
    return value


def first_and_next(value: Value) -> tuple[Value, Value] | None:
    """Returns (initial value, next value) of the state that `value` is in the body of a Loop or Scan.

    Returns None if `value` is no such state.
    """
    body = value.graph
    loop = loop_around(body) if value.is_graph_input() else None
    if body is None or loop is None:
        return None
    at, is_loop = next(k for k, v in enumerate(body.inputs) if v is value), loop.op_type == "Loop"
    scanned = 0 if is_loop else attribute(loop, "num_scan_inputs", 0)
    # A Loop's body has the inputs step and condition before the states, and the output condition.
    if not 2 * is_loop <= at < len(loop.inputs) - scanned or at - is_loop >= len(body.outputs):
        return None
    first = loop.inputs[at]
    return None if first is None else (first, body.outputs[at - is_loop])


def rank(value: Value) -> int | None:
    """Returns the number of axes of a value, or None if it is unknown."""
    stack = [value]
    while stack:  # a loop, since chains of nodes may be longer than Python's stack
        top = stack[-1]
        if top.shape is None and RANK not in top.meta:
            missing = [v for v in _ranked_by(top) if v.shape is None and RANK not in v.meta]
            if missing:
                stack += missing
                continue
            top.meta[RANK] = _rank_of_result(top)
        stack.pop()
    return _known_rank(value)


def _known_rank(value: Value | None) -> int | None:
    if value is None or value.shape is not None:
        return None if value is None else len(value.shape)
    result: int | None = value.meta[RANK]
    return result


def _ranked_by(value: Value) -> list[Value]:
    """Returns the values whose ranks decide the rank of a value without a declared shape."""
    node = value.producer()
    if node is None:
        found = first_and_next(value)
        return [] if found is None else [found[0]]
    count = {"Gemm": 0, "Gather": 2}.get(node.op_type, 99 if node.op_type in ELEMENTWISE else 1)
    return [v for v in node.inputs[:count] if v is not None]


def _rank_of_result(value: Value) -> int | None:
    node = value.producer()
    if node is None:
        found = first_and_next(value)
        return None if found is None else _known_rank(found[0])
    if node.op_type == "Gemm":
        return 2
    if node.op_type == "Constant":
        array = constant(value)
        return None if array is None else array.ndim
    if node.op_type in ELEMENTWISE:
        ranks = [_known_rank(v) for v in node.inputs if v is not None]
        return None if None in ranks else max(r for r in ranks if r is not None)
    first = _known_rank(node.inputs[0]) if node.inputs else None
    if node.op_type in ("MatMul", "LayerNormalization", "Split", "Slice", "ReverseSequence", "Not"):
        return first
    if node.op_type == "Transpose":
        order = attribute(node, "perm")
        return first if order is None else len(order)
    if first is None:
        return None
    if node.op_type == "Gather":
        indices = _known_rank(node.inputs[1])
        return None if indices is None else first + indices - 1
    if node.op_type in ("Squeeze", "Unsqueeze"):
        axes = moved_axes(node)
        return None if axes is None else first + (len(axes) if node.op_type == "Unsqueeze" else -len(axes))
    return None


def moved_axes(node: Node) -> list[int] | None:
    """Returns the axes that a Squeeze removes or an Unsqueeze adds, or None if they are unknown."""
    given = constant_input(node, 1)
    axes = attribute(node, "axes") if given is None else given.reshape(-1)
    return None if axes is None else [int(a) for a in axes]


def is_last_axis(axis: int, data: Value) -> bool:
    """Returns whether an axis is the last axis of a value. A value of unknown rank counts as (B, H)."""
    return axis == -1 or axis == (rank(data) or 2) - 1


def dependents(values: Iterable[Value]) -> set[int]:
    """Returns the ids of values, and of all values that are computed from them."""
    result, stack = set[int](), list(values)
    while stack:
        value = stack.pop()
        if id(value) not in result:
            result.add(id(value))
            stack += [v for user in value.consumers() for v in user.outputs]
    return result


def outside(nodes: Sequence[Node], new: Sequence[Value]) -> tuple[str, ...]:
    """Returns the names of other nodes, and of graph outputs, that read results of `nodes` except `new`."""
    inside, results = {id(node) for node in nodes}, {id(v) for v in new}
    names: dict[str, None] = {}
    for node in nodes:
        for value in node.outputs:
            if id(value) in results:
                continue
            if value.is_graph_output():
                names[f"the output {value.name!r}"] = None
            for user in value.consumers():
                if id(user) not in inside:
                    names[f"node {user.name or user.op_type!r}"] = None
    return tuple(names)


def origin(value: Value) -> Value:
    """Follows a value back through unchanged Loop states and operators that only move numbers."""
    for _ in range(MOST_DEPTH):
        value = outside_of_loops(value)
        before = _before(value)
        if before is None:
            break
        value = before
    return value


def _before(value: Value) -> Value | None:
    """Returns the input whose numbers a node moves, or the only non-constant branch of a Where, or None."""
    where = producer(value, "Where")
    if where is not None:
        others = [v for v in where.inputs[1:] if constant(v) is None]
        return others[0] if len(others) == 1 else None
    node = producer(value, *PASSES)
    return node.inputs[0] if node is not None and node.inputs else None


def is_input(value: Value) -> bool:
    return value.is_graph_input() and not value.is_initializer()


def reaches_output(value: Value) -> bool:
    """Returns whether a value is or becomes an output of its graph, by operators that only move numbers."""
    values = [value]
    for each in values:
        if each.is_graph_output():
            return True
        if len(values) < 1000:
            moved = (v for user in each.consumers() if user.op_type in PASSES for v in user.outputs)
            values += set(moved).difference(values)
    return False


def changes_states(loop: Node, nodes: Iterable[Node], old: Sequence[Value]) -> bool:
    """Returns whether a loop surely changes states outside of `nodes`, which compute a cell step from `old`.

    Arithmetic that mixes the old states with the new may be a mask, and masks may keep the states.
    """
    new = [v for node in nodes for v in node.outputs]
    inputs = (v for _, body in subgraphs(loop) for v in body.inputs)
    for state, after in ((v, both[1]) for v in inputs if (both := first_and_next(v))):
        into = [_changed(v, {state: False}) for v in old]
        mixed = False in into and _changed(after, {**dict.fromkeys(new), state: False}) is not None
        if True in into or (False in into and not mixed and _changed(after, dict.fromkeys(new, False))):
            return True
    return False


def _changed(value: Value, known: dict[Value, bool | None], depth: int = 0) -> bool | None:
    """Returns whether arithmetic lies between `value` and a value of `known`; None if no node connects them.

    known: receives the results, since a node may read a value twice.
    """
    node = value.producer()
    if value not in known and node is not None and node.op_type not in ("If", "Shape") and depth < MOST_DEPTH:
        known[value] = None
        found = {v: _changed(v, known, depth + 1) for v in node.inputs if v is not None}
        others = [v for v, changed in found.items() if changed is None]
        if len(others) < len(found):
            mask = node.op_type == "Mul" and any(constant(outside_of_loops(v)) is None for v in others)
            known[value] = True in found.values() or (node.op_type in CHANGES and not mask)
    return known.get(value)
