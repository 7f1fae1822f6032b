"""Compares a module with the network that has its parameters, on the inputs of probes.py.

Names and shapes of parameters do not show how a forward method uses them. This file does not import
torch: if there is a module, torch is in sys.modules.
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
from ..rnn.network import architecture
from ..rnn.specs import PLACEMENTS, LayerNormSpec
from .probes import DOUBLE, SINGLE, Probe, TestedModule, disagreement, like, one_thread, probes, resolution
from .reference_network import ReferenceNetwork
from .running import GIVEN, Answer, answers, rerun, time_first, unchanged
from .weights import Array, Converted

# The permitted difference, in multiples of the rounding that _Network measures. In 3000 cases of correct
# modules of every system, 5 to 256 units, float32 and float64, it was at most 2.2 (0.5 in the median). Norms
# over two units, which are almost a sign, reached 18.
MARGIN = 6.0
HOW = "compare module(x) with model(x) on an input of your own, or give check=x"

Convert = Callable[..., Converted]  # (module, norm=)


class Unchecked(Exception):
    """The module does not run, or its outputs decide nothing. The text says why."""


class OtherStates(ValueError):
    """The module takes its first states in another way, or uses them otherwise."""


class RoundingHidesDifference(Unchecked):
    """Rounding alone may change the outputs too much."""


def checked(source: Any, convert: Convert, check: Any, batch_first: bool | None) -> Model:
    """The model of convert(source), after the check that `from_torch` explains.

    batch_first: the argument of from_torch.
    """
    forced = not (check is None or isinstance(check, (bool, np.bool_)) and not check)
    module = None if isinstance(source, Mapping) else source
    if module is None and forced:
        raise ValueError("check must be None or False with a state dict, which cannot be run")
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
    """Whether the module is of a class of torch.nn or lnrnn.torch, whose equation is known.

    Derived classes may compute something else, and so may modules with hooks.
    """
    nn, cls = getattr(sys.modules.get("torch"), "nn", None), type(module)
    if nn is None or not isinstance(module, nn.Module):
        return False
    if cls is nn.ModuleList:
        return all(map(known, module))
    torchs = [getattr(nn, f"{name}{end}", None) for name in CELLS for end in ("", "Cell")]
    if cls not in torchs and cls.__module__.split(".")[:2] != ["lnrnn", "torch"]:
        return False
    return not ("forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks)


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
    """A network, and how far rounding may move it from a module whose numbers have the resolution eps.

    The measure is the change of its own outputs when each parameter changes by a random eps or -eps of
    itself: the largest of three. This is of the order of the errors in sums of so many terms. It passes
    through the same steps, so weights that magnify errors magnify the limit too.
    """

    def __init__(self, converted: Converted, eps: float) -> None:
        self.converted, self.model, self.eps = converted, converted.model(), eps

    def difference(self, answer: Answer) -> tuple[float, float]:
        """-> the largest difference from the module, and the limit by rounding."""
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
    """-> the largest difference of two networks' outputs, and the limit by rounding.

    disturbed: computes ours again, after each parameter changed randomly by the resolution eps.
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
    """y (T, B, directions * H) for x (T, B, I), and the last states, as in Answer."""
    y, state = model(time_first(x, model.batch_first))
    return time_first(y, model.batch_first), *(state if isinstance(state, tuple) else (state,))


def _largest(arrays: Iterable[Array]) -> float:
    """The largest magnitude; NaN if there is one."""
    return float(np.max([np.abs(a).max() for a in arrays]))


def _agreement(module: Any, converted: Converted, convert: Convert, x: Array | None, probed: bool) -> Answer:
    """The way to run the module in which it agrees with its conversion.

    x: an input in the module's order of axes, or None for a random one. probed: whether it must also agree on
    all probes. Raises ValueError if it agrees in no way, Unchecked if it runs in no way.
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
                return answer
            except OtherStates as error:  # states of zeros do not distinguish the ways to pass states
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
    """Compares a module with the reference on all probes, called in the way of the answer.

    Raises ValueError that names the first probe on which they differ, OtherStates if that has states. Probes
    that make the module raise are left out. vague: to be raised if the module does not compute in float64.
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
                if difference is None:  # it computes in narrower numbers inside
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
    """The difference of a module's outputs on a probe and its limit, or None if they agree."""
    rng = np.random.default_rng(1)
    theirs = (got.y, *got.states)

    def outputs(of: ReferenceNetwork) -> list[Array]:
        run = of.forward(got.x, probe.states)
        return [run.y, *run.ends][: len(theirs)]

    return disagreement(theirs, outputs(network), lambda: outputs(network.disturbed(eps, rng)), eps, MARGIN)


def _one_by_one(modules: Any, convert: Convert, x: Array | None, probed: bool) -> Answer:
    """Checks the layers of a container without a forward; each takes the outputs of the one before."""
    answer = None
    for module in modules:
        answer = _agreement(module, convert(module), convert, x, probed)
        x = time_first(answer.y.astype(np.float32), answer.batch_first)
    if answer is None:  # pragma: no cover - empty containers are refused before
        raise Unchecked("it is empty")
    return answer


def _advice(module: Any, convert: Convert, converted: Converted, answers: list[Answer], eps: float) -> str:
    """The advice to the user: the norm with which a module would agree, if there is one."""
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
    where = "If its norms are at other places in the cell, say where with norm=; " if choice else ""
    return where + _alternatives(converted)


def _alternatives(converted: Converted) -> str:
    return f"check=x tries an input x of yours, check=False imports it as {converted.system}'s unchecked"
