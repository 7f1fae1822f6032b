"""Converts a module that is one layer of custom cells, or a network of such layers."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ...rnn.models import Model
from ...rnn.specs import LayerNormSpec
from ..checking import checked, known
from ..running import one_thread
from ..torch_weights import convert_torch, submodule
from ..weights import Converted, Weights, network
from . import NEAR, Criteria, search
from .first_states import first_states
from .runs import OutOfTime, Unsuitable, batch_axis_first

Convert = Callable[..., Converted]
Part = Callable[[Any], Weights]  # converts a submodule of the module or of its copy
NAME = "the cell of the search"


@dataclass(frozen=True)
class Network:
    """A module as a network of submodules, each one layer in one direction. paths: the submodules' names.
    parts: their conversions. arranged: the indices of each layer's submodules."""

    paths: tuple[str, ...]
    parts: tuple[Part, ...]
    arranged: tuple[tuple[int, ...], ...]
    batch_first: bool
    usual: bool = True

    def converted(self, module: Any, **options: Any) -> Converted:
        if options:
            raise ValueError("norm must be None, because the search has decided it")
        own = zip(self.paths, self.parts, strict=True)
        weights = [part(module.get_submodule(path)) for path, part in own]
        layers = [[weights[k] for k in layer] for layer in self.arranged]
        return network(layers, self.batch_first, NAME)


def _with_state_last(module: Any, convert: Convert) -> tuple[Any, Convert]:
    """Wraps a cell with forward(state, x), and its conversion, so that the check can call cell(x, state)."""
    nn: Any = sys.modules["torch"].nn

    class StateLast(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Any, *state: Any) -> Any:
            return self.inner(*state, x)

    return StateLast(), lambda wrapper, **options: convert(wrapper.inner, **options)


def searchable(source: Any) -> bool:
    """Returns whether `source` is a torch module of a class that is not of torch.nn or lnrnn.torch."""
    kind: Any = getattr(getattr(sys.modules.get("torch"), "nn", None), "Module", ())
    return isinstance(source, kind) and not known(source) and not hasattr(source, "lnrnn_arguments")


def from_search(
    module: Any,
    refusal: ValueError,
    norm: Any,
    eps: float | None,
    nonlinearity: str | None,
    batch_first: bool | None,
    check: Any,
) -> Model:
    """Converts a module with unknown names of parameters. Raises `refusal` with more text if no equation
    fits."""
    inner = {v for part in module.modules() if isinstance(v := getattr(part, "eps", None), float)}
    spec = norm if isinstance(norm, LayerNormSpec) else None
    given = spec.eps if spec else eps
    tried = (*sorted(inner), 1e-5) if given is None else (given,)
    wanted = Criteria(spec, norm == "layer", tried, nonlinearity)
    reasons: list[Exception | str] = []
    # The search needs gradients, and measures the time of one thread.
    with sys.modules["torch"].inference_mode(False), one_thread():
        for network in _networks(module, wanted):
            if not isinstance(network, Network):
                reasons.append(network)
                continue
            network = network if batch_first is None else replace(network, batch_first=batch_first)
            how = check
            if len(network.paths) > 1 and (check is None or check is False):
                how = True  # the check decides between arrangements
            tested, convert = module, network.converted
            if not network.usual:
                tested, convert = _with_state_last(module, network.converted)
            try:
                model = checked(tested, convert, how, batch_first)
            except ValueError as error:
                reasons.append(error)
                continue
            if spec is None:
                _warn(module, model)
            return model
    raise ValueError(f"{refusal}; {_failure(wanted, reasons)}") from None


def _warn(module: Any, model: Model) -> None:
    cell = f"lnrnn.{type(model).__name__}({model.input_size}, {model.hidden_size}, norm={model.norm})"
    silence = "" if model.norm is None else "; giving this norm= silences the warning"
    name = type(module).__name__
    warnings.warn(
        f"{name} has names of no known cell and was run to find its equation: it is {cell}{silence}",
        UserWarning, stacklevel=4,
    )  # fmt: skip


def _failure(wanted: Criteria, reasons: list[Exception | str]) -> str:
    """Returns the text of an error: the hints, which are strings, or reasons and the nearest equation."""
    text = "running it did not find its equation either: "
    if hints := [reason for reason in reasons if isinstance(reason, str)]:
        return text + "; ".join(hints)
    text += "; ".join(dict.fromkeys(map(str, reasons[:2])))
    e = wanted.nearest
    name, norm = e.cell.name if e else "LSTM", "..."
    if e is not None:
        spec = e.norm and replace(e.norm, eps=float(f"{e.norm.eps:.2g}"))
        off = f"which is {wanted.distance:.2g} off on random parameters"
        text += f"; the nearest is lnrnn.{name} with norm={spec}, {off}"
        norm = f"{spec}" if wanted.distance <= NEAR else norm
    return (
        f"{text}. By hand: model = lnrnn.{name}(input_size, hidden_size, norm={norm}); "
        "model.weight_ih_l0 = ...; and so on for all of model.parameters(), with the gates in lnrnn's order; "
        "docs/which_cell.md has the equations"
    )


def _networks(module: Any, wanted: Criteria) -> Iterator[Network | Unsuitable | str]:
    """Yields the module as one layer, or why it is none, then as networks of its parts, then hints."""
    try:
        match = search(module, wanted)
        yield Network(("",), (match.weights,), ((0,),), bool(match.way.batch_first), match.way.usual)
    except Unsuitable as reason:
        if isinstance(reason, OutOfTime):
            yield first_states(module) or reason
            return
        yield reason
    parts = _parts(module, wanted)
    taken = {id(p) for path in parts for p in module.get_submodule(path).parameters()}
    weights = [part(module.get_submodule(path)) for path, part in parts.items()]
    if len(parts) > 1 and all(id(p) in taken for p in module.parameters()):
        for arranged in _arrangements(len(parts)):
            width = len(arranged[0]) * weights[0].hidden_size
            order = batch_axis_first(module, weights[0].input_size, width)
            if order is not None:
                yield Network((*parts,), (*parts.values(),), arranged, order)
    if text := first_states(module):
        yield text
    if not parts:
        return
    yield f"from_torch can convert a part of it: give {' or '.join(map(submodule, parts))}"
    with suppress(ValueError):  # the parts differ, or do not take each other's outputs
        c = network([[each] for each in weights], False)
        if len(parts) > 1:
            arguments = ", ".join(f"{name}={value!r}" for name, value in c.arguments.items())
            yield (
                "if each part takes the outputs of the part before, their state dicts, with _l0 renamed _l1 "
                f"and so on, are together one for lnrnn.{c.cell}({arguments})"
            )


def _parts(module: Any, wanted: Criteria) -> dict[str, Part]:
    """Returns the conversions of a module's outermost parts that have equations of lnrnn, by their paths.

    Parts with equal class, names and shapes share one conversion. The check of the outputs refuses a part
    with another equation. Parts that the search has no time for are not converted.
    """
    parts: dict[str, Part] = {}
    by_kind: dict[Any, Part | None] = {}
    for path, part in module.named_modules():
        below = path.startswith(tuple(f"{outer}." for outer in parts))
        if path and not below and next(part.parameters(), None) is not None:
            kind = type(part), *((name, p.shape) for name, p in part.named_parameters())
            if kind not in by_kind:
                by_kind[kind] = None
                with suppress(Unsuitable):
                    by_kind[kind] = _own if known(part) else search(part, wanted).weights
            if found := by_kind[kind]:
                parts[path] = found
    return parts


def _own(part: Any) -> Weights:
    """Converts a layer whose class is known."""
    c = convert_torch(part)
    p = {name.removesuffix("_l0"): v for name, v in c.state.items()}
    return Weights(c.cell, c.arguments["norm"], c.arguments["bias"], p, c.arguments.get("nonlinearity"))


def _arrangements(n: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yields layers (tuples of indices) of n parts: single parts, pairs (k, k + 1), pairs (k, k + n / 2)."""
    yield tuple((k,) for k in range(n))
    if n % 2 == 0:
        pairs = tuple((k, k + 1) for k in range(0, n, 2))
        yield pairs
        if n > 2:
            yield tuple((k, k + n // 2) for k in range(n // 2))
