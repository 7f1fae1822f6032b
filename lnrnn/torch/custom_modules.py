"""Finds the network of a custom recurrent module, and replaces the module's forward.

As in `lnrnn.from_torch`, parameter names show the equation, or a trace of calls does. Each kind of
call is then compared with lnrnn.reference on the probes of from_torch.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, product
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from ..importers.blocks import Unsuitable
from ..importers.own_modules import find
from ..importers.running import Tested, Way, filled, one_thread, tensors, unchanged, ways
from ..importers.systems import UnknownCell
from ..importers.torch_weights import convert_torch, known_cells
from ..importers.weights import Converted
from ..recognise.proof import BATCH, STEPS, Leaf, Unchecked, probes
from ..rnn.architecture import Architecture
from ..rnn.settings import architecture
from .custom_forward import Form, Forward, signature
from .custom_settings import Settings
from .custom_weights import recipes

Tensor = torch.Tensor
Convert = Callable[[Any], Converted]
ONE_STEP = "one step at a time"  # part of a cell's description
_NAME = re.compile(
    r"RNN|LSTM|GRU|(?:Rnn|Lstm|Gru)(?![a-z])|(?<![A-Za-z])(?:rnn|lstm|gru)(?![a-z])|[Rr]ecurrent"
    r"|(?:Cells?|(?<![A-Za-z])cells?)(?:Base|Layer)?_?\d*$"
)
_STATE = re.compile(
    r"(?:prev|rnn|s?lstm|gru|hidden|last)?_?(?:h|hx|h0|hc|hidden|states?|carry)(?:_?(?:prev|t|0|tm1|t_1))?"
)


def shown(module: torch.nn.Module) -> str:
    """Returns a text that says why a module seems recurrent, or "" if it does not."""
    name = getattr(module, "original_name", type(module).__name__)  # of a scripted module
    if not any(is_lazy(p) or p.dim() > 1 for p in module.parameters()):
        return ""
    if _NAME.search(name):
        return f"its class is {name}"
    matrices = dict(_matrices(module))
    for step, hh in product((1, -1), matrices):  # matrices may be transposed
        shapes = {name: shape[::step] for name, shape in matrices.items()}
        rows, H = shapes[hh]
        gates = (1, 2, 3, 4) if re.search(r"hh|h2h|h_h|rec", hh) else (2, 3, 4)
        others = [ih for ih, (n, _) in shapes.items() if ih != hh and n == rows]
        feeds = rows != H and any(columns == rows for _, columns in shapes.values())  # a feed-forward layer
        if others and rows in [k * H for k in gates] and not feeds:
            return f"{others[0]} and {hh} have the shapes of a cell's W_ih and W_hh"
    given = [*inspect.signature(type(module).forward).parameters][2:]
    state = next(filter(_STATE.fullmatch, given), None)
    return f"it takes a state, {state}" if state else ""


def _matrices(module: torch.nn.Module) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields (name, shape) of the matrices of a module and its Linear children."""
    linear = [(f"{name}.", m) for name, m in module.named_children() if isinstance(m, torch.nn.Linear)]
    for before, part in (("", module), *linear):
        for name, p in part.named_parameters(recurse=False):
            if not is_lazy(p) and p.dim() == 2:
                yield before + name, tuple(p.shape)


class Refused(Exception):
    """Raised if a module's forward cannot be replaced. The text says why."""


class Differs(Exception):
    """Raised if module and network give different results. at_first: on ordinary input already."""

    def __init__(self, text: str, at_first: bool = True) -> None:
        super().__init__(text)
        self.at_first = at_first


def replace_forward(module: torch.nn.Module, own: bool) -> str:
    """Replaces a custom module's forward. Returns its description for the report.

    own: try a trace if parameter names are unknown. Raises Refused with a reason, or UnknownCell if
    names are unknown and `own` is False.
    """
    if any(p.dtype is not torch.float32 or not p.is_cpu for p in module.parameters()):
        raise Refused(
            "it is not in torch.float32 on cpu, the only dtype and device on which it can be tested"
        )
    settings = Settings(module)
    if settings.unseen:
        raise Refused(
            f"lnrnn cannot notice changes inside of {', '.join(dict.fromkeys(settings.unseen))}; make arrays "
            "buffers, with persistent=False, and sets and objects with slots dicts"
        )
    with torch.inference_mode(False), one_thread():
        found = None
        if known_cells(module.state_dict()):
            with suppress(*[UnknownCell] * own):
                found = _by_names(module, settings)
        arch, forward = found or _by_graph(module, settings)
    module.forward = forward
    vars(module)["__prepare_scriptable__"] = _refuse_script
    forward.watch()
    options: dict[str, Any] = {"num_layers": arch.num_layers, "bidirectional": arch.bidirectional}
    shown = [f"{name}={value}" for name, value in options.items() if value > 1 or value is True]
    shown = [str(arch.input_size), str(arch.hidden_size), *shown, f"norm={arch.norm}"]
    what = f"{type(module).__name__} as lnrnn's {arch.cell.name}({', '.join(shown)})"
    what += f", {ONE_STEP}" * bool(forward.forms[0].step) + "; calls that need gradients run its own forward"
    return what if forward.trains else f"{what}, and so do calls in training, which differ"


def restore_forward(module: torch.nn.Module) -> None:
    for name in ("forward", "__prepare_scriptable__"):
        vars(module).pop(name, None)


def _refuse_script() -> Any:
    """torch.jit.script calls this method for each module."""
    raise RuntimeError(
        "torch.jit.script cannot compile a forward that lnrnn.torch.accelerate has replaced: call restore() "
        "of its report first, or use torch.jit.trace"
    )


Found = tuple[Architecture, Forward]


def _by_names(module: Any, settings: Settings) -> Found | None:
    """Returns (architecture, Forward) according to parameter names, or None if the equation is another."""
    try:
        return _agreed(module, settings, convert_torch)
    except Differs as reason:
        if reason.at_first:
            return None
        raise Refused(f"it has a known cell's parameters; {reason}") from None
    except UnknownCell:
        raise
    except (ValueError, TypeError) as reason:
        raise Refused(str(reason)) from None


def _by_graph(module: Any, settings: Settings) -> Found:
    try:
        call = find(module)
        if not call.way.x_first:
            raise Refused("its first argument is the state, and lnrnn computes calls whose first is x")
        return _agreed(module, settings, call.converted)
    except (Unsuitable, Differs, ValueError) as reason:
        raise Refused(str(reason)) from None


def _agreed(module: Any, settings: Settings, convert: Convert) -> Found:
    """Returns (architecture, Forward) of a network that agrees with the module. Raises Differs otherwise."""
    converted = convert(module)
    if converted.zoneout not in (0, (0, 0)):
        raise ValueError(f"zoneout must be 0 in lnrnn.torch, got {converted.zoneout}; from_torch takes it")
    arch = architecture(converted.model())
    forms, trains, order = list[Form](), True, None
    reason = Differs("it returns something else, or does not run in a usual way")
    tested = Tested(module, convert)
    given = [*inspect.signature(module.forward).parameters.values()]
    optional = len(given) > 1 and given[1].default is None  # module(x) equals module(x, None)
    every = [(way, Lifted.of(way)) if way.axes == "BI" else (way,) for way in ways(arch)]
    for way in chain.from_iterable(every):
        if forms and way.batch_first is not order:
            break
        try:
            form = _form(module, settings, arch, way, converted.last_states)
            if form is None:
                continue
            if not (optional and way.states == (None,) and forms and forms[-1].states == ()):
                trains &= _compared(tested, arch, way, converted.last_states)
            forms.append(form)
            order = way.batch_first
        except Differs as difference:
            reason = difference if reason.at_first else reason
    if not forms:
        raise reason
    own = replace(converted, arguments={**converted.arguments, "batch_first": bool(order)})
    arch = architecture(own.model())
    return arch, Forward(module, arch, recipes(module, convert, arch), forms, trains)


class Lifted(Way):
    """Calls a cell with x (1, B, I) and states (1, B, H): one step with an axis of size 1 in front."""

    @classmethod
    def of(cls, way: Way) -> Lifted:
        return cls(way.axes, tree_map(lambda leaf: replace(leaf, place=None), way.states))

    def call(self, module: Any, x: Any, states: Sequence[Any]) -> Any:
        return tree_map(lambda t: t[0], super().call(module, x[None], states))


def _form(module: Any, settings: Settings, arch: Architecture, way: Way, has_ends: bool) -> Form | None:
    """Returns the Form of calls by this Way, or None if results are no y and states. Runs the module.

    has_ends: the module returns the network's last states.
    """
    generator = torch.Generator().manual_seed(0)
    step = 0 if way.batch_first is not None else 3 if isinstance(way, Lifted) else 2
    sizes = {0: (BATCH, STEPS) if way.batch_first else (STEPS, BATCH), 2: (BATCH,), 3: (1, BATCH)}[step]
    x = torch.randn(*sizes, arch.input_size, generator=generator)
    places = len(arch.suffixes)
    ends = [torch.rand(places, BATCH, n, generator=generator) for n in arch.state_widths]
    changed = list[str]()
    for training in (True, False):
        try:
            with unchanged(module, torch):
                module.train(training)
                result = module(x.clone(), *filled(way.states, [s.clone() for s in ends]))
                changed += settings.changed(written=True)
        except Exception:  # modules may raise any exception for unexpected arguments
            if not training:
                return None
    if changed:
        raise Refused(f"its forward writes to {', '.join(sorted(set(changed)))}, which lnrnn does not")
    shapes = [tuple(t.shape) for t in tensors(result)]
    whole, rows = ([(*before, BATCH, n) for n in arch.state_widths] for before in ((places,), ()))
    states = [Leaf(kind, 0 if step == 2 else None) for kind in range(len(whole))]
    if step:
        if shapes[-len(states) :] != (rows if step == 2 else whole) or len(shapes) > len(states) + 1:
            return None
        leaves = [*states[: len(shapes) - len(states)], *states]
    else:
        y = (*sizes, arch.directions * arch.h_width)
        if y not in shapes:
            return None
        at = shapes.index(y)
        others = [*shapes[:at], *shapes[at + 1 :]]
        if others == rows * places:
            states = [Leaf(kind, place) for place in range(places) for kind in range(len(rows))]
        elif others != whole:
            states = []
        if len(states) != len(others) or (others and not has_ends):
            return None
        leaves = [*states[:at], Leaf(), *states[at:]]
    if not all(part is None or isinstance(part, Tensor) for part in tree_leaves(result)):
        return None  # a number may depend on the input
    rest = iter(leaves)
    template = tree_map_only(Tensor, lambda _: next(rest), result)
    return Form(way.states, signature(filled(way.states, ends)), template, step)


def _compared(tested: Tested, arch: Architecture, way: Way, has_ends: bool) -> bool:
    """Raises Differs unless the module has the network's results in evaluation mode. Returns whether the
    results also agree in training mode."""
    for training in (False, True):
        # A module that computes one step cannot count steps. A few steps suffice to see noise in training.
        most = STEPS if training or way.batch_first is None else None
        given, passed, reason = probes(arch, most, bool(way.kinds), way.axes == "BI"), 0, ""
        try:
            for probe, outputs, difference in tested.results(way, arch, given, has_ends, training):
                if outputs is None or difference:
                    reason = f"on {probe.name}{', where it fails' * (outputs is None)}"
                    break
                passed += 1
        except Unchecked as unchecked:  # raised for the first probe
            reason = f"{unchecked}"
        if reason and training:
            return False
        if reason and passed:
            text = "its results are those of lnrnn's network on ordinary input, but not"
            raise Differs(f"{text} {reason}", at_first=False)
        if reason:
            raise Differs(f"its results differ from lnrnn's: {reason}")
    return True
