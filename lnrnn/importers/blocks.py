"""Represents tensors of a traced torch module as values of a graph, with ONNX operators, for lnrnn.recognise.

Each graph value has the axes (sequences, features). A tensor with more axes is a `Block` of values: one for
each step, layer or gate. So views, stacks and slices of tensors only rearrange values, and a loop over
steps becomes the same operators for each step. This file does not import torch.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ..recognise.interface import FRONT, Front, prepare

Array = np.ndarray
ROWS, COLUMNS = "rows", "columns"  # factors of an axis: the two axes of a graph value
Axis = tuple[Any, ...]  # factors of an axis's size: counts of values, ROWS, COLUMNS; () for size 1
MOST_NODES = 20_000


class Unsuitable(Exception):
    """Raised if the equation of a module cannot be found. The text says why."""


# --- the graph ----------------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class Value:
    name: str
    shape: tuple[Any, ...]
    graph: Graph
    const_value: Array | None = None
    node: Node | None = None
    users: dict[Node, None] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    dtype = None

    def producer(self) -> Node | None:
        return self.node

    def consumers(self) -> tuple[Node, ...]:
        return (*self.users,)

    def is_graph_input(self) -> bool:
        return self.node is None and self.const_value is None

    def is_graph_output(self) -> bool:
        return id(self) in self.graph.results

    def is_initializer(self) -> bool:
        return self.const_value is not None


@dataclass(frozen=True)
class Attribute:
    value: Any
    type: int = 0

    def is_ref(self) -> bool:
        return False


@dataclass(eq=False, repr=False)
class Node:
    name: str
    op_type: str
    inputs: tuple[Value, ...]
    graph: Graph
    attributes: dict[str, Attribute]
    outputs: tuple[Value, ...] = ()
    meta: dict[str, Any] = field(default_factory=dict)
    domain = ""


class Graph:
    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.results: set[int] = set()  # ids of the outputs
        self.meta: dict[str, Any] = {FRONT: Front()}
        self.written = ""  # name of the torch operator that is being translated
        self._known: dict[Any, Value] = {}

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def input(self, name: str, width: int) -> Value:
        self.inputs.append(Value(name, ("sequences", width), self))
        return self.inputs[-1]

    def constant(self, array: Any, name: str = "constant") -> Value:
        array = np.asarray(array)
        return Value(name, array.shape, self, array)

    def node(self, operator: str, *inputs: Value, width: int = 0, **attributes: Any) -> Value:
        """Returns the output of a new node, or of an equal existing one. width: its features; 0: as input."""
        key = operator, *map(id, inputs), *attributes.items()
        if key not in self._known:
            if len(self.nodes) >= MOST_NODES:
                raise Unsuitable(f"its graph has more than {MOST_NODES} nodes")
            name = self.written or f"{operator} {len(self.nodes)}"
            given = {key: Attribute(value) for key, value in attributes.items()}
            node = Node(name, operator, inputs, self, given)
            width = width or max(_width(v) for v in inputs)
            node.outputs = (Value(name, ("sequences", width), self, node=node),)
            for v in inputs:
                v.users[node] = None
            self.nodes.append(node)
            self._known[key] = node.outputs[0]
        return self._known[key]

    def end(self, outputs: Iterable[Value]) -> None:
        """Sets the graph's outputs, and removes all nodes that they do not depend on."""
        self.results = {id(v) for v in outputs}
        kept: list[Node] = []
        needed = set(self.results)
        for node in self.nodes[::-1]:
            if id(node.outputs[0]) in needed:
                needed |= {id(v) for v in node.inputs}
                kept.append(node)
            else:
                for v in node.inputs:
                    v.users.pop(node, None)
        self.nodes = kept[::-1]
        prepare(self, self.meta[FRONT])

    def slice(self, value: Value, start: int, stop: int, step: int = 1) -> Value:
        if value.const_value is not None:
            key = "slice", id(value), start, stop, step
            part = self.constant(value.const_value[:, start:stop:step], value.name)
            return self._known.setdefault(key, part)
        numbers = (self._integer(n) for n in (start, stop, 1, step))
        return self.node("Slice", value, *numbers, width=len(range(start, stop, step)))

    def concat(self, parts: Sequence[Value]) -> Value:
        """Concatenates values along the features. Joining all slices of a value returns this value."""
        whole = parts[0].node.inputs[0] if parts[0].node and parts[0].node.op_type == "Slice" else None
        if whole is not None and sum(map(_width, parts)) == _width(whole):
            ends = [0, *accumulate(map(_width, parts))]
            if all(
                self.slice(whole, a, b) is part for part, (a, b) in zip(parts, pairwise(ends), strict=True)
            ):
                return whole
        if len(parts) == 1:
            return parts[0]
        return self.node("Concat", *parts, width=sum(map(_width, parts)), axis=-1)

    def _integer(self, n: int) -> Value:
        return self._known.setdefault(("integer", n), self.constant(np.array([n])))


def _width(value: Value) -> int:
    return int(value.shape[-1]) if value.shape else 1


# --- tensors ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Block:
    """A tensor as an object array of graph values, with an axis for each integer factor in `axes`."""

    values: Any
    axes: tuple[Axis, ...]

    @property
    def width(self) -> int:
        return _width(self.values.flat[0])

    def moved(self, order: Sequence[int]) -> Block:
        """Returns the tensor with permuted axes, as torch.Tensor.permute does."""
        first = np.cumsum([0, *(len(counts_of(axis)) for axis in self.axes)])
        places = [k for axis in order for k in range(first[axis], first[axis + 1])]
        return Block(self.values.transpose(places), tuple(self.axes[axis] for axis in order))

    def along(self, axis: int) -> tuple[Any, int]:
        """Returns (array of values, whose axis 0 runs along this axis of the tensor; its length)."""
        counts = counts_of(self.axes[axis])
        at = len(numbers_of(self.axes[:axis]))
        values = np.moveaxis(self.values, range(at, at + len(counts)), range(len(counts)))
        return values.reshape(-1, *values.shape[len(counts) :]), math.prod(counts)


def counts_of(axis: Axis) -> list[int]:
    return [n for n in axis if isinstance(n, int)]


def numbers_of(axes: Sequence[Axis]) -> list[int]:
    return [n for axis in axes for n in counts_of(axis)]


def filled(shape: Sequence[int], make: Callable[[tuple[int, ...]], Value]) -> Any:
    result = np.empty(tuple(shape), object)
    for at in np.ndindex(*result.shape):
        result[at] = make(at)
    return result


class Blocks:
    """Translates operators on Blocks to nodes of a graph.

    batch: the number of sequences; no other axis has this size. units: the number of hidden units, or None if
    it is unknown. It tells how a view divides features.
    """

    def __init__(self, batch: int, units: int | None) -> None:
        self.graph, self.batch, self.units = Graph(), batch, units
        self._weights: dict[Any, Value] = {}
        self._kept: list[Any] = []  # keeps tensors alive whose ids are keys

    def weight(self, tensor: Any) -> Value:
        """Returns a weight tensor as a constant of the graph; the same one for tensors that share memory."""
        key = tensor.data_ptr(), tuple(tensor.shape), tensor.stride()
        if key not in self._weights:
            self._kept.append(tensor)
            self._weights[key] = self.graph.constant(array_of(tensor))
        return self._weights[key]

    def size(self, block: Block, axis: Axis) -> int:
        sizes: dict[Any, int] = {ROWS: self.batch, COLUMNS: block.width}
        return math.prod([sizes[n] if isinstance(n, str) else n for n in axis])

    def reshape(self, block: Block, shape: Sequence[int]) -> Block:
        """Returns a view with another shape. Splitting the axis of features gives slices of values."""
        left, axes = deque(n for axis in block.axes for n in axis), list[Axis]()
        values, width = block.values, block.width
        for size in map(int, shape):
            factors: list[Any] = []
            while size > 1:
                if not left:
                    raise Unsuitable("its views mix steps, sequences and features")
                factor = left.popleft()
                n = {ROWS: self.batch, COLUMNS: width}.get(factor, factor)
                if n > 1 and size % n == 0:
                    factors.append(factor)
                    size //= n
                elif n > 1 and factor is not ROWS and n % size == 0:
                    rest = n // size
                    done = [*numbers_of(axes), *counts_of(tuple(factors))]
                    if factor is COLUMNS:
                        whole = rest == self.units or (size != self.units and size <= rest)
                        values = self._divided(values, len(done), size if whole else rest, width, whole)
                        factors.append(size if whole else COLUMNS)
                        left.appendleft(COLUMNS if whole else rest)
                        width = rest if whole else size
                    else:
                        values = values.reshape(*done, size, rest, *counts_of(tuple(left)))
                        factors.append(size)
                        left.appendleft(rest)
                    size = 1
                elif n > 1:
                    raise Unsuitable("its views mix steps, sequences and features")
            axes.append(tuple(factors))
        return Block(values.reshape(numbers_of(axes)), tuple(axes))

    def _divided(self, values: Any, at: int, parts: int, width: int, whole: bool) -> Any:
        """Splits features over a new array axis `at`. whole: the parts are contiguous; otherwise strided."""
        n = width // parts
        bounds = [(k * n, k * n + n, 1) if whole else (k, width, parts) for k in range(parts)]
        cut = np.frompyfunc(self.graph.slice, 4, 1)
        return np.stack([np.asarray(cut(values, *each), object) for each in bounds], at)

    def flat(self, block: Block, axis: int = -1) -> Block:
        """Returns the tensor with this axis as the features of its values, for operators along features."""
        own = block.axes[axis]
        if own == (COLUMNS,) or (own == () and block.width == 1):
            return block
        counts = counts_of(own)
        if ROWS in own or (COLUMNS in own[:-1]) or len(counts) < len(own) - 1:
            raise Unsuitable("an operator along the features mixes them with steps or sequences")
        if COLUMNS not in own and block.width > 1:
            raise Unsuitable("an operator along the features mixes them with steps or sequences")
        parts = block.along(axis % len(block.axes))[0]
        values = filled(parts.shape[1:], lambda at: self.graph.concat([*parts[(slice(None), *at)]]))
        axes = list(block.axes)
        axes[axis] = (COLUMNS,)
        return Block(values, tuple(axes))

    def taken(self, block: Block, axis: int, numbers: range) -> Block:
        """Returns the elements `numbers` of an axis, as torch.index_select does."""
        own, axis = block.axes[axis], axis % len(block.axes)
        size = self.size(block, own)
        if numbers == range(size):
            return block
        if ROWS in own:
            raise Unsuitable("it separates the sequences of a batch")
        width = block.width if COLUMNS in own else 1
        if COLUMNS in own and (numbers.step != 1 or numbers.start % width or len(numbers) % width):
            block = self.flat(block, axis)
            values = filled(block.values.shape, lambda at: self.graph.slice(
                block.values[at], numbers.start, numbers.stop, numbers.step))  # fmt: skip
            return Block(values, block.axes)
        counts = counts_of(own)
        if own[len(counts) :] not in ((), (COLUMNS,)):
            raise Unsuitable("its slices mix steps and features")
        kept = numbers if width == 1 else range(numbers.start // width, numbers.stop // width)
        values = block.along(axis)[0][list(kept)]
        new = (*_factor(len(kept)), *own[len(counts) :])
        others = [a for k, a in enumerate(block.axes) if k != axis]
        first = Block(values.reshape(numbers_of([new, *others])), (new, *others))
        return first.moved([*range(1, axis + 1), 0, *range(axis + 1, len(block.axes))])

    def without(self, block: Block, axis: int) -> Block:
        """Returns the tensor without this axis of size 1, as torch.squeeze does."""
        axis %= len(block.axes)
        return Block(block.values, (*block.axes[:axis], *block.axes[axis + 1 :]))

    def repeated(self, block: Block, axis: int, n: int) -> Block:
        """Returns n copies of a tensor concatenated along an axis."""
        if n == 1:
            return block
        axes, at = list(block.axes), len(numbers_of(block.axes[:axis]))
        axes[axis] = (n, *axes[axis])
        return Block(np.repeat(np.expand_dims(block.values, at), n, at), tuple(axes))

    def joined(self, blocks: Sequence[Any], axis: int) -> Any:
        """Concatenates Blocks along an axis, as torch.cat does."""
        if len(blocks) == 1:
            return blocks[0]
        if not all(isinstance(b, Block) and len(b.axes) == len(blocks[0].axes) for b in blocks):
            raise Unsuitable("it concatenates a constant with values that depend on its input")
        axis %= len(blocks[0].axes)
        own, widths = {b.axes[axis] for b in blocks}, {b.width for b in blocks}
        if not any(ROWS in a or COLUMNS in a for a in own):
            axes = [*blocks[0].axes]
            axes[axis] = (sum(b.along(axis)[1] for b in blocks),)
            self._same_axes(blocks, axis)
            first = [axes[axis], *axes[:axis], *axes[axis + 1 :]]
            values = np.concatenate([b.along(axis)[0] for b in blocks]).reshape(numbers_of(first))
            return Block(values, tuple(first)).moved([*range(1, axis + 1), 0, *range(axis + 1, len(axes))])
        if len(own) == len(widths) == 1:
            self._same_axes(blocks, axis)
            axes, at = [*blocks[0].axes], len(numbers_of(blocks[0].axes[:axis]))
            axes[axis] = (len(blocks), *axes[axis])
            return Block(np.stack([b.values for b in blocks], at), tuple(axes))
        blocks = [self.flat(b, axis) for b in blocks]
        self._same_axes(blocks, axis)
        values = filled(blocks[0].values.shape, lambda at: self.graph.concat([b.values[at] for b in blocks]))
        axes = [*blocks[0].axes]
        axes[axis] = (COLUMNS,)
        return Block(values, tuple(axes))

    def _same_axes(self, blocks: Sequence[Block], but: int) -> None:
        others = [[a for k, a in enumerate(b.axes) if k != but] for b in blocks]
        if any(a != others[0] for a in others):
            raise Unsuitable("it concatenates tensors whose axes differ")

    # -- operators

    def each(self, operator: str, *given: Any, **attributes: Any) -> Block:
        """Applies an operator elementwise, with broadcasting, to Blocks and constant tensors."""
        axes, arrays = self._broadcast(given)
        values = filled(numbers_of(axes), lambda at: self.graph.node(
            operator, *(a[at] for a in arrays), **attributes))  # fmt: skip
        return Block(values, axes)

    def _broadcast(self, given: Sequence[Any]) -> tuple[tuple[Axis, ...], list[Any]]:
        torch: Any = sys.modules["torch"]
        each = [g if isinstance(g, (Block, torch.Tensor)) else torch.tensor(float(g)) for g in given]
        n = max(len(g.axes) if isinstance(g, Block) else g.dim() for g in each)
        blocks = [g for g in each if isinstance(g, Block)]
        plain = [Block(b.values, ((),) * (n - len(b.axes)) + b.axes) for b in blocks]
        axes: list[Axis] = []
        for k in range(n):
            own = {b.axes[k] for b in plain} - {()}
            if len(own) > 1:
                if not all(a[-1] is COLUMNS for a in own) or len(own) > 2:
                    raise Unsuitable("it combines tensors whose axes differ")
                finest = max(own, key=len)
                parts = math.prod(counts_of(finest))
                sizes = [self.size(next(b for b in plain if b.axes[k] == a), a) for a in own]
                if set(own) != {finest, (COLUMNS,)} or sizes[0] != sizes[1]:
                    raise Unsuitable("it combines tensors whose axes differ")
                plain = [self._like(b, k, finest, parts) if b.axes[k] == (COLUMNS,) else b for b in plain]
                own = {finest}
            size = max([t.shape[k - n] for t in each if not isinstance(t, Block) and t.dim() >= n - k] or [1])
            constant = () if size == 1 else (COLUMNS,) if k == n - 1 else (size,)
            axes.append(own.pop() if own else constant)
        flat = [f for axis in axes for f in axis if not isinstance(f, int)]
        if flat.count(ROWS) != 1 or flat.count(COLUMNS) > 1:
            raise Unsuitable("it combines sequences with each other")
        shape, width = numbers_of(axes), max(b.width for b in plain)
        left = iter(plain)
        arrays = [self._values(next(left), axes, shape) if isinstance(g, Block) else
                  self._constants(g, axes, shape, width) for g in each]  # fmt: skip
        return tuple(axes), arrays

    def _like(self, block: Block, axis: int, factors: Axis, parts: int) -> Block:
        at = len(numbers_of(block.axes[:axis]))
        values = self._divided(block.values, at, parts, block.width, True)
        axes = list(block.axes)
        axes[axis] = factors
        return Block(values.reshape(numbers_of(axes)), tuple(axes))

    def _values(self, block: Block, axes: Sequence[Axis], shape: Sequence[int]) -> Any:
        counts = [
            n if own else 1 for own, axis in zip(block.axes, axes, strict=True) for n in counts_of(axis)
        ]
        return np.broadcast_to(block.values.reshape(counts), shape)

    def _constants(self, tensor: Any, axes: Sequence[Axis], shape: Sequence[int], width: int) -> Any:
        """Returns a constant tensor as an object array of graph constants: one for each graph value."""
        array = array_of(tensor)
        array = array.reshape((1,) * (len(axes) - array.ndim) + array.shape)
        factors: list[int] = []
        for k, axis in enumerate(axes):
            if ROWS in axis and array.shape[k] > 1:
                if (array != array.take([0], k)).any():
                    raise Unsuitable("it has constants that differ between the sequences of a batch")
                array = array.take([0], k)
            one = array.shape[k] == 1
            own = array.shape[k] // max(math.prod(counts_of(axis)), 1)
            factors += [1 if one or f is ROWS else own if f is COLUMNS else f for f in axis]
        array = array.reshape(factors)
        every = [f for axis in axes for f in axis]
        numbers = [k for k, f in enumerate(every) if isinstance(f, int)]
        rows = array.transpose(*numbers, *(k for k in range(len(every)) if k not in numbers))
        rows = rows.reshape(*(rows.shape[: len(numbers)]), -1)
        rows = np.broadcast_to(rows, (*shape, rows.shape[-1]))
        scalar = tensor.numel() == 1
        return filled(shape, lambda at: self.graph.constant(rows[at][0] if scalar else rows[at]))

    def product(self, a: Any, b: Any, bias: Any = None, transposed: bool = False) -> Block:
        """Returns a @ b + bias, where b is a weight. transposed: a @ b^T, as torch.nn.Linear computes."""
        if not isinstance(a, Block):
            if not isinstance(b, Block) or a.dim() != 2 or len(b.axes) < 2 or transposed:
                raise Unsuitable("it multiplies weights along other axes than features")
            order = [*range(len(b.axes) - 2), len(b.axes) - 1, len(b.axes) - 2]
            turned: Block = self.product(b.moved(order), a, None, True)
            return turned.moved(order)
        if isinstance(b, Block):
            raise Unsuitable("it has a product of two values that depend on its input")
        if b.dim() == 3 and len(a.axes) == 3 and bias is None:
            parts = [self.taken(a, 0, range(k, k + 1)) if a.axes[0] else a for k in range(len(b))]
            products = [self.product(p, w, None, transposed) for p, w in zip(parts, b, strict=True)]
            joined: Block = self.joined(products, 0)
            return joined
        a = self.flat(a)
        if b.dim() != 2 or (bias is not None and bias.numel() != b.shape[not transposed]):
            raise Unsuitable("it multiplies weights along other axes than features")
        given = [self.weight(b)] if bias is None else [self.weight(b), self.weight(bias.reshape(-1))]
        width = b.shape[not transposed]
        values = filled(a.values.shape, lambda at: self.graph.node(
            "Gemm", a.values[at], *given, width=width, transB=int(transposed)))  # fmt: skip
        return Block(values, (*a.axes[:-1], (COLUMNS,)))

    def normalised(self, block: Block, shape: Sequence[int], gain: Any, bias: Any, eps: float) -> Block:
        torch: Any = sys.modules["torch"]
        whole = [self.size(block, axis) for axis in block.axes]
        width = math.prod(shape)
        a = self.flat(self.reshape(block, [*whole[: -len(shape)], width]))
        given = [self.weight((torch.ones(width) if gain is None else gain).reshape(-1))]
        given += [] if bias is None or not bias.any() else [self.weight(bias.reshape(-1))]
        values = filled(a.values.shape, lambda at: self.graph.node(
            "LayerNormalization", a.values[at], *given, axis=-1, epsilon=eps))  # fmt: skip
        result = Block(values, a.axes)
        if bias is not None and len(given) == 1:  # the recogniser expects a bias of zeros in an Add
            result = self.each("Add", result, bias.reshape(-1))
        return self.reshape(result, whole)

    def mean(self, block: Block, dims: Sequence[int], keep: bool) -> Block:
        if len(dims or ()) != 1:
            raise Unsuitable("it has a mean over several axes, and norms have one")
        (axis,) = (d % len(block.axes) for d in dims)
        a = self.flat(block, axis)
        values = filled(a.values.shape, lambda at: self.graph.node(
            "ReduceMean", a.values[at], width=1, axes=(-1,), keepdims=1))  # fmt: skip
        axes = (*a.axes[:axis], (), *a.axes[axis + 1 :])
        return Block(values, axes if keep else (*axes[:axis], *axes[axis + 1 :]))

    def variance(self, block: Block, n: dict[str, Any]) -> Block:
        (axis,) = n.get("dim") or (None,)
        correction = n.get("correction", int(n.get("unbiased", True)))
        if axis is None:
            raise Unsuitable("it has a variance over several axes, and norms have one")
        centred = self.each("Sub", block, self.mean(block, [axis], True))
        size = self.size(block, block.axes[axis])
        result = self.mean(self.each("Mul", centred, centred), [axis], n["keepdim"])
        correction = 1 if correction is None else correction
        return result if not correction else self.each("Mul", result, size / max(size - correction, 1e-9))


def _factor(n: int) -> Axis:
    return () if n == 1 else (n,)


def array_of(tensor: Any) -> Array:
    result: Array = tensor.detach().cpu().numpy()
    return result.astype(np.float32) if result.dtype == np.float64 else result
