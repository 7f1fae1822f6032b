"""Custom operators torch.ops.lnrnn, which call lnrnn's C kernels.

- run: runs a network on whole sequences; differentiable
- infer: run without derivatives; run calls it if no gradients are needed
- forward_train: run that also returns tensors for backward; run calls it if gradients are needed
- backward: computes gradients; plain.py computes second derivatives
- update_statistics: updates batch norm's running statistics after a training batch, in place, on any device

Arguments. network: text of functional.described. start: [h0] or [h0, c0], (layers * directions, B,
*) each, or [] for zeros. lengths: int64 or None, see rnn/functional.py, also for x with two axes. parameters:
in the order of Architecture.shapes. statistics: for each layer and direction, in the order of
statistics.named_shapes. All tensors are float32 on the CPU, except statistics and lengths.

Operators are defined with Library.define and implemented with Library.impl, because calls through
torch.library.custom_op take longer. The compiled module gets tensors as NumPy arrays that share memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from ..rnn import engine, functional
from ..rnn.functional import architecture
from ..rnn.rows import LENGTH
from ..rnn.snapshot import tape_width
from ..rnn.statistics import named_shapes
from ..runtime import get_num_threads, num_threads
from . import plain
from .kept import PLAIN, arrays, packed

Tensor = torch.Tensor

_jit: Any = torch.jit
_library: Any = torch.library.Library("lnrnn", "DEF")  # type: ignore[no-untyped-call]
_CELL = "str network, Tensor x, Tensor[] start, Tensor? lengths, Tensor[] parameters"
for _name in ("run", "infer"):
    _library.define(f"{_name}({_CELL}, Tensor[] statistics, str? overrun, bool training) -> Tensor[]")
_library.define(f"forward_train({_CELL}) -> Tensor[]")
_library.define(f"backward({_CELL}, Tensor[] saved, Tensor? gy, Tensor?[] gend, bool[] wanted) -> Tensor[]")
_library.define("update_statistics(str network, Tensor(a!)[] running, Tensor[] seen) -> ()")
_run = torch.ops.lnrnn.run.default
_infer = torch.ops.lnrnn.infer.default
_forward_train = torch.ops.lnrnn.forward_train.default
_backward = torch.ops.lnrnn.backward.default
update_statistics = torch.ops.lnrnn.update_statistics.default


def run(
    network: str,
    x: Tensor,
    start: Sequence[Tensor],
    lengths: Tensor | None,
    parameters: Sequence[Tensor],
    statistics: Sequence[Tensor] = (),
    overrun: str | None = None,
    training: bool = False,
    module: Any = None,
) -> list[Tensor]:
    """Calls the operator run. Returns [y, h] or [y, h, c]; training adds batch norm's statistics.

    x: (T, B, D), or (B, T, D) with batch_first; y has the same axes. module: a Keeping or Forward that
    caches packed weights, or None.
    """
    if torch.compiler.is_compiling() or _jit.is_tracing():
        return _run(network, x, start, lengths, parameters, statistics, overrun, training)  # type: ignore[no-any-return]
    # The code below equals the operator's autograd kernel, but is faster. torch.func also needs this code.
    given = x, *start, *parameters
    if _derived(given):
        return _differentiable(network, module, len(start), lengths, given)
    _refuse_tangents(given)
    arguments = network, x, start, lengths, parameters, statistics, overrun, training
    if _unwatched((*given, lengths, *statistics)):
        return _run_cpu(*arguments, module)
    return _infer(*arguments)  # type: ignore[no-any-return]


def _unwatched(tensors: Sequence[Tensor | None]) -> bool:
    """Returns whether a call may bypass torch's dispatcher, which takes as long as a short network.

    No mode, transform or profiler may be active, and all tensors must be plain CPU tensors. The
    benchmark "training with lnrnn.torch" measures the gain.
    """
    return not (
        torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
        or torch._C._autograd._profiler_enabled()
    ) and all(t is None or (type(t) in PLAIN and t.is_cpu) for t in tensors)


def _tensors(arrays: Sequence[np.ndarray]) -> list[Tensor]:
    return [torch.from_numpy(a) for a in arrays]


@contextmanager
def _limited(n: int) -> Iterator[None]:
    with num_threads(n):
        yield


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    return [t.data_ptr() for t in tensors]


def _threads() -> Any:
    """Returns a context that limits lnrnn to torch.get_num_threads() threads."""
    most = torch.get_num_threads()
    return _limited(most) if most < get_num_threads() else nullcontext()


def _learns(network: str, training: bool) -> bool:
    return training and architecture(network).batch_norm is not None


# --- on the CPU ---------------------------------------------------------------------------------------------


def _run_cpu(
    network: str, x: Tensor, start: Sequence[Tensor], lengths: Tensor | None, parameters: Sequence[Tensor],
    statistics: Sequence[Tensor], overrun: str | None, training: bool, module: Any = None,
) -> list[Tensor]:  # fmt: skip
    x_, lengths_, *start_ = arrays((x, lengths, *start))
    with _threads():
        if _learns(network, training):
            y, end, seen, _ = functional.forward(
                architecture(network), arrays(parameters), x_, start_, lengths_, False
            )
            return _tensors([y, *end, *seen])
        pack = packed if module is None else module._packed
        snapshot = pack(network, parameters, statistics, overrun).snapshot
        h0 = None if not start_ else start_[0] if len(start_) == 1 else tuple(start_)
        if x_.ndim == 2:
            y, end = functional.call_packed(snapshot, x_, h0, lengths_)
            return _tensors([y, *(end if isinstance(end, tuple) else (end,))])
        lengths_, resets = functional.divided(lengths_)
        if resets is not None and snapshot.architecture.batch_first:
            resets = resets.T
        y, end = engine.call(snapshot, x_, h0, lengths_, resets, 0)
        return _tensors([y, *(end if isinstance(end, tuple) else (end,))])


def _forward_train_cpu(
    network: str, x: Tensor, start: Sequence[Tensor], lengths: Tensor | None, parameters: Sequence[Tensor],
    module: Any = None,
) -> list[Tensor]:  # fmt: skip
    x_, lengths_, *start_ = arrays((x, lengths, *start))
    arch = architecture(network)
    snapshot = None
    if module is not None and arch.batch_norm is None:
        steps = lengths_[0, LENGTH] if x_.ndim == 2 else x.shape[1 if arch.batch_first else 0]
        snapshot = module._packed_to_train(network, parameters, steps)
    with _threads():
        y, end, seen, saved = functional.forward(
            arch, arrays(parameters), x_, start_, lengths_, True, snapshot, _addresses(parameters)
        )
    return _tensors([y, *end, *seen, *saved])


def _backward_cpu(
    network: str, x: Tensor, start: Sequence[Tensor], lengths: Tensor | None, parameters: Sequence[Tensor],
    saved: Sequence[Tensor], gy: Tensor | None, gend: Sequence[Tensor | None], wanted: Sequence[bool],
) -> list[Tensor]:  # fmt: skip
    arch = architecture(network)
    seen = 1 + len(arch.suffixes) * len(named_shapes(arch.sides, 0)) if arch.sides else 1
    x_, lengths_, gy_, *start_ = arrays((x, lengths, gy, *start))
    y, *kept = arrays(saved)
    with _threads():
        gx, gstart, grads = functional.backward(
            arch, lambda: arrays(parameters), x_, start_, lengths_, y, kept[: seen - 1], kept[seen - 1 :],
            gy_, arrays(gend), wanted[0], _addresses(parameters),
        )  # fmt: skip
    result: tuple[Any, ...] = gx, *gstart[: len(start)], *grads
    return _tensors([g for g, want in zip(result, wanted, strict=True) if want])


def _update_statistics(network: str, running: Sequence[Tensor], seen: Sequence[Tensor]) -> None:
    old, batch = ([t.detach().cpu().numpy() for t in tensors] for tensors in (running, seen))
    for tensor, value in zip(running, functional.updated(architecture(network), old, batch), strict=True):
        tensor.copy_(torch.tensor(value))


_library.impl("run", _run_cpu, "CPU")
_library.impl("infer", _run_cpu, "CPU")
_library.impl("forward_train", _forward_train_cpu, "CPU")
_library.impl("backward", _backward_cpu, "CPU")
_library.impl("update_statistics", _update_statistics, "CompositeExplicitAutograd")


# --- shapes of results, for tracing -------------------------------------------------------------------------


def _results(network: str, x: Tensor, training: bool) -> list[Tensor]:
    arch = architecture(network)
    T, B = (x.shape[1], x.shape[0]) if arch.batch_first else x.shape[:2]
    result = [x.new_empty(*x.shape[:2], arch.directions * arch.h_width)]
    result += [x.new_empty(len(arch.suffixes), B, width) for width in arch.state_widths]
    if _learns(network, training):
        for _ in arch.suffixes:
            for width in arch.sides.values():
                result += [x.new_empty(T, width, dtype=torch.float64) for _ in range(2)]
            result.append(x.new_empty(T, dtype=torch.int64))
    return result


@torch.library.register_fake("lnrnn::run", lib=_library)
@torch.library.register_fake("lnrnn::infer", lib=_library)
def _(network, x, start, lengths, parameters, statistics, overrun, training):  # type: ignore[no-untyped-def]
    return _results(network, x, training)


@torch.library.register_fake("lnrnn::forward_train", lib=_library)
def _(network, x, start, lengths, parameters):  # type: ignore[no-untyped-def]
    arch, result = architecture(network), _results(network, x, True)
    between = [x.new_empty(result[0].shape) for _ in range(arch.num_layers - 1)]
    floats = x.shape[0] * x.shape[1] * tape_width(arch)
    tapes = [x.new_empty(floats) for _ in arch.suffixes]
    ends = []
    if arch.cell.parts > 1:
        ends.append(x.new_empty(len(arch.suffixes), result[1].shape[1], arch.widths[1]))
    return [*result, *between, *tapes, *ends]


@torch.library.register_fake("lnrnn::backward", lib=_library)
def _(network, x, start, lengths, parameters, saved, gy, gend, wanted):  # type: ignore[no-untyped-def]
    of = (x, *start, *parameters)
    return [x.new_empty(t.shape) for t, want in zip(of, wanted, strict=True) if want]


@torch.library.register_fake("lnrnn::update_statistics", lib=_library)
def _(network, running, seen):  # type: ignore[no-untyped-def]
    return None


# --- derivatives --------------------------------------------------------------------------------------------

_REFUSAL = "lnrnn's engine has no {}; make the module with engine='torch', or set module.engine = 'torch'"


def _applied(function: Any, *arguments: Any) -> tuple[Tensor, ...]:
    result: tuple[Tensor, ...] = function.apply(*arguments)
    return result


def _refuse_jvp(ctx: Any, *tangents: Any) -> Any:
    raise RuntimeError(_REFUSAL.format("derivative in forward mode"))


def _refuse_vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
    raise RuntimeError(_REFUSAL.format("vmap"))


def _results_to_derive(
    network: str, module: Any, states: int, lengths: Tensor | None, x: Tensor, *rest: Tensor
) -> tuple[Tensor, ...]:
    arguments = network, x, rest[:states], lengths, rest[states:]
    if _unwatched((x, lengths, *rest)):
        return tuple(_forward_train_cpu(*arguments, module))
    return tuple(_forward_train(*arguments))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.network, _, ctx.states, lengths, x, *rest = inputs
    ctx.given, ctx.ends = len(rest), len(architecture(ctx.network).cell.state_names)
    others = output[1 + ctx.ends :]
    ctx.save_for_backward(x, lengths, *rest, output[0], *others)
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*others)


class _Run(torch.autograd.Function):
    """Autograd function of the operator run. Inputs: network, module, number of states, lengths, x, states,
    parameters. Outputs: of forward_train."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        output = _results_to_derive(*inputs)
        _save(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, gy: Tensor | None, *gends: Tensor | None) -> tuple[Any, ...]:
        gend = gends[: ctx.ends]
        wanted = ctx.needs_input_grad[4:]
        if gy is None and all(g is None for g in gend):
            return (None,) * (4 + len(wanted))
        x, lengths, *others = ctx.saved_tensors
        rest, saved = others[: ctx.given], others[ctx.given :]
        start, parameters = rest[: ctx.states], rest[ctx.states :]
        if any(g is not None and _batched(g) for g in (gy, *gend)):  # is_grads_batched=True
            with torch.enable_grad():
                given = [t.detach().requires_grad_() for t in (x, *rest)]
                outputs = _plainly(ctx.network, ctx.states, lengths, *given)
                gout = [g for g in (gy, *gend) if g is not None]
                own = [t for t, g in zip(outputs, (gy, *gend), strict=True) if g is not None]
                grads = torch.autograd.grad(own, given, gout, allow_unused=True)
            return (None,) * 4 + tuple(g if want else None for g, want in zip(grads, wanted, strict=True))
        if torch.is_grad_enabled():  # second derivatives may follow
            lists = start, parameters, saved, gend
            flat = (tensor for each in lists for tensor in each)
            sizes = tuple(map(len, lists))
            result = iter(_applied(_Once, ctx.network, wanted, sizes, x, lengths, gy, *flat))
        else:
            call = _backward_cpu if _unwatched((x, lengths, *others, gy, *gend)) else _backward
            result = iter(call(ctx.network, x, start, lengths, parameters, saved, gy, gend, wanted))
        return (None,) * 4 + tuple(next(result) if want else None for want in wanted)

    jvp = staticmethod(_refuse_jvp)
    vmap = staticmethod(_refuse_vmap)


class _RunUnderFunc(_Run):
    """`_Run` with a separate setup_context, which torch.func needs and which is slower."""

    forward = staticmethod(_results_to_derive)  # type: ignore[assignment]
    setup_context = staticmethod(_save)


class _Once(torch.autograd.Function):
    """Autograd function of the operator backward; plain.py computes its derivative.

    Inputs: network, wanted, sizes of the lists of tensors, then all tensors (see `_sorted`).
    """

    @staticmethod
    def forward(network: str, wanted: Any, sizes: tuple[int, ...], *tensors: Any) -> tuple[Tensor, ...]:
        x, lengths, gy, start, parameters, saved, gend = _sorted(sizes, tensors)
        return tuple(_backward(network, x, start, lengths, parameters, saved, gy, gend, wanted))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.network, ctx.wanted, ctx.sizes, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        arch = architecture(ctx.network)
        if arch.batch_norm is not None:
            raise RuntimeError(_REFUSAL.format("second derivative of batch norm"))
        x, lengths, gy, start, parameters, saved, gend = _sorted(ctx.sizes, ctx.saved_tensors)
        vjp: Any = torch.func.vjp
        # Inside of vjp, tensors cannot be read as NumPy arrays, but plain.run needs lengths as an array.
        lengths = None if lengths is None else lengths.cpu().numpy()
        given, ends = (x, *start, *parameters), (gy, *gend)
        there = [k for k, g in enumerate(ends) if g is not None]

        def first(*tensors: Tensor) -> tuple[Tensor, ...]:
            """Returns the gradients in ctx.wanted. tensors: run's inputs, then its outputs' gradients."""

            def outputs(*given: Tensor) -> tuple[Tensor, ...]:
                result = _plainly(ctx.network, len(start), lengths, *given)
                return tuple(result[k] for k in there)

            _, pull = vjp(outputs, *tensors[: len(given)])
            result = pull(tensors[len(given) :])
            return tuple(g for g, want in zip(result, ctx.wanted, strict=True) if want)

        with torch.enable_grad():
            values, pull = vjp(first, *given, *(ends[k] for k in there))
            result = pull(
                tuple(torch.zeros_like(v) if g is None else g for g, v in zip(grads, values, strict=True))
            )
        gx, *rest = result[: len(given)]
        left = dict(zip(there, result[len(given) :], strict=True))
        gends = [left.get(k) for k in range(len(ends))]
        return (None,) * 3 + (gx, None, gends[0], *rest, *(None for _ in saved), *gends[1:])

    jvp = staticmethod(_refuse_jvp)
    vmap = staticmethod(_refuse_vmap)


def _sorted(sizes: Sequence[int], tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Splits ``tensors`` into x, lengths, gy, and lists of these sizes."""
    left = iter(tensors)
    return next(left), next(left), next(left), *([next(left) for _ in range(n)] for n in sizes)


def _plainly(network: str, states: int, lengths: Any, x: Tensor, *rest: Tensor) -> list[Tensor]:
    """Computes `run` with plain.py. rest: the first `states` tensors are states, then parameters follow."""
    arch, start = architecture(network), list(rest[:states])
    if not start:
        B = len(lengths) if x.dim() == 2 else x.shape[0 if arch.batch_first else 1]
        start = [x.new_zeros(len(arch.suffixes), B, width) for width in arch.state_widths]
    named = dict(zip(arch.shapes, rest[states:], strict=True))
    y, end, _ = plain.run(arch, x, start, lengths, named, {}, None, True)
    return [y, *end]


def _batched(t: Tensor) -> bool:
    """Returns whether t is a batch of gradients from torch.autograd.grad(is_grads_batched=True)."""
    return bool(torch._C._functorch.is_legacy_batchedtensor(t))


def _derived(tensors: Sequence[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _differentiable(
    network: str, module: Any, states: int, lengths: Tensor | None, given: Sequence[Tensor]
) -> list[Tensor]:
    try:
        result = _applied(_Run, network, module, states, lengths, *given)
    except RuntimeError as error:
        if "setup_context" not in str(error):
            raise
        result = _applied(_RunUnderFunc, network, module, states, lengths, *given)  # under torch.func
    return list(result[: len(result) - functional.saved_arrays(architecture(network))])


def _refuse_tangents(tensors: Sequence[Tensor]) -> None:
    inside = getattr(forward_ad, "_current_level", 0) >= 0  # within dual_level
    unpack: Any = forward_ad.unpack_dual
    if inside and any(unpack(t).tangent is not None for t in tensors):
        _refuse_jvp(None)


def _run_autograd(
    network: str, x: Tensor, start: Sequence[Tensor], lengths: Tensor | None, parameters: Sequence[Tensor],
    statistics: Sequence[Tensor], overrun: str | None, training: bool,
) -> list[Tensor]:  # fmt: skip
    given = x, *start, *parameters
    if _derived(given):
        return _differentiable(network, None, len(start), lengths, given)
    _refuse_tangents(given)
    return _infer(network, x, start, lengths, parameters, statistics, overrun, training)  # type: ignore[no-any-return]


_library.impl("run", _run_autograd, "Autograd")
for _name in ("infer", "forward_train", "backward", "update_statistics"):  # run and _Run compute derivatives
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")


for _name in ("lnrnn::run", "lnrnn::infer", "lnrnn::backward"):
    torch.library.register_vmap(_name, _refuse_vmap, lib=_library)
