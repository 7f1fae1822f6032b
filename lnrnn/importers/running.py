"""Runs a torch module with the usual arguments of recurrent modules, in float64 if possible.

This file does not import torch: whoever passes a module has imported it.
"""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..recognise.proof import DOUBLE, SINGLE, STEPS, Leaf, Outputs, Probe, Reference, Unchecked, compare
from ..rnn.architecture import Architecture
from .weights import Array, Converted


class NotRun(Unchecked):
    """Raised if no way to call a module works on ordinary input."""


@dataclass(frozen=True)
class Way:
    """A way to call a module: the order of x's axes, and the structure of the states.

    axes: "TBI", "BTI", "TI" for one sequence, or "BI" for a cell, which takes one step at a time.
    states: the arguments besides x, with a Leaf for each tensor of the states. x_first: whether x is the
    first argument.
    """

    axes: str
    states: tuple[Any, ...] = ()
    x_first: bool = True

    @property
    def kinds(self) -> int:
        """The number of states in a call: 0, 1 (h) or 2 (h and c)."""
        kinds = set[int | None]()
        _replaced(self.states, lambda leaf: kinds.add(leaf.kind))
        return len(kinds)

    @property
    def batch_first(self) -> bool | None:
        """Whether x is (B, T, I) instead of (T, B, I); None if x lacks B or T."""
        return self.axes == "BTI" if len(self.axes) == 3 else None

    def __str__(self) -> str:
        given = [str(each).replace("'", "").replace(",)", ")")
                 for each in _replaced(self.states, lambda leaf: "hcnm"[leaf.kind or 0])]  # fmt: skip
        return f"module({', '.join(['x', *given] if self.x_first else [*given, 'x'])})"

    def call(self, module: Any, x: Any, states: Sequence[Any]) -> Any:
        given = filled(self.states, states)
        return module(x, *given) if self.x_first else module(*given, x)

    def sequence(self, x: Array) -> Array:
        """Returns a user's x, in the module's order of axes, as (T, B, I).

        A cell's x (B, I) is repeated for several steps, because one step alone would not use the state.
        """
        if x.ndim == 2:
            return x[:, None] if self.axes == "TI" else np.repeat(x[None], STEPS, 0)
        return time_first(x, self.batch_first)  # type: ignore[no-any-return]

    def run(
        self, arch: Architecture, probe: Probe, ends: bool, first: bool, training: bool, module: Any
    ) -> Outputs:
        """Calls a module on a probe. ends: also return the last states, if their structure is a usual one.

        If no tensor has y's shape, returns an empty y, or raises ValueError for the first probe.
        """
        module.train(training)
        torch, own, batch = sys.modules["torch"], like(module), probe.x.shape[1]
        places, widths = len(arch.suffixes), arch.state_widths
        start = probe.states or [np.zeros((places, batch, n)) for n in widths]
        x, *states = (torch.tensor(a, device=own.device, dtype=own.dtype) for a in (probe.x, *start))
        given = numbers(x), None if probe.states is None else [*map(numbers, states)]
        if self.axes == "BI":
            ys, shapes = [], [tuple(state.shape[1:]) for state in states]
            for step in x:
                result = list(tensors(self.call(module, step, states)))
                if len(result) < len(shapes) or any(tuple(t.shape) != shapes[0] for t in result):
                    raise ValueError(f"states must be of {shapes}, got {[tuple(t.shape) for t in result]}")
                ys.append(numbers(result[0]))  # a cell returns (h, c), (h, (h, c)), h or (h, h)
                states = [t[None] for t in result[-len(shapes) :]]
            return Outputs(*given, [(Leaf(), np.array(ys))])
        x = x[:, 0] if self.axes == "TI" else time_first(x, self.batch_first)
        result = list(tensors(self.call(module, x, states)))
        shape, heads = (*x.shape[:-1], arch.directions * arch.h_width), arch.num_heads
        by_head = (shape[0], heads, *shape[1:-1], shape[-1] // heads)  # xlstm's cells return y by head
        result = [t.transpose(1, -2).flatten(-2) if tuple(t.shape) == by_head else t for t in result]
        shapes = [tuple(t.shape) for t in result]
        if shape not in shapes:
            if first:
                raise ValueError(f"it returns no tensor of shape {shape}")
            return Outputs(*given, [(Leaf(), np.zeros((0, 0, 0)))])
        at = shapes.index(shape)
        del shapes[at]
        y, rest = numbers(result.pop(at)), [Leaf(k) for k in range(len(widths))]
        if shapes != [(places, batch, n) for n in widths]:  # each layer and direction has its own states
            rest = [Leaf(k, place) for place in range(places) for k in range(len(widths))]
            ends = ends and shapes == [(batch, n) for n in widths] * places
        y = y[:, None] if self.axes == "TI" else time_first(y, self.batch_first)
        return Outputs(*given, [(Leaf(), y), *(zip(rest, map(numbers, result), strict=True) if ends else ())])


def ways(arch: Architecture, flat: bool = False) -> Iterator[Way]:
    """Yields the usual ways to call a module. flat: x has two axes, (T, I) or a cell's (B, I)."""
    kinds = len(arch.state_widths)
    for axes in ("TI",) if flat else ("BTI", "TBI") if arch.batch_first else ("TBI", "BTI"):
        every = STATELESS if flat else arguments(kinds, arch.num_layers, arch.directions)
        yield from (Way(axes, states) for states in every)
    yield from cells(kinds) if len(arch.suffixes) == 1 else ()


def cells(kinds: int) -> list[Way]:
    """Returns the usual ways to call a cell. kinds: 1 for h, 2 for h and c."""
    leaves = tuple(Leaf(kind, 0) for kind in range(kinds))
    return [Way("BI", states) for states in ((leaves,), leaves)[kinds == 1 :]]


STATELESS: tuple[tuple[Any, ...], ...] = (), (None,)


def arguments(kinds: int, layers: int, directions: int) -> Iterator[tuple[Any, ...]]:
    """Yields the usual arguments after x of a layer or stack, with a Leaf for each tensor of the state.

    kinds: 1 for h, 2 for h and c. The state may be absent, None, as in torch.nn, or as in a cell. It may be
    two arguments h and c, or a list of states for layers, for directions, or for both.
    """

    def cell(place: int | None) -> Any:
        leaves = tuple(Leaf(kind, place) for kind in range(kinds))
        return leaves if kinds > 1 else leaves[0]

    yield from STATELESS
    yield (cell(None),)
    if layers * directions == 1:
        yield (cell(0),)
    if directions == 1:
        yield ([cell(k) for k in range(layers)],)
    else:
        yield ([[cell(k * directions + d) for d in range(directions)] for k in range(layers)],)
        if layers == 1:
            yield ([cell(d) for d in range(directions)],)
    if layers * directions == 1 and kinds > 1:
        yield cell(0)


def filled(template: Any, states: Sequence[Any]) -> Any:
    """Replaces each Leaf of a structure by its part of the states (layers * directions, B, H)."""
    return _replaced(template, lambda leaf: leaf.of(None, states))


def _replaced(template: Any, by: Callable[[Leaf], Any]) -> Any:
    if isinstance(template, Leaf):
        return by(template)
    return None if template is None else type(template)(_replaced(part, by) for part in template)


def tensors(result: Any) -> Iterator[Any]:
    """Yields the tensors in nested tuples, lists and mappings, in order."""
    if isinstance(result, sys.modules["torch"].Tensor):
        yield result
    elif isinstance(result, (tuple, list, Mapping)):
        for part in result.values() if isinstance(result, Mapping) else result:
            yield from tensors(part)


def numbers(t: Any) -> Array:
    """Returns a tensor as a float64 array. Complex numbers become pairs on a new last axis."""
    t = sys.modules["torch"].view_as_real(t.resolve_conj()) if t.is_complex() else t
    result: Array = t.detach().cpu().double().numpy().copy()  # a copy: the module may overwrite the tensor
    return result


def time_first(x: Any, batch_first: bool | None) -> Any:
    """Swaps the axes 0 and 1 of x if batch_first is True, else returns x."""
    return x.swapaxes(0, 1) if batch_first else x


# --- float64 ------------------------------------------------------------------------------------------------


class Tested:
    """Compares a module with lnrnn on probes: a float64 copy, or the module itself if the copy fails.

    convert: a function that returns the Converted network of a module.
    """

    def __init__(self, module: Any, convert: Callable[[Any], Converted]) -> None:
        self.convert = convert
        double = _copied(module, lambda each: each.double())
        self._versions = [(double, DOUBLE, in_double), (module, resolution(module), nullcontext)]
        self._networks: dict[Any, Reference] = {}

    def results(
        self, way: Way, arch: Architecture, given: Iterable[Probe], ends: bool, training: bool = False
    ) -> Iterator[tuple[Probe, Outputs | None, tuple[float, float] | None]]:
        """Runs the probes. Yields (probe, outputs, (difference, limit) as from `disagreement`, or None).

        outputs: None if the module raises. If the first probe fails, or its outputs prove nothing, raises
        Unchecked. A module in half precision runs on probes with ordinary numbers only.
        """
        first = True
        for probe in given:
            yield probe, *self._compared(probe, partial(way.run, arch, probe, ends, first, training), first)
            first = False

    def _compared(self, probe: Probe, run: Callable[[Any], Outputs], first: bool) -> tuple[Any, Any]:
        failure = ""
        for k, (module, eps, context) in enumerate(self._versions):
            if probe.factor != 1:
                module = _copied(module, lambda each: [p.data.mul_(probe.factor) for p in each.parameters()])
            if module is None or not (probe.usual or eps < 2 * SINGLE):
                continue
            try:
                with context(), unchanged(module, sys.modules["torch"]):
                    outputs = run(module)
            except Exception as error:  # a module may raise any exception
                line = next(iter(str(error).strip().splitlines()), "")
                failure = f"{type(error).__name__}: {line[:120]}"
                continue
            network = self._networks.get(probe.factor)
            if network is None:  # the float64 copy has equal parameters: share it
                of = module if probe.factor != 1 else self._versions[-1][0]
                network = self._networks[probe.factor] = Reference(self.convert(of))
            difference = compare(outputs, network, eps, first)
            double = difference and first and eps == DOUBLE
            if double and compare(outputs, network, SINGLE) is None:  # float32 inside
                self._versions[k], difference = (module, SINGLE, context), None
            return outputs, difference
        if first:
            raise NotRun(failure)
        return None, None


def like(module: Any) -> Any:
    """Returns a tensor with the device and floating dtype of a module's parameters."""
    torch: Any = sys.modules["torch"]
    return next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0))


def resolution(module: Any) -> float:
    """Returns the machine epsilon of a module's dtype, at least float32's: forward may use float32 inside."""
    torch: Any = sys.modules["torch"]
    return max(SINGLE, float(torch.finfo(like(module).dtype).eps))


def _copied(module: Any, change: Callable[[Any], Any]) -> Any:
    """Returns a copy of the module after change(copy), or None if copying or changing fails."""
    try:
        change(result := copy.deepcopy(module))
    except Exception:  # modules may raise any exception
        return None
    return result


@contextmanager
def one_thread() -> Iterator[None]:
    """A context in which torch uses one thread, because its operations are small here."""
    torch: Any = sys.modules["torch"]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_double() -> Any:
    """Returns a context in which torch functions use float64 in place of narrower floating dtypes."""
    torch: Any = sys.modules["torch"]
    narrow = torch.float32, torch.float16, torch.bfloat16
    casts = torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16

    def wide(value: Any) -> Any:
        return torch.float64 if isinstance(value, torch.dtype) and value in narrow else value

    class Double(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function in casts:
                return args[0].double()
            result = function(*map(wide, args), **{key: wide(v) for key, v in (kwargs or {}).items()})
            return result.double() if isinstance(result, torch.Tensor) and result.dtype in narrow else result

    return Double()


# --- nothing changes ----------------------------------------------------------------------------------------


@contextmanager
def unchanged(module: Any, torch: Any) -> Iterator[None]:
    """A context with the module in evaluation mode and without gradients. Its end restores the module.

    Restored are torch's random state and the module's flags, attributes, parameters and buffers. Dicts, lists
    and sets in attributes get their contents back, at any depth.
    """
    parts = list(module.modules())
    flags = [part.training for part in parts]  # not in vars(part) for scripted modules
    values: list[Any] = [*map(vars, parts)]
    containers: dict[int, tuple[Any, Any]] = {}  # id -> (container, copy of its contents)
    for value in values:  # grows during the loop
        if isinstance(value, (dict, list, set, deque, tuple)) and id(value) not in containers:
            contents = dict(value) if isinstance(value, dict) else list(value)
            containers[id(value)] = value, contents
            values += contents.values() if isinstance(contents, dict) else contents
    plain = [v for v in values if isinstance(v, torch.Tensor)]
    own = (t for t in (*module.parameters(), *module.buffers(), *plain) if not t.is_meta)
    kept = [(t, t.detach().clone()) for t in own]
    cuda = sorted({t.device.index for t, _ in kept if t.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices=cuda), torch.no_grad():
            module.eval()
            yield
    finally:
        with torch.no_grad():
            for t, number in kept:
                if not torch.equal(t, number):
                    t.copy_(number)
        for held, contents in containers.values():
            if _identities(held) != _identities(contents):
                held.clear()
                (held.extend if isinstance(held, (list, deque)) else held.update)(contents)
        for part, flag in zip(parts, flags, strict=True):
            part.training = flag


def _identities(container: Any) -> list[int]:
    values = container.values() if isinstance(container, dict) else ()
    return [*map(id, container), *map(id, values)]
