"""Packed weights, which are kept between calls without gradients: by module, or by first parameter.

A module keeps the packed weights of its own parameters. So no weak reference to a parameter exists, and
torch.utils.swap_tensors can swap it.

`seen` makes a record of tensors, and `record.holds(tensors)` says whether they are unchanged. It compares
the address of the memory, torch's counter of writes (`tensor._version`), the size, and 8 elements of each
tensor. So it notices all writes that torch counts: in-place operations, optimisers, load_state_dict,
module.to(), and `p.data = new`. Torch does not count writes of fused optimisers, nor writes through p.data,
NumPy or an alias. Such a write is noticed only if it changes one of the 8 elements. An optimiser's step
does so, but a write of a few elements perhaps does not.

A record keeps the memory of its tensors, unless their storage is resized, as by FSDP. So no other tensor can
get their address, while the record exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.utils.weak import WeakTensorKeyDictionary

from .. import _core
from ..arguments import Flag
from ..rnn.functional import Served, architecture, dtype_of
from ..rnn.snapshot import Snapshot

Tensor = torch.Tensor
PLAIN = Tensor, torch.nn.Parameter
FEW_STEPS = 4
SEQUENCES, STEPS = 0b1100, 0b110  # sets of ranks, bit n for n axes: Kept.call compares x's


def arrays(tensors: Sequence[Any]) -> list[Any]:
    """Returns tensors as NumPy arrays that share memory, and None as None."""
    try:
        return [
            t if t is None else _core.array_of(t if type(t) is Tensor and not t.requires_grad else t.detach())
            for t in tensors
        ]
    except RuntimeError:  # negative views and autograd's zeros do not have their numbers in memory
        return [
            t if t is None else (torch.zeros(t.shape, dtype=t.dtype) + t.detach()).numpy() for t in tensors
        ]


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
    memory = [None if t is None else _core.array_of(t.detach()) for t in tensors]  # has no reference to t
    return _core.Seen(list(tensors), memory, same_objects)


def made(
    network: str, parameters: Sequence[Tensor], statistics: Sequence[Tensor], overrun: str | None
) -> Served:
    """Returns a network with packed weights."""
    return Served(architecture(network), arrays(parameters), arrays(statistics), overrun, dtype_of(network))


def keep(network: str, overrun: str | None, record: _core.Seen | None, served: Served, step: bool) -> Any:
    """Returns the object that runs calls with these packed weights while `record` holds.

    step: whether a call is one step.
    """
    cell = architecture(network).cell
    ready = served.snapshot.compiled() if cell.parts == 1 and overrun is None else None
    return _core.Kept(network, overrun, record, served, ready, len(cell.state_names) > 1, step)


# --- by first parameter -------------------------------------------------------------------------------------


class _Entry(NamedTuple):
    record: _core.Seen | None
    served: Served


# Networks with packed weights, by their first parameter, while this tensor exists.
_served: Any = WeakTensorKeyDictionary()


def packed(
    network: str, parameters: Sequence[Tensor], statistics: Sequence[Tensor], overrun: str | None
) -> Served:
    """Returns a network with packed weights, which is packed again only if the tensors have changed."""
    arch, dtype, tensors = architecture(network), dtype_of(network), [*parameters, *statistics]
    entry = _served.get(parameters[0])
    if entry is not None and entry.record is not None and entry.served.computes(arch, overrun, dtype):  # noqa: SIM102
        if entry.record.holds(tensors):
            return entry.served  # type: ignore[no-any-return]
    record = seen(tensors)
    found = made(network, parameters, statistics, overrun)
    _served[parameters[0]] = _Entry(record, found)
    return found


def pack_again(tensors: Iterable[Any]) -> None:
    """Lets the next call with one of these tensors as first parameter pack its weights."""
    for t in tensors:
        if t is not None:
            _served.pop(t, None)


# --- by module ----------------------------------------------------------------------------------------------


# Returns None if torch.compile is not active.
COMPILES = torch._C._dynamo.eval_frame.get_eval_frame_callback
_core.use_torch(
    Tensor,
    {torch.float32: (2, 32), torch.float64: (2, 64), torch.int64: (0, 64)},
    torch.from_numpy,
    torch.get_num_threads,
    # In these modes a call must pass through torch's dispatcher, or another part of torch computes it.
    (torch.is_grad_enabled, torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active,
     torch._C._autograd._profiler_enabled, torch._C._get_tracing_state, torch._C._is_any_autocast_enabled),
    vars(forward_ad),
    getattr(Tensor, "__dlpack_c_exchange_api__", None),
)  # fmt: skip


def forget(part: torch.nn.Module) -> None:
    """Lets the next call of a module read all weights."""
    vars(part).pop("_kept", None)
    pack_again(part._parameters.values())


class Keeping(torch.nn.Module):
    """The base of modules that keep packed weights."""

    _kept: _core.Kept | None = None
    _frozen: bool = False
    _steps: bool = False  # whether a call is one step

    @property
    def frozen(self) -> bool:
        """Whether calls without gradients use the weights of the first such call.

        That call packs the weights. Later calls do not notice in-place writes. The next call packs them again
        after an assignment to `frozen`, load_state_dict, module.to and its like, or other tensors as
        parameters. False, the default: each call checks whether weights have changed, as
        `lnrnn.torch.accelerate` describes. Calls with gradients always check it.
        """
        return self._frozen

    @frozen.setter
    def frozen(self, value: bool) -> None:
        vars(self)["_frozen"] = Flag().check("frozen", value)
        forget(self)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        forget(self)
        super()._load_from_state_dict(*arguments)

    def _apply(self, *arguments: Any, **named: Any) -> Any:
        forget(self)
        return super()._apply(*arguments, **named)  # type: ignore[no-untyped-call]

    def _packed(
        self, network: str, parameters: Sequence[Tensor], statistics: Sequence[Tensor], overrun: str | None
    ) -> Served:
        """Returns a network with packed weights, and keeps it for the next call."""
        kept, sources = self._kept, [*self._parameters.values(), *statistics]
        if kept is not None and kept.network == network and kept.overrun == overrun:  # noqa: SIM102
            if kept.record is not None and kept.record.holds(sources):
                return kept.served  # type: ignore[no-any-return]
        known = {id(t) for t in sources}
        # Weights that are computed from parameters have no record.
        record = seen(sources, True, self._frozen) if all(id(t) in known for t in parameters) else None
        found = made(network, parameters, statistics, overrun)
        vars(self)["_kept"] = keep(network, overrun, record, found, self._steps)
        return found

    def _packed_to_train(self, network: str, parameters: Sequence[Tensor], steps: int) -> Snapshot | None:
        """Returns the network of a call with gradients if its packed weights serve more than this call.

        They do if they are packed already, or if the call has few steps. Then more calls probably follow
        before the weights change, as from a decoder's loop. Otherwise the weights are packed without a copy.
        Shorter weights, and weights of a frozen module, serve calls without gradients only.
        """
        kept = self._kept
        if self._frozen or dtype_of(network) != "float32":
            return None
        if steps <= FEW_STEPS:
            return self._packed(network, parameters, (), None).snapshot
        if kept is None or kept.record is None or kept.network != network:
            return None
        own: dict[str, Any] = self._parameters
        return kept.served.snapshot if kept.record.holds([*own.values()]) else None
