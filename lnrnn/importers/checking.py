"""Whether the network that was made of a module's parameters computes what the module does: both are run on
the inputs of probes.py.

Names and shapes of parameters do not say what a forward method does with them. Nothing here imports torch:
where there is a module there is torch in sys.modules.
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
from .probes import DOUBLE, SINGLE, Probe, Subject, apart, like, one_thread, probes, resolution
from .running import GIVEN, Answer, again, answers, time_first, unchanged
from .truth import Truth
from .weights import Array, Converted

# How far rounding may take the outputs apart, in times of what _Network measures. Over correct modules of
# every system, fresh and drawn parameters, 5 to 256 units, float32 and float64, 3000 cases, at most 2.2 (0.5
# in the median); up to 18 for norms over two units, which are little more than a sign.
MARGIN = 6.0
HOW = "compare module(x) with model(x) on an input of your own, or give check=x"

Convert = Callable[..., Converted]  # (module, norm=) -> what from_torch makes of it


class Unchecked(Exception):
    """The module could not be run, or what came out says nothing. The text says why."""


class OtherStates(ValueError):
    """The module takes its first states in another way than was tried, or does something else with them."""


class Vague(Unchecked):
    """Rounding alone may change what came out too much."""


def checked(source: Any, convert: Convert, check: Any, batch_first: bool | None) -> Model:
    """The model that convert(source) says, after the check that `from_torch` explains. batch_first: as given
    there."""
    forced = not (check is None or isinstance(check, (bool, np.bool_)) and not check)
    module = None if isinstance(source, Mapping) else source
    if module is None and forced:
        raise ValueError("check is for a module: a state dict cannot be run")
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
        warnings.warn(f"{message}; check=False leaves the check out", UserWarning, stacklevel=3)
        return model
    if batch_first is None and answer.batch_first not in (None, model.batch_first):
        axes = {False: "(T, B, input_size)", True: "(B, T, input_size)"}
        warnings.warn(
            f"the module takes x as {axes[answer.batch_first]}, the model as {axes[model.batch_first]}: give "
            f"batch_first={answer.batch_first} for the module's order, batch_first={model.batch_first} "
            "if this one is meant",
            UserWarning, stacklevel=3,
        )  # fmt: skip
    return model


def known(module: Any) -> bool:
    """Whether the module's class itself says what it computes: torch.nn's own and lnrnn.torch's, not what is
    derived from them, and without hooks, which may change what comes out."""
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
        raise ValueError("check must be finite: NaN and infinity say nothing about the module")
    return x


# --- comparing ----------------------------------------------------------------------------------------------


class _Network:
    """A network and how far rounding may take it from a module in which numbers have the resolution eps.

    Rounding is what its own outputs change by when every parameter changes by a random eps or -eps of itself,
    the largest of three such: that is of the order of the errors which sums over so many terms have, and
    passes through the same steps, so that weights that magnify errors allow for them.
    """

    def __init__(self, converted: Converted, eps: float) -> None:
        self.converted, self.model, self.eps = converted, converted.model(), eps

    def difference(self, answer: Answer) -> tuple[float, float]:
        """-> the largest difference from the module, and what rounding explains."""
        theirs = (answer.y, *answer.states)
        ours = _outputs(self.model, answer.x)[: len(theirs)]
        if not all(np.isfinite(a).all() for a in ours):
            raise Unchecked("the outputs are not finite")
        rng, signs = np.random.default_rng(1), np.array((-1, 1), np.int8)

        def disturbed() -> tuple[Array, ...]:
            eps = np.float32(self.eps)
            changed = {name: v * (1 + eps * rng.choice(signs, v.shape)) if v.dtype.kind == "f" else v
                       for name, v in self.converted.state.items()}  # fmt: skip
            return _outputs(replace(self.converted, state=changed).model(), answer.x)[: len(theirs)]

        return compared(theirs, ours, disturbed, self.eps)


def compared(
    theirs: Sequence[Array], ours: Sequence[Array], disturbed: Callable[[], Sequence[Array]], eps: float
) -> tuple[float, float]:
    """-> the largest difference of two networks' outputs, and what rounding explains. disturbed: gives ours
    anew, after a random change of each parameter by the resolution eps."""
    size = _largest(ours)
    limit = eps * max(size, 1.0)
    for _ in range(3):
        limit = max(limit, _largest(a - b for a, b in zip(ours, disturbed(), strict=True)))
    found = _largest(a - b for a, b in zip(theirs, ours, strict=True))
    limit *= MARGIN
    if found <= limit > 0.25 * size:
        better = "; in float32, copy.deepcopy(module).float(), it may not" if eps > 1e-6 else ""
        raise Vague(
            f"rounding alone may change its outputs by {limit:.1g}, which would hide a difference{better}"
        )
    return found if np.isfinite(found) else np.inf, limit


def _outputs(model: Any, x: Array) -> tuple[Array, ...]:
    """y (T, B, directions * H) of x (T, B, I), and the states at the end, as Answer has them."""
    y, state = model(time_first(x, model.batch_first))
    return time_first(y, model.batch_first), *(state if isinstance(state, tuple) else (state,))


def _largest(arrays: Iterable[Array]) -> float:
    """The largest magnitude; NaN if there is one."""
    return float(np.max([np.abs(a).max() for a in arrays]))


def _agreement(module: Any, converted: Converted, convert: Convert, x: Array | None, probed: bool) -> Answer:
    """The way of running the module in which it agrees with its conversion. x: an input in the module's order
    of axes, or None for a random one. probed: whether it has to agree on all probes too. Raises ValueError if
    none agrees, Unchecked if none runs."""
    torch: Any = sys.modules.get("torch")
    kind: Any = getattr(getattr(torch, "nn", None), "Module", ())
    if not isinstance(module, kind):
        raise Unchecked("it is no torch.nn.Module")
    network = _Network(converted, resolution(module))
    found: list[tuple[float, float, Answer]] = []
    failures: list[str] = []
    other: ValueError | None = None
    for answer in answers(module, network.model, x, like(module), failures):
        vague: Vague | None = None
        try:
            difference, limit = network.difference(answer)
        except Vague as reason:
            if not probed:
                raise
            difference, limit, vague = 0.0, 0.0, reason
        if difference <= limit:
            try:
                if probed:
                    _probe(module, convert, network, answer, vague)
                return answer
            except OtherStates as error:  # zeros do not tell the ways apart in which states are given
                other = other or error
                continue
        found.append((difference, limit, answer))
    if other:
        raise ValueError(str(other))
    if not found and isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
        return _one_by_one(module, convert, x, probed)
    if not found:
        raise Unchecked(f"it runs in none of the usual ways ({failures[0] if failures else 'no input fits'})")
    difference, limit, answer = min(found, key=lambda f: f[0])
    advice = _advice(module, convert, converted, [answer for _, _, answer in found], network.eps)
    raise _other(converted, answer, "input", (difference, limit), advice)


def _other(
    converted: Converted, answer: Answer, what: str, found: tuple[float, float], advice: str
) -> ValueError:
    shape = time_first(answer.x, answer.batch_first).shape
    return ValueError(
        f"the module has {converted.system}'s parameters, but its forward is another: on {what} of shape "
        f"{shape} the outputs of module and model differ by up to {found[0]:.3g}, where rounding explains "
        f"{found[1]:.1g}. {advice}"
    )


def _probe(module: Any, convert: Convert, network: _Network, answer: Answer, vague: Vague | None) -> None:
    """Holds a module, run in the way that gave the answer, to the reference on all probes. Raises ValueError
    that names the probe on which they differ, OtherStates if states were given. A probe that the module
    refuses, by whatever it raises, is left out. vague: what to raise if it does not compute in float64."""
    torch, converted, subject = sys.modules["torch"], network.converted, Subject(module)
    most = network.model.known_steps if network.model.overrun == "raise" else None
    started = answer.batch_first is None or answer.way >= GIVEN
    for n, probe in enumerate(probes(architecture(network.model), most, started)):
        for version, eps, context in subject.versions(probe):
            try:
                with context, unchanged(version, torch):
                    got = again(version, network.model, answer, probe)
            except Exception:  # whatever a module raises that takes no such input, or no float64
                continue
            of = eps, probe.factor
            if of not in subject.truths:
                subject.truths[of] = Truth.of(convert(version))
            found = _unlike(got, subject.truths[of], probe, eps)
            if found and n == 0 and eps == DOUBLE:
                found = _unlike(got, subject.truths[of], probe, SINGLE)
                if found is None:  # it computes in narrower numbers inside, whatever its own dtype is
                    subject.double = None
                    continue
            if found:
                advice = f"On ordinary input they agree. {_ways_out(converted)}"
                if n == 0:
                    advice = _advice(module, convert, converted, [got], SINGLE)
                error = _other(converted, got, probe.name, found, advice)
                raise error if probe.states is None else OtherStates(*error.args)
            break
        if vague and subject.double is None:
            raise vague


def _unlike(got: Answer, truth: Truth, probe: Probe, eps: float) -> tuple[float, float] | None:
    """By how much what a module gave on a probe is off, and what rounding explains; None if it is not."""
    rng = np.random.default_rng(1)
    theirs = (got.y, *got.states)

    def outputs(of: Truth) -> list[Array]:
        run = of.forward(got.x, probe.states)
        return [run.y, *run.ends][: len(theirs)]

    return apart(theirs, outputs(truth), lambda: outputs(truth.disturbed(eps, rng)), eps, MARGIN)


def _one_by_one(modules: Any, convert: Convert, x: Array | None, probed: bool) -> Answer:
    """The layers of a container that has no forward of its own, each beside its conversion, each fed by the
    one before."""
    answer = None
    for module in modules:
        answer = _agreement(module, convert(module), convert, x, probed)
        x = time_first(answer.y.astype(np.float32), answer.batch_first)
    if answer is None:  # pragma: no cover - empty containers are refused before
        raise Unchecked("it is empty")
    return answer


def _advice(module: Any, convert: Convert, converted: Converted, answers: list[Answer], eps: float) -> str:
    """What to do about a module that differs: the norm with which it would not, if there is one."""
    own = converted.arguments["norm"]
    choice = isinstance(own, LayerNormSpec) and converted.system != "lnrnn"
    if choice:
        for placement, cell, span in product(PLACEMENTS, ("out", "carry", None), (None, "all")):
            try:
                other = convert(module, norm=replace(own, placement=placement, cell=cell, span=span))
                network = _Network(other, eps)
                fits = any(difference <= limit for difference, limit in map(network.difference, answers))
            except (ValueError, Unchecked):  # not a norm of this cell, or not of these parameters
                continue
            if fits:
                return f"They agree with norm={other.arguments['norm']}: give that"
    where = "If its norms are at other places in the cell, say where with norm=; " if choice else ""
    return where + _ways_out(converted)


def _ways_out(converted: Converted) -> str:
    system = converted.system
    return f"check=x tries an input x of your own, check=False takes it as {system}'s without this check"
