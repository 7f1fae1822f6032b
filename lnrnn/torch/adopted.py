"""Other people's recurrent modules on lnrnn's kernels: those whose parameters `lnrnn.from_torch` knows, and
whose forward, run on random input, gives what lnrnn makes of them.

How such a module is called, and what it returns, is learned by calling it: with x alone, with None, and with
states in each order in which people have them. A call that was not learned goes to the module's own forward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..importers.checking import Unchecked, compared
from ..importers.probes import BATCH, SINGLE, STEPS
from ..importers.running import numbers, unchanged
from ..importers.torch_weights import convert_torch
from ..importers.weights import Converted
from ..rnn import functional
from ..rnn.architecture import Architecture
from ..rnn.network import architecture
from . import operator
from .accelerated import other_system
from .forms import Form, Leaf, arrangements, built, collect, filled, signature
from .recipes import Recipe, recipes
from .settings import BYTES, Settings
from .trials import Differs, tried

Tensor = torch.Tensor


class Forward:
    """What stands in place of a module's forward."""

    def __init__(
        self, module: torch.nn.Module, made: Architecture, recipes: Sequence[Recipe], forms: Sequence[Form],
        trains: bool, derives: bool,
    ) -> None:  # fmt: skip
        self._module, self._recipes, self._forms = module, tuple(recipes), tuple(forms)
        self._settings = Settings(module)
        self._trains = trains  # whether it computes the same in training, without dropout
        self._derives = derives  # whether its gradients are the network's
        self._network, self._places = functional.described(made), len(made.suffixes)
        self._hidden_size, self._input_size = made.hidden_size, made.input_size
        self._axis = 0 if made.batch_first else 1  # that of the sequences
        self._kept: list[Tensor] = []

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        form = None if named else self._form(arguments)
        parameters = [] if form is None else self._parameters()
        if form is None or any(p.dtype is not torch.float32 or not p.is_cpu for p in parameters):
            return type(self._module).forward(self._module, *arguments, **named)
        x, *state = arguments
        found: dict[Leaf, Tensor] = {}
        collect(form.state, state[0] if state else None, found)
        learning = torch.is_grad_enabled() and not self._derives
        if learning and any(t.requires_grad for t in (x, *found.values(), *parameters)):
            return type(self._module).forward(self._module, *arguments)
        start = [self._start(kind, found) for kind in (0, 1) if any(leaf.kind == kind for leaf in found)]
        y, *ends = operator.run(self._network, x, start, None, parameters)
        return built(form.result, y, ends)

    def _form(self, arguments: tuple[Any, ...]) -> Form | None:
        """How lnrnn serves a call; None if it is the module's own."""
        if not 1 <= len(arguments) <= 2 or other_system() or not self._settings.hold(self._trains):
            return None
        x = arguments[0]
        if not _plain(x) or x.dim() != 3 or x.shape[-1] != self._input_size or 0 in x.shape:
            return None
        given, called = len(arguments) == 2, signature(arguments[1]) if len(arguments) == 2 else None
        for form in self._forms:
            if form.given == given and form.signature == called:
                found: dict[Leaf, Tensor] = {}
                collect(form.state, arguments[1] if given else None, found)
                B, H = x.shape[self._axis], self._hidden_size
                if all(
                    _plain(t) and t.shape == ((B, H) if at.place is not None else (self._places, B, H))
                    for at, t in found.items()
                ):
                    return form
        return None

    def _start(self, kind: int, found: Mapping[Leaf, Tensor]) -> Tensor:
        whole = found.get(Leaf(kind))
        if whole is not None:
            return whole
        return torch.stack([found[Leaf(kind, place)] for place in range(self._places)])

    def _parameters(self) -> list[Tensor]:
        found = [recipe.made(self._module) for recipe in self._recipes]
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return found
        # What is put together anew for each call has nothing by which packed weights could be found again.
        kept = self._kept if len(self._kept) == len(found) else found
        self._kept = [
            new if recipe.index is None or not torch.equal(new, old) else old
            for recipe, new, old in zip(self._recipes, found, kept, strict=True)
        ]
        return self._kept

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_kept": []}


def _plain(t: Any) -> bool:
    return isinstance(t, Tensor) and t.dtype is torch.float32 and t.is_cpu


# --- learning how a module is called ------------------------------------------------------------------------


class Refused(Exception):
    """Why a module stays as it is."""


def adopt(module: torch.nn.Module) -> str:
    """Sets the forward of a module whose parameters are a known system's. -> what it is. Raises Refused."""
    try:
        converted = convert_torch(module)
        made = architecture(converted.model())
        if converted.zoneout not in (0, (0, 0)):
            raise ValueError(f"zoneout={converted.zoneout}: from_torch computes it, lnrnn.torch does not")
        own = recipes(module, made)
    except (ValueError, TypeError) as error:
        raise Refused(str(error)) from None
    where = f"it has {converted.system}'s parameters"
    if any(p.dtype is not torch.float32 or not p.is_cpu for p in module.parameters()):
        raise Refused(
            f"{where}, but not in torch.float32 on cpu, the only dtype and device on which it can be tested"
        )
    found: list[Form] = []
    for batch_first in (made.batch_first, not made.batch_first):
        if not found:
            arguments = {**converted.arguments, "batch_first": batch_first}
            converted = replace(converted, arguments=arguments)
            made = architecture(converted.model())
            found = list(_forms(module, converted, made))
    if not found:
        if _takes_steps(module, made):
            raise Refused(
                f"{where}, and is called one step at a time: only what runs whole sequences is replaced"
            )
        raise Refused(f"{where}, but on random input gives something else, or does not run in a usual way")
    try:
        trains, wrong = tried(module, found, made, own)
    except Differs as probe:
        raise Refused(f"{where}, and gives what lnrnn makes of them, but not on {probe}") from None
    module.forward = Forward(module, made, own, found, trains, wrong is None)
    vars(module)["__prepare_scriptable__"] = _refuse_script
    options: dict[str, Any] = {"num_layers": made.num_layers, "bidirectional": made.bidirectional}
    shown = [f"{name}={value}" for name, value in options.items() if value > 1 or value is True]
    shown = [str(made.input_size), str(made.hidden_size), *shown, f"norm={made.norm}"]
    what = f"{type(module).__name__} as lnrnn's {made.cell.name}({', '.join(shown)})"
    if wrong:
        what += (
            f", without gradients; where they are wanted its own forward, whose gradients differ on {wrong}"
        )
    if not trains:
        what += ", in evaluation; in training its own forward, which then does something else"
    return what


def release(module: torch.nn.Module) -> None:
    """Undoes `adopt`."""
    for name in ("forward", "__prepare_scriptable__"):
        vars(module).pop(name, None)


def _refuse_script() -> Any:
    """What torch.jit.script calls of each module."""
    raise RuntimeError(
        "torch.jit.script cannot compile a forward that lnrnn.torch.accelerate has replaced: call restore() "
        "of its report first; torch.jit.trace can do without"
    )


def _forms(module: torch.nn.Module, converted: Converted, made: Architecture) -> Iterator[Form]:
    """The ways to call a module in which, on ordinary input, it returns what the network does."""
    rng = np.random.default_rng(0)
    places, kinds, H = len(made.suffixes), made.cell.states, made.hidden_size
    shape = (BATCH, STEPS) if made.batch_first else (STEPS, BATCH)
    x = rng.standard_normal((*shape, made.input_size), dtype=np.float32)
    states = rng.uniform(-0.9, 0.9, (kinds, places, BATCH, H)).astype(np.float32)
    given = [torch.tensor(s) for s in states]
    settings = Settings(module)
    if settings.unseen:
        raise Refused(
            f"it has arrays of more than {BYTES} bytes in {', '.join(dict.fromkeys(settings.unseen))}: "
            "whether they change cannot be looked at in each call; make them buffers, with persistent=False"
        )
    ways: list[tuple[tuple[Any, ...], Any]] = [((), None), ((None,), None)]
    for template in arrangements(kinds, made.num_layers, made.directions):
        ways.append(((filled(template, given),), template))
    for state, template in ways:
        own = (None if template is None else tuple(states)) if kinds > 1 or template is None else states[0]
        results: list[Any] = []
        changed: list[str] = []
        for training in (False, True):
            try:
                with unchanged(module, torch):
                    module.train(training)
                    results.append(module(torch.tensor(x), *state))
                    changed += settings.changed(written=True)
            except Exception:  # whatever a module raises that is called in another way than its own
                break
        if changed:
            raise Refused(f"its forward writes to {', '.join(sorted(set(changed)))}, which lnrnn does not")
        if results:
            result = _agrees(results[0], converted, x, own)
            if result is not None:
                yield Form(bool(state), signature(state[0]) if state else None, template, result[0])


def _agrees(result: Any, converted: Converted, x: np.ndarray, state: Any) -> tuple[Any] | None:
    """The Leafs of what a call returned, in its structure, if its numbers are the network's; or None."""
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
        raise ValueError  # numbers may be of this input alone

    rng, signs, eps = np.random.default_rng(1), np.array((-1, 1), np.int8), np.float32(SINGLE)

    def of(leaves: list[tuple[Leaf, np.ndarray]]) -> list[np.ndarray]:
        named = dict(leaves)
        return [named[leaf] for leaf in chosen]

    def disturbed() -> list[np.ndarray]:
        changed = {name: v * (1 + eps * rng.choice(signs, v.shape)) for name, v in converted.state.items()}
        return of(_leaves(replace(converted, state=changed), x, state))

    try:
        template = read(result)
        difference, limit = compared(theirs, of(ours), disturbed, SINGLE)
    except (ValueError, Unchecked):
        return None
    return (template,) if Leaf() in chosen and difference <= limit else None


def _leaves(converted: Converted, x: np.ndarray, state: Any) -> list[tuple[Leaf, np.ndarray]]:
    """All that a call of the network may return, in float64."""
    y, end = converted.model()(x, state)
    found = [(Leaf(), np.asarray(y, float))]
    for kind, whole in enumerate(end if isinstance(end, tuple) else (end,)):
        whole = np.asarray(whole, float)
        found += [(Leaf(kind), whole), *((Leaf(kind, k), part) for k, part in enumerate(whole))]
    return found


def _takes_steps(module: torch.nn.Module, made: Architecture) -> bool:
    """Whether it runs as a cell: x (B, I) and h, or h and c, of (B, H)."""
    x, h = torch.zeros(BATCH, made.input_size), torch.zeros(BATCH, made.hidden_size)
    for state in ([h] * made.cell.states, [(h,) * made.cell.states]):
        try:
            with unchanged(module, torch):
                module(x, *state)
        except Exception:
            continue
        return True
    return False
