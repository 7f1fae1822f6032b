"""Compares a torch module with the network to which it was converted, on probes or on an input of the user.

Names and shapes of parameters do not show how a forward method uses them. This file does not import torch:
whoever passes a module has imported it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from ..errors import bad_value, real
from ..recognise.probes import Probe, probes
from ..recognise.proof import NotRun, Outputs, Proof, RoundingHidesDifference, Unchecked, compare, prove
from ..recognise.reference_network import ReferenceNetwork
from ..rnn.cells import CELLS
from ..rnn.models import Model
from ..rnn.settings import architecture
from ..rnn.specs import PLACEMENTS, LayerNormSpec
from .own_modules import first_states
from .running import Tested, Way, one_thread, resolution, time_first, ways
from .weights import Array, Converted

_QUANTISED = "torch.ao.nn.quantized."
_OF_TORCH = _QUANTISED, "torch.ao.nn.quantizable."
ALTERNATIVES = "check=x compares on your input x, check=False converts it without a check"
HOW = "compare module(x) with model(x) on an input of your own, or give check=x"

Convert = Callable[..., Converted]  # (module, norm=)


def checked(source: Any, convert: Convert, check: Any, batch_first: bool | None) -> Model:
    """Returns the model of convert(source), after the check that `from_torch` explains.

    batch_first: the argument of from_torch.
    """
    forced = not (check is None or isinstance(check, (bool, np.bool_)) and not check)
    module = None if isinstance(source, Mapping) else source
    if module is None and forced:
        raise ValueError("check must be None or False with a state dict, which cannot be run")
    if forced and module is not None and _rounds_inputs(module):
        expected = "None or False with a module that rounds x and h to 8 bits, which hides differences"
        raise bad_value("check", expected, check)
    converted = convert(source)
    model = converted.model()
    if module is None or not (forced or (check is None and not known(module))):
        return model
    x = None if check is None or isinstance(check, (bool, np.bool_)) else _input(check, model.input_size)
    try:
        with one_thread():
            way, _ = _agreement(module, convert, x)
    except Unchecked as reason:
        better = isinstance(reason, RoundingHidesDifference) and resolution(module) > 1e-6
        text = f"{reason}; in float32, copy.deepcopy(module).float(), it may not" if better else f"{reason}"
        message = f"the model could not be checked against the module: {text}; {HOW}"
        if forced:
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
    """Returns whether the module's class is of torch.nn, torch.ao or lnrnn.torch, whose equations are known.

    False for a derived class and a module with hooks, which may compute something else.
    """
    nn, cls = getattr(sys.modules.get("torch"), "nn", None), type(module)
    if nn is None or not isinstance(module, nn.Module):
        return False
    if cls is nn.ModuleList:
        return all(map(known, module))
    torchs = [getattr(nn, f"{name}{end}", None) for name in CELLS for end in ("", "Cell")]
    own = cls.__module__.split(".")[:2] == ["lnrnn", "torch"] or cls.__module__.startswith(_OF_TORCH)
    if cls not in torchs and not own:
        return False
    return not ("forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks)


def _rounds_inputs(module: Any) -> bool:
    """Returns whether a module is quantised to int8 by torch.ao."""
    dtype = getattr(module, "weight_dtype", getattr(module, "dtype", None))
    return type(module).__module__.startswith(_QUANTISED) and str(dtype) != "torch.float16"


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


def _agreement(module: Any, convert: Convert, x: Array | None) -> tuple[Way, Array]:
    """Tries the usual ways to call a module. Returns the first in which it agrees on all probes, and a y.

    x: an input in the module's order of axes in place of the probes, or None. Probes that make the module
    raise are left out. Raises ValueError if no call agrees, Unchecked if every call fails.
    """
    torch: Any = sys.modules.get("torch")
    if not isinstance(module, getattr(getattr(torch, "nn", None), "Module", ())):
        raise Unchecked("it is not a torch.nn.Module")
    converted, tested = convert(module), Tested(module, convert)
    model = converted.model()
    arch, most = architecture(model), model.known_steps if model.overrun == "raise" else None
    differing: list[tuple[Way, Probe, Proof]] = []
    failures: list[str] = []
    other: ValueError | None = None
    for way in ways(arch, x is not None and x.ndim == 2) if most != 0 else ():
        y = proof = None
        for probe in probes(arch, most, way.started) if x is None else [Probe("input", way.sequence(x))]:
            run = partial(way.run, arch=arch, probe=probe, ends=converted.last_states, first=y is None)
            try:
                proof = prove(tested.versions(probe, run), y is None)
            except NotRun as reason:
                failures.append(f"{way}: {reason}")
                break
            if proof is not None and proof.difference:
                break
            y = y if proof is None else proof.outputs.parts[0][1]
        else:
            alike = [
                each for own, _, each in differing if not own.started and own.batch_first is way.batch_first
            ]
            if way.started and alike and (difference := alike[0].difference):
                read = first_states(module) or "it does not start from zeros"
                text = f"without a state, the module is {difference[0]:.2g} off: {read}"
                warnings.warn(text, UserWarning, stacklevel=4)
            return way, y  # type: ignore[return-value]
        if proof is not None and y is None:
            differing.append((way, probe, proof))
        elif proof is not None:
            advice = f"On ordinary input they agree. {ALTERNATIVES}"
            error = _error(converted, way, probe, proof, advice)
            if probe.states is None:
                raise error
            other = other or error  # a call that passes states in another form may agree
    if other:
        raise other
    if not differing and isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
        for layer in module:
            found = _agreement(layer, convert, x)
            x = None if x is None else time_first(found[1].astype(np.float32), found[0].batch_first)
        return found
    if not differing:
        failure = failures[0] if failures else "no input fits"
        raise Unchecked(f"it runs in none of the usual ways ({failure})")
    way, probe, proof = min(differing, key=lambda each: each[2].difference or (0, 0))
    advice = _advice(module, convert, converted, [proof.outputs for _, _, proof in differing])
    raise _error(converted, way, probe, proof, advice)


def _error(converted: Converted, way: Way, probe: Probe, proof: Proof, advice: str) -> ValueError:
    shape = time_first(proof.outputs.x, way.batch_first).shape
    difference, limit = proof.difference or (0, 0)
    return ValueError(
        f"the module has {converted.system}'s parameters, but its forward is another: on {probe.name} of "
        f"shape {shape} the outputs of module and model differ by up to {difference:.3g}, where rounding "
        f"explains {limit:.1g}. {advice}"
    )


def _advice(module: Any, convert: Convert, converted: Converted, every: Sequence[Outputs]) -> str:
    """Returns the end of an error message: a norm with which the module agrees, or other advice."""
    if read := first_states(module):
        return read[0].upper() + read[1:]
    own = converted.arguments["norm"]
    choice = isinstance(own, LayerNormSpec) and converted.system != "lnrnn"
    if choice:
        for placement, cell, span in product(PLACEMENTS, ("out", "carry", None), (None, "all")):
            try:
                other = convert(module, norm=replace(own, placement=placement, cell=cell, span=span))
            except ValueError:  # not a norm of this cell or of these parameters
                continue
            network = ReferenceNetwork.of(other)
            if any(compare(outputs, network, resolution(module)) is None for outputs in every):
                return f"They agree with norm={other.arguments['norm']}: give that"
    where = "If its norms are at other places in the cell, name the places with norm=; " if choice else ""
    return where + ALTERNATIVES
