"""Somebody's module, run in the ways in which people have theirs called; and that nothing of it changes.

Nothing here imports torch: where there is a module there is torch in sys.modules.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ..rnn.network import architecture
from .probes import BATCH, STEPS, Probe, like
from .weights import Array


@dataclass(frozen=True)
class Answer:
    """What a module made of an input. x (T, B, I) and y (T, B, directions * H): time first, whatever the
    module's own order of axes is, which batch_first says: None for a cell, which takes one step at a time.
    states: h, or h and c, at the end, (layers * directions, B, H) each, or nothing where it is not told in a
    usual way. way: which of the ways that `_states` has of giving a state, or those of `_step_by_step`."""

    x: Array
    y: Array
    batch_first: bool | None
    states: tuple[Array, ...] = ()
    way: int = 0


def answers(module: Any, model: Any, x: Array | None, like: Any, failures: list[str]) -> Iterator[Answer]:
    """The module run in each way that modules are called, on x or random input. like: a tensor of its device
    and dtype. failures: gets a line for each that does not run, or gives nothing of the right shape."""
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

    def run(what: str, call: Callable[[], Any]) -> Any:
        try:
            with unchanged(module, torch):
                return call()
        except Exception as error:  # whatever a module raises that is called in another way than its own
            line = next(iter(str(error).strip().splitlines()), "")
            failures.append(f"{what}: {type(error).__name__}: {line[:120]}")
        return None

    for order, own in given:
        own = numbers(tensor(own)).astype(np.float32)  # as the module gets it
        batch = own.shape[not order] if own.ndim == 3 else None
        for way, (what, state) in enumerate(_states(model, batch, tensor)):
            found = run(f"module(x{what})", partial(_outcome, module, tensor(own), *state))
            answer = None if found is None else _read(found, model, own, order, way)
            if answer is not None:
                yield answer
            elif found is not None:
                failures.append(f"module(x{what}): no tensor of shape {_shape(model, own)} comes out")
    if model.num_layers * model.num_directions > 1:
        return
    for _, own in given[:1]:
        if own.ndim == 3:
            sequence = time_first(own, orders[0] if x is None else False)
        else:  # what a cell takes at one step; the first alone would not show what it carries on
            sequence = np.repeat(own[None], STEPS, 0)
        for packed in (True, False):
            steps_ = [tensor(v) for v in sequence]
            y = run("a step", partial(_step_by_step, module, model, steps_, packed, _zeros(model, steps_[0])))
            if y is not None:
                yield Answer(sequence, y, None, way=packed)


def _shape(model: Any, x: Array) -> tuple[int, ...]:
    """That of y, for x in the same order of axes."""
    return (*x.shape[:-1], model.num_directions * model.hidden_size)


def _read(found: list[Any], model: Any, own: Array, order: bool, way: int) -> Answer | None:
    """What a call gave for x as the module takes it; None if there is no y."""
    at = next((i for i, t in enumerate(found) if tuple(t.shape) == _shape(model, own)), None)
    if at is None:
        return None
    y = numbers(found.pop(at))
    if own.ndim == 2:
        return Answer(own[:, None], y[:, None], model.batch_first, way=way)
    ends = _last_states(found, model, own.shape[not order])
    return Answer(time_first(own, order), time_first(y, order), order, ends, way)


def again(module: Any, model: Any, answer: Answer, probe: Probe) -> Answer:
    """The module run on a probe in the way that gave an answer."""
    torch, own_kind = sys.modules["torch"], like(module)

    def tensor(array: Array) -> Any:
        return torch.tensor(array, device=own_kind.device, dtype=own_kind.dtype)

    x = numbers(tensor(probe.x))  # as the module gets it
    if answer.batch_first is None:
        steps = [tensor(v) for v in x]
        states = _zeros(model, steps[0]) if probe.states is None else [tensor(s[0]) for s in probe.states]
        return Answer(x, _step_by_step(module, model, steps, bool(answer.way), states), None, (), answer.way)
    own = time_first(x, answer.batch_first)
    _, state = list(_states(model, x.shape[1], tensor, probe.states))[answer.way]
    found = _outcome(module, tensor(own), *state)
    read = _read(found, model, own, answer.batch_first, answer.way)
    if read is None:  # of another shape than all the network gives
        return replace(answer, x=x, y=np.zeros((0, 0, 0)), states=())
    return read


def _outcome(module: Any, *arguments: Any) -> list[Any]:
    """The tensors that a call of the module returns."""
    return list(tensors(module(*arguments)))


def _zeros(model: Any, x: Any) -> list[Any]:
    """A cell's first state for x (B, I)."""
    return [x.new_zeros((len(x), model.hidden_size))] * architecture(model).cell.states


def _step_by_step(module: Any, model: Any, steps: list[Any], packed: bool, state: list[Any]) -> Array:
    """A cell over the steps, each x (B, I), from h, or h and c. packed: whether these come as one
    argument."""
    shape, kinds, outputs = (len(steps[0]), model.hidden_size), len(state), []
    for x in steps:
        found = list(tensors(module(x, tuple(state)) if packed and kinds > 1 else module(x, *state)))
        if len(found) < kinds or any(tuple(t.shape) != shape for t in found):
            raise ValueError(f"a step gives tensors of shapes {[tuple(t.shape) for t in found]}")
        state = found[-kinds:]  # it returns (h, c), or (h, (h, c)); or h, or (h, h)
        outputs.append(numbers(found[0]))
    return np.array(outputs)


GIVEN = 2  # before it stand the ways of _states in which no state is given


def _states(
    model: Any, batch: int | None, tensor: Callable[[Array], Any], given: Sequence[Array] | None = None
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """How modules take the first state, beside x, and how to say it: not at all, None, as torch.nn does, and
    a cell's state for each layer and direction, as fastrnns does. batch: sequences in x, None for one without
    an axis for it. given: h, or h and c, (layers * directions, B, H) each, or None for zeros."""
    yield "", ()
    yield ", None", (None,)
    if batch is None:
        return
    layers, directions = model.num_layers, model.num_directions
    shape, kinds = (layers * directions, batch, model.hidden_size), architecture(model).cell.states
    whole = [np.zeros(shape, np.float32)] * kinds if given is None else given

    def of(at: Any) -> Any:
        parts = tuple(tensor(part[at]) for part in whole)
        return parts if kinds > 1 else parts[0]

    yield ", state", (of(slice(None)),)
    if layers * directions == 1:
        yield ", state", (of(0),)
    nested = [[of(k * directions + d) for d in range(directions)] for k in range(layers)]
    if directions == 1:
        yield ", states", ([states[0] for states in nested],)
    else:
        yield ", states", (nested,)
        if layers == 1:
            yield ", states", (nested[0],)


def _last_states(tensors: list[Any], model: Any, batch: int | None) -> tuple[Array, ...]:
    """h, or h and c, of what came out beside y: as torch.nn returns them, or as a cell's for each layer and
    direction. Nothing if it is anything else."""
    kinds, places = architecture(model).cell.states, model.num_layers * model.num_directions
    shapes = [tuple(t.shape) for t in tensors]
    if shapes == [(places, batch, model.hidden_size)] * kinds:
        return tuple(map(numbers, tensors))
    if shapes == [(batch, model.hidden_size)] * (kinds * places):
        return tuple(np.array([numbers(t) for t in tensors[k::kinds]]) for k in range(kinds))
    return ()


def tensors(result: Any) -> Iterator[Any]:
    """The tensors in what a module returned, in their order."""
    if isinstance(result, sys.modules["torch"].Tensor):
        yield result
    elif isinstance(result, (tuple, list, Mapping)):
        for part in result.values() if isinstance(result, Mapping) else result:
            yield from tensors(part)


def numbers(t: Any) -> Array:
    found: Array = t.detach().cpu().double().numpy()
    return found


@contextmanager
def unchanged(module: Any, torch: Any) -> Iterator[None]:
    """In evaluation mode, without gradients. Afterwards torch's random state and the module's flags,
    attributes, parameters and buffers are what they were before, and so are the dicts, lists and sets of
    its attributes, also inside one another."""
    parts = list(module.modules())
    flags = [part.training for part in parts]
    inner = ("_parameters", "_buffers", "_modules")
    own = [d for part in parts for d in (vars(part), *map(vars(part).get, inner)) if isinstance(d, dict)]
    before = [dict(d) for d in own]
    values = [v for d in before for v in d.values()]
    containers: dict[int, tuple[Any, Any]] = {id(d): (d, d) for d in own}  # each, and a copy of it
    for value in values:  # which gets more on the way
        if isinstance(value, _CONTAINERS) and id(value) not in containers:
            copy = dict(value) if isinstance(value, dict) else list(value)
            containers[id(value)] = value, copy
            values += copy.values() if isinstance(copy, dict) else copy
    plain = [v for v in values if isinstance(v, torch.Tensor)]
    tensors = [*module.parameters(), *module.buffers(), *plain]
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
    """Has a container hold what it held, if it does not."""
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
    """From the order of axes that batch_first says to time first, or back."""
    return x.swapaxes(0, 1) if batch_first else x
