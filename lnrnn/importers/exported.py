"""Reads the programs of torch.export as graphs for lnrnn.recognise. Does not import torch."""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from .blocks import COLUMNS, ROWS, Block, Blocks, Unsuitable, array_of, filled

MOST_OPERATORS = 3000  # of a call; torch.export takes some milliseconds for each
INNER = "inner."  # before the names of a module's parameters
LATE = {"clamp", "clamp_min", "clamp_max", "clip", "hardtanh", "maximum", "minimum", "nan_to_num", "relu6",
        "where"}  # fmt: skip


class Late(Unsuitable):
    """A module has an operator of LATE, which may change nothing until a value is large."""


def _unknown(operator: Any, why: str = "") -> Unsuitable:
    kind = Late if hasattr(operator, "_schema") and _name(operator) in LATE else Unsuitable
    return kind(f"no cell of lnrnn has its operator {operator}{why}")


# --- programs -----------------------------------------------------------------------------------------------


def export(module: Any, arguments: Sequence[Any]) -> Any:
    """Returns torch.export's program of a module, decomposed if TABLE lacks some of its operators."""
    torch: Any = sys.modules["torch"]
    left = [MOST_OPERATORS]

    class Counting(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Unsuitable(f"it has more than {MOST_OPERATORS} operators")
            return function(*args, **(kwargs or {}))

    log = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    disabled, log.disabled = log.disabled, True  # torch.export prints the graph if a module has none
    try:
        with warnings.catch_warnings(), torch.no_grad(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            with Counting():
                module(*arguments)
            program = torch.export.export(module, tuple(arguments))
            unknown = _unknown_operators(program)
            if unknown:
                table = torch.export.default_decompositions()
                for node in sorted(unknown, key=lambda node: _name(node.target) not in LATE):
                    if node.target not in table and not _is_mutable(node.target):
                        raise _unknown(node.target)
                for operator in [o for o in table if _name(o) in TABLE]:
                    del table[operator]
                program = program.run_decompositions(table)
    except Unsuitable:
        raise
    except Exception as error:  # torch.export raises errors of many types
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
        raise Unsuitable(f"torch.export refuses it{where}: {type(error).__name__}: {line}") from None
    finally:
        log.disabled = disabled
    return program


def _unknown_operators(program: Any) -> list[Any]:
    """Returns the nodes whose operators TABLE lacks, without those that compute constants."""
    kinds = {spec.arg.name: spec.kind.name for spec in program.graph_signature.input_specs}
    varying: set[Any] = set()
    result = []
    for node in program.graph.nodes:
        if kinds.get(node.name) == "USER_INPUT" or varying & {*node.all_input_nodes}:
            varying.add(node)
            known = (*TABLE, *FILLED)
            own = node.op == "call_function" and hasattr(node.target, "_schema")
            if own and (_is_mutable(node.target) or _name(node.target) not in known):
                result.append(node)
    return result


def _is_mutable(target: Any) -> bool:
    return bool(target._schema.is_mutable)


def _name(target: Any) -> str:
    name: str = target._schema.name
    return name.removeprefix("aten::")


class Reader(Blocks):
    """Writes an exported program into a graph.

    opaque: whether all constants with an axis of sequences are values, or only zeros. eps: of
    all norms, or None for their own.
    """

    def __init__(
        self, batch: int, units: int | None, opaque: bool = False, eps: float | None = None
    ) -> None:  # fmt: skip
        super().__init__(batch, units)
        self.opaque, self.eps = opaque, eps
        self._names: dict[int, str] = {}  # of the parameters from which constants are computed
        self.sums: dict[int, tuple[Block, Block, int]] = {}  # by identity: each sum, its mean and its size

    def run(self, program: Any, parameter: Callable[[str], Any], inputs: Sequence[Block]) -> list[Any]:
        """Returns the outputs: Blocks, tensors or None. parameter: returns the parameter with a name."""
        torch: Any = sys.modules["torch"]
        given, known = iter(inputs), dict[Any, Any]()
        for spec in program.graph_signature.output_specs:
            if "MUTATION" in spec.kind.name:
                name = spec.target.removeprefix(INNER)
                raise Unsuitable(f"its forward writes to {name}, which lnrnn does not")
        specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}

        def read(argument: Any) -> Any:
            return torch.fx.node.map_arg(argument, known.__getitem__)

        for node in program.graph.nodes:
            if node.op == "output":
                return list(read(node.args[0]))
            if node.op != "placeholder":
                known[node] = self._result(node, read(node.args), read(node.kwargs))
                continue
            spec = specs[node.name]
            if spec.kind.name == "USER_INPUT":
                known[node] = next(given, None)
                continue
            constants = program.constants
            tensor = constants[spec.target] if spec.target in constants else parameter(spec.target)
            known[node] = self.constant(tensor, spec.target.removeprefix(INNER))
        raise AssertionError("a program has an output")

    def _result(self, node: Any, args: Any, kwargs: Any) -> Any:
        torch: Any = sys.modules["torch"]
        target, val = node.target, node.meta.get("val")
        if not hasattr(target, "_schema"):
            if node.op == "call_function" and target.__name__ == "getitem":
                return args[0][args[1]]
            raise _unknown(getattr(target, "__name__", target))
        name, schema = _name(target), target._schema
        n = {a.name: a.default_value for a in schema.arguments}
        n |= dict(zip(n, args, strict=False)) | kwargs
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        if torch.Tag.nondeterministic_seeded in target.tags and n.get("train") is not False:
            raise _unknown(target, ", which draws random numbers")
        if name in FILLED:
            return self.constant(torch.full(val.shape, float(n.get("fill_value", FILLED[name]))))
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
        """Returns a constant, as a Block if it has an axis of sequences and may be a state."""
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
# Each function has the Reader, torch's arguments by name, and torch's description of the result.

Given = dict[str, Any]
# Operators that fill a tensor, with their number.
FILLED = {f"{prefix}{name}": value for name, value in (("zeros", 0), ("ones", 1), ("empty", 0), ("full", 0))
          for prefix in ("", "new_")}  # fmt: skip
FILLED |= dict(zeros_like=0, ones_like=1, empty_like=0, full_like=0)


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
    """A sum over one axis: its mean times its size. r.sums has the mean, for a division by the size."""
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


def _moved(r: Reader, n: Given, val: Any) -> Any:
    order = list(range(len(n["self"].axes)))
    if "dims" in n:
        order = [order[d] for d in n["dims"]]
    else:
        names = next((names for names in (("dim0", "dim1"), ("axis0", "axis1")) if names[0] in n), None)
        a, b = (n[name] for name in names) if names else (-1, -2)[: len(order)]
        order[a], order[b] = order[b], order[a]
    return n["self"].moved(order)


def _movedim(r: Reader, n: Given, val: Any) -> Any:
    axes = len(n["self"].axes)
    source, target = ([int(d) % axes for d in np.atleast_1d(n[name])] for name in ("source", "destination"))
    order = [axis for axis in range(axes) if axis not in source]
    for to, axis in sorted(zip(target, source, strict=True)):
        order.insert(to, axis)
    return n["self"].moved(order)


def _expanded(r: Reader, n: Given, val: Any) -> Block:
    block: Block = n["self"]
    repeats = n.get("repeats")
    block = Block(block.values, ((),) * (len(val.shape) - len(block.axes)) + block.axes)
    for axis, size in enumerate(val.shape):
        own, like = r.size(block, block.axes[axis]), n.get("other")
        if own == 1 and isinstance(like, Block) and COLUMNS in like.axes[axis]:
            continue  # a mean for all features: operators repeat it
        block = r.repeated(block, axis, size // own if repeats is None else repeats[axis])
    return block


def _selected(r: Reader, n: Given, val: Any) -> Block:
    axis, block = n["dim"], n["self"]
    k = n["index"] % r.size(block, block.axes[axis])
    return r.without(r.taken(block, axis, range(k, k + 1)), axis)


def _sliced(r: Reader, n: Given, val: Any) -> Block:
    size = r.size(n["self"], n["self"].axes[n["dim"]])
    end = n["start"] + n["length"] if "length" in n else n["end"]
    return r.taken(n["self"], n["dim"], range(*slice(n["start"], end, n.get("step", 1)).indices(size)))


def _split(r: Reader, n: Given, val: Any) -> list[Block]:
    axis, block = n.get("dim", 1), n["self"]  # hsplit has no dim
    ends = [0, *accumulate(part.shape[axis] for part in val)]
    return [r.taken(block, axis, range(a, b)) for a, b in pairwise(ends)]


def _unbound(r: Reader, n: Given, val: Any) -> list[Block]:
    return [_selected(r, n | {"index": k}, val) for k in range(len(val))]


def _stacked(r: Reader, n: Given, val: Any) -> Any:
    axis = n["dim"] % len(val.shape)
    parts = [
        Block(b.values, (*b.axes[:axis], (), *b.axes[axis:])) for b in n["tensors"] if isinstance(b, Block)
    ]
    return r.joined(parts if len(parts) == len(n["tensors"]) else n["tensors"], axis)


def _flipped(r: Reader, n: Given, val: Any) -> Any:
    block = n["self"]
    for axis in n["dims"]:
        if not block.axes[axis] or set(block.axes[axis]) & {ROWS, COLUMNS}:
            raise _unknown("flip", " of features or sequences")
        size = r.size(block, block.axes[axis])
        block = r.taken(block, axis, range(size)[::-1])
    return block


def _written(r: Reader, n: Given, val: Any) -> Any:
    """select_scatter and slice_scatter: a tensor with another part of an axis."""
    axis, block, part = n["dim"], n["self"], n["src"]
    size = r.size(block, block.axes[axis])
    if "index" in n:
        start, stop = n["index"] % size, n["index"] % size + 1
        at = axis % len(block.axes)
        part = Block(part.values, (*part.axes[:at], (), *part.axes[at:]))
    else:
        start, stop, step = slice(n["start"], n["end"], n["step"]).indices(size)
        if step != 1:
            raise _unknown("slice_scatter", ", with steps")
    before, after = r.taken(block, axis, range(start)), r.taken(block, axis, range(stop, size))
    parts = [p for p, m in ((before, start), (part, 1), (after, size - stop)) if m]
    return r.joined(parts, axis)


def _addmm(r: Reader, n: Given, val: Any) -> Block:
    bias = n["self"]
    if n["alpha"] != 1 or n["beta"] != 1:
        raise _unknown("addmm", ", with alpha or beta")
    if isinstance(bias, Block) or bias.numel() != val.shape[-1]:
        return r.each("Add", r.product(n["mat1"], n["mat2"]), bias)
    return r.product(n["mat1"], n["mat2"], bias)


def _layer_norm(r: Reader, n: Given, val: Any) -> Any:
    eps = n["eps"] if r.eps is None else r.eps
    result = r.normalised(n["input"], n["normalized_shape"], n["weight"], n["bias"], eps)
    return [result, None, None] if isinstance(val, (tuple, list)) else result


def _group_norm(r: Reader, n: Given, val: Any) -> Any:
    if n["num_groups"] != 1 or len(val.shape) != 2:
        raise _unknown("group_norm", ", with several groups or axes")
    return _layer_norm(r, n | {"normalized_shape": val.shape[1:]}, val)


def _leaky_relu(r: Reader, n: Given, val: Any) -> Block:
    if n["negative_slope"]:
        raise _unknown("leaky_relu", ", with a slope other than 0")
    return r.each("Relu", n["self"])


def _deviation(r: Reader, n: Given, val: Any) -> Block:
    return r.each("Sqrt", r.variance(n["self"], n))


TABLE: dict[str, Callable[[Reader, Given, Any], Any]] = {
    **dict.fromkeys(("alias", "clone", "contiguous", "detach", "dropout", "lift_fresh_copy", "to", "_to_copy",
                     "native_dropout"), _same),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze"),
                    lambda r, n, val: r.reshape(n["self"], val.shape)),
    **dict.fromkeys(("permute", "transpose", "t", "numpy_T", "swapaxes", "swapdims"), _moved),
    **dict.fromkeys(("movedim", "moveaxis"), _movedim),
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "tensor_split", "hsplit", "unsafe_chunk",
                     "unsafe_split", "unsafe_split_with_sizes"), _split),
    **dict.fromkeys(("slice", "narrow"), _sliced),
    **dict.fromkeys(("mm", "bmm"), lambda r, n, val: r.product(n["self"], n["mat2"])),
    "matmul": lambda r, n, val: r.product(n["self"], n["other"]),
    **dict.fromkeys(("layer_norm", "native_layer_norm"), _layer_norm),
    **dict.fromkeys(("select_scatter", "slice_scatter"), _written),
    **dict.fromkeys(("expand", "expand_as", "repeat"), _expanded),
    "select": _selected, "unbind": _unbound, "stack": _stacked, "flip": _flipped,
    "addmm": _addmm, "std": _deviation, "group_norm": _group_norm, "leaky_relu": _leaky_relu,
    "linear": lambda r, n, val: r.product(n["input"], n["weight"], n["bias"], True),
    "lerp": lambda r, n, val: r.each(
        "Add", n["self"], r.each("Mul", n["weight"], r.each("Sub", n["end"], n["self"]))),
    "_assert_tensor_metadata": lambda r, n, val: None,
    "cat": lambda r, n, val: r.joined(n["tensors"], n["dim"]),
    "copy": lambda r, n, val: n["src"],
    "mean": lambda r, n, val: r.mean(n["self"], n.get("dim") or (), n.get("keepdim", False)),
    "var": lambda r, n, val: r.variance(n["self"], n), "sum": _sum,
    "var_mean": lambda r, n, val: [r.variance(n["self"], n), r.mean(n["self"], n["dim"], n["keepdim"])],
    "std_mean": lambda r, n, val: [_deviation(r, n, val), r.mean(n["self"], n["dim"], n["keepdim"])],
    "add": _binary("Add"), "sub": _binary("Sub"), "mul": _binary("Mul"), "div": _div,
    "rsub": lambda r, n, val: r.each("Sub", n["other"], _operand(r, n | {"other": n["self"]})),
    "pow": lambda r, n, val: _power(r, n["self"], n["exponent"]),
    "square": lambda r, n, val: _power(r, n["self"], 2),
    "rsqrt": lambda r, n, val: _power(r, n["self"], -0.5),
    "reciprocal": lambda r, n, val: _power(r, n["self"], -1),
    "sqrt": _unary("Sqrt"), "neg": _unary("Neg"), "exp": _unary("Exp"), "sigmoid": _unary("Sigmoid"),
    "tanh": _unary("Tanh"), "relu": _unary("Relu"),
    "hardsigmoid": _unary("HardSigmoid", alpha=1 / 6, beta=0.5),
}  # fmt: skip
