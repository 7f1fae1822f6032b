"""Caches packed weights between calls without gradients, by module or by first parameter.

A module caches the packed weights of its own parameters. No weak reference to these exists, so that
torch.utils.swap_tensors can swap them.

A `Record` of tensors detects later writes. It compares memory addresses, torch's write counters
(`tensor._version`), sizes, strides, and 8 elements of each tensor. So it detects all writes that torch
counts: in-place operations, optimizers, load_state_dict, module.to(), and `p.data = new`. Torch does not
count writes of fused optimizers, nor writes through p.data, NumPy or an alias. The record detects such a
write only if one of the 8 elements changes. An optimizer's step changes them, but a write of few elements may
not.

A record keeps the storage of its tensors alive, unless it is resized, as by FSDP. So no other tensor can
get the same address while the record exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.utils.weak import WeakTensorKeyDictionary

from .. import _core
from ..arguments import Flag
from ..rnn.functional import Served, architecture, dtype_of
from ..rnn.snapshot import Snapshot
from .layouts import identical
from .layouts import read as read_layouts

Tensor = torch.Tensor
PLAIN = Tensor, torch.nn.Parameter
FEW_STEPS = 4
_words_at = _core.words_at
SEQUENCES, STEPS = 0b1100, 0b110  # bit n: x may have n axes
SAMPLES = 8  # elements compared for each tensor
_TYPES = {
    torch.float32: np.dtype("f4").str,
    torch.float64: np.dtype("f8").str,
    torch.int64: np.dtype("i8").str,
}


class _Memory:
    """Exposes a tensor's memory to NumPy. Unlike t.numpy(), this lets FSDP resize the storage."""

    def __init__(self, t: Tensor) -> None:
        self.tensor, size = t, t.element_size()
        self.__array_interface__ = {
            "version": 3,
            "shape": t.shape,
            "typestr": _TYPES[t.dtype],
            "data": (t.data_ptr(), False),
            "strides": None if t.is_contiguous() else tuple(size * s for s in t.stride()),
        }


def _array(t: Tensor) -> Any:
    t = t if type(t) is Tensor and not t.requires_grad else t.detach()
    known = type(t) is Tensor and t.dtype in _TYPES and t.is_cpu and not t.is_neg() and t.data_ptr()
    return np.asarray(_Memory(t)) if known else t.numpy()


def arrays(tensors: Sequence[Any]) -> list[Any]:
    """Returns NumPy arrays that share memory with tensors. None stays None."""
    try:
        return [t if t is None else _array(t) for t in tensors]
    except RuntimeError:  # negative views and autograd's zeros have no such memory
        return [
            t if t is None else (torch.zeros(t.shape, dtype=t.dtype) + t.detach()).numpy() for t in tensors
        ]


def counted(tensors: Sequence[Tensor]) -> bool:
    """Returns whether torch counts all writes to tensors: not for inference tensors or shared memory."""
    return not any(
        type(t) in PLAIN and (t.is_inference() or t.untyped_storage().is_shared()) for t in tensors
    )


def by_attributes(tensors: tuple[Tensor, ...]) -> tuple[Any, tuple[int, ...]]:
    """Returns (layouts, addresses) of tensors. Replaces the C function layouts.read for torch before 2.10."""
    layout = [(t.dtype, t.device, t.shape, t.stride()) for t in tensors]
    return layout, tuple([t.data_ptr() for t in tensors])


# read(tensors) -> (dtypes, devices, shapes and strides; addresses).
read: Any = by_attributes
with suppress(AttributeError, RuntimeError, ValueError):  # without read_layouts, by_attributes is used
    read_layouts(Tensor.__dlpack_c_exchange_api__, ())
    read = partial(read_layouts, Tensor.__dlpack_c_exchange_api__)


def _places(t: Tensor) -> Any:
    """Returns addresses of at most SAMPLES equally spaced elements, to detect writes."""
    n = min(t.numel(), SAMPLES)
    at = np.arange(n) * (t.numel() - 1) // max(n - 1, 1)
    index = np.unravel_index(at, (1, *t.shape)) if n else (at,)
    strides = np.array([0, *t.stride()][: len(index)]) * t.element_size()
    return t.data_ptr() + strides @ np.array(index)


class Record:
    """The state of tensors at one time, to detect later writes. `seen` creates records.

    objects: other tensor objects also count as changed; the record then refers to the tensors.
    frozen: only other objects count as changed.
    """

    def __init__(self, tensors: Sequence[Tensor | None], objects: bool, frozen: bool) -> None:
        there = tuple([t for t in tensors if t is not None])
        self.tensors, self.absent = [*tensors] if objects else None, [t is None for t in tensors]
        self.frozen, self.any_absent = frozen, len(there) < len(tensors)
        if not frozen:
            self.memory = [t.untyped_storage() for t in there]
            self.versions, self.layout = [t._version for t in there], read(there)
            self.places = np.concatenate([np.empty(0, np.uint64), *map(_places, there)]).astype(np.uint64)
            self.words = _words_at(self.places)

    def holds(self, tensors: list[Any]) -> bool:
        """Returns whether these are the recorded tensors, and no write to them is visible.

        Without `objects` they must be on the CPU and no subclass of Tensor.
        """
        if self.tensors is not None:
            if not identical(tensors, self.tensors):
                return False
        # Inference tensors have no version. A negative view may share memory with a recorded tensor.
        elif [t is None or t.is_inference() or t.is_neg() for t in tensors] != self.absent:
            return False
        if self.frozen:
            return True
        there = tuple([t for t in tensors if t is not None]) if self.any_absent else tuple(tensors)
        if [t._version for t in there] != self.versions or read(there) != self.layout:
            return False
        return _words_at(self.places) == self.words


def seen(tensors: Sequence[Tensor | None], objects: bool = False, frozen: bool = False) -> Record | None:
    """Returns a Record of tensors, or None if writes to them cannot be detected.

    None is for inference tensors, which have no write counter, and for shared memory, to which other
    processes may write. Create the record before reading the tensors. Then it also detects writes of other
    threads meanwhile.
    """
    for t in () if frozen else (t for t in tensors if t is not None):
        if type(t) not in PLAIN or not t.is_cpu or t.is_neg() or t.is_conj() or not counted([t]):
            return None
        if t.element_size() not in (4, 8):
            return None
    return Record(tensors, objects, frozen)


# COMPILES() is None if torch.compile is inactive.
COMPILES = torch._C._dynamo.eval_frame.get_eval_frame_callback
_grad, _threads, _from_numpy = torch.is_grad_enabled, torch.get_num_threads, torch.from_numpy
# While one of these modes is active, calls must pass through torch's dispatcher or other parts of torch.
_dispatches, _transforms = torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active
_profiled, _traced = torch._C._autograd._profiler_enabled, torch._C._get_tracing_state
_autocast, _forward_ad = torch._C._is_any_autocast_enabled, vars(forward_ad)


class Kept:
    """A network with packed weights, cached between calls of a module. Copies and pickles become None.

    network: text of functional.described. record: the Record of the weights' tensors, or None. step: a call
    is one step, x is (B, D), (D,) or (1, B, D), and states have as many axes.
    """

    def __init__(
        self, network: str, overrun: str | None, record: Record | None, served: Served, step: bool = False
    ) -> None:
        self.network, self.overrun, self.record = network, overrun, record
        self.served, self.step = served, step
        arch = architecture(network)
        self.batch_first, self.inputs, self.lines = arch.batch_first, arch.input_size, len(arch.suffixes)
        self.widths, self.pair = arch.state_widths, len(arch.state_widths) > 1
        self.last: tuple[Any, ...] = (None,)  # layout of the last arguments, and result of `_sizes`
        simple = arch.cell.parts == 1 and overrun is None and record is not None
        self.packed = served.snapshot.compiled() if simple else None  # None: `call` returns None

    def __reduce__(self) -> Any:
        return type(None), ()

    def serves(self, network: str, overrun: str | None, tensors: list[Any]) -> bool:
        """Returns whether the cached weights are valid for a call of this network with these tensors."""
        return (
            self.network == network
            and self.overrun == overrun
            and self.record is not None
            and self.record.holds(tensors)
        )

    def call(self, network: str, tensors: list[Any], x: Any, state: Any, axes: int) -> Any:
        """Runs the network on tensors. Returns (y, h) or (y, (h, c)); for a cell h or (h, c).

        Returns None if a mode of torch is active, or if the weights may have changed. Each argument must be a
        float32 tensor on the CPU of the right shape; otherwise the result is None. tensors: of record. axes:
        bit n is set if x may have n axes.
        """
        if (
            self.packed is None
            or self.record is None
            or _grad()
            or _dispatches()
            or _transforms()
            or _profiled()
            or _traced()
        ):
            return None
        if _autocast() or _forward_ad["_current_level"] >= 0:
            return None
        if (network is not self.network and network != self.network) or not self.record.holds(tensors):
            return None
        if state is None:
            given: tuple[Any, ...] = (x,)
        elif not self.pair:
            given = x, state
        elif isinstance(state, (tuple, list)) and len(state) == 2:
            given = x, *state
        else:
            return None
        for t in given:
            # A negative view's memory has the numbers with opposite signs.
            if type(t) is not Tensor or t.is_neg():
                return None
        last = self.last
        try:
            layout, addresses = read(given)
            if layout != last[0]:
                given = tuple([t.contiguous() for t in given])
                layout, addresses = read(given)
                last = self.last = layout, *self._sizes(given)
        except RuntimeError:  # the tensor has no memory
            return None
        _, own, T, B, cut = last
        if not axes >> own & 1 or 0 in addresses:
            return None
        at, h, c = (*addresses, 0, 0)[:3]
        found = self.packed.call_at(at, h, c, T, B, _threads())
        if found is None:
            return None
        y, end = found
        if own < 3:
            y, end = y.reshape(T, -1), tuple([e[cut] for e in end]) if self.pair else end[cut]
        end = (_from_numpy(end[0]), _from_numpy(end[1])) if self.pair else _from_numpy(end)
        return end if self.step else (_from_numpy(y), end)

    def _sizes(self, given: tuple[Tensor, ...]) -> tuple[int, int, int, Any]:
        """Returns (axes of x, T, B, index). The index removes axes that the caller's states do not have.

        Returns zeros if the arguments do not fit together.
        """
        x, *states = given
        before, own = list(x.shape[:-1]), x.dim()
        T, B = (1, *before, 1)[:2] if self.step and own < 3 else (*before, 1, 1)[:2]
        if self.batch_first and own == 3:
            T, B = B, T
        before = before if self.step else [self.lines, B][: own - 1]
        shapes = [(*before, width) for width in self.widths][: len(states)]
        fit = 1 <= own <= 3 and x.shape[-1] == self.inputs and (T == 1 or not self.step)
        fit = fit and len(states) in (0, len(self.widths)) and shapes == [tuple(s.shape) for s in states]
        fit = fit and all(t.dtype is torch.float32 and t.is_cpu for t in given)
        return (own, T, B, (0,) * (3 - own) if self.step else (slice(None), 0)) if fit else (0, 0, 0, ())


def made(
    network: str, parameters: Sequence[Tensor], statistics: Sequence[Tensor], overrun: str | None
) -> Served:
    """Returns a new Served network with copies of these tensors."""
    return Served(architecture(network), arrays(parameters), arrays(statistics), overrun, dtype_of(network))


# {first parameter: Kept}, as long as the parameter exists.
_served: Any = WeakTensorKeyDictionary()


def packed(
    network: str, parameters: Sequence[Tensor], statistics: Sequence[Tensor], overrun: str | None
) -> Served:
    """Returns the cached network of these tensors. It is created again if the tensors have changed."""
    tensors = [*parameters, *statistics]
    kept = _served.get(parameters[0])
    if kept is None or not kept.serves(network, overrun, tensors):
        record = seen(tensors)
        kept = Kept(network, overrun, record, made(network, parameters, statistics, overrun))
        _served[parameters[0]] = kept
    return kept.served  # type: ignore[no-any-return]


def pack_again(tensors: Iterable[Any]) -> None:
    """Drops cached networks whose first parameter is one of these tensors."""
    for t in tensors:
        if t is not None:
            _served.pop(t, None)


def forget(part: torch.nn.Module) -> None:
    """Drops a module's packed weights; its next call packs them again."""
    vars(part).pop("_kept", None)
    pack_again(part._parameters.values())


class Keeping(torch.nn.Module):
    """Base class of modules that cache packed weights between calls without gradients."""

    _kept: Kept | None = None
    _frozen: bool = False
    _steps: bool = False  # a call is one step

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
        """Returns a network with packed weights for this call, and caches it for the next call."""
        kept, sources = self._kept, [*self._parameters.values(), *statistics]
        if kept is None or not kept.serves(network, overrun, sources):
            known = {id(t) for t in sources}
            # Derived weights, such as parametrized ones, have no record.
            record = seen(sources, True, self._frozen) if all(id(t) in known for t in parameters) else None
            found = made(network, parameters, statistics, overrun)
            kept = vars(self)["_kept"] = Kept(network, overrun, record, found, self._steps)
        return kept.served

    def _packed_to_train(self, network: str, parameters: Sequence[Tensor], steps: int) -> Snapshot | None:
        """Returns a Snapshot whose packed weights may serve several calls with gradients, or None.

        Weights are cached if they are packed already, or if the call has few steps. Then more calls may
        follow before the weights change, as in a decoder's loop. Otherwise None lets the call pack the
        weights without a copy. Rounded weights, and those of frozen modules, are not for gradients.
        """
        kept = self._kept
        if self._frozen or dtype_of(network) != "float32":
            return None
        if steps <= FEW_STEPS:
            return self._packed(network, parameters, (), None).snapshot
        own: dict[str, Any] = self._parameters
        same = kept is not None and kept.serves(network, None, [*own.values()])
        return kept.served.snapshot if kept is not None and same else None
