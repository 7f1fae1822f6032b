"""Packed weights, which are kept between calls without gradients: by module, or by first parameter.

A module keeps those of its own parameters. So no weak reference to these exists, and
torch.utils.swap_tensors can swap them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.utils.weak import WeakTensorKeyDictionary

from .. import _core
from ..arguments import Flag
from ..rnn.functional import Served, architecture, dtype_of, with_dtype
from ..rnn.snapshot import Snapshot
from .freshness import seen

Tensor = torch.Tensor
FEW_STEPS = 4


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


def made(
    network: str, parameters: Sequence[Tensor], statistics: Sequence[Tensor], overrun: str | None
) -> Served:
    """Returns a network with packed weights."""
    return Served(architecture(network), arrays(parameters), arrays(statistics), overrun, dtype_of(network))


def keep(network: str, overrun: str | None, record: _core.Seen | None, served: Served, step: int) -> Any:
    """Returns the object that runs calls with these packed weights while `record` holds. step: as in Kept."""
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


def use_exchange(exchange: Any) -> None:
    """Sets how to read tensors: by DLPack's functions in a capsule, or if None by attributes."""
    # In these modes a call must pass through torch's dispatcher, or another part of torch computes it.
    modes = (
        torch.is_grad_enabled, torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active,
        torch._C._autograd._profiler_enabled, torch._C._get_tracing_state, torch._C._is_any_autocast_enabled,
    )  # fmt: skip
    _core.use_torch(
        Tensor, torch.float32, torch.from_numpy, torch.get_num_threads, modes, COMPILES, vars(forward_ad),
        exchange,
    )  # fmt: skip


# Returns None if torch.compile is not active.
COMPILES = torch._C._dynamo.eval_frame.get_eval_frame_callback
EXCHANGE = getattr(Tensor, "__dlpack_c_exchange_api__", None)  # torch 2.10 and later have it
use_exchange(EXCHANGE)


def forget(part: torch.nn.Module) -> None:
    """Lets the next call of a module read all weights."""
    for name in ("_kept", "_kept_to_train"):
        vars(part).pop(name, None)
    pack_again(part._parameters.values())


class Keeping(torch.nn.Module):
    """The base of modules that keep packed weights."""

    _kept: _core.Kept | None = None
    _kept_to_train: _core.Kept | None = None  # if calls without gradients have other weights
    _frozen: bool = False
    _steps: bool = False  # whether a call is one step

    @property
    def frozen(self) -> bool:
        """Whether calls without gradients use the weights of the first such call.

        The weights are packed then, and not looked at again. Setting `frozen`, load_state_dict, and module.to
        and its like let the next call pack them again. So do other tensors as parameters. In-place writes do
        not. False by default: each call looks whether the weights have changed, as `lnrnn.torch.accelerate`
        describes. Calls with gradients do so in either case.
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
        return self._keep_packed("_kept", network, parameters, statistics, overrun, self._frozen)

    def _keep_packed(
        self, name: str, network: str, parameters: Sequence[Tensor], statistics: Sequence[Tensor],
        overrun: str | None, frozen: bool,
    ) -> Served:  # fmt: skip
        """Does the work of `_packed`. name: the attribute that keeps the network; frozen: as in `seen`."""
        kept = getattr(self, name)
        own: dict[str, Any] = self._parameters
        sources = [*own.values(), *statistics]
        if kept is not None and kept.network == network and kept.overrun == overrun:  # noqa: SIM102
            if kept.record is not None and kept.record.holds(sources):
                return kept.served  # type: ignore[no-any-return]
        known = {id(t) for t in sources}
        if all(id(t) in known for t in parameters):
            record = seen(sources, True, frozen)
            found = made(network, parameters, statistics, overrun)
        else:  # weights that are computed from parameters
            record, found = None, made(network, parameters, statistics, overrun)
        vars(self)[name] = keep(network, overrun, record, found, self._steps)
        return found

    def _packed_to_train(self, network: str, parameters: Sequence[Tensor], steps: int) -> Snapshot | None:
        """Returns the network of a call with gradients if its packed weights serve more than this call.

        They do if they are packed already, or if the call has few steps. Then more calls probably follow
        before the weights change, as from a decoder's loop. Otherwise the weights are packed without a copy.
        Shorter weights, and weights of a frozen module, serve calls without gradients only.
        """
        kept = self._kept
        if self._frozen or dtype_of(network) != "float32":
            if steps > FEW_STEPS:
                return None
            exact = with_dtype(network, "float32")
            return self._keep_packed("_kept_to_train", exact, parameters, (), None, False).snapshot
        if steps > FEW_STEPS:
            if kept is None or kept.record is None or kept.network != network:
                return None
            own: dict[str, Any] = self._parameters
            return kept.served.snapshot if kept.record.holds([*own.values()]) else None
        return self._packed(network, parameters, (), None).snapshot
