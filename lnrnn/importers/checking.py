"""Whether the network that was made of a module's parameters computes what the module does: both are run on
one input.

Names and shapes of parameters do not say what a forward method does with them. Nothing here imports torch:
where there is a module there is torch in sys.modules.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from ..errors import bad_value, real
from ..rnn.cells import CELLS
from ..rnn.models import Model
from ..rnn.network import architecture
from ..rnn.specs import PLACEMENTS, LayerNormSpec
from .weights import Array, Converted

# Random input: enough steps for what is carried from one to the next to matter, and no two axes
# of one length.
STEPS, BATCH = 7, 3
# How far rounding may take the outputs apart, in times of what _Network measures. Over correct modules of
# every system, fresh and drawn parameters, 5 to 256 units, float32 and float64, 3000 cases, at most 2.2 (0.5
# in the median); up to 18 for norms over two units, which are little more than a sign.
MARGIN = 6.0
HOW = "compare module(x) with model(x) on an input of your own, or give check=x"

Convert = Callable[..., Converted]  # (module, norm=) -> what from_torch makes of it


class Unchecked(Exception):
    """The module could not be run, or what came out says nothing. The text says why."""


@dataclass(frozen=True)
class Answer:
    """What a module made of an input. x (T, B, I) and y (T, B, directions * H): time first, whatever the
    module's own order of axes is, which batch_first says: None for a cell, which takes one step at a time.
    states: h, or h and c, at the end, (layers * directions, B, H) each, or nothing where it is not told in a
    usual way."""

    x: Array
    y: Array
    batch_first: bool | None
    states: tuple[Array, ...] = ()


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
        answer = _agreement(module, converted, convert, x)
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
        raise Unchecked(
            f"rounding alone may change its outputs by {limit:.1g}, which would hide a difference{better}"
        )
    return found if np.isfinite(found) else np.inf, limit


def _outputs(model: Any, x: Array) -> tuple[Array, ...]:
    """y (T, B, directions * H) of x (T, B, I), and the states at the end, as Answer has them."""
    y, state = model(_time_first(x, model.batch_first))
    return _time_first(y, model.batch_first), *(state if isinstance(state, tuple) else (state,))


def _largest(arrays: Iterable[Array]) -> float:
    """The largest magnitude; NaN if there is one."""
    return float(np.max([np.abs(a).max() for a in arrays]))


def _time_first(x: Array, batch_first: bool | None) -> Array:
    """From the order of axes that batch_first says to time first, or back."""
    return x.swapaxes(0, 1) if batch_first else x


def _agreement(module: Any, converted: Converted, convert: Convert, x: Array | None) -> Answer:
    """The way of running the module in which it agrees with its conversion. x: an input in the module's order
    of axes, or None for a random one. Raises ValueError if none agrees, Unchecked if none runs."""
    torch: Any = sys.modules.get("torch")
    kind: Any = getattr(getattr(torch, "nn", None), "Module", ())
    if not isinstance(module, kind):
        raise Unchecked("it is no torch.nn.Module")
    like: Any = next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0))
    network = _Network(converted, max(torch.finfo(like.dtype).eps, float(np.finfo(np.float32).eps)))
    found: list[tuple[float, float, Answer]] = []
    failures: list[str] = []
    for answer in _answers(module, network.model, x, like, failures):
        difference, limit = network.difference(answer)
        if difference <= limit:
            return answer
        found.append((difference, limit, answer))
    if not found and isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
        return _one_by_one(module, convert, x)
    if not found:
        raise Unchecked(f"it runs in none of the usual ways ({failures[0] if failures else 'no input fits'})")
    difference, limit, answer = min(found, key=lambda f: f[0])
    shape = _time_first(answer.x, answer.batch_first).shape
    raise ValueError(
        f"the module has {converted.system}'s parameters, but its forward is another: on input of shape "
        f"{shape} the outputs of module and model differ by up to {difference:.3g}, where rounding explains "
        f"{limit:.1g}. "
        + _advice(module, convert, converted, [answer for _, _, answer in found], network.eps)
    )


def _one_by_one(modules: Any, convert: Convert, x: Array | None) -> Answer:
    """The layers of a container that has no forward of its own, each beside its conversion, each fed by the
    one before."""
    answer = None
    for module in modules:
        answer = _agreement(module, convert(module), convert, x)
        x = _time_first(answer.y.astype(np.float32), answer.batch_first)
    if answer is None:
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
    where = "Give norm= if its norms stand elsewhere; " if choice else ""
    known_as = converted.system
    return f"{where}check=x tries an input x of your own, check=False imports it as {known_as}'s all the same"


# --- running ------------------------------------------------------------------------------------------------


def _answers(module: Any, model: Any, x: Array | None, like: Any, failures: list[str]) -> Iterator[Answer]:
    """The module run in each way that modules are called, on x or random input. like: a tensor of its device
    and dtype. failures: gets a line for each that does not run, or gives nothing of the right shape."""
    torch = sys.modules["torch"]
    orders = (model.batch_first, not model.batch_first)
    if x is None:
        steps = STEPS
        if model.known_steps is not None and model.overrun == "raise":
            steps = min(steps, model.known_steps)
        drawn = np.random.default_rng(0).standard_normal((steps, BATCH, model.input_size), dtype=np.float32)
        given = [(order, _time_first(drawn, order)) for order in orders] if steps else []
    else:
        given = [(order, x) for order in orders[: x.ndim - 1]]

    def tensor(array: Array) -> Any:
        return torch.tensor(array, device=like.device, dtype=like.dtype)

    def run(what: str, call: Callable[[], Any]) -> Any:
        try:
            with unchanged(module, torch):
                return call()
        except Exception as error:  # whatever a module raises that is called in another way than its own
            line = next(iter(str(error).strip().splitlines()), "")
            failures.append(f"{what}: {type(error).__name__}: {line[:120]}")
        return None

    for order, own in given:
        own = numbers(tensor(own)).astype(np.float32)  # as the module gets it
        wanted = (*own.shape[:-1], model.num_directions * model.hidden_size)
        batch = own.shape[not order] if own.ndim == 3 else None
        for what, state in _states(model, batch, tensor):
            found = run(f"module(x{what})", partial(_outcome, module, tensor(own), *state))
            at = next((i for i, t in enumerate(found or ()) if tuple(t.shape) == wanted), None)
            y = None if found is None or at is None else numbers(found.pop(at))
            if y is not None and own.ndim == 3:
                ends = _last_states(found, model, batch)
                yield Answer(_time_first(own, order), _time_first(y, order), order, ends)
            elif y is not None:
                yield Answer(own[:, None], y[:, None], model.batch_first)
            elif found is not None:
                failures.append(f"module(x{what}): no tensor of shape {wanted} comes out")
    if model.num_layers * model.num_directions > 1:
        return
    for _, own in given[:1]:
        if own.ndim == 3:
            sequence = _time_first(own, orders[0] if x is None else False)
        else:  # what a cell takes at one step; the first alone would not show what it carries on
            sequence = np.repeat(own[None], STEPS, 0)
        for packed in (True, False):
            y = run("a step", partial(_step_by_step, module, model, [tensor(v) for v in sequence], packed))
            if y is not None:
                yield Answer(sequence, y, None)


def _outcome(module: Any, *arguments: Any) -> list[Any]:
    """The tensors that a call of the module returns."""
    return list(tensors(module(*arguments)))


def _step_by_step(module: Any, model: Any, steps: list[Any], packed: bool) -> Array:
    """A cell over the steps, each x (B, I), from a state of zeros. packed: whether h and c come as one
    argument."""
    shape, kinds = (len(steps[0]), model.hidden_size), architecture(model).cell.states
    state, outputs = [steps[0].new_zeros(shape)] * kinds, []
    for x in steps:
        found = list(tensors(module(x, tuple(state)) if packed and kinds > 1 else module(x, *state)))
        if len(found) < kinds or any(tuple(t.shape) != shape for t in found):
            raise ValueError(f"a step gives tensors of shapes {[tuple(t.shape) for t in found]}")
        state = found[-kinds:]  # it returns (h, c), or (h, (h, c)); or h, or (h, h)
        outputs.append(numbers(found[0]))
    return np.array(outputs)


def _states(
    model: Any, batch: int | None, tensor: Callable[[Array], Any]
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """How modules take the first state, beside x, and how to say it: not at all, None, as torch.nn does, and
    a cell's state for each layer and direction, as fastrnns does. batch: sequences in x, None for one without
    an axis for it."""
    yield "", ()
    yield ", None", (None,)
    if batch is None:
        return
    layers, directions = model.num_layers, model.num_directions

    def zeros(*shape: int) -> Any:
        parts = [
            tensor(np.zeros((*shape, batch, model.hidden_size), np.float32))
            for _ in range(architecture(model).cell.states)
        ]
        return tuple(parts) if len(parts) > 1 else parts[0]

    yield ", state", (zeros(layers * directions),)
    if layers * directions == 1:
        yield ", state", (zeros(),)
    nested = [[zeros() for _ in range(directions)] for _ in range(layers)]
    if directions == 1:
        yield ", states", ([states[0] for states in nested],)
    else:
        yield ", states", (nested,)
        if layers == 1:
            yield ", states", (nested[0],)


def _last_states(tensors: list[Any], model: Any, batch: int | None) -> tuple[Array, ...]:
    """h, or h and c, of what came out beside y: as torch.nn returns them, or as a cell's for each layer and
    direction. Nothing if it is anything else."""
    kinds, places = architecture(model).cell.states, model.num_layers * model.num_directions
    shapes = [tuple(t.shape) for t in tensors]
    if shapes == [(places, batch, model.hidden_size)] * kinds:
        return tuple(map(numbers, tensors))
    if shapes == [(batch, model.hidden_size)] * (kinds * places):
        return tuple(np.array([numbers(t) for t in tensors[k::kinds]]) for k in range(kinds))
    return ()


def tensors(result: Any) -> Iterator[Any]:
    """The tensors in what a module returned, in their order."""
    if isinstance(result, sys.modules["torch"].Tensor):
        yield result
    elif isinstance(result, (tuple, list, Mapping)):
        for part in result.values() if isinstance(result, Mapping) else result:
            yield from tensors(part)


def numbers(t: Any) -> Array:
    found: Array = t.detach().cpu().double().numpy()
    return found


@contextmanager
def unchanged(module: Any, torch: Any) -> Iterator[None]:
    """In evaluation mode, without gradients. Afterwards torch's random state and the module's flags,
    attributes, parameters and buffers are what they were before."""
    parts = list(module.modules())
    flags = [part.training for part in parts]
    inner = ("_parameters", "_buffers", "_modules")
    own = [d for part in parts for d in (vars(part), *map(vars(part).get, inner)) if isinstance(d, dict)]
    before = [dict(d) for d in own]
    plain = [v for d in before for v in d.values() if isinstance(v, torch.Tensor)]
    tensors = [*module.parameters(), *module.buffers(), *plain]
    numbers = [t.detach().clone() for t in tensors]
    cuda = sorted({t.device.index for t in tensors if t.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices=cuda), torch.no_grad():
            module.eval()
            yield
    finally:
        with torch.no_grad():
            for t, number in zip(tensors, numbers, strict=True):
                if not torch.equal(t, number):
                    t.copy_(number)
        for now, then in zip(own, before, strict=True):
            if now.keys() != then.keys() or any(now[name] is not value for name, value in then.items()):
                now.clear()
                now.update(then)
        for part, flag in zip(parts, flags, strict=True):
            part.training = flag
