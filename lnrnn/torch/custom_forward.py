"""Replaces the forward of a custom recurrent module, and computes calls with lnrnn's kernels."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from .. import _core
from ..recognise.proof import Leaf
from ..rnn import functional
from ..rnn.architecture import Architecture
from ..rnn.functional import Served
from . import operator
from .common import other_system
from .custom_settings import Settings
from .custom_weights import Recipe
from .freshness import counted, seen
from .kept import Keeping, forget, keep, made, pack_again

Tensor = torch.Tensor
NOTHING, NONE, ONE, TWO, PAIR, WAYS = _core.STEP_WAYS


@dataclass(frozen=True)
class Form:
    """A way to call a module, and the structure of its result.

    states: the arguments after x; result: the result. Both have a Leaf in place of each tensor. signature:
    the `signature` of the arguments after x. step: 0 if x is a sequence; else x is one step, with 2 axes
    (B, I) or 3 axes (1, B, I).
    """

    states: tuple[Any, ...]
    signature: Any
    result: Any
    step: int = 0

    @property
    def way(self) -> int:
        """The bit of this form in the `_ways` of a Forward; 0 if `quick_step` does not know it."""
        place = 0 if self.step == 2 else None
        one, two = Leaf(0, place), (Leaf(0, place), Leaf(1, place))
        if not self.step or self.result not in (one, two):
            return 0
        # Other states are a pair in one argument, which may be a list.
        number = {(one,): ONE, two: TWO}.get(self.states, PAIR) if self.states != ([*two],) else PAIR
        return 1 << number << (0 if self.step == 2 else WAYS)


def signature(value: Any) -> Any:
    """Returns the structure of a state, with the number of dimensions in place of each tensor."""
    if isinstance(value, Tensor):
        return value.dim()
    if isinstance(value, (tuple, list)):
        return tuple([signature(part) for part in value])
    return value if value is None else "unknown"


def collect(template: Any, value: Any, result: dict[Leaf, Tensor]) -> None:
    """Adds each tensor of a value to `result`, by the Leaf that the template has in its place."""
    if isinstance(template, Leaf):
        result[template] = value
    elif isinstance(template, (tuple, list)):
        for part, own in zip(template, value, strict=True):
            collect(part, own, result)


def built(template: Any, y: Tensor, ends: Sequence[Tensor]) -> Any:
    """Replaces each Leaf in a template by a tensor. ends: h, or h and c, (layers * directions, B, H)."""
    if isinstance(template, Leaf):
        return template.of(y, ends)
    if isinstance(template, dict):
        return {key: built(part, y, ends) for key, part in template.items()}
    if isinstance(template, (tuple, list)):
        parts = [built(part, y, ends) for part in template]
        return parts if isinstance(template, list) else tuple(parts)
    return template


_disabled: Any = None


def _untraced() -> Any:
    """Returns Forward.call, with tracing of this function by torch.compile disabled."""
    global _disabled  # functools.cache warns under torch.compile
    if _disabled is None:
        disable: Any = torch.compiler.disable
        _disabled = disable(Forward.call, recursive=False)
    return _disabled


class Forward:
    """The object that replaces a module's forward."""

    def __init__(
        self, module: torch.nn.Module, arch: Architecture, recipes: Sequence[Recipe], forms: Sequence[Form],
        trains: bool,
    ) -> None:  # fmt: skip
        self._module, self._recipes, self.forms = module, tuple(recipes), tuple(forms)
        self._by_call = {(form.step or 3, form.signature): form for form in reversed(self.forms)}
        self.trains = trains  # whether the module has the network's results in training too
        self._network, self._places = functional.described(arch), len(arch.suffixes)
        self._widths, self._input_size = arch.state_widths, arch.input_size
        self._axis = 0 if arch.batch_first else 1  # the axis of the sequences
        self._converted: list[Tensor] = []  # lnrnn's parameters
        self._record: _core.Seen | None = None  # of the module's parameters, when these were converted
        self._kept: _core.Kept | None = None
        self._paths = [name for name, _ in module.named_parameters()]
        parts = [path.rpartition(".") for path in self._paths]
        self._owners = [(module.get_submodule(part)._parameters, name) for part, _, name in parts]
        self._names = [*inspect.signature(module.forward).parameters]
        # The forms of steps that `quick_step` computes, and a bit more for every cell; 0 for sequences.
        # Two forms may have one bit.
        ways = sum({form.way for form in forms}) if trains else 0
        self._ways = ways + (1 << 2 * WAYS) if forms[0].step else 0
        self.forget()
        self.watch()

    def watch(self) -> None:
        """Takes the module's present attributes as those with which lnrnn computes its calls."""
        self._settings = Settings(self._module)
        self._compared = self._settings.compared

    @property
    def __code__(self) -> Any:
        """The code of the module's own forward, for torch.export, which reads the names of its arguments."""
        return type(self._module).forward.__code__

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if not torch.compiler.is_compiling():
            return self.call(*arguments, **named)
        if torch.compiler.is_dynamo_compiling():
            return _untraced()(self, *arguments, **named)
        return type(self._module).forward(self._module, *arguments, **named)  # torch.export

    def call(self, *arguments: Any, **named: Any) -> Any:
        if not named:
            found = _core.quick_step(self, arguments)
            if found is not None:
                return found
        given = self._positional(arguments, named) if named else arguments
        form = None if given is None else self._form(given)
        if form is not None and given is not None:
            states: dict[Leaf, Tensor] = {}
            collect(form.states, given[1:], states)
            result = self._computed(form, given[0], states)
            if result is not None:
                return built(form.result, *result)
        return type(self._module).forward(self._module, *arguments, **named)

    def _form_of(self, arguments: tuple[Any, ...]) -> Form | None:
        if not arguments or not isinstance(arguments[0], Tensor):
            return None
        return self._by_call.get((arguments[0].dim(), signature(arguments[1:])))

    def _computed(self, form: Form, x: Tensor, states: dict[Leaf, Tensor]) -> Any:
        """Returns (y, the last states) for `built`; None if the module's own forward computes the call."""
        start = [self._start(kind, states) for kind in (0, 1) if any(leaf.kind == kind for leaf in states)]
        sources: dict[int, Any] = {k: owner[name] for k, (owner, name) in enumerate(self._owners)}
        if not all(isinstance(t, Tensor) for t in sources.values()):
            return None
        if torch.is_grad_enabled() and any(t.requires_grad for t in (x, *start, *sources.values())):
            return None
        if form.step == 3:
            x, start = x[0], [s[0] for s in start]
        if self._kept is not None:
            state = None if not start else start[0] if len(start) == 1 else tuple(start)
            found = self._kept.call(self._network, sources, x, state)
            if found is not None:
                y, end = (None, found) if form.step else found
                ends = [*end] if isinstance(end, tuple) else [end]
                return y, [s[None] for s in ends] if form.step else ends
        if not counted([*sources.values()]):
            return None
        parameters = self._parameters([*sources.values()])
        if any(p.dtype is not torch.float32 or not p.is_cpu for p in parameters):
            return None
        if form.step:
            x, start = x[None], [s[None] for s in start]
        y, *ends = operator.run(self._network, x, start, None, parameters, module=self)
        return y, ends

    def _packed(
        self, network: str, parameters: Sequence[Tensor], statistics: Sequence[Tensor], overrun: str | None
    ) -> Served:
        """Does the same as Keeping's. parameters: the result of `_parameters`."""
        own, kept = parameters is self._converted, self._kept
        if own and kept is not None and kept.network == network:
            return kept.served  # type: ignore[no-any-return]
        served = made(network, parameters, (), None)
        if own:
            self._kept = keep(network, None, self._record, served, 2 if self.forms[0].step else 0)
        return served

    def _positional(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...] | None:
        """Returns the arguments of a call in the order of the module's forward; None if some are absent."""
        names = self._names[len(arguments) :][: len(named)]
        if {*names} != {*named}:
            return None
        return (*arguments, *(named[name] for name in names))

    def _form(self, arguments: tuple[Any, ...]) -> Form | None:
        """Returns which inputs and outputs a call has, if lnrnn computes it. None: the own forward does."""
        form = self._form_of(arguments)
        if form is None or other_system() or not self._settings.hold(self.trains):
            return None
        x = arguments[0]
        shape = x.shape
        if not _plain(x) or shape[-1] != self._input_size or 0 in shape or (form.step == 3 and shape[0] != 1):
            return None
        states: dict[Leaf, Tensor] = {}
        collect(form.states, arguments[1:], states)
        B = shape[self._axis] if len(shape) == 3 else shape[0]
        if all(_plain(t) and t.shape == self._state_shape(at, B) for at, t in states.items()):
            return form
        return None

    def _state_shape(self, at: Leaf, B: int) -> tuple[int, ...]:
        row = B, self._widths[at.kind or 0]
        return row if at.place is not None else (self._places, *row)

    def _start(self, kind: int, given: Mapping[Leaf, Tensor]) -> Tensor:
        """Returns a state (layers * directions, B, H), or for a step as it was given."""
        whole = given.get(Leaf(kind))
        if whole is not None:
            return whole
        if self.forms[0].step:
            return given[Leaf(kind, 0)]
        return torch.stack([given[Leaf(kind, place)] for place in range(self._places)])

    def _parameters(self, sources: list[Tensor]) -> list[Tensor]:
        if self._record is not None and self._record.holds(sources):
            return self._converted
        record = seen(sources, True)
        with torch.no_grad():
            self._converted = [recipe.parameter(sources) for recipe in self._recipes]
        self._record, self._kept = record, None
        return self._converted

    def forget(self) -> None:
        """Lets the next call read all weights again."""
        pack_again(self._module.parameters())
        self._record, self._converted, self._kept = None, [], None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_converted": [], "_record": None, "_kept": None}


def keeper(module: torch.nn.Module) -> Any:
    """Returns a function that lets a module's next call read all weights; None if no call keeps any.

    So it is for modules that lnrnn does not compute, and for frozen ones, which keep the weights until then.
    """
    forward = vars(module).get("forward")
    if isinstance(forward, Forward):
        return forward.forget
    return partial(forget, module) if isinstance(module, Keeping) and not module.frozen else None


def _plain(t: Any) -> bool:
    return isinstance(t, Tensor) and t.dtype is torch.float32 and t.is_cpu
