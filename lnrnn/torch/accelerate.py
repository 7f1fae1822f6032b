"""`accelerate`: the recurrent parts of a larger model computed by lnrnn's kernels."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.rnn import PackedSequence

from ..errors import bad_type
from ..importers.checking import Unchecked, compared
from ..importers.probes import one_thread
from ..importers.running import numbers, tensors, unchanged
from ..importers.torch_weights import known_cells
from . import accelerated, adopted
from .modules import Twin

Tensor = torch.Tensor
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_QUANTISED = re.compile(r"torch\.(ao\.)?nn\.(quantiz|intrinsic|qat)")  # where such layers are
_ALREADY = "lnrnn computes it already"
_LAYER = re.compile(r"(RNN|LSTM|GRU)(Cell)?")


@dataclass(frozen=True, repr=False)
class Report:
    """What `accelerate` did. replaced: name of each module that lnrnn computes now, and what it is. left:
    name of each recurrent module that it does not, and why. The model itself has the name ""."""

    replaced: list[tuple[str, str]]
    left: list[tuple[str, str]]
    _undo: list[Callable[[], None]] = field(default_factory=list)

    def restore(self) -> None:
        """Makes all modules what they were before. Parameters keep what they have learned since."""
        while self._undo:
            self._undo.pop()()

    def __repr__(self) -> str:
        lines = [f"replaced {len(self.replaced)}, left {len(self.left)}"]
        lines += [f"  replaced {name or 'the model'}: {what}" for name, what in self.replaced]
        lines += [f"  left {name or 'the model'}: {why}" for name, why in self.left]
        return "\n".join(lines)


def accelerate(model: torch.nn.Module, check: Any = None) -> Report:
    """Has lnrnn's kernels compute the recurrent modules of a model, in place, forward and back.

    That is every torch.nn.RNN, LSTM and GRU, and modules of other people with parameters of a system that
    `lnrnn.from_torch` knows.

    The modules of torch.nn stay the same objects, with their parameters, state_dict keys, attributes, hooks
    of state dicts and flags; an optimiser that holds their parameters goes on, and
    isinstance(module, torch.nn.LSTM) holds. Their class becomes one that is derived from torch.nn's, equal to
    it in dicts and sets, and takes and returns the same: PackedSequence, unbatched input, dropout between
    layers (torch's, in training, to the mask). What lnrnn cannot compute, another device or dtype, autocast,
    torch.func, torch.jit.trace, goes on to be computed by torch.nn's own forward; `module.engine` says which
    it is, and may be set to "torch" or "lnrnn", which insists. Second derivatives, and torch.autograd.grad
    with is_grads_batched=True, are right and take the time of torch's operations.
    torch.ao.quantization.quantize_dynamic quantises the modules as torch.nn's; torch.jit.script raises
    RuntimeError, and wants `restore()` first.
    So do torch.fx.symbolic_trace, which takes torch.nn's modules and not the accelerated ones, and
    torch.export of other people's modules whose forward is replaced.

    Left as they are, and named in the report: modules with parametrizations, with weights that are no
    parameters, with forward or backward hooks or a forward of their own, of classes derived from torch.nn's,
    quantised and scripted ones, with proj_size > 0; and cells, which are called one step at a time.

    Of other people's modules the forward is replaced (a stack of layers as one, if it can be), where it gives
    what lnrnn makes of the parameters and writes to no attribute or buffer: called with x (T, B, I) or
    (B, T, I) alone, with None, or with states in one of the usual orders, they return what they did, in the
    same structure. Each way to call them is held to lnrnn.reference on the probes of `lnrnn.from_torch`, in
    evaluation and in training; on ordinary input, on states and on the longest input so are the gradients of
    x, states and parameters (None as zero). Where outputs in training differ (dropout), calls in training go
    to the module's own forward; where gradients differ (detached states, clamped or stopped gradients), calls
    that gradients are wanted of do: the report says so. So do other calls, and all calls while an attribute,
    buffer, part or hook of the module or its parts is another than it was, or there are others (a rate of
    dropout, a flag, a mask). What is not replaced is named. What the probes do not see `from_torch` says. Nor
    are these changes seen: of globals and of methods of classes; what is written through tensor.data or
    tensor.numpy() into a tensor that is no parameter; in objects of compiled classes; and beyond 300
    attributes. A module of other people with layer norm, of 256 inputs and 512 units, takes about 6 s.

    check: an input of the model: a tensor, a tuple of arguments, or a dict of keyword arguments. The model is
    run on it before and after, in evaluation mode and without gradients, and a ValueError tells how far its
    outputs differ if not by rounding alone; the model is then what it was. Its flags, buffers and torch's
    random state do not change.

    Under torch.compile the modules run outside the graph, as torch.nn's do, unless
    torch._dynamo.config.allow_rnn is True.

    -> a Report: `replaced` and `left`, lists of (qualified name, text); `restore()` undoes it.
    """
    if not isinstance(model, torch.nn.Module):
        raise bad_type("model", "a torch.nn.Module", model)
    run = None if check is None else _call(model, check)
    before = run() if run else []
    report = Report([], [])
    try:
        _replace(model, report)
        if run:
            _compare(model, run, before, report)
    except BaseException:
        report.restore()
        raise
    return report


# --- what there is ------------------------------------------------------------------------------------------


def _replace(model: torch.nn.Module, report: Report) -> None:
    first: dict[int, str] = {}  # the name of each module that the report tells of, where it stands first

    def tell(name: str, module: torch.nn.Module, why: str | None, what: str) -> None:
        first[id(module)] = name
        if why is None:
            report.replaced.append((name, what))
        else:
            report.left.append((name, why))

    def visit(name: str, module: Any, outer: tuple[int, ...]) -> None:
        if id(module) in first:
            same = first[id(module)]
            found = report.replaced if any(same == known for known, _ in report.replaced) else report.left
            found.append((name, f"the same module as {same}"))
            return
        if _recurrent(module):
            tell(name, module, *_accelerated(module, report))
            return
        why = None
        if not type(module).__module__.startswith("torch.nn.") and known_cells(module.state_dict()):
            why, what = _adopted(module, report)
            if why is None or why == _ALREADY:
                tell(name, module, why, what)
                return
        replaced, left, known = len(report.replaced), len(report.left), dict(first)
        for own, child in vars(module)["_modules"].items():
            if child is not None and id(child) not in outer:
                visit(f"{name}.{own}" if name else own, child, (*outer, id(child)))
        if why is not None and len(report.replaced) == replaced:  # its parts go with it
            del report.left[left:]
            first.clear()
            first.update(known)
            tell(name, module, why, "")

    visit("", model, (id(model),))


def _accelerated(module: Any, report: Report) -> tuple[str | None, str]:
    """Replaces a recurrent module of torch's. -> why it does not; what it is now."""
    why = _why_left(module)
    if why is not None:
        return why, ""
    try:
        accelerated.adopt(module)
    except ValueError as error:  # sizes that lnrnn does not have
        return str(error), ""
    report._undo.append(partial(accelerated.release, module))
    return None, _replacement(module)


def _adopted(module: Any, report: Report) -> tuple[str | None, str]:
    """The same of somebody's module that looks like one of those which from_torch knows."""
    if isinstance(module, torch.jit.ScriptModule):
        return "it is scripted, and TorchScript's modules cannot be changed", ""
    if isinstance(vars(module).get("forward"), adopted.Forward):
        return _ALREADY, ""
    for name, part in module.named_modules():
        if "forward" in vars(part) or any(vars(part).get(hooks) for hooks in _HOOKS):
            return f"it has hooks or a forward of its own{f', in {name}' if name else ''}", ""
    try:
        with one_thread():
            what = adopted.adopt(module)
    except adopted.Refused as why:
        return str(why), ""
    report._undo.append(partial(adopted.release, module))
    return None, what


def _recurrent(module: torch.nn.Module) -> bool:
    if isinstance(module, (torch.nn.RNNBase, torch.nn.RNNCellBase, Twin)):
        return True
    cls: Any = type(module)
    if isinstance(module, torch.jit.ScriptModule):
        return _LAYER.fullmatch(getattr(module, "original_name", "")) is not None
    return bool(_QUANTISED.match(cls.__module__) and _LAYER.fullmatch(cls.__name__))


def _why_left(module: Any) -> str | None:
    """Why a recurrent module stays what it is; None if it need not."""
    cls, own = type(module), vars(module)
    if isinstance(module, (Twin, accelerated.Accelerated)):
        return _ALREADY
    if isinstance(module, torch.jit.ScriptModule):
        return "it is scripted, and TorchScript's modules cannot be changed"
    if not isinstance(module, (torch.nn.RNNBase, torch.nn.RNNCellBase)):
        return f"it is quantised ({cls.__module__}.{cls.__name__})"
    if is_parametrized(module):
        parametrized: Any = module.parametrizations
        return f"it has parametrizations, of {', '.join(parametrized)}"
    if isinstance(module, torch.nn.RNNCellBase):
        return "it is called one step at a time: only a torch.nn.RNN, LSTM or GRU runs whole sequences"
    if cls not in accelerated.CLASSES:
        bases = [base.__name__ for base in accelerated.CLASSES if issubclass(cls, base)]
        return f"its class {cls.__name__} is derived from torch.nn.{(*bases, 'RNNBase')[0]}"
    if "forward" in own:
        return "it has a forward of its own"
    hooks = [name.strip("_") for name in _HOOKS if own.get(name)]
    if hooks:
        return f"it has {' and '.join(hooks).replace('_', ' ')}"
    if module.proj_size:
        return f"it has a projection (proj_size={module.proj_size}), which lnrnn does not have"
    parameters = dict(module.named_parameters(recurse=False, remove_duplicate=False))
    bare = [name for name in accelerated.parameter_names(module) if name not in parameters]
    if bare:
        return f"it has weights that are no parameters: {', '.join(bare)}"
    return None


def _replacement(module: Any) -> str:
    mode = "" if module.engine == "lnrnn" else ", for now by torch.nn's forward: its parameters are "
    like = next(module.parameters())
    return f"{module}{mode}{f'{like.dtype} on {like.device}' if mode else ''}"


# --- the check ----------------------------------------------------------------------------------------------

Arrays = list[np.ndarray]


def _call(model: torch.nn.Module, check: Any) -> Callable[[], Arrays]:
    """-> a function that gives the numbers of all tensors which the model makes of the input."""
    arguments: tuple[Any, ...] = ()
    named: dict[str, Any] = {}
    if isinstance(check, (Tensor, PackedSequence)):
        arguments = (check,)
    elif isinstance(check, tuple):
        arguments = check
    elif isinstance(check, dict):
        named = check
    else:
        expected = "None, a tensor, a tuple of arguments or a dict of keyword arguments"
        raise bad_type("check", expected, check)

    def run() -> Arrays:
        with unchanged(model, torch):
            found = [numbers(t) for t in tensors(model(*arguments, **named))]
        if not found:
            raise ValueError("check is for a model that returns tensors, also in tuples, lists and mappings")
        return found

    return run


def _compare(model: torch.nn.Module, run: Callable[[], Arrays], before: Arrays, report: Report) -> None:
    """Raises ValueError if the model's outputs on the input are not what they were before."""
    weights = [p for name, _ in report.replaced for p in model.get_submodule(name).parameters()]
    if not weights:
        return
    eps = max(torch.finfo(p.dtype).eps for p in weights)
    generator = torch.Generator().manual_seed(1)

    def disturbed() -> Arrays:
        with unchanged(model, torch):  # which puts the weights back
            for p in {id(p): p for p in weights}.values():
                signs = torch.randint(0, 2, p.shape, generator=generator) * 2 - 1
                p.mul_((1 + eps * signs).to(p))
            return finite(run())

    after = run()
    shapes, now = ([a.shape for a in outputs] for outputs in (before, after))
    if shapes != now:
        raise ValueError(f"the model's outputs were of shapes {shapes}, and are of {now}; it is restored")
    known = [np.isfinite(a) for a in before]

    def finite(outputs: Arrays) -> Arrays:
        return [np.where(at, a, 0) for at, a in zip(known, outputs, strict=True)]

    masked = [
        (np.where(at, 0, a), np.where(np.isfinite(b), 0, b))
        for at, a, b in zip(known, before, after, strict=True)
    ]
    if not all(np.array_equal(a, b, equal_nan=True) for a, b in masked):
        raise ValueError(
            f"the model's outputs are NaN or infinite in other places than before; it is restored:\n{report}"
        )
    try:
        difference, limit = compared(finite(before), finite(after), disturbed, eps)
    except Unchecked as reason:
        raise ValueError(f"the model could not be checked, and is restored: {reason}") from None
    if difference > limit:
        raise ValueError(
            f"the model's outputs on the input of check differ by up to {difference:.3g} from those before, "
            f"where rounding explains {limit:.1g}; the model is restored. Not all that was replaced computes "
            f"what it did:\n{report}"
        )
