"""Finds recurrent modules of unknown classes: by class name, by shapes of parameters, and by calls."""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.nn.modules import module as hooks
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from ..importers.running import tensors

Tensor = torch.Tensor
_NAME = re.compile(
    r"RNN|LSTM|GRU|(?:Rnn|Lstm|Gru)(?![a-z])|(?<![A-Za-z])(?:rnn|lstm|gru)(?![a-z])|[Rr]ecurrent"
)
_CELL = re.compile(r"(?:Cells?|(?<![A-Za-z])cells?)(?:Base|Layer)?_?\d*$")
_OF_STATE = re.compile(r"hh|h2h|h_h|rec")  # in names of W_hh
_STATE = re.compile(
    r"(?:prev|rnn|s?lstm|gru|hidden|last)?_?(?:h|hx|h0|hc|hidden|states?|carry)(?:_?(?:prev|t|0|tm1|t_1))?"
)
_CONV = torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d  # streamed convolutions take states too
_JOINS = {"cat", "concat", "concatenate", "hstack"}
_ADVICE = "lnrnn.from_torch(module) may find its equation, and lnrnn.torch.from_network then gives a module"


def why_called(calls: int) -> str:
    return (
        f"it is called {calls} times, each time with its own last output: its loop is not lnrnn's; {_ADVICE}"
    )


def why_unknown(module: torch.nn.Module, by_name: bool) -> str | None:
    """Returns why a module of an unknown class seems recurrent, and advice; None if it does not.

    by_name: whether the name and the methods of the class count.
    """
    cls: Any = type(module)
    name = getattr(module, "original_name", cls.__name__)  # of a scripted module
    if cls.__module__.startswith("torch.nn."):
        return None
    axes = {_axes(p) for p in module.parameters()}
    named = _NAME.search(name) and max(axes, default=0) > 1
    if _CELL.search(name) and axes & {2, 3}:  # a "cell" of convolutions, as in NASNet, is not recurrent
        named = True
    if by_name and named:
        return f"lnrnn does not know its class {name}: {_ADVICE}"
    pair = _weights(module)
    if pair is not None:
        return f"its parameters {pair[0]} and {pair[1]} have the shapes of a cell's W_ih and W_hh: {_ADVICE}"
    matrix = next((n for n, p in _near(module) if _axes(p) > 1), None)
    code = _Code(cls)
    if not by_name or matrix is None or "softmax" in code.names:  # attention takes states of other modules
        return None
    if code.state is not None:
        return f"it takes a state, {code.state}, and has a matrix, {matrix}: {_ADVICE}"
    if code.loops and code.names & _JOINS and ("tanh" in code.names or code.names >= {"sigmoid", "chunk"}):
        return f"it has a loop with gates, and {matrix} may be W_ih and W_hh side by side: {_ADVICE}"
    return None


def _near(module: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields the module's own parameters, and those of its parts of class Linear, with their names."""
    if not isinstance(module, _CONV):
        yield from module.named_parameters(recurse=False)
    for name, part in module.named_children():
        if isinstance(part, torch.nn.Linear):
            yield from ((f"{name}.{own}", p) for own, p in part.named_parameters())


class _Code:
    """The methods of a class, up to those of torch.

    names: the names of attributes and globals, with "chunk" for all functions that divide gates. state: the
    name of the first argument that seems to be a state, or None. loops: whether a method has a loop.
    """

    def __init__(self, cls: Any) -> None:
        self.names: set[str] = set()
        self.state: str | None = None
        self.loops = False
        for base in cls.__mro__:
            if base.__module__.partition(".")[0] == "torch":
                break
            for name, method in vars(base).items():
                function = inspect.unwrap(method) if callable(method) else None
                if isinstance(function, FunctionType) and not name.startswith("__"):
                    self._add(function.__code__)
        if self.names & {"split", "unbind", "tensor_split"}:
            self.names.add("chunk")

    def _add(self, code: CodeType) -> None:
        self.names.update(name.lower().rstrip("_") for name in code.co_names)
        given = code.co_varnames[2 : code.co_argcount + code.co_kwonlyargcount]  # not self and x
        self.state = self.state or next(filter(_STATE.fullmatch, given), None)
        jumps = {*dis.hasjrel, *dis.hasjabs}
        self.loops |= any(i.opcode in jumps and i.argval <= i.offset for i in dis.get_instructions(code))


def _weights(module: torch.nn.Module) -> tuple[str, str] | None:
    """Returns names of parameters that have the shapes (kH, I) and (kH, H), or None.

    They are the module's own, or those of its parts of class Linear if the module has gates. k is 2, 3 or 4,
    or also 1 if the name shows W_hh. Matrices may be transposed. A parameter with kH columns shows a
    feed-forward layer with kH units.
    """
    gated = _Code(type(module)).names & {"tanh", "sigmoid"}
    given = _near(module) if gated else module.named_parameters(recurse=False)
    matrices = {name: tuple(p.shape) for name, p in given if not is_lazy(p) and p.dim() == 2}
    for step in (1, -1):
        shapes = {name: shape[::step] for name, shape in matrices.items()}
        for name, (rows, H) in shapes.items():
            gates = (1, 2, 3, 4) if _OF_STATE.search(name) else (2, 3, 4)
            if rows not in [k * H for k in gates] or (
                rows != H and any(columns == rows for _, columns in shapes.values())
            ):
                continue
            for other, shape in shapes.items():
                if other != name and shape[0] == rows:
                    return other, name
    return None


# --- calls --------------------------------------------------------------------------------------------------

Place = tuple[int, int]  # a tensor: the number of its memory, and the offset there


@dataclass(frozen=True)
class _Output:
    """A tensor's dependence on a module's last output. width: the least last axis on the way from there.
    others: the tensors that were combined with it on the way."""

    width: int
    others: frozenset[Place] = frozenset()


@dataclass
class _Memory:
    """The memory of tensors. of: the modules on whose last output it depends, without another module with
    matrices in between."""

    number: int
    of: dict[int, _Output]


class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """In this context, finds modules that get their own last output, with new input, in a later call.

    `found` has the number of calls of each such module, by id. A matrix of the module must have the shape
    (kH, n), n >= H, for outputs of width H. Other modules are called in a loop too. But shared layers have no
    new input, and the output of a layer behind a cell returns through the cell.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[int, int] = {}
        self._calls: dict[int, int] = {}
        self._seen: dict[int, set[Place]] = {}
        self._memories: dict[int, _Memory] = {}
        self._numbers = count()
        self._watched = {id(m) for m in model.modules() if any(_axes(p) > 1 for p in m.parameters())}
        self._constant = {_address(p) for p in model.parameters() if not is_lazy(p)}
        self._handles: list[Any] = []

    def __enter__(self) -> Calls:
        before: Any = hooks.register_module_forward_pre_hook
        after: Any = hooks.register_module_forward_hook
        self._handles = [before(self._before), after(self._after)]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for handle in self._handles:
            handle.remove()

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        given = _dense((args, kwargs or {}))
        before = {_address(t) for t in given}
        for t in _dense(result):
            own = self._outputs(given, t)
            if _address(t) in before:  # a view, or changed in place
                self._memory(t).of.update(own)
            else:
                self._memories[_address(t)] = _Memory(next(self._numbers), own)
        return result

    def _memory(self, t: Tensor) -> _Memory:
        return self._memories.setdefault(_address(t), _Memory(next(self._numbers), {}))

    def _outputs(self, given: list[Tensor], result: Tensor | None = None) -> dict[int, _Output]:
        """Returns `_Memory.of` for a result that is computed from the tensors `given`."""
        found = {}
        for key in {key for t in given for key in self._memory(t).of}:
            mine = [t for t in given if key in self._memory(t).of]
            others = frozenset(
                self._place(t)
                for t in given
                if key not in self._memory(t).of
                and t.is_floating_point()
                and t.dim() >= min(own.dim() for own in mine)
                and _address(t) not in self._constant
            )
            parts = [self._memory(t).of[key] for t in mine]
            widths = [part.width for part in parts]
            if result is not None and result.dim() and result.shape[-1] > 1:
                widths.append(result.shape[-1])
            found[key] = _Output(min(widths), others.union(*(part.others for part in parts)))
        return found

    def _place(self, t: Tensor) -> Place:
        return self._memory(t).number, int(t.storage_offset())

    def _before(self, module: torch.nn.Module, arguments: Any) -> None:
        key = id(module)
        if key not in self._watched:
            return
        given = _dense(arguments)
        self._calls[key] = self._calls.get(key, 0) + 1
        own = self._outputs(given).get(key)
        others = frozenset(map(self._place, given)) if own is None else own.others
        seen = self._seen.setdefault(key, set())
        if key in self.found or (own is not None and others - seen and _recurs(module, own.width)):
            self.found[key] = self._calls[key]
        seen |= others

    def _after(self, module: torch.nn.Module, arguments: Any, result: Any) -> None:
        if id(module) in self._watched:
            before = {_address(t) for t in _dense(arguments)}
            for t in _dense(result):
                if _address(t) not in before:
                    self._memory(t).of = {id(module): _Output(int(t.shape[-1]) if t.dim() else 1)}


def _recurs(module: torch.nn.Module, H: int) -> bool:
    """Returns whether a matrix of the module may be W_hh of H units, for up to 8 gates, or W_hh and W_ih."""
    shapes = [p.shape[-2:] for p in module.parameters() if _axes(p) in (2, 3)]
    turned = [shape[::-1] for shape in shapes]
    return any(rows in range(H, 8 * H + 1, H) and n >= H for rows, n in (*shapes, *turned))


def _axes(p: Tensor) -> int:
    return 2 if is_lazy(p) else p.dim()


def _dense(value: Any) -> list[Tensor]:
    """Returns the tensors in nested tuples, lists and mappings that have a memory."""
    return [t for t in tensors(value) if t.layout is torch.strided and _address(t)]


def _address(t: Tensor) -> int:
    """Returns the address of a tensor's memory, or 0 for tensors without it, as distributed ones."""
    try:
        return int(t.untyped_storage().data_ptr())
    except RuntimeError:
        return 0
