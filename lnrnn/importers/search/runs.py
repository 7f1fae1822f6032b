"""A module of unknown equations, run at will: a float64 copy of it, whose parameters may be set, in one of
the ways in which cells and layers are called. Nothing here imports torch: where there is a module there is
torch in sys.modules."""

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

from ..probes import in_double
from ..running import tensors
from ..weights import Array

SECONDS = 7.0  # what from_torch does with a module that was found comes after
BATCH = 3  # two rows are taken for h and c by a module that says h, c = state


class Unsuitable(Exception):
    """The module is none that the search could tell. The text says why."""


class OutOfTime(Unsuitable):
    """The search came to its limit."""


class Limit:
    """So many seconds of this thread's CPU time, so that a busy machine does not shorten the search. torch
    must take one thread meanwhile, or its work in others is not counted."""

    def __init__(self, seconds: float) -> None:
        self.until = thread_time() + seconds

    def look(self) -> None:
        """Raises OutOfTime past the limit. Whatever takes more than some milliseconds looks before."""
        if thread_time() > self.until:
            raise OutOfTime(
                f"the search ran out of time, which is {SECONDS:g} s of one core: "
                "norm=lnrnn.LayerNormSpec(...), if not given, narrows it"
            )


def in_doubles(module: Any) -> Any:
    """A copy of the module in float64, on the CPU, in evaluation mode."""
    try:
        copied = copy.deepcopy(module).cpu().double().eval()
    except Exception as error:  # whatever a module raises that cannot be copied
        raise Unsuitable(f"it cannot be copied ({type(error).__name__}: {str(error)[:120]})") from None
    for parameter in copied.parameters():
        parameter.requires_grad_(True)
    return copied


@contextmanager
def double_precision() -> Iterator[None]:
    """As probes.in_double. Gradients are on, torch's random state is kept."""
    torch: Any = sys.modules["torch"]
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), in_double():
        yield


# --- ways of calling ----------------------------------------------------------------------------------------

Call = Callable[[Any, Any, int], Any]  # (module, x (T, B, D), H) -> y (T, B, H)


def _zeros(x: Any, *shape: int) -> Any:
    return x.new_zeros(shape)


def _cell(states: int, packed: bool, first: bool = False) -> Call:
    """One step a call: module(x, h), module(x, h, c), or module(x, (h, c)). first: the state before x."""

    def call(module: Any, x: Any, H: int) -> Any:
        shape = (x.shape[1], H)
        state, ys = [_zeros(x, *shape)] * states, []
        for step in x:
            given = (tuple(state),) if packed else tuple(state)
            found = list(tensors(module(*given, step) if first else module(step, *given)))
            if len(found) < states or any(tuple(t.shape) != shape for t in found):
                raise ValueError(f"a step gives tensors of shapes {[tuple(t.shape) for t in found]}")
            state = found[-states:]  # it returns (h, c), or (h, (h, c)); or h, or (h, h)
            ys.append(found[0])
        return sys.modules["torch"].stack(ys)

    return call


def _layer(batch_first: bool, state: Callable[[Any, int, int], tuple[Any, ...]]) -> Call:
    """The whole sequence in one call, with what state(x, B, H) says beside x."""

    def call(module: Any, x: Any, H: int) -> Any:
        own = x.transpose(0, 1) if batch_first else x
        wanted = (*own.shape[:2], H)
        found = tensors(module(own, *state(x, x.shape[1], H)))
        y = next((t for t in found if tuple(t.shape) == wanted), None)
        if y is None:
            raise ValueError(f"no tensor of shape {wanted} comes out")
        return y.transpose(0, 1) if batch_first else y

    return call


# What a layer takes beside x.
_BESIDE: tuple[Callable[[Any, int, int], tuple[Any, ...]], ...] = (
    lambda x, B, H: (),
    lambda x, B, H: (None,),
    lambda x, B, H: ((_zeros(x, 1, B, H), _zeros(x, 1, B, H)),),
    lambda x, B, H: ((_zeros(x, B, H), _zeros(x, B, H)),),
    lambda x, B, H: (_zeros(x, B, H), _zeros(x, B, H)),
    lambda x, B, H: (_zeros(x, 1, B, H),),
    lambda x, B, H: (_zeros(x, B, H),),
)


@dataclass(frozen=True)
class Way:
    """batch_first: None of a cell. usual: whether others run modules so, too."""

    call: Call
    batch_first: bool | None = None
    usual: bool = True


# Cells first: many a cell broadcasts over the steps of a sequence.
_STATES = (2, True), (2, False), (1, False)
WAYS = (
    *(Way(_cell(*states)) for states in _STATES),
    *(Way(_layer(order, beside), order) for beside in _BESIDE for order in (True, False)),
    *(Way(_cell(*states, first=True), usual=False) for states in _STATES),
)
Sizes = tuple[int, int, frozenset[str]]  # D, H, and the parameters that are matrices


class Runs:
    """A module in float64 in one way of calling it. D inputs, H units."""

    def __init__(self, module: Any, sizes: Sizes, way: Way, limit: Limit) -> None:
        self.module, self.way, self.limit = module, way, limit
        self.D, self.H, self.matrices = sizes
        self.parameters: dict[str, Any] = dict(module.named_parameters())

    def set(self, values: dict[str, Array]) -> None:
        """Sets parameters by name."""
        torch = sys.modules["torch"]
        with torch.no_grad():
            for name, value in values.items():
                self.parameters[name].copy_(torch.as_tensor(value))

    def values(self) -> dict[str, Array]:
        return {name: p.detach().numpy().copy() for name, p in self.parameters.items()}

    def __call__(self, x: Array) -> Array:
        """y (T, B, H) of x (T, B, D), from states of zeros."""
        self.limit.look()
        torch = sys.modules["torch"]
        with double_precision(), torch.no_grad():
            found: Array = self.way.call(self.module, torch.as_tensor(x), self.H).numpy().copy()
        return found

    def gradients(self, x: Array, last: bool = False) -> tuple[Array, dict[str, Array]]:
        """y (T, B, H), and the gradients of a random linear function of all outputs; last: of the last of the
        first sequence alone."""
        self.limit.look()
        torch: Any = sys.modules["torch"]
        with double_precision():
            try:
                y = self.way.call(self.module, torch.as_tensor(x), self.H)
            except Exception as error:  # whatever a module raises that takes no such input
                raise Unsuitable(f"it does not run on {x.shape}: {str(error)[:120]}") from None
            if not y.requires_grad:
                raise Unsuitable("its forward gives no gradients, and the search needs them")
            seen = y[-1, 0] if last else y
            drawn = np.random.default_rng(1).standard_normal(tuple(seen.shape))
            loss = (seen * torch.as_tensor(drawn)).sum()
            found = torch.autograd.grad(loss, list(self.parameters.values()), allow_unused=True)
        grads = {name: np.zeros(tuple(p.shape)) if g is None else g.numpy()
                 for (name, p), g in zip(self.parameters.items(), found, strict=True)}  # fmt: skip
        return y.detach().numpy(), grads


def suitable_runs(module: Any, every: Sequence[Sizes], limit: Limit) -> Iterator[Runs]:
    """The module in each way in which it runs and carries something from step to step, and that gives other
    outputs than those before."""
    seen: list[tuple[Sizes, Array]] = []
    for sizes, way in product(every, WAYS):
        x = np.random.default_rng(2).standard_normal((2, BATCH, sizes[0]))
        runs = Runs(module, sizes, way, limit)
        try:
            y, changed, alone = (runs(v) for v in (x, np.concatenate([x[:1] + 1, x[1:]]), x[:1]))
        except OutOfTime:
            raise
        except Exception:  # whatever a module raises that is called in another way than its own
            continue
        carries = (abs(y[-1] - changed[-1]) > 1e-9).any()
        again = any(s == sizes and np.allclose(y, other, atol=1e-9) for s, other in seen)
        if np.isfinite(y).all() and carries and not again and np.allclose(y[0], alone[0], atol=1e-9):
            seen.append((sizes, y))
            yield runs


def batch_axis_first(module: Any, D: int, width: int) -> bool | None:
    """In which order of axes a layer or network, of so many inputs and outputs, takes sequences, each of
    which changes its own outputs alone. None if in neither."""
    double, x = in_doubles(module), np.random.default_rng(2).standard_normal((4, BATCH, D))
    other = x.copy()
    other[:, 0] += 1
    for way in WAYS:
        if way.batch_first is not None:
            runs = Runs(double, (D, width, frozenset()), way, Limit(inf))
            with suppress(Exception):  # whatever a module raises that is called in another way than its own
                moved = abs(runs(x) - runs(other)).max((0, 2)) > 1e-9
                if moved[0] and not moved[1:].any():
                    return way.batch_first
    return None
