"""Calls a float64 copy of a module with an unknown equation, as a cell or a layer, with given parameters.

This file does not import torch: whoever passes a module has imported it.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from math import inf
from time import thread_time
from typing import Any

import numpy as np

from ...recognise.reference_network import Leaf
from ..running import STATELESS, arguments, filled, in_double, step_by_step, tensors
from ..weights import Array

SECONDS = 7.0  # limit on the search; the check after it takes more time
BATCH = 3  # with 2, a module that unpacks h, c = state would take two sequences for h and c


class Unsuitable(Exception):
    """The search does not find the module's equation. The text says why."""


class OutOfTime(Unsuitable):
    """The search has used up its time."""


class Limit:
    """A limit on the CPU time of this thread, because elapsed time depends on the load of the machine.

    torch must use one thread, because the time of other threads is not counted.
    """

    def __init__(self, seconds: float) -> None:
        self.until = thread_time() + seconds

    def look(self) -> None:
        """Raises OutOfTime after the limit. Call it before any work that takes some milliseconds."""
        if thread_time() > self.until:
            raise OutOfTime(
                f"the search ran out of time, which is {SECONDS:g} s of one core; "
                "give norm=lnrnn.LayerNormSpec(...) to narrow the search"
            )


def in_doubles(module: Any) -> Any:
    """Returns a copy of the module in float64, on the CPU, in evaluation mode."""
    try:
        copied = copy.deepcopy(module).cpu().double().eval()
    except Exception as error:  # modules raise anything if they cannot be copied
        raise Unsuitable(f"it cannot be copied ({type(error).__name__}: {str(error)[:120]})") from None
    for parameter in copied.parameters():
        parameter.requires_grad_(True)
    return copied


@contextmanager
def double_precision() -> Iterator[None]:
    """A context like running.in_double, but with gradients. At its end, torch's random state is restored."""
    torch: Any = sys.modules["torch"]
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), in_double():
        yield


# --- ways of calling ----------------------------------------------------------------------------------------

Call = Callable[[Any, Any, int], Any]  # (module, x (T, B, D), H) -> y (T, B, H)


def _cell(states: int, packed: bool, state_first: bool = False) -> Call:
    """Returns a function that calls a module as a cell, step by step."""

    leaves = tuple(map(Leaf, range(states)))

    def call(module: Any, x: Any, H: int) -> Any:
        zeros = [x.new_zeros((x.shape[1], H))] * states
        ys = step_by_step(module, x, zeros, (leaves,) if packed else leaves, state_first)
        return sys.modules["torch"].stack(ys)

    return call


def _layer(batch_first: bool, templates: tuple[Any, ...]) -> Call:
    """Returns a function that calls a module as a layer, with x and one of running.arguments."""

    def call(module: Any, x: Any, H: int) -> Any:
        own = x.transpose(0, 1) if batch_first else x
        wanted, zeros = (*own.shape[:2], H), [x.new_zeros((1, x.shape[1], H)) for _ in range(2)]
        result = tensors(module(own, *filled(templates, zeros)))
        y = next((t for t in result if tuple(t.shape) == wanted), None)
        if y is None:
            raise ValueError(f"it returns no tensor of shape {wanted}")
        return y.transpose(0, 1) if batch_first else y

    return call


# The arguments of a layer after x: without a state, with h and c, and with h.
_ARGUMENTS = (
    *STATELESS,
    *(each for kinds in (2, 1) for each in arguments(kinds, 1, 1) if each not in STATELESS),
)


@dataclass(frozen=True)
class Way:
    """A way to call a module. batch_first: None for a cell. usual: False if the state is before x."""

    call: Call
    batch_first: bool | None = None
    usual: bool = True


# Cells are tried first, because many cells also accept a whole sequence, by broadcasting.
_STATES = (2, True), (2, False), (1, False)
WAYS = (
    *(Way(_cell(*states)) for states in _STATES),
    *(Way(_layer(order, templates), order) for templates in _ARGUMENTS for order in (True, False)),
    *(Way(_cell(*states, state_first=True), usual=False) for states in _STATES),
)
Sizes = tuple[int, int, frozenset[str]]  # D, H, and the parameters that are matrices


class Runs:
    """A module in float64 with D inputs and H units, and the `Way` to call it."""

    def __init__(self, module: Any, sizes: Sizes, way: Way, limit: Limit) -> None:
        self.module, self.way, self.limit = module, way, limit
        self.D, self.H, self.matrices = sizes
        self.parameters: dict[str, Any] = dict(module.named_parameters())

    def set(self, values: dict[str, Array]) -> None:
        torch = sys.modules["torch"]
        with torch.no_grad():
            for name, value in values.items():
                self.parameters[name].copy_(torch.as_tensor(value))

    def values(self) -> dict[str, Array]:
        return {name: p.detach().numpy().copy() for name, p in self.parameters.items()}

    def __call__(self, x: Array) -> Array:
        """Returns y (T, B, H) for x (T, B, D), from states of zeros."""
        self.limit.look()
        torch = sys.modules["torch"]
        with double_precision(), torch.no_grad():
            result: Array = self.way.call(self.module, torch.as_tensor(x), self.H).numpy().copy()
        return result

    def gradients(self, x: Array, last: bool = False) -> tuple[Array, dict[str, Array]]:
        """Returns y (T, B, H), and the gradients by parameter of a random linear function (the loss) of y.

        last: the loss is a function of the last output of the first sequence only.
        """
        self.limit.look()
        torch: Any = sys.modules["torch"]
        with double_precision():
            try:
                y = self.way.call(self.module, torch.as_tensor(x), self.H)
            except Exception as error:  # modules raise anything for input that they do not support
                raise Unsuitable(f"it does not run on {x.shape}: {str(error)[:120]}") from None
            if not y.requires_grad:
                raise Unsuitable("its forward gives no gradients, and the search needs them")
            seen = y[-1, 0] if last else y
            drawn = np.random.default_rng(1).standard_normal(tuple(seen.shape))
            loss = (seen * torch.as_tensor(drawn)).sum()
            result = torch.autograd.grad(loss, list(self.parameters.values()), allow_unused=True)
        grads = {name: np.zeros(tuple(p.shape)) if g is None else g.numpy()
                 for (name, p), g in zip(self.parameters.items(), result, strict=True)}  # fmt: skip
        return y.detach().numpy(), grads


def suitable_runs(module: Any, every: Sequence[Sizes], limit: Limit) -> Iterator[Runs]:
    """Yields a `Runs` for each `Way` that works, uses a state, and has other outputs than earlier ways."""
    seen: list[tuple[Sizes, Array]] = []
    for sizes, way in product(every, WAYS):
        x = np.random.default_rng(2).standard_normal((2, BATCH, sizes[0]))
        runs = Runs(module, sizes, way, limit)
        try:
            y, changed, alone = (runs(v) for v in (x, np.concatenate([x[:1] + 1, x[1:]]), x[:1]))
        except OutOfTime:
            raise
        except Exception:  # with unexpected arguments, a module may raise any exception
            continue
        carries = (abs(y[-1] - changed[-1]) > 1e-9).any()
        again = any(s == sizes and np.allclose(y, other, atol=1e-9) for s, other in seen)
        if np.isfinite(y).all() and carries and not again and np.allclose(y[0], alone[0], atol=1e-9):
            seen.append((sizes, y))
            yield runs


def batch_axis_first(module: Any, D: int, width: int) -> bool | None:
    """Returns whether the batch axis is first: sequences along the batch axis do not affect each other.

    Returns None if sequences affect each other in both orders. width: the width of the outputs.
    """
    double, x = in_doubles(module), np.random.default_rng(2).standard_normal((4, BATCH, D))
    other = x.copy()
    other[:, 0] += 1
    for way in WAYS:
        if way.batch_first is not None:
            runs = Runs(double, (D, width, frozenset()), way, Limit(inf))
            with suppress(Exception):  # as in suitable_runs
                moved = abs(runs(x) - runs(other)).max((0, 2)) > 1e-9
                if moved[0] and not moved[1:].any():
                    return way.batch_first
    return None
