"""PackedSequence, dropout between layers, and checks of torch's modes, for modules.py and torch_nn.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from .. import _core
from . import operator
from .kept import Keeping, arrays

Tensor = torch.Tensor
_jit: Any = torch.jit
LayerResult = tuple[Tensor, list[Tensor], list[Tensor]]  # y, last states, batch statistics


def exporting() -> str | None:
    """Returns a text if torch.onnx.export runs, else None: ONNX can express torch's operations only."""
    traced = torch.compiler.is_dynamo_compiling()
    return "it is exported to ONNX" if not traced and torch.onnx.is_in_onnx_export() else None


def other_system() -> str | None:
    """Returns a text if a mode or transform of torch is active that lnrnn's operators lack, else None."""
    if torch.is_autocast_enabled("cpu"):
        return "it is under torch.autocast"
    if reason := exporting():
        return reason
    if not torch.compiler.is_compiling():
        if torch._C._are_functorch_transforms_active() or getattr(forward_ad, "_current_level", 0) >= 0:
            return "it is under torch.func or has derivatives in forward mode"
        if _jit.is_tracing():
            return "it is traced by torch.jit"
    return None


def _rows(x: PackedSequence) -> Any:
    """Returns the table of `packed_rows` for a PackedSequence, or None if its fields are inconsistent."""
    sizes, order, back = arrays((x.batch_sizes, x.sorted_indices, x.unsorted_indices))
    return _core.packed_rows(sizes, order, back, len(x.data))


def contradicts_itself(x: PackedSequence) -> str | None:
    """Returns a text if the fields of x are inconsistent, or None. pad_packed_sequence could crash on them.

    Fake tensors, as in torch.compile, have no data and are not checked.
    """
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or _rows(x) is not None:
        return None
    return (
        "a PackedSequence's batch_sizes must not rise, be at least 1, and add up to its rows; its "
        f"indices must be inverse permutations: got {len(x.data)} rows, {x.batch_sizes}, {x.sorted_indices}, "
        f"{x.unsorted_indices}"
    )


def run_packed(
    network: str, x: PackedSequence, start: Sequence[Tensor], parameters: Sequence[Tensor],
    statistics: Sequence[Tensor], overrun: str | None, module: Keeping,
) -> tuple[PackedSequence, Any] | None:  # fmt: skip
    """Runs a network without updating statistics. Returns None if `through_padding` must run it.

    x.data: (N, D). start: [h0] or [h0, c0], (layers * directions, B, *) each, or [] for zeros. parameters,
    statistics: float32 on the CPU. module: caches packed weights. Returns y, and h or (h, c).
    """
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or other_system():
        return None
    if any(t.dtype is not torch.float32 or not t.is_cpu for t in (x.data, *start)):
        return None
    table = _rows(x)
    if table is None:
        return None
    rows = torch.from_numpy(table)
    y, *end = operator.run(network, x.data, start, rows, parameters, statistics, overrun, False, module)
    packed = PackedSequence(y, x.batch_sizes, x.sorted_indices, x.unsorted_indices)
    return packed, end[0] if len(end) == 1 else tuple(end)


def through_padding(
    x: PackedSequence, batch_first: bool, call: Callable[[Tensor, Tensor], tuple[Tensor, Any]]
) -> tuple[PackedSequence, Any]:
    """Calls a function of (padded x, lengths) for a PackedSequence. Returns (packed y, last states).

    call(padded x, lengths (B,)) returns y and last states. batch_first: the order of axes for `call`. As
    in torch, last states have the order of the unsorted sequences.
    """
    padded, lengths = pad_packed_sequence(x, batch_first)
    y, end = call(padded, lengths)
    order = x.sorted_indices
    if order is not None:
        y, lengths = y.index_select(0 if batch_first else 1, order), lengths[order.cpu()]
    data = pack_padded_sequence(y, lengths, batch_first).data
    return PackedSequence(data, x.batch_sizes, order, x.unsorted_indices), end


def layer_by_layer(
    x: Tensor, start: Sequence[Tensor], rate: float, layers: int, directions: int,
    lists: Sequence[Sequence[Tensor]], run: Callable[..., LayerResult], packed: PackedSequence | None = None,
) -> LayerResult:  # fmt: skip
    """Runs layers one after another, with dropout between. Returns (y (T, B, *), last states, statistics).

    x: (T, B, I). start: states (layers * directions, B, H), or [] for zeros. lists: tensors of all layers.
    run(k, input, states, *tensors) returns a LayerResult; tensors: layer k's slice of each list of `lists`.
    packed: the PackedSequence that was padded to x, or None. Masks are then drawn for its data, as in torch.
    """
    ends, seen = [], []
    for k in range(layers):
        if k:  # contiguous: torch draws masks in memory order
            x = F.dropout(x.contiguous(), rate) if packed is None else x * _mask(packed, x, rate)
        state = [s[directions * k :][:directions] for s in start]
        own = [each[len(each) // layers * k :][: len(each) // layers] for each in lists]
        x, end, batch = run(k, x, state, *own)
        ends.append(end)
        seen += batch
    return x, [torch.cat(parts) for parts in zip(*ends, strict=True)], seen


def _mask(packed: PackedSequence, x: Tensor, rate: float) -> Tensor:
    """Returns a dropout mask for x (T, B, *), drawn for the steps of `packed` and then padded."""
    drawn = F.dropout(x.new_ones(len(packed.data), x.shape[-1]), rate)
    order = packed.sorted_indices, packed.unsorted_indices
    return pad_packed_sequence(PackedSequence(drawn, packed.batch_sizes, *order))[0]
