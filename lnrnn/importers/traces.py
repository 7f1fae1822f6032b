"""Traces torch modules, and translates traces to graphs for lnrnn.recognise. Does not import torch."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, pairwise
from operator import getitem
from typing import Any, NamedTuple

import numpy as np

from .blocks import COLUMNS, ROWS, Block, Blocks, Unsuitable, array_of, filled
from .running import tensors, unchanged

MOST_OPERATORS = 3000  # limit for one call; tracing takes about a millisecond per operator
LATE = {"clamp", "clamp_min", "clamp_max", "clip", "hardtanh", "maximum", "minimum", "nan_to_num", "relu6",
        "where"}  # fmt: skip


class Late(Unsuitable):
    """Raised for an operator of LATE, which may have no effect until a value is large."""


def _unknown(operator: Any, why: str = "", kind: type[Unsuitable] = Unsuitable) -> Unsuitable:
    return kind(f"no cell of lnrnn has its operator {operator}{why}")


# --- traces -------------------------------------------------------------------------------------------------


class Trace(NamedTuple):
    """A traced call as a torch.fx.GraphModule. Its inputs are the parameters and buffers `names`, then
    the call's arguments."""

    graph: Any
    names: tuple[str, ...]


def traced(module: Any, call: Callable[[Any, Any, Any], Any], arguments: Sequence[Any]) -> Trace:
    """Traces call(module, x, states), with the operators of TABLE where torch can decompose others.

    arguments: x, then the states.
    """
    torch: Any = sys.modules["torch"]
    left, written = [MOST_OPERATORS], list[str]()

    class Counting(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Unsuitable(f"it has more than {MOST_OPERATORS} operators")
            return function(*args, **(kwargs or {}))

    class Wrapper(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Any, *states: Any) -> list[Any]:
            before = _held(module)
            with Counting():
                result = [*tensors(call(module, x, states))]
            written.extend(name for name, t in _held(module).items() if t is not before.get(name))
            return result

    wrapper = Wrapper()
    named = {**dict(wrapper.named_parameters()), **dict(wrapper.named_buffers())}

    def run(state: Any, *given: Any) -> Any:
        return torch.func.functional_call(wrapper, state, given)

    make_fx = torch.fx.experimental.proxy_tensor.make_fx
    try:
        with warnings.catch_warnings(), torch.no_grad(), unchanged(module, torch):
            warnings.simplefilter("ignore")
            with torch.backends.mkldnn.flags(enabled=False):  # otherwise one operator may be a whole layer
                graph = make_fx(
                    torch.func.functionalize(run), _decompositions(), "fake", _allow_non_fake_inputs=True,
                    record_stack_traces=True,
                )(named, *arguments)  # fmt: skip
    except Unsuitable:
        raise
    except Exception as error:  # torch raises errors of many types
        line = next(iter(str(error).strip().splitlines()), "")[:120]
        own = [os.path.join(sys.modules[package].__path__[0], "") for package in ("torch", "lnrnn")]
        frames = traceback.extract_tb(error.__traceback__)
        at = next((f for f in frames[::-1] if f.line and not f.filename.startswith((*own, "<"))), None)
        where = f" at {at.line!r} (line {at.lineno} of {at.filename})" if at else ""
        if "DataDependent" in type(error).__name__:
            raise Unsuitable(
                f"its forward chooses by a value that it computes{where}, and a network has one equation for "
                "all values: take the choice out of forward"
            ) from None
        raise Unsuitable(f"torch cannot trace it{where}: {type(error).__name__}: {line}") from None
    names = tuple(name.removeprefix("inner.") for name in named)
    given = graph.graph.find_nodes(op="placeholder")
    of, varying = dict(zip(given, names, strict=False)), {*given[len(names) :]}
    for node in graph.graph.nodes:
        if varying & {*node.all_input_nodes}:
            varying.add(node)
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            continue
        if node in varying and _name(node.target) in LATE:
            raise _unknown(node.target, kind=Late)
        if schema.is_mutable and not _is_fresh(node):
            written.append(of.get(node.args[0], "its arguments"))
    if written:
        raise Unsuitable(f"its forward writes to {written[0]}, and a network only returns results")
    return Trace(graph, names)


def _is_fresh(node: Any) -> bool:
    """Returns whether an in-place operator writes to a tensor that no other node reads, as in torch.nn."""
    of = node.args[0]
    schema: Any = getattr((of.args[0] if of.target is getitem else of).target, "_schema", None)
    aliases = schema is None or (not schema.is_mutable and any(part.alias_info for part in schema.returns))
    return len(of.users) == 1 and not aliases


def _held(module: Any) -> dict[str, Any]:
    """Returns {name: tensor} of a module and its submodules, including tensors in plain attributes."""
    return {f"{path}.{name}".strip("."): value for path, part in module.named_modules()
            for own in (vars(part), part._parameters, part._buffers) for name, value in own.items()
            if isinstance(value, sys.modules["torch"].Tensor)}  # fmt: skip


@cache
def _decompositions() -> dict[Any, Any]:
    """Returns torch's decompositions of operators that TABLE lacks, except those that error messages name."""
    torch: Any = sys.modules["torch"]
    kept = {*TABLE, *FILLED, *LATE}
    every = torch.export.default_decompositions().items()
    return {operator: by for operator, by in every if _name(operator) not in kept}


def _name(target: Any) -> str:
    name: str = target._schema.name
    return name.removeprefix("aten::").removesuffix("_")


class Reader(Blocks):
    """Translates a trace to nodes of a graph.

    opaque: treat all constants with a batch axis as values; otherwise only zeros. eps: replaces the eps of
    all norms, or None.
    """

    def __init__(
        self, batch: int, units: int | None, opaque: bool = False, eps: float | None = None
    ) -> None:  # fmt: skip
        super().__init__(batch, units)
        self.opaque, self.eps = opaque, eps
        self._names: dict[int, str] = {}  # id of a constant -> names of the parameters behind it
        self.sums: dict[int, tuple[Block, Block, int]] = {}  # id of a sum -> (sum, mean, size)

    def run(self, trace: Trace, parameter: Callable[[str], Any], inputs: Sequence[Block]) -> list[Any]:
        """Returns the trace's outputs: Blocks, tensors or None. parameter: maps a name to its tensor."""
        torch: Any = sys.modules["torch"]
        known = dict[Any, Any]()
        given = [*(self.constant(parameter(name), name) for name in trace.names), *inputs]
        known |= zip(trace.graph.graph.find_nodes(op="placeholder"), given, strict=True)

        def read(argument: Any) -> Any:
            return torch.fx.node.map_arg(argument, known.__getitem__)

        for node in trace.graph.graph.nodes:
            if node.op == "output":
                return list(read(node.args[0]))
            if node.op == "get_attr":
                known[node] = self.constant(getattr(trace.graph, node.target))
            elif node.op != "placeholder":
                known[node] = self._result(node, read(node.args), read(node.kwargs))
        raise AssertionError("a trace has an output")

    def _result(self, node: Any, args: Any, kwargs: Any) -> Any:
        torch: Any = sys.modules["torch"]
        target, val = node.target, node.meta.get("val")
        if not hasattr(target, "_schema"):
            if target is getitem:
                return args[0][args[1]]
            raise _unknown(getattr(target, "__name__", target))
        name, schema = _name(target), target._schema
        n = {a.name: a.default_value for a in schema.arguments}
        n |= dict(zip(n, args, strict=False)) | kwargs
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        if torch.Tag.nondeterministic_seeded in target.tags and n.get("train") is not False:
            raise _unknown(target, ", which draws random numbers")
        if name in FILLED:
            return self.constant(torch.full(val.shape, float(n.get("fill_value", 0))))
        if any(isinstance(v, Block) for v in leaves):
            if name not in TABLE:
                raise _unknown(target)
            lines = [line.strip() for line in str(node.meta.get("stack_trace") or "").splitlines()]
            self.graph.written = f"{name} in {lines[-1]}" if lines else name
            return TABLE[name](self, n, val)
        with torch.no_grad():
            result = target(*args, **kwargs)
        names = [self._names[id(v)] for v in leaves if id(v) in self._names]
        return self.constant(result, " and ".join(dict.fromkeys(names)))

    # -- constants

    def constant(self, tensor: Any, name: str = "") -> Any:
        """Returns a constant tensor; as a Block if it has a batch axis and may be an initial state."""
        torch: Any = sys.modules["torch"]
        if isinstance(tensor, (list, tuple)):
            return [self.constant(t, name) for t in tensor]
        if not isinstance(tensor, torch.Tensor):
            return tensor
        self._names[id(tensor)] = name
        self._kept.append(tensor)
        shape = tuple(tensor.shape)
        if self.batch not in shape or len(shape) < 2 or (tensor.any() and not self.opaque):
            return tensor
        rows = shape.index(self.batch)
        last = len(shape) - 1 if rows < len(shape) - 1 else rows - 1
        moved = np.moveaxis(array_of(tensor), (rows, last), (-2, -1))
        values = filled(moved.shape[:-2], lambda at: self.graph.constant(moved[at], name))
        axes = [(ROWS,) if k == rows else (COLUMNS,) if k == last else (n,) for k, n in enumerate(shape)]
        return Block(values, tuple(axes))


# --- operators ----------------------------------------------------------------------------------------------
# Each function takes the Reader, the operator's arguments by name, and the `val` metadata of its result.

Given = dict[str, Any]
FILLED = "full", "full_like", "empty", "empty_like"  # new tensors; "empty" counts as zeros


def _operand(r: Reader, n: Given) -> Any:
    alpha = n.get("alpha", 1)
    return n["other"] if alpha == 1 else r.each("Mul", n["other"], alpha)


def _binary(operator: str) -> Any:
    def write(r: Reader, n: Given, val: Any) -> Block:
        if n.get("rounding_mode") is not None:
            raise _unknown("div with rounding_mode")
        return r.each(operator, n["self"], _operand(r, n))

    return write


def _sum(r: Reader, n: Given, val: Any) -> Block:
    """Translates a sum over one axis to mean * size. r.sums keeps the mean for a division by the size."""
    mean = r.mean(n["self"], n.get("dim") or (), n.get("keepdim", False))
    size = r.size(n["self"], n["self"].axes[n["dim"][0]])
    result: Block = r.each("Mul", mean, float(size))
    r.sums[id(result)] = result, mean, size
    return result


def _div(r: Reader, n: Given, val: Any) -> Block:
    _, mean, size = r.sums.get(id(n["self"]), (None, None, None))
    if mean is not None and isinstance(n["other"], (int, float)) and n["other"] == size:
        return mean
    result: Block = _binary("Div")(r, n, val)
    return result


def _unary(operator: str, **attributes: Any) -> Any:
    return lambda r, n, val: r.each(operator, n["self"], **attributes)


def _power(r: Reader, a: Block, exponent: float) -> Block:
    match exponent:
        case 1:
            return a
        case 2:
            return r.each("Mul", a, a)
        case 0.5:
            return r.each("Sqrt", a)
        case -0.5:
            return r.each("Div", 1.0, r.each("Sqrt", a))
        case -1:
            return r.each("Div", 1.0, a)
    raise _unknown(f"pow, with the exponent {exponent}")


def _same(r: Reader, n: Given, val: Any) -> Any:
    if not (val.dtype.is_floating_point and val.dtype.itemsize >= 4):
        raise _unknown(f"to {val.dtype}")
    return n.get("self", n.get("input"))


def _expanded(r: Reader, n: Given, val: Any) -> Block:
    block: Block = n["self"]
    repeats, last = n.get("repeats"), len(val.shape) - 1
    block = Block(block.values, ((),) * (len(val.shape) - len(block.axes)) + block.axes)
    for axis, size in enumerate(val.shape):
        own = r.size(block, block.axes[axis])
        if own == 1 and axis == last and block.width == 1:
            continue  # a mean for all features: operators broadcast it
        block = r.repeated(block, axis, size // own if repeats is None else repeats[axis])
    return block


def _selected(r: Reader, n: Given, val: Any) -> Block:
    axis, block = n["dim"], n["self"]
    k = n["index"] % r.size(block, block.axes[axis])
    return r.without(r.taken(block, axis, range(k, k + 1)), axis)


def _sliced(r: Reader, n: Given, val: Any) -> Block:
    size = r.size(n["self"], n["self"].axes[n["dim"]])
    return r.taken(n["self"], n["dim"], range(*slice(n["start"], n["end"], n["step"]).indices(size)))


def _split(r: Reader, n: Given, val: Any) -> list[Block]:
    ends = [0, *accumulate(part.shape[n["dim"]] for part in val)]
    return [r.taken(n["self"], n["dim"], range(a, b)) for a, b in pairwise(ends)]


def _flipped(r: Reader, n: Given, val: Any) -> Any:
    block = n["self"]
    for axis in n["dims"]:
        if not block.axes[axis] or set(block.axes[axis]) & {ROWS, COLUMNS}:
            raise _unknown("flip", " along features or sequences")
        size = r.size(block, block.axes[axis])
        block = r.taken(block, axis, range(size)[::-1])
    return block


def _written(r: Reader, n: Given, val: Any) -> Any:
    """Translates select_scatter and slice_scatter: returns a tensor with one part of an axis replaced."""
    axis, block, part = n["dim"], n["self"], n["src"]
    size = r.size(block, block.axes[axis])
    if "index" in n:
        start, stop = n["index"] % size, n["index"] % size + 1
        at = axis % len(block.axes)
        part = Block(part.values, (*part.axes[:at], (), *part.axes[at:]))
    else:
        start, stop, step = slice(n["start"], n["end"], n["step"]).indices(size)
        if step != 1:
            raise _unknown("slice_scatter", f" with step {step}")
    before, after = r.taken(block, axis, range(start)), r.taken(block, axis, range(stop, size))
    parts = [p for p, m in ((before, start), (part, 1), (after, size - stop)) if m]
    return r.joined(parts, axis)


def _addmm(r: Reader, n: Given, val: Any) -> Block:
    bias = n["self"]
    if n["alpha"] != 1 or n["beta"] != 1:
        raise _unknown("addmm", " with alpha or beta other than 1")
    if isinstance(bias, Block) or bias.numel() != val.shape[-1]:
        return r.each("Add", r.product(n["mat1"], n["mat2"]), bias)
    return r.product(n["mat1"], n["mat2"], bias)


def _layer_norm(r: Reader, n: Given, val: Any) -> list[Any]:
    eps = n["eps"] if r.eps is None else r.eps
    return [r.normalised(n["input"], n["normalized_shape"], n["weight"], n["bias"], eps), None, None]


TABLE: dict[str, Callable[[Reader, Given, Any], Any]] = {
    **dict.fromkeys(("alias", "clone", "detach", "lift_fresh_copy", "_to_copy", "native_dropout"), _same),
    **dict.fromkeys(("view", "_unsafe_view", "squeeze", "unsqueeze"),
                    lambda r, n, val: r.reshape(n["self"], val.shape)),
    **dict.fromkeys(("split", "split_with_sizes", "unsafe_split"), _split),
    **dict.fromkeys(("mm", "bmm"), lambda r, n, val: r.product(n["self"], n["mat2"])),
    **dict.fromkeys(("select_scatter", "slice_scatter"), _written),
    **dict.fromkeys(("expand", "repeat"), _expanded),
    "native_layer_norm": _layer_norm,
    "permute": lambda r, n, val: n["self"].moved([d % len(val.shape) for d in n["dims"]]),
    "select": _selected, "slice": _sliced, "flip": _flipped, "addmm": _addmm,
    "lerp": lambda r, n, val: r.each(
        "Add", n["self"], r.each("Mul", n["weight"], r.each("Sub", n["end"], n["self"]))),
    "cat": lambda r, n, val: r.joined(n["tensors"], n["dim"]),
    "copy": lambda r, n, val: n["src"],
    "mean": lambda r, n, val: r.mean(n["self"], n.get("dim") or (), n.get("keepdim", False)),
    "var": lambda r, n, val: r.variance(n["self"], n), "sum": _sum,
    "var_mean": lambda r, n, val: [r.variance(n["self"], n), r.mean(n["self"], n["dim"], n["keepdim"])],
    "add": _binary("Add"), "sub": _binary("Sub"), "mul": _binary("Mul"), "div": _div,
    "pow": lambda r, n, val: _power(r, n["self"], n["exponent"]),
    "rsqrt": lambda r, n, val: _power(r, n["self"], -0.5),
    "reciprocal": lambda r, n, val: _power(r, n["self"], -1),
    "sqrt": _unary("Sqrt"), "neg": _unary("Neg"), "exp": _unary("Exp"), "sigmoid": _unary("Sigmoid"),
    "tanh": _unary("Tanh"), "relu": _unary("Relu"),
    "hardsigmoid": _unary("HardSigmoid", alpha=1 / 6, beta=0.5),
}  # fmt: skip
