"""Runs a torch module with arguments that recurrent modules usually take, in float64 if it can.

This file does not import torch: whoever passes a module has imported it.
"""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..recognise.probes import STEPS, Probe
from ..recognise.proof import DOUBLE, SINGLE, Outputs, Version
from ..recognise.reference_network import Leaf, ReferenceNetwork
from ..rnn.architecture import Architecture
from .weights import Array, Converted


@dataclass(frozen=True)
class Way:
    """A way to call a module.

    axes: of x, "TBI", "BTI", "TI" for one sequence, or "BI" for a cell, which takes one step at a time.
    states: the other arguments, with a Leaf for each tensor of the states. x_first: whether x is the first.
    """

    axes: str
    states: tuple[Any, ...] = ()
    x_first: bool = True

    @property
    def kinds(self) -> int:
        """The number of states, 2 for h and c."""
        return len({leaf.kind for leaf in _leaves(self.states)})

    @property
    def batch_first(self) -> bool | None:
        """The order of axes, None for an x without an axis of steps or sequences."""
        return self.axes == "BTI" if len(self.axes) == 3 else None

    def __str__(self) -> str:
        given = ["x", *map(_text, self.states)]
        return f"module({', '.join(given if self.x_first else [*given[1:], 'x'])})"

    def call(self, module: Any, x: Any, states: Sequence[Any]) -> Any:
        given = filled(self.states, states)
        return module(x, *given) if self.x_first else module(*given, x)

    def sequence(self, x: Array) -> Array:
        """Returns an input in the module's order of axes as (T, B, I).

        A cell's input (B, I) is repeated, because the state has no effect in the first step.
        """
        if x.ndim == 2:
            return x[:, None] if self.axes == "TI" else np.repeat(x[None], STEPS, 0)
        return time_first(x, self.batch_first)  # type: ignore[no-any-return]

    def run(self, module: Any, arch: Architecture, probe: Probe, ends: bool, first: bool) -> Outputs:
        """Calls a module on a probe. ends: whether to return the last states too, if they have a usual form.

        If no tensor of the result has y's shape, the result is an empty y, but for the first probe an error.
        """
        torch, own, batch = sys.modules["torch"], like(module), probe.x.shape[1]
        zeros = [np.zeros((len(arch.suffixes), batch, width)) for width in arch.state_widths]
        x, *states = (torch.tensor(a, device=own.device, dtype=own.dtype)
                      for a in (probe.x, *(zeros if probe.states is None else probe.states)))  # fmt: skip
        given = numbers(x), None if probe.states is None else tuple(map(numbers, states))
        if self.axes == "BI":
            ys, shapes = [], [tuple(state.shape[1:]) for state in states]
            for step in x:
                result = list(tensors(self.call(module, step, states)))
                if len(result) < len(shapes) or any(tuple(t.shape) != shapes[0] for t in result):
                    raise ValueError(f"a step returns tensors of shapes {[tuple(t.shape) for t in result]}")
                ys.append(numbers(result[0]))  # a cell returns (h, c) or (h, (h, c)), without c h or (h, h)
                states = [t[None] for t in result[-len(shapes) :]]
            return Outputs(*given, [(Leaf(), np.array(ys))])
        x = x[:, 0] if self.axes == "TI" else time_first(x, self.batch_first)
        result = list(tensors(self.call(module, x, states)))
        shape, heads = (*x.shape[:-1], arch.directions * arch.h_width), arch.num_heads
        by_head = (shape[0], heads, *shape[1:-1], shape[-1] // heads)  # as xlstm's cells return y
        result = [t.transpose(1, -2).flatten(-2) if tuple(t.shape) == by_head else t for t in result]
        at = next((i for i, t in enumerate(result) if tuple(t.shape) == shape), None)
        if at is None and first:
            raise ValueError(f"it returns no tensor of shape {shape}")
        if at is None:
            return Outputs(*given, [(Leaf(), np.zeros((0, 0, 0)))])
        y = numbers(result.pop(at))
        parts = [(Leaf(), y[:, None] if self.axes == "TI" else time_first(y, self.batch_first))]
        return Outputs(*given, parts + (_last_states(result, arch, batch) if ends else []))


def _leaves(template: Any) -> Iterator[Leaf]:
    if isinstance(template, Leaf):
        yield template
    elif template is not None:
        for part in template:
            yield from _leaves(part)


def _text(template: Any) -> str:
    if template is None or isinstance(template, Leaf):
        return "None" if template is None else "hcnm"[template.kind or 0]
    return f"({', '.join(map(_text, template))})"


def ways(arch: Architecture, flat: bool = False) -> Iterator[Way]:
    """Yields the usual ways to call a module. flat: whether x has two axes, (T, I) or a cell's (B, I)."""
    kinds = len(arch.state_widths)
    for axes in ("TI",) if flat else ("BTI", "TBI") if arch.batch_first else ("TBI", "BTI"):
        every = STATELESS if flat else arguments(kinds, arch.num_layers, arch.directions)
        yield from (Way(axes, states) for states in every)
    yield from cells(kinds) if len(arch.suffixes) == 1 else ()


def cells(kinds: int) -> list[Way]:
    """Returns the usual ways to call a cell."""
    leaves = tuple(Leaf(kind, 0) for kind in range(kinds))
    return [Way("BI", states) for states in ((leaves,), leaves)[kinds == 1 :]]


# --- arguments ----------------------------------------------------------------------------------------------

STATELESS: tuple[tuple[Any, ...], ...] = (), (None,)


def arguments(kinds: int, layers: int, directions: int) -> Iterator[tuple[Any, ...]]:
    """Yields the usual arguments of a layer or stack after x, with a Leaf for each tensor of the state.

    kinds: 1 for h, 2 for h and c. The state may be absent, None, as in torch.nn, or as in a cell. It may also
    be two arguments h and c, or a list of states for layers, for directions, or for both.
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
    """Replaces each Leaf in a template by a state: h, or h and c, (layers * directions, B, H) each."""
    if isinstance(template, Leaf):
        return template.of(None, states)
    return None if template is None else type(template)(filled(part, states) for part in template)


# --- results ------------------------------------------------------------------------------------------------


def _last_states(tensors: list[Any], arch: Architecture, batch: int) -> list[tuple[Leaf, Array]]:
    """Returns h, or h and c, (layers * directions, B, H) each, from the tensors that a call returned with y.

    The tensors may be as in torch.nn, or (B, H) for each layer and direction. Returns [] for other shapes.
    """
    widths, places = arch.state_widths, len(arch.suffixes)
    shapes = [tuple(t.shape) for t in tensors]
    if shapes == [(places, batch, width) for width in widths]:
        return [(Leaf(kind), numbers(t)) for kind, t in enumerate(tensors)]
    if shapes == [(batch, width) for width in widths] * places:
        return [(Leaf(i % len(widths), i // len(widths)), numbers(t)) for i, t in enumerate(tensors)]
    return []


def tensors(result: Any) -> Iterator[Any]:
    """Yields the tensors in nested tuples, lists and mappings, in order."""
    if isinstance(result, sys.modules["torch"].Tensor):
        yield result
    elif isinstance(result, (tuple, list, Mapping)):
        for part in result.values() if isinstance(result, Mapping) else result:
            yield from tensors(part)


def numbers(t: Any) -> Array:
    result: Array = t.detach().cpu().double().numpy().copy()  # the module may write to the tensor later
    return result


def time_first(x: Any, batch_first: bool | None) -> Any:
    """Changes x from batch first to time first, or back. Returns x itself unless batch_first is True."""
    return x.swapaxes(0, 1) if batch_first else x


# --- float64 ------------------------------------------------------------------------------------------------


class Tested:
    """A module that is run on probes, and a copy in float64, or None if it cannot compute in float64.

    convert: returns the network of a version of the module.
    """

    def __init__(self, module: Any, convert: Callable[[Any], Converted]) -> None:
        self.module, self.convert = module, convert
        self.double = _copied(module, lambda copied: copied.double())
        self._networks: dict[Any, ReferenceNetwork] = {}

    def versions(self, probe: Probe, run: Callable[[Any], Outputs]) -> Iterator[Version]:
        """Yields the module in float64, then as it is. run: calls such a version on the probe.

        A module in half precision is left out unless all numbers of the probe are of the order of 1.
        """
        both = (self.double, DOUBLE, in_double), (self.module, resolution(self.module), nullcontext)
        for module, eps, context in both:
            if module is None or not (probe.usual or eps < 2 * SINGLE):
                continue
            if probe.factor != 1:
                module = _copied(module, partial(_enlarge, factor=probe.factor))
            if module is not None:
                network = partial(self._network, module, (eps, probe.factor))
                run_it = partial(_called, module, context, run)
                yield Version(eps, run_it, network, partial(setattr, self, "double", None))

    def _network(self, module: Any, key: tuple[float, float]) -> ReferenceNetwork:
        if key not in self._networks:
            self._networks[key] = ReferenceNetwork.of(self.convert(module))
        return self._networks[key]


def _called(module: Any, context: Callable[[], Any], run: Callable[[Any], Outputs]) -> Outputs:
    with context(), unchanged(module, sys.modules["torch"]):
        return run(module)


def like(module: Any) -> Any:
    """Returns some tensor that has a module's device and dtype."""
    torch: Any = sys.modules["torch"]
    return next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0))


def resolution(module: Any) -> float:
    """Returns the machine epsilon of a module's dtype, at least float32's, as forward may use float32."""
    torch: Any = sys.modules["torch"]
    return max(SINGLE, float(torch.finfo(like(module).dtype).eps))


def _copied(module: Any, change: Callable[[Any], Any]) -> Any:
    """Returns a copy of the module after `change`, or None if that is impossible."""
    try:
        return change(copy.deepcopy(module))
    except Exception:  # modules raise anything if they cannot be copied or have no other dtype
        return None


def _enlarge(module: Any, factor: float) -> Any:
    for p in module.parameters():
        p.data.mul_(factor)
    return module


@contextmanager
def one_thread() -> Iterator[None]:
    """A context in which torch uses one thread, because most operations here are small."""
    torch: Any = sys.modules["torch"]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_double() -> Any:
    """Returns a context in which functions such as torch.zeros use float64 instead of narrower types."""
    torch: Any = sys.modules["torch"]
    narrow = (torch.float32, torch.float16, torch.bfloat16)
    casts = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)

    def wide(value: Any) -> Any:
        return torch.float64 if isinstance(value, torch.dtype) and value in narrow else value

    class Double(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            if function in casts:
                return args[0].double()
            named = {key: wide(value) for key, value in (kwargs or {}).items()}
            result = function(*map(wide, args), **named)
            return result.double() if isinstance(result, torch.Tensor) and result.dtype in narrow else result

    return Double()


# --- nothing changes ----------------------------------------------------------------------------------------


@contextmanager
def unchanged(module: Any, torch: Any) -> Iterator[None]:
    """A context with the module in evaluation mode and without gradients. Its end restores the module.

    It restores torch's random state, and the module's flags, attributes, parameters and buffers. Dicts, lists
    and sets in attributes get back their contents, at any depth.
    """
    parts = list(module.modules())
    flags = [part.training for part in parts]  # scripted modules have it outside of vars(part)
    values: list[Any] = [*map(vars, parts)]
    containers: dict[int, tuple[Any, Any]] = {}  # by id: the container and a copy
    for value in values:  # the loop appends to values
        if isinstance(value, (dict, list, set, deque, tuple)) and id(value) not in containers:
            contents = dict(value) if isinstance(value, dict) else list(value)
            containers[id(value)] = value, contents
            values += contents.values() if isinstance(contents, dict) else contents
    plain = [v for v in values if isinstance(v, torch.Tensor)]
    tensors = [t for t in (*module.parameters(), *module.buffers(), *plain) if not t.is_meta]
    numbers = [t.detach().clone() for t in tensors]
    cuda = sorted({t.device.index for t in tensors if t.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices=cuda), torch.no_grad():
            module.eval()
            yield
    finally:
        with torch.no_grad():
            for t, number in zip(tensors, numbers, strict=True):
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
