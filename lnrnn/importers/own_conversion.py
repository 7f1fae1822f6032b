"""Converts a module of an unknown class that is one cell, one layer, or a network of layers."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..rnn.cells import CELLS
from ..rnn.models import Model
from ..rnn.specs import LayerNormSpec
from .blocks import Unsuitable
from .checking import Convert, checked, known
from .own_modules import find, wrapped
from .running import one_thread
from .systems import UnknownCell
from .torch_weights import convert_torch, submodule
from .weights import Converted, Weights, network


def is_own(source: Any) -> bool:
    """Returns whether `source` is a torch module of a class that is not of torch.nn or lnrnn.torch."""
    kind: Any = getattr(getattr(sys.modules.get("torch"), "nn", None), "Module", ())
    return isinstance(source, kind) and not known(source) and not hasattr(source, "lnrnn_arguments")


def from_graph(
    module: Any,
    refusal: ValueError,
    norm: Any,
    eps: float | None,
    nonlinearity: str | None,
    batch_first: bool | None,
    check: Any,
) -> Model:
    """Converts a module with unknown names of parameters. Raises `refusal` with more text if its graph is no
    network of lnrnn."""
    spec, unknown = norm if isinstance(norm, LayerNormSpec) else None, isinstance(refusal, UnknownCell)
    with sys.modules["torch"].inference_mode(False), one_thread():  # a graph needs tensors with versions
        try:
            call = find(module)
            converted = call.converted(module)
            if not unknown and converted.arguments.get("reset_after", True):
                raise refusal
            _check_options(converted, norm, eps, nonlinearity)
        except Unsuitable as reason:
            if not unknown:
                raise refusal from None
            raise ValueError(f"{refusal}; {_failure(module, str(reason))}") from None

        def convert(source: Any, **options: Any) -> Converted:
            c = call.converted(source, **options)
            given = {} if batch_first is None else {"batch_first": batch_first}
            return replace(c, arguments=c.arguments | given)

        def convert_inner(wrapper: Any, **options: Any) -> Converted:
            return convert(wrapper.inner, **options)

        def with_x_last(inner: Any, x: Any, states: Sequence[Any]) -> Any:
            return inner(*states, x)

        own, of_own = (module, convert) if call.way.usual else (wrapped(module, with_x_last), convert_inner)
        try:
            model = checked(own, of_own, check, batch_first)
        except (ValueError, Unsuitable) as reason:  # an equation may hold for these parameters alone
            raise ValueError(f"{refusal}; {_failure(module, str(reason))}") from None
    if spec is None:
        cell = f"lnrnn.{type(model).__name__}({model.input_size}, {model.hidden_size}, norm={model.norm})"
        silence = "" if model.norm is None else "; giving this norm= silences the warning"
        has = "names of no known cell" if unknown else "another forward than its names say"
        warnings.warn(
            f"{type(module).__name__} has {has} and was exported to find its equation: it is {cell}{silence}",
            UserWarning, stacklevel=3,
        )  # fmt: skip
    return model


def _check_options(converted: Converted, norm: Any, eps: float | None, nonlinearity: str | None) -> None:
    """Raises Unsuitable unless the network is that of from_torch's arguments."""
    own = converted.arguments["norm"]
    if isinstance(norm, LayerNormSpec) and own is not None:
        norm = replace(norm.resolved(CELLS[converted.cell]), inner_bias=own.inner_bias)
    eps_of = None if own is None else own.eps
    for name, given, found in (
        ("norm", own if norm == "layer" and own is not None else norm, own), ("eps", eps, eps_of),
        ("nonlinearity", nonlinearity, converted.arguments.get("nonlinearity")),
    ):  # fmt: skip
        if given is not None and given != found:
            raise Unsuitable(f"{name} must be the module's {found}, got {given!r}")


def _failure(module: Any, reason: str) -> str:
    """Returns the end of an error: why the module has no network, and the remedies."""
    text = f"its graph is no network of lnrnn either: {reason}"
    if parts := _parts(module):
        text += f"; from_torch can convert a part of it: give {' or '.join(map(submodule, parts))}"
        with suppress(ValueError):  # the parts differ, or do not take each other's outputs
            c = network([[each] for each in parts.values()], False)
            if len(parts) > 1:
                arguments = ", ".join(f"{name}={value!r}" for name, value in c.arguments.items())
                text += (
                    "; if each part takes the outputs of the part before, their state dicts, with _l0 "
                    f"renamed _l1 and so on, are together one for lnrnn.{c.cell}({arguments})"
                )
        return text
    return (
        f"{text}. If only names differ from a known cell's, give the state dict and names=. By hand: "
        "model = lnrnn.LSTM(input_size, hidden_size, norm=...); model.weight_ih_l0 = ...; and so on for all "
        "of model.parameters(), with the gates in lnrnn's order; docs/which_cell.md has the equations"
    )


def _parts(module: Any) -> dict[str, Weights]:
    """Returns the outermost parts of a module that are one layer of lnrnn, by their paths.

    Parts with equal class, names and shapes are exported once. The check of a part may still refuse it.
    """
    parts: dict[str, Weights] = {}
    by_kind: dict[Any, Convert | None] = {}
    for path, part in module.named_modules():
        below = path.startswith(tuple(f"{outer}." for outer in parts))
        if not path or below or next(part.parameters(), None) is None:
            continue
        kind = type(part), *((name, p.shape) for name, p in part.named_parameters())
        if kind not in by_kind:
            by_kind[kind] = None
            with suppress(Unsuitable, ValueError):
                by_kind[kind] = convert_torch if known(part) else find(part).converted
        if convert := by_kind[kind]:
            c = convert(part)
            if c.arguments["num_layers"] == 1 and not c.arguments["bidirectional"]:
                p = {name.removesuffix("_l0"): v for name, v in c.state.items()}
                a = c.arguments
                parts[path] = Weights(c.cell, a["norm"], a["bias"], p, a.get("nonlinearity"))
    return parts
