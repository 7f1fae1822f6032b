"""`accelerate` lets lnrnn's kernels compute the recurrent modules of a torch model."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ..arguments import TAKES, Choice, Flag, Optional
from ..arguments import check as checked
from ..errors import bad_type, bad_value
from ..importers.systems import UnknownCell
from ..importers.torch_weights import known_cells
from ..rnn.snapshot import DTYPES, Dtype
from ..rounding import Rounding, options_of_check
from . import custom_modules, derived, torch_nn
from .accelerated import Accelerated
from .custom_forward import Forward
from .model_checks import call, compare_outputs, compare_weights, gain, outputs
from .short_weights import measured, use
from .twin import Twin

Tensor = torch.Tensor
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_QUANTISED = re.compile(r"torch\.(ao\.)?nn\.(quantiz|intrinsic|qat)")  # modules with quantized layers
_ALREADY = "lnrnn computes it already"
_LAYER = re.compile(r"(RNN|LSTM|GRU)(Cell)?")

TAKES["torch.accelerate"] = {"dtype": Optional(Choice(DTYPES)), "frozen": Flag()}


@dataclass(repr=False)
class Report:
    """The result of `accelerate`. Names are as in named_modules(), for the whole model "".

    Attributes
    ----------
    replaced : list of (str, str)
        The name of each module that lnrnn computes now, and a description.
    left : list of (str, str)
        The name of each recurrent module that did not change, and the reason.
    gain : float or None
        With check: the time of a call on it in torch alone, divided by the time with lnrnn, in evaluation and
        without gradients. Each is the least time of several calls. Modules that an earlier call of
        `accelerate` replaced count too. None if lnrnn computes no module, or if a call failed.
    dtype : {"float32", "bfloat16", "int8"} or None
        The argument of `accelerate`.
    rounding : lnrnn.rounding.Rounding, or None
        With dtype and check: how these weights change time and results, module by module.

    Examples
    --------
    >>> import torch
    >>> import lnrnn.torch
    >>> report = lnrnn.torch.accelerate(torch.nn.Sequential(torch.nn.GRUCell(3, 4)))
    >>> report.replaced[0][0], len(report.left)
    ('0', 0)
    """

    replaced: list[tuple[str, str]]
    left: list[tuple[str, str]]
    dtype: Dtype | None = None
    gain: float | None = None
    rounding: Rounding | None = None
    _undo: list[Callable[[], None]] = field(default_factory=list)
    _frozen: bool = False

    def restore(self) -> None:
        """Restores all modules, with their current parameters. Moves `replaced` into `left`."""
        while self._undo:
            self._undo.pop()()
        self.left += [(name, "restore() has restored it") for name, _ in self.replaced]
        self.replaced.clear()
        self.dtype = self.gain = self.rounding = None

    def __repr__(self) -> str:
        lines = [f"replaced {len(self.replaced)}, left {len(self.left)}"]
        lines += [f"  replaced {name or 'the model'}: {what}" for name, what in self.replaced]
        lines += [f"  left {name or 'the model'}: {why}" for name, why in self.left]
        if self.gain is not None:
            lines.append(f"  a call on check is {self.gain:.1f} times as fast as in torch, without gradients")
        if self.dtype is not None:
            lines.append(f"  {self.dtype} weights without gradients")
        if self.rounding is not None:
            lines += [f"    {line}" for line in repr(self.rounding).splitlines()]
        return "\n".join(lines)


def accelerate(
    model: torch.nn.Module, check: Any = None, *, dtype: Dtype | None = None, frozen: bool = False,
    tolerance: float | None = None, threshold: float = 0.0,
) -> Report:  # fmt: skip
    """Changes a model in place so that lnrnn's kernels compute its recurrent modules, forward and back.

    Recurrent modules are torch.nn.RNN, LSTM and GRU, and custom modules that `lnrnn.from_torch` recognises.

    Parameters
    ----------
    model : torch.nn.Module
        The model. It is changed in place.
    check : tensor, tuple of arguments or dict of keyword arguments, optional
        An input of the model. The model is run on this input before and after the change, in evaluation mode
        and without gradients. If the outputs differ by more than rounding, the model is restored and a
        ValueError is raised. Flags, buffers and torch's random state do not change. Modules that lnrnn
        computes already read their weights again.
    dtype : {"float32", "bfloat16", "int8"}, optional
        The type of the packed weights in calls without gradients, as in `lnrnn.LSTM.to_dtype`. It is set in
        all modules that lnrnn computes, also in modules of lnrnn.torch. Default: float32, or as set before.
        Calls that need gradients use float32, and so do the parameters. With `check`, the report has a
        table of time and differences, module by module.
    frozen : bool
        Whether calls without gradients of replaced modules of torch.nn keep the weights of their first call.
        In-place writes to parameters then have no effect. load_state_dict, module.to, other tensors as
        parameters, and setting `module.frozen` let the next call pack the weights again.
    tolerance : float, optional
        With `check` and `dtype`: the largest difference of an output from float32 that is permitted. The
        fewest modules keep float32 weights, chosen by their own differences. A UserWarning says if all do.
    threshold : float
        With `check`: the report counts how many outputs change from one side of it to the other.

    Returns
    -------
    Report
        `replaced` and `left`, lists of (qualified name, text). `restore()` undoes everything.

    Raises
    ------
    TypeError
        If model or check is of another type.
    ValueError
        If the model's outputs on the input `check` change. With dtype, if they are NaN, or no longer finite,
        or differ in float32 by more than the tolerance. Also if they show that weights of an accelerated
        module were written without notice. For another dtype.

    Notes
    -----
    Modules of torch.nn remain the same objects, with their parameters, state_dict keys, attributes, hooks of
    state dicts and flags. So optimisers continue to work. The new class of such a module is derived from
    torch.nn's, so isinstance(module, torch.nn.LSTM) remains true. Its sizes must not be set. Arguments and
    results are the same, with PackedSequence, unbatched input, and dropout between layers (with torch's
    masks). torch.nn's forward still computes calls on another device or dtype, under autocast, torch.func and
    torch.jit.trace. It also computes small calls with gradients of some modules, where it is faster, and the
    report says so. `module.engine` says whether "lnrnn" or "torch" computes a call. It can be assigned: with
    "lnrnn", calls that lnrnn cannot compute raise a ValueError.

    Calls keep packed weights. A call packs them again after a change: of a parameter's address or layout, of
    torch's count of writes, or of one of 8 elements. Torch does not count writes of fused optimisers, nor
    writes through p.data, NumPy or an alias. Such a write is noticed if it changes one of the 8 elements, as
    an optimiser's step does. After a write of a few elements, set `module.frozen = False`, or call
    accelerate(model, check=inputs) again. The next calls of all modules that lnrnn computes then read their
    weights again. If this changes the outputs on these inputs, a ValueError is raised. Inference tensors and
    shared memory have no such count. So the module's own forward computes calls without gradients, unless the
    weights are frozen, or `engine` is "lnrnn", which packs them in each call. Modules of lnrnn.torch pack
    them in each call.

    Second derivatives, and torch.autograd.grad with is_grads_batched=True, take the time of torch's
    operations. Call `restore()` before torch.ao.quantization.quantize_dynamic, which otherwise leaves the
    modules out, and before torch.jit.script and torch.fx.symbolic_trace, which raise RuntimeError. Under
    torch.compile modules run outside the graph, those of torch.nn unless torch._dynamo.config.allow_rnn is
    True. Programs of torch.export have the operations of custom modules.

    Classes derived from torch.nn's are replaced too. If they have a forward of their own, lnrnn computes its
    calls of super().forward. If weights become computed later, by weight_norm, pruning, parametrizations or
    dropout, torch.nn's forward computes the calls until they are parameters again.

    Some modules do not change, and the report says why. They have computed weights, a forward set on the
    object, or a derived class with other parts of torch.nn's forward. Or they are quantised or scripted. Or
    they seem recurrent, and their equation is none of lnrnn's. A name of a class shows it (RNN, LSTM, GRU,
    Recurrent, Cell). Matrices with the shapes of W_ih and W_hh show it too, or an argument of forward (h, hx,
    hidden, state).

    For a custom module, its forward is replaced; if possible, that of a complete stack of layers. Its
    equation comes from the names of its parameters, or from a graph of its calls. The module must write to no
    attribute or buffer, and lnrnn's parameters must be sums of elements of its own. The new forward computes
    calls with x (T, B, I) or (B, T, I) alone, with None, or with states in a usual structure. For a cell,
    calls have x (B, I) or (1, B, I) and states. Results are y with all last states or alone, in the module's
    structure. Before, all these calls are compared with lnrnn.reference on the probes of `lnrnn.from_torch`,
    in evaluation and in training. In training, and for a cell, the probes have up to 7 steps.

    The module's own forward computes all other calls, and all that need gradients. To train such a network on
    the kernels, use lnrnn.torch.from_network(lnrnn.from_torch(module)) in its place. If outputs in training
    differ (dropout), the own forward computes all calls in training. It also computes all calls after an
    attribute, buffer, submodule or hook has changed. lnrnn does not notice changes of globals and of methods
    of classes, changes in objects of compiled classes, and those beyond 300 objects in attributes.
    It does not notice writes through tensor.data or tensor.numpy() to a tensor that is no parameter.
    Replacing a custom module takes seconds.

    Examples
    --------
    >>> import torch
    >>> import lnrnn.torch
    >>> model = torch.nn.Sequential(torch.nn.LSTM(3, 4))
    >>> report = lnrnn.torch.accelerate(model, check=torch.zeros(5, 2, 3))
    >>> [name for name, _ in report.replaced]
    ['0']
    >>> report.restore()
    """
    if not isinstance(model, torch.nn.Module):
        raise bad_type("model", "a torch.nn.Module", model)
    dtype, frozen = checked("torch.accelerate", locals())
    of_check = options_of_check(check, tolerance, threshold)
    if dtype is None and tolerance is not None:
        raise bad_value("dtype", "given with tolerance", dtype)
    once: Any = None if check is None else call(model, check)
    run = None if once is None else partial(outputs, model, once)
    if run:
        compare_weights(model, run)
    report = Report([], [], dtype, _frozen=frozen)
    try:
        if report.dtype is not None:
            _set_dtype(model, "float32", report)
        before = run() if run else []
        _replace(model, report)
        names = [name for name, _ in report.replaced]
        if run:
            compare_outputs(model, run, before, names, repr(report))
        if report.dtype is not None:
            _set_dtype(model, report.dtype, report)
            if once is not None:
                report.rounding = measured(model, once, before, report.dtype, **of_check)
        names += [name for name, why in report.left if why == _ALREADY]
        names = [name for name in names if not isinstance(model.get_submodule(name), Twin)]
        if run and names:
            report.gain = gain(model, once, names)
    except BaseException:
        report.restore()
        raise
    return report


def _set_dtype(model: torch.nn.Module, dtype: Dtype, report: Report) -> None:
    for module in model.modules():
        report._undo.extend(use(module, dtype))


# --- the modules --------------------------------------------------------------------------------------------


def _replace(model: torch.nn.Module, report: Report) -> None:
    first: dict[int, str] = {}  # {id of a module: its first name in the report}

    def note(name: str, module: torch.nn.Module, why: str | None, what: str) -> None:
        first[id(module)] = name
        if why is None:
            report.replaced.append((name, what))
        else:
            report.left.append((name, why))

    def visit(name: str, module: Any, outer: tuple[int, ...]) -> None:
        if id(module) in first:
            same = first[id(module)]
            listed = report.replaced if any(same == known for known, _ in report.replaced) else report.left
            listed.append((name, f"the same module as {same}"))
            return
        if _recurrent(module):
            note(name, module, *_replace_native(module, report))
            return
        why, what = _replace_custom(module, report)
        if why is None or why == _ALREADY:
            note(name, module, why, what)
            return
        replaced, left = len(report.replaced), len(report.left)
        for own, child in vars(module)["_modules"].items():
            if child is not None and id(child) not in outer:
                visit(f"{name}.{own}" if name else own, child, (*outer, id(child)))
        steps = all(custom_modules.ONE_STEP in what for _, what in report.replaced[replaced:])
        if why and steps and len(report.left) == left:
            note(name, module, why, "")

    visit("", model, (id(model),))


def _replace_native(module: Any, report: Report) -> tuple[str | None, str]:
    """Replaces a recurrent module of torch.nn. Returns (None, description), or (reason against it, "")."""
    why = _why_left(module)
    if why is not None:
        return why, ""
    try:
        torch_nn.accelerate_module(module)
    except ValueError as error:  # sizes without a kernel
        return str(error), ""
    report._undo.append(partial(torch_nn.restore_module, module))
    vars(module)["_frozen"] = report._frozen
    return None, _replacement(module)


def _replace_custom(module: Any, report: Report) -> tuple[str | None, str]:
    """Replaces a custom module. Returns a pair as `_replace_native`, or ("", "") if it is not recurrent."""
    if type(module).__module__.startswith("torch.nn.") or any(map(_recurrent, module.modules())):
        return "", ""
    if isinstance(vars(module).get("forward"), Forward):
        return _ALREADY, ""
    shown = custom_modules.shown(module)
    if not (shown or known_cells(module.state_dict())):
        return "", ""
    why = f"{shown}, but " if shown else ""
    if isinstance(module, torch.jit.ScriptModule):
        return f"{why}it is scripted, and TorchScript's modules cannot be changed", ""
    for name, part in module.named_modules():
        if "forward" in vars(part) or any(vars(part).get(hooks) for hooks in _HOOKS):
            return f"{why}it has hooks or a forward of its own{f', in {name}' if name else ''}", ""
    try:
        what = custom_modules.replace_forward(module, bool(shown))
    except custom_modules.Refused as reason:
        return f"{why}{reason}", ""
    except UnknownCell:
        return "", ""
    report._undo.append(partial(custom_modules.restore_forward, module))
    return None, what


def _recurrent(module: torch.nn.Module) -> bool:
    if isinstance(module, (torch.nn.RNNBase, torch.nn.RNNCellBase, Twin)):
        return True
    cls: Any = type(module)
    if isinstance(module, torch.jit.ScriptModule):
        return _LAYER.fullmatch(getattr(module, "original_name", "")) is not None
    return bool(_QUANTISED.match(cls.__module__) and _LAYER.fullmatch(cls.__name__))


def _why_left(module: Any) -> str | None:
    """Returns the reason why a recurrent module cannot be replaced, or None."""
    cls, own = type(module), vars(module)
    if isinstance(module, (Twin, Accelerated)):
        return _ALREADY
    if isinstance(module, torch.jit.ScriptModule):
        return "it is scripted, and TorchScript's modules cannot be changed"
    if not isinstance(module, (torch.nn.RNNBase, torch.nn.RNNCellBase)):
        hint = "lnrnn.from_torch(module).to_dtype('int8') computes with its weights"
        return f"it is quantised ({cls.__module__}.{cls.__name__}): {hint}"
    base = torch_nn.base_class(module)
    if base is None:
        return f"its class {cls.__name__} is derived from torch.nn.RNNBase"
    if "forward" in own:
        return "it has a forward of its own"
    if own.get("_backward_hooks") and not own["_is_full_backward_hook"]:
        return "it has backward hooks, which see torch.nn's operations: use register_full_backward_hook"
    parameters = dict(module.named_parameters(recurse=False, remove_duplicate=False))
    computed = [name for name in torch_nn.parameter_names(module) if name not in parameters]
    if computed:
        return (
            f"its {', '.join(computed)} are no parameters, as with weight_norm, pruning or parametrizations: "
            "remove those first (torch.nn.utils.parametrize.remove_parametrizations, prune.remove)"
        )
    return derived.why_not(module, base, torch_nn.CLASSES[base])


def _replacement(module: Any) -> str:
    what, weight = f"{module}", next(module.parameters())
    if module.engine != "lnrnn":
        what += f", for now by torch.nn's forward: its parameters are {weight.dtype} on {weight.device}"
    small = module.small_calls()
    if small is not None and module.engine == "lnrnn":
        what += f"; torch computes calls with gradients of {small}, where it is faster"
    return what
