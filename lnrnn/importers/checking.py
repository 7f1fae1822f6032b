"""Compares torch modules with their converted networks, and converts modules with unknown parameter names.

Names and shapes of parameters do not show how forward uses them, so modules are also run. This file does
not import torch: whoever passes a module has imported it.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import bad_value, real
from ..recognise.proof import Outputs, Probe, Reference, RoundingHidesDifference, Unchecked, compare, probes
from ..rnn.cells import CELLS
from ..rnn.models import Model
from ..rnn.settings import architecture
from ..rnn.specs import LayerNormSpec, norm_spec
from .blocks import Unsuitable
from .own_modules import NAME, Call, FirstState, find
from .running import NotRun, Tested, Way, one_thread, resolution, time_first, ways
from .systems import UnknownCell
from .torch_weights import convert_torch, submodule
from .traces import Late
from .weights import Array, Converted

_QUANTISED = "torch.ao.nn.quantized."
_OWN = _QUANTISED, "lnrnn.torch."
ALTERNATIVES = "check=x compares on your input x, check=False converts it without a check"
HOW = "compare module(x) with model(x) on an input of your own, or give check=x"

Convert = Callable[..., Converted]  # (module, norm=)


class Differs(ValueError):
    """Raised if module and network differ in results. call: the module's trace, or why it has none."""

    def __init__(self, text: str, cell: str, call: Call | Unsuitable | None) -> None:
        super().__init__(text)
        self.cell, self.call = cell, call


def checked(
    source: Any, convert: Convert, check: Any, batch_first: bool | None, call: Call | None = None
) -> Model:
    """Converts a module and compares both, as from_torch's `check` says. Returns the network.

    batch_first: the argument of from_torch. call: the trace from which `convert` reads the network, or None.
    """
    flag = check if check is None or isinstance(check, (bool, np.bool_)) else True
    if isinstance(source, Mapping) and flag:
        raise bad_value("check", "None or False with a state dict, which cannot be run", check)
    rounds = flag and type(source).__module__.startswith(_QUANTISED)
    if rounds and str(getattr(source, "weight_dtype", getattr(source, "dtype", None))) != "torch.float16":
        expected = "None or False with a module that rounds x and h to 8 bits, which hides differences"
        raise bad_value("check", expected, check)
    model = convert(source).model()
    if isinstance(source, Mapping) or not flag and (flag is not None or known(source)):
        return model
    try:
        with one_thread():
            x = None if flag is check else _input(check, model.input_size)
            way, _ = _agreement(source, convert, x, call)
    except Unchecked as reason:
        better = isinstance(reason, RoundingHidesDifference) and resolution(source) > 1e-6
        text = f"{reason}; try a float32 copy, copy.deepcopy(module).float()" if better else f"{reason}"
        message = f"the model could not be checked against the module: {text}; {HOW}"
        if flag:
            raise ValueError(message) from None
        warnings.warn(f"{message}; check=False skips the check", UserWarning, stacklevel=3)
        return model
    if batch_first is None and way.batch_first not in (None, model.batch_first):
        axes = {False: "(T, B, input_size)", True: "(B, T, input_size)"}
        warnings.warn(
            f"the module takes x as {axes[way.batch_first]}, the model as {axes[model.batch_first]}: give "
            f"batch_first={way.batch_first} for the module's order, or batch_first={model.batch_first} "
            "for the model's",
            UserWarning, stacklevel=3,
        )  # fmt: skip
    return model


def known(module: Any) -> bool:
    """Returns whether the module's class is of torch.nn, torch.ao or lnrnn.torch, so that it needs no check.

    Returns False for subclasses and for modules with hooks, which may compute something else.
    """
    nn, cls = getattr(sys.modules.get("torch"), "nn", None), type(module)
    if nn is None or not isinstance(module, nn.Module):
        return False
    if cls is nn.ModuleList:
        return all(map(known, module))
    torchs = [getattr(nn, f"{name}{end}", None) for name in CELLS for end in ("", "Cell")]
    changed = "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks
    return not changed and (cls in torchs or f"{cls.__module__}.".startswith(_OWN))


def _input(check: Any, input_size: int) -> Array:
    if hasattr(check, "detach"):
        check = check.detach().cpu()
    x = real("check", check)
    if x.ndim not in (2, 3) or x.shape[-1] != input_size or not x.size:
        expected = f"None, True, False or an input of the module, of {input_size} features and not empty"
        raise bad_value("check", expected, x)
    x = np.asarray(x, np.float32)
    if not np.isfinite(x).all():
        raise ValueError("check must be finite, got NaN or infinity, which hide differences")
    return x


# --- comparing ----------------------------------------------------------------------------------------------


def _agreement(module: Any, convert: Convert, x: Array | None, call: Call | None = None) -> tuple[Way, Array]:
    """Calls a module as its trace does, or in the usual ways. Returns (Way whose results agree, y).

    x: a user's input in the module's order of axes, used instead of probes, or None. Probes for which the
    module raises are skipped. Raises ValueError if no call agrees, Unchecked if every call fails.
    """
    torch: Any = sys.modules.get("torch")
    if not isinstance(module, getattr(getattr(torch, "nn", None), "Module", ())):
        raise Unchecked("it is not a torch.nn.Module")
    converted, tested = convert(module), Tested(module, convert)
    model = converted.model()
    arch, most = architecture(model), model.known_steps if model.overrun == "raise" else None
    graph: Call | Unsuitable | None = call
    if call is None and x is None and arch.cell.parts == 1 and not known(module):
        try:
            graph = find(module, [*ways(arch)], arch)
        except Exception as reason:  # an unreadable trace shows no difference
            graph = reason if isinstance(reason, Unsuitable) else None
    differ = f"the module has {converted.system}'s parameters, but its forward is another:"
    if isinstance(graph, Late):
        raise Differs(f"{differ} {graph}. {ALTERNATIVES}", converted.cell, graph)
    flat = x is not None and x.ndim == 2
    tries = ways(arch, flat)
    if isinstance(graph, Call) and (not flat or graph.way.axes == "BI"):
        tries = iter([graph.way])
    differing: list[tuple[bool, float, float, Way, Probe, Outputs]] = []  # True for ordinary input
    failures: list[str] = []
    for way in tries if most != 0 else ():
        usual = probes(arch, most, bool(way.kinds), way.axes == "BI")
        y, own = None, usual if x is None else iter([Probe("input", way.sequence(x))])
        try:
            for probe, outputs, difference in tested.results(way, arch, own, converted.last_states):
                if outputs is not None and difference is not None:
                    differing.append((y is None, *difference, way, probe, outputs))
                    break
                y = y if outputs is None else outputs.parts[0][1]
            else:
                start = graph.start if isinstance(graph, Call) else ""
                off = [d for _, d, _, w, *_ in differing if not w.kinds and w.axes == way.axes]
                if way.kinds and (start or off):
                    start = start or f"by {off[0]:.2g}, because forward does not start from zeros"
                    warnings.warn(f"without a state, module and model differ: {start}", stacklevel=4)
                return way, y  # type: ignore[return-value]
        except NotRun as reason:
            failures.append(f"{way}: {reason}")
        if y is not None and probe.states is None:
            break  # another form of the states may agree, but this call does not
    if not differing and isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
        for layer in module:
            found = _agreement(layer, convert, x)
            x = None if x is None else time_first(found[1].astype(np.float32), found[0].batch_first)
        return found
    if not differing:
        raise Unchecked(f"no usual call of it succeeds ({failures[0] if failures else 'no input fits'})")
    at_first, most_off, allowed, way, probe, outputs = min(differing, key=lambda each: each[:2])
    advice = _advice(module, convert, converted, outputs, graph) if at_first else (
        f"On ordinary input they agree. {ALTERNATIVES}")  # fmt: skip
    text = f"{differ} on {probe.name} of shape {time_first(outputs.x, way.batch_first).shape} the outputs of"
    text = f"{text} module and model differ by up to {most_off:.3g}, where rounding explains {allowed:.1g}."
    raise Differs(f"{text} {advice}", converted.cell, graph)


def _advice(
    module: Any, convert: Convert, converted: Converted, outputs: Outputs, graph: Call | Unsuitable | None
) -> str:
    """Returns the end of an error message: a norm with which the module agrees, or other advice."""
    if isinstance(graph, FirstState):
        return str(graph)[0].upper() + str(graph)[1:]
    own = converted.arguments["norm"]
    if not isinstance(own, LayerNormSpec) or converted.system in ("lnrnn", NAME):
        return ALTERNATIVES
    spec: Any = graph.network.arguments["norm"] if isinstance(graph, Call) else None
    with suppress(ValueError, AttributeError):  # a norm that these parameters cannot have
        norm = replace(own, placement=spec.placement, cell=spec.cell, span=spec.span)
        network = Reference(convert(module, norm=norm))
        if compare(outputs, network, resolution(module)) is None:
            return f"They agree with norm={norm}: give that"
    return f"If its norms are at other places in the cell, name the places with norm=; {ALTERNATIVES}"


# --- modules with unknown names -----------------------------------------------------------------------------


def is_own(source: Any) -> bool:
    """Returns whether `source` is a torch module of a user's own class."""
    kind: Any = getattr(getattr(sys.modules.get("torch"), "nn", None), "Module", ())
    return isinstance(source, kind) and not known(source) and not hasattr(source, "lnrnn_arguments")


def from_graph(
    module: Any, refusal: UnknownCell | Differs, norm: Any, eps: float | None, nonlinearity: str | None,
    batch_first: bool | None, check: Any,
) -> Model:  # fmt: skip
    """Converts a module with unknown parameter names from its trace. If the trace is no network of lnrnn,
    raises `refusal` with more text."""
    differs, given = isinstance(refusal, Differs), {} if batch_first is None else {"batch_first": batch_first}

    def convert(source: Any) -> Converted:
        c: Converted = call.network if source is module else call.converted(source)
        return replace(c, arguments=c.arguments | given)

    with one_thread():
        try:
            call: Any = getattr(refusal, "call", None)
            call = call if isinstance(call, Call) else find(module)
            converted = call.network
            # Names do not show whether a GRU's reset gate multiplies before or after the product.
            if differs and converted.arguments.get("reset_after", True):
                raise refusal
            _check_options(converted, norm, eps, nonlinearity)
            model = checked(module, convert, check, batch_first, call)
        except (ValueError, Unsuitable) as reason:  # an equation may hold only for these parameters
            if reason is refusal or (differs and isinstance(reason, Unsuitable)):
                raise refusal from None
            raise ValueError(f"{refusal}; {_failure(module, str(reason))}") from None
    if not isinstance(norm, LayerNormSpec):
        cell = f"lnrnn.{type(model).__name__}({model.input_size}, {model.hidden_size}, norm={model.norm})"
        silence = "" if model.norm is None else "; giving this norm= silences the warning"
        has = "another forward than its names say" if differs else "names of no known cell"
        names = ", ".join(inspect.signature(module.forward).parameters)
        warnings.warn(
            f"{type(module).__name__} has {has} and was traced to find its equation: it is {cell}, with "
            f"forward({names}) called as {call.way}{silence}",
            UserWarning, stacklevel=3,
        )  # fmt: skip
    return model


def _check_options(converted: Converted, norm: Any, eps: float | None, nonlinearity: str | None) -> None:
    """Raises Unsuitable if from_torch's arguments contradict the network of the trace."""
    own = converted.arguments["norm"]
    if isinstance(norm, LayerNormSpec) and own is not None:
        norm = norm_spec(replace(norm, inner_bias=own.inner_bias), CELLS[converted.cell])
    eps_of = None if own is None else own.eps
    for name, given, found in (
        ("norm", own if norm == "layer" and own is not None else norm, own), ("eps", eps, eps_of),
        ("nonlinearity", nonlinearity, converted.arguments.get("nonlinearity")),
    ):  # fmt: skip
        if given is not None and given != found:
            raise Unsuitable(f"{name} must be the module's {found}, got {given!r}")


def _failure(module: Any, reason: str) -> str:
    """Returns the end of an error message: why the trace has no network, and remedies."""
    text = f"a trace of forward is no network of lnrnn either: {reason}"
    if parts := _parts(module):
        return f"{text}; from_torch can convert a part of it: give {' or '.join(map(submodule, parts))}"
    return (
        f"{text}. If only names differ from a known cell's, give the state dict and names=. By hand: "
        "model = lnrnn.LSTM(input_size, hidden_size, norm=...); model.weight_ih_l0 = ...; and so on for all "
        "of model.parameters(), with the gates in lnrnn's order; docs/which_cell.md has the equations"
    )


def _parts(module: Any) -> list[str]:
    """Returns the paths of the outermost submodules that lnrnn can convert.

    Submodules with equal class, names and shapes are traced once. Their later check may still fail.
    """
    parts: list[str] = []
    by_kind: dict[Any, bool] = {}
    for path, part in module.named_modules():
        below = path.startswith(tuple(f"{outer}." for outer in parts))
        if not path or below or next(part.parameters(), None) is None:
            continue
        kind = type(part), *((name, p.shape) for name, p in part.named_parameters())
        if kind not in by_kind:
            by_kind[kind] = False
            with suppress(Unsuitable, ValueError):
                convert_torch(part) if known(part) else find(part)
                by_kind[kind] = True
        if by_kind[kind]:
            parts.append(path)
    return parts
