"""Replaces the forward of custom recurrent modules, so that lnrnn's kernels compute it.

The module's parameters must be those of a system of `lnrnn.from_torch`, and its results those of lnrnn's
network. A form is the structure of the arguments of a call and of its result. Forms are learned by calling
the module on random input. The module's own forward computes calls in other forms.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from .. import _core
from ..importers.running import arguments, filled, numbers, unchanged
from ..importers.systems import UnknownCell
from ..importers.torch_weights import convert_torch
from ..importers.weights import Converted
from ..recognise.probes import BATCH, STEPS
from ..recognise.proof import SINGLE, Unchecked, disagreement, whole
from ..recognise.reference_network import Leaf
from ..rnn import functional
from ..rnn.architecture import Architecture
from ..rnn.functional import Served
from ..rnn.settings import architecture
from . import operator
from .common import other_system
from .custom_checks import Differs, compare
from .custom_mapping import WAYS, Form, Recipe, built, collect, recipes, signature
from .custom_settings import BYTES, Settings
from .freshness import seen
from .kept import Keeping, arrays, in_use, keep, made, pack_again

Tensor = torch.Tensor
ONE_STEP = "one step at a time"  # in the description of a cell


class Forward:
    """The object that replaces a module's forward."""

    def __init__(
        self, module: torch.nn.Module, arch: Architecture, recipes: Sequence[Recipe], forms: Sequence[Form],
        trains: bool, derives: bool,
    ) -> None:  # fmt: skip
        self._module, self._recipes, self._forms = module, tuple(recipes), tuple(forms)
        self._by_call = {(form.step or 3, form.signature): form for form in reversed(self._forms)}
        self._settings = Settings(module)
        self._trains = trains  # whether the module has the network's results in training too
        self._derives = derives  # whether the module has the network's gradients
        self._network, self._places = functional.described(arch), len(arch.suffixes)
        self._widths, self._input_size = arch.state_widths, arch.input_size
        self._axis = 0 if arch.batch_first else 1  # the axis of the sequences
        self._converted: list[Tensor] = []  # lnrnn's parameters
        self._record: _core.Seen | None = None  # of the module's parameters, when these were converted
        self._kept: _core.Kept | None = None
        self._served: Served | None = None  # the last network with packed weights
        paths = dict.fromkeys(path for recipe in recipes for path in recipe.paths)
        self._owners = [(module.get_submodule(".".join(path[:-1]))._parameters, path[-1]) for path in paths]
        self._names = [*inspect.signature(module.forward).parameters]
        self._compared = self._settings.compared
        # The forms of steps that `quick_step` computes, and a bit more for every cell; 0 for sequences.
        # Two forms may have one bit.
        ways = sum({form.way for form in forms}) if trains and self._settings.simple else 0
        self._ways = ways + (1 << 2 * WAYS) if forms[0].step else 0
        self._forget()

    @property
    def __code__(self) -> Any:
        """The code of the module's own forward, for torch.export, which reads the names of its arguments."""
        return type(self._module).forward.__code__

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if not (named or torch.compiler.is_dynamo_compiling()):
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
        learning = torch.is_grad_enabled() and (form.step or not self._derives)
        if learning and any(t.requires_grad for t in (x, *start, *sources.values())):
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
        self._served = made(network, parameters, (), None, self._served)
        if own:
            self._kept = keep(network, None, self._record, self._served, 2 if self._forms[0].step else 0)
        return self._served

    def _packed_to_train(self, network: str, parameters: Sequence[Tensor], steps: int) -> None:
        """Returns no packed weights: calls with gradients pack them."""

    def _positional(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...] | None:
        """Returns the arguments of a call in the order of the module's forward; None if some are absent."""
        names = self._names[len(arguments) :][: len(named)]
        if {*names} != {*named}:
            return None
        return (*arguments, *(named[name] for name in names))

    def _form(self, arguments: tuple[Any, ...]) -> Form | None:
        """Returns the form of a call if lnrnn computes it; None if the module's own forward computes it."""
        form = self._form_of(arguments)
        if form is None or other_system() or not self._settings.hold(self._trains):
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
        if self._forms[0].step:
            return given[Leaf(kind, 0)]
        return torch.stack([given[Leaf(kind, place)] for place in range(self._places)])

    def _parameters(self, sources: list[Tensor]) -> list[Tensor]:
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return [recipe.parameter(self._module) for recipe in self._recipes]
        if self._record is not None and self._record.holds(sources):
            return self._converted
        record = seen(sources, True)
        self._converted = [recipe.parameter(self._module) for recipe in self._recipes]
        self._record, self._kept = record, None
        return self._converted

    def _stale(self) -> list[str]:
        """Does the same as Keeping's, with the names of the module's own parameters."""
        sources: list[Any] = [owner.get(name) for owner, name in self._owners]
        wrong: set[str] = set()
        if self._record is not None and self._record.holds(sources):
            with torch.no_grad():
                now = arrays([recipe.parameter(self._module) for recipe in self._recipes])
            networks = [*in_use(self._converted)]
            if self._kept is not None:
                networks.append((0, self._kept.served))
            for k, network in networks:
                for at in network.changed(now[k:]):
                    wrong |= {".".join(path) for path in self._recipes[k + at].paths}
        self._forget()
        return sorted(wrong)

    def _forget(self) -> None:
        """Lets the next call read all weights again."""
        pack_again(self._module.parameters())
        self._record, self._converted, self._kept, self._served = None, [], None, None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_converted": [], "_record": None, "_kept": None, "_served": None}


def stale(module: torch.nn.Module) -> list[str]:
    """Lets a module's next call read all weights. Returns the names of those written without notice.

    Does nothing for modules that lnrnn does not compute, and for frozen ones.
    """
    forward = vars(module).get("forward")
    if isinstance(forward, Forward):
        return forward._stale()
    return module._stale() if isinstance(module, Keeping) and not module.frozen else []


def _plain(t: Any) -> bool:
    return isinstance(t, Tensor) and t.dtype is torch.float32 and t.is_cpu


# --- the forms of calls -------------------------------------------------------------------------------------


class Refused(Exception):
    """A module's forward cannot be replaced. The text says why."""


def replace_forward(module: torch.nn.Module) -> str:
    """Replaces the forward of a custom module. Returns a description for the report.

    Raises Refused, or UnknownCell if other modules have such names of parameters too.
    """
    try:
        converted = convert_torch(module)
        arch = architecture(converted.model())
        if converted.zoneout not in (0, (0, 0)):
            raise ValueError(f"zoneout={converted.zoneout}: from_torch computes it, lnrnn.torch does not")
        own = recipes(module, arch)
    except UnknownCell:
        raise
    except (ValueError, TypeError) as error:
        raise Refused(str(error)) from None
    where = f"it has {converted.system}'s parameters"
    if any(p.dtype is not torch.float32 or not p.is_cpu for p in module.parameters()):
        raise Refused(
            f"{where}, but not in torch.float32 on cpu, the only dtype and device on which it can be tested"
        )
    forms: list[Form] = []
    for batch_first, step in ((arch.batch_first, 0), (not arch.batch_first, 0), (False, 2)):
        if not forms:
            chosen = {**converted.arguments, "batch_first": batch_first}
            converted = replace(converted, arguments=chosen)
            arch = architecture(converted.model())
            forms = list(_forms(module, converted, arch, step))
    if forms and forms[0].step:
        forms += _forms(module, converted, arch, 3)
    if not forms:
        raise Refused(f"{where}, but returns something else on random input, or does not run in a usual way")
    try:
        trains, wrong = compare(module, forms, arch, own)
    except Differs as probe:
        raise Refused(
            f"{where}, and agrees with lnrnn's network on ordinary input, but not on {probe}"
        ) from None
    module.forward = Forward(module, arch, own, forms, trains, wrong is None)
    vars(module)["__prepare_scriptable__"] = _refuse_script
    options: dict[str, Any] = {"num_layers": arch.num_layers, "bidirectional": arch.bidirectional}
    shown = [f"{name}={value}" for name, value in options.items() if value > 1 or value is True]
    shown = [str(arch.input_size), str(arch.hidden_size), *shown, f"norm={arch.norm}"]
    what = f"{type(module).__name__} as lnrnn's {arch.cell.name}({', '.join(shown)})"
    if forms[0].step:
        what += f", {ONE_STEP}; calls that need gradients run its own forward"
    if wrong:
        what += f", without gradients; if they are needed its own forward, whose gradients differ on {wrong}"
    if not trains:
        what += ", in evaluation; in training its own forward, which then differs"
    return what


def restore_forward(module: torch.nn.Module) -> None:
    for name in ("forward", "__prepare_scriptable__"):
        vars(module).pop(name, None)


def _refuse_script() -> Any:
    """torch.jit.script calls this for each module."""
    raise RuntimeError(
        "torch.jit.script cannot compile a forward that lnrnn.torch.accelerate has replaced: call restore() "
        "of its report first, or use torch.jit.trace"
    )


def _forms(module: torch.nn.Module, converted: Converted, arch: Architecture, step: int) -> Iterator[Form]:
    """Yields the ways to call a module in which it returns the network's results on random input.

    step: as in Form.
    """
    rng = np.random.default_rng(0)
    places, kinds = len(arch.suffixes), arch.cell.states
    if step and (places > 1 or kinds > 2):
        return
    shape = (1, BATCH) if step else (BATCH, STEPS) if arch.batch_first else (STEPS, BATCH)
    x = rng.standard_normal((*shape, arch.input_size), dtype=np.float32)
    states = [rng.uniform(-0.9, 0.9, (places, BATCH, n)).astype(np.float32) for n in arch.state_widths]
    given = [torch.tensor(s) for s in states]
    settings = Settings(module)
    if settings.unseen:
        raise Refused(
            f"it has arrays of more than {BYTES} bytes in {', '.join(dict.fromkeys(settings.unseen))}, "
            "which are too large to compare in each call; make them buffers, with persistent=False"
        )
    for templates in _of_a_step(kinds, step) if step else arguments(kinds, arch.num_layers, arch.directions):
        if len(templates) > 1 and not step:
            continue
        arranged = filled(templates, given)
        form = Form(templates, signature(arranged), None, step)
        own = None if not form.started else tuple(states) if kinds > 1 else states[0]
        results: list[Any] = []
        changed: list[str] = []
        for training in (False, True):
            try:
                with unchanged(module, torch):
                    module.train(training)
                    results.append(module(torch.tensor(x[0] if step == 2 else x), *filled(templates, given)))
                    changed += settings.changed(written=True)
            except Exception:  # with unexpected arguments, a module may raise any exception
                break
        if changed:
            raise Refused(f"its forward writes to {', '.join(sorted(set(changed)))}, which lnrnn does not")
        if results:
            result = _agrees(results[0], converted, x, own, step)
            if result is not None:
                yield replace(form, result=result[0])


def _of_a_step(kinds: int, step: int) -> Iterator[tuple[Any, ...]]:
    """Yields the usual arguments of a cell after x: no state, None, h, or h and c, which may be one tuple."""
    leaves = tuple(Leaf(kind, 0 if step == 2 else None) for kind in range(kinds))
    yield ()
    yield (None,)
    yield leaves
    if kinds > 1:
        yield (leaves,)
        yield ([*leaves],)


def _agrees(result: Any, converted: Converted, x: np.ndarray, state: Any, step: int) -> tuple[Any] | None:
    """Returns (the result with a Leaf for each tensor,) if its numbers are the network's, else None."""
    ours = _leaves(converted, x, state, step)
    chosen: list[Leaf] = []
    theirs: list[np.ndarray] = []

    def read(part: Any) -> Any:
        if isinstance(part, Tensor):
            value = numbers(part)
            near = [
                (float(np.abs(value - a).max()), k) for k, (_, a) in enumerate(ours) if a.shape == value.shape
            ]
            if not near:
                raise ValueError
            chosen.append(ours[min(near)[1]][0])
            theirs.append(value)
            return chosen[-1]
        if type(part) in (tuple, list):
            return type(part)([read(own) for own in part])
        if type(part) is dict:
            return {key: read(own) for key, own in part.items()}
        if part is None:
            return part
        raise ValueError  # results of other types may depend on the input

    rng = np.random.default_rng(1)

    def of(leaves: list[tuple[Leaf, np.ndarray]]) -> list[np.ndarray]:
        named = dict(leaves)
        return whole(named[leaf] for leaf in chosen)

    def disturbed() -> list[np.ndarray]:
        return of(_leaves(converted.disturbed(np.float32(SINGLE), rng), x, state, step))

    try:
        template = read(result)
        differs = disagreement(whole(theirs), of(ours), disturbed, SINGLE, True)
    except (ValueError, Unchecked):
        return None
    # A sequence needs y, and a step all states, because the next step needs them.
    wanted = {leaf for leaf, _ in ours} if step else {Leaf()}
    return (template,) if wanted <= {*chosen} and not differs else None


def _leaves(converted: Converted, x: np.ndarray, state: Any, step: int) -> list[tuple[Leaf, np.ndarray]]:
    """Returns all arrays that a call of the network may return, as float64, each with its Leaf."""
    y, last = converted.model()(x, state)
    ends = [np.asarray(end, float) for end in (last if isinstance(last, tuple) else (last,))]
    if step:
        place = 0 if step == 2 else None
        return [(Leaf(kind, place), end[0] if step == 2 else end) for kind, end in enumerate(ends)]
    result = [(Leaf(), np.asarray(y, float))]
    for kind, end in enumerate(ends):
        result += [(Leaf(kind), end), *((Leaf(kind, k), part) for k, part in enumerate(end))]
    return result
