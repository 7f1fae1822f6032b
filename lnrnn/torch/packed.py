"""PackedSequence in and out, for a network that takes padded sequences and lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

Tensor = torch.Tensor


def through_padding(
    x: PackedSequence, batch_first: bool, call: Callable[[Tensor, Tensor], tuple[Tensor, Any]]
) -> tuple[PackedSequence, Any]:
    """call: padded x, laid out as batch_first says, and lengths (B,) -> y, laid out likewise, and the last
    states. As torch.nn has it, states are in the order of the sequences before they were sorted."""
    padded, lengths = pad_packed_sequence(x, batch_first)
    y, end = call(padded, lengths)
    order = x.sorted_indices
    if order is not None:
        y, lengths = y.index_select(0 if batch_first else 1, order), lengths[order.cpu()]
    data = pack_padded_sequence(y, lengths, batch_first).data
    return PackedSequence(data, x.batch_sizes, order, x.unsorted_indices), end
