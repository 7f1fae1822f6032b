"""Compares the outputs of a torch module with those of the network to which it was converted.

Names and shapes of parameters do not show how a forward method uses them. The inputs are those of probes.py.
This file does not import torch: whoever passes a module has imported it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from ..errors import bad_value, real
from ..rnn.cells import CELLS
from ..rnn.models import Model
from ..rnn.settings import architecture
from ..rnn.specs import PLACEMENTS, LayerNormSpec
from .own_modules import first_states
from .probes import DOUBLE, SINGLE, Probe, TestedModule, disagreement, like, one_thread, probes, resolution
from .reference_network import ReferenceNetwork
from .running import GIVEN, Answer, answers, rerun, time_first, unchanged
from .weights import Array, Converted

# The permitted difference, in multiples of the rounding error that _Network estimates. For 3000 correct
# modules of all systems, with 5 to 256 units, in float32 and float64, the difference was at most 2.2 (0.5 in
# the median). For norms over two units it reached 18, because their results are almost +1 and -1.
MARGIN = 6.0
_QUANTISED = "torch.ao.nn.quantized."
_OF_TORCH = _QUANTISED, "torch.ao.nn.quantizable."
HOW = "compare module(x) with model(x) on an input of your own, or give check=x"

Convert = Callable[..., Converted]  # (module, norm=)


class Unchecked(Exception):
    """The module cannot be run, or its outputs do not show its equation. The text says why."""


class OtherStates(ValueError):
    """The module's outputs differ from the network's, but only for initial states other than zeros."""


class RoundingHidesDifference(Unchecked):
    """Rounding errors may be as large as a difference of the equations, so nothing can be concluded."""


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
            answer = _agreement(module, converted, convert, x, probed=x is None)
    except Unchecked as reason:
        message = f"the model could not be checked against the module: {reason}; {HOW}"
        if forced:
            raise ValueError(message) from None
        warnings.warn(f"{message}; check=False skips the check", UserWarning, stacklevel=3)
        return model
    if batch_first is None and answer.batch_first not in (None, model.batch_first):
        axes = {False: "(T, B, input_size)", True: "(B, T, input_size)"}
        warnings.warn(
            f"the module takes x as {axes[answer.batch_first]}, the model as {axes[model.batch_first]}: give "
            f"batch_first={answer.batch_first} for the module's order, or batch_first={model.batch_first} "
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


class _Network:
    """A network, and an estimate of its rounding errors for numbers with machine epsilon eps.

    In three trials each parameter changes by a random relative eps or -eps. The estimate is the largest
    change of the outputs. If weights magnify errors from step to step, they magnify the estimate too.
    """

    def __init__(self, converted: Converted, eps: float) -> None:
        self.converted, self.model, self.eps = converted, converted.model(), eps

    def difference(self, answer: Answer) -> tuple[float, float]:
        """Returns the largest difference from the module's outputs, and the limit for rounding errors."""
        theirs = (answer.y, *answer.states)
        ours = _outputs(self.model, answer.x)[: len(theirs)]
        if not all(np.isfinite(a).all() for a in ours):
            raise Unchecked("the outputs are not finite")
        rng = np.random.default_rng(1)

        def disturbed() -> tuple[Array, ...]:
            converted = self.converted.disturbed(np.float32(self.eps), rng)
            return _outputs(converted.model(), answer.x)[: len(theirs)]

        return compared(theirs, ours, disturbed, self.eps)


def compared(
    theirs: Sequence[Array], ours: Sequence[Array], disturbed: Callable[[], Sequence[Array]], eps: float
) -> tuple[float, float]:
    """Returns the largest difference of two networks' outputs, and the limit for rounding errors.

    disturbed: computes `ours` again, with parameters that differ by a random relative eps or -eps.
    """
    size = _largest(ours)
    limit = eps * max(size, 1.0)
    for _ in range(3):
        limit = max(limit, _largest(a - b for a, b in zip(ours, disturbed(), strict=True)))
    difference = _largest(a - b for a, b in zip(theirs, ours, strict=True))
    limit *= MARGIN
    if difference <= limit > 0.25 * size:
        better = "; in float32, copy.deepcopy(module).float(), it may not" if eps > 1e-6 else ""
        raise RoundingHidesDifference(
            f"rounding alone may change its outputs by {limit:.1g}, which would hide a difference{better}"
        )
    return difference if np.isfinite(difference) else np.inf, limit


def _outputs(model: Any, x: Array) -> tuple[Array, ...]:
    """Returns y (T, B, directions * H) for x (T, B, I), then the last h, or h and c, shaped as in Answer."""
    y, state = model(time_first(x, model.batch_first))
    return time_first(y, model.batch_first), *(state if isinstance(state, tuple) else (state,))


def _largest(arrays: Iterable[Array]) -> float:
    """Returns the largest magnitude, or NaN if a number is NaN."""
    return float(np.max([np.abs(a).max() for a in arrays]))


def _agreement(module: Any, converted: Converted, convert: Convert, x: Array | None, probed: bool) -> Answer:
    """Tries the usual ways to call the module. Returns the Answer of a call that agrees with `converted`.

    x: an input in the module's order of axes, or None for a random one. probed: whether the call must agree
    on all probes too. Raises ValueError if no call agrees, Unchecked if every call fails.
    """
    torch: Any = sys.modules.get("torch")
    kind: Any = getattr(getattr(torch, "nn", None), "Module", ())
    if not isinstance(module, kind):
        raise Unchecked("it is not a torch.nn.Module")
    network = _Network(converted, resolution(module))
    differing: list[tuple[float, float, Answer]] = []
    failures: list[str] = []
    other: ValueError | None = None
    for answer in answers(module, network.model, x, like(module), failures):
        if not converted.last_states:
            answer = replace(answer, states=())
        vague: RoundingHidesDifference | None = None
        try:
            difference, limit = network.difference(answer)
        except RoundingHidesDifference as reason:
            if not probed:
                raise
            difference, limit, vague = 0.0, 0.0, reason
        if difference <= limit:
            try:
                if probed:
                    _probe(module, convert, network, answer, vague)
                unlike = [d for d, _, own in differing if own.way < GIVEN <= answer.way
                          and own.batch_first is answer.batch_first is not None]  # fmt: skip
                if unlike:
                    read = first_states(module) or "it does not start from zeros"
                    warnings.warn(f"without a state, the module is {unlike[0]:.2g} off: {read}", stacklevel=4)
                return answer
            except OtherStates as error:  # a call that passes states in another form may agree
                other = other or error
                continue
        differing.append((difference, limit, answer))
    if other:
        raise ValueError(str(other))
    if not differing and isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
        return _one_by_one(module, convert, x, probed)
    if not differing:
        raise Unchecked(f"it runs in none of the usual ways ({failures[0] if failures else 'no input fits'})")
    difference, limit, answer = min(differing, key=lambda each: each[0])
    advice = _advice(module, convert, converted, [answer for _, _, answer in differing], network.eps)
    raise _difference_error(converted, answer, "input", (difference, limit), advice)


def _difference_error(
    converted: Converted, answer: Answer, probe: str, difference: tuple[float, float], advice: str
) -> ValueError:
    shape = time_first(answer.x, answer.batch_first).shape
    return ValueError(
        f"the module has {converted.system}'s parameters, but its forward is another: on {probe} of shape "
        f"{shape} the outputs of module and model differ by up to {difference[0]:.3g}, where rounding "
        f"explains {difference[1]:.1g}. {advice}"
    )


def _probe(
    module: Any, convert: Convert, network: _Network, answer: Answer, vague: RoundingHidesDifference | None
) -> None:
    """Compares a module with the reference on all probes, with the kind of call that gave `answer`.

    Raises ValueError that names the first probe on which they differ, or OtherStates if this probe has
    initial states. Probes that make the module raise are left out. vague: an exception to raise if the module
    cannot compute in float64, or None.
    """
    torch, converted, tested = sys.modules["torch"], network.converted, TestedModule(module)
    most = network.model.known_steps if network.model.overrun == "raise" else None
    started = answer.batch_first is None or answer.way >= GIVEN
    for n, probe in enumerate(probes(architecture(network.model), most, started)):
        for version, eps, context in tested.versions(probe):
            try:
                with context, unchanged(version, torch):
                    got = rerun(version, network.model, answer, probe)
                    got = replace(got, states=got.states if answer.states else ())
            except Exception:  # modules raise anything for such an input, or in float64
                continue
            key = eps, probe.factor
            if key not in tested.references:
                tested.references[key] = ReferenceNetwork.of(convert(version))
            difference = _disagreement(got, tested.references[key], probe, eps)
            if difference and n == 0 and eps == DOUBLE:
                difference = _disagreement(got, tested.references[key], probe, SINGLE)
                if difference is None:  # forward converts to a narrower type inside
                    tested.double = None
                    continue
            if difference:
                advice = f"On ordinary input they agree. {_alternatives(converted)}"
                if n == 0:
                    advice = _advice(module, convert, converted, [got], SINGLE)
                error = _difference_error(converted, got, probe.name, difference, advice)
                raise error if probe.states is None else OtherStates(*error.args)
            break
        if vague and tested.double is None:
            raise vague


def _disagreement(
    got: Answer, network: ReferenceNetwork, probe: Probe, eps: float
) -> tuple[float, float] | None:
    """Returns None if the module's outputs `got` agree with the reference, else the difference and limit."""
    rng = np.random.default_rng(1)
    theirs = (got.y, *got.states)

    def outputs(of: ReferenceNetwork) -> list[Array]:
        run = of.forward(got.x, probe.states)
        return [run.y, *run.ends][: len(theirs)]

    return disagreement(theirs, outputs(network), lambda: outputs(network.disturbed(eps, rng)), eps, MARGIN)


def _one_by_one(modules: Any, convert: Convert, x: Array | None, probed: bool) -> Answer:
    """Checks each layer of a container that has no forward, on the outputs of the layer below."""
    answer = None
    for module in modules:
        answer = _agreement(module, convert(module), convert, x, probed)
        x = time_first(answer.y.astype(np.float32), answer.batch_first)
    if answer is None:  # pragma: no cover - empty containers are refused before
        raise Unchecked("it is empty")
    return answer


def _advice(module: Any, convert: Convert, converted: Converted, answers: list[Answer], eps: float) -> str:
    """Returns the end of an error message: a norm with which the module agrees, or other advice."""
    if read := first_states(module):
        return read[0].upper() + read[1:]
    own = converted.arguments["norm"]
    choice = isinstance(own, LayerNormSpec) and converted.system != "lnrnn"
    if choice:
        for placement, cell, span in product(PLACEMENTS, ("out", "carry", None), (None, "all")):
            try:
                other = convert(module, norm=replace(own, placement=placement, cell=cell, span=span))
                network = _Network(other, eps)
                fits = any(difference <= limit for difference, limit in map(network.difference, answers))
            except (ValueError, Unchecked):  # not a norm of this cell or of these parameters
                continue
            if fits:
                return f"They agree with norm={other.arguments['norm']}: give that"
    where = "If its norms are at other places in the cell, name the places with norm=; " if choice else ""
    return where + _alternatives(converted)


def _alternatives(converted: Converted) -> str:
    return f"check=x compares on your input x, check=False converts it as {converted.system}'s unchecked"
