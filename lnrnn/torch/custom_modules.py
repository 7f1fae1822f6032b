"""Replaces the forward of custom recurrent modules, so that lnrnn's kernels compute it.

The module's parameters must be those of a system of `lnrnn.from_torch`, and its results those of lnrnn's
network. A form is the structure of the arguments of a call and of its result. Forms are learned by calling
the module on random input. The module's own forward computes calls in other forms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..importers.checking import Unchecked, compared
from ..importers.probes import BATCH, SINGLE, STEPS
from ..importers.running import Leaf, arguments, filled, numbers, unchanged
from ..importers.torch_weights import convert_torch
from ..importers.weights import Converted
from ..rnn import functional
from ..rnn.architecture import Architecture
from ..rnn.network import architecture
from . import operator
from .custom_checks import Differs, compare
from .custom_mapping import Form, Recipe, built, collect, recipes, signature
from .custom_settings import BYTES, Settings
from .torch_nn import other_system

Tensor = torch.Tensor


class Forward:
    """The object that replaces a module's forward."""

    def __init__(
        self, module: torch.nn.Module, arch: Architecture, recipes: Sequence[Recipe], forms: Sequence[Form],
        trains: bool, derives: bool,
    ) -> None:  # fmt: skip
        self._module, self._recipes, self._forms = module, tuple(recipes), tuple(forms)
        self._settings = Settings(module)
        self._trains = trains  # whether the module has the network's results in training too
        self._derives = derives  # whether the module has the network's gradients
        self._network, self._places = functional.described(arch), len(arch.suffixes)
        self._widths, self._input_size = arch.state_widths, arch.input_size
        self._axis = 0 if arch.batch_first else 1  # the axis of the sequences
        self._kept: list[Tensor] = []

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        form = None if named else self._form(arguments)
        parameters = [] if form is None else self._parameters()
        if form is None or any(p.dtype is not torch.float32 or not p.is_cpu for p in parameters):
            return type(self._module).forward(self._module, *arguments, **named)
        x, *state = arguments
        given: dict[Leaf, Tensor] = {}
        collect(form.state, state[0] if state else None, given)
        learning = torch.is_grad_enabled() and not self._derives
        if learning and any(t.requires_grad for t in (x, *given.values(), *parameters)):
            return type(self._module).forward(self._module, *arguments)
        start = [self._start(kind, given) for kind in (0, 1) if any(leaf.kind == kind for leaf in given)]
        y, *ends = operator.run(self._network, x, start, None, parameters)
        return built(form.result, y, ends)

    def _form(self, arguments: tuple[Any, ...]) -> Form | None:
        """Returns the form of a call if lnrnn computes it; None if the module's own forward computes it."""
        if not 1 <= len(arguments) <= 2 or other_system() or not self._settings.hold(self._trains):
            return None
        x = arguments[0]
        if not _plain(x) or x.dim() != 3 or x.shape[-1] != self._input_size or 0 in x.shape:
            return None
        given, called = len(arguments) == 2, signature(arguments[1]) if len(arguments) == 2 else None
        for form in self._forms:
            if form.given == given and form.signature == called:
                states: dict[Leaf, Tensor] = {}
                collect(form.state, arguments[1] if given else None, states)
                B = x.shape[self._axis]
                if all(_plain(t) and t.shape == self._state_shape(at, B) for at, t in states.items()):
                    return form
        return None

    def _state_shape(self, at: Leaf, B: int) -> tuple[int, ...]:
        row = B, self._widths[at.kind or 0]
        return row if at.place is not None else (self._places, *row)

    def _start(self, kind: int, given: Mapping[Leaf, Tensor]) -> Tensor:
        whole = given.get(Leaf(kind))
        if whole is not None:
            return whole
        return torch.stack([given[Leaf(kind, place)] for place in range(self._places)])

    def _parameters(self) -> list[Tensor]:
        new = [recipe.parameter(self._module) for recipe in self._recipes]
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return new
        # The cache of packed weights looks up a tensor object, so old tensors with equal numbers are reused.
        kept = self._kept if len(self._kept) == len(new) else new
        self._kept = [
            mine if recipe.index is None or not torch.equal(mine, old) else old
            for recipe, mine, old in zip(self._recipes, new, kept, strict=True)
        ]
        return self._kept

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_kept": []}


def _plain(t: Any) -> bool:
    return isinstance(t, Tensor) and t.dtype is torch.float32 and t.is_cpu


# --- the forms of calls -------------------------------------------------------------------------------------


class Refused(Exception):
    """A module's forward cannot be replaced. The text says why."""


def replace_forward(module: torch.nn.Module) -> str:
    """Replaces the forward of a custom module. Returns a description for the report. Raises Refused."""
    try:
        converted = convert_torch(module)
        arch = architecture(converted.model())
        if converted.zoneout not in (0, (0, 0)):
            raise ValueError(f"zoneout={converted.zoneout}: from_torch computes it, lnrnn.torch does not")
        own = recipes(module, arch)
    except (ValueError, TypeError) as error:
        raise Refused(str(error)) from None
    where = f"it has {converted.system}'s parameters"
    if any(p.dtype is not torch.float32 or not p.is_cpu for p in module.parameters()):
        raise Refused(
            f"{where}, but not in torch.float32 on cpu, the only dtype and device on which it can be tested"
        )
    forms: list[Form] = []
    for batch_first in (arch.batch_first, not arch.batch_first):
        if not forms:
            chosen = {**converted.arguments, "batch_first": batch_first}
            converted = replace(converted, arguments=chosen)
            arch = architecture(converted.model())
            forms = list(_forms(module, converted, arch))
    if not forms:
        if _takes_steps(module, arch):
            raise Refused(
                f"{where}, and is called one step at a time, and only modules that run sequences are replaced"
            )
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


def _forms(module: torch.nn.Module, converted: Converted, arch: Architecture) -> Iterator[Form]:
    """Yields the ways to call a module in which it returns the network's results on random input."""
    rng = np.random.default_rng(0)
    places, kinds = len(arch.suffixes), arch.cell.states
    shape = (BATCH, STEPS) if arch.batch_first else (STEPS, BATCH)
    x = rng.standard_normal((*shape, arch.input_size), dtype=np.float32)
    states = [rng.uniform(-0.9, 0.9, (places, BATCH, n)).astype(np.float32) for n in arch.state_widths]
    given = [torch.tensor(s) for s in states]
    settings = Settings(module)
    if settings.unseen:
        raise Refused(
            f"it has arrays of more than {BYTES} bytes in {', '.join(dict.fromkeys(settings.unseen))}, "
            "which are too large to compare in each call; make them buffers, with persistent=False"
        )
    for templates in arguments(kinds, arch.num_layers, arch.directions):
        if len(templates) > 1:
            continue
        template = templates[0] if templates else None
        state = filled(templates, given)
        own = (None if template is None else tuple(states)) if kinds > 1 or template is None else states[0]
        results: list[Any] = []
        changed: list[str] = []
        for training in (False, True):
            try:
                with unchanged(module, torch):
                    module.train(training)
                    results.append(module(torch.tensor(x), *state))
                    changed += settings.changed(written=True)
            except Exception:  # with unexpected arguments, a module may raise any exception
                break
        if changed:
            raise Refused(f"its forward writes to {', '.join(sorted(set(changed)))}, which lnrnn does not")
        if results:
            result = _agrees(results[0], converted, x, own)
            if result is not None:
                yield Form(bool(state), signature(state[0]) if state else None, template, result[0])


def _agrees(result: Any, converted: Converted, x: np.ndarray, state: Any) -> tuple[Any] | None:
    """Returns (the result with a Leaf for each tensor,) if its numbers are the network's, else None."""
    ours = _leaves(converted, x, state)
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
        return [named[leaf] for leaf in chosen]

    def disturbed() -> list[np.ndarray]:
        return of(_leaves(converted.disturbed(np.float32(SINGLE), rng), x, state))

    try:
        template = read(result)
        difference, limit = compared(theirs, of(ours), disturbed, SINGLE)
    except (ValueError, Unchecked):
        return None
    return (template,) if Leaf() in chosen and difference <= limit else None


def _leaves(converted: Converted, x: np.ndarray, state: Any) -> list[tuple[Leaf, np.ndarray]]:
    """Returns all arrays that a call of the network may return, as float64, each with its Leaf."""
    y, end = converted.model()(x, state)
    result = [(Leaf(), np.asarray(y, float))]
    for kind, whole in enumerate(end if isinstance(end, tuple) else (end,)):
        whole = np.asarray(whole, float)
        result += [(Leaf(kind), whole), *((Leaf(kind, k), part) for k, part in enumerate(whole))]
    return result


def _takes_steps(module: torch.nn.Module, arch: Architecture) -> bool:
    """Returns whether a module runs as a cell, with x (B, I) and h, or h and c, (B, H)."""
    x, zeros = torch.zeros(BATCH, arch.input_size), [torch.zeros(BATCH, width) for width in arch.state_widths]
    for state in (zeros, [tuple(zeros)]):
        try:
            with unchanged(module, torch):
                module(x, *state)
        except Exception:
            continue
        return True
    return False
