"""Layers one after another, with dropout between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

Tensor = torch.Tensor
Found = tuple[Tensor, list[Tensor], list[Tensor]]  # y, the last states, the statistics of the batch


def layer_by_layer(
    x: Tensor, start: Sequence[Tensor], rate: float, layers: int, directions: int,
    lists: Sequence[Sequence[Tensor]], run: Callable[..., Found], packed: PackedSequence | None = None,
) -> Found:  # fmt: skip
    """x (T, B, I); start: states (layers * directions, B, H), or nothing for zeros; lists: tensors of all
    layers, of which each layer gets its own. run: called with the number of a layer, its input and states,
    and its part of each of `lists`. packed: what x was padded from; masks are then drawn as torch draws them,
    for its data. -> y (T, B, *), the last states, and the statistics of all layers."""
    ends, seen = [], []
    for k in range(layers):
        if k:  # contiguous, since torch draws a mask in the order of memory
            x = F.dropout(x.contiguous(), rate) if packed is None else x * _mask(packed, x, rate)
        state = [s[directions * k :][:directions] for s in start]
        own = [each[len(each) // layers * k :][: len(each) // layers] for each in lists]
        x, end, batch = run(k, x, state, *own)
        ends.append(end)
        seen += batch
    return x, [torch.cat(parts) for parts in zip(*ends, strict=True)], seen


def _mask(packed: PackedSequence, x: Tensor, rate: float) -> Tensor:
    """What x (T, B, *), padded from `packed`, is multiplied by."""
    drawn = F.dropout(x.new_ones(len(packed.data), x.shape[-1]), rate)
    order = packed.sorted_indices, packed.unsorted_indices
    return pad_packed_sequence(PackedSequence(drawn, packed.batch_sizes, *order))[0]
