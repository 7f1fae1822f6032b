"""Notices whether tensors have changed since their weights were packed, without reading them whole.

`seen` makes a record of tensors, and `record.holds(tensors)` says whether they are as they were. It compares
the address of the memory, torch's counter of writes (`tensor._version`), the size, and 8 elements of each
tensor. So it notices all writes that torch counts: in-place operations, optimisers, load_state_dict,
module.to(), and `p.data = new`. Torch does not count writes of fused optimisers, and those through p.data,
NumPy or an alias. Such a write is noticed only if it changes one of the elements. An optimiser's step does
so, but a write of few elements perhaps does not.

A record keeps the memory of its tensors, unless their storage is resized, as by FSDP. So no other tensor can
get their address, while the record exists.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .. import _core

Tensor = torch.Tensor
PLAIN = Tensor, torch.nn.Parameter


def counted(tensors: Sequence[Tensor]) -> bool:
    """Returns whether no tensor is in shared memory or an inference tensor, whose writes are not counted."""
    return not any(
        type(t) in PLAIN and (t.is_inference() or t.untyped_storage().is_shared()) for t in tensors
    )


def seen(
    tensors: Sequence[Tensor | None], same_objects: bool = False, frozen: bool = False
) -> _core.Seen | None:
    """Returns a record of tensors, or None if writes cannot be noticed.

    This is so for inference tensors, which have no counter, and for shared memory, into which other processes
    write. same_objects: the record has references to the tensors, and other objects count as changed.
    Otherwise `holds` must get tensors on the CPU that are of no subclass. frozen, with same_objects: only
    other objects count as changed. Make the record before the tensors are read, so that it shows writes of
    other threads while they are read.
    """
    if frozen:
        return _core.Seen(list(tensors), None, same_objects)
    for t in (t for t in tensors if t is not None):
        if type(t) not in PLAIN or not t.is_cpu or t.is_neg() or t.is_conj() or not counted([t]):
            return None
        if t.element_size() not in (4, 8):
            return None
    return _core.Seen(
        list(tensors), [None if t is None else _core.array_of(t.detach()) for t in tensors], same_objects
    )
