"""Calls a torch module with arguments that recurrent modules usually take, and restores it afterwards.

This file does not import torch: whoever passes a module has imported it.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from ..rnn.settings import architecture
from .probes import BATCH, STEPS, Probe, like
from .weights import Array


@dataclass(frozen=True)
class Answer:
    """The outputs of a module, and how it was called.

    x: (T, B, I). y: (T, B, directions * H). batch_first: the module's order of axes, None for a cell, which
    takes one step at a time. states: the last h, or h and c, (layers * directions, B, H) each; empty if the
    module returns them in no usual form. way: for a layer, the index in `arguments` of its arguments after x;
    for a cell, whether h and c are one argument, a tuple.
    """

    x: Array
    y: Array
    batch_first: bool | None
    states: tuple[Array, ...] = ()
    way: int = 0


def answers(module: Any, model: Any, x: Array | None, like: Any, failures: list[str]) -> Iterator[Answer]:
    """Calls a module with each of the usual arguments, on x or random input. Yields the successful calls.

    like: a tensor with the module's device and dtype. failures: gets a text for each call that raises an
    exception or returns no tensor of y's shape.
    """
    torch = sys.modules["torch"]
    orders = (model.batch_first, not model.batch_first)
    if x is None:
        steps = STEPS
        if model.known_steps is not None and model.overrun == "raise":
            steps = min(steps, model.known_steps)
        drawn = np.random.default_rng(0).standard_normal((steps, BATCH, model.input_size), dtype=np.float32)
        given = [(order, time_first(drawn, order)) for order in orders] if steps else []
    else:
        given = [(order, x) for order in orders[: x.ndim - 1]]

    def tensor(array: Array) -> Any:
        return torch.tensor(array, device=like.device, dtype=like.dtype)

    def run(text: str, call: Callable[[], Any]) -> Any:
        try:
            with unchanged(module, torch):
                return call()
        except Exception as error:  # with unexpected arguments, a module may raise any exception
            line = next(iter(str(error).strip().splitlines()), "")
            failures.append(f"{text}: {type(error).__name__}: {line[:120]}")
        return None

    for order, own in given:
        own = numbers(tensor(own)).astype(np.float32)  # rounded to the module's dtype
        batch = own.shape[not order] if own.ndim == 3 else None
        for way, templates in enumerate(_arguments(model, batch)):
            states = _first_states(model, batch, tensor, None) if len(templates) and batch is not None else []
            text = f"module(x{''.join(', ' + name_of(template) for template in templates)})"
            result = run(text, partial(_outcome, module, tensor(own), *filled(templates, states)))
            answer = None if result is None else _read(result, model, own, order, way)
            if answer is not None:
                yield answer
            elif result is not None:
                failures.append(f"{text}: it returns no tensor of shape {_shape(model, own)}")
    if model.num_layers * model.num_directions > 1:
        return
    for _, own in given[:1]:
        if own.ndim == 3:
            sequence = time_first(own, orders[0] if x is None else False)
        else:  # a cell's input at one step; it is repeated, because the state has no effect in the first step
            sequence = np.repeat(own[None], STEPS, 0)
        for packed in (True, False):
            inputs = [tensor(v) for v in sequence]
            zeros = _zeros(model, inputs[0])
            ys = run("a step", partial(step_by_step, module, inputs, zeros, packed))
            if ys is not None:
                yield Answer(sequence, np.array([numbers(y) for y in ys]), None, way=packed)


def _shape(model: Any, x: Array) -> tuple[int, ...]:
    """Returns the shape of y, for x in the same order of axes."""
    return (*x.shape[:-1], model.num_directions * architecture(model).h_width)


def _read(result: list[Any], model: Any, own: Array, order: bool, way: int) -> Answer | None:
    """Returns the Answer for the tensors that a call with x = own returned; None if no tensor has y's shape.

    xlstm's cells return y as (B, heads, T, H / heads).
    """
    shape, heads = _shape(model, own), getattr(model, "num_heads", 1)
    by_head = (shape[0], heads, *shape[1:-1], shape[-1] // heads)
    result = [t.transpose(1, -2).flatten(-2) if tuple(t.shape) == by_head else t for t in result]
    at = next((i for i, t in enumerate(result) if tuple(t.shape) == shape), None)
    if at is None:
        return None
    y = numbers(result.pop(at))
    if own.ndim == 2:
        return Answer(own[:, None], y[:, None], model.batch_first, way=way)
    ends = _last_states(result, model, own.shape[not order])
    return Answer(time_first(own, order), time_first(y, order), order, ends, way)


def rerun(module: Any, model: Any, answer: Answer, probe: Probe) -> Answer:
    """Calls the module on a probe, with the same kind of arguments as in `answer`."""
    torch, own_kind = sys.modules["torch"], like(module)

    def tensor(array: Array) -> Any:
        return torch.tensor(array, device=own_kind.device, dtype=own_kind.dtype)

    x = numbers(tensor(probe.x))  # rounded to the module's dtype
    if answer.batch_first is None:
        steps = [tensor(v) for v in x]
        states = _zeros(model, steps[0]) if probe.states is None else [tensor(s[0]) for s in probe.states]
        ys = step_by_step(module, steps, states, bool(answer.way))
        return Answer(x, np.array([numbers(y) for y in ys]), None, (), answer.way)
    own, batch = time_first(x, answer.batch_first), x.shape[1]
    templates = list(_arguments(model, batch))[answer.way]
    states = _first_states(model, batch, tensor, probe.states)
    result = _outcome(module, tensor(own), *filled(templates, states))
    read = _read(result, model, own, answer.batch_first, answer.way)
    if read is None:  # y has another shape than the network's
        return replace(answer, x=x, y=np.zeros((0, 0, 0)), states=())
    return read


def _outcome(module: Any, *arguments: Any) -> list[Any]:
    return list(tensors(module(*arguments)))


def _zeros(model: Any, x: Any) -> list[Any]:
    """Returns a cell's first state for x (B, I): zeros."""
    return [x.new_zeros((len(x), width)) for width in architecture(model).state_widths]


def _first_states(
    model: Any, batch: int, tensor: Callable[[Array], Any], given: Sequence[Array] | None
) -> list[Any]:
    """Returns tensors of h, or h and c, (layers * directions, B, H) each, from arrays or None for zeros."""
    lines = model.num_layers * model.num_directions
    zeros = [np.zeros((lines, batch, width), np.float32) for width in architecture(model).state_widths]
    return [tensor(state) for state in (zeros if given is None else given)]


def step_by_step(
    module: Any, steps: Iterable[Any], state: Sequence[Any], packed: bool, state_first: bool = False
) -> list[Any]:
    """Runs a cell over steps x (B, I), from state [h] or [h, c], (B, H) each. Returns h of each step.

    Calls are module(x, h), module(x, h, c), or if packed module(x, (h, c)); with state_first module(h, x).
    """
    kinds, shape, outputs = len(state), tuple(state[0].shape), []
    for x in steps:
        given = (tuple(state),) if packed and kinds > 1 else tuple(state)
        result = list(tensors(module(*given, x) if state_first else module(x, *given)))
        if len(result) < kinds or any(tuple(t.shape) != shape for t in result):
            raise ValueError(f"a step returns tensors of shapes {[tuple(t.shape) for t in result]}")
        state = result[-kinds:]  # a cell returns (h, c) or (h, (h, c)), without c h or (h, h)
        outputs.append(result[0])
    return outputs


# --- arguments ----------------------------------------------------------------------------------------------

GIVEN = 2  # the first two items of `arguments` have no state


@dataclass(frozen=True)
class Leaf:
    """A placeholder for a tensor in a structure of tuples and lists: y (kind None), h (kind 0) or c (kind 1).

    place: for a state (B, H), the index of layer and direction; None for all, (layers * directions, B, H).
    """

    kind: int | None = None
    place: int | None = None


def arguments(kinds: int, layers: int, directions: int) -> Iterator[tuple[Any, ...]]:
    """Yields the usual arguments of a layer or stack after x, with a Leaf for each tensor of the state.

    kinds: 1 for h, 2 for h and c. The state may be absent, None, as in torch.nn, or as in a cell. It may also
    be two arguments h and c, or a list of states for layers, for directions, or for both.
    """

    def cell(place: int | None) -> Any:
        leaves = tuple(Leaf(kind, place) for kind in range(kinds))
        return leaves if kinds > 1 else leaves[0]

    yield ()
    yield (None,)
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


def _arguments(model: Any, batch: int | None) -> Iterator[tuple[Any, ...]]:
    """Yields `arguments` of a model; if batch is None (x has no batch axis), only those without a state."""
    ways = arguments(len(architecture(model).cell.state_names), model.num_layers, model.num_directions)
    return ways if batch is not None else islice(ways, GIVEN)


def filled(template: Any, states: Sequence[Any]) -> Any:
    """Replaces each Leaf in a template by a state: h, or h and c, (layers * directions, B, H) each."""
    if isinstance(template, Leaf):
        whole = states[template.kind or 0]
        return whole if template.place is None else whole[template.place]
    return None if template is None else type(template)(filled(part, states) for part in template)


def name_of(template: Any) -> str:
    if template is None:
        return "None"
    return "states" if isinstance(template, list) else "state"


# --- results ------------------------------------------------------------------------------------------------


def _last_states(tensors: list[Any], model: Any, batch: int | None) -> tuple[Array, ...]:
    """Returns (h,) or (h, c), (layers * directions, B, H) each, from the tensors that a call returned with y.

    The tensors may be as in torch.nn, or (B, H) for each layer and direction. Returns () for other shapes.
    """
    widths, places = architecture(model).state_widths, model.num_layers * model.num_directions
    kinds = len(widths)
    shapes = [tuple(t.shape) for t in tensors]
    if shapes == [(places, batch, width) for width in widths]:
        return tuple(map(numbers, tensors))
    if shapes == [(batch, width) for width in widths] * places:
        return tuple(np.array([numbers(t) for t in tensors[k::kinds]]) for k in range(kinds))
    return ()


def tensors(result: Any) -> Iterator[Any]:
    """Yields the tensors in nested tuples, lists and mappings, in order."""
    if isinstance(result, sys.modules["torch"].Tensor):
        yield result
    elif isinstance(result, (tuple, list, Mapping)):
        for part in result.values() if isinstance(result, Mapping) else result:
            yield from tensors(part)


def numbers(t: Any) -> Array:
    result: Array = t.detach().cpu().double().numpy()
    return result


@contextmanager
def unchanged(module: Any, torch: Any) -> Iterator[None]:
    """A context with the module in evaluation mode and without gradients. Its end restores the module.

    It restores torch's random state, and the module's flags, attributes, parameters and buffers. Dicts, lists
    and sets in attributes get back their contents, at any depth.
    """
    parts = list(module.modules())
    flags = [part.training for part in parts]
    inner = ("_parameters", "_buffers", "_modules")
    own = [d for part in parts for d in (vars(part), *map(vars(part).get, inner)) if isinstance(d, dict)]
    before = [dict(d) for d in own]
    values = [v for d in before for v in d.values()]
    containers: dict[int, tuple[Any, Any]] = {id(d): (d, d) for d in own}  # by id: the container and a copy
    for value in values:  # the loop appends to values
        if isinstance(value, _CONTAINERS) and id(value) not in containers:
            copy = dict(value) if isinstance(value, dict) else list(value)
            containers[id(value)] = value, copy
            values += copy.values() if isinstance(copy, dict) else copy
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
        for now, then in zip(own, before, strict=True):
            if now.keys() != then.keys() or any(now[name] is not value for name, value in then.items()):
                now.clear()
                now.update(then)
        for held, contents in list(containers.values())[len(own) :]:
            _refill(held, contents)
        for part, flag in zip(parts, flags, strict=True):
            part.training = flag


_CONTAINERS = dict, list, set, deque, tuple


def _refill(container: Any, contents: Any) -> None:
    if isinstance(container, dict):
        if list(map(id, container)) != list(map(id, contents)) or any(
            container[key] is not value for key, value in contents.items()
        ):
            container.clear()
            container.update(contents)
    elif isinstance(container, (list, deque, set)) and list(map(id, container)) != list(map(id, contents)):
        container.clear()
        (container.update if isinstance(container, set) else container.extend)(contents)


def time_first(x: Array, batch_first: bool | None) -> Array:
    """Changes x from batch first to time first, or back. Returns x itself unless batch_first is True."""
    return x.swapaxes(0, 1) if batch_first else x
