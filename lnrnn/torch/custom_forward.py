"""Replaces a custom recurrent module's forward by one that lnrnn's kernels compute."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from ..importers.running import tensors
from ..recognise.proof import Leaf
from ..rnn import functional
from ..rnn.architecture import Architecture
from ..rnn.functional import Served
from . import operator
from .common import other_system
from .custom_settings import Settings
from .custom_weights import Recipe
from .kept import Keeping, Kept, Record, counted, forget, made, pack_again, seen

Tensor = torch.Tensor


@dataclass(frozen=True)
class Form:
    """The structure of arguments and results of a kind of call that lnrnn can compute for a module.

    states: the arguments after x; result: the result. Both contain a Leaf for each tensor. signature: of the
    arguments after x, see `signature`. step: 0 if x is a sequence; 2 if x is one step (B, I); 3 if x is one
    step (1, B, I).
    """

    states: tuple[Any, ...]
    signature: Any
    result: Any
    step: int = 0

    @cached_property
    def leaves(self) -> list[Leaf]:
        return [leaf for leaf in tree_leaves(self.states) if leaf is not None]

    def of_kept(self) -> Iterator[tuple[type, ...]]:
        """Yields type tuples of the arguments after x for which Kept.call can compute this step."""
        place = 0 if self.step == 2 else None
        one, two = Leaf(0, place), (Leaf(0, place), Leaf(1, place))
        if self.step and self.result in (one, two):
            yield from product(*((Tensor,) if isinstance(t, Leaf) else (tuple, list) for t in self.states))


def signature(value: Any) -> Any:
    """Returns a hashable key of a call's arguments: their structure, with ranks in place of tensors."""
    if isinstance(value, Tensor):
        return value.dim()
    if isinstance(value, (tuple, list)):
        return tuple([signature(part) for part in value])
    return value if value is None else "unknown"


def built(template: Any, y: Any, ends: Sequence[Tensor]) -> Any:
    """Replaces each Leaf of a structure by its tensor. ends: [h] or [h, c], (layers * directions, B, H)."""
    if isinstance(template, Leaf):
        return template.of(y, ends)
    if type(template) in (tuple, list):
        return type(template)([built(part, y, ends) for part in template])
    return tree_map_only(Leaf, lambda leaf: leaf.of(y, ends), template)


_disabled: Any = None


def _untraced() -> Any:
    """Returns Forward.served with tracing by torch.compile disabled."""
    global _disabled  # functools.cache warns under torch.compile
    if _disabled is None:
        disable: Any = torch.compiler.disable
        _disabled = disable(Forward.served)
    return _disabled


class Forward:
    """A replacement of a module's forward. Calls that lnrnn cannot compute go to the module's own forward."""

    def __init__(
        self, module: torch.nn.Module, arch: Architecture, recipes: Sequence[Recipe], forms: Sequence[Form],
        trains: bool,
    ) -> None:  # fmt: skip
        self._module, self._recipes, self.forms = module, tuple(recipes), tuple(forms)
        self._by_call = {(form.step or 3, form.signature): form for form in reversed(self.forms)}
        self.trains = trains  # training gives the network's results too
        self._network, self._places = functional.described(arch), len(arch.suffixes)
        self._widths, self._input_size = arch.state_widths, arch.input_size
        self._axis = 0 if arch.batch_first else 1  # axis of the sequences in x
        self._converted: list[Tensor] = []  # lnrnn's parameters
        self._record: Record | None = None  # versions of the module's parameters when they were converted
        self._kept: Kept | None = None
        self._paths = [name for name, _ in module.named_parameters()]
        parts = [path.rpartition(".") for path in self._paths]
        self._owners = [(module.get_submodule(part)._parameters, name) for part, _, name in parts]
        self._names = [*inspect.signature(module.forward).parameters]
        # For Kept.call: {types of the arguments after x: bits of permitted numbers of axes of x}.
        self._axes: dict[tuple[type, ...], int] = {}
        for form in forms if trains else ():
            for types in form.of_kept():
                self._axes[types] = self._axes.get(types, 0) | 1 << form.step
        self.forget()
        self.watch()

    def watch(self) -> None:
        """Records the module's attributes. If one changes later, calls use the module's own forward."""
        self._settings = Settings(self._module)

    @property
    def __code__(self) -> Any:
        """The code object of the module's own forward, whose argument names torch.export reads."""
        return type(self._module).forward.__code__

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        result = None
        if not torch.compiler.is_compiling():
            result = self.served(arguments, named)
        elif torch.compiler.is_dynamo_compiling():  # torch.export needs torch's operations
            result = _untraced()(self, arguments, named)
        return type(self._module).forward(self._module, *arguments, **named) if result is None else result

    def served(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Computes a call with lnrnn. Returns None if the module's own forward must compute it."""
        states = arguments[1:]
        sources: list[Any] = [owner.get(name) for owner, name in self._owners]
        if not (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in sources)):
            axes = self._axes.get(tuple(map(type, states)), 0)
            if axes and self._kept is not None and not named and self._settings.same():
                state = states[0] if len(states) == 1 else states
                found = self._kept.call(self._network, sources, arguments[0], state, axes)
                if found is not None:
                    return found
            return self._computed(self._positional(arguments, named), sources)
        return None

    def _computed(self, arguments: tuple[Any, ...], sources: list[Any]) -> Any:
        x = arguments[0] if arguments else None
        form = self._by_call.get((x.dim(), signature(arguments[1:]))) if isinstance(x, Tensor) else None
        if x is None or form is None or other_system() or not self._settings.hold(self.trains):
            return None
        shape, states = x.shape, [*zip(form.leaves, tensors(arguments[1:]), strict=True)]
        B = shape[self._axis] if len(shape) == 3 else shape[0]
        if shape[-1] != self._input_size or 0 in shape or (form.step == 3 and shape[0] != 1):
            return None
        for at, t in states:
            if t.shape != (*[self._places] * (at.place is None), B, self._widths[at.kind or 0]):
                return None
        given = [x, *(t for _, t in states)]
        if not all(isinstance(t, Tensor) for t in sources) or not all(map(_plain, given)):
            return None
        if torch.is_grad_enabled() and any(t.requires_grad for t in given):
            return None
        x, start = x[None] if form.step == 2 else x, list[Tensor]()
        for kind in sorted({at.kind or 0 for at, _ in states}):
            parts = [t if at.place is None else t[None] for at, t in states if at.kind == kind]
            start.append(parts[0] if len(parts) == 1 else torch.cat(parts))
        found = None
        if self._kept is not None:
            state = None if not start else start[0] if len(start) == 1 else tuple(start)
            found = self._kept.call(self._network, sources, x, state, 1 << 3)
        if found is not None:
            y, end = (None, found) if form.step else found
            ends = [*end] if isinstance(end, tuple) else [end]
        elif counted(sources):
            parameters = self._parameters(sources)
            if not all(map(_plain, parameters)):
                return None
            y, *ends = operator.run(self._network, x, start, None, parameters, module=self)
        else:
            return None
        return built(form.result, y, ends)

    def _packed(
        self, network: str, parameters: Sequence[Tensor], statistics: Sequence[Tensor], overrun: str | None
    ) -> Served:
        """Returns packed weights, see Keeping._packed. parameters: from `_parameters`, or other tensors."""
        own, kept = parameters is self._converted, self._kept
        if own and kept is not None and kept.network == network:
            return kept.served
        served = made(network, parameters, (), None)
        if own:
            self._kept = Kept(network, None, self._record, served, bool(self.forms[0].step))
        return served

    def _positional(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Returns a call's arguments in the order of the module's forward, or () if arguments are missing."""
        names = self._names[len(arguments) :][: len(named)]
        return (*arguments, *(named[name] for name in names)) if {*names} == {*named} else ()

    def _parameters(self, sources: list[Tensor]) -> list[Tensor]:
        if self._record is not None and self._record.holds(sources):
            return self._converted
        record = seen(sources, True)
        with torch.no_grad():
            self._converted = [recipe.parameter(sources) for recipe in self._recipes]
        self._record, self._kept = record, None
        return self._converted

    def forget(self) -> None:
        """Drops converted and packed weights, so that the next call reads the module's parameters again."""
        pack_again(self._module.parameters())
        self._record, self._converted, self._kept = None, [], None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_converted": [], "_record": None, "_kept": None}


def keeper(module: torch.nn.Module) -> Any:
    """Returns a function that drops a module's cached weights, or None if it caches none.

    Frozen modules return None too: they must keep their weights until the user changes this.
    """
    forward = vars(module).get("forward")
    if isinstance(forward, Forward):
        return forward.forget
    return partial(forget, module) if isinstance(module, Keeping) and not module.frozen else None


def _plain(t: Any) -> bool:
    return isinstance(t, Tensor) and t.dtype is torch.float32 and t.is_cpu
